//! The capabilities of this process, and which required ones are missing.

use crate::problem::Problem;

/// Sets of capabilities from `/proc/self/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Capabilities of this process (`CapEff`).
    effective: u64,
    /// Capabilities for programs that it starts if it is not root (`CapAmb`).
    ambient: u64,
    /// Whether it runs as root, so that its programs get all its capabilities.
    root: bool,
}

/// A capability by name and number (`linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability(&'static str, u8);

impl Capability {
    /// IPVS, sets, rules, addresses.
    pub const NET_ADMIN: Capability = Capability("CAP_NET_ADMIN", 12);
    /// iptables asks the kernel about sets through a raw socket; the legacy one also reads its tables through one.
    pub const NET_RAW: Capability = Capability("CAP_NET_RAW", 13);

    fn is_in(self, set: u64) -> bool {
        set >> self.1 & 1 == 1
    }
}

impl Privileges {
    /// The capabilities of this process; `None` if `/proc` does not show them.
    pub fn of_this_process() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/self/status").ok()?)
    }

    fn read(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let set = |name: &str| u64::from_str_radix(field(name)?.trim(), 16).ok();
        let effective_user = field("Uid")?.split_whitespace().nth(1)?;
        // Linux before 4.3 has no ambient set.
        let ambient = set("CapAmb").unwrap_or(0);
        Some(Privileges { effective: set("CapEff")?, ambient, root: effective_user == "0" })
    }

    /// The problem if this capability is missing, and how to get it.
    pub fn lacks(self, capability: Capability, purpose: &str) -> Option<Problem> {
        let Capability(name, _) = capability;
        let reason = if !capability.is_in(self.effective) {
            format!("{name} is missing, which {purpose}; run as root, or let this program have {name}")
        } else if !self.root && !capability.is_in(self.ambient) {
            // iptables is a separate program.
            format!(
                "{name} is not ambient: iptables, which is started as another user than root, would not have it; use \
                 AmbientCapabilities={name} of systemd, or setpriv --inh-caps and --ambient-caps"
            )
        } else {
            return None;
        };
        Some(Problem::new("", reason))
    }
}

/// Checks that this process, and the programs that it starts, have this capability, which is for `purpose`.
fn require_one(capability: Capability, purpose: &str) -> Result<(), Problem> {
    let lacks = |privileges: Privileges| privileges.lacks(capability, purpose);
    Privileges::of_this_process().and_then(lacks).map_or(Ok(()), Err)
}

/// Checks that this process has the capability that every mode needs.
pub fn require() -> Result<(), Problem> {
    require_one(Capability::NET_ADMIN, "IPVS, sets, rules and addresses need")
}

/// Checks that this process also has the capability for listing and writing rules.
pub fn require_rules() -> Result<(), Problem> {
    require_one(Capability::NET_RAW, "iptables needs for rules that ask sets")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(user: u32, effective: u64, ambient: u64) -> Privileges {
        let text = format!(
            "Name:\tx\nUid:\t7\t{user}\t{user}\t{user}\nCapPrm:\t{effective:016x}\nCapEff:\t{effective:016x}\n\
             CapBnd:\t000001ffffffffff\nCapAmb:\t{ambient:016x}\n"
        );
        Privileges::read(&text).unwrap()
    }

    #[test]
    fn missing_privileges_are_named() {
        let lacks = |privileges: Privileges, capability| {
            privileges.lacks(capability, "x needs").map(|problem| problem.to_string()).unwrap_or_default()
        };
        assert_eq!(lacks(status(0, 0x3000, 0), Capability::NET_ADMIN), "");
        assert_eq!(lacks(status(0, 0x3000, 0), Capability::NET_RAW), "");
        let missing = lacks(status(0, 0x1000, 0), Capability::NET_RAW);
        assert!(missing.starts_with("CAP_NET_RAW is missing, which x needs; run as root"), "{missing}");
        let missing = lacks(status(1000, 0, 0), Capability::NET_ADMIN);
        assert!(missing.starts_with("CAP_NET_ADMIN is missing"), "{missing}");
        let missing = lacks(status(1000, 0x1000, 0), Capability::NET_ADMIN);
        assert!(missing.starts_with("CAP_NET_ADMIN is not ambient"), "{missing}");
        assert_eq!(lacks(status(1000, 0x1000, 0x1000), Capability::NET_ADMIN), "");
        assert_eq!(Privileges::read(""), None);
    }
}
