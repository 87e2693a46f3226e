//! Reads the kernel: first the tables, then what their differences from the desired state require; and for display.

use std::collections::BTreeMap;
use std::net::IpAddr;

use iptables::TableName;
use ipvs::model::{ObservedRealServer, Snapshot, TimeoutsUpdate};
use ipvs::{RealServer, VirtualServerKey};

use crate::config::{Config, KernelNames};
use crate::modes::Pass;
use crate::modes::inspection::{Inspection, TrafficCounters};
use crate::modes::ipvs::diff::diff;
use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::guards::{Guards, Programs, nft};
use crate::modes::ipvs::lower::{RealServers, Server};
use crate::modes::ipvs::observed::{Contents, Observed};
use crate::modes::ipvs::plan::{Phase, Plan, RulesChange};
use crate::modes::ipvs::rules;
use crate::modes::ipvs::state::Mode;
use crate::modes::ipvs::wanted::{EVERYTHING, Wanted};
use crate::modes::shared::by_default::{Known, drops};
use crate::modes::shared::networks::other_addresses;
use crate::net::{Family, FrontendKey};
use crate::plan::operation::{ShownReal, ShownVirtual};
use crate::plan::report::{Report, Unread};
use crate::ports::{Ipvs, Links, LocalNetworks, PortError, Ports, Result, RouteOwner, Rules};
use crate::snapshot::HostAddresses;

/// Reads virtual servers, the dummy device's addresses, and local routes if given their port. `sets`: the records that
/// identify this proxy's virtual servers. Also returns the parts that could not be read. If there are any, the caller
/// must change nothing: it would recreate all objects that the read lacks, and would not know which are this proxy's.
///
/// Lists of real servers that are as desired are shared with `wanted` and take no memory of their own. `is_settled`:
/// everything was read before, and no own virtual server is known to await deletion. Then one read may be enough.
pub(super) fn read(
    (sets, mut unread): (Contents, Vec<Unread>),
    (ipvs, links, routes): (&mut dyn Ipvs, &mut dyn Links, Option<&mut (dyn LocalNetworks + '_)>),
    (host, config): (&HostAddresses, &Config),
    wanted: &Wanted<'_>,
    is_settled: bool,
) -> (Observed, Vec<Unread>) {
    let mut observed = Observed {
        sets,
        addresses: device_addresses(host, &config.names).collect(),
        host_addresses: other_addresses(host, &config.names).collect(),
        ..Observed::default()
    };
    if let Err(error) = read_virtual_servers(ipvs, config, wanted, is_settled, &mut observed) {
        unread.push(Unread::new("virtual servers", error));
    }
    // Addresses of another kind of device are not this proxy's, and do not identify its virtual servers.
    if let Err(error) = links.has_device(config.names.device.as_str()) {
        unread.push(Unread::new(format_args!("device {}", config.names.device), error));
    }
    match routes.map(|routes| routes.networks(RouteOwner::Ipvs)).transpose() {
        Ok(there) => observed.routes = there.into_iter().flatten().collect(),
        Err(error) => unread.push(Unread::new("local routes", error)),
    }
    (observed, unread)
}

/// Reads the virtual servers. One read is enough if everything desired exists unchanged and nothing is to be deleted,
/// because gaps of a disturbed read then make no difference. Otherwise it could miss an undesired virtual server, which
/// would then lose the records that identify it as this proxy's.
fn read_virtual_servers(
    ipvs: &mut dyn Ipvs,
    config: &Config,
    wanted: &Wanted<'_>,
    is_settled: bool,
    observed: &mut Observed,
) -> Result<()> {
    let snapshot = ipvs.snapshot_once()?;
    observed.virtual_servers = observed_servers(&snapshot, wanted);
    let is_as_wanted = is_settled && {
        let plan = diff(wanted, observed, &Drains::default(), &EVERYTHING, config);
        plan.is_empty() && plan.adopt_drains.is_empty()
    };
    if !is_as_wanted && !ipvs.is_still(&snapshot)? {
        observed.virtual_servers = observed_servers(&ipvs.snapshot()?, wanted);
    }
    Ok(())
}

fn observed_servers(snapshot: &Snapshot, wanted: &Wanted<'_>) -> BTreeMap<VirtualServerKey, Server> {
    let mut scratch: Vec<RealServer> = Vec::new();
    let servers = snapshot.entries.iter().map(|entry| {
        let server = entry.virtual_server.server;
        scratch.clear();
        scratch.extend(entry.real_servers.iter().map(|real| real.server));
        scratch.sort_unstable();
        let real_servers = RealServers::sorted(&scratch, wanted.endpoints(&server.key));
        (server.key, Server { config: server.config, real_servers })
    });
    servers.collect()
}

/// The addresses of the dummy device.
pub fn device_addresses<'a>(host: &'a HostAddresses, names: &KernelNames) -> impl Iterator<Item = IpAddr> + use<'a> {
    host.interfaces.get(names.device.as_str()).into_iter().flatten().map(IpAddr::to_canonical)
}

/// Whether the dummy device exists.
pub fn has_device(host: &HostAddresses, names: &KernelNames) -> bool {
    host.interfaces.contains_key(names.device.as_str())
}

/// The IPVS timeouts that differ.
pub fn timeout_changes(ipvs: &mut dyn Ipvs, wanted: &TimeoutsUpdate) -> Result<Option<TimeoutsUpdate>, Unread> {
    let asked = |secs: Option<u32>| secs.filter(|secs| *secs != 0);
    if [wanted.tcp_secs, wanted.tcp_fin_secs, wanted.udp_secs].into_iter().all(|secs| asked(secs).is_none()) {
        return Ok(None);
    }
    let there = ipvs.timeouts().map_err(|error| Unread::new("timeouts of IPVS", error))?;
    let mut update = TimeoutsUpdate::new();
    update.tcp_secs = asked(wanted.tcp_secs).filter(|secs| *secs != there.tcp_secs);
    update.tcp_fin_secs = asked(wanted.tcp_fin_secs).filter(|secs| *secs != there.tcp_fin_secs);
    update.udp_secs = asked(wanted.udp_secs).filter(|secs| *secs != there.udp_secs);
    Ok((update != TimeoutsUpdate::default()).then_some(update))
}

/// The real servers of a virtual server, or why they could not be listed.
pub(super) type Listed = (VirtualServerKey, Result<Vec<ObservedRealServer>>);

/// Reads what the plan needs besides the tables, and adds timeouts and rules to it. Parts that cannot be read are
/// reported and postponed. Returns the draining real servers that were due.
pub(super) fn read_rest(
    mode: &Mode,
    pass: Pass<'_>,
    plan: &mut Plan,
    report: &mut Report,
    ports: &mut Ports<'_>,
) -> Vec<Listed> {
    let due = mode.drains.due(pass.now).into_iter();
    let draining = due.map(|key| (key, ports.ipvs.real_servers(&key))).collect();
    if pass.full {
        match timeout_changes(ports.ipvs, &mode.timeouts) {
            Ok(timeouts) => plan.stage(Phase::Prepare).timeouts = timeouts,
            Err(error) => report.unread.push(error),
        }
    }
    let Guards::Programs(programs) = &mode.guards else { return draining };
    for family in pass.families() {
        if !pass.full && has_same_rules(mode, programs, family) {
            continue;
        }
        if programs.retry.get(&family).is_some_and(|retry| retry.at > pass.now) {
            plan.rules_put_off.insert(family);
            report.rules_put_off.insert(family);
            continue;
        }
        if let Err(error) = read_rules(mode, programs, pass, family, plan, ports.rules) {
            plan.rules_put_off.insert(family);
            report.unread.push(Unread::new(format_args!("rules of {}", family.name()), error));
        }
    }
    draining
}

/// The required inputs of a family's rules while what the plan does not delete stays, if chain INPUT drops by default
/// as tracked.
pub(super) fn inputs(mode: &Mode, programs: &Programs, pass: Pass<'_>, family: Family, plan: &Plan) -> rules::Inputs {
    let mut inputs = rules::Inputs::new(family, &mode.wanted(pass.desired), pass.facts, programs.capabilities);
    if let Some(observed) = &mode.observed {
        inputs.keep(&mode.leaving, plan.deleted_entries(), observed);
    }
    inputs.input_drops = programs.rules.get(&family).is_some_and(|written| written.input_drops);
    inputs
}

/// Reads a family's rules, unless the kernel is known to have the required ones.
fn read_rules(
    mode: &Mode,
    programs: &Programs,
    pass: Pass<'_>,
    family: Family,
    plan: &mut Plan,
    port: &mut dyn Rules,
) -> Result<()> {
    let mut inputs = inputs(mode, programs, pass, family, plan);
    match programs.rules.get(&family).filter(|_| !pass.full) {
        Some(written) => {
            inputs.capabilities = written.capabilities;
            if inputs == *written {
                plan.inputs.insert(family, inputs);
                return Ok(());
            }
        }
        None => inputs.capabilities.random_fully &= port.has_random_fully(family)?,
    }
    let dump = port.dump(family)?;
    inputs.input_drops = dump.table(&TableName::FILTER).is_some_and(|filter| drops(filter, "INPUT", &Known::FIRST));
    plan_rules(programs, &inputs, &dump, plan)?;
    plan.inputs.insert(family, inputs);
    Ok(())
}

fn plan_rules(programs: &Programs, inputs: &rules::Inputs, dump: &iptables::Dump, plan: &mut Plan) -> Result<()> {
    let family = inputs.family;
    let changes =
        |inputs: &rules::Inputs| rules::compile(inputs).map_err(PortError::from).and_then(|rules| rules.changes(dump));
    let all = changes(inputs)?;
    if all.is_empty() {
        return Ok(());
    }
    let mut change = RulesChange { family, changes: all, without: Vec::new() };
    for capabilities in inputs.capabilities.reduced() {
        let changes = changes(&rules::Inputs { capabilities, ..inputs.clone() })?;
        // Skip it if the reduced rules are the same, because the kernel would refuse them again.
        if changes != change.changes {
            change.without.push((capabilities, changes));
        }
    }
    let late = programs.rules.get(&family).is_some_and(|written| inputs.only_relaxes(written));
    plan.stage(if late { Phase::Clean } else { Phase::Serve }).rules.push(change);
    Ok(())
}

/// Whether the rules of a family cannot have changed. Costs O(changed entries), while building `Inputs` costs O(guarded
/// load balancers). Rules depend only on node facts and set entries.
fn has_same_rules(mode: &Mode, programs: &Programs, family: Family) -> bool {
    let changed = mode.recorded.changed.entries.iter().any(|(set, _)| set.family == family);
    let is_known = programs.rules.contains_key(&family) && !programs.retry.contains_key(&family);
    !changed && !mode.new_facts && is_known
}

/// The virtual server with its real servers; that of outside clients, if separate; and how the address is bound to this
/// host. The sets and rules that masquerade and guard are not checked.
pub(crate) fn inspect(
    key: &FrontendKey,
    is_outside: bool,
    config: &Config,
    ports: &mut Ports<'_>,
) -> Result<Inspection> {
    let mut inspection = Inspection::default();
    let names = &config.names;
    let marked = if config.splits_local() { nft::marked(key, config, ports.tables)? } else { None };
    // The number of the mark differs from node to node.
    let (virtual_key, name) = match marked {
        Some(server) if is_outside => (server, format!("virtual server of clients outside of {key}")),
        _ => (VirtualServerKey::from(*key), format!("virtual server {key}")),
    };
    let snapshot = ports.ipvs.snapshot()?;
    let mut entries = snapshot.entries.into_iter();
    if let Some(entry) = entries.find(|entry| entry.virtual_server.server.key == virtual_key) {
        let stats = entry.virtual_server.stats;
        inspection.counters = Some(TrafficCounters {
            connections: stats.connections,
            packets: Some((stats.packets_in, stats.packets_out)),
        });
        inspection.parts.insert(name, ShownVirtual(&entry.virtual_server.server).to_string());
        for real in &entry.real_servers {
            let name = format!("real server {}", real.server.key);
            if real.server.config.weight.get() == 0 {
                inspection.leaving.insert(name.clone());
            }
            inspection.parts.insert(name, ShownReal(&real.server).to_string());
        }
    }
    let host = ports.links.addresses()?;
    let mut ways = Vec::new();
    if device_addresses(&host, names).any(|address| address == key.address) {
        ways.push(format!("bound to {}", names.device));
    }
    let routes = ports.routes.networks(RouteOwner::Ipvs)?;
    ways.extend(routes.keys().filter(|network| network.contains(&key.address)).map(|of| format!("route of {of}")));
    if !ways.is_empty() {
        inspection.parts.insert(format!("local address {}", key.address), ways.join(" and "));
    }
    Ok(inspection)
}

#[cfg(all(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]
mod tests {
    use std::collections::BTreeSet;

    use ipvs::Operation;
    use ipvs::fake::FakeIpvs;
    use ipvs::model::{Scheduler, Timeouts, VirtualServer, VirtualServerConfig};

    use super::*;
    use crate::modes::ipvs::observed::entry_of;
    use crate::modes::ipvs::wanted::Index;
    use crate::ports::{ItemFailures, SetKey, SetKind};
    use crate::service::Desired;

    /// Virtual servers that a disturbed read returns, those in the kernel, and the calls that read them.
    struct Kernel(Vec<VirtualServerKey>, Vec<VirtualServerKey>, Vec<&'static str>);

    fn snapshot(keys: &[VirtualServerKey]) -> Snapshot {
        let mut client = FakeIpvs::new().client().unwrap();
        for key in keys {
            let config = VirtualServerConfig::new(Scheduler::RoundRobin);
            client.add_virtual_server(&VirtualServer { key: *key, config }).unwrap();
        }
        client.snapshot().unwrap()
    }

    impl Ipvs for Kernel {
        fn snapshot(&mut self) -> Result<Snapshot> {
            self.2.push("all");
            Ok(snapshot(&self.1))
        }

        fn snapshot_once(&mut self) -> Result<Snapshot> {
            self.2.push("once");
            Ok(snapshot(&self.0))
        }

        fn is_still(&mut self, _: &Snapshot) -> Result<bool> {
            self.2.push("still");
            Ok(self.0 == self.1)
        }

        fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>> {
            panic!("{key}")
        }

        fn run(&mut self, operations: &[&Operation]) -> ItemFailures {
            panic!("{operations:?}")
        }

        fn timeouts(&mut self) -> Result<Timeouts> {
            panic!()
        }

        fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<()> {
            panic!("{timeouts:?}")
        }
    }

    #[test]
    fn virtual_servers_are_read_again_if_a_gap_would_matter() {
        let (config, desired) = (Config::default(), Desired::new());
        let index = Index::new(&config);
        let served: VirtualServerKey = "TCP 10.0.0.1:80".parse().unwrap();
        let (record, entry) = entry_of(&served, SetKind::NodePortServed).unwrap();
        // With nothing desired. Recorded ones are this proxy's.
        for (is_shown, is_there, is_recorded, is_settled, looks) in [
            (false, false, false, true, &["once"][..]),
            (true, true, false, true, &["once"]),
            (false, true, true, true, &["once", "still", "all"]),
            (true, true, true, true, &["once", "still"]),
            (false, true, false, false, &["once", "still", "all"]),
            (false, false, false, false, &["once", "still"]),
        ] {
            let keys = |is_there: bool| is_there.then_some(served).into_iter().collect();
            let mut kernel = Kernel(keys(is_shown), keys(is_there), Vec::new());
            let sets = config.families.iter().flat_map(SetKey::all).map(|set| (set, BTreeSet::new()));
            let mut observed = Observed { sets: sets.collect(), ..Observed::default() };
            observed.sets.entry(record).or_default().extend(is_recorded.then(|| entry.clone()));
            read_virtual_servers(&mut kernel, &config, &index.wanted(&desired), is_settled, &mut observed).unwrap();
            let row = format!("{is_shown} {is_there} {is_recorded} {is_settled}");
            assert_eq!((observed.virtual_servers.len(), &*kernel.2), (usize::from(is_there), looks), "{row}");
        }
    }
}
