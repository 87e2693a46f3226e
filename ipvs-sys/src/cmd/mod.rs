//! Each command: its number, attributes, answer, and the meaning of each error number.

mod table;

use netlink_batch::{Attribute, Encoder, Errno, WireError};

pub use self::table::*;

/// Command number of the kernel's answer to [`GetInfo`] (`IPVS_CMD_SET_INFO`). It is not a request.
pub const SET_INFO: u8 = 14;

/// Why the kernel refused a command. Both the command and the error number decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// No virtual server has this key.
    VirtualServerMissing,
    /// A virtual server with this key exists already.
    VirtualServerExists,
    /// The virtual server has no real server with this address and port.
    RealServerMissing,
    /// The virtual server already has a real server with this address and port.
    RealServerExists,
    /// The scheduler's or the persistence engine's module is not loaded, and the kernel could not load it.
    ModuleMissing,
    /// An attribute is missing or invalid.
    Invalid,
    /// A weight or threshold is out of range.
    OutOfRange,
    /// The address family is not IPv4 or IPv6, or this kernel's IPVS is built without IPv6.
    FamilyUnsupported,
    /// The synchronisation daemon is running already.
    DaemonRunning,
    /// The synchronisation daemon is not running.
    DaemonNotRunning,
    /// The network interface does not exist.
    InterfaceMissing,
    /// The kernel is out of memory.
    OutOfMemory,
    /// The caller lacks `CAP_NET_ADMIN` in the initial user namespace (`GENL_ADMIN_PERM`).
    Permission,
}

/// Attributes inside a nest: a slice of them, or a type that writes itself.
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

/// A request that can be sent over a [`Genl`](netlink_batch::Genl).
///
/// This sends a command and explains a refusal:
///
/// ```
/// use ipvs_sys::{Command, DelService, Failure, SvcAttr, uapi};
/// use netlink_batch::{Error, Genl};
///
/// fn run<C: Command>(ipvs: &mut Genl, command: &C) -> Result<Option<Failure>, Error> {
///     let Err(error) = ipvs.request(C::NUMBER, |out| command.encode(out)) else { return Ok(None) };
///     match error.kernel().and_then(|refusal| C::classify(refusal.errno)) {
///         Some(failure) => Ok(Some(failure)),
///         None => Err(error),
///     }
/// }
///
/// # use netlink_batch::testing::{Reply, Simulated};
/// # use netlink_batch::{ControllerAttr, Encoder, Errno, Message, header::GenlHeader};
/// # let kernel = Simulated::new(|message: &Message<'_>| {
/// #     let mut out = Encoder::new();
/// #     out.bytes(&GenlHeader { command: 1, version: 2 }.to_bytes());
/// #     out.attr(ControllerAttr::FAMILY_ID, &33_u16);
/// #     if message.header.kind == 16 { Reply::Data(vec![(16, out.as_slice().to_vec())]) } else { Reply::Error(Errno::ESRCH) }
/// # });
/// // `Genl::open` in a program; here, a simulated kernel without virtual servers.
/// let mut ipvs = Genl::with_transport(uapi::GENL_NAME, kernel)?;
/// let key = [SvcAttr::Af(2), SvcAttr::Fwmark(1)];
/// assert_eq!(run(&mut ipvs, &DelService { service: &key[..] })?, Some(Failure::VirtualServerMissing));
/// # Ok::<(), Error>(())
/// ```
///
/// The same error number has different meanings: `ENOENT` is a missing scheduler for [`NewService`], but a missing real
/// server for [`SetDest`].
pub trait Command {
    /// Command number in the generic-netlink header.
    const NUMBER: u8;
    /// Name in C.
    const NAME: &'static str;
    /// Meanings of the error numbers of this command. A number that is not listed has no specific meaning.
    const ERRORS: &'static [(Errno, Failure)] = &[];

    /// Appends the attributes.
    fn encode(&self, out: &mut Encoder);

    /// The meaning of this error number; `None` if it has no specific one.
    fn classify(errno: Errno) -> Option<Failure> {
        if errno == Errno::EPERM {
            return Some(Failure::Permission);
        }
        Self::ERRORS.iter().find(|(number, _)| *number == errno).map(|(_, failure)| *failure)
    }
}

/// A request with an answer. Use [`Genl::dump`](netlink_batch::Genl::dump) for lists and
/// [`Genl::query`](netlink_batch::Genl::query) for single objects.
pub trait Query: Command {
    /// Content of one data message of the answer.
    type Reply<'a>;

    /// Reads the attributes of one data message.
    ///
    /// # Errors
    /// [`WireError`] if a required attribute is missing or cannot be decoded.
    fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError>;
}
