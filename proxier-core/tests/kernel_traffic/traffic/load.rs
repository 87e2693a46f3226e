//! Clients that keep connecting, each time from a new port, and record every time they were not served.
//!
//! No two connections share a port until all ports are used, even to different destinations. IPVS finds the connection
//! of an answer by the real server and the client's address and port (`ip_vs_conn_out_get`). If two connections from
//! one port go through two virtual servers to one pod, the younger gets all answers. With many virtual servers in front
//! of few pods, as here, ports that the kernel chooses at random collide that way a few times in 100,000 connections.
//!
//! A client of UDP asks as a resolver does: up to three times, from one port. A question on its way to a pod that goes may be lost; the flow must not
//! be.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testkit::Netns;
use testkit::witness::{Conversation, Transport};

use super::net::Net;

/// Destination of a client.
pub(crate) type Target = (Transport, SocketAddr);

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    again: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

/// A client waits this long for each step, and for each answer over UDP.
const LIMIT: Duration = Duration::from_secs(10);
const UDP_LIMIT: Duration = Duration::from_secs(3);

/// The ports that connections are made from, in turn.
const PORTS: std::ops::Range<u16> = 2_000..62_000;

fn next_port(ports: &AtomicU16) -> u16 {
    PORTS.start
        + ports
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |port| Some((port + 1) % (PORTS.end - PORTS.start)))
            .unwrap()
}

/// Connects and asks; returns the number of questions.
fn ask((transport, to): Target, port: u16) -> io::Result<usize> {
    if transport != Transport::Udp {
        return Conversation::open_from_port(transport, None, port, to, LIMIT)?.ask().map(|_| 1);
    }
    let mut flow = Conversation::open_from_port(transport, None, port, to, UDP_LIMIT)?;
    flow.ask().map(|_| 1).or_else(|_| flow.ask().map(|_| 2)).or_else(|_| flow.ask().map(|_| 3))
}

impl Load {
    /// Starts this many clients, each of which goes through all the addresses and ports in turn, with this pause after
    /// each.
    pub(crate) fn start(namespace: &Netns, clients: usize, targets: &[Target], pause: Duration) -> Self {
        let origin = Instant::now();
        let ports = Arc::new(AtomicU16::new(0));
        let load = Load {
            stop: Arc::default(),
            served: Arc::default(),
            again: Arc::default(),
            failures: Arc::default(),
            threads: Vec::new(),
        };
        let threads = (0..clients).map(|number| {
            let (stop, served, again, failures) =
                (Arc::clone(&load.stop), Arc::clone(&load.served), Arc::clone(&load.again), Arc::clone(&load.failures));
            let ports = Arc::clone(&ports);
            // Clients begin at different destinations.
            let mut targets = targets.to_vec();
            let length = targets.len();
            targets.rotate_left(number % length);
            let work = move || {
                for (transport, to) in targets.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let begun = origin.elapsed();
                    let port = next_port(&ports);
                    match ask((*transport, *to), port) {
                        Ok(asked) => {
                            served.fetch_add(1, Ordering::Relaxed);
                            again.fetch_add(asked - 1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let failure = format!(
                                "{transport:?} {to} from port {port}, {begun:?} to {:?}: {error}",
                                origin.elapsed()
                            );
                            failures.lock().unwrap().push(failure);
                        }
                    }
                    thread::sleep(pause);
                }
            };
            namespace.spawn(work).unwrap()
        });
        Load { threads: threads.collect(), ..load }
    }

    /// Connections that were served until now.
    pub(crate) fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }

    /// Questions that were asked again over UDP until now.
    pub(crate) fn asked_again(&self) -> usize {
        self.again.load(Ordering::Relaxed)
    }

    /// Waits until this many more were served.
    #[track_caller]
    pub(crate) fn wait_for(&self, more: usize) {
        let (begin, before) = (Instant::now(), self.served());
        while self.served() < before + more {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{} instead of {more} connections",
                self.served() - before
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the clients. Every connection must have been served, and the node's table of tracked connections must have had
    /// room for all; returns how many there were.
    #[track_caller]
    pub(crate) fn finish(self, node: &Netns) -> usize {
        let (tracked, room) = Net::tracked(node);
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let failures = self.failures.lock().unwrap();
        let served = self.served.load(Ordering::Relaxed);
        assert!(
            failures.is_empty(),
            "{} of {} failed, {tracked} of {room} tracked:\n{}",
            failures.len(),
            served + failures.len(),
            failures.join("\n")
        );
        assert!(served > 0, "nobody connected");
        assert!(tracked < room / 2, "{tracked} connections are tracked, and there is room for {room}");
        served
    }
}
