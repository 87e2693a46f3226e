//! Real servers.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::model::{ForwardingMethod, OutOfRange, RealServerKey, Stats};

/// Share of new connections a real server gets, relative to the others: 0 to 2,147,483,647. Default 1.
///
/// A real server of weight 0 drains: see [`Weight::DRAIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(try_from = "u32", into = "u32"))]
pub struct Weight(u32);

impl Weight {
    /// Gets no new connections from the scheduler. Existing connections continue, so the real server drains.
    ///
    /// Persistence ([`Persistence`](crate::model::Persistence)) bypasses the scheduler: a remembered client returns to
    /// this real server with each new connection, and each renews the memory. The real server may then never drain. The
    /// sysctl `net.ipv4.vs.expire_quiescent_template` makes the kernel forget such clients at their next connection. It
    /// is off by default and applies to the whole network namespace;
    /// [`Sysctl::drain_persistent_clients`](crate::sysctl::Sysctl::drain_persistent_clients) turns it on.
    ///
    /// The schedulers `sh` and `mh` drop connections of clients that hash to a draining real server, unless
    /// [`SchedulerFlags::SH_FALLBACK`](crate::SchedulerFlags::SH_FALLBACK) is set.
    ///
    /// Kernel: `ip_vs_check_template`, `expire_quiescent_template` in net/netfilter/ipvs/ip_vs_conn.c.
    pub const DRAIN: Weight = Weight(0);
    /// The default weight.
    pub const ONE: Weight = Weight(1);
    /// The largest weight that the kernel accepts.
    pub const MAX: Weight = Weight(0x7fff_ffff);

    /// Checks a weight.
    ///
    /// # Errors
    /// [`OutOfRange`] above 2,147,483,647.
    pub fn new(weight: u32) -> Result<Self, OutOfRange> {
        if weight > Self::MAX.0 {
            return Err(OutOfRange::new("weight", weight, "0 to 2147483647"));
        }
        Ok(Weight(weight))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::ONE
    }
}

impl TryFrom<u32> for Weight {
    type Error = OutOfRange;

    fn try_from(weight: u32) -> Result<Self, OutOfRange> {
        Weight::new(weight)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

impl FromStr for Weight {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        let refuse = || OutOfRange::new("weight", text, "0 to 2147483647");
        text.parse().ok().and_then(|weight| Weight::new(weight).ok()).ok_or_else(refuse)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Connection limits: no new connections above `upper`, new ones again below `lower`. Default: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "(u32, u32)", into = "(u32, u32)")
)]
pub struct Thresholds {
    upper: u32,
    lower: u32,
}

impl Thresholds {
    /// No limit.
    pub const NONE: Thresholds = Thresholds { upper: 0, lower: 0 };

    /// Checks thresholds. An upper threshold of 0 means no limit. With a lower threshold of 0 the kernel uses three
    /// quarters of the upper.
    ///
    /// # Errors
    /// [`OutOfRange`] if the lower threshold is above the upper.
    pub fn new(upper: u32, lower: u32) -> Result<Self, OutOfRange> {
        if lower > upper {
            let value = format!("{lower} with upper threshold {upper}");
            return Err(OutOfRange::new("lower threshold", value, "at most the upper threshold"));
        }
        Ok(Thresholds { upper, lower })
    }

    /// Connections above which the server gets no new ones; 0 for no limit.
    pub fn upper(self) -> u32 {
        self.upper
    }

    /// Connections below which it gets new ones again.
    pub fn lower(self) -> u32 {
        self.lower
    }
}

impl TryFrom<(u32, u32)> for Thresholds {
    type Error = OutOfRange;

    fn try_from((upper, lower): (u32, u32)) -> Result<Self, OutOfRange> {
        Thresholds::new(upper, lower)
    }
}

impl From<Thresholds> for (u32, u32) {
    fn from(thresholds: Thresholds) -> Self {
        (thresholds.upper, thresholds.lower)
    }
}

/// The settings of a real server that can be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct RealServerConfig {
    /// Share of new connections, relative to the other real servers.
    pub weight: Weight,
    /// How packets reach the real server.
    pub forwarding_method: ForwardingMethod,
    /// Connection limits.
    pub thresholds: Thresholds,
}

impl RealServerConfig {
    /// Masquerading with weight 1, without limits.
    pub fn new() -> Self {
        Self::default()
    }
}

/// A real server, which answers for a virtual server.
#[doc(alias = "destination")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RealServer {
    /// Identity within the virtual server.
    pub key: RealServerKey,
    /// Weight, forwarding method and thresholds: the settings that can be changed.
    #[cfg_attr(feature = "serde", serde(default))]
    pub config: RealServerConfig,
}

impl RealServer {
    /// Masquerading with weight 1, without limits.
    pub fn new(at: SocketAddr) -> Self {
        RealServer { key: at.into(), config: RealServerConfig::default() }
    }

    /// Sets the configuration.
    #[must_use]
    pub fn with_config(mut self, config: RealServerConfig) -> Self {
        self.config = config;
        self
    }

    /// Normalises to the form in which [`Client`](crate::Client) reports it, for values with several spellings.
    pub(crate) fn canonical(mut self) -> Self {
        self.config.forwarding_method = self.config.forwarding_method.canonical();
        self
    }
}

netlink_batch::settings! {
    RealServerConfig, RealServer in config:
    /// Sets the weight.
    with_weight(weight: Weight) |of| of.weight = weight;
    /// Sets the forwarding method.
    with_forwarding_method(method: ForwardingMethod) |of| of.forwarding_method = method;
    /// Sets the limits.
    with_thresholds(thresholds: Thresholds) |of| of.thresholds = thresholds;
}

/// Masquerading with weight 1, without limits.
impl From<SocketAddr> for RealServer {
    fn from(at: SocketAddr) -> Self {
        RealServer::new(at)
    }
}

/// Masquerading with weight 1, without limits.
impl From<RealServerKey> for RealServer {
    fn from(key: RealServerKey) -> Self {
        RealServer { key, config: RealServerConfig::default() }
    }
}

/// A real server as read from the kernel, with its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedRealServer {
    /// The real server.
    pub server: RealServer,
    /// Active connections.
    #[cfg_attr(feature = "serde", serde(default))]
    pub active_connections: u32,
    /// Inactive connections: closing, or not established yet.
    #[cfg_attr(feature = "serde", serde(default))]
    pub inactive_connections: u32,
    /// Persistence templates for this real server.
    #[cfg_attr(feature = "serde", serde(default))]
    pub persistent_connections: u32,
    /// Counters and rates.
    #[cfg_attr(feature = "serde", serde(default))]
    pub stats: Stats,
}

/// A real server with all counters zero.
impl From<RealServer> for ObservedRealServer {
    fn from(server: RealServer) -> Self {
        ObservedRealServer {
            server,
            active_connections: 0,
            inactive_connections: 0,
            persistent_connections: 0,
            stats: Stats::default(),
        }
    }
}
