//! Maps the clients' errors to [`PortErrorKind`]s, by their kinds and numbers rather than their text.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;

use netlink_batch::{Errno, Outcome};

use crate::ports::{ItemFailures, PortError, PortErrorKind};

/// Meaning of an error number that the call does not define.
pub(crate) fn errno_kind(errno: i32) -> PortErrorKind {
    use nix::errno::Errno as E;
    match E::from_raw(errno) {
        E::ENOENT | E::ESRCH | E::ENODEV | E::EADDRNOTAVAIL | E::ENXIO => PortErrorKind::NotFound,
        E::EEXIST => PortErrorKind::AlreadyExists,
        E::EPERM | E::EACCES | E::EROFS => PortErrorKind::Permission,
        E::EOPNOTSUPP | E::EPROTONOSUPPORT | E::EAFNOSUPPORT | E::ENOSYS => PortErrorKind::Unavailable,
        E::EBUSY | E::EAGAIN | E::EINTR | E::ENOBUFS | E::ENOMEM | E::EMFILE | E::ENFILE => PortErrorKind::Busy,
        E::ENOSPC => PortErrorKind::Full,
        E::EINVAL | E::ERANGE | E::EMSGSIZE | E::ENAMETOOLONG => PortErrorKind::Invalid,
        _ => PortErrorKind::Other,
    }
}

/// The kind of the failed system call among the causes of an error.
pub(crate) fn io_kind(error: &(dyn StdError + 'static)) -> PortErrorKind {
    let mut below = Some(error);
    while let Some(error) = below {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error().map_or(PortErrorKind::Other, errno_kind);
        }
        below = error.source();
    }
    PortErrorKind::Other
}

/// A failed exchange with the kernel, and whether to open a new socket.
pub(crate) fn netlink(error: &netlink_batch::Error, doing: impl Display) -> (PortError, bool) {
    use netlink_batch::ErrorKind as Kind;
    let (kind, fatal) = match error.kind() {
        Kind::Kernel(refusal) => (errno_kind(refusal.errno.0), false),
        Kind::FamilyMissing => (PortErrorKind::Unavailable, false),
        Kind::Timeout | Kind::StateUnknown => (PortErrorKind::Unknown, true),
        Kind::Interrupted => (PortErrorKind::Busy, false),
        Kind::Unsendable(_) => (PortErrorKind::Invalid, false),
        Kind::Io => (io_kind(error), true),
        _ => (PortErrorKind::Other, true),
    };
    let cause = PortError::from_error(kind, error);
    (PortError::new(kind, format!("{doing}: {cause}")), fatal)
}

/// The refused items of a batch. `classify` maps an error; `None` counts the item as done.
pub(crate) fn batch(
    report: netlink_batch::BatchReport,
    doing: impl Fn(usize) -> String,
    classify: impl Fn(Errno) -> Option<PortErrorKind>,
) -> ItemFailures {
    let stopped = report.stopped.map(|error| PortError::from_error(PortErrorKind::Skipped, &error));
    let failure = |(index, outcome)| {
        let doing = doing(index);
        let error = match outcome {
            Outcome::Done => return None,
            Outcome::Refused(refusal) => PortError::new(classify(refusal.errno)?, format!("{doing}: {refusal}")),
            Outcome::Unsendable(error) => PortError::new(PortErrorKind::Invalid, format!("{doing}: {error}")),
            Outcome::Unknown => unknown(&doing),
            _ => skipped(&doing, stopped.as_ref()),
        };
        Some((index, error))
    };
    report.failures.into_iter().filter_map(failure).collect()
}

/// The error of a request that was sent and whose answer was lost.
pub(crate) fn unknown(doing: impl Display) -> PortError {
    PortError::new(PortErrorKind::Unknown, format!("{doing}: its answer was lost; read the state again"))
}

/// The error of a request that was not sent because the work stopped before it.
pub(crate) fn skipped(doing: impl Display, why: Option<&PortError>) -> PortError {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    PortError::new(PortErrorKind::Skipped, format!("{doing}: not tried{why}"))
}

/// The same failure for every item.
pub(crate) fn all(items: usize, error: &PortError) -> ItemFailures {
    (0..items).map(|index| (index, error.clone())).collect()
}
