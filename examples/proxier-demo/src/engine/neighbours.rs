//! Finds the neighbours that this node must be able to reach: the API server and the name servers. No Service may take
//! their addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{SockaddrStorage, getpeername};
use proxier_core::config::{Neighbour, Reserved, User};
use proxier_core::kernel::KernelPorts;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::gather::Gather as _;
use crate::message::{Message, NeighboursByUser};
use crate::settings::cli::{Configured, Source};

/// Interval between two searches.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time until the first search: by then the API server is usually connected.
const FIRST: Duration = Duration::from_secs(5);
/// How long a neighbour is kept after it was last found: a name may resolve to other addresses each time, and a
/// connection may outlast them.
const KEPT: Duration = Duration::from_secs(600);
/// Files that list the name servers: those that programs use and, if that is a resolver on this node, those that it
/// asks.
const RESOLVERS: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

pub(crate) struct Neighbours {
    source: Source,
    /// Whether this process relays connections. Those to endpoints and from clients then look like those to the API
    /// server, if they have its port.
    relays: bool,
    seen: BTreeMap<User, BTreeMap<Neighbour, Instant>>,
}

impl Neighbours {
    pub(crate) fn new(source: &Source, relays: bool) -> Self {
        Neighbours { source: source.clone(), relays, seen: BTreeMap::new() }
    }

    /// The API server as configured, with its name resolved, and as connected, if that can be told; and the name
    /// servers.
    pub(crate) async fn find(&mut self) -> NeighboursByUser {
        let mut found: Vec<(User, Neighbour)> = Vec::new();
        if let Source::Cluster(connection) = &self.source
            && let Some((port, mut servers)) = connection.server_addresses().await
        {
            if !self.relays {
                servers.extend(peers(port));
            }
            let neighbour = |server: SocketAddr| (User::ApiServer, Neighbour::tcp(server.ip(), server.port()));
            found.extend(servers.into_iter().map(neighbour));
        }
        for text in RESOLVERS.iter().filter_map(|path| std::fs::read_to_string(path).ok()) {
            found.extend(name_servers(&text).map(|address| (User::NameServer, Neighbour::new(address))));
        }
        self.remember(found, Instant::now())
    }

    fn remember(&mut self, found: Vec<(User, Neighbour)>, now: Instant) -> NeighboursByUser {
        for (user, neighbour) in found {
            self.seen.entry(user).or_default().insert(neighbour, now);
        }
        for seen in self.seen.values_mut() {
            // Age is relative to the newest of a kind: if none of that kind is found any more, all of them stay.
            let newest = seen.values().max().copied().unwrap_or(now);
            seen.retain(|_, at| newest.saturating_duration_since(*at) < KEPT);
        }
        self.seen.iter().map(|(user, seen)| (user.clone(), seen.keys().copied().gather())).gather()
    }
}

/// The addresses in a `resolv.conf`. The devices of link-local ones are dropped.
fn name_servers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.split('%').next()?.parse().ok()
    })
}

/// The peers to which this process is connected on this port, from the kernel.
fn peers(port: u16) -> Vec<SocketAddr> {
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    // Descriptors that are not sockets, or are closed by now, have no peer.
    let peer = |number| {
        let address = getpeername::<SockaddrStorage>(number).ok()?;
        let v4 = address.as_sockaddr_in().map(|address| SocketAddr::from((address.ip(), address.port())));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::from((address.ip(), address.port()))))
    };
    numbers.filter_map(peer).filter(|peer| peer.port() == port).collect()
}

/// Searches repeatedly, and sends changes to the kernel's thread. `relays`: whether this process relays connections.
pub(crate) async fn watch(source: Source, relays: bool, messages: mpsc::Sender<Message>) {
    let mut neighbours = Neighbours::new(&source, relays);
    let mut last = NeighboursByUser::new();
    let mut pause = FIRST;
    loop {
        tokio::time::sleep(pause).await;
        pause = INTERVAL;
        let found = neighbours.find().await;
        if found != last {
            last.clone_from(&found);
            if messages.send(Message::Neighbours(found)).await.is_err() {
                return;
            }
        }
    }
}

/// Addresses and ports that no Service gets on this node, as far as known without the API server.
pub(crate) async fn reserved(configured: &Configured, kernel: &mut KernelPorts) -> Reserved {
    let mut reserved = configured.settings.reserved();
    for (user, neighbours) in Neighbours::new(&configured.source, false).find().await {
        reserved.set_neighbours(user, neighbours);
    }
    if let Ok(gateways) = kernel.ports().links.gateways() {
        reserved.set_neighbours(User::Gateway, gateways.into_iter().map(Neighbour::new));
    }
    reserved
}

/// The reserved addresses and ports as text, one line each, and as JSON.
pub(crate) fn shown(reserved: &Reserved) -> (String, Value) {
    let mut text =
        "\nreserved: no external IP or load balancer has these addresses, no node port these ports\n".to_owned();
    let mut all = Vec::new();
    let places = reserved.iter().map(|(place, user)| (place.address, Some((place.protocol, place.port)), user));
    let neighbours = reserved.neighbours().map(|(user, neighbour)| (Some(neighbour.address), None, user));
    for (address, port, user) in places.chain(neighbours) {
        let shown = address.map_or_else(|| "every address of this node".to_owned(), |address| address.to_string());
        let of_port = port.map(|(protocol, port)| format!(", {protocol} {port}")).unwrap_or_default();
        text += &format!("  {shown}{of_port}: {user}\n");
        let (protocol, port) = port.map(|(protocol, port)| (protocol.to_string(), port)).unzip();
        all.push(json!({"address": address, "protocol": protocol, "port": port, "for": user.to_string()}));
    }
    text.push_str("  the endpoints of default/kubernetes\n");
    (text, all.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::cluster::Connection;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn name_servers_are_read() {
        let text = "# nameserver 192.0.2.1\nsearch example.com\nnameserver 192.0.2.53\n nameserver\t2001:db8::53\n\
                    nameserver fe80::1%eth0\nnameserver\nnameserver ns.example.com\noptions edns0\n";
        let found: Vec<IpAddr> = name_servers(text).collect();
        assert_eq!(found, ["192.0.2.53", "2001:db8::53", "fe80::1"].map(ip));
    }

    /// An endpoint to which connections are relayed is not an API server because of its port.
    #[tokio::test]
    async fn relayed_connections_are_not_taken_for_the_api_server() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let endpoint = std::net::TcpListener::bind(("127.0.0.2", port)).unwrap();
        let _relayed = std::net::TcpStream::connect(endpoint.local_addr().unwrap()).unwrap();
        let other = std::net::TcpListener::bind("127.0.0.3:0").unwrap();
        let _to_another_port = std::net::TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let connection = Connection { master: Some(format!("http://127.0.0.1:{port}")), ..Connection::default() };
        for (relays, found) in [(false, vec!["127.0.0.1", "127.0.0.2"]), (true, vec!["127.0.0.1"])] {
            let mut neighbours = Neighbours::new(&Source::Cluster(connection.clone()), relays).find().await;
            let servers: Vec<String> =
                neighbours.remove(&User::ApiServer).into_iter().flatten().map(|of| of.address.to_string()).collect();
            assert_eq!(servers, found);
        }
    }

    #[test]
    fn neighbours_are_kept_for_a_while_after_they_were_found() {
        let source = Source::Cluster(Connection::default());
        let mut neighbours = Neighbours::new(&source, false);
        let server = |text: &str| (User::ApiServer, Neighbour::tcp(ip(text), 6443));
        let start = Instant::now();
        let mut at = |found: &[&str], secs| {
            let found =
                neighbours.remember(found.iter().map(|text| server(text)).collect(), start + Duration::from_secs(secs));
            found.get(&User::ApiServer).into_iter().flatten().map(|of| of.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(at(&["192.0.2.1"], 0), ["192.0.2.1"]);
        assert_eq!(at(&["192.0.2.2"], 30), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(at(&["192.0.2.2"], 599), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(at(&["192.0.2.2"], 600), ["192.0.2.2"]);
        // The name of the API server can no longer be resolved.
        assert_eq!(at(&[], 10_000), ["192.0.2.2"]);
    }
}
