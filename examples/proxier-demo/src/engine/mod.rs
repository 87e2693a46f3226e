//! Runs the reconciler on the running kernel and feeds it with changes.

pub(crate) mod beside;
pub(crate) mod choose;
pub(crate) mod kernel;
pub mod lock;
pub mod memory;
mod modules;
pub(crate) mod monitors;
pub mod needs;
pub(crate) mod neighbours;
pub(crate) mod privileges;
pub(crate) mod signals;
mod sockets;
pub(crate) mod userspace;
pub(crate) mod view;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kmod_probe::{NoActiveProbe, State};
use proxier_core::config::{Families, RulesBy};
use proxier_core::engine::{Limits, Options, Reconciler, Removal};
use proxier_core::inspect::trace;
use proxier_core::kernel::{KernelPorts, TableChanges};
use proxier_core::modes::iptables::RandomFully;
use proxier_core::modes::{Cleaned, Kind, Plan, can_own_tables, fast_path, ipvs, userspace as userspace_mode};
use proxier_core::net::{Family, Network};
use proxier_core::plan::report::Report;
use proxier_core::ports::Ports;
use proxier_core::safeguard::MassRemoval;
use proxier_core::service::{Packet, Trace};
use proxier_core::sketch::Sketch;
use proxier_core::snapshot::{ObjectKey, ObjectKind};

use crate::engine::choose::Preparing;
use crate::engine::needs::{Findings, Tried};
use crate::engine::neighbours::Neighbours;
use crate::gather::Gather as _;
use crate::message::change::{Change, Snapshot, Unreadable};
use crate::problem::Problem;
use crate::settings::Settings;
use crate::settings::cli::{Configured, Source};
use crate::sources::initial_list;

pub trait Kernel: Send + 'static {
    fn ports(&mut self) -> Ports<'_>;

    /// Stops serving in this process, and waits at most `patience` until connections end. Returns the number of
    /// connections left: 0 for modes in which the kernel serves.
    fn finish(&mut self, _patience: Duration) -> usize {
        0
    }
}

impl Kernel for KernelPorts {
    fn ports(&mut self) -> Ports<'_> {
        KernelPorts::ports(self)
    }

    fn finish(&mut self, patience: Duration) -> usize {
        KernelPorts::finish(self, patience)
    }
}

/// Connects the reconciler, the kernel and the clock.
#[derive(Debug)]
pub struct Engine<K = KernelPorts> {
    proxier: Reconciler,
    kernel: K,
    origin: Instant,
    /// The networks of cluster IPs announced by the cluster, by ServiceCIDR.
    service_cidrs: BTreeMap<String, Vec<Network>>,
    /// Times since which objects cannot be read; those that can again are forgotten after a pass.
    unreadable_since: BTreeMap<(ObjectKind, ObjectKey), Duration>,
}

impl Engine {
    /// Tells the kernel ports on which sockets the running proxy listens, before a preview in a mode in which the
    /// process listens, so that they need not be opened again. Returns why they are unknown, if so.
    pub(crate) fn read_running_sockets(&mut self) -> Option<Problem> {
        let mode = self.proxier.mode();
        let asked = &self.proxier.facts().config().node_port_addresses;
        let is_at_localhost =
            mode == Kind::Nftables && Family::ALL.into_iter().any(|family| asked.names_localhost(family));
        if !mode.facts().is_process && !is_at_localhost {
            return None;
        }
        let mut problem = userspace::read_running_sockets(&mut self.kernel).err()?;
        problem.reason.push_str(": its listeners are shown as new");
        Some(problem)
    }

    /// Detects which families this kernel supports; `tried`: as the choice of the rules has found, if it asked. Returns
    /// notes for the log, too.
    /// Errors: neither family can be served, a capability is missing, or a required part is permanently missing; each
    /// problem explains what to do.
    pub(crate) async fn open(
        configured: &Configured,
        mut kernel: KernelPorts,
        tried: Tried,
    ) -> Result<(Self, Vec<String>), Vec<Problem>> {
        let settings = &with_rules(&configured.settings, &mut kernel.ports(), Preparing::Nothing).0;
        if settings.mode.needs_rule_programs(&settings.core) {
            privileges::NET_RAW.require()?;
        }
        let is_ipvs = settings.mode.facts().has_virtual_servers;
        let modules = if is_ipvs { check_modules(settings) } else { None };
        let (families, mut notes) = needs::families(settings, &mut kernel, tried)?;
        if is_ipvs {
            notes.extend(ipvs::dropping_input(&settings.core, &mut kernel.ports()));
        }
        let mut options = options(settings, &configured.source, families);
        if options.config.nftables.own_tables {
            let reason = match can_own_tables(kernel.ports().tables) {
                Ok(true) => None,
                Ok(false) => Some("this kernel has no tables that outlive their owner; they need Linux 6.9".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            options.config.nftables.own_tables = reason.is_none();
            notes.extend(reason.map(|reason| format!("nftables.ownTables is left out: {reason}")));
        }
        if configured.allow_mass_removal {
            options.mass_removal.share = 1.0;
        }
        for (user, neighbours) in Neighbours::new(&configured.source, false).find().await {
            options.config.reserved.set_neighbours(user, neighbours);
        }
        if let Some(findings) = modules.and_then(|check| check.join().ok()?) {
            let obstacles = findings.obstacles();
            if !obstacles.is_empty() {
                return Err(obstacles);
            }
            notes.extend(reduce(&mut options, &findings));
        }
        Ok((Engine::new(&settings.node_name, options, kernel), notes))
    }
}

impl Kernel for Sketch {
    fn ports(&mut self) -> Ports<'_> {
        Sketch::ports(self)
    }
}

#[cfg(test)]
impl Kernel for proxier_core::fake::FakeKernel {
    fn ports(&mut self) -> Ports<'_> {
        proxier_core::fake::FakeKernel::ports(self)
    }
}

impl Engine<Sketch> {
    /// An engine that programs a simulated node that supports everything, independent of this machine. The rule back
    /// end is the one that `run` would choose on such a kernel.
    pub fn in_memory(configured: &Configured, mut kernel: Sketch) -> Self {
        let settings = &with_rules(&configured.settings, &mut kernel.ports(), Preparing::Nothing).0;
        Engine::new(&settings.node_name, options(settings, &configured.source, settings.core.families), kernel)
    }

    /// What happens to a packet.
    pub(crate) fn trace(&self, packet: &Packet, settings: &Settings) -> Trace {
        let proxier = &self.proxier;
        let known = (proxier.desired(), proxier.facts());
        trace(proxier.mode(), proxier.store(), known, packet, settings.iptables())
    }
}

impl<K: Kernel> Engine<K> {
    /// A reconciler of this node on this kernel. Its time starts now.
    pub fn new(node_name: &str, options: Options, kernel: K) -> Self {
        let proxier = Reconciler::new(node_name, options, Duration::ZERO);
        Engine {
            proxier,
            kernel,
            origin: Instant::now(),
            service_cidrs: BTreeMap::new(),
            unreadable_since: BTreeMap::new(),
        }
    }

    /// The present time on the reconciler's clock.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Applies a change that arrived at this moment. Returns whether it may matter: an unchanged EndpointSlice does
    /// not. The caller reports unreadable objects.
    pub fn apply_change(&mut self, change: Change, at: Instant) -> bool {
        let now = at.saturating_duration_since(self.origin);
        match change {
            Change::UpsertService(object) => self.proxier.upsert_service(&object, now),
            Change::DeleteService(key) => self.proxier.delete_service(&key, now),
            Change::Lost(kind, keys) => keys.iter().for_each(|key| self.proxier.lose(kind, key, now)),
            Change::UpsertSlice(object) => return self.proxier.upsert_slice(&object, now),
            Change::DeleteSlice(key) => self.proxier.delete_slice(&key, now),
            Change::Listing(kind) => {
                self.proxier.list_begins(kind);
                return false;
            }
            Change::Listed(kind) => {
                self.proxier.list_ends(kind);
                return false;
            }
            Change::Node(node) => self.proxier.set_node(&node.object, now),
            Change::ClusterNode(object) => self.proxier.upsert_cluster_node(&object, now),
            Change::ClusterNodeGone(name) => self.proxier.delete_cluster_node(&name, now),
            Change::ServiceCidr(name, networks) => self.set_service_cidr(name, Some(networks), now),
            Change::ServiceCidrGone(name) => self.set_service_cidr(name, None, now),
            Change::Synced => self.proxier.start(now),
            Change::Unreadable(unreadable) => {
                let Unreadable { object, service, problem } = *unreadable;
                if let Some((kind, key)) = object {
                    let object = problem.object.filter(|_| kind == ObjectKind::File);
                    let problem = Problem { origin: String::new(), object, ..problem };
                    self.proxier.note_unreadable(kind, &key, &problem.to_string(), service);
                    self.unreadable_since.entry((kind, key)).or_insert(now);
                }
                return false;
            }
            Change::Readable(kind, key) => self.proxier.note_readable(kind, &key, now),
            // The Node's last state is kept, since nothing better is known.
            Change::NodeGone => return false,
        }
        true
    }

    /// The networks of a ServiceCIDR; `None`: it is gone.
    fn set_service_cidr(&mut self, name: String, networks: Option<Vec<Network>>, now: Duration) {
        self.proxier.note_readable(ObjectKind::ServiceCidr, &ObjectKey::new("", &name), now);
        match networks {
            Some(networks) => drop(self.service_cidrs.insert(name, networks)),
            None => drop(self.service_cidrs.remove(&name)),
        }
        self.proxier.set_service_cidrs(self.service_cidrs.values().flatten().copied(), now);
    }

    /// Runs the pass that is due, if any.
    pub fn pass(&mut self) -> Option<Report> {
        self.pass_ahead(Duration::ZERO)
    }

    /// Runs the pass that would be due after `ahead`, if any.
    pub fn pass_ahead(&mut self, ahead: Duration) -> Option<Report> {
        let origin = self.origin;
        let report = self.proxier.pass(&|| origin.elapsed() + ahead, &mut self.kernel.ports());
        if !self.unreadable_since.is_empty() {
            let now: BTreeSet<_> = self.proxier.store().unreadable().map(|(kind, key, _)| (kind, key)).gather();
            self.unreadable_since.retain(|(kind, key), _| now.contains(&(*kind, key)));
        }
        report
    }

    /// Takes an initial list. Gives up lost addresses at once: this process ends before one could return.
    pub(crate) fn feed(&mut self, snapshot: Snapshot) {
        self.proxier.set_address_grace(Duration::ZERO);
        for change in initial_list::changes(snapshot) {
            self.apply_change(change, Instant::now());
        }
    }

    /// Removes the traces of an earlier process in userspace mode, which no longer serve anybody.
    pub fn clean_up_after_processes(&mut self) -> Cleaned {
        if self.proxier.mode().facts().is_process {
            Cleaned::default()
        } else {
            userspace_mode::cleanup(&mut self.kernel.ports())
        }
    }

    /// Removes objects of other modes once this mode serves, unless the safeguard holds that back.
    pub fn clean_up_after_others(&mut self) -> Removal {
        let now = self.now();
        self.proxier.remove_others(now, &mut self.kernel.ports())
    }

    /// Objects of other programs and modes in this kernel that affect packets of Services.
    pub(crate) fn beside(&mut self) -> Vec<String> {
        beside::beside(Some(self.proxier.mode()), self.proxier.facts(), &mut self.kernel.ports())
    }

    /// What blocks packets to endpoints in this kernel.
    pub(crate) fn obstacles(&mut self) -> Vec<String> {
        beside::obstacles(self.proxier.mode(), self.proxier.facts(), &mut self.kernel.ports())
    }

    /// Plans a full pass and reports on it, without carrying it out.
    pub fn preview(&mut self) -> (Plan, Report) {
        let now = self.now();
        self.proxier.preview(now, &mut self.kernel.ports())
    }

    /// Time until something is due; `None` before the initial list is complete.
    pub fn idle(&self) -> Option<Duration> {
        self.proxier.next_wake().map(|at| at.saturating_sub(self.now()))
    }

    /// Number of connections on the fast path; `None` without a fast path.
    pub(crate) fn fast_path_connections(&mut self) -> Option<u64> {
        let config = self.proxier.facts().config();
        config.fast_path.as_ref()?;
        fast_path::connections(config, self.kernel.ports().tables).ok().flatten()
    }

    /// Handles a write to this proxy's nf_tables tables. Returns whether the next pass compares everything, which it
    /// does not after this process's own transactions.
    pub(crate) fn tables_changed(&mut self, changes: &TableChanges) -> bool {
        let now = self.now();
        let ports = self.kernel.ports();
        self.proxier.tables_changed(&changes.generations, changes.lost, ports.tables, now)
    }

    pub fn proxier(&self) -> &Reconciler {
        &self.proxier
    }

    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Since when a desired object has been missing in the kernel; `None` if none is missing, and before the initial
    /// list is complete.
    pub fn pending_since(&self) -> Option<Instant> {
        self.proxier.pending_since().map(|since| self.origin + since)
    }
}

/// The settings, with the rule back end of IPVS mode selected if they leave it open, and the reason.
pub(crate) fn with_rules(
    settings: &Settings,
    ports: &mut Ports<'_>,
    preparing: Preparing,
) -> (Settings, Option<ipvs::Choice>) {
    let mut settings = settings.clone();
    if !settings.mode.facts().has_virtual_servers {
        return (settings, None);
    }
    let mut by_nft = settings.clone();
    by_nft.core.ipvs.rules = RulesBy::Nftables;
    let prepare = || {
        if preparing == Preparing::LoadModules {
            modules::preload(&by_nft);
        }
    };
    let choice = ipvs::choose(&settings.core, ports, prepare);
    settings.core.ipvs.rules = choice.by;
    (settings, Some(choice))
}

/// Rule back end of a simulated engine, and how to see the other one; `None` if the settings specify it, or the mode
/// has none.
pub(crate) fn rules_in_memory(settings: &Settings) -> Option<String> {
    let (_, choice) = with_rules(settings, &mut Sketch::default().ports(), Preparing::Nothing);
    let choice = choice.filter(|choice| choice.reason.is_some())?;
    let other = if choice.by == RulesBy::Nftables { RulesBy::Iptables } else { RulesBy::Nftables };
    Some(format!("{choice}, as on most nodes; with ipvs.rules: {other} (--ipvs-rules) the other one is used"))
}

/// Probes modules in parallel with the iptables programs, which take as long. Unnecessary if all modules are loaded.
fn check_modules(settings: &Settings) -> Option<JoinHandle<Option<Findings>>> {
    if modules::has_ipvs(settings) {
        return None;
    }
    let settings = settings.clone();
    let check = move || needs::find(&settings, &mut NoActiveProbe).ok();
    std::thread::Builder::new().name("modules".to_owned()).spawn(check).ok()
}

/// Removes the matches and the family that this kernel is known to lack. Returns notes on what does not work then.
fn reduce(options: &mut Options, findings: &Findings) -> Vec<String> {
    let lacks = |name: &str| findings.report.finding(name).is_some_and(|finding| finding.state == State::Missing);
    let mut notes = Vec::new();
    // `needs::families` has already checked the iptables programs.
    if findings.families != Families::Dual && options.config.families == Families::Dual {
        options.config.families = findings.families;
        let says = |caveat: &&String| caveat.contains(" is not served: ");
        notes.extend(findings.report.verdict.caveats.iter().filter(says).cloned());
    }
    if options.config.ipvs.rules == RulesBy::Nftables {
        return notes;
    }
    options.ipvs.capabilities.physdev = !lacks("xt_physdev");
    options.ipvs.capabilities.ipvs = !lacks("xt_ipvs");
    // A kernel without physdev has no packets that match it, so removing the match loses nothing.
    if !options.ipvs.capabilities.ipvs {
        let mut without_ipvs = options.ipvs.capabilities;
        without_ipvs.physdev = true;
        notes.push(format!("this kernel lacks xt_ipvs: {}", without_ipvs.lost()));
    }
    notes
}

fn options(settings: &Settings, source: &Source, families: Families) -> Options {
    let mut options = Options::default();
    options.mode = settings.mode;
    options.config = settings.core.clone();
    options.config.families = families;
    options.limits = Limits { min_interval: settings.min_sync_period, max_interval: settings.sync_period };
    options.config.reserved = settings.reserved();
    options.host = settings.host;
    options.iptables = settings.iptables();
    options.ipvs.capabilities.random_fully = settings.random_fully != RandomFully::Never;
    options.userspace = settings.userspace.clone();
    options.ipvs.timeouts = settings.timeouts;
    // Deletions in files are trusted, unless no Service, or no EndpointSlice, is left.
    if matches!(source, Source::Manifests(_)) {
        options.mass_removal = MassRemoval { remains: 0.0, ..MassRemoval::default() };
    }
    // Nodes that start together should not retry together.
    options.seed = BuildHasherDefault::<DefaultHasher>::default().hash_one(&settings.node_name);
    options
}
