//! Reads IPVS in `/proc/net`: connections, and counters of the whole network namespace.
//!
//! Netlink has no command for these. For virtual and real servers use a [`Client`](crate::Client).
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
//! [`Proc::new`] reads below `/proc/thread-self/net`, the namespace of the calling thread. `/proc/net` would be that of
//! the process's first thread. To read another namespace without entering it, name a process inside:
//! `Proc::at("/proc/<pid>/net")`. If there is none, let one of your threads enter the namespace. Other threads can then
//! read `/proc/<that thread>/net`, and the thread itself uses [`Proc::new`]; see
//! [settings](crate::sysctl#which-network-namespace).
//!
//! # Large tables
//!
//! [`Connections`] holds one line at a time. The kernel walks its table during the read, so a connection that is added,
//! removed or moved meanwhile may be missing or appear twice. No lock is held for longer than one page of text, however
//! long the file is.

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

/// Buffer size for a file. The kernel returns at least a page per read.
const BUFFER: usize = 32 * 1024;

/// The IPVS files below `/proc/net`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proc {
    root: PathBuf,
}

impl Proc {
    /// Files of the calling thread's network namespace at the time of each call.
    pub fn new() -> Self {
        Self::at("/proc/thread-self/net")
    }

    /// Files below another directory, such as `/proc/<pid>/net`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Proc { root: root.into() }
    }

    /// The directory.
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

    /// Reads all connections with their persistence data (`ip_vs_conn`).
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if the kernel has no IPVS. Each line may also be an error, see [`Connections`].
    pub fn connections(&self) -> Result<Connections<BufReader<File>>, Error> {
        let (reader, path) = self.open("ip_vs_conn")?;
        Ok(Connections::new(reader, path))
    }

    /// Reads all connections with their origin (`ip_vs_conn_sync`), not only synchronised ones.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if the kernel has no IPVS. Each line may also be an error, see [`Connections`].
    pub fn synced_connections(&self) -> Result<Connections<BufReader<File>>, Error> {
        let (reader, path) = self.open("ip_vs_conn_sync")?;
        Ok(Connections::new(reader, path))
    }

    /// Reads counters and rates of all virtual servers together, including deleted ones (`ip_vs_stats`).
    ///
    /// The kernel updates the sums every two seconds, unless `net.ipv4.vs.run_estimation` is off.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if the kernel has no IPVS.
    pub fn stats(&self) -> Result<Stats, Error> {
        stats::stats(&mut self.lines("ip_vs_stats")?)
    }

    /// Reads the counters of each CPU (`ip_vs_stats_percpu`). Unlike the total, they are current.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if the kernel has no IPVS.
    pub fn stats_per_cpu(&self) -> Result<PerCpuStats, Error> {
        stats::per_cpu(&mut self.lines("ip_vs_stats_percpu")?)
    }

    /// Reads version and size of the connection table from the first line of `ip_vs`. Unlike
    /// [`Client::info`](crate::Client::info) this needs no privilege.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if the kernel has no IPVS.
    pub fn info(&self) -> Result<Info, Error> {
        stats::info(&mut self.lines("ip_vs")?)
    }
}

impl Default for Proc {
    fn default() -> Self {
        Self::new()
    }
}
