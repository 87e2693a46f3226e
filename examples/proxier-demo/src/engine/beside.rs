//! Finds objects of other programs and modes in this kernel that affect packets of Services: for `probe`, `plan`,
//! `trace`, the log and the metric.

use std::net::IpAddr;

use proxier_core::config::LocalTraffic;
use proxier_core::modes::Kind;
use proxier_core::modes::cleanup::leftovers;
use proxier_core::modes::forward::dropping_forward;
use proxier_core::net::{Family, Network};
use proxier_core::ports::{PortErrorKind, Ports};
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::HostAddresses;

/// What a mode leaves, or will remove, of other modes and a kube-proxy, each with what to do. `None`: no mode can
/// serve. Followed by [`obstacles`].
pub(crate) fn beside(mode: Option<Kind>, facts: &NodeFacts, ports: &mut Ports<'_>) -> Vec<String> {
    let mut all = leftovers(facts.config(), mode, ports);
    all.extend(mode.into_iter().flat_map(|mode| obstacles(mode, facts, ports)));
    all
}

/// What blocks packets to endpoints, or their replies to clients, in this mode, each with what to do.
pub(crate) fn obstacles(mode: Kind, facts: &NodeFacts, ports: &mut Ports<'_>) -> Vec<String> {
    let host = ports.links.addresses().unwrap_or_default();
    let dropping = dropping_forward(mode, facts.config(), &host, ports);
    let mut all: Vec<String> = dropping.into_iter().map(|dropping| dropping.note).collect();
    if !mode.facts().is_process {
        all.extend(bridged(facts, &host, ports));
    }
    all
}

/// Bridges whose pods get no reply from endpoints on the same bridge, because the bridge forwards it past all rules.
fn bridged(facts: &NodeFacts, host: &HostAddresses, ports: &mut Ports<'_>) -> Vec<String> {
    let mut all = Vec::new();
    for (family, setting) in [(Family::V4, "bridge-nf-call-iptables"), (Family::V6, "bridge-nf-call-ip6tables")] {
        let is_theirs = |name: &str, address: &IpAddr| {
            // Each bridge has one.
            let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
            Family::of(*address) == family && !is_link_local && is_of_pods(facts, *address, name)
        };
        let mut has_pods = |(name, addresses): &(&String, &Vec<IpAddr>)| {
            addresses.iter().any(|address| is_theirs(name, address)) && ports.links.is_bridge(name)
        };
        let Some((bridge, _)) = host.interfaces.iter().find(&mut has_pods) else { continue };
        let now = match ports.sysctls.get(&format!("net/bridge/{setting}")) {
            Ok(value) if value == "0" => "is 0".to_owned(),
            Err(error) if error.kind() == PortErrorKind::NotFound => {
                "is missing without module br_netfilter".to_owned()
            }
            _ => continue,
        };
        all.push(format!(
            "net.bridge.{setting} {now}: a pod on bridge {bridge} gets no answer from a Service whose endpoint is on the same bridge; load \
             br_netfilter and set it to 1"
        ));
    }
    all
}

/// Whether an address of a bridge is in a pod network; if none is known, whether the bridge is not one of Docker or
/// libvirt.
fn is_of_pods(facts: &NodeFacts, address: IpAddr, bridge: &str) -> bool {
    let family = Family::of(address);
    let clusters = match &facts.config().local_traffic {
        LocalTraffic::ClusterCidrs(networks) => networks.clone(),
        _ => Vec::new(),
    };
    let networks: Vec<Network> = clusters.into_iter().chain(facts.pod_cidr(family)).collect();
    let mut of_family = networks.iter().filter(|network| Family::of(network.addr()) == family).peekable();
    if of_family.peek().is_none() {
        return !["docker", "br-", "virbr", "podman"].iter().any(|other| bridge.starts_with(other));
    }
    of_family.any(|network| network.contains(&address))
}
