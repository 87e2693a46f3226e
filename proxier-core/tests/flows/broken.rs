//! Breaks the reference's rules, one kind at a time. Exactly the flows that need those rules must be reported.
//! Otherwise the harness would let a mode pass that has the same mistake.

use std::collections::BTreeSet;

use testkit::oracle::Backend;
use testkit::witness::Transport;

use super::corpus::{Rules, Scenario};
use super::flow::{Destination, Flow, Verdict};
use super::restored::Restored;
use super::{check, scenarios};

/// A mistake in the rules.
pub(crate) struct Break {
    name: &'static str,
    change: fn(&mut Rules),
    /// The flows in which it shows.
    shows: fn(&Flow) -> bool,
    /// Whether it shows in each of them every time.
    always: bool,
}

pub(crate) const BREAKS: &[Break] = &[
    Break {
        name: "nothing is masqueraded",
        change: masquerades_nothing,
        shows: |flow| flow.endpoints().iter().any(|endpoint| flow.masquerades(endpoint)),
        always: true,
    },
    Break {
        name: "everything is masqueraded",
        change: |rules| retain(rules, "KUBE-POSTROUTING", |rule| !rule.contains("! --mark")),
        shows: |flow| match flow.dest {
            Destination::Endpoints(_) => flow.endpoints().iter().any(|endpoint| !flow.masquerades(endpoint)),
            // Packets of other hosts to the node itself do not come to this chain.
            Destination::Verdict(verdict) => {
                verdict == Verdict::LeftAlone && (flow.via != "nodePort" || flow.is_nodes())
            }
        },
        always: true,
    },
    Break {
        name: "drops instead of rejecting",
        change: |rules| replace(rules, "KUBE-", "-j REJECT", "-j DROP"),
        shows: |flow| flow.dest == Destination::Verdict(Verdict::Reject),
        always: true,
    },
    Break {
        name: "rejects instead of dropping",
        change: |rules| {
            for chain in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"] {
                replace(rules, chain, "-j DROP", "-j REJECT");
            }
        },
        shows: |flow| flow.dest == Destination::Verdict(Verdict::Drop),
        always: true,
    },
    Break {
        name: "only the last endpoint is ever chosen",
        change: |rules| retain(rules, "KUBE-SV", |rule| !rule.contains("--probability")),
        shows: |flow| flow.endpoints().len() > 1 && (!flow.is_sticky() || flow.has_relatives()),
        always: true,
    },
    Break {
        name: "affinity is forgotten",
        change: |rules| retain(rules, "KUBE-SV", |rule| !rule.contains("--rcheck")),
        shows: |flow| flow.endpoints().len() > 1 && flow.is_sticky(),
        always: false,
    },
    Break {
        name: "no node port is served",
        change: |rules| retain(rules, "KUBE-SERVICES", |rule| !rule.contains("-j KUBE-NODEPORTS")),
        shows: |flow| flow.via == "nodePort" && !flow.endpoints().is_empty(),
        always: true,
    },
    Break {
        name: "UDP endpoints are reached on another port",
        change: |rules| {
            for rule in chains(rules, "KUBE-SEP-").flatten().filter(|rule| rule.contains("-p udp -j DNAT")) {
                let (rest, _) = rule.rsplit_once(':').unwrap();
                *rule = format!("{rest}:7");
            }
        },
        shows: |flow| flow.protocol == Transport::Udp && !flow.endpoints().is_empty(),
        always: true,
    },
];

fn masquerades_nothing(rules: &mut Rules) {
    retain(rules, "KUBE-POSTROUTING", |rule| !rule.contains("MASQUERADE"));
}

/// The rules of each chain whose name begins so.
fn chains<'a>(rules: &'a mut Rules, begin: &'static str) -> impl Iterator<Item = &'a mut Vec<String>> {
    rules.values_mut().flatten().filter(move |(name, _)| name.starts_with(begin)).map(|(_, rules)| rules)
}

fn retain(rules: &mut Rules, begin: &'static str, keep: impl Fn(&str) -> bool) {
    chains(rules, begin).for_each(|rules| rules.retain(|rule| keep(rule)));
}

fn replace(rules: &mut Rules, begin: &'static str, from: &str, to: &str) {
    chains(rules, begin).flatten().for_each(|rule| *rule = rule.replace(from, to));
}

/// Scenarios for each mistake.
const SCENARIOS: usize = 2;

/// Makes each mistake in some scenarios where it shows.
///
/// # Panics
/// Other flows are reported than those in which the mistake shows.
pub(crate) fn are_all_noticed(backend: Backend) {
    // Not only the first ones, which are alike.
    let scenarios: Vec<Scenario> = scenarios(|number| number.is_multiple_of(7)).collect();
    for Break { name, change, shows, always } in BREAKS {
        let mut subject = Restored { backend, change: *change };
        let shown_in = scenarios.iter().filter(|scenario| scenario.flows.iter().any(shows));
        let mut reported = 0;
        for scenario in shown_in.take(SCENARIOS) {
            let differences = check(scenario, &scenario.flows, &mut subject);
            let found: BTreeSet<String> = differences.iter().map(|difference| difference.flow.to_string()).collect();
            let flows = scenario.flows.iter().filter(|flow| shows(flow));
            let wanted: BTreeSet<String> = flows.map(ToString::to_string).collect();
            let is_right = if *always { found == wanted } else { found.is_subset(&wanted) };
            let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
            assert!(is_right, "{name}: {wanted:#?} should differ, and this does:\n{}", lines.join("\n"));
            reported += found.len();
        }
        println!("{name}: {reported} flows");
        assert!(reported > 0, "nobody has noticed: {name}");
    }
}
