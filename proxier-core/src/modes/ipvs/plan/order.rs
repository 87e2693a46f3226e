//! Puts differences in order.

use std::collections::{BTreeMap, BTreeSet};

use ipset::Element;
use ipvs::model::{Protocol, VirtualServer, Weight};
use ipvs::{Operation, RealServer, RealServerKey, VirtualServerKey};

use super::{Phase, Plan};
use crate::modes::ipvs::binding::in_order;
use crate::modes::ipvs::diff::{Changes, VirtualServerChange};
use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::sets::SetKey;
use crate::modes::ipvs::wanted::Wanted;
use crate::ports::LocalRoute;
use crate::snapshot::ObjectKey;

/// Puts changes in order.
///
/// An undesired real server drains if its protocol does ([`Policy`](crate::modes::ipvs::drain::Policy)). A UDP one also drains if its endpoint serves although other endpoints are selected. Draining means weight 0 first,
/// and deletion once its connections have ended. One that is already draining is left to [`Drains`]; one that is
/// desired again gets its weight back and is never deleted in between.
///
/// The parts that do not come from [`Changes`] (names, device, sysctls, timeouts, rules, flows) keep their defaults.
pub fn plan(changes: Changes, wanted: &Wanted<'_>, observed: &Observed, drains: &Drains) -> Plan {
    let mut plan = Plan::default();
    plan.stage(Phase::Prepare).sets = changes.create_sets.into_iter().collect();
    for (set, elements) in by_set(changes.add_entries) {
        let phase = if set.kind.gives_marks() { Phase::ServeUnguarded } else { Phase::Prepare };
        plan.stage(phase).entries.insert(set, elements);
    }
    for (set, elements) in by_set(changes.delete_entries) {
        let phase = if set.kind.gives_marks() { Phase::RetireMarks } else { Phase::Clean };
        plan.stage(phase).entries.insert(set, elements);
    }
    let mut ranks: [Vec<Operation>; 3] = Default::default();
    let mut first_addresses = BTreeSet::new();
    for (key, change) in changes.virtual_servers {
        let rank = rank(wanted.owner(&key), &key);
        if let (Rank::Kubernetes | Rank::Dns, VirtualServerKey::Address { addr, .. }) = (rank, key) {
            first_addresses.insert(addr);
        }
        let [kubernetes, dns, others] = &mut ranks;
        let serve = match (key, rank) {
            (VirtualServerKey::Fwmark { .. }, _) => &mut plan.stage(Phase::Prepare).servers,
            (_, Rank::Kubernetes) => kubernetes,
            (_, Rank::Dns) => dns,
            (_, Rank::Other) => others,
        };
        match change {
            VirtualServerChange::Add { config, real_servers } => {
                serve.push(Operation::AddVirtualServer(VirtualServer { key, config }));
                serve.extend(real_servers.iter().map(|server| Operation::AddRealServer(key, server)));
            }
            VirtualServerChange::Update { config, add, set, remove } => {
                let update = config.map(|config| Operation::UpdateVirtualServer(VirtualServer { key, config }));
                serve.extend(update);
                serve.extend(add.into_iter().map(|server| Operation::AddRealServer(key, server)));
                serve.extend(set.into_iter().map(|server| Operation::UpdateRealServer(key, server)));
                for real in remove {
                    let drains = Some(drains).filter(|drains| wanted.lets_drain(&key, &real, drains.policy()));
                    retire(&mut plan, key, real, observed, drains);
                }
            }
            VirtualServerChange::Delete => plan.retire_from(&key).push(Operation::DeleteVirtualServer(key)),
        }
    }
    let serve = plan.stage(Phase::Serve);
    serve.servers = ranks.concat();
    let (first, rest): (Vec<_>, Vec<_>) =
        changes.add_addresses.into_iter().partition(|address| first_addresses.contains(address));
    serve.addresses = [first, rest].concat();
    serve.routes = in_order(changes.add_routes);
    let clean = plan.stage(Phase::Clean);
    clean.addresses = changes.delete_addresses.into_iter().collect();
    clean.routes = changes.delete_routes.into_iter().map(LocalRoute::new).collect();
    plan
}

fn by_set(entries: BTreeSet<(SetKey, Element)>) -> BTreeMap<SetKey, Vec<Element>> {
    let mut all: BTreeMap<SetKey, Vec<Element>> = BTreeMap::new();
    for (set, element) in entries {
        all.entry(set).or_default().push(element);
    }
    all
}

/// Retires an undesired real server. `drains`: those that drain, if this one may.
fn retire(plan: &mut Plan, key: VirtualServerKey, real: RealServerKey, observed: &Observed, drains: Option<&Drains>) {
    let Some(drains) = drains else {
        plan.retire_from(&key).push(Operation::DeleteRealServer(key, real));
        return;
    };
    let there = observed.virtual_servers.get(&key).and_then(|server| server.real_server(&real));
    match there {
        Some(server) if server.config.weight == Weight::DRAIN => {
            if !drains.is_draining(&key, &real) {
                plan.adopt_drains.push((key, real));
            }
        }
        Some(server) => plan.retire_from(&key).push(drain(key, server)),
        None => plan.retire_from(&key).push(Operation::DeleteRealServer(key, real)),
    }
}

fn drain(key: VirtualServerKey, server: RealServer) -> Operation {
    Operation::UpdateRealServer(key, server.with_weight(Weight::DRAIN))
}

/// Services that a node needs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    Kubernetes,
    Dns,
    Other,
}

fn rank(owner: Option<&ObjectKey>, key: &VirtualServerKey) -> Rank {
    let Some(owner) = owner else { return Rank::Other };
    match (owner.namespace(), key) {
        ("default", _) if owner.name() == "kubernetes" => Rank::Kubernetes,
        ("kube-system", VirtualServerKey::Address { port: 53, protocol: Protocol::Tcp | Protocol::Udp, .. }) => {
            Rank::Dns
        }
        _ => Rank::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything else on a node waits for the API server's address, and then for DNS.
    #[test]
    fn the_api_server_is_first_and_cluster_dns_second() {
        let of = |namespace: &str, name: &str, key: &str| {
            rank(Some(&ObjectKey::new(namespace, name)), &key.parse().unwrap())
        };
        assert_eq!(of("default", "kubernetes", "TCP 10.96.0.1:443"), Rank::Kubernetes);
        assert_eq!(of("default", "web", "TCP 10.96.0.2:443"), Rank::Other);
        assert_eq!(of("demo", "kubernetes", "TCP 10.96.0.3:443"), Rank::Other);
        for key in ["UDP 10.96.0.10:53", "TCP 10.96.0.10:53"] {
            assert_eq!(of("kube-system", "kube-dns", key), Rank::Dns, "{key}");
            assert_eq!(of("demo", "dns", key), Rank::Other, "{key}");
        }
        assert_eq!(of("kube-system", "kube-dns", "TCP 10.96.0.10:9153"), Rank::Other, "metrics");
        assert_eq!(rank(None, &"UDP 10.96.0.10:53".parse().unwrap()), Rank::Other);
    }
}
