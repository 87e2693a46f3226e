//! Errors, grouped by what the caller can do about them.

use std::fmt;
use std::sync::Arc;

use netlink_batch::{Errno, KernelError};

use crate::model::InvalidValue;
use crate::uapi;

/// Kind of a failure, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The table, chain, rule, set, element or object, or one that it refers to, does not exist. Or the kernel lacks
    /// the module of a chain type or expression.
    NotFound,
    /// The object exists already, or differs from the existing one: an element with other data, a chain at another
    /// hook ([`Unsupported`](ErrorKind::Unsupported) on newer kernels).
    AlreadyExists,
    /// Something refers to it, or it cannot be changed while it is in use.
    InUse,
    /// The set has reached its size.
    SetFull,
    /// A range overlaps another one, from [`Transaction::add_elements`](crate::Transaction::add_elements) to a set. For
    /// maps and `create_elements` the kernel reports that the element exists.
    Overlap,
    /// Jumps form a loop, or are nested too deeply.
    Loop,
    /// The kernel does not support it: an option is newer than the kernel, or not allowed here.
    Unsupported,
    /// The kernel refused a value or an attribute.
    Rejected,
    /// The rule set has changed since the generation for which the transaction was made. Read it again.
    GenerationChanged,
    /// The transaction does not fit into the largest datagram that this process can send. Nothing was sent. Split it,
    /// or get `CAP_NET_ADMIN` in the initial user namespace.
    TooLarge,
    /// The caller lacks `CAP_NET_ADMIN` in the namespace, or another program owns the table.
    Permission,
    /// The kernel is out of memory.
    NoMemory,
    /// A value cannot be part of a request. Nothing was sent.
    Invalid,
    /// No answer came before the deadline. The kernel may or may not have carried out the transaction.
    Timeout,
    /// Answers were lost. The kernel may or may not have carried out the transaction: read the state again.
    StateUnknown,
    /// The rule set kept changing while it was read. Partial results are never returned.
    Interrupted,
    /// An answer could not be decoded.
    Malformed,
    /// An operating-system call failed.
    Io,
    /// The kernel refused for another reason.
    Other(Errno),
}

/// The part of an operation that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Part {
    /// The whole operation, or the kernel did not report a part.
    Whole,
    /// An expression of a rule.
    Expression {
        /// Its index in the rule, from 0.
        index: usize,
        /// Its kind: `"lookup"`.
        name: String,
    },
    /// An element.
    Element {
        /// Its index among the operation's elements, from 0.
        index: usize,
    },
    /// One of these elements: older kernels (5.10) are not more precise.
    AmongElements {
        /// The first of them, from 0.
        first: usize,
        /// The last of them.
        last: usize,
    },
    /// An attribute, by its name in the kernel: `"NFTA_CHAIN_HOOK"`.
    Attribute(String),
}

/// One refusal in a transaction. If one operation is refused, the transaction changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Refusal {
    /// Index of the operation in the transaction, from 0; `None` if the whole transaction was refused.
    pub operation: Option<usize>,
    /// The operation: `"adding rule to chain inet t c"`.
    pub action: String,
    /// The part that the kernel reported.
    pub part: Part,
    /// Kind of the failure.
    pub kind: ErrorKind,
    /// The kernel's answer.
    pub kernel: KernelError,
}

/// Cause of an error.
#[derive(Clone)]
enum Source {
    Refused(Arc<[Refusal]>),
    Invalid(InvalidValue),
    Netlink(Arc<netlink_batch::Error>),
}

/// A failed operation: what failed, on what, why, and what to do.
///
/// ```
/// # use nftables::fake::FakeNftables;
/// use nftables::{Chain, Client, ErrorKind, Family, Operand, Part, Table, TableKey, Transaction, rule};
///
/// let table = TableKey::new(Family::Inet, "filter")?;
/// let mut transaction = Transaction::new();
/// transaction.add_table(Table::new(table.clone()));
/// transaction.add_chain(Chain::regular(table.chain("web")?));
/// let lookup = rule(Family::Inet).counter().in_set(&[Operand::DPORT], &table.set("ports")?).accept();
/// transaction.add_rule(&table.chain("web")?, lookup.build()?);
/// # let mut client = Client::with_transport(FakeNftables::new().transport());
/// let error = client.commit(&transaction).unwrap_err();
///
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.action(), "adding a rule to chain inet filter web");
/// assert!(error.to_string().starts_with("adding a rule to chain inet filter web (operation 3, expression 3 (lookup)): "));
/// let refusal = &error.refusals()[0];
/// assert_eq!(refusal.operation, Some(2));
/// assert_eq!(refusal.part, Part::Expression { index: 2, name: "lookup".to_owned() });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    action: Box<str>,
    source: Option<Source>,
}

impl Error {
    /// Kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The failed operation: `"adding chain inet t c"`.
    pub fn action(&self) -> &str {
        &self.action
    }

    /// Whether something does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }

    /// Whether something exists already.
    pub fn is_already_exists(&self) -> bool {
        self.kind == ErrorKind::AlreadyExists
    }

    /// Whether a capability is missing.
    pub fn is_permission(&self) -> bool {
        self.kind == ErrorKind::Permission
    }

    /// The refused operations of a transaction, in the order of the kernel's answers. Empty for other failures.
    pub fn refusals(&self) -> &[Refusal] {
        match &self.source {
            Some(Source::Refused(refusals)) => refusals,
            _ => &[],
        }
    }

    /// The kernel's refusal, if there is one; the first one of a transaction.
    pub fn kernel(&self) -> Option<&KernelError> {
        match self.source.as_ref()? {
            Source::Refused(refusals) => refusals.first().map(|refusal| &refusal.kernel),
            Source::Netlink(error) => error.kernel(),
            Source::Invalid(_) => None,
        }
    }

    pub(crate) fn new(kind: ErrorKind, action: impl Into<Box<str>>) -> Self {
        Error { kind, action: action.into(), source: None }
    }

    pub(crate) fn invalid(error: InvalidValue, action: impl Into<Box<str>>) -> Self {
        Error { kind: ErrorKind::Invalid, action: action.into(), source: Some(Source::Invalid(error)) }
    }

    /// Builds the error from the refusals of a transaction; `None` if there are none.
    pub(crate) fn refused(refusals: Vec<Refusal>) -> Option<Self> {
        // An error of the whole transaction follows from those of its operations, if there are any.
        let first = refusals.iter().find(|refusal| refusal.operation.is_some()).or(refusals.first())?;
        let (kind, action) = (first.kind, first.action.as_str().into());
        let mut refusals = refusals;
        refusals.sort_by_key(|refusal| refusal.operation.unwrap_or(usize::MAX));
        Some(Error { kind, action, source: Some(Source::Refused(refusals.into())) })
    }

    /// A failed exchange.
    pub(crate) fn netlink(error: netlink_batch::Error, action: impl Into<Box<str>>) -> Self {
        use netlink_batch::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Kernel(refusal) => classify(refusal.errno),
            Kind::Timeout => ErrorKind::Timeout,
            Kind::StateUnknown => ErrorKind::StateUnknown,
            Kind::Interrupted => ErrorKind::Interrupted,
            Kind::Malformed(_) => ErrorKind::Malformed,
            Kind::Unsendable(_) => ErrorKind::Invalid,
            Kind::TooLarge { .. } => ErrorKind::TooLarge,
            Kind::FamilyMissing => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Error { kind, action: action.into(), source: Some(Source::Netlink(Arc::new(error))) }
    }
}

/// Builds the error of a refused read. A kernel without nf_tables gives the same answer as for a malformed request
/// (net/netfilter/nfnetlink.c, `nfnetlink_rcv_msg`). Ours are malformed only if the caller gives a key of the wrong
/// length.
pub(crate) fn reading(command: u8, error: netlink_batch::Error, action: &str) -> Error {
    let absent = command != uapi::NFT_MSG_GETSETELEM
        && matches!(error.kind(), netlink_batch::ErrorKind::Kernel(refusal) if refusal.errno == Errno::EINVAL);
    let mut error = Error::netlink(error, action);
    if absent {
        error.kind = ErrorKind::Unsupported;
    }
    error
}

/// Builds the error for a socket that could not be opened. The kernel loads nfnetlink for it and refuses the protocol
/// if there is none.
pub(crate) fn opening(error: netlink_batch::Error, action: &str) -> Error {
    let system = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
    let absent = system.and_then(std::io::Error::raw_os_error) == Some(Errno::EPROTONOSUPPORT.0);
    let mut error = Error::netlink(error, action);
    if absent {
        error.kind = ErrorKind::Unsupported;
    }
    error
}

/// Maps an error number to a kind; an unlisted one is kept as a number.
pub(crate) fn classify(errno: Errno) -> ErrorKind {
    match errno {
        Errno::ENOENT => ErrorKind::NotFound,
        Errno::EEXIST => ErrorKind::AlreadyExists,
        Errno::EBUSY => ErrorKind::InUse,
        Errno::EPERM | Errno::EACCES => ErrorKind::Permission,
        Errno::ENOMEM => ErrorKind::NoMemory,
        Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => ErrorKind::Unsupported,
        Errno::EINVAL | Errno::ERANGE | Errno::EOVERFLOW => ErrorKind::Rejected,
        Errno::ENFILE => ErrorKind::SetFull,
        Errno::ENOTEMPTY => ErrorKind::Overlap,
        Errno::EMLINK | Errno::ELOOP => ErrorKind::Loop,
        Errno::ERESTART => ErrorKind::GenerationChanged,
        other => ErrorKind::Other(other),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Whole => Ok(()),
            Part::Expression { index, name } => write!(f, ", expression {} ({name})", index.saturating_add(1)),
            Part::Element { index } => write!(f, ", element {}", index.saturating_add(1)),
            Part::AmongElements { first, last } => {
                write!(f, ", one of elements {} to {}", first.saturating_add(1), last.saturating_add(1))
            }
            Part::Attribute(name) => write!(f, ", attribute {name}"),
        }
    }
}

/// Reason and remedy, as in the message of an [`Error`].
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            ErrorKind::NotFound => {
                "it does not exist, or something it needs: a table, chain, set, object, or a kernel module"
            }
            ErrorKind::AlreadyExists => "it exists already, perhaps with other contents",
            ErrorKind::InUse => "it is in use; remove what refers to it",
            ErrorKind::SetFull => "the set is full; make it with a greater size",
            ErrorKind::Overlap => "a range overlaps another; delete that first, or join them",
            ErrorKind::Loop => "jumps lead in a circle or nest too deeply",
            ErrorKind::Unsupported => {
                "the kernel does not support it, or not at this hook, in this family or with these flags; if it lacks \
                 nf_tables, load that module"
            }
            ErrorKind::Rejected => "the kernel does not take a value of it",
            ErrorKind::GenerationChanged => "the rule set changed meanwhile; read it again",
            ErrorKind::TooLarge => {
                "it is too large for one datagram; divide it, raise net.core.wmem_max, or gain CAP_NET_ADMIN"
            }
            ErrorKind::Permission => {
                "not permitted; CAP_NET_ADMIN in this network namespace is needed, and a table without another owner"
            }
            ErrorKind::NoMemory => "the kernel is out of memory",
            ErrorKind::Invalid => "it cannot be written as a request; nothing was sent",
            ErrorKind::Timeout => "no answer within the deadline; read the state again before repeating",
            ErrorKind::StateUnknown => "answers were lost; read the state again before repeating",
            ErrorKind::Interrupted => "the rule set kept changing while it was read; try again when it is quieter",
            ErrorKind::Malformed => "an answer of the kernel cannot be read",
            ErrorKind::Io => "system call failed",
            ErrorKind::Other(errno) => return write!(f, "the kernel answered {errno}"),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.action)?;
        if let Some(first) = self.refusals().first()
            && let Some(operation) = first.operation
        {
            write!(f, " (operation {}{})", operation.saturating_add(1), first.part)?;
        }
        f.write_str(": ")?;
        match &self.source {
            Some(Source::Invalid(error)) if self.kind == ErrorKind::Invalid => write!(f, "{error}")?,
            _ => self.kind.fmt(f)?,
        }
        match self.refusals() {
            [_, others @ ..] if !others.is_empty() => write!(f, " ({} more were refused)", others.len()),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.source.as_ref()? {
            Source::Refused(refusals) => {
                refusals.first().map(|refusal| -> &(dyn std::error::Error + 'static) { &refusal.kernel })
            }
            Source::Netlink(error) => Some(&**error),
            // The message contains all of it.
            Source::Invalid(_) => None,
        }
    }
}

netlink_batch::debug_is_message!(Error);

impl From<InvalidValue> for Error {
    fn from(error: InvalidValue) -> Self {
        Error::invalid(error, "checking a value")
    }
}
