//! Takes over the other variant's ownership records and guards when a node changes variant.

use std::collections::BTreeMap;

use ipset::{Element, IpSpan, Ports};

use super::{nft, read_ipsets};
use crate::config::Config;
use crate::modes::ipvs::diff::Needs;
use crate::modes::ipvs::lower;
use crate::modes::ipvs::observed::{Contents, Observed};
use crate::modes::ipvs::plan::Plan;
use crate::modes::ipvs::wanted::Wanted;
use crate::net::Network;
use crate::plan::report::Unread;
use crate::plan::step::Action;
use crate::ports::{PortErrorKind, SetKey, SetKind, Sets, Tables};

/// Reads the sets of the variant that does not serve; `by_table`: the serving one uses a table. Parts that the kernel
/// does not have count as empty.
pub(crate) fn read(
    by_table: bool,
    config: &Config,
    sets: &mut dyn Sets,
    tables: &mut dyn Tables,
) -> (Contents, Vec<Unread>) {
    if !by_table {
        return nft::read_contents(config.families.iter(), config, tables);
    }
    let (contents, mut unread) = if sets.may_exist() { read_ipsets(config, sets) } else { Default::default() };
    unread.retain(|unread| unread.error.kind() != PortErrorKind::Unavailable);
    (contents, unread)
}

/// Adds to the plan what our virtual servers need that no Service wants. Those that stay keep it, and the others keep
/// it until they are deleted.
pub(crate) fn carry_over(by_table: bool, wanted: &Wanted<'_>, observed: &Observed, plan: &mut Plan) {
    let deleted = plan.deleted_servers();
    let (mut staying, mut going) = (Needs::default(), Needs::default());
    for key in observed.virtual_servers.keys().filter(|key| !wanted.has_server(key) && observed.owns(key)) {
        let needs = if deleted.contains(key) { &mut going } else { &mut staying };
        needs.add(key, observed);
    }
    for (set, element) in lowered(by_table, &observed.before) {
        let stays = staying.entry(set, &element);
        if !(stays || going.entry(set, &element))
            || observed.has_entry(set, &element)
            || wanted.has_entry(set, &element)
        {
            continue;
        }
        if !stays {
            plan.entry(Action::Delete, set, element.clone());
        }
        plan.entry(Action::Add, set, element);
    }
}

/// The entries in the form of the variant that serves. An nf_tables table takes no networks that overlap, and has a set
/// of load balancers that this node may not use.
fn lowered(by_table: bool, before: &Contents) -> Vec<(SetKey, Element)> {
    let mut all = Vec::new();
    let mut sources: BTreeMap<(SetKey, IpSpan, Ports), Vec<Network>> = BTreeMap::new();
    for (set, elements) in before.iter().filter(|(set, _)| by_table || SetKind::ALL.contains(&set.kind)) {
        for element in elements {
            match (by_table, set.kind, element) {
                (true, SetKind::LoadBalancerSourceCidr, Element::IpPortIp(host, ports, range)) => {
                    let networks = range.networks().filter_map(|span| Network::new(span.first(), span.prefix()?).ok());
                    sources.entry((*set, *host, *ports)).or_default().extend(networks);
                    continue;
                }
                (true, SetKind::LoadBalancerFirewall, Element::IpPort(host, ports)) => {
                    let node = Element::IpPortIp(*host, *ports, *host);
                    let allowed = SetKey::new(set.family, SetKind::LoadBalancerSourceIp);
                    if !before.get(&allowed).is_some_and(|allowed| allowed.contains(&node)) {
                        all.push((SetKey::new(set.family, SetKind::LoadBalancerNotNode), node));
                    }
                }
                _ => {}
            }
            all.push((*set, element.clone()));
        }
    }
    for ((set, host, ports), networks) in sources {
        let merged = Network::aggregate(&networks).into_iter();
        all.extend(merged.map(|network| (set, Element::IpPortIp(host, ports, lower::span(network)))));
    }
    all
}
