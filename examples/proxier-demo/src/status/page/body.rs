//! The body of `/status.json`. Its size is bounded for any number of Services and endpoints; the rest is counted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use ipvs::VirtualServerKey;
use proxier_core::net::EndpointKey;
use proxier_core::service::Frontend;
use proxier_core::snapshot::{Roles, ServicePort, TrafficPolicy};
use serde_json::{Value, json};

use super::counters::{Counters, ServerCounters};
use super::query::PageQuery;
use crate::message::view::{ServiceView, View};

/// Largest number of Frontends of all Services in one answer.
const FRONTENDS: usize = 400;
/// Largest number of Frontends of one Service.
const FRONTENDS_OF_ONE: usize = 50;
/// Largest number of endpoints of all Frontends in one answer.
const ENDPOINTS: usize = 2000;
/// Largest number of endpoints of one Frontend.
const ENDPOINTS_OF_ONE: usize = 50;

/// What still fits into one answer.
struct Room {
    frontends: usize,
    endpoints: usize,
}

/// The first items of a list, as far as they fit.
fn take<'a, T>(left: &mut usize, all: &'a [T], most: usize) -> &'a [T] {
    let shown = all.get(..all.len().min(most).min(*left)).unwrap_or_default();
    *left = left.saturating_sub(shown.len());
    shown
}

/// Adds the state of the kernel's thread.
pub(super) fn add_view(body: &mut Value, view: &View, wanted: &PageQuery, counters: &mut Counters) {
    counters.begin(Instant::now());
    let matching: Vec<&ServiceView> = view.services.iter().filter(|service| matches(service, &wanted.filter)).collect();
    let mut room = Room { frontends: FRONTENDS, endpoints: ENDPOINTS };
    let shown = matching.iter().skip(wanted.offset).take(wanted.limit);
    let list: Vec<Value> = shown.map(|service| service_json(view, service, &mut room, counters)).collect();
    let all = || view.services.iter().flat_map(|service| &service.frontends);
    let endpoints: usize = all().map(|frontend| frontend.endpoints().len()).sum();
    for (name, value) in [
        ("node", json!(view.node)),
        ("mode", json!(view.mode.name())),
        ("totals", json!({"services": view.services.len(), "frontends": all().count(), "endpoints": endpoints})),
        ("services", json!({"matching": matching.len(), "offset": wanted.offset, "list": list})),
    ] {
        body[name] = value;
    }
    for (name, list) in view.lists.as_object().into_iter().flatten() {
        body[name.as_str()] = list.clone();
    }
}

/// Whether a Service's name, or one of its addresses and ports, contains this text.
fn matches(service: &ServiceView, filter: &str) -> bool {
    let has = |text: String| text.to_lowercase().contains(filter);
    filter.is_empty()
        || has(service.key.to_string())
        || service.frontends.iter().any(|frontend| has(frontend.key.to_string()))
}

fn service_json(view: &View, service: &ServiceView, room: &mut Room, counters: &mut Counters) -> Value {
    let shown = take(&mut room.frontends, &service.frontends, FRONTENDS_OF_ONE);
    let frontends: Vec<Value> =
        shown.iter().map(|frontend| frontend_json(view, frontend, &service.ports, room, counters)).collect();
    json!({
        "name": service.key.to_string(),
        "frontends": frontends,
        "leftOut": service.frontends.len().saturating_sub(shown.len()),
    })
}

fn frontend_json(
    view: &View,
    frontend: &Arc<Frontend>,
    ports: &[ServicePort],
    room: &mut Room,
    counters: &mut Counters,
) -> Value {
    let key = VirtualServerKey::from(frontend.key);
    let is_ipvs = view.mode.facts().has_virtual_servers;
    let of_address = if is_ipvs { counters.get(&key).cloned() } else { None };
    let mark = view.marks.get(&frontend.key);
    let of_mark = mark.and_then(|mark| counters.get(mark));
    let counted = match (of_address, of_mark) {
        (Some(address), Some(mark)) => Some(address.with(mark)),
        (address, mark) => address.or_else(|| mark.cloned()),
    };
    let counted = counted.as_ref();
    let is_split = !is_ipvs || mark.is_some();
    let (endpoints, left_out) = endpoints(is_split, frontend, counted, room);
    let mut value = json!({
        "key": frontend.key.to_string(),
        "port": port_name(frontend, ports),
        "kinds": kinds(frontend.roles).map(|(_, name)| name).collect::<Vec<_>>(),
        "policy": if frontend.policy == TrafficPolicy::Local { "Local" } else { "Cluster" },
        "affinitySeconds": frontend.affinity_secs,
        "sourceRanges": frontend.source_ranges.as_deref().map(<[_]>::len),
        "endpoints": endpoints,
        "leftOut": left_out,
    });
    value["counters"] = match (counted, view.begun.get(&frontend.key)) {
        (Some(ServerCounters { stats, .. }), _) => json!({
            "connections": stats.connections,
            "connectionsPerSecond": stats.rates.connections,
            "bytesInPerSecond": stats.rates.bytes_in,
            "bytesOutPerSecond": stats.rates.bytes_out,
        }),
        (None, Some(begun)) => json!({"connections": begun}),
        (None, None) => Value::Null,
    };
    value
}

/// Endpoints that answer, with the kernel's counters; then draining real servers.
///
/// `is_split`: this node and its pods are sent to all endpoints if a policy is `Local`. A real server of IPVS that only
/// they get is shown, too.
fn endpoints(
    is_split: bool,
    frontend: &Frontend,
    counted: Option<&ServerCounters>,
    room: &mut Room,
) -> (Vec<Value>, usize) {
    let is_split = is_split && frontend.policy == TrafficPolicy::Local && !frontend.roles.contains(Roles::CLUSTER_IP);
    let all = is_split && (frontend.local.is_empty() || counted.is_some());
    let mut serving = if all { frontend.cluster.to_vec() } else { frontend.endpoints().to_vec() };
    if all {
        serving.extend(frontend.local.iter().filter(|endpoint| frontend.cluster.binary_search(endpoint).is_err()));
    }
    let wanted: HashSet<&EndpointKey> = serving.iter().collect();
    let leaving: Vec<EndpointKey> = counted
        .iter()
        .flat_map(|counted| &counted.real_servers)
        .map(|real| EndpointKey::from(real.server.key))
        .filter(|key| !wanted.contains(key))
        .collect();
    let all: Vec<EndpointKey> = serving.iter().copied().chain(leaving).collect();
    let shown = take(&mut room.endpoints, &all, ENDPOINTS_OF_ONE);
    let value = |key: &EndpointKey| {
        let mut value = json!({"address": key.to_string()});
        let mut real_servers = counted.iter().flat_map(|counted| &counted.real_servers);
        if let Some(real) = real_servers.find(|real| EndpointKey::from(real.server.key) == *key) {
            value["weight"] = json!(real.server.config.weight.get());
            value["active"] = json!(real.active_connections);
            value["inactive"] = json!(real.inactive_connections);
            value["connectionsPerSecond"] = json!(real.stats.rates.connections);
        }
        if !wanted.contains(key) {
            value["leaving"] = json!(true);
        }
        value
    };
    (shown.iter().map(value).collect(), all.len().saturating_sub(shown.len()))
}

/// Names of roles in words, and in JSON.
pub(crate) fn kinds(roles: Roles) -> impl Iterator<Item = (&'static str, &'static str)> {
    let names = [
        (Roles::CLUSTER_IP, "cluster IP", "clusterIP"),
        (Roles::EXTERNAL_IP, "external IP", "externalIP"),
        (Roles::LOAD_BALANCER, "load balancer", "loadBalancer"),
        (Roles::NODE_PORT, "node port", "nodePort"),
    ];
    names.into_iter().filter(move |(role, ..)| roles.contains(*role)).map(|(_, words, name)| (words, name))
}

/// The name of a Frontend's port; empty if it has none.
fn port_name<'a>(frontend: &Frontend, ports: &'a [ServicePort]) -> &'a str {
    let is_node_port = frontend.roles == Roles::NODE_PORT;
    let number = |port: &ServicePort| if is_node_port { port.node_port } else { Some(port.port) };
    let mut of = ports.iter().filter(|port| port.protocol == frontend.key.protocol);
    of.find(|port| number(port) == Some(frontend.key.port)).map_or("", |port| &port.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipvs::RealServer;
    use ipvs::model::{ObservedRealServer, Stats};
    use proxier_core::config::Config;
    use proxier_core::modes::Kind;
    use proxier_core::net::{FrontendKey, Protocol};
    use proxier_core::service::{Desired, NodeFacts};
    use proxier_core::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey, Store};

    use super::*;
    use crate::message::view::listed;

    fn compiled(service: &ObjectKey, specs: impl IntoIterator<Item = FrontendSpec>) -> Vec<Arc<Frontend>> {
        let facts = NodeFacts::new(&Config::default(), &Node::new("n1"), &HostAddresses::default());
        let mut store = Store::new("n1");
        store.upsert_frontends(service, specs);
        Desired::build(&store, &facts).compiled(service).unwrap().frontends().to_vec()
    }

    fn service(name: &str, number: u8, frontends: u16, endpoints: u16) -> ServiceView {
        let key = ObjectKey::new("shop", name);
        let endpoint = |port| EndpointKey::new([10, 244, 0, number].into(), port);
        let specs: Vec<FrontendSpec> = (1..=frontends)
            .map(|port| FrontendKey::new(Protocol::Tcp, [10, 96, 0, number].into(), port))
            .map(|key| FrontendSpec::new(key, (1..=endpoints).map(endpoint)))
            .collect();
        let frontends = compiled(&key, specs);
        ServiceView { key, ports: Box::default(), frontends }
    }

    fn view(services: Vec<ServiceView>) -> View {
        View {
            node: "n1".to_owned(),
            mode: Kind::Nftables,
            services,
            lists: json!({"rejected": listed(0..1000, Value::from)}),
            begun: BTreeMap::new(),
            marks: BTreeMap::new(),
        }
    }

    fn body(view: &View, query: &str) -> Value {
        let mut body = json!({});
        add_view(&mut body, view, &PageQuery::read(query), &mut Counters::new(Box::new(|_| None)));
        body
    }

    /// Counters in which one virtual server has two real servers, the other only the first of them.
    fn of_two_servers(key: &VirtualServerKey) -> ServerCounters {
        let real = |port: u16| {
            let place = std::net::SocketAddr::from(([10, 244, 0, 7], port)).to_string();
            let mut real = ObservedRealServer::from(RealServer::new(place.parse().unwrap()));
            real.active_connections = 2;
            real
        };
        let mut stats = Stats::default();
        stats.connections = 10;
        let ports = if key.addr().is_some() { 1..=2 } else { 1..=1 };
        ServerCounters { stats, real_servers: ports.map(real).collect() }
    }

    #[test]
    fn a_frontend_with_two_lists_shows_both() {
        let key = FrontendKey::new(Protocol::Tcp, [198, 51, 100, 7].into(), 80);
        let endpoint = |port| EndpointKey::new([10, 244, 0, 7].into(), port);
        let mut spec = FrontendSpec::new(key, [endpoint(1), endpoint(2)]);
        spec.roles = Roles::LOAD_BALANCER;
        spec.policy = TrafficPolicy::Local;
        spec.local = vec![endpoint(1)];
        let name = ObjectKey::new("shop", "web");
        let frontends = compiled(&name, [spec]);
        let service = ServiceView { key: name, ports: Box::default(), frontends };
        let mark = VirtualServerKey::fwmark(ipvs::model::Family::V4, 0x1600_0001).unwrap();
        let view = View { mode: Kind::Ipvs, marks: BTreeMap::from([(key, mark)]), ..view(vec![service]) };
        let mut body = json!({});
        add_view(&mut body, &view, &PageQuery::read(""), &mut Counters::new(Box::new(|key| Some(of_two_servers(key)))));
        let frontend = &body["services"]["list"][0]["frontends"][0];
        assert_eq!(frontend["counters"]["connections"], 20);
        let endpoints = frontend["endpoints"].as_array().unwrap();
        let active: Vec<_> = endpoints.iter().map(|of| (of["address"].clone(), of["active"].clone())).collect();
        assert_eq!(active, [(json!("10.244.0.7:1"), json!(4)), (json!("10.244.0.7:2"), json!(2))]);
        assert!(endpoints.iter().all(|endpoint| endpoint.get("leaving").is_none()), "{endpoints:?}");
    }

    #[test]
    fn the_body_is_bounded_and_omissions_are_counted() {
        let services = (0..200_u8).map(|number| service(&format!("big-{number}"), number, 60, 70)).collect();
        let answer = body(&view(services), "limit=200");
        let list = answer["services"]["list"].as_array().unwrap();
        assert_eq!(list.len(), 200);
        let rejected = &answer["rejected"];
        assert_eq!((&rejected["count"], rejected["list"].as_array().unwrap().len()), (&json!(1000), 100));
        let frontends = |service: &Value| service["frontends"].as_array().unwrap().clone();
        let shown: usize = list.iter().map(|service| frontends(service).len()).sum();
        let left_out: u64 = list.iter().map(|service| service["leftOut"].as_u64().unwrap()).sum();
        assert_eq!((shown, left_out), (FRONTENDS, 200 * 60 - 400));
        assert_eq!(frontends(&list[0]).len(), FRONTENDS_OF_ONE);
        assert_eq!(frontends(&list[0])[0]["leftOut"], 20);
        let endpoints = |frontend: &Value| frontend["endpoints"].as_array().unwrap().len();
        let shown: usize = list.iter().flat_map(frontends).map(|frontend| endpoints(&frontend)).sum();
        assert_eq!(shown, ENDPOINTS);
        assert!(answer.to_string().len() < 300_000, "{}", answer.to_string().len());
    }
}
