//! Clients that keep connecting, each time from a new port, and remember every time they were not served.
//!
//! A client asks over UDP as a resolver does: three times before it gives up, from one port. A question that is on its way while
//! its pod goes is lost; the flow must not be.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testkit::Netns;
use testkit::witness::{Conversation, Transport};

/// Where a client connects to.
pub(crate) type Place = (Transport, SocketAddr);

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

/// How often the client had to ask.
fn ask((transport, to): Place) -> io::Result<usize> {
    if transport != Transport::Udp {
        return Conversation::open(transport, None, to, LIMIT)?.ask().map(|_| 1);
    }
    let mut flow = Conversation::open(transport, None, to, UDP_LIMIT)?;
    flow.ask().map(|_| 1).or_else(|_| flow.ask().map(|_| 2)).or_else(|_| flow.ask().map(|_| 3))
}

impl Load {
    /// So many clients at work, each of which goes through all the places in turn, with this pause after each.
    pub(crate) fn start(namespace: &Netns, clients: usize, places: &[Place], pause: Duration) -> Self {
        let origin = Instant::now();
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
            // They begin at different places.
            let mut places = places.to_vec();
            let length = places.len();
            places.rotate_left(number % length);
            let work = move || {
                for (transport, to) in places.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let begun = origin.elapsed();
                    match ask((*transport, *to)) {
                        Ok(asked) => {
                            served.fetch_add(1, Ordering::Relaxed);
                            again.fetch_add(asked - 1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let failure =
                                format!("{transport:?} {to} from {begun:?} to {:?}: {error}", origin.elapsed());
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

    /// Waits until so many more were served.
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

    /// Ends it. Every connection must have been served; says how many there were.
    #[track_caller]
    pub(crate) fn finish(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let failures = self.failures.lock().unwrap();
        let served = self.served.load(Ordering::Relaxed);
        assert!(
            failures.is_empty(),
            "{} of {} failed:\n{}",
            failures.len(),
            served + failures.len(),
            failures.join("\n")
        );
        assert!(served > 0, "nobody connected");
        served
    }
}
