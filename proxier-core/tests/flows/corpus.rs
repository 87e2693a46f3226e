//! The corpus: a line for each scenario and family, with the scenario's inputs from the IPVS corpus beside it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::IpAddr;
use std::sync::LazyLock;

use proxier_core::net::Family;
use serde::Deserialize;
use serde_json::Value;

use super::flow::Flow;

/// Rules by table and chain, in order.
pub(crate) type Rules = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// One scenario in one family.
pub(crate) struct Scenario {
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
    /// Names it in reports: `R0007 IPv6`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.id, if self.family == Family::V4 { "IPv4" } else { "IPv6" })
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
    rules: Rules,
}

fn unpack(compressed: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
    text
}

/// The lines of both corpora. Reading all of them takes an emulated machine 15 s, so a test reads only its own.
static LINES: LazyLock<[String; 2]> = LazyLock::new(|| {
    [unpack(include_bytes!("../oracle/corpus.jsonl.gz")), unpack(include_bytes!("../oracle/iptables-corpus.jsonl.gz"))]
});

/// How many scenarios and flows there are, without reading them.
pub(crate) fn size() -> (usize, usize) {
    (LINES[1].lines().count(), LINES[1].matches("\"via\":").count())
}

/// Those of the 616 scenarios whose number `takes` accepts, one after the other.
pub(crate) fn scenarios(takes: impl Fn(usize) -> bool) -> impl Iterator<Item = Scenario> {
    let lines = LINES[1].lines().enumerate().filter(move |(number, _)| takes(*number));
    lines.map(|(_, line)| scenario(serde_json::from_str(line).unwrap()))
}

fn scenario(line: Line) -> Scenario {
    let family = match &*line.family {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        other => panic!("{other}"),
    };
    let id = format!("\"id\":\"{}\"", line.id);
    let input = LINES[0].lines().find(|input| input.contains(&id)).unwrap();
    let input: Value = serde_json::from_str(input).unwrap();
    let interfaces = serde_json::from_value(input["node"]["interfaces"].clone()).unwrap();
    Scenario { id: line.id, family, flows: line.flows, interfaces, rules: line.rules, input }
}
