//! `diff`: what clients will see differently in another mode, in words. Needs no kernel and no privilege, except for
//! `--from kube-proxy`: it follows from the Services' meaning in each mode, which tests compare with real packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use ipvs::model::SnapshotEntry;
use proxier_core::config::LocalTraffic;
use proxier_core::engine::Reconciler;
use proxier_core::inspect::list_frontends;
use proxier_core::modes::Kind;
use proxier_core::modes::nftables::list_kube_proxy;
use proxier_core::net::{EndpointKey, Family, FrontendKey};
use proxier_core::service::{Packet, Reached, Trace, Verdict};
use proxier_core::sketch::Sketch;
use proxier_core::snapshot::ObjectKind;
use serde::Serialize;
use serde_json::{Value, json};

use crate::commands::live::addresses_of_host;
use crate::commands::once::{exit_code, input};
use crate::commands::render::{Simulated, simulate, warn_of_no_address};
use crate::commands::trace::packet;
use crate::engine::{Engine, kernel};
use crate::exit::DIFFERS;
use crate::gather::Gather as _;
use crate::output::lines;
use crate::problem::{Problem, Stopped};
use crate::settings::cli::Configured;
use crate::settings::cli::packet::{Sender, To, TraceRequest};

/// Stands for a Service where the kernel serves something without one.
const NO_SERVICE: &str = "no Service:";

/// Most Frontends of a Service in one line.
const FEW: usize = 3;

/// Prints what clients of each Service will see differently when this node changes to the configured mode, or to `to`.
/// Exit code 0: nothing differs. 3: something does. 1: no input, or the kernel cannot be read. 2: bad input, or some of
/// it could not be read.
pub async fn diff(configured: &Configured, from: Option<Kind>, to: Option<Kind>) -> Result<ExitCode, Stopped> {
    let found = match from {
        Some(mode) => Found { mode, endpoints: None, addresses: Vec::new() },
        None => Found::read(configured)?,
    };
    let to = to.unwrap_or(configured.settings.mode);
    let (snapshot, unreadable) = input(configured).await?;
    let serve = |mode| -> Result<Side, Stopped> {
        let mut configured = configured.in_mode(mode).map_err(Stopped::bad_input)?;
        if configured.node_addresses.is_empty() {
            configured.node_addresses.clone_from(&found.addresses);
        }
        let Simulated { engine, addresses, .. } = simulate(&configured, snapshot.clone())?;
        Ok(Side { engine, addresses, configured })
    };
    let (before, after) = (serve(found.mode)?, serve(to)?);
    warn_of_no_address(configured, &before.addresses);
    let differences = Differences::new(&before, &after, &found);
    let is_printed = configured.output.print(|| lines(differences.lines()), || differences.json());
    let differs = is_printed && unreadable.is_empty() && !differences.services.is_empty();
    Ok(if differs { ExitCode::from(DIFFERS) } else { exit_code(is_printed, &unreadable) })
}

/// The mode that serves before, and its objects in the kernel if a kube-proxy has left them.
struct Found {
    mode: Kind,
    /// Endpoints by Frontend in the kernel, if they can be read. Node ports are at address 0, except in IPVS mode.
    endpoints: Option<BTreeMap<FrontendKey, BTreeSet<EndpointKey>>>,
    /// The addresses of this host, without Services'; empty if not read.
    addresses: Vec<IpAddr>,
}

impl Found {
    /// Reads what a kube-proxy in any mode has left in this kernel.
    fn read(configured: &Configured) -> Result<Self, Problem> {
        let mut kernel = kernel::open()?;
        let mut ports = kernel.ports();
        let host = ports.links.addresses()?;
        let names = &configured.settings.core.names;
        let (device, addresses) = (names.device.as_str(), addresses_of_host(&host, names));
        // A virtual server may belong to another program; the device belongs to kube-proxy or this program.
        let is_there = host.interfaces.contains_key(device);
        if let Some(snapshot) = ports.ipvs.snapshot().ok().filter(|_| is_there) {
            let of_entry = |entry: &SnapshotEntry| {
                let key = FrontendKey::try_from(entry.virtual_server.server.key).ok()?;
                let taking = entry.real_servers.iter().filter(|real| real.server.config.weight.get() > 0);
                Some((key, taking.map(|real| EndpointKey::new(real.server.key.addr, real.server.key.port)).gather()))
            };
            let endpoints = snapshot.entries.iter().filter_map(of_entry).gather();
            return Ok(Found { mode: Kind::Ipvs, endpoints: Some(endpoints), addresses });
        }
        let side = Engine::in_memory(configured, Sketch::default());
        let known = (side.proxier().facts(), side.proxier().desired());
        let served = list_frontends(Kind::Iptables, known.0, known.1, &mut ports).unwrap_or_default();
        if !served.is_empty() {
            let endpoints =
                served.into_iter().map(|(key, served)| (key, served.endpoints.unwrap_or_default())).gather();
            return Ok(Found { mode: Kind::Iptables, endpoints: Some(endpoints), addresses });
        }
        let Some(endpoints) = list_kube_proxy(ports.tables)? else {
            let nothing = format!("no {device}, no chain KUBE-SERVICES, no table kube-proxy");
            let reason = format!("no kube-proxy has left anything here ({nothing}): give --from and a mode");
            return Err(Problem::new("", reason));
        };
        Ok(Found { mode: Kind::Nftables, endpoints: Some(endpoints), addresses })
    }

    /// The kernel's endpoints for a Frontend, if they can be read.
    fn endpoints(&self, key: &FrontendKey) -> Option<BTreeSet<EndpointKey>> {
        let all = self.endpoints.as_ref()?;
        let any = FrontendKey { address: key.family().unspecified(), ..*key };
        let found = all.get(key).or_else(|| all.get(&any));
        Some(found.cloned().unwrap_or_default())
    }
}

/// A mode, as it would serve.
struct Side {
    engine: Engine<Sketch>,
    addresses: Vec<IpAddr>,
    configured: Configured,
}

impl Side {
    fn proxier(&self) -> &Reconciler {
        self.engine.proxier()
    }

    /// What happens to a packet of this client; `None` if the client does not exist.
    fn trace(&self, client: Client, to: FrontendKey) -> Option<Trace> {
        let proxier = self.proxier();
        let packet = match client {
            Client::Pod => {
                let device = match &proxier.facts().config().local_traffic {
                    LocalTraffic::BridgeInterface(name) | LocalTraffic::InterfaceNamePrefix(name) => {
                        Some(name.to_string())
                    }
                    LocalTraffic::ClusterCidrs(_) | LocalTraffic::NodeCidr => None,
                };
                // Where the device tells pods, any address will do.
                let any = device.as_ref().map(|_| Sender::Outside);
                let from = pod(proxier, to.family()).map(Sender::Address).or(any)?;
                packet(&TraceRequest { from, to: To(to), device, live: None }, &self.addresses, proxier).ok()?
            }
            Client::InRange => {
                let ranges = proxier.desired().frontend(&to)?.source_ranges.clone()?;
                let of_family = ranges.iter().find(|range| Family::of(range.addr()) == to.family())?;
                Packet::new(of_family.addr(), to)
            }
            Client::Node | Client::Outside => {
                let from = if client == Client::Node { Sender::Node } else { Sender::Outside };
                let asked = TraceRequest { from, to: To(to), device: None, live: None };
                packet(&asked, &self.addresses, proxier).ok()?
            }
        };
        Some(self.engine.trace(&packet, &self.configured.settings))
    }

    /// Rejected requests of Services, and Frontends that are not served, in words: by object and what is refused. An
    /// annotation that one mode refuses and another ignores counts as the same.
    fn refused(&self) -> BTreeMap<(String, String), String> {
        let mut refused = BTreeMap::new();
        for of in self.proxier().rejections() {
            let says = format!("{} {}: {}", of.field, of.value, of.reason);
            let mut note = |what: String, says: String| {
                refused.insert((of.key.to_string(), what), says);
            };
            if of.field == "metadata.annotations" {
                for name in of.value.split(", ") {
                    let field = format!("metadata.annotations[{name}]");
                    note(field.clone(), format!("{field}: {}", of.reason));
                }
            } else if of.kind == ObjectKind::Service && of.field.starts_with("metadata.annotations[") {
                note(of.field.clone(), says);
            } else {
                note(says.clone(), says);
            }
        }
        refused.extend(self.proxier().refused().map(|of| ((of.service.clone(), of.to_string()), of.to_string())));
        refused
    }
}

/// The address of a pod of this node, or of any pod if the Node object has no network of pods.
fn pod(proxier: &Reconciler, family: Family) -> Option<IpAddr> {
    let facts = proxier.facts();
    let of_cluster = || match &facts.config().local_traffic {
        LocalTraffic::ClusterCidrs(all) => all.iter().copied().find(|network| Family::of(network.addr()) == family),
        _ => None,
    };
    Some(match facts.pod_cidr(family).or_else(of_cluster)?.network() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits().saturating_add(2)).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits().saturating_add(2)).into(),
    })
}

/// Clients whose packets may be treated differently.
#[derive(Clone, Copy, PartialEq)]
enum Client {
    Node,
    Pod,
    Outside,
    InRange,
}

const CLIENTS: [(Client, &str); 4] = [
    (Client::Node, "this node"),
    (Client::Pod, "a pod of this node"),
    (Client::Outside, "a client outside"),
    (Client::InRange, "a client in the source ranges"),
];

/// What happens to a client's connections, in words.
fn fate(trace: &Trace) -> String {
    let stays = trace.affinity_secs.map_or_else(String::new, |secs| format!(", stays for {secs} s"));
    match &trace.verdict {
        Verdict::LeftAlone => "not served here".to_owned(),
        Verdict::Dropped => "dropped: the client waits".to_owned(),
        Verdict::Rejected => "refused at once".to_owned(),
        Verdict::Endpoints(reached) => {
            let endpoint = |one: &Reached| match one.weight {
                1 => one.endpoint.to_string(),
                weight => format!("{} (weight {weight})", one.endpoint),
            };
            let shown = few(reached.iter().map(endpoint), " or ");
            let masqueraded = reached.iter().filter(|one| one.masqueraded).count();
            let source = match (masqueraded, &trace.forwarding) {
                (_, Some(method)) => format!("answers directly ({method})"),
                (0, None) => "sees the client's address".to_owned(),
                (all, None) if all == reached.len() => "sees this node's address".to_owned(),
                (some, None) => format!("sees this node's address at {some} of {}", reached.len()),
            };
            format!("gets {shown}, which {source}{stays}")
        }
        _ => "unknown".to_owned(),
    }
}

/// The first few of these, and the number of the rest.
fn few(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = match all.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    all.take(FEW).collect::<Vec<_>>().join(between) + &more
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Difference {
    /// Client, or another subject.
    who: String,
    before: String,
    after: String,
}

/// By Service; then by what differs, with the Frontends.
type ByService = BTreeMap<String, BTreeMap<Vec<Difference>, Vec<FrontendKey>>>;

struct Differences {
    from: Kind,
    to: Kind,
    all: Vec<String>,
    total: usize,
    services: ByService,
}

impl Differences {
    fn new(before: &Side, after: &Side, found: &Found) -> Self {
        let (from, to) = (before.proxier().mode(), after.proxier().mode());
        let mut services = ByService::new();
        let keys = |side: &Side| side.proxier().desired().frontends().map(|frontend| frontend.key).collect::<Vec<_>>();
        let all: BTreeSet<FrontendKey> = keys(before).into_iter().chain(keys(after)).gather();
        let owner = |key: &FrontendKey| {
            let owner = [after, before].into_iter().find_map(|side| side.proxier().desired().owner(key));
            owner.map(ToString::to_string).unwrap_or_default()
        };
        let mut names = BTreeSet::new();
        for key in all {
            names.insert(owner(&key));
            let mut differs: Vec<Difference> = Vec::new();
            for (client, who) in CLIENTS {
                let fates = (before.trace(client, key), after.trace(client, key));
                if let (Some(before), Some(after)) = (fates.0.as_ref().map(fate), fates.1.as_ref().map(fate))
                    && before != after
                {
                    differs.push(Difference { who: who.to_owned(), before, after });
                }
            }
            differs.extend(stale(found, before, &key));
            if !differs.is_empty() {
                services.entry(owner(&key)).or_default().entry(differs).or_default().push(key);
            }
        }
        let ports: BTreeSet<_> = keys(after).into_iter().map(|key| (key.protocol, key.port)).gather();
        let is_wanted = |key: &FrontendKey| {
            let is_port = key.address.is_unspecified() && ports.contains(&(key.protocol, key.port));
            is_port || after.proxier().desired().frontend(key).is_some()
        };
        for (key, endpoints) in found.endpoints.iter().flatten().filter(|_| !from.facts().has_virtual_servers) {
            if !is_wanted(key) {
                let gone = Difference {
                    who: "everybody".to_owned(),
                    before: format!("gets {}", list(endpoints)),
                    after: "not served".to_owned(),
                };
                services.entry(NO_SERVICE.to_owned()).or_default().entry(vec![gone]).or_default().push(*key);
            }
        }
        let known = before.refused();
        for ((object, what), who) in after.refused() {
            if !known.contains_key(&(object.clone(), what)) {
                let difference = Difference { who, before: "done".to_owned(), after: "not done".to_owned() };
                services.entry(object).or_default().entry(vec![difference]).or_default();
            }
        }
        Differences { from, to, all: of_all(from, to), total: names.len(), services }
    }

    fn lines(&self) -> Vec<String> {
        let mut said = Vec::new();
        for (service, groups) in &self.services {
            for (differs, keys) in groups {
                let shown = few(keys.iter().map(ToString::to_string), ", ");
                said.push(format!("{service} {shown}").trim_end().to_owned());
                // A refused request has no Frontends.
                said.extend(differs.iter().map(|Difference { who, before, after }| {
                    if keys.is_empty() { format!("  {who}") } else { format!("  {who}: {before} → {after}") }
                }));
            }
        }
        let (from, to) = (self.from, self.to);
        let differ = self.services.keys().filter(|service| *service != NO_SERVICE).count();
        said.push(format!("{differ} of {} Services differ, from {from} to {to}", self.total));
        said.extend(self.all.iter().map(|line| format!("all: {line}")));
        said
    }

    fn json(&self) -> Value {
        let of_group = |(differs, keys): (&Vec<Difference>, &Vec<FrontendKey>)| {
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            json!({"frontends": keys, "differences": differs})
        };
        let services: Vec<Value> = self
            .services
            .iter()
            .map(|(service, groups)| json!({"service": service, "groups": groups.iter().map(of_group).collect::<Vec<_>>()}))
            .collect();
        json!({"from": self.from.name(), "to": self.to.name(), "services": services, "ofServices": self.total, "all": self.all})
    }
}

/// A Frontend for which the kernel has other endpoints than the Services.
fn stale(found: &Found, before: &Side, key: &FrontendKey) -> Option<Difference> {
    let held = found.endpoints(key)?;
    let frontend = before.proxier().desired().frontend(key)?;
    let wanted: BTreeSet<EndpointKey> = frontend.endpoints().iter().copied().gather();
    // Chains forward to the lists for all clients.
    let all: BTreeSet<EndpointKey> = frontend.cluster.iter().chain(frontend.local.iter()).copied().gather();
    let is_same = if found.mode.facts().has_virtual_servers {
        held == wanted
    } else {
        held.is_subset(&all) && wanted.is_subset(&held)
    };
    (!is_same).then(|| Difference {
        who: "endpoints in the kernel, and as the Services say".to_owned(),
        before: list(&held),
        after: list(&wanted),
    })
}

fn list(endpoints: &BTreeSet<EndpointKey>) -> String {
    match endpoints.len() {
        0 => "none".to_owned(),
        _ => endpoints.iter().map(|of| SocketAddr::from(*of).to_string()).collect::<Vec<_>>().join(", "),
    }
}

fn of_all(from: Kind, to: Kind) -> Vec<String> {
    if from == to {
        return Vec::new();
    }
    let (from, to) = (from.facts(), to.facts());
    let mut said = Vec::new();
    for (before, after, off, on) in [
        (
            from.makes_addresses_local,
            to.makes_addresses_local,
            "addresses of Services answer no ping any more, and no device or route of this node has them",
            "addresses of Services are this node's own, and answer pings",
        ),
        (
            from.closes_cluster_ips,
            to.closes_cluster_ips,
            "ports of a cluster IP that no Service has are not refused any more: packets to them leave the node",
            "ports of a cluster IP that no Service has are refused; until now packets to them left the node",
        ),
    ] {
        if before != after {
            said.push(if after { on } else { off }.to_owned());
        }
    }
    let continue_or_end = if !from.translates_packets || to.is_process { "end" } else { "continue" };
    said.push(format!("open connections {continue_or_end} when the mode changes"));
    if from.choice != to.choice {
        said.push(format!(
            "endpoints are chosen {}, not {}, where a Service asks for nothing else",
            to.choice, from.choice
        ));
    }
    said
}
