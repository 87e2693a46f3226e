//! Lists and watches Services, EndpointSlices and this node's Node on an API server.
//!
//! Each kind is one list from the server's cache, and a watch from its version. Objects are read one at a time and
//! reported at once; memory holds a key and a version for each. After an interruption the watch resumes. If its version
//! is too old, all objects are requested again, only differences are reported, and absent objects are reported as
//! missing. No failure ends the source: it retries after growing pauses of up to half a minute, or when the server asks
//! for it.
//!
//! kube's `watcher` is not used, because it hides `Retry-After` and reports all objects again after an interruption;
//! this source compares versions instead.

mod client;
mod credentials;
mod encoding;
mod kubeconfig;
mod objects;
mod protobuf;
pub mod requests;
mod versions;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use proxier_core::config::{LocalTraffic, MayAskFor};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) use self::client::{Failure, FailureKind, Session, post, uid_of};
use self::objects::{CidrVersion, Resource};
pub(crate) use self::objects::{is_leaving, without_notes_of_service, without_notes_of_slice};
use self::watch::Watcher;
use crate::message::change::Change;
use crate::message::{Changes, Closed};
use crate::problem::Problem;
use crate::settings::Settings;
pub use crate::settings::cli::Connection;

/// Times and sizes. The defaults suit clusters; tests shorten them.
#[expect(clippy::struct_excessive_bools, reason = "each is one kind of object that is watched, or waited for")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Objects in a page of a list that is too large as a whole. Default 500; fewer if such pages are too large.
    pub page: usize,
    /// Limit of what a list or page takes while it arrives, in bytes: all of it in JSON, an object in protobuf. Default
    /// 64 MiB.
    pub page_bytes: usize,
    /// Longest wait for an answer's head, and for each piece of it. Default 30 s.
    pub patience: Duration,
    /// Longest silence of a watch before it counts as broken. Servers send a bookmark every minute. Default 150 s.
    pub silence: Duration,
    /// How long the server keeps a watch open. Default 5 minutes.
    pub watch: Duration,
    /// The first pause after a failure; doubles each time. Default 0.5 s.
    pub first_pause: Duration,
    /// The longest pause, unless the server requests a longer one. Default 30 s.
    pub longest_pause: Duration,
    /// How long the initial list waits for the Node once it has Services and slices. Default 10 s.
    pub node_patience: Duration,
    /// Whether the initial list waits for the Node's pod network (`detectLocalMode: NodeCIDR`), without which local pod
    /// traffic is not detected. Default no.
    pub needs_pod_cidr: bool,
    /// Longest wait for the Node's pod network before the source gives up. Default 5 minutes, as in kube-proxy.
    pub pod_cidr_patience: Duration,
    /// Whether all Nodes are watched for their weights; the initial list waits for them as for the Node. Default no. If
    /// the server forbids it, nodes have no weights.
    pub node_weights: bool,
    /// Whether all Nodes are watched for their addresses, so that no other node makes them local. Default no.
    pub node_addresses: bool,
    /// Whether ServiceCIDRs are watched for the networks of cluster IPs; the initial list waits for them as for the
    /// Node. Default no. If the server does not have or forbids them, the configured networks apply.
    pub service_cidrs: bool,
    /// Pause before a kind that the server lacks or forbids is requested again. Default 5 minutes.
    pub absent_pause: Duration,
    /// Whether protobuf is requested, which is smaller and faster to read; a server without it answers in JSON. Default
    /// yes.
    pub protobuf: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            page: 500,
            page_bytes: 64 << 20,
            patience: Duration::from_secs(30),
            silence: Duration::from_secs(150),
            watch: Duration::from_secs(300),
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            node_patience: Duration::from_secs(10),
            needs_pod_cidr: false,
            pod_cidr_patience: Duration::from_secs(300),
            node_weights: false,
            node_addresses: false,
            service_cidrs: false,
            absent_pause: Duration::from_secs(300),
            protobuf: true,
        }
    }
}

impl Options {
    pub fn from_settings(settings: &Settings) -> Self {
        let needs_pod_cidr = settings.core.local_traffic == LocalTraffic::NodeCidr;
        let may_weigh = settings.core.ipvs.may_ask_for.contains(MayAskFor::NODE_WEIGHTS);
        let node_weights = may_weigh && settings.mode.facts().follows_policy();
        let node_addresses = settings.mode.facts().makes_addresses_local;
        let by_routes = settings.mode.makes_addresses_local_by_routes(&settings.core);
        let service_cidrs = by_routes || settings.mode.facts().is_process;
        let protobuf = settings.protobuf;
        Options { needs_pod_cidr, node_weights, node_addresses, service_cidrs, protobuf, ..Options::default() }
    }

    /// Whether these options watch everything that `other` watches.
    pub(crate) fn cover(&self, other: &Options) -> bool {
        let wanted = |options: &Options| {
            [options.needs_pod_cidr, options.node_weights, options.node_addresses, options.service_cidrs]
        };
        wanted(self).iter().zip(wanted(other)).all(|(ours, theirs)| *ours || !theirs)
    }

    fn all_nodes(&self) -> bool {
        self.node_weights || self.node_addresses
    }
}

#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that failed and watches that broke.
    pub failures: AtomicU64,
    failing: Mutex<BTreeMap<&'static str, Failing>>,
}

/// A kind whose requests to the API server fail.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    /// Time of the first failure since one has worked, for people.
    pub(crate) since: SystemTime,
    /// The same, by a clock that nobody sets.
    begun: Instant,
    pub(crate) error: String,
}

impl Failing {
    pub(crate) fn lasts(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Counters {
    fn failing(&self) -> MutexGuard<'_, BTreeMap<&'static str, Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed(&self, kind: &'static str, (at, begun): (SystemTime, Instant), error: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut failing = self.failing();
        let of_kind = failing.entry(kind).or_insert_with(|| Failing { since: at, begun, error: String::new() });
        // The clock may have been set back.
        of_kind.since = of_kind.since.min(at);
        error.clone_into(&mut of_kind.error);
    }

    pub(crate) fn worked(&self, kind: &'static str) {
        self.failing().remove(kind);
    }

    /// The kinds whose requests have failed for this long or longer.
    pub(crate) fn failing_for(&self, long: Duration) -> Vec<(&'static str, Failing)> {
        self.failing().iter().filter(|(_, of)| of.lasts() >= long).map(|(kind, of)| (*kind, of.clone())).collect()
    }
}

/// A running source. It ends when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    counters: Arc<Counters>,
    gate: Arc<Gate>,
    _tasks: JoinSet<()>,
    gave_up: oneshot::Receiver<Result<(), Problem>>,
}

impl Cluster {
    /// Starts to list and watch, as seen from the node with this name. Must be called within a tokio runtime.
    ///
    /// The server need not be reachable yet, but a kubeconfig must exist.
    /// Errors: the kubeconfig or its credentials cannot be read, or nothing is configured outside of a pod.
    pub async fn start(
        connection: Connection,
        node_name: &str,
        options: Options,
        changes: Changes,
    ) -> Result<Self, Problem> {
        let session = Arc::new(Session::new(connection));
        session.current().await?;
        let counters = Arc::new(Counters::default());
        let gate = Arc::new(Gate::new(changes.clone(), &options));
        let options = Arc::new(options);
        let mut tasks = JoinSet::new();
        let nodes = options.all_nodes().then_some(Resource::AllNodes { addresses: options.node_addresses });
        let resources = [Resource::Services, Resource::EndpointSlices, Resource::Node(node_name.to_owned())];
        let cidrs = options.service_cidrs.then(|| Resource::ServiceCidrs(CidrVersion::default()));
        for resource in resources.into_iter().chain(nodes).chain(cidrs) {
            let watcher = Watcher {
                resource,
                session: session.clone(),
                used: AtomicU64::new(0),
                options: options.clone(),
                changes: changes.clone(),
                gate: gate.clone(),
                counters: counters.clone(),
            };
            tasks.spawn(watcher.run());
        }
        let (gives_up, gave_up) = oneshot::channel();
        if options.needs_pod_cidr {
            let (gate, node_name) = (gate.clone(), node_name.to_owned());
            let patience = options.pod_cidr_patience;
            tasks.spawn(async move {
                let _nobody_may_wait = gives_up.send(gate.wait_for_pod_cidr(&node_name, patience).await);
            });
        }
        let waits = gate.clone();
        tasks.spawn(async move { waits.do_without_node(options.node_patience).await });
        Ok(Cluster { counters, gate, _tasks: tasks, gave_up })
    }

    /// Completes when the wait for the initial list ends, successfully or not. Call it only once.
    pub fn giving_up(&mut self) -> impl Future<Output = Result<(), Problem>> + Send + use<> {
        let (_, nothing) = oneshot::channel();
        let gave_up = std::mem::replace(&mut self.gave_up, nothing);
        async { gave_up.await.unwrap_or(Ok(())) }
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The kinds for which the initial list still waits; `podCIDR` stands for the Node's pod network, `all nodes` for
    /// all Nodes.
    pub fn outstanding(&self) -> Vec<&'static str> {
        self.gate.outstanding.borrow().clone()
    }
}

/// Holds back [`Change::Synced`] until every kind has been listed once.
#[derive(Debug)]
struct Gate {
    /// Kinds whose first list is incomplete.
    outstanding: tokio::sync::watch::Sender<Vec<&'static str>>,
    changes: Changes,
}

const NODES: &str = "nodes";
/// Name of the watch of all Nodes among the awaited kinds.
const ALL_NODES: &str = "all nodes";
/// Plural of ServiceCIDR, as RBAC rules name it.
const SERVICE_CIDRS: &str = "servicecidrs";
/// Name of the Node's pod network among the awaited kinds; not a kind itself.
const POD_CIDR: &str = "podCIDR";
/// Interval between two log messages about the wait.
const REMINDER: Duration = Duration::from_secs(30);

impl Gate {
    fn new(changes: Changes, options: &Options) -> Self {
        let mut outstanding = vec!["services", "endpointslices", NODES];
        outstanding.extend(options.all_nodes().then_some(ALL_NODES));
        outstanding.extend(options.service_cidrs.then_some(SERVICE_CIDRS));
        outstanding.extend(options.needs_pod_cidr.then_some(POD_CIDR));
        Gate { outstanding: tokio::sync::watch::Sender::new(outstanding), changes }
    }

    /// Waits until what is outstanding fulfils a condition.
    async fn until(&self, holds: impl Fn(&[&'static str]) -> bool) {
        // The sender lives as long as `self`.
        let _never_closed = self.outstanding.subscribe().wait_for(|outstanding| holds(outstanding)).await.is_ok();
    }

    /// Waits at most this long for the Node's pod network, and logs that occasionally.
    async fn wait_for_pod_cidr(&self, node_name: &str, patience: Duration) -> Result<(), Problem> {
        let what = format!("spec.podCIDR of Node {node_name}, for detectLocalMode NodeCIDR");
        let deadline = Instant::now() + patience;
        // The first message is delayed, because most Nodes have the network from the start.
        let mut pause = Duration::from_secs(1);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if tokio::time::timeout(pause.min(left), self.until(|of| !of.contains(&POD_CIDR))).await.is_ok() {
                return Ok(());
            }
            if left <= pause {
                let reason = format!("missing after {} s; set it, or another detectLocalMode", patience.as_secs());
                return Err(Problem::new(what, reason));
            }
            tracing::warn!("waiting for {what}; kube-controller-manager sets it (--allocate-node-cidrs)");
            pause = REMINDER;
        }
    }

    async fn listed(&self, plural: &str) -> Result<(), Closed> {
        let mut is_complete = false;
        self.outstanding.send_modify(|outstanding| {
            let before = outstanding.len();
            outstanding.retain(|other| *other != plural);
            is_complete = before == 1 && outstanding.is_empty();
        });
        if is_complete { self.changes.send(Change::Synced).await } else { Ok(()) }
    }

    /// Services can be served without Nodes and ServiceCIDRs, but with limits: node ports on all addresses, no zone, no
    /// weights, a route for each address.
    async fn do_without_node(&self, patience: Duration) {
        self.until(|of| of.iter().all(|other| [NODES, ALL_NODES, SERVICE_CIDRS].contains(other))).await;
        tokio::time::sleep(patience).await;
        let missing = self.outstanding.borrow().clone();
        let what = match missing.as_slice() {
            [] => return,
            [ALL_NODES] => "all Nodes",
            [SERVICE_CIDRS] => "ServiceCIDRs",
            _ => "the Node",
        };
        tracing::warn!("{what} could not be read in {} s; going on without", patience.as_secs());
        for plural in missing {
            if self.listed(plural).await == Err(Closed) {
                tracing::debug!("nobody takes changes any more");
            }
        }
    }
}
