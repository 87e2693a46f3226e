//! Settings of the kernel.

use super::PortError;

/// Values below `/proc/sys`.
pub trait Sysctls {
    /// Reads one, without white space around it. `path` as in `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// [`NotFound`](super::PortErrorKind::NotFound) if this kernel does not have it.
    fn get(&mut self, path: &str) -> Result<String, PortError>;

    /// Whether it may be written. Some values belong to the whole host and are read-only in a network namespace.
    fn can_set(&mut self, path: &str) -> bool;

    /// Writes one.
    ///
    /// # Errors
    /// [`NotFound`](super::PortErrorKind::NotFound), [`Permission`](super::PortErrorKind::Permission).
    fn set(&mut self, path: &str, value: &str) -> Result<(), PortError>;
}
