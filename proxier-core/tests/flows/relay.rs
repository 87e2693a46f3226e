//! A small mode that ends connections on the node, to test that the harness can check such modes.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use proxier_core::net::Family;
use testkit::Netns;
use testkit::oracle::{self, Backend};
use testkit::witness::Transport;

use super::flow::Flow;
use super::{Scenario, Subject};

/// Redirects cluster IPs to sockets of its own, and from there to the endpoints in turn.
#[derive(Default)]
pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// The flows that it serves.
    pub(crate) fn flows(scenario: &Scenario) -> Vec<Flow> {
        let is_served = |flow: &&Flow| {
            let simple = flow.protocol != Transport::Sctp && flow.affinity.is_none();
            simple && flow.via == "clusterIP" && !flow.endpoints().is_empty()
        };
        scenario.flows.iter().filter(is_served).cloned().collect()
    }
}

impl Subject for Relay {
    fn ends_connections(&self) -> bool {
        true
    }

    fn program(&mut self, _node: &Netns, scenario: &Scenario) -> Result<(), Box<dyn Error>> {
        let mut rules = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n".to_owned();
        let flows = Relay::flows(scenario);
        let frontends: BTreeMap<_, _> = flows.iter().map(|flow| ((flow.protocol, flow.to), flow.endpoints())).collect();
        for ((protocol, to), endpoints) in frontends {
            let port = self.serve(protocol, to.ip(), endpoints.clone())?;
            let protocol = if protocol == Transport::Tcp { "tcp" } else { "udp" };
            for chain in ["PREROUTING", "OUTPUT"] {
                let (address, dport) = (to.ip(), to.port());
                let what = format!("-d {address} -p {protocol} --dport {dport}");
                writeln!(rules, "-A {chain} {what} -j REDIRECT --to-ports {port}")?;
            }
        }
        rules.push_str("COMMIT\n");
        let family = if scenario.family == Family::V4 { oracle::Family::V4 } else { oracle::Family::V6 };
        Ok(oracle::iptables_restore(Backend::Nft, family, &rules)?)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        self.stop.store(false, Ordering::Relaxed);
    }
}

const TICK: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(5);

impl Relay {
    /// Starts a thread that relays connections or datagrams to a new port, which is returned.
    fn serve(&mut self, protocol: Transport, of: IpAddr, endpoints: BTreeSet<SocketAddr>) -> io::Result<u16> {
        let any: IpAddr = if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let (stop, mut turn) = (Arc::clone(&self.stop), 0);
        let endpoints: Vec<SocketAddr> = endpoints.into_iter().collect();
        let mut next = move || {
            turn += 1;
            endpoints[turn % endpoints.len()]
        };
        if protocol == Transport::Tcp {
            let listener = TcpListener::bind((any, 0))?;
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            self.threads.push(std::thread::spawn(move || {
                // A connection that is slow to speak holds up no other.
                let mut open = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((client, _)) => {
                            let endpoint = next();
                            open.push(std::thread::spawn(move || relay(client, endpoint)));
                        }
                        Err(_) => std::thread::sleep(TICK),
                    }
                }
                // Both connections of each stay open until all have ended.
                drop(open.into_iter().map(JoinHandle::join).collect::<Vec<_>>());
            }));
            return Ok(port);
        }
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.port();
        self.threads.push(std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                match socket.recv(&mut buffer) {
                    Ok(length) => {
                        let onward = UdpSocket::bind((any, 0)).unwrap();
                        onward.send_to(&buffer[..length], next()).unwrap();
                    }
                    Err(_) => std::thread::sleep(TICK),
                }
            }
        }));
        Ok(port)
    }
}

/// Passes the first data on; both connections stay open as long as the result.
fn relay(mut client: TcpStream, endpoint: SocketAddr) -> io::Result<(TcpStream, TcpStream)> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(LIMIT))?;
    let mut data = [0; 4];
    client.read_exact(&mut data)?;
    let mut onward = TcpStream::connect_timeout(&endpoint, LIMIT)?;
    onward.write_all(&data)?;
    Ok((client, onward))
}
