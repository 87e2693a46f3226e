//! Finds firewall chains that drop what this node forwards to endpoints.

use std::net::IpAddr;

use ::iptables::{Backend, TableName};
use nftables::{ChainType, Hook};

use super::Kind;
use super::shared::by_default::{self, Known};
use super::shared::nft::{base_chains, is_of_iptables};
use crate::config::Config;
use crate::net::Family;
use crate::ports::Ports;
use crate::snapshot::HostAddresses;

/// A chain that drops packets to endpoints, or their answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppingForward {
    /// What it drops in this mode, and what to do.
    pub note: String,
    /// The back end whose chain `FORWARD` it is; `None` for another program's nf_tables chain.
    pub of_iptables: Option<Backend>,
}

/// The chains of either back end of iptables, and of nf_tables, that drop forwarded packets by default, by their policy
/// or last rule. A chain with a rule that may accept what this mode sends to endpoints does not count: in nftables and
/// iptables mode the first packet of a connection, in IPVS mode the answers, since the kernel sends the rest itself.
/// Rules for devices that this host lacks, and for bridges of Docker and libvirt, accept nothing for pods. A family in
/// which the host has only link-local addresses does not count. Chains that cannot be read drop nothing.
pub fn dropping_forward(
    mode: Kind,
    config: &Config,
    host: &HostAddresses,
    ports: &mut Ports<'_>,
) -> Vec<DroppingForward> {
    if mode.facts().is_process {
        return Vec::new();
    }
    let is_answer = mode.facts().has_virtual_servers;
    let families: Vec<Family> = config.families.iter().filter(|family| has_addresses(*family, host)).collect();
    let device = |name: &str| may_be_of_pods(name, host);
    let unmarked = config.masquerade_bit.mask();
    let is_translated = !is_answer;
    let known =
        Known { device: &device, families: &families, unmarked, is_answer, is_translated, unless_accepted: false };
    let used = if mode == Kind::Iptables { ports.rules.used_backend() } else { None };
    let found = |chain: &str, of_iptables: Option<Backend>| {
        let what = if is_answer { "answers of endpoints" } else { "connections to endpoints" };
        let but = if used.is_some() && of_iptables == used { ", but for masqueraded ones" } else { "" };
        let note = format!(
            "{chain} drops by default what is forwarded, {what} among it{but}: accept the networks of pods in it, as source and as \
             destination, or set its policy to accept"
        );
        DroppingForward { note, of_iptables }
    };
    let mut all = Vec::new();
    for (chain, policy) in base_chains(Hook::Forward, &ChainType::Filter, ports.tables) {
        if by_default::drops_in_nft(&chain, policy, &known, ports.tables) {
            let backend = is_of_iptables(&chain, FORWARD).then_some(Backend::NfTables);
            all.push(found(&format!("chain {chain}"), backend));
        }
    }
    for family in families.iter().copied() {
        if ports.rules.has_tables(family) == Some(false) {
            continue;
        }
        let dump = ports.rules.dump_of(Backend::Legacy, family).unwrap_or_default();
        let filter = dump.table(&TableName::FILTER);
        if filter.is_some_and(|filter| by_default::drops(filter, FORWARD, &known)) {
            let chain = format!("chain {FORWARD} of the legacy table filter of {}", family.name());
            all.push(found(&chain, Some(Backend::Legacy)));
        }
    }
    all
}

const FORWARD: &str = "FORWARD";

fn has_addresses(family: Family, host: &HostAddresses) -> bool {
    let is_global = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    host.interfaces.values().flatten().any(|address| Family::of(*address) == family && is_global(address))
}

/// Whether pod packets use a device that a rule names; `None`: they may.
fn may_be_of_pods(name: &str, host: &HostAddresses) -> Option<bool> {
    const OTHERS: [&str; 4] = ["docker", "br-", "virbr", "podman"];
    let is_there = match name.strip_suffix('+') {
        Some(start) => host.interfaces.keys().any(|device| device.starts_with(start)),
        None => host.interfaces.contains_key(name),
    };
    (name == "lo" || !is_there || OTHERS.iter().any(|other| name.starts_with(other))).then_some(false)
}
