//! List of the differences from kube-proxy that are meant. Tests hold to it, and the table of `docs/differences.md` is made of it.

use std::fmt::Write as _;
use std::path::Path;

/// A mode of this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Ipvs,
    Nftables,
    Iptables,
    Userspace,
}

/// A mode of a release of kube-proxy, to which a mode is held: by its flows or, with IPVS mode, by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reference {
    Iptables28,
    Iptables36,
    Nftables36,
    Ipvs28,
    Ipvs36,
}

/// A difference.
pub(crate) struct Named {
    /// The behaviour here. This is its name in tests.
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
    /// References against which it shows in scenarios: it has to show against each of them.
    pub(crate) shows: &'static [(Mode, Reference)],
    /// The modes, and the file and name of the test or scenario, for a difference that shows against no reference.
    pub(crate) tested: Option<(&'static [Mode], &'static str, &'static str)>,
}

use Mode::{Iptables, Ipvs, Nftables, Userspace};
use Reference::{Iptables28, Iptables36, Ipvs28, Ipvs36, Nftables36};

const ALL: &[Mode] = &[Ipvs, Nftables, Iptables, Userspace];

const fn shown(what: &'static str, why: &'static str, shows: &'static [(Mode, Reference)]) -> Named {
    Named { what, why, shows, tested: None }
}

const fn tested(
    what: &'static str,
    why: &'static str,
    modes: &'static [Mode],
    file: &'static str,
    test: &'static str,
) -> Named {
    Named { what, why, shows: &[], tested: Some((modes, file, test)) }
}

pub(crate) const DIFFERENCES: &[Named] = &[
    // Node ports.
    shown(
        "node ports are served on all addresses of the node where nodePortAddresses is unset",
        "as in all other modes; kube-proxy's nftables mode serves the primary ones, which [primary] gives here",
        &[(Nftables, Nftables36)],
    ),
    tested(
        "with primary, a family without a node address gets no node ports",
        "an explicit list of addresses is exclusive; kube-proxy serves all of that family",
        ALL,
        "plain/services.rs",
        "primary_in_a_family_without_an_address_serves_none",
    ),
    shown(
        "node ports are not served on loopback addresses unless nodePortAddresses names them",
        "they need route_localnet, which opens programs on 127.0.0.1 to the network; IPVS serves none there, as in kube-proxy",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36), (Nftables, Iptables28), (Userspace, Iptables28)],
    ),
    shown(
        "node ports of TCP are served, and others refused, on loopback addresses that nodePortAddresses names",
        "as by kube-proxy from 1.38 (KEP-6032): this process listens there; kube-proxy's nftables mode of 1.36 serves none there",
        &[(Nftables, Nftables36)],
    ),
    shown(
        "node ports without endpoints are left alone on addresses that serve no node ports",
        "only the addresses of nodePortAddresses belong to this proxy",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36), (Nftables, Iptables28)],
    ),
    shown(
        "the node gets another port of its own to node ports at addresses that serve none",
        "the sets of node ports hold ports without addresses, as kube-proxy's",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36)],
    ),
    tested(
        "pods of other nodes are clients outside at the node's own addresses under policy Local",
        "an endpoint on a third node would answer them past this one, so with kube-proxy the connection fails later",
        &[Nftables, Userspace],
        "kernel_traffic/nftables.rs",
        "pods_of_other_nodes_are_clients_outside_in_each_mode",
    ),
    // Without endpoints.
    tested(
        "an EndpointSlice that loses the label with its Service's name has no endpoints",
        "it belongs to no Service any more; kube-proxy ignores the change and keeps its endpoints",
        ALL,
        "scenarios/endpoint-slices/changes-its-service.yaml",
        "A slice is relabelled to another Service",
    ),
    shown(
        "the node itself is told that there is no endpoint",
        "kube-proxy's iptables mode lets such packets leave the node, and the connection waits",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36), (Nftables, Iptables28)],
    ),
    tested(
        "TCP clients of a Service without endpoints get a reset",
        "the kernel limits how much ICMP each client gets (icmp_ratelimit), and further ones would wait; iptables.rejectWithReset for iptables mode",
        &[Nftables],
        "kernel_traffic/nftables.rs",
        "many_clients_of_a_service_without_endpoints_are_refused_at_once",
    ),
    shown(
        "a load balancer without endpoints rejects all clients, also outside its source ranges",
        "as in iptables mode; a client that may not connect learns nothing more than others",
        &[(Nftables, Nftables36)],
    ),
    shown(
        "internal policy Local without local endpoints rejects",
        "IPVS rejects what has no real server",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36)],
    ),
    shown(
        "internal policy Local without local endpoints has no endpoint, also where the Service is reachable from outside",
        "that is the policy; kube-proxy's IPVS mode then uses all endpoints",
        &[(Ipvs, Ipvs36)],
    ),
    shown(
        "external policy Local without local endpoints falls back to all",
        "as kube-proxy's IPVS mode, whose takeover changes nothing",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36)],
    ),
    shown(
        "external policy Local gives pods and the node what others get, with their source",
        "a virtual server has one list of real servers; ipvs.markSplit gives two",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36)],
    ),
    shown(
        "a port of a cluster IP that no Service has is refused",
        "the address is local, and only its Services' ports are open, as with kube-proxy's IPVS and nftables modes",
        &[(Ipvs, Iptables36)],
    ),
    // Source ranges.
    shown(
        "source ranges apply before missing endpoints",
        "rules come before the virtual server, as with kube-proxy's IPVS mode",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36)],
    ),
    shown(
        "source ranges do not apply to the node's own address",
        "as with kube-proxy's IPVS mode",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36)],
    ),
    tested(
        "a Service whose source ranges are all invalid accepts nobody",
        "a typing error must not open it to everybody",
        ALL,
        "scenarios/source-ranges/unreadable.yaml",
        "Source ranges of which one, or all, cannot be read",
    ),
    // Sources.
    shown(
        "an endpoint on another node that reaches itself here is not masqueraded",
        "its answers do not come back here; kube-proxy's nftables mode does the same",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36), (Nftables, Iptables28)],
    ),
    shown("endpoints see the node's address", "connections end in this process", &[(Userspace, Iptables28)]),
    // Choice of endpoints.
    shown("sh and mh send one source to one endpoint", "that is what the scheduler is for", &[(Ipvs, Iptables28)]),
    shown(
        "endpoints are used in rotation, in step with the clients of this test",
        "a round-robin scheduler, and clients in the same order again and again",
        &[(Ipvs, Iptables28), (Ipvs, Iptables36), (Userspace, Iptables28)],
    ),
    // Limits of userspace mode.
    shown(
        "SCTP is not served",
        "connections end in this process, and SCTP's have several addresses",
        &[(Userspace, Iptables28)],
    ),
    shown(
        "refused by the node's own stack",
        "nobody listens there: the kernel answers as it does for itself",
        &[(Userspace, Iptables28)],
    ),
    shown(
        "refused by the node's own stack, or reset, where the reference drops",
        "a connection is accepted before this process knows the client",
        &[(Userspace, Iptables28)],
    ),
    shown(
        "an address that is local here, and forwarded in the reference",
        "this process has to listen on it",
        &[(Userspace, Iptables28)],
    ),
    // State of IPVS mode.
    shown(
        "mh has mh-fallback besides mh-port",
        "without it new connections are lost while a real server drains",
        &[(Ipvs, Ipvs28)],
    ),
    shown(
        "a health-check port is open only in families with addresses for node ports, regardless of the Service's ports",
        "it is served on these addresses only",
        &[(Ipvs, Ipvs28)],
    ),
    shown(
        "external IPs of Services with policy Local are not rejected",
        "repaired in kube-proxy 1.30",
        &[(Ipvs, Ipvs28)],
    ),
    shown(
        "this node's own traffic does not bypass source ranges",
        "KUBE-IPVS-OUT-FILTER, in kube-proxy from 1.29",
        &[(Ipvs, Ipvs28)],
    ),
    // Connection tracking.
    tested(
        "UDP flows to a Service whose last serving endpoint is gone are ended",
        "no endpoint answers them; the next packet is refused at once or forwarded to another endpoint. kube-proxy leaves them",
        &[Ipvs, Nftables, Iptables],
        "plain/mode_switch.rs",
        "udp_flows_stay_with_an_endpoint_that_serves",
    ),
    tested(
        "UDP flows stay with an endpoint that is ready but does not serve (publishNotReadyAddresses)",
        "it gets new flows, too; kube-proxy ends its flows again and again, whenever any UDP endpoint changes",
        &[Ipvs, Nftables, Iptables],
        "plain/udp.rs",
        "flows_stay_with_an_endpoint_that_gets_new_ones",
    ),
    tested(
        "UDP flows to the number of a node port are ended only at addresses that serve node ports",
        "kube-proxy ends those at every address, other programs' included",
        &[Ipvs, Nftables, Iptables],
        "plain/mode_switch.rs",
        "udp_flows_stay_with_an_endpoint_that_serves",
    ),
    tested(
        "UDP flows stay with a real server while its endpoint serves; if it is no longer selected, it has weight 0 until they end",
        "as kube-proxy's other modes do from 1.32; its IPVS mode deletes the real server, which ends its flows",
        &[Ipvs],
        "plain/mode_switch.rs",
        "udp_flows_stay_with_an_endpoint_that_serves",
    ),
    tested(
        "packets that connection tracking finds invalid are not forwarded, unless it is liberal",
        "as in kube-proxy's iptables mode: an answer that is not translated resets the connection; its nftables mode forwards them",
        &[Nftables],
        "kernel_traffic/invalid.rs",
        "nftables_mode_drops_invalid_packets",
    ),
    // Addresses that no Service has.
    tested(
        "addresses in the networks of cluster IPs that no Service has are left alone",
        "another program may route them; kube-proxy's nftables mode drops packets to them",
        &[Nftables],
        "kernel_traffic/nftables.rs",
        "node_ports_empty_balancers_and_addresses_of_nobody",
    ),
];

/// The difference of this name.
///
/// # Panics
/// The list has none of this name.
pub(crate) fn named(what: &str) -> &'static Named {
    DIFFERENCES
        .iter()
        .find(|named| named.what == what)
        .unwrap_or_else(|| panic!("{what}: not in the list of differences"))
}

/// Checks the differences that a run has shown against the list: each has to be there; and, if the run was of everything, each of the list has to
/// show.
///
/// # Panics
/// The run and the list disagree.
pub(crate) fn check<'a>(mode: Mode, reference: Reference, shown: impl IntoIterator<Item = &'a str>, is_all: bool) {
    let shown: Vec<&str> = shown.into_iter().collect();
    let of_this = |named: &Named| named.shows.contains(&(mode, reference));
    let unlisted: Vec<&str> = shown.iter().copied().filter(|what| !of_this(named(what))).collect();
    assert!(unlisted.is_empty(), "{mode:?} against {reference:?}: not in the list of differences: {unlisted:#?}");
    let listed = DIFFERENCES.iter().filter(|named| of_this(named)).map(|named| named.what);
    let stale: Vec<&str> = listed.filter(|what| !shown.contains(what)).collect();
    assert!(!is_all || stale.is_empty(), "{mode:?} against {reference:?}: no scenario shows any more: {stale:#?}");
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Ipvs => "IPVS",
        Nftables => "nftables",
        Iptables => "iptables",
        Userspace => "userspace",
    }
}

fn reference_name(reference: Reference) -> &'static str {
    match reference {
        Iptables28 => "iptables, 1.28",
        Iptables36 => "iptables, 1.36",
        Nftables36 => "nftables, 1.36",
        Ipvs28 => "IPVS, 1.28",
        Ipvs36 => "IPVS, 1.36",
    }
}

fn list<T: Copy + Ord>(items: impl Iterator<Item = T>, name: fn(T) -> &'static str, between: &str) -> String {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items.into_iter().map(name).collect::<Vec<_>>().join(between)
}

/// The table of the documentation.
pub(crate) fn table() -> String {
    let mut text = "| here | mode | unlike kube-proxy's | why |\n| --- | --- | --- | --- |\n".to_owned();
    for Named { what, why, shows, tested } in DIFFERENCES {
        let in_tests = tested.iter().flat_map(|(modes, ..)| modes.iter().copied());
        let modes = list(shows.iter().map(|(mode, _)| *mode).chain(in_tests), mode_name, ", ");
        let references = list(shows.iter().map(|(_, reference)| *reference), reference_name, "; ");
        let references = if references.is_empty() { "1.36" } else { &references };
        writeln!(text, "| {what} | {modes} | {references} | {why} |").unwrap();
    }
    text
}

/// Whether a file has this test, or is this scenario.
pub(crate) fn has_test(file: &str, test: &str) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let begins =
        if file.starts_with("scenarios/") { format!("title: {test}\n") } else { format!("#[test]\nfn {test}()") };
    std::fs::read_to_string(path).is_ok_and(|text| text.contains(&begins))
}
