//! The modes of the proxy.

use std::fmt;

use serde::Serialize;

/// A mode of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    Ipvs,
    Nftables,
    Iptables,
    Userspace,
}

impl Mode {
    /// Name in `--proxy-mode`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Ipvs => "ipvs",
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Userspace => "userspace",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
