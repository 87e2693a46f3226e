//! Captures every netlink message of a network namespace with a device of type `nlmon`, so that tests can check that a
//! program writes nothing.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBufForce, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, SockaddrLike as _, recvfrom, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::oracle;

/// `ARPHRD_NETLINK`.
const NETLINK_DEVICE: u16 = 824;
/// `NLM_F_REQUEST`: set in every message to the kernel and in none from it. The device does not tell the direction: it
/// marks each copy as outgoing (`dev_queue_xmit_nit`).
const REQUEST: u16 = 1;

const NETLINK_ROUTE: u16 = 0;
const NETLINK_NETFILTER: u16 = 12;
const NETLINK_GENERIC: u16 = 16;

/// The socket's buffer. A listing of 10,000 services arrives faster than the thread reads it.
const BUFFER: usize = 64 << 20;

/// Captures the netlink messages of the namespace in which it was created, until it is dropped.
#[derive(Debug)]
pub struct NetlinkTap {
    writes: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NetlinkTap {
    /// Starts to capture in the current thread's namespace. Misses the writes that create its own device.
    pub fn start() -> io::Result<Self> {
        oracle::run("ip", &["link", "add", "tap0", "type", "nlmon"], None)?;
        oracle::run("ip", &["link", "set", "tap0", "up"], None)?;
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
        setsockopt(&fd, RcvBufForce, &BUFFER)?;
        setsockopt(&fd, ReceiveTimeout, &TimeVal::milliseconds(50))?;
        let (writes, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (theirs, stopped) = (Arc::clone(&writes), Arc::clone(&stop));
        let thread = thread::Builder::new().spawn(move || listen(&fd, &theirs, &stopped))?;
        Ok(Self { writes, stop, thread: Some(thread) })
    }

    /// The messages since the last call that change something, or may: `ipset ADD`, `IPVS NEW_DEST`, `nf_tables 6`,
    /// `rtnetlink 20`, in order. Reads are not included.
    pub fn writes(&self) -> Vec<String> {
        // Messages sent before this call are now in the buffer, and are read within the timeout.
        thread::sleep(Duration::from_millis(200));
        std::mem::take(&mut *self.writes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for NetlinkTap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

fn listen(fd: &OwnedFd, writes: &Mutex<Vec<String>>, stop: &AtomicBool) {
    let mut buffer = vec![0; 1 << 20];
    while !stop.load(Ordering::Relaxed) {
        let (length, from) = match recvfrom::<LinkAddr>(fd.as_raw_fd(), &mut buffer) {
            Ok((length, Some(from))) if from.family() == Some(AddressFamily::Packet) => (length, from),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(error) => {
                writes.lock().unwrap_or_else(PoisonError::into_inner).push(format!("(lost: {error})"));
                return;
            }
        };
        if from.hatype() == NETLINK_DEVICE {
            let found = writes_in(u16::from_be(from.protocol()), buffer.get(..length).unwrap_or_default());
            writes.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        }
    }
}

/// Writes in one datagram.
fn writes_in(protocol: u16, mut datagram: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while let Some((header, _)) = datagram.split_first_chunk::<16>() {
        let &[l0, l1, l2, l3, t0, t1, f0, f1, ..] = header;
        let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX).max(16);
        let message = datagram.get(..length).unwrap_or(datagram);
        if u16::from_ne_bytes([f0, f1]) & REQUEST != 0 {
            found.extend(write(protocol, u16::from_ne_bytes([t0, t1]), message.get(16..).unwrap_or_default()));
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// The write in a message, as text; `None` if it only reads.
fn write(protocol: u16, kind: u16, payload: &[u8]) -> Option<String> {
    let command = payload.first().copied().unwrap_or_default();
    match protocol {
        // NEW, DEL, GET, SET in rotation, from 16. Lower numbers are common to all of netlink.
        NETLINK_ROUTE => (kind >= 16 && kind % 4 != 2).then(|| format!("rtnetlink {kind}")),
        NETLINK_NETFILTER => match (kind >> 8, kind & 0xff) {
            // Begin and end of a batch; lists of tracked connections and of nf_tables objects; revisions of extensions.
            (0 | 11, _) | (1, 1 | 4..) | (10, 1 | 4 | 7 | 10 | 13 | 16 | 19 | 21 | 23 | 25) => None,
            (1, command) => Some(format!("conntrack {command}")),
            (6, command) => ipset(command).map(|name| format!("ipset {name}")),
            (10, command) => Some(format!("nf_tables {command}")),
            (subsystem, command) => Some(format!("nfnetlink {subsystem} {command}")),
        },
        // 16 is the controller, which looks up families.
        NETLINK_GENERIC if kind > 16 => ipvs(command).map(|name| format!("IPVS {name}")),
        _ => None,
    }
}

fn ipset(command: u16) -> Option<String> {
    let name = match command {
        2 => "CREATE",
        3 => "DESTROY",
        4 => "FLUSH",
        5 => "RENAME",
        6 => "SWAP",
        9 => "ADD",
        10 => "DEL",
        // PROTOCOL, LIST, SAVE, TEST, HEADER, TYPE, GET_BYNAME, GET_BYINDEX.
        1 | 7 | 8 | 11..=15 => return None,
        _ => return Some(command.to_string()),
    };
    Some(name.to_owned())
}

fn ipvs(command: u8) -> Option<String> {
    let name = match command {
        1 => "NEW_SERVICE",
        2 => "SET_SERVICE",
        3 => "DEL_SERVICE",
        5 => "NEW_DEST",
        6 => "SET_DEST",
        7 => "DEL_DEST",
        12 => "SET_CONFIG",
        16 => "ZERO",
        17 => "FLUSH",
        // GET_SERVICE, GET_DEST, GET_DAEMON, GET_CONFIG, GET_INFO.
        4 | 8 | 11 | 13 | 15 => return None,
        _ => return Some(command.to_string()),
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::writes_in;

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        with_flags(0x305, kind, payload)
    }

    fn with_flags(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = 16 + u32::try_from(payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn every_message_of_a_send_counts() {
        let sent = [message(20, &[2, 24, 0, 0, 1]), message(22, &[0]), message(21, &[])].concat();
        assert_eq!(writes_in(0, &sent), ["rtnetlink 20", "rtnetlink 21"]);
        let sent = [message(0x609, &[]), message(0x607, &[]), message(0x103 - 1, &[]), message(16, &[])].concat();
        assert_eq!(writes_in(12, &sent), ["ipset ADD", "conntrack 2"]);
        let sent = [message(16, &[3]), message(30, &[4]), message(30, &[5]), message(30, &[8])].concat();
        assert_eq!(writes_in(16, &sent), ["IPVS NEW_DEST"]);
    }

    #[test]
    fn answers_of_the_kernel_do_not_count_as_writes() {
        let listed = [with_flags(2, 20, &[2, 24, 0, 0, 1]), with_flags(2, 3, &[0; 4])].concat();
        assert_eq!(writes_in(0, &listed), <[String; 0]>::default());
        let acknowledged = with_flags(0x100, 2, &[[0; 4].to_vec(), message(20, &[])].concat());
        assert_eq!(writes_in(0, &acknowledged), <[String; 0]>::default());
    }

    #[test]
    fn truncated_messages_do_not_stop_it() {
        let whole = message(20, &[1, 2, 3, 4]);
        for length in 0..whole.len() {
            assert_eq!(writes_in(0, &whole[..length]).len(), usize::from(length >= 16));
        }
    }
}
