//! Requirements of direct return and tunnels (`proxier/forwarding`) on a node beyond IPVS: what is met, and what to do.
//! Changes nothing. The hints are a function of [`Facts`].

mod facts;

use std::path::Path;

use kmod_probe::KernelRelease;
use proxier_core::config::{Config, MayAskFor};
use proxier_core::net::Family;
use serde_json::{Value, json};

use self::facts::{Facts, Module};

/// A method of forwarding other than masquerading, as the annotation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    DirectRoute,
    Ipip,
    Gre,
    Gue,
}

impl Method {
    const ALL: [Method; 4] = [Method::DirectRoute, Method::Ipip, Method::Gre, Method::Gue];
    const TUNNELS: [Method; 3] = [Method::Ipip, Method::Gre, Method::Gue];

    fn name(self) -> &'static str {
        match self {
            Method::DirectRoute => "direct-route",
            Method::Ipip => "ipip",
            Method::Gre => "gre",
            Method::Gue => "gue",
        }
    }

    /// How many bytes a packet grows on its way to an endpoint of a family: an IP header, and 4 of GRE, or 8 of UDP and
    /// 4 of GUE (`__ip_vs_get_out_rt`, net/netfilter/ipvs/ip_vs_xmit.c).
    fn overhead(self, family: Family) -> u32 {
        let header = if family == Family::V4 { 20 } else { 40 };
        match self {
            Method::DirectRoute => 0,
            Method::Ipip => header,
            Method::Gre => header + 4,
            Method::Gue => header + 12,
        }
    }

    /// The modules with which the endpoint's host decapsulates packets.
    fn modules(self, family: Family) -> &'static [&'static str] {
        match (self, family) {
            (Method::DirectRoute, _) => &[],
            (Method::Ipip, Family::V4) => &["ipip"],
            (Method::Ipip, Family::V6) => &["ip6_tunnel"],
            (Method::Gre, Family::V4) => &["ip_gre"],
            (Method::Gre, Family::V6) => &["ip6_gre"],
            (Method::Gue, Family::V4) => &["fou", "ipip"],
            (Method::Gue, Family::V6) => &["fou6", "ip6_tunnel"],
        }
    }
}

/// Requirement of forwarding methods.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hint {
    methods: Vec<Method>,
    /// Subject: `rp_filter`, `arp`, `mtu`, `module NAME`, `kernel`.
    about: String,
    /// Whether the requirement is met; `None`: it depends, or is unknown.
    holds: Option<bool>,
    /// State of the host, in words.
    what: String,
    /// Remedy, and when it applies; empty if there is nothing to do.
    fix: String,
}

/// The hints for a node, read now. Empty if the configuration does not allow Services to request forwarding.
pub(crate) struct Hints(Vec<Hint>);

impl Hints {
    pub(crate) fn read(config: &Config) -> Self {
        if !config.ipvs.may_ask_for.contains(MayAskFor::FORWARDING) {
            return Hints(Vec::new());
        }
        let families: Vec<Family> = config.families.iter().collect();
        let mut modules: Vec<&str> = Method::TUNNELS
            .into_iter()
            .flat_map(|method| families.iter().flat_map(move |family| method.modules(*family)))
            .copied()
            .collect();
        modules.sort_unstable();
        modules.dedup();
        let without = ["lo", config.names.device.as_str()];
        Hints(hints(&facts::read(Path::new("/"), &modules, &without), &families))
    }

    /// The hints as text for people.
    pub(crate) fn text(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut text = "direct return and tunnels, for Services that ask for them (proxier/forwarding):\n".to_owned();
        for Hint { methods, about, holds, what, fix } in &self.0 {
            let methods = if methods.len() == Method::ALL.len() { "all".to_owned() } else { names(methods).join(", ") };
            let fix = if fix.is_empty() { String::new() } else { format!(": {fix}") };
            let line = format!("  {methods:<14} {about:<17} {:<8} {what}{fix}", verdict(*holds));
            text.extend([line.as_str(), "\n"]);
        }
        text
    }

    /// The hints as JSON.
    pub(crate) fn json(&self) -> Value {
        let hint = |Hint { methods, about, holds, what, fix }: &Hint| json!({"methods": names(methods), "about": about, "verdict": verdict(*holds), "what": what, "fix": fix});
        json!(self.0.iter().map(hint).collect::<Vec<_>>())
    }
}

fn names(methods: &[Method]) -> Vec<&'static str> {
    methods.iter().map(|method| method.name()).collect()
}

fn verdict(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "depends",
    }
}

fn hints(facts: &Facts, families: &[Family]) -> Vec<Hint> {
    let mut hints = Vec::new();
    if families.contains(&Family::V4) {
        hints.push(of_answers(facts));
        hints.push(of_arp(facts));
    }
    for family in families {
        hints.extend(of_mtu(facts, *family));
    }
    for family in families {
        for method in Method::TUNNELS {
            hints.extend(method.modules(*family).iter().map(|module| of_module(facts, method, module)));
        }
    }
    merge(&mut hints);
    hints.extend(of_kernel(facts.release.as_ref()));
    hints
}

/// Merges equal hints of several methods into one.
fn merge(hints: &mut Vec<Hint>) {
    let mut merged: Vec<Hint> = Vec::new();
    for hint in hints.drain(..) {
        match merged.iter_mut().find(|other| other.about == hint.about && other.what == hint.what) {
            Some(other) => other.methods.extend(hint.methods),
            None => merged.push(hint),
        }
    }
    *hints = merged;
}

/// Most names in a list.
const NAMED: usize = 4;

/// `a, b, c and 3 more`.
fn some(all: &[&str]) -> String {
    let named = all.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!("{named} and {more} more"),
        _ => named,
    }
}

/// Endpoints on this node reply with the Service's address, which is this node's too. The kernel drops such a packet as
/// spoofed (net/ipv4/fib_frontend.c, `__fib_validate_source`), unless its input device accepts local sources. The
/// greater `rp_filter` of a device and of `all` counts; `accept_local` of either is enough.
fn of_answers(facts: &Facts) -> Hint {
    let methods = Method::ALL.to_vec();
    let about = "rp_filter".to_owned();
    let (mut accepting, mut dropping, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for (name, device) in facts.devices.iter().filter(|(_, device)| !device.is_uplink) {
        let both = |of: fn(&facts::Settings) -> Option<u8>| of(&device.settings).zip(of(&facts.all));
        let filter = both(|of| of.rp_filter).map(|(own, all)| own.max(all));
        let accepts = both(|of| of.accept_local).map(|(own, all)| own.max(all));
        match (filter, accepts) {
            (Some(0), Some(1..)) => accepting.push(name.as_str()),
            (Some(_), Some(_)) => dropping.push(name.as_str()),
            _ => unknown.push(name.as_str()),
        }
    }
    let fix = "for endpoints on this node that answer directly, set net.ipv4.conf.DEVICE.accept_local 1, and rp_filter 0 for \
               DEVICE and all; endpoints on other nodes do not need it here"
        .to_owned();
    if !dropping.is_empty() {
        let what = format!("answers that come in by {} are dropped", some(&dropping));
        return Hint { methods, about, holds: Some(false), what, fix };
    }
    if accepting.is_empty() {
        let what = match unknown.as_slice() {
            [] => "no device but the way out".to_owned(),
            unknown => format!("the settings of {} cannot be read", some(unknown)),
        };
        return Hint { methods, about, holds: None, what, fix };
    }
    let what = format!("answers of endpoints on this node pass, by {}", some(&accepting));
    Hint { methods, about, holds: Some(true), what, fix: String::new() }
}

/// Every node has the external address and would answer ARP for it; so would the endpoints' hosts, which have it too.
fn of_arp(facts: &Facts) -> Hint {
    let (ignore, announce) = (facts.all.arp_ignore, facts.all.arp_announce);
    let holds = ignore.zip(announce).map(|(ignore, announce)| ignore >= 1 && announce >= 2);
    let shown = |value: Option<u8>| value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    let what = format!("net.ipv4.conf.all: arp_ignore {}, arp_announce {}", shown(ignore), shown(announce));
    let fix = match holds {
        Some(true) => String::new(),
        _ => "on a link shared with clients or the router, any node or endpoint's host may answer ARP for external addresses, and \
              direct-route then reaches whoever was first: set ipvs.strictARP (arp_ignore 1, arp_announce 2), on endpoints' hosts too"
            .to_owned(),
    };
    Hint { methods: Method::ALL.to_vec(), about: "arp".to_owned(), holds, what, fix }
}

/// Full-size packets of clients do not fit once they are encapsulated, unless the path to endpoints carries larger
/// ones.
fn of_mtu(facts: &Facts, family: Family) -> Vec<Hint> {
    let uplinks: Vec<(&str, u32)> = facts
        .devices
        .iter()
        .filter(|(_, device)| device.is_uplink)
        .filter_map(|(name, device)| Some((name.as_str(), device.mtu?)))
        .collect();
    let hint = |method: Method| {
        let overhead = method.overhead(family);
        let (methods, about) = (vec![method], format!("mtu, {family}"));
        let Some((device, mtu)) = uplinks.iter().min_by_key(|(_, mtu)| *mtu) else {
            let what = format!("packets grow by {overhead} bytes; no device has a default route");
            return Hint { methods, about, holds: None, what, fix: String::new() };
        };
        let left = mtu.saturating_sub(overhead);
        let what = format!(
            "packets grow by {overhead} bytes; {device} has {mtu}: clients' packets of up to {left} bytes pass"
        );
        // Packets as large as Ethernet carries fit.
        let holds = if left >= ETHERNET { Some(true) } else { None };
        let fix = match holds {
            Some(true) => String::new(),
            _ => format!(
                "clients with larger ones have to get ICMP \"fragmentation needed\" from this node; or have endpoints ask for \
                 segments of {} bytes (route advmss), or the way to them carry {} bytes",
                // The headers of IP and TCP.
                left.saturating_sub(if family == Family::V4 { 40 } else { 60 }),
                ETHERNET.saturating_add(overhead)
            ),
        };
        Hint { methods, about, holds, what, fix }
    };
    Method::TUNNELS.into_iter().map(hint).collect()
}

const ETHERNET: u32 = 1500;

fn of_module(facts: &Facts, method: Method, name: &str) -> Hint {
    let (methods, about) = (vec![method], format!("module {name}"));
    let (holds, what, fix) = match facts.modules.get(name).copied().unwrap_or(Module::Unknown) {
        Module::There => (Some(true), "loaded or built in: endpoints on this node can unwrap packets", String::new()),
        Module::Loadable => (
            Some(false),
            "not loaded",
            format!("modprobe {name} before endpoints on this node have a tunnel device, which takes it"),
        ),
        Module::Missing => (
            Some(false),
            "not in this kernel",
            "endpoints that this method reaches have to be on nodes whose kernel has it".to_owned(),
        ),
        Module::Unknown => (None, "not known: the lists of modules cannot be read here", String::new()),
    };
    Hint { methods, about, holds, what: what.to_owned(), fix }
}

/// IPVS itself encapsulates packets, with GUE and GRE since Linux 5.3.
fn of_kernel(release: Option<&KernelRelease>) -> Option<Hint> {
    let release = release.filter(|release| !release.at_least(5, 3))?;
    Some(Hint {
        methods: vec![Method::Gre, Method::Gue],
        about: "kernel".to_owned(),
        holds: Some(false),
        what: format!("Linux {} wraps in IPIP only", release.as_str()),
        fix: "use ipip, or Linux 5.3".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::facts::{Device, Settings};
    use super::*;

    fn settings(rp_filter: u8, accept_local: u8) -> Settings {
        Settings { rp_filter: Some(rp_filter), accept_local: Some(accept_local), ..Settings::default() }
    }

    /// A node with an uplink and pods.
    fn node() -> Facts {
        let eth0 = Device { settings: settings(1, 0), mtu: Some(1500), is_uplink: true };
        let pod = Device { settings: settings(0, 1), mtu: Some(1450), is_uplink: false };
        Facts {
            all: Settings { arp_ignore: Some(1), arp_announce: Some(2), ..settings(0, 0) },
            devices: [("eth0".to_owned(), eth0), ("veth1".to_owned(), pod)].into(),
            modules: [("ipip", Module::There), ("ip_gre", Module::Loadable), ("fou", Module::Missing)].into(),
            release: KernelRelease::parse(b"6.1.0-18-amd64\n").ok(),
        }
    }

    fn about<'a>(hints: &'a [Hint], about: &str) -> Vec<&'a Hint> {
        hints.iter().filter(|hint| hint.about.starts_with(about)).collect()
    }

    #[test]
    fn answers_of_local_endpoints_need_two_device_settings() {
        let holds = |facts: &Facts| about(&hints(facts, &[Family::V4]), "rp_filter")[0].holds;
        let mut facts = node();
        assert_eq!(holds(&facts), Some(true), "the way out does not count");
        facts.all.rp_filter = Some(2);
        assert_eq!(holds(&facts), Some(false), "the greater one counts");
        facts.all.rp_filter = Some(0);
        facts.devices.get_mut("veth1").unwrap().settings.accept_local = Some(0);
        assert_eq!(holds(&facts), Some(false));
        facts.all.accept_local = Some(1);
        assert_eq!(holds(&facts), Some(true), "either is enough");
        facts.all.accept_local = None;
        assert_eq!(holds(&facts), None);
        facts.devices.remove("veth1");
        assert_eq!(holds(&facts), None, "no endpoint is here yet");
        for number in 1..=6 {
            facts.devices.insert(format!("veth{number}"), Device { settings: settings(1, 0), ..Device::default() });
        }
        facts.all.accept_local = Some(0);
        let hints = hints(&facts, &[Family::V4]);
        assert!(about(&hints, "rp_filter")[0].what.contains("veth1, veth2, veth3, veth4 and 2 more"), "{hints:?}");
    }

    #[test]
    fn arp_has_to_be_strict() {
        let holds = |ignore, announce| {
            let mut facts = node();
            (facts.all.arp_ignore, facts.all.arp_announce) = (ignore, announce);
            about(&hints(&facts, &[Family::V4]), "arp")[0].holds
        };
        assert_eq!(holds(Some(1), Some(2)), Some(true));
        assert_eq!(holds(Some(0), Some(2)), Some(false));
        assert_eq!(holds(Some(2), Some(1)), Some(false));
        assert_eq!(holds(None, Some(2)), None);
        assert!(about(&hints(&node(), &[Family::V6]), "arp").is_empty(), "IPv6 has no ARP");
    }

    #[test]
    fn tunnels_make_packets_larger() {
        let of = |mtu, family| -> Vec<(Vec<&str>, Option<bool>, String)> {
            let mut facts = node();
            facts.devices.get_mut("eth0").unwrap().mtu = Some(mtu);
            let hints = hints(&facts, &[family]);
            about(&hints, "mtu").iter().map(|hint| (names(&hint.methods), hint.holds, hint.what.clone())).collect()
        };
        let what = |bytes, left| {
            format!("packets grow by {bytes} bytes; eth0 has 1500: clients' packets of up to {left} bytes pass")
        };
        let expected = [("ipip", 20, 1480), ("gre", 24, 1476), ("gue", 32, 1468)];
        let expected = expected.map(|(method, bytes, left)| (vec![method], None, what(bytes, left)));
        assert_eq!(of(1500, Family::V4), expected);
        let holds = |mtu, family| of(mtu, family).iter().map(|(_, holds, _)| *holds).collect::<Vec<_>>();
        assert_eq!(holds(1524, Family::V4), [Some(true), Some(true), None]);
        assert_eq!(holds(1552, Family::V6), [Some(true); 3]);
        assert_eq!(holds(1551, Family::V6), [Some(true), Some(true), None]);
        let mut facts = node();
        facts.devices.clear();
        assert!(about(&hints(&facts, &[Family::V4]), "mtu").iter().all(|hint| hint.holds.is_none()));
    }

    #[test]
    fn tunnels_need_modules_that_unwrap_packets() {
        let of = |facts: &Facts| -> Vec<(String, Vec<&str>, Option<bool>)> {
            let hints = hints(facts, &[Family::V4]);
            about(&hints, "module").iter().map(|hint| (hint.about.clone(), names(&hint.methods), hint.holds)).collect()
        };
        let expected = [
            ("module ipip".to_owned(), vec!["ipip", "gue"], Some(true)),
            ("module ip_gre".to_owned(), vec!["gre"], Some(false)),
            ("module fou".to_owned(), vec!["gue"], Some(false)),
        ];
        assert_eq!(of(&node()), expected);
        let v6 = hints(&node(), &[Family::V6]);
        let v6: Vec<&str> = about(&v6, "module").iter().map(|hint| hint.about.as_str()).collect();
        assert_eq!(v6, ["module ip6_tunnel", "module ip6_gre", "module fou6"]);
    }

    #[test]
    fn old_kernels_wrap_in_ipip_only() {
        let of = |release: &[u8]| {
            let mut facts = node();
            facts.release = KernelRelease::parse(release).ok();
            about(&hints(&facts, &[Family::V4]), "kernel").iter().map(|hint| names(&hint.methods)).collect::<Vec<_>>()
        };
        assert_eq!(of(b"5.2.9\n"), [vec!["gre", "gue"]]);
        assert!(of(b"5.3.0\n").is_empty() && of(b"").is_empty());
    }

    #[test]
    fn text_and_json_agree() {
        let hints = Hints(hints(&node(), &[Family::V4, Family::V6]));
        let (text, json) = (hints.text(), hints.json());
        assert!(text.contains("\n  all            rp_filter         yes      answers of endpoints"), "{text}");
        assert!(text.contains("\n  gre            module ip_gre     no       not loaded: modprobe ip_gre"), "{text}");
        let first = &json[0];
        assert_eq!(first["methods"], json!(["direct-route", "ipip", "gre", "gue"]));
        assert_eq!((&first["about"], &first["verdict"]), (&json!("rp_filter"), &json!("yes")));
        assert_eq!(json.as_array().unwrap().len(), hints.0.len());
        let mut config = Config::default();
        config.ipvs.may_ask_for = MayAskFor::empty();
        assert!(Hints::read(&config).text().is_empty());
    }
}
