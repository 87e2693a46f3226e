//! The error type: which operation failed, on what, why, and what to do.

use std::fmt;

use ipvs_sys::Failure;
use netlink_batch::{Attribute, Errno, KernelError};

use crate::model::{DaemonState, Name, OutOfRange, RealServerKey, Scheduler, VirtualServerKey};

/// The object of the failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Subject {
    /// IPVS as a whole.
    Ipvs,
    /// One virtual server.
    VirtualServer(VirtualServerKey),
    /// One real server of a virtual server.
    RealServer(VirtualServerKey, RealServerKey),
    /// The synchronisation daemons.
    Daemons,
    /// The synchronisation daemon in one state, and its interface if known.
    Daemon(DaemonState, Option<Name>),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Ipvs => f.write_str("IPVS"),
            Subject::VirtualServer(key) => write!(f, "virtual server {key}"),
            Subject::RealServer(key, real) => write!(f, "real server {real} of virtual server {key}"),
            Subject::Daemons => f.write_str("synchronisation daemons"),
            Subject::Daemon(state, None) => write!(f, "synchronisation daemon {state}"),
            Subject::Daemon(state, Some(interface)) => write!(f, "synchronisation daemon {state} on {interface}"),
        }
    }
}

/// A missing kernel module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum MissingModule {
    /// `ip_vs` itself.
    Ipvs,
    /// The scheduler's module.
    Scheduler(Scheduler),
    /// The module of the scheduler or of the persistence engine; the kernel does not report which.
    SchedulerOrEngine(Scheduler, Name),
}

impl fmt::Display for MissingModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissingModule::Ipvs => f.write_str("this kernel has no IPVS now; load the module with `modprobe ip_vs`"),
            MissingModule::Scheduler(scheduler) => {
                write!(f, "this kernel has no scheduler \"{scheduler}\"; load it with `modprobe ip_vs_{scheduler}`")
            }
            MissingModule::SchedulerOrEngine(scheduler, engine) => write!(
                f,
                "this kernel has no scheduler \"{scheduler}\" or no persistence engine \"{engine}\"; load them with \
                 `modprobe -a ip_vs_{scheduler} ip_vs_pe_{engine}`"
            ),
        }
    }
}

/// Kind of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The virtual server does not exist.
    VirtualServerNotFound,
    /// The virtual server exists already.
    VirtualServerExists,
    /// The virtual server does not have this real server.
    RealServerNotFound,
    /// The virtual server already has this real server.
    RealServerExists,
    /// A module is not loaded, and the kernel could not load it.
    ModuleMissing(MissingModule),
    /// The caller lacks `CAP_NET_ADMIN` in the initial user namespace: root in a container is not enough.
    Permission,
    /// A value is out of range. Nothing was sent.
    OutOfRange(OutOfRange),
    /// A desired state contains the same virtual server, or the same real server of one, twice. Nothing was sent.
    Repeated,
    /// A desired state contains a virtual server that the caller does not own according to the policy. Nothing was
    /// sent.
    NotOwned,
    /// The kernel refused the values (`EINVAL`, `ERANGE`).
    Invalid,
    /// This kernel's IPVS does not support IPv6.
    FamilyUnsupported,
    /// A synchronisation daemon is already running in this state.
    DaemonRunning,
    /// No synchronisation daemon is running in this state.
    DaemonNotRunning,
    /// The network interface does not exist.
    InterfaceNotFound,
    /// The kernel is out of memory.
    OutOfMemory,
    /// No answer came before the deadline. The operation may or may not have been carried out.
    Timeout,
    /// Answers were lost. The operation may or may not have been carried out.
    StateUnknown,
    /// The table kept changing while it was read. Partial results are never returned.
    Interrupted,
    /// An answer could not be decoded.
    Malformed,
    /// A system call failed: opening, sending or receiving.
    Io,
    /// An error number without a specific meaning for this command; see [`Error::errno`].
    Other,
}

/// A failed operation.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    doing: &'static str,
    subject: Subject,
    kernel: Option<KernelError>,
    source: Option<netlink_batch::Error>,
}

/// Equal if the same request failed in the same way. The source of a failed system call is not compared.
impl PartialEq for Inner {
    fn eq(&self, other: &Self) -> bool {
        let below = |inner: &Self| inner.source.as_ref().map(|error| (error.kind().clone(), error.context()));
        (&self.kind, self.doing, self.subject, &self.kernel) == (&other.kind, other.doing, other.subject, &other.kernel)
            && below(self) == below(other)
    }
}

impl Eq for Inner {}

/// For reports: the kind, the subject, the kernel's error number and the message. It cannot be deserialised.
#[cfg(feature = "serde")]
impl serde::Serialize for Error {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut error = serializer.serialize_struct("Error", 4)?;
        error.serialize_field("kind", self.kind())?;
        error.serialize_field("subject", &self.subject())?;
        error.serialize_field("errno", &self.errno())?;
        error.serialize_field("message", &self.to_string())?;
        error.end()
    }
}

impl Error {
    /// Kind of the failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Subject of the failed operation.
    pub fn subject(&self) -> Subject {
        self.0.subject
    }

    /// The kernel's error number, if the kernel refused.
    pub fn errno(&self) -> Option<i32> {
        self.0.kernel.as_ref().map(|kernel| kernel.errno.0)
    }

    /// The path of the refused attribute in C names, if the kernel named one.
    pub fn attribute(&self) -> Option<String> {
        let kernel = self.0.kernel.as_ref().filter(|kernel| !kernel.attribute.is_empty())?;
        Some(ipvs_sys::CmdAttr::TABLE.path(&kernel.attribute))
    }

    /// Whether the object to read, change or delete does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::VirtualServerNotFound
                | ErrorKind::RealServerNotFound
                | ErrorKind::DaemonNotRunning
                | ErrorKind::InterfaceNotFound
        )
    }

    /// Whether the object to add already exists.
    pub fn is_already_exists(&self) -> bool {
        matches!(self.0.kind, ErrorKind::VirtualServerExists | ErrorKind::RealServerExists | ErrorKind::DaemonRunning)
    }

    /// Whether the caller lacks the permission.
    pub fn is_permission(&self) -> bool {
        self.0.kind == ErrorKind::Permission
    }

    /// The missing module, if that is the reason.
    pub fn module_missing(&self) -> Option<MissingModule> {
        match self.0.kind {
            ErrorKind::ModuleMissing(module) => Some(module),
            _ => None,
        }
    }

    pub(crate) fn new(kind: ErrorKind, doing: &'static str, subject: Subject) -> Self {
        Error(Box::new(Inner { kind, doing, subject, kernel: None, source: None }))
    }

    /// Builds the error for a refused command, with the meaning of its number.
    pub(crate) fn refused(
        kernel: KernelError,
        meaning: Option<Failure>,
        modules: MissingModule,
        doing: &'static str,
        subject: Subject,
    ) -> Self {
        let kind = match meaning {
            Some(Failure::VirtualServerMissing) => ErrorKind::VirtualServerNotFound,
            Some(Failure::VirtualServerExists) => ErrorKind::VirtualServerExists,
            Some(Failure::RealServerMissing) => ErrorKind::RealServerNotFound,
            Some(Failure::RealServerExists) => ErrorKind::RealServerExists,
            Some(Failure::ModuleMissing) => ErrorKind::ModuleMissing(modules),
            Some(Failure::Invalid | Failure::OutOfRange) => ErrorKind::Invalid,
            Some(Failure::FamilyUnsupported) => ErrorKind::FamilyUnsupported,
            Some(Failure::DaemonRunning) => ErrorKind::DaemonRunning,
            Some(Failure::DaemonNotRunning) => ErrorKind::DaemonNotRunning,
            Some(Failure::InterfaceMissing) => ErrorKind::InterfaceNotFound,
            Some(Failure::OutOfMemory) => ErrorKind::OutOfMemory,
            Some(Failure::Permission) => ErrorKind::Permission,
            _ => ErrorKind::Other,
        };
        Error(Box::new(Inner { kind, doing, subject, kernel: Some(kernel), source: None }))
    }

    /// Builds the error for any other failure of the layer below.
    pub(crate) fn below(source: netlink_batch::Error, doing: &'static str, subject: Subject) -> Self {
        use netlink_batch::ErrorKind as Below;
        let kind = match source.kind() {
            Below::FamilyMissing => ErrorKind::ModuleMissing(MissingModule::Ipvs),
            Below::Kernel(kernel) if kernel.errno == Errno::EPERM => ErrorKind::Permission,
            Below::Timeout => ErrorKind::Timeout,
            Below::StateUnknown => ErrorKind::StateUnknown,
            Below::Interrupted => ErrorKind::Interrupted,
            Below::Malformed(_) | Below::Unsendable(_) => ErrorKind::Malformed,
            Below::Io => ErrorKind::Io,
            _ => ErrorKind::Other,
        };
        let kernel = source.kernel().cloned();
        Error(Box::new(Inner { kind, doing, subject, kernel, source: Some(source) }))
    }
}

/// Reason and remedy, as in the message of an [`Error`].
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::VirtualServerNotFound => "there is no such virtual server",
            ErrorKind::VirtualServerExists => "it exists already",
            ErrorKind::RealServerNotFound => "the virtual server has no such real server",
            ErrorKind::RealServerExists => "the virtual server has it already",
            ErrorKind::ModuleMissing(module) => return module.fmt(f),
            ErrorKind::Permission => {
                "not permitted; it takes CAP_NET_ADMIN in the initial user namespace (run as root, not in a user \
                 namespace)"
            }
            ErrorKind::OutOfRange(range) => return range.fmt(f),
            ErrorKind::Repeated => "it is wanted twice",
            ErrorKind::NotOwned => "it is wanted, but the policy says that it is someone else's",
            ErrorKind::Invalid => "the kernel refuses the values",
            ErrorKind::FamilyUnsupported => "this kernel's IPVS lacks the address family (CONFIG_IP_VS_IPV6)",
            ErrorKind::DaemonRunning => "one runs in this state already; stop that one first",
            ErrorKind::DaemonNotRunning => "none runs in this state",
            ErrorKind::InterfaceNotFound => "there is no such network interface",
            ErrorKind::OutOfMemory => "the kernel has no memory for it",
            ErrorKind::Timeout => "no answer within the deadline; read the state again before repeating",
            ErrorKind::StateUnknown => "answers were lost; read the state again before repeating",
            ErrorKind::Interrupted => "the table kept changing while it was read; try again when it is quieter",
            ErrorKind::Malformed => "unreadable or unwritable message",
            ErrorKind::Io => "talking to the kernel failed",
            ErrorKind::Other => "the kernel refuses",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, doing, subject, kernel, .. } = &*self.0;
        write!(f, "{doing} {subject}: ")?;
        match (kind, subject) {
            (ErrorKind::Invalid, Subject::RealServer(..)) => f.write_str(
                "the kernel refuses the values; a real server's address must be unicast and routable in this network \
                 namespace (is `lo` up?), GUE needs a port, and another address family needs a tunnel",
            )?,
            (ErrorKind::Invalid, Subject::Daemon(..)) => f.write_str(
                "the kernel refuses the values; the group must be a multicast address, and no virtual server may have a real \
                 server of another address family",
            )?,
            (ErrorKind::InterfaceNotFound, Subject::Daemon(_, Some(interface))) => {
                write!(f, "there is no network interface {interface} in this network namespace")?;
            }
            (kind, _) => kind.fmt(f)?,
        }
        if let Some(kernel) = kernel {
            write!(f, " [{:?}", kernel.errno)?;
            if let Some(text) = &kernel.text {
                write!(f, ": {text}")?;
            }
            if let Some(attribute) = self.attribute() {
                write!(f, " at {attribute}")?;
            }
            f.write_str("]")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message contains a refusal in full. Only other kinds gain from the source's message.
        if self.0.kernel.is_some() {
            return None;
        }
        self.0.source.as_ref().map(|error| -> &(dyn std::error::Error + 'static) { error })
    }
}

netlink_batch::debug_is_message!(Error);
