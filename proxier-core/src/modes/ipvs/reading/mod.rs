//! Reads the kernel: first the tables, then the parts that their differences from the wanted state ask for.

mod rest;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipvs::model::{Snapshot, TimeoutsUpdate};
use ipvs::{RealServer, VirtualServerKey};

use crate::config::{Config, KernelNames};
use crate::modes::ipvs::diff::{Scope, diff};
use crate::modes::ipvs::guards::nft::Tables;
use crate::modes::ipvs::observed::{Observed, ObservedServer};
use crate::modes::ipvs::servers::RealServers;
use crate::modes::ipvs::sets::SetKey;
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::shared::host::other_addresses;
use crate::plan::report::Unread;
use crate::ports::{Ipvs, PortError, PortErrorKind, Sets, Tables as TablesPort};
use crate::snapshot::HostAddresses;

pub(super) use rest::{PassInputs, needs_sysctls, read_rest};

/// Reads virtual servers, sets and the dummy device's addresses: the proxy's objects, and the records that show which are its own.
///
/// Lists of real servers that are as wanted are shared with `wanted` and take no memory of their own. `is_settled`:
/// everything was read before, and no own virtual server is known to await deletion; then one reading of them may be
/// enough.
///
/// # Errors
/// The parts that could not be read. The caller must change nothing then: it would make again all objects that the reading
/// lacks, and it would not know which are this proxy's.
pub fn read(
    ipvs: &mut dyn Ipvs,
    sets: &mut dyn Sets,
    host: &HostAddresses,
    config: &Config,
    wanted: &Wanted<'_>,
    is_settled: bool,
) -> Result<Observed, Vec<Unread>> {
    let (observed, unread) = read_parts(ipvs, sets, host, config, wanted, is_settled);
    if unread.is_empty() { Ok(observed) } else { Err(unread) }
}

/// As [`read`], but a part that this kernel lacks counts as empty.
///
/// # Errors
/// The parts that exist and could not be read.
pub fn read_what_there_is(
    ipvs: &mut dyn Ipvs,
    sets: &mut dyn Sets,
    host: &HostAddresses,
    config: &Config,
    wanted: &Wanted<'_>,
) -> Result<Observed, Vec<Unread>> {
    let (observed, mut unread) = read_parts(ipvs, sets, host, config, wanted, false);
    unread.retain(|unread| unread.error.kind() != PortErrorKind::Unavailable);
    if unread.is_empty() { Ok(observed) } else { Err(unread) }
}

/// As [`read`], where a table of nf_tables has the sets.
pub(super) fn read_beside(
    known: &mut Tables,
    tables: &mut dyn TablesPort,
    ipvs: &mut dyn Ipvs,
    host: &HostAddresses,
    config: &Config,
    wanted: &Wanted<'_>,
    is_settled: bool,
) -> Result<Observed, Vec<Unread>> {
    let mut observed = read_device(host, config);
    let mut unread = known.read(config, tables).err().unwrap_or_default();
    for (family, found) in known.found_tables() {
        let entries = found.entries.iter().map(|(kind, entries)| (SetKey::new(family, *kind), entries.clone()));
        observed.sets.extend(entries);
    }
    observed.basis = known.basis();
    if let Err(error) = read_virtual_servers(ipvs, config, wanted, is_settled, &mut observed) {
        unread.push(Unread::new("virtual servers", error));
    }
    if unread.is_empty() { Ok(observed) } else { Err(unread) }
}

fn read_device(host: &HostAddresses, config: &Config) -> Observed {
    let mut observed = Observed::new();
    observed.addresses = device_addresses(host, &config.names).collect();
    observed.host_addresses = other_addresses(host, &config.names).collect();
    observed
}

fn read_parts(
    ipvs: &mut dyn Ipvs,
    sets: &mut dyn Sets,
    host: &HostAddresses,
    config: &Config,
    wanted: &Wanted<'_>,
    is_settled: bool,
) -> (Observed, Vec<Unread>) {
    let mut unread = Vec::new();
    let mut observed = read_device(host, config);
    for set in config.families.iter().flat_map(SetKey::all) {
        let named = set.named(config.names.prefix);
        match sets.entries(named) {
            Ok(Some(entries)) => {
                observed.sets.insert(set, entries);
            }
            Ok(None) => {}
            Err(error) => unread.push(Unread::new(format_args!("set {named}"), error)),
        }
    }
    if let Err(error) = read_virtual_servers(ipvs, config, wanted, is_settled, &mut observed) {
        unread.push(Unread::new("virtual servers", error));
    }
    (observed, unread)
}

/// Reads the virtual servers; one reading is enough if everything wanted is there as wanted and nothing is to be deleted:
/// gaps of a disturbed reading make no difference then. Otherwise it could miss an unwanted virtual server, which
/// would then lose the records that show that it is this proxy's.
fn read_virtual_servers(
    ipvs: &mut dyn Ipvs,
    config: &Config,
    wanted: &Wanted<'_>,
    is_settled: bool,
    observed: &mut Observed,
) -> Result<(), PortError> {
    let snapshot = ipvs.snapshot_once()?;
    observed.virtual_servers = observed_servers(&snapshot, wanted);
    let is_as_wanted = is_settled && diff(wanted, observed, Scope::All, config).is_empty();
    if !is_as_wanted && !ipvs.is_still(&snapshot)? {
        observed.virtual_servers = observed_servers(&ipvs.snapshot()?, wanted);
    }
    Ok(())
}

fn observed_servers(snapshot: &Snapshot, wanted: &Wanted<'_>) -> BTreeMap<VirtualServerKey, ObservedServer> {
    let mut servers = Vec::with_capacity(snapshot.entries.len());
    let mut scratch: Vec<RealServer> = Vec::new();
    for entry in &snapshot.entries {
        let server = entry.virtual_server.server;
        scratch.clear();
        scratch.extend(entry.real_servers.iter().map(|real| real.server));
        scratch.sort_unstable();
        let keys = wanted.endpoints(&server.key);
        let real_servers = RealServers::sorted(&scratch, keys);
        servers.push((server.key, ObservedServer { config: server.config, real_servers }));
    }
    servers.into_iter().collect()
}

/// The addresses of the dummy device.
pub fn device_addresses<'a>(host: &'a HostAddresses, names: &KernelNames) -> impl Iterator<Item = IpAddr> + use<'a> {
    host.interfaces.get(names.device.as_str()).into_iter().flatten().map(IpAddr::to_canonical)
}

/// Whether the dummy device exists.
pub fn has_device(host: &HostAddresses, names: &KernelNames) -> bool {
    host.interfaces.contains_key(names.device.as_str())
}

/// The timeouts of IPVS that differ.
///
/// # Errors
/// When they could not be read.
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

#[cfg(all(test, feature = "testing"))]
mod tests;
