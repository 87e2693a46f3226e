//! `explain`: a Service, its endpoints and the reasons for them, the rules that guard it, and refusals. Needs no kernel
//! and no privilege: the reconciler programs a simulated node, as for `render`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::ExitCode;

use proxier_core::engine::Reconciler;
use proxier_core::modes::Kind;
use proxier_core::net::{EndpointKey, Family, FrontendKey, Protocol};
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::plan::report::Refused;
use proxier_core::service::{EndpointDecision, Frontend, endpoint_decisions, why_left_out};
use proxier_core::sketch::KernelState;
use proxier_core::snapshot::{ObjectKey, Roles, Service, ServicePort, TrafficPolicy};
use serde_json::{Value, json};

use crate::commands::mentions::{self, Mention};
use crate::commands::once::{exit_code, input};
use crate::commands::policies::{Policy, policies, policy_name};
use crate::commands::render::{Simulated, addresses_of_node, simulate, warn_of_no_address};
use crate::engine::view::unreadable_line;
use crate::exit::FAILED;
use crate::gather::Gather as _;
use crate::message::change::Snapshot;
use crate::output::{lines, say};
use crate::problem::{Problem, Stopped};
use crate::settings::cli::Configured;
use crate::settings::cli::packet::To;

/// Explains a Service (`namespace/name`, with or without `:port`), or which one has an address and port. Exit code 0:
/// explained. 1: no Service has that name or that address and port, or the input is missing. 2: bad input, or some of
/// it could not be read.
pub async fn explain(configured: &Configured, asked: &str) -> Result<ExitCode, Stopped> {
    let asked = Subject::read(asked).map_err(Stopped::bad_input)?;
    let (mut snapshot, unreadable) = input(configured).await?;
    let node = addresses_of_node(configured, &snapshot);
    keep_what_matters(&mut snapshot, &asked, &node);
    let objects = snapshot.services.clone();
    let Simulated { mut engine, addresses, .. } = simulate(configured, snapshot)?;
    warn_of_no_address(configured, &addresses);
    let held = engine.kernel().state();
    let found = match find(engine.proxier(), &asked, &objects) {
        Ok(found) => found,
        Err(lines) => {
            lines.iter().for_each(say);
            return Ok(ExitCode::from(FAILED));
        }
    };
    let object = objects.get(&found.service.key).map(Box::as_ref);
    let explained = Explanation::new(engine.proxier(), &held, &found, object);
    let is_printed = configured.output.print(|| lines(explained.lines()), || explained.json());
    Ok(exit_code(is_printed, &unreadable))
}

/// Result of the search: the Service to explain, and the requested part of it.
#[derive(Debug)]
struct SearchResult<'a> {
    service: &'a Service,
    /// Name of the only port to explain; `None`: all ports.
    port: Option<String>,
    /// The only Frontend to explain; `None`: all of them.
    frontend: Option<FrontendKey>,
}

#[derive(Debug)]
enum Subject {
    /// A Service, and perhaps only the port of this name.
    Service(ObjectKey, Option<String>),
    Frontend(FrontendKey),
}

impl Subject {
    fn read(asked: &str) -> Result<Self, Problem> {
        let before = asked.split('/').next().filter(|before| before.len() < asked.len());
        if before.is_some_and(|before| !before.starts_with('[') && !before.contains(':')) {
            let (name, port) =
                asked.split_once(':').map_or((asked, None), |(name, port)| (name, Some(port.to_owned())));
            let (namespace, name) = name.split_once('/').unwrap_or_default();
            return Ok(Subject::Service(ObjectKey::new(namespace, name), port));
        }
        let To(key) = asked.parse().map_err(|reason| {
            let what = format!("{asked:?} is neither NAMESPACE/NAME of a Service, nor an address and port");
            Problem::new("", format!("{what}: {reason}"))
        })?;
        Ok(Subject::Frontend(key))
    }
}

/// Removes Services, and their slices, that share no address and no node port with the subject or its endpoints, since
/// the answer does not depend on them. If nothing would be left, everything stays, so that near matches can be named.
/// `node`: the addresses of this node.
fn keep_what_matters(snapshot: &mut Snapshot, asked: &Subject, node: &[IpAddr]) {
    let (addresses, ports) = match asked {
        Subject::Service(key, _) => match snapshot.services.get(key) {
            Some(service) => (addresses(service).collect(), node_ports(service, node).gather()),
            None => return,
        },
        Subject::Frontend(key) => {
            // Whatever is refused to the Service that has it is told, at its other addresses and ports too.
            let asked = (BTreeSet::from([key.address]), BTreeSet::from([i64::from(key.port)]));
            let having = sharing(snapshot, &asked.0, &asked.1, node);
            let services = || having.iter().filter_map(|key| snapshot.services.get(key));
            let ports = services().flat_map(|service| node_ports(service, node)).chain(asked.1);
            (services().flat_map(|service| self::addresses(service)).chain(asked.0).collect(), ports.gather())
        }
    };
    let mut kept = sharing(snapshot, &addresses, &ports, node);
    if let Subject::Service(key, _) = asked {
        kept.insert(key.clone());
    }
    if kept.is_empty() {
        return;
    }
    // An endpoint may be another Service's address, or a node port.
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (_, slice) in snapshot.slices.iter().filter(|(key, slice)| is_of(key, slice, &kept)) {
        let endpoints = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        addresses.extend(endpoints.filter_map(|text| canonical(text)));
        ports.extend(slice.ports.iter().filter_map(|port| port.port));
    }
    kept.extend(sharing(snapshot, &addresses, &ports, node));
    // No Service gets the addresses of its endpoints.
    kept.insert(ObjectKey::new("default", "kubernetes"));
    snapshot.services.retain(|key, _| kept.contains(key));
    snapshot.slices.retain(|key, slice| is_of(key, slice, &kept));
}

/// Services that have one of these addresses or node ports.
fn sharing(
    snapshot: &Snapshot,
    addresses: &BTreeSet<IpAddr>,
    ports: &BTreeSet<i64>,
    node: &[IpAddr],
) -> BTreeSet<ObjectKey> {
    let shares = |service: &ServiceObject| {
        self::addresses(service).any(|address| addresses.contains(&address))
            || node_ports(service, node).any(|port| ports.contains(&port))
    };
    snapshot.services.iter().filter(|(_, service)| shares(service)).map(|(key, _)| key.clone()).gather()
}

fn is_of(key: &ObjectKey, slice: &EndpointSliceObject, services: &BTreeSet<ObjectKey>) -> bool {
    let service = slice.metadata.labels.get("kubernetes.io/service-name");
    service.is_some_and(|service| services.contains(&ObjectKey::new(key.namespace(), service)))
}

fn canonical(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn addresses(service: &ServiceObject) -> impl Iterator<Item = IpAddr> {
    let spec = &service.spec;
    let balancers = service.status.load_balancer.ingress.iter().filter_map(|ingress| ingress.ip.as_ref());
    let all = spec.cluster_ip.iter().chain(&spec.cluster_ips).chain(&spec.external_ips).chain(balancers);
    all.filter_map(|text| canonical(text))
}

/// The ports that it asks for at addresses of the node: all of them if one of its addresses is the node's.
fn node_ports(service: &ServiceObject, node: &[IpAddr]) -> impl Iterator<Item = i64> {
    let is_here = addresses(service).any(|address| node.contains(&address));
    let ports = service.spec.ports.iter();
    let ports = ports.flat_map(move |port| port.node_port.into_iter().chain(is_here.then_some(port.port)));
    ports.chain(service.spec.health_check_node_port)
}

/// Finds the subject, or explains why there is none and names near matches.
fn find<'a>(
    proxier: &'a Reconciler,
    asked: &Subject,
    objects: &BTreeMap<ObjectKey, Box<ServiceObject>>,
) -> Result<SearchResult<'a>, Vec<String>> {
    let (key, port) = match asked {
        Subject::Service(key, port) => (key, port.clone()),
        Subject::Frontend(key) => {
            let service = proxier.desired().owner(key).and_then(|owner| proxier.store().service(owner));
            let found = service.map(|service| SearchResult { service, port: None, frontend: Some(*key) });
            return found.ok_or_else(|| nobody_has(proxier, *key));
        }
    };
    let Some(service) = proxier.store().service(key) else {
        let mut lines: Vec<String> = proxier.store().unreadable_of(key).map(unreadable_line).collect();
        if lines.is_empty() {
            lines.push(match objects.get(key).and_then(|object| not_programmed(object)) {
                Some(reason) => format!("Service {key} {reason}"),
                None => format!("there is no Service {key} to program{}", near(proxier, &key.to_string())),
            });
        } else {
            lines.push("a running proxy goes on serving it as it was when it could be read".to_owned());
        }
        lines.extend(proxier.rejections().filter(|rejection| rejection.key == *key).map(ToString::to_string));
        return Err(lines);
    };
    if let Some(port) = &port
        && !service.ports.iter().any(|of| *of.name == **port)
    {
        let names: Vec<&str> = service.ports.iter().map(|of| &*of.name).collect();
        return Err(vec![format!("Service {key} has no port {port:?}; it has {}", names.join(", "))]);
    }
    Ok(SearchResult { service, port, frontend: None })
}

/// Why no node programs an existing Service, if that is intended.
fn not_programmed(object: &ServiceObject) -> Option<&'static str> {
    if object.spec.service_type.as_deref() == Some("ExternalName") {
        return Some(
            "is of type ExternalName: cluster DNS gives its clients another name, so nothing is programmed for it",
        );
    }
    let is_headless = object.spec.cluster_ip.iter().chain(&object.spec.cluster_ips).any(|address| address == "None");
    is_headless.then_some("is headless (clusterIP None): cluster DNS gives its clients the addresses of its endpoints, so nothing is programmed for it")
}

/// Why no Service has an address and port, with near matches.
fn nobody_has(proxier: &Reconciler, key: FrontendKey) -> Vec<String> {
    let mut lines = vec![format!("no Service has {key}")];
    let refused = proxier.refused().filter(|refused| refused.key == key);
    lines.extend(refused.map(|refused| format!("Service {} asks for it: {}", refused.service, refused.reason)));
    lines.extend(why_left_out(proxier.store(), proxier.facts(), &key));
    let desired = proxier.desired();
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    // The most similar is the least.
    let distance = |FrontendKey { protocol, address, port }: FrontendKey| {
        let is_other_family = Family::of(address) != key.family();
        (is_other_family, bits(address).abs_diff(bits(key.address)), protocol != key.protocol, port.abs_diff(key.port))
    };
    let mut all: Vec<&Frontend> = desired.frontends().collect();
    all.sort_by_cached_key(|frontend| distance(frontend.key));
    let owner = |frontend: &&Frontend| desired.owner(&frontend.key).map(ToString::to_string).unwrap_or_default();
    lines.extend(all.iter().take(3).map(|frontend| format!("near: {} of Service {}", frontend.key, owner(frontend))));
    lines
}

/// Names of Services that are close to a name that does not exist.
fn near(proxier: &Reconciler, asked: &str) -> String {
    let name = asked.rsplit('/').next().unwrap_or_default();
    let mut names: Vec<(usize, String)> = proxier
        .store()
        .services()
        .map(|service| service.key.to_string())
        .map(|known| {
            let contains = !name.is_empty() && known.contains(name);
            (if contains { 0 } else { strsim::levenshtein(&known, asked) }, known)
        })
        .filter(|(distance, _)| *distance <= 3)
        .collect();
    names.sort_unstable();
    let names: Vec<String> = names.into_iter().take(5).map(|(_, name)| name).collect();
    if names.is_empty() { String::new() } else { format!("; near: {}", names.join(", ")) }
}

/// An endpoint and why it gets traffic or not.
#[derive(Debug)]
struct Endpoint {
    decision: EndpointDecision,
    reason: String,
    weight: u16,
}

#[derive(Debug)]
struct PortPart {
    port: ServicePort,
    frontends: Vec<(Frontend, String)>,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug)]
struct Explanation {
    service: String,
    mode: Kind,
    node: String,
    created: Option<String>,
    policies: Vec<Policy>,
    ports: Vec<PortPart>,
    kernel: Vec<Mention>,
    not_served: Vec<String>,
    left_out: Vec<String>,
    unreadable: Vec<String>,
}

impl Explanation {
    fn new(proxier: &Reconciler, held: &KernelState, found: &SearchResult<'_>, object: Option<&ServiceObject>) -> Self {
        let (store, desired, facts) = (proxier.store(), proxier.desired(), proxier.facts());
        let (service, mode) = (found.service, proxier.mode());
        let is_asked = |key: FrontendKey| found.frontend.is_none_or(|only| only == key);
        let name = service.key.to_string();
        let refused: Vec<Refused> = proxier.refused().filter(|refused| refused.service == name).collect();
        let left_out: BTreeSet<(Protocol, EndpointKey)> =
            refused.iter().filter_map(|refused| Some((refused.key.protocol, refused.endpoint?))).gather();
        let owned: Vec<&Frontend> = desired
            .frontends()
            .filter(|frontend| desired.owner(&frontend.key) == Some(&service.key) && is_asked(frontend.key))
            .collect();
        let mut by_port: BTreeMap<_, Vec<&Frontend>> = BTreeMap::new();
        for frontend in &owned {
            let is_node_port = frontend.roles == Roles::NODE_PORT;
            by_port.entry((is_node_port, frontend.key.protocol, frontend.key.port)).or_default().push(frontend);
        }
        // Whether clients outside and inside can be told apart: in IPVS mode, those outside have another virtual server.
        let tells_apart =
            |frontend: &Frontend| !mode.facts().has_virtual_servers || proxier.split(&frontend.key).is_some();
        let mut ports = Vec::new();
        for port in service.ports.iter().filter(|port| found.port.as_ref().is_none_or(|name| *port.name == **name)) {
            let answers = |frontend: &&Frontend| ((*frontend).clone(), what_answers(frontend, tells_apart(frontend)));
            let numbers = [(false, Some(port.port)), (true, port.node_port)].into_iter();
            let of_port =
                numbers.filter_map(|(is_node_port, number)| by_port.get(&(is_node_port, port.protocol, number?)));
            let mut frontends: Vec<(Frontend, String)> = of_port.flatten().map(answers).collect();
            frontends.sort_unstable_by_key(|(frontend, _)| frontend.key);
            if found.frontend.is_some() && frontends.is_empty() {
                continue;
            }
            let stays =
                !frontends.is_empty() && frontends.iter().all(|(of, _)| stays_on_this_node(of, tells_apart(of)));
            // The Frontends of a port and family share their weights.
            let of_family = |family| frontends.iter().find(|(of, _)| of.key.family() == family);
            let weights = Family::ALL.into_iter().filter_map(|family| of_family(family)?.0.weights.as_deref());
            let weights: BTreeMap<EndpointKey, u16> = weights.flatten().copied().gather();
            let families = Family::ALL.into_iter().filter(|family| service.cluster_ip(*family).is_some());
            let endpoints = families
                .flat_map(|family| endpoint_decisions(service, store.slices_of(&service.key), port, family, facts))
                .map(|mut decision| {
                    if stays {
                        decision.cluster = decision.local;
                    }
                    let mut reason = decision.reason(service, facts);
                    if stays && !decision.is_here() {
                        "the policy is Local, and it is not on this node".clone_into(&mut reason);
                    } else if stays && decision.local && !decision.is_ready() {
                        "no endpoint on this node is ready, and it still serves".clone_into(&mut reason);
                    }
                    if left_out.contains(&(port.protocol, decision.endpoint)) {
                        (decision.cluster, decision.local) = (false, false);
                        "this process listens there itself".clone_into(&mut reason);
                    }
                    let weight = weights.get(&decision.endpoint).copied().unwrap_or(1);
                    Endpoint { decision, reason, weight }
                })
                .collect();
            ports.push(PortPart { port: port.clone(), frontends, endpoints });
        }
        let keys: BTreeSet<FrontendKey> =
            ports.iter().flat_map(|port| port.frontends.iter().map(|(frontend, _)| frontend.key)).gather();
        let marks: Vec<_> = keys.iter().filter_map(|key| proxier.split(key)).collect();
        let not_served = refused.iter().map(|Refused { key, endpoint, reason, .. }| match endpoint {
            Some(endpoint) => format!("{key} by endpoint {endpoint}: {reason}"),
            None => format!("{key}: {reason}"),
        });
        let conflicts = desired.conflicts().filter(|of| *of.owner == service.key);
        let conflicts =
            conflicts.map(|of| format!("{}: asked for by {} too, which does not get it", of.key, of.refused));
        let slices: BTreeSet<&ObjectKey> = store.slices_of(&service.key).map(|slice| &slice.key).gather();
        let is_about = |key: &ObjectKey| *key == service.key || slices.contains(key);
        let rejections = proxier.rejections().filter(|rejection| is_about(&rejection.key));
        Explanation {
            mode,
            node: proxier.node_name().to_owned(),
            created: object.and_then(|object| object.metadata.creation_timestamp.clone()),
            policies: policies(service, object, &owned, proxier),
            kernel: mentions::of(held, &name, facts.config().names.device.as_str(), &keys, &marks),
            not_served: not_served.chain(conflicts).collect(),
            left_out: rejections.map(ToString::to_string).collect(),
            unreadable: store.unreadable_of(&service.key).map(unreadable_line).collect(),
            service: name,
            ports,
        }
    }

    fn lines(&self) -> Vec<String> {
        let created = self.created.as_ref().map(|at| format!(", made {at}")).unwrap_or_default();
        let mut lines = vec![format!("Service {}{created}; node {}, {} mode", self.service, self.node, self.mode)];
        for Policy { what, value, from } in &self.policies {
            lines.push(format!("  {what}: {value} ({from})"));
        }
        for part in &self.ports {
            let port = &part.port;
            let name = if port.name.is_empty() { String::new() } else { format!(" {}", port.name) };
            let node_port = port.node_port.map(|number| format!(", node port {number}")).unwrap_or_default();
            lines.push(format!("port{name}: {} {}{node_port}", port.protocol, port.port));
            for (frontend, answers) in &part.frontends {
                lines.push(format!("  {} ({}): {answers}", frontend.key, kinds(frontend).join(", ")));
            }
            if part.frontends.is_empty() {
                lines.push("  served nowhere on this node".to_owned());
            }
            lines.push(if part.endpoints.is_empty() { "  no endpoints".to_owned() } else { "  endpoints:".to_owned() });
            for Endpoint { decision, reason, weight } in &part.endpoints {
                let here = if decision.is_here() { ", on this node" } else { "" };
                let gets = if decision.cluster { "gets traffic" } else { "gets none" };
                let local =
                    if decision.local && !decision.cluster { "; gets what has to stay on this node" } else { "" };
                let state = decision.condition();
                let weight = match weight {
                    1 => String::new(),
                    0 => "; weight 0, so no new connections".to_owned(),
                    weight => format!("; weight {weight}"),
                };
                lines.push(format!("    {} {state}{here}: {gets}, {reason}{local}{weight}", decision.endpoint));
            }
        }
        let mut listed = |title: &str, list: &[String]| {
            if !list.is_empty() {
                lines.push(title.to_owned());
                lines.extend(list.iter().map(|line| format!("  {line}")));
            }
        };
        listed("addresses and ports that are asked for twice or refused:", &self.not_served);
        listed("left out of its objects:", &self.left_out);
        listed("cannot be read; a running proxy keeps what was read before:", &self.unreadable);
        let kernel: Vec<String> = self.kernel.iter().map(|one| format!("{}: {}", one.tool, one.line)).collect();
        listed("in the kernel, once programmed:", &kernel);
        lines
    }

    fn json(&self) -> Value {
        let ports = self.ports.iter().map(|part| {
            json!({
                "name": &*part.port.name,
                "protocol": part.port.protocol.to_string(),
                "port": part.port.port,
                "nodePort": part.port.node_port,
                "frontends": part.frontends.iter().map(|(frontend, answers)| json!({
                    "key": frontend.key.to_string(),
                    "kinds": kinds(frontend),
                    "policy": policy_name(frontend.policy),
                    "affinitySeconds": frontend.affinity_secs,
                    "sourceRanges": frontend.source_ranges.as_deref().map(|ranges| {
                        ranges.iter().map(ToString::to_string).collect::<Vec<_>>()
                    }),
                    "endpoints": frontend.endpoints().iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "says": answers,
                })).collect::<Vec<_>>(),
                "endpoints": part.endpoints.iter().map(|Endpoint { decision, reason, weight }| json!({
                    "address": decision.endpoint.to_string(),
                    "condition": decision.condition(),
                    "ready": decision.is_ready(),
                    "serving": decision.is_serving(),
                    "terminating": decision.is_terminating(),
                    "local": decision.is_here(),
                    "zones": decision.zones,
                    "getsTraffic": decision.cluster,
                    "getsLocalTraffic": decision.local,
                    "reason": reason,
                    "weight": weight,
                })).collect::<Vec<_>>(),
            })
        });
        json!({
            "service": self.service,
            "node": self.node,
            "mode": self.mode.name(),
            "policies": self.policies,
            "ports": ports.collect::<Vec<_>>(),
            "refused": self.not_served,
            "rejected": self.left_out,
            "unreadable": self.unreadable,
            "kernel": self.kernel,
        })
    }
}

fn kinds(frontend: &Frontend) -> Vec<&'static str> {
    crate::status::page::kinds(frontend.roles).map(|(words, _)| words).collect()
}

/// Whether all traffic to it goes to endpoints on this node. Where clients can be told apart, this node and its pods reach all
/// endpoints by external addresses.
fn stays_on_this_node(frontend: &Frontend, tells_apart: bool) -> bool {
    let falls_back = frontend.falls_back && frontend.local.is_empty();
    let is_inside = frontend.roles.contains(Roles::CLUSTER_IP);
    frontend.policy == TrafficPolicy::Local && !falls_back && (is_inside || !tells_apart)
}

/// Endpoints, or the refusal, that answer at a Frontend.
fn what_answers(frontend: &Frontend, tells_apart: bool) -> String {
    let count = |number: usize| match number {
        0 => "no endpoint".to_owned(),
        1 => "1 endpoint".to_owned(),
        number => format!("{number} endpoints"),
    };
    let (all, here) = (count(frontend.cluster.len()), count(frontend.local.len()));
    let says = match (frontend.policy, frontend.roles.contains(Roles::CLUSTER_IP)) {
        (TrafficPolicy::Cluster, _) => format!("policy Cluster, {all}"),
        (TrafficPolicy::Local, false) if tells_apart => {
            format!("policy Local, {here} on this node, and {all} on all nodes for this node and its pods")
        }
        (TrafficPolicy::Local, false) if frontend.falls_back && frontend.local.is_empty() => {
            format!("policy Local, none on this node, so {all} on all nodes")
        }
        (TrafficPolicy::Local, _) => format!("policy Local, {here} on this node"),
    };
    match frontend.source_ranges.as_deref() {
        Some(ranges) => {
            let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            format!("{says}; only from {}", ranges.join(", "))
        }
        None => says,
    }
}
