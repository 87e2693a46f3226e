//! Compares the experience of clients with the expected one.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proxier_core::net::Family;
use serde_json::{Value, json};
use testkit::witness::{Answer, Transport, ask};
use testkit::{Netns, kernel_test};

use super::NEEDS;
use super::cluster::{Cluster, options};
use super::net::{FAMILIES, From, Net, is_nodes};
use super::objects::Pod;

/// Longest wait of a client for an expected answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Wait of a client for an answer that must not come.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// Number of surprises after which no client asks any more: each may take as long as [`LIMIT`].
const ENOUGH: usize = 12;

/// Source address that the pod has to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The client's own address.
    Kept,
    /// The node's address instead.
    Masqueraded,
}

/// Unexpected experiences of clients.
#[derive(Default)]
pub(crate) struct Surprises {
    found: Vec<String>,
    /// Clients that wait for an answer that must not come, all at the same time.
    waiting: Vec<JoinHandle<Option<String>>>,
}

impl Surprises {
    #[track_caller]
    pub(crate) fn none(mut self) {
        for waiting in self.waiting {
            self.found.extend(waiting.join().unwrap());
        }
        assert!(self.found.is_empty(), "{} surprises:\n{}", self.found.len(), self.found.join("\n"));
    }

    /// Asks as often as there are servers that have to answer: they take turns, so each does.
    pub(crate) fn served(
        &mut self,
        net: &Net,
        from: From,
        transport: Transport,
        to: SocketAddr,
        names: &[&str],
        peer: Peer,
    ) {
        if self.found.len() > ENOUGH {
            return;
        }
        let what = format!("{from:?} {transport:?} {to}");
        let own = Net::address(from, Family::of(to.ip()));
        let all = || names.iter().map(|_| ask(transport, own, to, LIMIT)).collect::<io::Result<Vec<Answer>>>();
        let answers = match net.of(from).run_in(all).unwrap() {
            Ok(answers) => answers,
            Err(error) => {
                self.found.push(format!("{what}: {error}"));
                return;
            }
        };
        for answer in &answers {
            let seen = answer.peer.ip();
            let right = match peer {
                Peer::Kept => seen == answer.own.ip(),
                Peer::Masqueraded => is_nodes(seen) && (from == From::Node || seen != answer.own.ip()),
            };
            if !right {
                self.found.push(format!("{what}: not {peer:?}: {answer:?}"));
            }
        }
        let seen: BTreeSet<String> = answers.into_iter().map(|answer| answer.name).collect();
        let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        if seen != wanted {
            self.found.push(format!("{what}: answered by {seen:?} instead of {wanted:?}"));
        }
    }

    /// Expects no answer, and that the client is refused at once.
    pub(crate) fn refused(&mut self, net: &Net, from: From, transport: Transport, to: SocketAddr) {
        let begin = Instant::now();
        let own = Net::address(from, Family::of(to.ip()));
        let answer = net.of(from).run_in(|| ask(transport, own, to, LIMIT)).unwrap();
        let elapsed = begin.elapsed();
        // A datagram of the node itself is not even sent.
        let how = match (from, transport) {
            (From::Node, Transport::Udp) => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::ConnectionRefused,
        };
        match answer {
            Err(error) if error.kind() == how && elapsed < LIMIT / 4 => {}
            answer => {
                self.found.push(format!("{from:?} {transport:?} {to}: not refused after {elapsed:?}: {answer:?}"));
            }
        }
    }

    /// Expects no answer, whether or not the client is refused. Servers that might answer have to live until [`Surprises::none`].
    pub(crate) fn silent(&mut self, net: &Net, from: From, transport: Transport, to: SocketAddr) {
        self.silent_to(net.of(from), Net::address(from, Family::of(to.ip())), transport, to);
    }

    /// Expects no answer to a client with this address.
    pub(crate) fn silent_to(&mut self, client: &Netns, from: Option<IpAddr>, transport: Transport, to: SocketAddr) {
        let waiting = client.spawn(move || {
            let answer = ask(transport, from, to, SILENCE);
            answer.ok().map(|answer| format!("{transport:?} {to}: {answer:?}"))
        });
        self.waiting.push(waiting.unwrap());
    }
}

/// Each family with each transport.
pub(crate) fn every() -> impl Iterator<Item = (Family, Transport)> {
    FAMILIES.into_iter().flat_map(|family| Transport::ALL.map(|transport| (family, transport)))
}

/// A node with one Service.
pub(crate) fn with_service(more: &Value, pods: &[Pod], body: impl FnOnce(&Net, &mut Cluster)) {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = Cluster::new(options(&json!({})));
        cluster.publish("web", 10, more, pods);
        cluster.settle();
        body(&net, &mut cluster);
    });
}

/// Every transport at every address of a namespace.
pub(crate) fn daemon_at(port: u16) -> [(Transport, SocketAddr); 3] {
    Transport::ALL.map(|transport| (transport, ([0_u16; 8], port).into()))
}
