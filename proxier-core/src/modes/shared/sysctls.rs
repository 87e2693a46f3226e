//! Values below `/proc/sys` that serving needs.

use crate::ports::{SysctlChange, Sysctls};

/// Settings of the host that the operator may change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HostSettings {
    /// Answer ARP only on the interface that has the address, and announce only its own (`ipvs.strictARP`), for load
    /// balancers that announce VIPs by ARP themselves. Default: off.
    pub strict_arp: bool,
    /// Minimum for the limit of tracked connections (`conntrack.maxPerCore`, `conntrack.min`); a higher limit stays.
    /// Default: unchanged.
    pub conntrack_max: Option<u32>,
    /// Seconds for which an idle established TCP connection is tracked. Default: unchanged.
    pub tcp_established_secs: Option<u32>,
    /// Seconds for which a half-closed TCP connection is tracked. Default: unchanged.
    pub tcp_close_wait_secs: Option<u32>,
    /// Whether packets outside a connection's window count as valid. Default: unchanged.
    pub tcp_be_liberal: bool,
    /// Seconds for which a UDP flow without answers is tracked. Default: unchanged.
    pub udp_secs: Option<u32>,
    /// Seconds for which a UDP flow with answers is tracked. Default: unchanged.
    pub udp_stream_secs: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedValue {
    /// Below `/proc/sys`.
    pub path: &'static str,
    pub value: u32,
    /// Whether a greater value is acceptable too.
    pub at_least: bool,
    /// Whether serving works without it. If it cannot be written, it is left unchanged and reported.
    pub optional: bool,
}

impl WantedValue {
    fn exactly(path: &'static str, value: u32) -> Self {
        WantedValue { path, value, at_least: false, optional: false }
    }

    pub(crate) fn optional(path: &'static str, value: u32) -> Self {
        WantedValue { path, value, at_least: false, optional: true }
    }

    /// The change to write, given the present value; `None` if that is acceptable.
    pub(crate) fn change(&self, there: Option<&str>) -> Option<SysctlChange> {
        let number = there.and_then(|text| text.trim().parse::<u64>().ok());
        let fits = number.is_some_and(|number| {
            let value = u64::from(self.value);
            number == value || self.at_least && number > value
        });
        (!fits).then(|| SysctlChange {
            path: self.path.to_owned(),
            from: there.map(|text| text.trim().to_owned()),
            to: self.value.to_string(),
        })
    }
}

/// The values that serving needs on a kernel of this release (`/proc/sys/kernel/osrelease`).
///
/// * `net/ipv4/vs/conntrack`: without it, packets of IPVS are not masqueraded.
/// * `net/ipv4/vs/conn_reuse_mode`: on Linux 4.1 to 5.8, value 1 delays every connection that reuses a port by a second
///   if connections are tracked. Fixed in 5.9, where the value is not changed. An unreadable release counts as new.
/// * `net/ipv4/vs/expire_nodest_conn`: a connection to a deleted real server ends at its next packet.
/// * `net/ipv4/vs/expire_quiescent_template`: a client with affinity moves away from a draining real server.
/// * `net/ipv4/ip_forward`: packets to real servers on other hosts. The network plugin sets IPv6 forwarding, as with
///   kube-proxy.
pub(crate) fn wanted(settings: &HostSettings, release: &str) -> Vec<WantedValue> {
    let mut all = vec![WantedValue::exactly("net/ipv4/vs/conntrack", 1)];
    if release_number(release).is_some_and(|release| ((4, 1)..(5, 9)).contains(&release)) {
        all.push(WantedValue::exactly("net/ipv4/vs/conn_reuse_mode", 0));
    }
    all.push(WantedValue::exactly("net/ipv4/vs/expire_nodest_conn", 1));
    all.push(WantedValue::exactly("net/ipv4/vs/expire_quiescent_template", 1));
    all.extend(of_every_mode(settings));
    all
}

/// Whether connection tracking treats packets outside a connection's window as valid, because any program or this pass
/// set it so. A value that cannot be read counts as the kernel's default.
pub(crate) fn is_tcp_liberal(settings: &HostSettings, sysctls: &mut dyn Sysctls) -> bool {
    let is_on = |text: &str| text.trim().parse::<i64>().is_ok_and(|number| number != 0);
    sysctls.get(TCP_BE_LIBERAL).is_ok_and(|text| is_on(&text))
        || settings.tcp_be_liberal && sysctls.can_set(TCP_BE_LIBERAL)
}

const TCP_BE_LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";

pub(crate) fn of_arp(settings: &HostSettings) -> Vec<WantedValue> {
    let strict = [("net/ipv4/conf/all/arp_ignore", 1), ("net/ipv4/conf/all/arp_announce", 2)];
    strict.into_iter().filter(|_| settings.strict_arp).map(|(path, value)| WantedValue::exactly(path, value)).collect()
}

/// The values that all modes need in which the kernel forwards and tracks packets.
pub(crate) fn of_every_mode(settings: &HostSettings) -> Vec<WantedValue> {
    let mut all = vec![WantedValue::exactly("net/ipv4/ip_forward", 1)];
    all.extend(of_arp(settings));
    if let Some(value) = settings.conntrack_max {
        all.push(WantedValue { path: "net/netfilter/nf_conntrack_max", value, at_least: true, optional: true });
    }
    let secs = [
        ("net/netfilter/nf_conntrack_tcp_timeout_established", settings.tcp_established_secs),
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", settings.tcp_close_wait_secs),
        (TCP_BE_LIBERAL, settings.tcp_be_liberal.then_some(1)),
        ("net/netfilter/nf_conntrack_udp_timeout", settings.udp_secs),
        ("net/netfilter/nf_conntrack_udp_timeout_stream", settings.udp_stream_secs),
    ];
    all.extend(secs.into_iter().filter_map(|(path, value)| value.map(|value| WantedValue::optional(path, value))));
    all
}

/// The values that differ: those to write, and optional ones that cannot be written from here. One that cannot be read
/// is still written, because a failed write tells more than a failed read.
pub(crate) fn changes(sysctls: &mut dyn Sysctls, wanted: Vec<WantedValue>) -> (Vec<SysctlChange>, Vec<SysctlChange>) {
    let (mut changes, mut unmet) = (Vec::new(), Vec::new());
    for wanted in wanted {
        let there = sysctls.get(wanted.path).ok();
        if let Some(change) = wanted.change(there.as_deref()) {
            let leave = wanted.optional && !sysctls.can_set(wanted.path);
            if leave { &mut unmet } else { &mut changes }.push(change);
        }
    }
    (changes, unmet)
}

pub(crate) const OSRELEASE: &str = "kernel/osrelease";

/// The first two numbers of a release: `6.1.0-50-amd64` is (6, 1).
fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_reused_without_delay_where_the_kernel_would_delay_them() {
        let has = |release| {
            wanted(&HostSettings::default(), release).iter().any(|wanted| wanted.path.ends_with("conn_reuse_mode"))
        };
        for release in ["4.1.0", "4.18.0-553.el8_10.x86_64", "5.8.18", "5.8-rc1\n"] {
            assert!(has(release), "{release:?}");
        }
        for release in
            ["3.10.0-1160.el7.x86_64", "5.9.0", "6.1.0-50-amd64", "", "5", "v5.1", "5.99999999999", "unknown"]
        {
            assert!(!has(release), "{release:?}");
        }
    }

    #[test]
    fn a_limit_is_only_raised_and_a_switch_is_exact() {
        let limit =
            WantedValue { path: "net/netfilter/nf_conntrack_max", value: 131_072, at_least: true, optional: true };
        assert_eq!(limit.change(Some("262144\n")), None);
        assert_eq!(limit.change(Some("65536")).unwrap().to, "131072");
        let switch = WantedValue::exactly("net/ipv4/ip_forward", 1);
        assert_eq!(switch.change(Some("1")), None);
        assert_eq!(switch.change(Some("2")).unwrap().from.as_deref(), Some("2"));
        assert_eq!(switch.change(None).unwrap().from, None);
    }
}
