//! Kernel settings.

use super::PortError;

/// A value to write.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SysctlChange {
    /// Path below `/proc/sys`, such as `net/ipv4/ip_forward`.
    pub path: String,
    /// Current value; `None` if it could not be read.
    pub from: Option<String>,
    /// Required value.
    pub to: String,
}

/// Values below `/proc/sys`.
pub trait Sysctls {
    /// Reads a value, without surrounding white space. `path` is below `/proc/sys`: `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// [`NotFound`](super::PortErrorKind::NotFound) if this kernel does not have it.
    fn get(&mut self, path: &str) -> Result<String, PortError>;

    /// Whether it can be written. Some values belong to the whole host and are read-only in a network namespace.
    fn can_set(&mut self, path: &str) -> bool;

    /// Writes a value.
    ///
    /// # Errors
    /// [`NotFound`](super::PortErrorKind::NotFound), [`Permission`](super::PortErrorKind::Permission).
    fn set(&mut self, path: &str, value: &str) -> Result<(), PortError>;
}
