//! Settings of a whole network namespace.

use std::fmt;

/// How long connections are kept, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timeouts {
    /// An idle TCP connection; the kernel's default is 900.
    pub tcp_secs: u32,
    /// A TCP connection after a FIN; the kernel's default is 120.
    pub tcp_fin_secs: u32,
    /// An idle UDP exchange; the kernel's default is 300.
    pub udp_secs: u32,
}

/// Timeouts to set; `None` and 0 leave one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct TimeoutsUpdate {
    /// An idle TCP connection, in seconds.
    pub tcp_secs: Option<u32>,
    /// A TCP connection after a FIN, in seconds.
    pub tcp_fin_secs: Option<u32>,
    /// An idle UDP exchange, in seconds.
    pub udp_secs: Option<u32>,
}

/// What IPVS says of itself.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// let info = ipvs::fake::FakeIpvs::new().client()?.info()?;
/// assert_eq!((info.version, info.connection_table_size), (0x01_02_01, 4096));
/// assert_eq!(info.to_string(), "1.2.1 (size=4096)");
/// # }
/// # Ok::<(), ipvs::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Info {
    /// Version, one byte each for major, minor and patch: 0x010201 is 1.2.1.
    pub version: u32,
    /// Buckets of the connection table. Since Linux 7.0 the table grows with the connections.
    pub connection_table_size: u32,
}

/// `1.2.1 (size=4096)`, as ipvsadm prints it.
impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, major, minor, patch] = self.version.to_be_bytes();
        write!(f, "{major}.{minor}.{patch} (size={})", self.connection_table_size)
    }
}
