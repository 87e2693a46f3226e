//! The capabilities of this process, and which required ones are missing.

use crate::problem::Problem;

/// A capability by name and number (`linux/capability.h`), and what needs it.
pub(crate) struct Capability(&'static str, u8, &'static str);

/// Every mode needs it.
pub(crate) const NET_ADMIN: Capability = Capability("CAP_NET_ADMIN", 12, "IPVS, sets, rules and addresses need");
/// For listing and writing rules: iptables asks the kernel about sets through a raw socket; the legacy one also reads
/// its tables through one.
pub(crate) const NET_RAW: Capability = Capability("CAP_NET_RAW", 13, "iptables needs for rules that ask sets");

impl Capability {
    /// Checks that this process, and the programs that it starts, have this capability.
    pub(crate) fn require(&self) -> Result<(), Problem> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        lacks(&status, self).map_or(Ok(()), |reason| Err(Problem::new("", reason)))
    }
}

/// Why a capability is missing according to a `/proc/PID/status`, and how to get it; `None` if it is there, or if that is
/// not shown.
fn lacks(status: &str, Capability(name, number, purpose): &Capability) -> Option<String> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let is_in = |set: &str| Some(u64::from_str_radix(field(set)?.trim(), 16).ok()? >> number & 1 == 1);
    let effective_user = field("Uid")?.split_whitespace().nth(1)?;
    if !is_in("CapEff")? {
        return Some(format!("{name} is missing, which {purpose}; run as root, or let this program have {name}"));
    }
    // iptables is a separate program. Linux before 4.3 has no ambient set.
    (effective_user != "0" && is_in("CapAmb") != Some(true)).then(|| {
        format!(
            "{name} is not ambient: iptables, which is started as another user than root, would not have it; use \
             AmbientCapabilities={name} of systemd, or setpriv --inh-caps and --ambient-caps"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_privileges_are_named() {
        let lacks = |user: u32, effective: u64, ambient: u64, capability| {
            let status = format!(
                "Name:\tx\nUid:\t7\t{user}\t{user}\t{user}\nCapPrm:\t{effective:016x}\nCapEff:\t{effective:016x}\n\
                 CapBnd:\t000001ffffffffff\nCapAmb:\t{ambient:016x}\n"
            );
            lacks(&status, &capability).unwrap_or_default()
        };
        assert_eq!(lacks(0, 0x3000, 0, NET_ADMIN) + &lacks(0, 0x3000, 0, NET_RAW), "");
        let missing = lacks(0, 0x1000, 0, NET_RAW);
        assert!(
            missing.starts_with("CAP_NET_RAW is missing, which iptables needs for rules that ask sets; run as root")
        );
        assert!(lacks(1000, 0, 0, NET_ADMIN).starts_with("CAP_NET_ADMIN is missing"));
        assert!(lacks(1000, 0x1000, 0, NET_ADMIN).starts_with("CAP_NET_ADMIN is not ambient"));
        assert_eq!(lacks(1000, 0x1000, 0x1000, NET_ADMIN), "");
        assert_eq!(super::lacks("", &NET_ADMIN), None);
    }
}
