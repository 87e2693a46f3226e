//! The corpora: a line for each scenario and family; the scenario's inputs are in another file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::LazyLock;

use proxier_core::net::Family;
use serde::Deserialize;
use serde_json::Value;

use super::flow::Flow;
use crate::corpus::unpack;
use crate::differences::Reference;

/// Rules by table and chain, in order.
pub(crate) type Rules = BTreeMap<String, BTreeMap<String, Vec<String>>>;

impl Reference {
    /// Lines of the reference, and lines of the inputs. Reading all of them takes an emulated machine 15 s, so a test reads only its own.
    fn lines(self) -> [&'static str; 2] {
        static LINES_28: LazyLock<[String; 2]> = LazyLock::new(|| {
            let flows = include_bytes!("../oracle/iptables-corpus.jsonl.gz");
            [unpack(flows), unpack(include_bytes!("../oracle/corpus.jsonl.gz"))]
        });
        static IPTABLES_36: LazyLock<String> =
            LazyLock::new(|| unpack(include_bytes!("../oracle36/K.ipt.flows.jsonl.gz")));
        static NFTABLES_36: LazyLock<String> =
            LazyLock::new(|| unpack(include_bytes!("../oracle36/K.nft.flows.jsonl.gz")));
        static INPUTS_36: LazyLock<String> =
            LazyLock::new(|| unpack(include_bytes!("../oracle36/K.scenarios.jsonl.gz")));
        match self {
            Reference::Iptables28 => LINES_28.each_ref().map(String::as_str),
            Reference::Iptables36 => [&IPTABLES_36, &INPUTS_36],
            Reference::Nftables36 => [&NFTABLES_36, &INPUTS_36],
            Reference::Ipvs28 | Reference::Ipvs36 => panic!("{self:?} has no flows"),
        }
    }

    /// Inputs that came before those of some scenarios.
    fn sequences(self) -> &'static str {
        static SEQUENCES: LazyLock<String> =
            LazyLock::new(|| unpack(include_bytes!("../oracle36/K.sequences.jsonl.gz")));
        if self == Reference::Iptables28 { "" } else { &SEQUENCES }
    }
}

/// One scenario in one family.
pub(crate) struct Scenario {
    pub(crate) reference: Reference,
    /// Earlier inputs of the proxy: Services and EndpointSlices, one state after the other.
    pub(crate) before: Vec<Value>,
    pub(crate) id: String,
    pub(crate) family: Family,
    pub(crate) flows: Vec<Flow>,
    /// The node's addresses by interface; both families.
    pub(crate) interfaces: BTreeMap<String, Vec<IpAddr>>,
    /// The reference's rules.
    pub(crate) rules: Rules,
    /// The scenario's objects, node and configuration, as `oracle/corpus.jsonl.gz` has them; both families.
    pub(crate) input: Value,
}

impl Scenario {
    /// Name of the scenario in reports: `R0007 IPv6`.
    pub(crate) fn name(&self) -> String {
        let after = if self.before.is_empty() { String::new() } else { format!(" after {} others", self.before.len()) };
        format!("{} {}{after}", self.id, if self.family == Family::V4 { "IPv4" } else { "IPv6" })
    }

    /// Whether an address is one of the node's own.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.interfaces.values().flatten().any(|own| *own == address)
    }
}

#[derive(Deserialize)]
struct Line {
    id: String,
    family: String,
    flows: Vec<Flow>,
    #[serde(default)]
    rules: Rules,
}

/// Numbers of scenarios and flows of 1.28, without reading them.
pub(crate) fn size() -> (usize, usize) {
    let [flows, _] = Reference::Iptables28.lines();
    (flows.lines().count(), flows.matches("\"via\":").count())
}

/// Scenarios of 1.28, out of 616, whose number `takes` accepts, one after the other.
pub(crate) fn scenarios(takes: impl Fn(usize) -> bool) -> impl Iterator<Item = Scenario> {
    scenarios_of(&[Reference::Iptables28], takes)
}

/// Scenarios of these references whose number `takes` accepts: first as they are, then some after earlier inputs.
pub(crate) fn scenarios_of(references: &[Reference], takes: impl Fn(usize) -> bool) -> impl Iterator<Item = Scenario> {
    let alone = references.iter().flat_map(|of| of.lines()[0].lines().map(|line| (*of, line, false)));
    let after = references.iter().flat_map(|of| {
        let ids: BTreeSet<&str> = of.sequences().lines().filter_map(id_of).collect();
        let lines = of.lines()[0].lines().filter(move |line| id_of(line).is_some_and(|id| ids.contains(id)));
        lines.map(|line| (*of, line, true))
    });
    let all = alone.chain(after).enumerate().filter(move |(number, _)| takes(*number));
    all.map(|(_, (of, line, after))| scenario(of, serde_json::from_str(line).unwrap(), after))
}

/// The identifier in a line.
fn id_of(line: &str) -> Option<&str> {
    line.split_once("\"id\":")?.1.split('"').nth(1)
}

fn scenario(reference: Reference, line: Line, after: bool) -> Scenario {
    let family = match &*line.family {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        other => panic!("{other}"),
    };
    let of_id = |lines: &'static str| -> Value {
        serde_json::from_str(lines.lines().find(|input| id_of(input) == Some(&*line.id)).unwrap()).unwrap()
    };
    let input = of_id(reference.lines()[1]);
    let mut before = Vec::new();
    if after {
        let mut sequence = of_id(reference.sequences());
        before.extend(sequence["steps"].as_array().unwrap().clone());
        before.push(sequence["before"].take());
    }
    let interfaces = serde_json::from_value(input["node"]["interfaces"].clone()).unwrap();
    Scenario { reference, before, id: line.id, family, flows: line.flows, interfaces, rules: line.rules, input }
}
