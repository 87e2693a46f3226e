//! Settings of the kernel.

use super::PortError;

/// A value to write.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SysctlChange {
    /// Path below `/proc/sys`, as in `net/ipv4/ip_forward`.
    pub path: String,
    /// Present value; `None` when it could not be read.
    pub from: Option<String>,
    /// Required value.
    pub to: String,
}

/// Values below `/proc/sys`.
///
/// ```
/// use proxier_core::fake::FakeKernel;
/// use proxier_core::ports::PortErrorKind;
///
/// let mut kernel = FakeKernel::new();
/// let port = kernel.ports().sysctls;
/// assert!(port.can_set("net/ipv4/ip_forward"));
/// port.set("net/ipv4/ip_forward", "1")?;
/// assert_eq!(port.get("net/ipv4/ip_forward")?, "1");
/// let missing = port.get("net/ipv4/vs/no_such_value").map_err(|error| error.kind());
/// assert_eq!(missing, Err(PortErrorKind::NotFound));
/// # Ok::<(), proxier_core::ports::PortError>(())
/// ```
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
