//! An agent on tokio: a kernel client as an actor, and the kernel's events as streams.
//!
//! `cargo run -p examples --example tokio_agent`
//!
//! Maintains an nf_tables table and prints added and removed addresses, until Ctrl-C. The libraries need no runtime:
//! * Requests block for microseconds, but another program may hold the kernel's locks, and a long listing takes time.
//!   So the client runs on its own thread, [`Actor`], and tasks send it closures.
//! * Events arrive on a descriptor ([`AsFd`](std::os::fd::AsFd)). These work with tokio's `AsyncFd`, [`Stream`]:
//!   `Events` of `nftables`, `Monitor` of `proxier-core` (addresses, devices), and `Listener` of `netlink-batch` for
//!   all other families (`follow_connections.rs` reads connections). ipset has no events in the kernel.
//!
//! Needs nf_tables and `CAP_NET_ADMIN`.

use std::io;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use examples::Failure;
use netlink_batch::{Listener, WireError};
use nftables::{Change, Client, ErrorKind, Event, Events, Family, Table, TableKey, Transaction};
use proxier_core::kernel::Monitor;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

type Job<C> = Box<dyn FnOnce(&mut C) + Send>;

/// A client on its own thread. The thread ends when the actor is dropped and its jobs are done.
pub(crate) struct Actor<C> {
    jobs: mpsc::Sender<Job<C>>,
}

impl<C: Send + 'static> Actor<C> {
    /// Jobs in the queue; further jobs wait in their tasks.
    const QUEUE: usize = 64;

    /// Takes the client over.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(mut client: C) -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job<C>>(Self::QUEUE);
        thread::Builder::new().name("kernel".to_owned()).spawn(move || {
            while let Some(job) = queue.blocking_recv() {
                job(&mut client);
            }
        })?;
        Ok(Actor { jobs })
    }

    /// Runs a job with the client. A job that was sent is carried out even if nothing waits for its result any more.
    ///
    /// # Errors
    /// The thread has ended, because a job panicked.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut C) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (answer, result) = oneshot::channel();
        let job: Job<C> = Box::new(move |client| drop(answer.send(work(client))));
        self.jobs.send(job).await.map_err(|_ended| "the kernel's thread has ended")?;
        Ok(result.await.map_err(|_ended| "the kernel's thread has ended")?)
    }
}

/// Registers a descriptor for reading with the runtime.
#[allow(
    deprecated,
    reason = "its successor of tokio 1.54 is unsafe; what that asks for holds here: the descriptor stays open and the same"
)]
fn readable<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(source, Interest::READABLE)
}

/// Messages of a socket, as a stream.
pub(crate) struct Stream<S: AsRawFd>(AsyncFd<S>);

impl<S: AsRawFd> Stream<S> {
    /// Registers a socket with the runtime.
    ///
    /// # Errors
    /// If the runtime refuses the socket.
    pub(crate) fn new(source: S) -> io::Result<Self> {
        readable(source).map(Stream)
    }

    /// The next messages, read by `take`, which must not wait and returns `Ok(None)` if there are none yet. Nothing is
    /// lost if the future is dropped.
    ///
    /// # Errors
    /// Outer: the runtime ends. Inner: those of `take`.
    pub(crate) async fn next_by<T, E>(
        &mut self,
        mut take: impl FnMut(&mut S) -> Result<Option<T>, E>,
    ) -> io::Result<Result<T, E>> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            match take(ready.get_inner_mut()) {
                Ok(None) => ready.clear_ready(),
                Ok(Some(found)) => return Ok(Ok(found)),
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}

/// Changes of nf_tables.
pub(crate) type Changes = Stream<Events>;

impl Changes {
    /// The next changes.
    ///
    /// # Errors
    /// Outer: the runtime ends. Inner: `StateUnknown` if events were lost; read the state again and continue.
    pub(crate) async fn next(&mut self) -> io::Result<Result<Vec<Event>, nftables::Error>> {
        self.next_by(|events| events.wait(Duration::ZERO)).await
    }
}

/// Events of another netlink family, read from their number and bytes: `follow_connections.rs` reads those of
/// connections.
impl Stream<Listener> {
    /// The next events.
    ///
    /// # Errors
    /// Fails as [`Changes::next`] does.
    #[allow(dead_code, reason = "for agents that follow connections; a test does")]
    pub(crate) async fn next<T>(
        &mut self,
        mut read: impl FnMut(u16, &[u8]) -> Result<T, WireError>,
    ) -> io::Result<Result<Vec<T>, netlink_batch::Error>> {
        self.next_by(|listener| listener.wait(Duration::ZERO, &mut read)).await
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Failure> {
    // Listening begins before reading, so that no change is missed in between.
    let mut changes = Changes::new(Events::open()?)?;
    let mut addresses = readable(Monitor::open()?)?;
    let kernel = Actor::start(Client::open()?)?;
    let table = TableKey::new(Family::Inet, "cookbook-tokio")?;
    let mut wanted = Transaction::new();
    wanted.add_table(Table::new(table.clone()));
    wanted.add_chain(nftables::Chain::regular(table.chain("kept")?));
    let put = |wanted: Transaction| kernel.call(move |client: &mut Client| client.commit(&wanted));
    put(wanted.clone()).await??;
    println!("{table} is there");
    loop {
        tokio::select! {
            found = changes.next() => {
                let deleted = |event: &Event| match event {
                    Event::Table(Change::Deleted, found) => found.table.key == table,
                    Event::Chain(Change::Deleted, found) => found.chain.key.table == table,
                    _ => false,
                };
                match found? {
                    Ok(events) if !events.iter().any(deleted) => continue,
                    Ok(_) => println!("somebody deleted a part of {table}"),
                    Err(error) if error.kind() == ErrorKind::StateUnknown => println!("missed something: {error}"),
                    Err(error) => return Err(error.into()),
                }
                // Adding an object that exists does no harm.
                put(wanted.clone()).await??;
                println!("{table} is there again");
            }
            ready = addresses.readable_mut() => {
                let mut ready = ready?;
                // Takes everything, so that the descriptor stops being readable.
                let found = ready.get_inner_mut().drain()?;
                ready.clear_ready();
                for (device, addresses) in found.addresses {
                    for (address, change) in addresses {
                        println!("{address} on {device}: {change:?}");
                    }
                }
            }
            stop = tokio::signal::ctrl_c() => {
                stop?;
                let mut removal = Transaction::new();
                removal.remove_table(&table);
                put(removal).await??;
                return Ok(());
            }
        }
    }
}
