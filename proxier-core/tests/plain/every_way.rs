//! After any events, in any mode and with either writer of rules, a node ends like one that has just started with the same objects. Then it has nothing
//! to do, the next process writes nothing, and a cleanup leaves what others have. Objects come from the oracle corpus, where the same names mean other
//! things in each scenario, and several Services claim the same addresses.

use std::collections::BTreeSet;
use std::time::Duration;

use iptables::fake::FakeHost;
use iptables::{Backend, Family as Side};
use ipvs::Operation;
use proptest::prelude::*;
use proptest::sample::select;
use proxier_core::config::{Binding, RulesBy};
use proxier_core::engine::Options;
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::Kind;
use proxier_core::modes::cleanup::cleanup;
use proxier_core::net::Family;
use proxier_core::ports::PortErrorKind;
use serde_json::json;

use crate::mode_switch::with_strangers;
use crate::nftables_mode::meaning;
use crate::node::{Node, delete_table, held, options_of, writes};
use crate::universe;

/// A mode with settings that give it other objects in the kernel.
#[derive(Clone, Copy, Debug)]
struct Way {
    kind: Kind,
    binding: Binding,
    rules: RulesBy,
    backend: Backend,
}

const PLAIN: Way =
    Way { kind: Kind::Ipvs, binding: Binding::Addresses, rules: RulesBy::Iptables, backend: Backend::NfTables };
const WAYS: [Way; 6] = [
    PLAIN,
    Way { binding: Binding::Routes, rules: RulesBy::Nftables, ..PLAIN },
    Way { kind: Kind::Nftables, ..PLAIN },
    Way { kind: Kind::Iptables, ..PLAIN },
    Way { kind: Kind::Iptables, backend: Backend::Legacy, ..PLAIN },
    Way { kind: Kind::Userspace, ..PLAIN },
];

impl Way {
    fn kernel(self) -> FakeKernel {
        let kernel = FakeKernel::with_iptables(move || FakeHost::new().with_default(self.backend));
        kernel.set_interface("eth0", &["192.168.0.10".parse().unwrap(), "2001:db8:1::10".parse().unwrap()]);
        if self.kind != Kind::Iptables {
            with_strangers(&kernel);
        }
        kernel
    }

    fn options(self) -> Options {
        let mut options = options_of(self.kind);
        options.config.ipvs.binding = self.binding;
        options.config.ipvs.rules = self.rules;
        options.mass_removal.share = 1.0;
        options
    }

    /// A new process that knows these objects.
    fn process(self, kernel: &FakeKernel, past: &[universe::Event]) -> Node {
        let mut node = Node { backend: self.backend, ..Node::begin(kernel, self.options()) };
        let addresses = ["192.168.0.10", "2001:db8:1::10"].map(|of| json!({"type": "InternalIP", "address": of}));
        let labels = json!({"topology.kubernetes.io/zone": "zone-a"});
        let object = json!({"metadata": {"name": "node-a", "labels": labels}, "status": {"addresses": addresses}});
        node.proxier.set_node(&serde_json::from_value(object).unwrap(), node.now);
        for event in past {
            node.happens(event);
        }
        node.started()
    }

    /// A node that serves three Services.
    fn serving(self) -> Node {
        let mut node = self.process(&self.kernel(), &[]);
        node.serve_many(3, &["10.244.0.1", "10.244.0.2"]);
        node.settles();
        node
    }

    /// Calls by which the mode writes what it serves by.
    fn calls(self) -> &'static [Call] {
        match self.kind {
            Kind::Ipvs => &[Call::IpvsRun, Call::RulesRestore, Call::IpvsSnapshot, Call::LinksAddresses],
            Kind::Nftables => &[Call::TablesCommit, Call::TablesRead],
            Kind::Iptables => &[Call::RulesRestore, Call::RulesDump],
            Kind::Userspace => &[Call::RelaysServe, Call::RoutesAdd, Call::RoutesNetworks],
        }
    }

    /// Another program takes away what the mode serves by. What shows that virtual servers are own stays.
    fn flush(self, kernel: &FakeKernel) {
        match self.kind {
            Kind::Ipvs => {
                let theirs = "TCP 192.0.2.10:7777".parse().unwrap();
                let all = kernel.ipvs().snapshot().unwrap().entries.into_iter();
                for key in all.map(|of| of.virtual_server.server.key).filter(|key| *key != theirs) {
                    kernel.ipvs().apply(&Operation::DeleteVirtualServer(key)).unwrap();
                }
            }
            Kind::Nftables => {
                for name in ["ip proxier", "ip6 proxier"] {
                    if kernel.state().tables.contains_key(name) {
                        delete_table(kernel, name);
                    }
                }
            }
            Kind::Iptables => {
                kernel.with_host(|host| host.flush(Side::Ipv4, self.backend));
                // A listing is reused for seconds of real time, unless something is written; these steps take less.
                let _may_fail = kernel.clone().ports().rules.restore(Family::V4, &iptables::Transaction::new());
            }
            Kind::Userspace => {
                let routes = kernel.state().routes;
                for (owner, route) in &routes {
                    kernel.set_route(*owner, route.network, false);
                }
            }
        }
    }
}

/// What the kernel holds, for any order and any numbers that mean the same.
pub(crate) fn state(kernel: &FakeKernel) -> BTreeSet<String> {
    let mut lines = held(kernel);
    lines.retain(|line| !line.starts_with("ip proxier:") && !line.starts_with("ip6 proxier:"));
    let mut tables = kernel.state().tables;
    tables.retain(|name, _| name.ends_with(" proxier"));
    lines.extend(meaning(&tables));
    lines.extend(kernel.listeners().values().map(|of| format!("{of:?}")));
    lines
}

#[derive(Clone, Debug)]
enum Event {
    Object(universe::Event),
    Pass,
    Full,
    /// Another process takes over.
    Restart,
    /// A call fails, before or after it took effect.
    Fault(usize, PortErrorKind, bool),
    /// The process dies after this many writes.
    Crash(u8),
    /// The kernel lacks a match, without which Services with affinity are refused in iptables mode, or has it again.
    Match(bool),
    Flush,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let kind = prop_oneof![Just(PortErrorKind::Unknown), Just(PortErrorKind::Busy), Just(PortErrorKind::NotFound)];
    let event = prop_oneof![
        20 => universe::event().prop_map(Event::Object),
        6 => Just(Event::Pass),
        1 => Just(Event::Full),
        1 => Just(Event::Restart),
        2 => (any::<usize>(), kind, any::<bool>()).prop_map(|(which, kind, done)| Event::Fault(which, kind, done)),
        1 => (0..40_u8).prop_map(Event::Crash),
        1 => any::<bool>().prop_map(Event::Match),
        1 => Just(Event::Flush),
    ];
    proptest::collection::vec(event, 1..60)
}

fn run(way: Way, events: &[Event]) {
    let kernel = way.kernel();
    let strangers = held(&kernel);
    let mut past = Vec::new();
    let mut node = way.process(&kernel, &past);
    // Whether rules were flushed, and no pass has read them since; whether the process is going to die.
    let (mut is_disturbed, mut is_dying) = (false, false);
    for event in events {
        match event {
            Event::Object(event) => {
                node.happens(event);
                past.push(event.clone());
            }
            Event::Pass | Event::Full => {
                let is_full = matches!(event, Event::Full);
                let report = if is_full { node.full() } else { node.pass() };
                is_disturbed &= !(report.full && report.is_done());
                if way.kind == Kind::Iptables && report.is_done() && !is_disturbed {
                    node.counts_are_true(&report);
                }
            }
            Event::Restart => (node, is_dying) = (way.process(&kernel, &past), false),
            Event::Fault(which, kind, takes_effect) => {
                let calls = way.calls();
                let call = calls[which % calls.len()];
                // Rules of IPVS mode that are refused may name a match that the kernel lacks: this process goes on without. And no
                // kernel says that a virtual server is not there which is: it would count as deleted, and as foreign afterwards.
                let misleads = way.kind == Kind::Ipvs && matches!(call, Call::RulesRestore | Call::IpvsRun);
                let kind = if misleads && *kind == PortErrorKind::NotFound { PortErrorKind::Busy } else { *kind };
                let fault = Fault::new(call, kind);
                let lies = *takes_effect && kind == PortErrorKind::Unknown;
                kernel.fail(if lies { fault.takes_effect() } else { fault });
            }
            Event::Crash(writes) => {
                is_dying = true;
                kernel.crash_after((*writes).into());
            }
            Event::Match(is_there) => kernel.with_host(|host| host.set_match("recent", *is_there)),
            Event::Flush => {
                is_disturbed = true;
                way.flush(&kernel);
            }
        }
        if kernel.has_crashed() {
            (node, is_dying) = (way.process(&kernel, &past), false);
        }
    }
    kernel.clear_faults();
    kernel.with_host(|host| host.set_match("recent", true));
    if is_dying {
        node = way.process(&kernel, &past);
    }
    comes_to_rest(way, node, &past, &strangers);
}

fn comes_to_rest(way: Way, mut node: Node, past: &[universe::Event], strangers: &BTreeSet<String>) {
    let kernel = node.kernel.clone();
    for _ in 0..2 {
        node.run(Duration::from_secs(60));
        node.full();
    }
    let is_nothing = |node: &mut Node| {
        let (plan, told) = node.proxier.preview(node.now, &mut node.kernel.ports());
        assert!(plan.is_empty() && told.unread.is_empty(), "{way:?}: {told:#?}");
        let report = node.full();
        assert!(report.is_done() && report.drift.is_empty(), "{way:?}: {report:#?}");
        assert_eq!(report.writes(), 0, "{way:?}: {report:#?}");
    };
    is_nothing(&mut node);
    let mut fresh = way.process(&way.kernel(), past);
    let (plan, _) = fresh.proxier.preview(fresh.now, &mut fresh.kernel.ports());
    let report = fresh.pass();
    assert!(
        !plan.is_empty() || report.writes() == 0,
        "{way:?}: a plan says whether there is anything to do: {report:#?}"
    );
    fresh.settle();
    let (found, wanted) = (state(&kernel), state(&fresh.kernel));
    let missing: Vec<_> = wanted.difference(&found).collect();
    let more: Vec<_> = found.difference(&wanted).collect();
    assert!(missing.is_empty() && more.is_empty(), "{way:?}: missing {missing:#?}\nmore {more:#?}");
    assert!(node.proxier.desired() == fresh.proxier.desired(), "{way:?}: more is kept than is wanted");
    assert!(node.proxier.wanted() == fresh.proxier.wanted(), "{way:?}: more is kept than is wanted");

    if way.kind != Kind::Userspace {
        let before = writes(&kernel);
        let mut next = way.process(&kernel, past);
        next.settle();
        is_nothing(&mut next);
        assert_eq!(writes(&kernel), before, "{way:?}: a restart writes");
        assert_eq!(state(&kernel), found, "{way:?}");
    }
    let cleaned = cleanup(&way.options().config, None, &mut kernel.clone().ports());
    assert!(cleaned.is_done(), "{way:?}: {cleaned:#?}");
    kernel.restart();
    assert_eq!(held(&kernel), *strangers, "{way:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_node_comes_to_be_as_a_fresh_one(way in select(WAYS.as_slice()), events in events()) {
        run(way, &events);
    }
}

/// What it served is gone when the next process starts.
#[test]
fn a_process_that_dies_after_any_write_leaves_nothing_over() {
    let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:10::1"],
        "ports": [{"name": "p", "port": 80, "nodePort": 30080}]});
    for way in WAYS {
        for writes in 0.. {
            let kernel = way.kernel();
            let strangers = held(&kernel);
            let mut node = way.process(&kernel, &[]);
            node.service("web", spec.clone());
            node.slice("web", &["10.244.1.1"]);
            node.slice("web", &["fd00:244::1"]);
            kernel.crash_after(writes);
            node.pass();
            if !kernel.has_crashed() {
                break;
            }
            comes_to_rest(way, way.process(&kernel, &[]), &[], &strangers);
        }
    }
}

#[test]
fn what_another_program_takes_away_is_repaired_and_told() {
    for way in WAYS {
        let mut node = way.serving();
        let whole = state(&node.kernel);
        way.flush(&node.kernel);
        assert_ne!(state(&node.kernel), whole, "{way:?}");
        let report = node.full();
        let tells = |what: &str| report.drift.iter().any(|step| step.to_string().contains(what));
        assert!(report.is_done() && tells("10.96.0.2"), "{way:?}: {report:#?}");
        assert_eq!(tells("rules IPv4"), way.kind == Kind::Iptables, "{way:?}: {report:#?}");
        assert_eq!(state(&node.kernel), whole, "{way:?}");
        assert_eq!(node.full().drift, [], "{way:?}");
    }
}

/// Nothing would lead to the change alone. At once means: not at the next timer.
#[test]
fn a_change_that_meets_a_flush_writes_everything_at_once() {
    for way in WAYS.into_iter().filter(|way| matches!(way.kind, Kind::Nftables | Kind::Iptables)) {
        let (mut node, mut other) = (way.serving(), way.serving());
        way.flush(&node.kernel);
        let flushed = state(&node.kernel);
        for node in [&mut node, &mut other] {
            if way.kind == Kind::Iptables {
                // Chains alone: the kernel would take them.
                node.slice("s2", &["10.244.0.1", "10.244.0.2", "10.244.0.3"]);
            } else {
                node.service("s4", json!({"clusterIP": "10.96.0.4"}));
                node.slice("s4", &["10.244.0.1", "10.244.0.2"]);
            }
        }
        other.settles();
        let report = node.pass();
        assert!(report.has_failed() && !report.full, "{way:?}: {report:#?}");
        assert_eq!(state(&node.kernel), flushed, "{way:?}");
        let then = node.now;
        node.settles();
        assert!(node.now <= then + Duration::from_secs(1), "{way:?}: {:?} after {then:?}", node.now);
        assert_eq!(state(&node.kernel), state(&other.kernel), "{way:?}");
    }
}
