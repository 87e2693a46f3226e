//! Listening sockets of this network namespace's proxy, if that is another process: from `/proc`
//! ([proc_pid_net(5)](https://man7.org/linux/man-pages/man5/proc_pid_net.5.html)).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::{fs, io};

use proxier_core::net::{FrontendKey, Protocol};

/// A listening TCP socket, and an unconnected UDP socket (include/net/tcp_states.h).
const LISTENS: &str = "0A";
const UNCONNECTED: &str = "07";

/// Addresses and ports on which a process listens, in this thread's network namespace.
pub(crate) fn listened_on(process: u32) -> io::Result<BTreeSet<FrontendKey>> {
    let files = fs::read_dir(Path::new("/proc").join(process.to_string()).join("fd"))?;
    // A descriptor that is closed meanwhile is irrelevant.
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok()?.into_os_string().into_string().ok());
    let sockets: BTreeSet<String> =
        links.filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect();
    let mut keys = BTreeSet::new();
    for (name, protocol, state) in [
        ("tcp", Protocol::Tcp, LISTENS),
        ("tcp6", Protocol::Tcp, LISTENS),
        ("udp", Protocol::Udp, UNCONNECTED),
        ("udp6", Protocol::Udp, UNCONNECTED),
    ] {
        match fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
            Ok(text) => {
                keys.extend(places(&text, state, &sockets).map(|(ip, port)| FrontendKey::new(protocol, ip, port)));
            }
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && name.ends_with('6') => {}
            Err(error) => return Err(error),
        }
    }
    Ok(keys)
}

/// The local addresses and ports of the sockets in this state, by inode.
fn places<'a>(
    text: &'a str,
    state: &'a str,
    sockets: &'a BTreeSet<String>,
) -> impl Iterator<Item = (IpAddr, u16)> + 'a {
    text.lines().skip(1).filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, is, _, _, _, _, _, inode, ..] = words.as_slice() else { return None };
        if *is != state || !sockets.contains(*inode) {
            return None;
        }
        let (address, port) = local.split_once(':')?;
        Some((self::address(address)?, u16::from_str_radix(port, 16).ok()?))
    })
}

/// An address as `/proc` prints it: each 32 bits as a number in host byte order.
fn address(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(digits.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match digits.len() {
        8 => word(0).map(Ipv4Addr::from).map(IpAddr::from),
        32 => {
            let mut octets = [0; 16];
            for (at, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn sockets_of_this_process_are_found() {
        for address in ["127.0.0.3:0", "[::1]:0"] {
            let tcp = TcpListener::bind(address).unwrap();
            let udp = UdpSocket::bind(address).unwrap();
            let client = UdpSocket::bind(address).unwrap();
            client.connect(udp.local_addr().unwrap()).unwrap();
            let found = listened_on(std::process::id()).unwrap();
            let key = |protocol, place: std::net::SocketAddr| FrontendKey::new(protocol, place.ip(), place.port());
            let has = |protocol, place| found.contains(&key(protocol, place));
            assert!(has(Protocol::Tcp, tcp.local_addr().unwrap()) && has(Protocol::Udp, udp.local_addr().unwrap()));
            assert!(!has(Protocol::Udp, client.local_addr().unwrap()), "{found:?}");
        }
    }
}
