//! Settings of a whole network namespace.

use std::fmt;

/// Timeouts of idle connections, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Timeouts {
    /// An idle TCP connection; the kernel's default is 900.
    pub tcp_secs: u32,
    /// A TCP connection after a FIN; the kernel's default is 120.
    pub tcp_fin_secs: u32,
    /// An idle UDP flow; the kernel's default is 300.
    pub udp_secs: u32,
}

impl Timeouts {
    /// Timeouts in seconds: TCP, TCP after a FIN, UDP.
    pub fn new(tcp_secs: u32, tcp_fin_secs: u32, udp_secs: u32) -> Self {
        Timeouts { tcp_secs, tcp_fin_secs, udp_secs }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts::new(900, 120, 300)
    }
}

/// Timeouts to set; `None` and 0 leave one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct TimeoutsUpdate {
    /// An idle TCP connection, in seconds.
    pub tcp_secs: Option<u32>,
    /// A TCP connection after a FIN, in seconds.
    pub tcp_fin_secs: Option<u32>,
    /// An idle UDP flow, in seconds.
    pub udp_secs: Option<u32>,
}

impl TimeoutsUpdate {
    /// Leaves all timeouts unchanged.
    pub fn new() -> Self {
        Self::default()
    }
}

netlink_batch::settings! {
    TimeoutsUpdate:
    /// Sets the timeout of an idle TCP connection.
    with_tcp_secs(secs: u32) |of| of.tcp_secs = Some(secs);
    /// Sets the timeout of a TCP connection after a FIN.
    with_tcp_fin_secs(secs: u32) |of| of.tcp_fin_secs = Some(secs);
    /// Sets the timeout of an idle UDP flow.
    with_udp_secs(secs: u32) |of| of.udp_secs = Some(secs);
}

/// Version and table size of IPVS, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Info {
    /// Version, one byte each for major, minor and patch: 0x010201 is 1.2.1.
    pub version: u32,
    /// Buckets of the connection table. Since Linux 7.1 the table grows with the connections.
    pub connection_table_size: u32,
}

/// `1.2.1 (size=4096)`, as ipvsadm prints it.
impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, major, minor, patch] = self.version.to_be_bytes();
        write!(f, "{major}.{minor}.{patch} (size={})", self.connection_table_size)
    }
}
