//! Fate of every flow of the corpus (see `oracle/README.md`) in IPVS mode, by the virtual servers, sets and rules that the mode has written to a
//! kernel in memory: with rules of iptables and ipsets, with a table of nf_tables, and by a trace. All three agree. `kernel_flows` sends some of
//! these flows as packets through real kernels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use proxier_core::config::{Binding, RulesBy};
use proxier_core::fake::{FakeKernel, KernelState};
use proxier_core::modes::{Kind, iptables, trace};
use proxier_core::net::{FrontendKey, Protocol};
use proxier_core::reconciler::{Options, Reconciler};
use proxier_core::service::{Packet as Traced, Verdict};
use testkit::witness::Transport;

use crate::flows::objects::{Objects, objects};
use crate::flows::{Flow, Scenario, scenarios};
use crate::packets::iptables::Iptables;
use crate::packets::nft::Nft;
use crate::packets::{Fate, Guards, Node, Packet};

/// A process that has served this scenario on a kernel in memory.
fn serve(scenario: &Scenario, rules: RulesBy, binding: Binding) -> (Reconciler, KernelState) {
    let Objects { mut config, services, slices, node, host, .. } = objects(scenario);
    (config.ipvs.rules, config.ipvs.binding) = (rules, binding);
    let kernel = FakeKernel::new();
    for (interface, addresses) in &host.interfaces {
        kernel.set_interface(interface, addresses);
    }
    let now = Duration::ZERO;
    let mut options = Options::default();
    options.config = config;
    options.mode = Kind::Ipvs;
    let mut proxier = Reconciler::new(&node.metadata.name, options, now);
    proxier.set_node(&node, now);
    proxier.replace_objects(&services, &slices, now);
    proxier.start(now);
    let report = proxier.pass(&|| now, &mut kernel.clone().ports()).unwrap();
    assert!(report.is_done(), "{}: {report:#?}", scenario.name());
    (proxier, kernel.state())
}

fn protocol(flow: &Flow) -> Protocol {
    match flow.protocol {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
        Transport::Sctp => Protocol::Sctp,
    }
}

/// Fate of a flow by a trace.
fn traced(proxier: &Reconciler, flow: &Flow) -> (Fate, Vec<String>) {
    let to = FrontendKey::new(protocol(flow), flow.to.ip(), flow.to.port());
    let packet = if flow.is_nodes() { Traced::from_node(flow.source, to) } else { Traced::new(flow.source, to) };
    let known = (proxier.desired(), proxier.facts());
    let traced = trace::trace(Kind::Ipvs, proxier.store(), known, &packet, iptables::Options::default());
    let fate = match traced.verdict {
        Verdict::LeftAlone => Fate::LeftAlone,
        Verdict::Dropped => Fate::Dropped,
        Verdict::Rejected => Fate::Rejected,
        Verdict::Endpoints(reached) => {
            let place = |one: proxier_core::service::Reached| {
                (SocketAddr::new(one.endpoint.address, one.endpoint.port), one.masqueraded)
            };
            Fate::Endpoints(reached.into_iter().map(place).collect())
        }
        other => panic!("{other:?}"),
    };
    (fate, traced.steps)
}

/// Checks every flow, with addresses bound in this way; returns the number of flows by fate.
fn hold(binding: Binding, takes: impl Fn(usize) -> bool) -> BTreeMap<&'static str, usize> {
    let (mut count, mut differ, mut report) = (BTreeMap::new(), 0, String::new());
    for scenario in scenarios(takes) {
        let (proxier, programs) = serve(&scenario, RulesBy::Iptables, binding);
        let (_, table) = serve(&scenario, RulesBy::Nftables, binding);
        assert_eq!(
            (&programs.ipvs, &programs.devices, &programs.routes, &programs.sysctls),
            (&table.ipvs, &table.devices, &table.routes, &table.sysctls),
            "{}",
            scenario.name()
        );
        let (by_programs, by_table) = (Iptables::new(&programs, scenario.family), Nft::new(&table, scenario.family));
        let node = Node::new(&programs);
        for flow in &scenario.flows {
            let packet = Packet::new(&protocol(flow).to_string().to_lowercase(), flow.source, flow.to, flow.is_nodes());
            let of = |guards: &dyn Guards| node.fate(guards, &packet);
            let (old, new) = (of(&by_programs), of(&by_table));
            let (said, steps) = traced(&proxier, flow);
            let word = match &said {
                Fate::LeftAlone => "left alone",
                Fate::Dropped => "dropped",
                Fate::Rejected => "rejected",
                Fate::Endpoints(reached) if reached.values().all(|masqueraded| *masqueraded) => "masqueraded",
                Fate::Endpoints(reached) if reached.values().all(|masqueraded| !masqueraded) => "served",
                Fate::Endpoints(_) => "masqueraded in part",
            };
            *count.entry(word).or_default() += 1;
            // IPVS comes before the rules of iptables, and refuses where it has no endpoint.
            let refused = flow.is_nodes() && said == Fate::Dropped && old == Fate::Rejected && node.is_empty(&packet);
            if (old != said && !refused) || new != said {
                differ += 1;
                if differ <= 20 {
                    let name = scenario.name();
                    writeln!(
                        report,
                        "{name}: {flow}\n iptables {old:?}\n nftables {new:?}\n trace    {said:?}\n{steps:#?}"
                    )
                    .unwrap();
                }
            }
        }
    }
    assert!(differ == 0, "{differ} flows differ:\n{report}");
    count
}

#[test]
fn rules_of_both_kinds_do_what_a_trace_says() {
    let count = hold(Binding::Addresses, |_| true);
    assert_eq!(count.values().sum::<usize>(), 22_748, "{count:?}");
    assert!(count.len() == 6 && count.values().all(|count| *count > 50), "{count:?}");
}

/// Programs of this node connect with its own address where routes bind.
#[test]
fn they_do_with_routes_too() {
    let count = hold(Binding::Routes, |number| number.is_multiple_of(3));
    assert!(count.values().sum::<usize>() > 7_000, "{count:?}");
}
