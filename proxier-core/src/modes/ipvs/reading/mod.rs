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
use crate::ports::{Ipvs, PortError, Sets, Tables as TablesPort};
use crate::snapshot::HostAddresses;

pub(super) use rest::{PassInputs, needs_sysctls, read_rest};

/// Where the entries are that show which virtual servers are this proxy's.
pub(super) enum Records<'a> {
    /// In ipsets.
    Sets(&'a mut dyn Sets),
    /// In tables of nf_tables.
    Tables(&'a mut Tables, &'a mut dyn TablesPort),
}

/// Reads virtual servers, sets and the dummy device's addresses: the proxy's objects, and the records that show which are its own. Returns the
/// parts that could not be read, too: with any of them, the caller must change nothing. It would make again all objects that the reading
/// lacks, and it would not know which are this proxy's.
///
/// Lists of real servers that are as wanted are shared with `wanted` and take no memory of their own. `is_settled`:
/// everything was read before, and no own virtual server is known to await deletion; then one reading of them may be
/// enough.
pub(super) fn read(
    records: Records<'_>,
    ipvs: &mut dyn Ipvs,
    (host, config): (&HostAddresses, &Config),
    wanted: &Wanted<'_>,
    is_settled: bool,
) -> (Observed, Vec<Unread>) {
    let mut unread = Vec::new();
    let mut observed = Observed::new();
    observed.addresses = device_addresses(host, &config.names).collect();
    observed.host_addresses = other_addresses(host, &config.names).collect();
    match records {
        Records::Sets(sets) => {
            for set in config.families.iter().flat_map(SetKey::all) {
                let named = set.named(config.names.prefix);
                match sets.entries(named) {
                    Ok(entries) => observed.sets.extend(entries.map(|entries| (set, entries))),
                    Err(error) => unread.push(Unread::new(format_args!("set {named}"), error)),
                }
            }
        }
        Records::Tables(known, tables) => {
            unread.extend(known.read(config, tables).err().into_iter().flatten());
            for (family, found) in known.found_tables() {
                let entries = found.entries.iter().map(|(kind, all)| (SetKey::new(family, *kind), all.clone()));
                observed.sets.extend(entries);
            }
            observed.basis = known.basis();
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
