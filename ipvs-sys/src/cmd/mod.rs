//! One file per command: number, attributes, answer, and what each error number means there.

use netlink_batch::{Attribute, Encoder, Errno, WireError};

mod del_daemon;
mod del_dest;
mod del_service;
mod flush;
mod get_config;
mod get_daemon;
mod get_dest;
mod get_info;
mod get_service;
mod new_daemon;
mod new_dest;
mod new_service;
mod set_config;
mod set_dest;
mod set_service;
mod zero;

pub use del_daemon::DelDaemon;
pub use del_dest::DelDest;
pub use del_service::DelService;
pub use flush::Flush;
pub use get_config::GetConfig;
pub use get_daemon::GetDaemon;
pub use get_dest::GetDest;
pub use get_info::GetInfo;
pub use get_service::GetService;
pub use new_daemon::NewDaemon;
pub use new_dest::NewDest;
pub use new_service::NewService;
pub use set_config::SetConfig;
pub use set_dest::SetDest;
pub use set_service::SetService;
pub use zero::Zero;

/// Number of the kernel's answer to [`GetInfo`]; not a request (`IPVS_CMD_SET_INFO`).
pub const SET_INFO: u8 = 14;

/// What a refusal means, where the command and the error number together say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// There is no virtual server with this key.
    VirtualServerMissing,
    /// There is one with this key already.
    VirtualServerExists,
    /// The virtual server has no real server with this address and port.
    RealServerMissing,
    /// It has one with this address and port already.
    RealServerExists,
    /// The scheduler's or the persistence engine's module is not loaded, and the kernel could not load it.
    ModuleMissing,
    /// An attribute is missing or impossible.
    Invalid,
    /// A weight or threshold is out of range.
    OutOfRange,
    /// The address family is not IPv4 or IPv6, or this kernel's IPVS is built without IPv6.
    FamilyUnsupported,
    /// The synchronisation daemon runs already.
    DaemonRunning,
    /// The synchronisation daemon does not run.
    DaemonNotRunning,
    /// There is no such network interface.
    InterfaceMissing,
    /// The kernel has no memory for it.
    OutOfMemory,
    /// The caller lacks `CAP_NET_ADMIN` in the initial user namespace (`GENL_ADMIN_PERM`).
    Permission,
}

/// Attributes that belong inside a nest: a slice of them, or a type that knows how to write itself.
pub trait Fields {
    /// Appends the attributes.
    fn put(&self, out: &mut Encoder);
}

impl<T: Fields + ?Sized> Fields for &T {
    fn put(&self, out: &mut Encoder) {
        (**self).put(out);
    }
}

impl<'a, A: Attribute<'a>> Fields for [A] {
    fn put(&self, out: &mut Encoder) {
        for attribute in self {
            attribute.encode(out);
        }
    }
}

/// A request.
pub trait Command {
    /// Its number in the generic-netlink header.
    const NUMBER: u8;
    /// Its name in C.
    const NAME: &'static str;
    /// What the kernel's error numbers mean for this command; a number that is not here has no agreed meaning.
    const ERRORS: &'static [(Errno, Failure)] = &[];

    /// Appends the attributes.
    fn encode(&self, out: &mut Encoder);

    /// What this error number means.
    fn classify(errno: Errno) -> Option<Failure> {
        if errno == Errno::EPERM {
            return Some(Failure::Permission);
        }
        Self::ERRORS.iter().find(|(number, _)| *number == errno).map(|(_, failure)| *failure)
    }
}

/// A request with an answer.
pub trait Query: Command {
    /// What one data message of the answer holds.
    type Reply<'a>;

    /// Reads the attributes of one data message.
    ///
    /// # Errors
    /// [`WireError`] when what must be there is missing or unreadable.
    fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError>;
}
