//! The reconciler's state, in groups.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::drains::Drains;
use super::options::Options;
use super::own_transactions::OwnTables;
use super::schedule::Schedule;
use super::surroundings::Cluster;
use crate::config::{Config, KernelNames, MayAskFor};
use crate::modes::localhost_relay::LocalhostNodePorts;
use crate::modes::shared::networks;
use crate::modes::{Kind, Mode, fast_path};
use crate::net::is_reachable;
use crate::plan::report::{Refused, Totals};
use crate::plan::step::{Part, Step};
use crate::safeguard::Safeguard;
use crate::service::{Changes, Desired, NodeFacts};
use crate::snapshot::{HostAddresses, ObjectKey, Store};
use crate::time::Moment;

/// The reconciler of one node. It keeps the desired state, tracks the kernel's, and brings the kernel to the desired
/// one.
///
/// A state machine: it acts only when called, and gets the time as `now`. Objects go in as they change;
/// [`Reconciler::pass`] programs them. A pass for changes costs O(changed objects); a full pass reads the kernel: at
/// the start, every [`Limits::max_interval`](super::Limits::max_interval), after a failure and on request.
///
/// Before [`Reconciler::start`] nothing is changed: half a list of Services would delete the other half.
#[derive(Debug)]
pub struct Reconciler {
    pub(super) options: Options,
    pub(super) store: Store,
    pub(super) cluster: Cluster,
    pub(super) host: Host,
    pub(super) facts: NodeFacts,
    pub(super) desired: Desired,
    pub(super) backlog: Backlog,
    pub(super) mode: Box<dyn Mode>,
    pub(super) add_ons: AddOns,
    pub(super) safeguards: Safeguards,
    pub(super) schedule: Schedule,
    pub(super) trust: Trust,
    pub(super) flows: Flows,
    pub(super) tables: OwnTables,
    pub(super) totals: Totals,
}

/// What passes track about this host.
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the host, and none excludes another")]
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) addresses: HostAddresses,
    /// Whether the addresses or default routes may have changed.
    pub(super) is_stale: bool,
    /// Lost addresses, and when each is given up.
    pub(super) absent: BTreeMap<IpAddr, Moment>,
    /// Whether connection tracking treats packets outside a connection's window as valid, as the last full pass found.
    pub(super) tcp_is_liberal: bool,
    pub(super) knows_gateways: bool,
    /// Whether the addresses on which an earlier process served node ports have been checked.
    pub(super) knows_served: bool,
}

impl Host {
    /// Creates the state before anything was read. `tcp_is_liberal`: what the first full pass will probably find.
    pub(super) fn new(tcp_is_liberal: bool) -> Self {
        Host { is_stale: true, tcp_is_liberal, ..Host::default() }
    }

    /// When the next lost address is given up.
    pub(super) fn next_loss(&self) -> Option<Moment> {
        self.absent.values().min().copied()
    }

    /// Stores addresses that were just read. Those that are missing now get this time to return.
    pub(super) fn take(&mut self, read: HostAddresses, names: &KernelNames, grace: Duration, now: Moment) {
        self.is_stale = false;
        let before = std::mem::replace(&mut self.addresses, read);
        let there: BTreeSet<IpAddr> = networks::other_addresses(&self.addresses, names).collect();
        self.absent.retain(|address, _| !there.contains(address));
        let until = now.saturating_add(grace);
        for lost in networks::other_addresses(&before, names).filter(|address| !there.contains(address)) {
            if until > now && is_reachable(lost) {
                self.absent.entry(lost).or_insert(until);
            }
        }
    }
}

/// Work left for later passes.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Services to compile again.
    pub(super) services: BTreeSet<ObjectKey>,
    /// Whether weights or addresses of the cluster's Nodes changed.
    pub(super) nodes_changed: bool,
    /// Differences from the last written state.
    pub(super) changes: Changes,
    /// Steps that failed in the last full pass and since. The next full pass finds them again; they are not drift.
    unfinished: BTreeSet<(Part, String, String)>,
    /// What the mode cannot serve. Finding it walks all Frontends, so passes for changes check these and changed ones.
    pub(super) refused: Vec<Refused>,
    /// Whether rules had to wait in the last pass.
    pub(super) put_off: bool,
    /// Whether the last pass found something unexpected in the kernel.
    pub(super) surprised: bool,
}

impl Backlog {
    /// Records the steps that failed in a pass.
    pub(super) fn note_failed<'a>(&mut self, full: bool, failed: impl Iterator<Item = &'a Step>) {
        if full {
            self.unfinished.clear();
        }
        self.unfinished.extend(failed.map(Self::name));
    }

    /// Whether an earlier pass tried this step and failed.
    pub(super) fn is_unfinished(&self, step: &Step) -> bool {
        self.unfinished.contains(&Self::name(step))
    }

    fn name(step: &Step) -> (Part, String, String) {
        (step.part, step.name.clone(), step.detail.clone())
    }
}

/// UDP flows that passes must check besides those of their own changes.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// Addresses and ports whose flows could not be forgotten yet.
    pub(super) unforgotten: BTreeSet<SocketAddr>,
    /// Whether objects of another mode have been removed since all flows were checked.
    pub(super) sweep: bool,
    /// Addresses and ports on which other modes served UDP.
    pub(super) left: BTreeSet<SocketAddr>,
}

/// Safeguards for what the kernel serves.
#[derive(Clone, Debug)]
pub(super) struct Safeguards {
    pub(super) own: Safeguard,
    /// For those that other modes have left in the kernel.
    pub(super) others: Safeguard,
}

/// What some configurations need besides a mode. Each part exists only if it is used, so that a change never passes
/// through features that are off.
#[derive(Debug)]
pub(super) struct AddOns {
    /// Exists until the first full pass in any case, to remove the table of an earlier configuration.
    pub(super) fast_path: Option<fast_path::Tracker>,
    pub(super) localhost: Option<LocalhostNodePorts>,
    /// Removed endpoints that may keep connections.
    pub(super) drains: Option<Drains>,
}

impl AddOns {
    fn new(mode: Kind, config: &Config) -> Self {
        let localhost = LocalhostNodePorts::new(mode, config);
        AddOns { fast_path: Some(fast_path::Tracker::default()), localhost, drains: None }
    }

    /// When one has work even if no input changes.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.drains.as_ref().and_then(Drains::next)
    }
}

/// How far the tracked state can be trusted; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trust {
    /// Lists may be incomplete, so there are no passes.
    Waiting,
    Complete,
    Begun,
    Settled,
}

impl Reconciler {
    /// How long the first pass waits for the iptables lock: 5 s, as kube-proxy does.
    pub(crate) const FIRST_LOCK_WAIT: Duration = Duration::from_secs(5);
    /// How long later passes wait for it: 1 s, the least that the programs allow. They retry after a growing pause.
    pub(crate) const SHORT_LOCK_WAIT: Duration = Duration::from_secs(1);

    /// Creates the reconciler of the node with this name (`nodeName` of endpoints). `now` is the origin of its time.
    pub fn new(node_name: &str, mut options: Options, now: Moment) -> Self {
        let of_mode = options.mode.facts();
        if !of_mode.has_virtual_servers {
            options.config.ipvs.defaults = None;
        }
        if !of_mode.follows_policy() {
            options.config.ipvs.may_ask_for = MayAskFor::empty();
        }
        let (cluster, host) = (Cluster::new(node_name), Host::new(options.host.tcp_be_liberal));
        let mut facts = NodeFacts::new(&options.config, &cluster.node, &host.addresses);
        options.mode.describe(&mut facts, options.iptables);
        Reconciler {
            store: Store::of_mode(node_name, of_mode.abilities, options.config.lets(MayAskFor::NODE_WEIGHTS)),
            cluster,
            host,
            desired: Desired::new(),
            backlog: Backlog::default(),
            mode: options.new_mode(&facts),
            add_ons: AddOns::new(options.mode, &options.config),
            facts,
            safeguards: Safeguards {
                own: Safeguard::new(options.mass_removal),
                others: Safeguard::new(options.mass_removal),
            },
            schedule: Schedule::new(options.limits, options.seed, now),
            trust: Trust::Waiting,
            flows: Flows::default(),
            tables: OwnTables::default(),
            totals: Totals::default(),
            options,
        }
    }

    /// Records that the lists are complete. Passes may start, and a full one is due. Earlier requests count as made
    /// now.
    pub fn start(&mut self, now: Moment) {
        if self.trust == Trust::Waiting {
            self.trust = Trust::Complete;
            self.schedule = Schedule::new(self.options.limits, self.options.seed, now);
        }
    }

    /// When [`Reconciler::pass`] has something to do; a time in the past means now. `None` before
    /// [`Reconciler::start`].
    pub fn next_wake(&self) -> Option<Moment> {
        let next = self.schedule.next().filter(|_| self.trust > Trust::Waiting)?;
        Some(self.next_look().map_or(next.at, |look| next.at.min(look.max(self.schedule.earliest()))))
    }

    /// When there is work even if no input changes. What was due when the last pass began and is not done yet waits for
    /// the passes that follow a failure.
    pub(super) fn next_look(&self) -> Option<Moment> {
        let all = [self.mode.next_wake(), self.host.next_loss(), self.add_ons.next_wake()].into_iter().flatten();
        all.filter(|at| self.schedule.began().is_none_or(|began| *at > began)).min()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.trust == Trust::Settled
    }

    /// Recomputes the node facts, and compiles every Service if they differ.
    pub(super) fn refresh_facts(&mut self) {
        let absent = self.host.absent.keys().copied();
        let mut facts = NodeFacts::with_absent(&self.options.config, &self.cluster.node, &self.host.addresses, absent);
        facts.set_node_weights(self.cluster.nodes.weights().clone());
        self.options.mode.describe(&mut facts, self.options.iptables);
        facts.set_service_cidrs(self.cluster.service_cidrs.clone());
        if facts != self.facts {
            self.facts = facts;
            self.mode.facts_changed();
            self.backlog.services.extend(self.store.services().map(|service| service.key.clone()));
            self.backlog.services.extend(self.store.frontend_keys().cloned());
        }
    }
}
