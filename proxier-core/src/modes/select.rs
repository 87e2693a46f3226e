//! Selects the mode that serves: the requested one, or the best that this machine supports.

use std::fmt;

use super::Kind;

/// The mode that the configuration requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RequestedMode {
    /// The best that this machine supports. Default.
    #[default]
    Auto,
    /// This mode.
    Mode(Kind),
}

impl fmt::Display for RequestedMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestedMode::Auto => f.pad("auto"),
            RequestedMode::Mode(kind) => kind.fmt(f),
        }
    }
}

/// The back end that this machine's iptables programs write to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RulePrograms {
    /// There are no programs, or none works.
    Missing,
    /// nf_tables, translated by the programs. nftables mode needs no more of the kernel, and less work.
    NfTables,
    /// Their own tables in the kernel.
    Legacy,
}

/// The modes to try, best first. The first that this machine supports serves.
///
/// * [`RequestedMode::Auto`]: IPVS, nftables, iptables, userspace.
/// * A requested mode is the only candidate without `may_fall_back`. Otherwise it is followed by those that kube-proxy
///   fell back to, in the order IPVS, iptables, userspace. Mode nftables comes before iptables if iptables has no
///   tables of its own. It falls back to iptables. Nothing follows userspace.
pub fn candidates(asked: RequestedMode, may_fall_back: bool, programs: RulePrograms) -> Vec<Kind> {
    let by_rules = match programs {
        RulePrograms::Legacy => [Kind::Iptables].as_slice(),
        RulePrograms::NfTables | RulePrograms::Missing => &[Kind::Nftables, Kind::Iptables],
    };
    let (first, rest) = match asked {
        RequestedMode::Auto => (Kind::Ipvs, [Kind::Nftables, Kind::Iptables].as_slice()),
        RequestedMode::Mode(kind) if !may_fall_back => return vec![kind],
        RequestedMode::Mode(Kind::Ipvs) => (Kind::Ipvs, by_rules),
        RequestedMode::Mode(Kind::Nftables) => (Kind::Nftables, [Kind::Iptables].as_slice()),
        RequestedMode::Mode(Kind::Iptables) => (Kind::Iptables, by_rules),
        RequestedMode::Mode(Kind::Userspace) => return vec![Kind::Userspace],
    };
    let mut all = vec![first];
    all.extend(rest.iter().chain(&[Kind::Userspace]).filter(|kind| **kind != first));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: RequestedMode, may_fall_back: bool, programs: RulePrograms) -> String {
        let all = candidates(asked, may_fall_back, programs);
        all.into_iter().map(Kind::name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_best_comes_first() {
        for programs in [RulePrograms::Missing, RulePrograms::NfTables, RulePrograms::Legacy] {
            for may_fall_back in [false, true] {
                assert_eq!(names(RequestedMode::Auto, may_fall_back, programs), "ipvs nftables iptables userspace");
            }
        }
    }

    #[test]
    fn a_requested_mode_falls_back_as_in_kube_proxy() {
        let of = |kind| names(RequestedMode::Mode(kind), true, RulePrograms::Legacy);
        assert_eq!(of(Kind::Ipvs), "ipvs iptables userspace");
        assert_eq!(of(Kind::Iptables), "iptables userspace");
        assert_eq!(of(Kind::Nftables), "nftables iptables userspace");
        assert_eq!(of(Kind::Userspace), "userspace");
    }

    #[test]
    fn nftables_comes_before_iptables_without_tables_of_its_own() {
        for programs in [RulePrograms::Missing, RulePrograms::NfTables] {
            let of = |kind| names(RequestedMode::Mode(kind), true, programs);
            assert_eq!(of(Kind::Ipvs), "ipvs nftables iptables userspace");
            assert_eq!(of(Kind::Iptables), "iptables nftables userspace");
        }
    }

    #[test]
    fn without_fallback_there_is_one_candidate() {
        for kind in Kind::ALL {
            assert_eq!(names(RequestedMode::Mode(kind), false, RulePrograms::Missing), kind.name());
        }
    }
}
