//! Reads and writes the settings of IPVS: `/proc/sys/net/ipv4/vs`.
//!
//! [`Knob`] has every setting of Linux 5.10 to 7.2 with its type, range, default and first kernel version.
//!
//! # Example
//!
//! ```no_run
//! use ipvs::sysctl::{Knob, Sysctl, Value};
//!
//! let sysctl = Sysctl::new();
//! sysctl.write(Knob::Conntrack, &Value::ON)?;
//! match sysctl.write(Knob::EstNice, &Value::Integer(10)) {
//!     Err(error) if error.is_absent() => println!("{error}"), // … it exists since Linux 6.2
//!     other => other?,
//! }
//! for (knob, value) in sysctl.read_all()? {
//!     println!("{knob} = {value}");
//! }
//! # Ok::<(), ipvs::sysctl::Error>(())
//! ```
//!
//! Writes take effect at once. The previous value is not saved.
//!
//! # Which network namespace
//!
//! Calls use the settings of the calling thread's namespace at that time, because `/proc/sys/net` differs by thread,
//! whatever path is used. To use another namespace, let a thread enter it with `setns` (needs `CAP_SYS_ADMIN`) from a
//! crate such as nix:
//!
//! ```no_run
//! use ipvs::sysctl::Sysctl;
//!
//! let namespace = std::fs::File::open("/run/netns/pod-1")?;
//! let entered = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)?;
//!     Ok(Sysctl::new().drain_persistent_clients()?)
//! });
//! entered.join().expect("the thread does not panic")?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Use a separate thread, since returning from another namespace can fail. A [`Client`](crate::Client) does not need
//! this: [`Client::open_in`](crate::Client::open_in) does it.
//!
//! Kernel: `vs_vars` in net/netfilter/ipvs/ip_vs_ctl.c, Documentation/networking/ipvs-sysctl.rst.

mod error;
mod knob;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

pub use error::{Error, ErrorKind};
pub use knob::{Description, Knob, Requirement, ValueType};

/// Value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Value {
    /// Most settings. A switch is on unless it is 0.
    Integer(i64),
    /// [`Knob::SyncQlenMax`].
    Count(u64),
    /// [`Knob::SyncThreshold`]: threshold and period.
    Pair(i32, i32),
    /// [`Knob::EstCpulist`].
    CpuList(String),
}

impl Value {
    /// A switch that is on.
    pub const ON: Value = Value::Integer(1);
    /// A switch that is off.
    pub const OFF: Value = Value::Integer(0);

    /// The number, if it is a [`Value::Integer`].
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }
}

/// The text to write to the kernel.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(number) => number.fmt(f),
            Value::Count(number) => number.fmt(f),
            Value::Pair(first, second) => write!(f, "{first}\t{second}"),
            Value::CpuList(list) => f.write_str(list),
        }
    }
}

/// The settings in one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    root: PathBuf,
}

impl Sysctl {
    /// Settings of the calling thread's network namespace at the time of each call.
    pub fn new() -> Self {
        Self::at("/proc/sys/net/ipv4/vs")
    }

    /// Settings in another directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Sysctl { root: root.into() }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads a setting.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if this kernel does not have it; [`ErrorKind::NotLoaded`] if it has none.
    pub fn read(&self, knob: Knob) -> Result<Value, Error> {
        let path = self.root.join(knob.name());
        match fs::read_to_string(&path) {
            Ok(text) => {
                knob.parse(&text).ok_or_else(|| Error::new(ErrorKind::Malformed(text), false, Some(knob), path))
            }
            Err(error) => Err(self.failed(error, false, knob, path)),
        }
    }

    /// Reads all settings of this kernel.
    ///
    /// # Errors
    /// [`ErrorKind::NotLoaded`] if the kernel has none; otherwise the first read error.
    pub fn read_all(&self) -> Result<BTreeMap<Knob, Value>, Error> {
        let mut values = BTreeMap::new();
        for knob in Knob::ALL {
            match self.read(*knob) {
                Ok(value) => {
                    values.insert(*knob, value);
                }
                Err(error) if *error.kind() == ErrorKind::Absent => {}
                Err(error) => return Err(error),
            }
        }
        Ok(values)
    }

    /// Names of this kernel's settings that this crate does not know, sorted.
    ///
    /// # Errors
    /// [`ErrorKind::NotLoaded`] if the kernel has none.
    pub fn unknown(&self) -> Result<Vec<String>, Error> {
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotLoaded,
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::Io,
            };
            Error::new(kind, false, None, self.root.clone()).with_source(error)
        };
        let mut names = Vec::new();
        for file in fs::read_dir(&self.root).map_err(failed)? {
            let name = file.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if !Knob::ALL.iter().any(|knob| knob.name() == name) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Writes a setting. Writing the current value changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] before anything is written; [`ErrorKind::Absent`] if this kernel does not have it;
    /// [`ErrorKind::ReadOnly`] and [`ErrorKind::Permission`]; [`ErrorKind::Refused`] if the kernel is stricter than
    /// this crate, for example about CPUs that do not exist.
    pub fn write(&self, knob: Knob, value: &Value) -> Result<(), Error> {
        let path = self.root.join(knob.name());
        if let Err(range) = knob.check(value) {
            return Err(Error::new(ErrorKind::OutOfRange(range), true, Some(knob), path));
        }
        let line = format!("{value}\n");
        // A single write, since the kernel parses each write separately. Never creates a file.
        let written =
            fs::OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|error| self.failed(error, true, knob, path))
    }

    /// Lets real servers of weight 0 ([`Weight::DRAIN`](crate::Weight::DRAIN)) drain even if their virtual server is
    /// persistent. Turns on [`Knob::ExpireQuiescentTemplate`]; without it the kernel keeps sending remembered clients
    /// to them.
    ///
    /// The setting applies to every virtual server of the network namespace and outlives this program. A health check
    /// that sets weight 0 then also ends the affinity of its clients.
    ///
    /// Like every call here, it acts in the network namespace of the calling thread, not in that of a client from
    /// [`Client::open_in`](crate::Client::open_in). The [module](self) shows how to reach that one.
    ///
    /// # Errors
    /// As [`Sysctl::write`].
    #[doc(alias = "expire_quiescent_template")]
    pub fn drain_persistent_clients(&self) -> Result<(), Error> {
        self.write(Knob::ExpireQuiescentTemplate, &Value::ON)
    }

    fn failed(&self, error: io::Error, writing: bool, knob: Knob, path: PathBuf) -> Error {
        let kind = match error.kind() {
            io::ErrorKind::NotFound if self.root.is_dir() => ErrorKind::Absent,
            io::ErrorKind::NotFound => ErrorKind::NotLoaded,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            io::ErrorKind::PermissionDenied if writing && is_read_only(&path) => ErrorKind::ReadOnly,
            io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            io::ErrorKind::InvalidInput if writing => ErrorKind::Refused,
            _ => ErrorKind::Io,
        };
        Error::new(kind, writing, Some(knob), path).with_source(error)
    }
}

impl Default for Sysctl {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether the setting's mode allows no user to write it; even root obeys it.
fn is_read_only(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().readonly())
}
