//! Selects the mode that serves: the requested one, or the best that this machine supports.

use std::fmt;

use ::iptables::Backend;

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

/// The modes to try, best first. The first that this machine supports serves. `programs`: the back end that its iptables
/// programs write to; `None` without programs, or if none works.
///
/// * [`RequestedMode::Auto`]: IPVS, nftables, iptables, userspace.
/// * A requested mode is the only candidate without `may_fall_back`. Otherwise it is followed by those that kube-proxy
///   fell back to, in the order IPVS, iptables, userspace. Mode nftables comes before iptables if iptables has no
///   tables of its own: it needs no more of the kernel, and less work. It falls back to iptables. Nothing follows
///   userspace.
pub fn candidates(asked: RequestedMode, may_fall_back: bool, programs: Option<Backend>) -> Vec<Kind> {
    let by_rules = match programs {
        Some(Backend::Legacy) => [Kind::Iptables].as_slice(),
        Some(Backend::NfTables) | None => &[Kind::Nftables, Kind::Iptables],
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

    #[test]
    fn candidates_come_best_first_and_fall_back_as_in_kube_proxy() {
        let [legacy, nf_tables] = [Backend::Legacy, Backend::NfTables].map(Some);
        let of = |asked, may_fall_back, programs| {
            let all = candidates(asked, may_fall_back, programs);
            all.into_iter().map(Kind::name).collect::<Vec<_>>().join(" ")
        };
        for programs in [None, nf_tables, legacy] {
            for may_fall_back in [false, true] {
                assert_eq!(of(RequestedMode::Auto, may_fall_back, programs), "ipvs nftables iptables userspace");
            }
            for kind in Kind::ALL {
                assert_eq!(of(RequestedMode::Mode(kind), false, programs), kind.name());
            }
        }
        for (kind, programs, expected) in [
            (Kind::Ipvs, legacy, "ipvs iptables userspace"),
            (Kind::Ipvs, nf_tables, "ipvs nftables iptables userspace"),
            (Kind::Ipvs, None, "ipvs nftables iptables userspace"),
            (Kind::Nftables, legacy, "nftables iptables userspace"),
            (Kind::Iptables, legacy, "iptables userspace"),
            (Kind::Iptables, nf_tables, "iptables nftables userspace"),
            (Kind::Iptables, None, "iptables nftables userspace"),
            (Kind::Userspace, legacy, "userspace"),
        ] {
            assert_eq!(of(RequestedMode::Mode(kind), true, programs), expected, "{programs:?}");
        }
    }
}
