//! IPVS in `/proc/net`: connections, and counters of the whole network namespace.
//!
//! Netlink has no command for these. Virtual and real servers are better read with a [`Client`](crate::Client).
//!
//! # Example
//!
//! ```no_run
//! use ipvs::proc::Proc;
//!
//! for connection in Proc::new().connections()? {
//!     let connection = connection?;
//!     println!("{} → {} {}", connection.client, connection.real_server, connection.state);
//! }
//! # Ok::<(), ipvs::proc::Error>(())
//! ```
//!
//! # Which network namespace
//!
//! [`Proc::new`] reads below `/proc/thread-self/net`, the namespace of the calling thread; `/proc/net` is that of the
//! process's first thread, which is another one when a thread has changed its own. Another namespace is read by a process in it, without
//! entering it: `Proc::at("/proc/<pid>/net")`. Where there is none, a thread of this process enters it, and the rest of the process reads
//! `/proc/<that thread>/net`, or the thread itself [`Proc::new`], as [for settings](crate::sysctl#which-network-namespace).
//!
//! # Large tables
//!
//! [`Connections`] holds one line at a time. The kernel walks its table while it is read: a connection that comes, goes or
//! moves meanwhile may be missing or appear twice. Reading 100,000 lines holds no lock for longer than a page of text.

mod connection;
mod error;
mod lines;
mod stats;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

pub use connection::{Connection, Connections, Origin, PersistenceData, State, Target};
pub use error::{Error, ErrorKind};
use lines::Lines;
pub use stats::{CpuCounters, PerCpuStats};

use crate::model::{Info, Stats};

/// Size of the buffer for a file: the kernel hands out a page at a time or more.
const BUFFER: usize = 32 * 1024;

/// The files of IPVS below `/proc/net`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proc {
    root: PathBuf,
}

impl Proc {
    /// Files of the calling thread's network namespace, at the time of each call.
    pub fn new() -> Self {
        Self::at("/proc/thread-self/net")
    }

    /// Files below another folder, such as `/proc/<pid>/net`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Proc { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn open(&self, name: &str) -> Result<(BufReader<File>, PathBuf), Error> {
        let path = self.root.join(name);
        match File::open(&path) {
            Ok(file) => Ok((BufReader::with_capacity(BUFFER, file), path)),
            Err(error) => Err(Error::io(&path, 0, error)),
        }
    }

    fn lines(&self, name: &str) -> Result<Lines<BufReader<File>>, Error> {
        let (reader, path) = self.open(name)?;
        Ok(Lines::new(reader, path))
    }

    /// All connections with their persistence data (`ip_vs_conn`).
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] without IPVS in the kernel; each line may be an error, see [`Connections`].
    pub fn connections(&self) -> Result<Connections<BufReader<File>>, Error> {
        let (reader, path) = self.open("ip_vs_conn")?;
        Ok(Connections::new(reader, path))
    }

    /// All connections, not just synchronised ones, with their origin (`ip_vs_conn_sync`).
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] without IPVS in the kernel; each line may be an error, see [`Connections`].
    pub fn synced_connections(&self) -> Result<Connections<BufReader<File>>, Error> {
        let (reader, path) = self.open("ip_vs_conn_sync")?;
        Ok(Connections::new(reader, path))
    }

    /// Counters and rates of all virtual servers together, also of deleted ones (`ip_vs_stats`).
    ///
    /// The kernel adds them up every two seconds, unless `net.ipv4.vs.run_estimation` is off.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] without IPVS in the kernel.
    pub fn stats(&self) -> Result<Stats, Error> {
        stats::stats(&mut self.lines("ip_vs_stats")?)
    }

    /// The same for each CPU (`ip_vs_stats_percpu`); the CPUs' own counters are those of this moment.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] without IPVS in the kernel.
    pub fn stats_per_cpu(&self) -> Result<PerCpuStats, Error> {
        stats::per_cpu(&mut self.lines("ip_vs_stats_percpu")?)
    }

    /// Version and size of the connection table, from the first line of `ip_vs`; unlike
    /// [`Client::info`](crate::Client::info) it takes no privilege.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] without IPVS in the kernel.
    pub fn info(&self) -> Result<Info, Error> {
        stats::info(&mut self.lines("ip_vs")?)
    }
}

impl Default for Proc {
    fn default() -> Self {
        Self::new()
    }
}
