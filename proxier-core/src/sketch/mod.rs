//! What a node would have, without a kernel: ports that accept every write, and a state that prints in the formats of
//! the usual tools.
//!
//! It has few of the kernel's checks. Programs use it to show what they would write.

mod interfaces;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipset::{Element, SetSpec};
use iptables::{Backend, Chain, ChainName, Counters, Dump, Edit, Policy, Table, TableName};
use ipvs::model::{ObservedRealServer, RealServer, Snapshot, Timeouts, TimeoutsUpdate, VirtualServer};
use ipvs::text::Ruleset;
use ipvs::{Operation, RealServerKey, VirtualServerKey};
use nftables::{Draft, TableKey, TableSnapshot};

use crate::net::{Family, FrontendKey, Network, Protocol};
use crate::pack::Gather as _;
use crate::ports::{
    Conntrack, Ipvs, ItemFailures, Listener, LocalNetworks, LocalRoute, NamedSet, NotCommitted, PortError,
    PortErrorKind, Ports, Relays, Result, RouteOwner, Rules, Sets, Settings, Sysctls, Tables, UdpServices, lend,
};

pub(crate) use interfaces::{Interface, Interfaces};

/// What a node has, in the formats of the usual tools.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KernelState {
    /// Virtual and real servers in the format of `ipvsadm --save --numeric`, sorted by key; empty without IPVS.
    pub ipvs: String,
    /// Sets by name: the command that creates each, and its entries, in the format of `ipset save`.
    pub sets: BTreeMap<String, (String, BTreeSet<String>)>,
    /// Rules by family and back end, in the format of `iptables-save`.
    pub rules: BTreeMap<(iptables::Family, Backend), String>,
    /// nf_tables tables by family and name, as `nft list table` prints them.
    pub tables: BTreeMap<String, String>,
    /// Addresses by device, in the order in which they were added.
    pub devices: BTreeMap<String, Vec<IpAddr>>,
    /// Values below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// Our routes that make networks local, and their owners.
    pub routes: BTreeSet<(RouteOwner, LocalRoute)>,
}

/// Values below `/proc/sys` after boot that modes read.
const SYSCTLS: [(&str, &str); 14] = [
    ("kernel/osrelease", "6.1.0-fake"),
    ("net/ipv4/conf/all/arp_announce", "0"),
    ("net/ipv4/conf/all/arp_ignore", "0"),
    ("net/ipv4/conf/all/route_localnet", "0"),
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv4/vs/conn_reuse_mode", "1"),
    ("net/ipv4/vs/conntrack", "0"),
    ("net/ipv4/vs/expire_nodest_conn", "0"),
    ("net/ipv4/vs/expire_quiescent_template", "0"),
    ("net/netfilter/nf_conntrack_max", "65536"),
    ("net/netfilter/nf_conntrack_tcp_be_liberal", "0"),
    ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "60"),
    ("net/netfilter/nf_conntrack_tcp_timeout_established", "432000"),
    ("net/netfilter/nf_conntrack_udp_timeout", "30"),
];

/// A simulated node: an empty kernel that supports every mode, with `lo`. Lends [`Ports`] to a pass, and then shows
/// what was written.
#[derive(Clone, Debug, Default)]
pub struct Sketch {
    ipvs: Servers,
    sets: SetsOnPaper,
    rules: RulesOnPaper,
    links: Interfaces,
    sysctls: Values,
    tables: TablesOnPaper,
    routes: RoutesOnPaper,
    relays: Listeners,
    conntrack: NoFlows,
}

#[derive(Clone, Debug, Default)]
struct Servers {
    servers: BTreeMap<VirtualServerKey, (VirtualServer, BTreeMap<RealServerKey, RealServer>)>,
    timeouts: Timeouts,
}
#[derive(Clone, Debug, Default)]
struct SetsOnPaper(BTreeMap<String, (SetSpec, BTreeSet<Element>)>);
#[derive(Clone, Debug, Default)]
struct RulesOnPaper(BTreeMap<Family, Dump>);
#[derive(Clone, Debug)]
pub(crate) struct Values(pub(crate) BTreeMap<String, String>);
/// Our routes by owner and network, each with its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutesOnPaper(pub(crate) BTreeMap<(RouteOwner, Network), Option<IpAddr>>);
/// The listeners of a process. They end with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners {
    pub(crate) open: BTreeMap<FrontendKey, Listener>,
    /// Ports that another program has.
    pub(crate) taken: BTreeSet<FrontendKey>,
    /// Addresses at which a connection continues, with or without a listener.
    pub(crate) connected: BTreeSet<IpAddr>,
}
#[derive(Clone, Debug, Default)]
struct TablesOnPaper(Draft);
#[derive(Clone, Debug, Default)]
struct NoFlows;

impl Default for Values {
    fn default() -> Self {
        Values(SYSCTLS.into_iter().map(|(path, value)| (path.to_owned(), value.to_owned())).collect())
    }
}

impl Sketch {
    /// Lends the ports to a pass.
    pub fn ports(&mut self) -> Ports<'_> {
        lend!(self)
    }

    /// Gives an interface exactly these addresses; creates it if necessary. It may be the device of IPVS mode.
    pub fn set_interface(&mut self, name: &str, addresses: &[IpAddr]) {
        let interface = Interface { dummy: true, addresses: addresses.to_vec() };
        self.links.by_name.insert(name.to_owned(), interface);
    }

    /// The listeners of this process, in modes that relay.
    pub fn listeners(&self) -> &BTreeMap<FrontendKey, Listener> {
        &self.relays.open
    }

    /// Everything that the node has.
    pub fn state(&self) -> KernelState {
        let sets = self.sets.0.iter().map(|(name, (spec, entries))| {
            (name.clone(), (spec.to_string(), entries.iter().map(ToString::to_string).gather()))
        });
        let rules = self.rules.0.iter().map(|(family, dump)| (((*family).into(), Backend::NfTables), dump.to_string()));
        let tables = &self.tables.0;
        let tables = tables.tables().filter_map(|key| Some((key.to_string(), tables.snapshot(key)?.to_string())));
        KernelState {
            ipvs: self.ipvs.ruleset().to_string(),
            sets: sets.gather(),
            rules: rules.gather(),
            tables: tables.gather(),
            devices: self.links.all(),
            sysctls: self.sysctls.0.clone(),
            routes: self.routes.all(),
        }
    }
}

impl Servers {
    fn ruleset(&self) -> Ruleset {
        let mut rules = Ruleset::new();
        for (server, reals) in self.servers.values() {
            rules.push(*server, reals.values().copied());
        }
        rules
    }
}

impl Ipvs for Servers {
    fn snapshot(&mut self) -> Result<Snapshot> {
        Ok(Snapshot::from(&self.ruleset()))
    }

    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>> {
        let reals = self.servers.get(key).into_iter().flat_map(|(_, reals)| reals.values());
        Ok(reals.map(|real| (*real).into()).collect())
    }

    fn run(&mut self, operations: &[&Operation]) -> ItemFailures {
        for operation in operations {
            match operation {
                Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server) => {
                    self.servers.entry(server.key).or_insert_with(|| (*server, BTreeMap::new())).0 = *server;
                }
                Operation::DeleteVirtualServer(key) => drop(self.servers.remove(key)),
                Operation::AddRealServer(key, real) | Operation::UpdateRealServer(key, real) => {
                    if let Some((_, reals)) = self.servers.get_mut(key) {
                        reals.insert(real.key, *real);
                    }
                }
                Operation::DeleteRealServer(key, real) => {
                    if let Some((_, reals)) = self.servers.get_mut(key) {
                        reals.remove(real);
                    }
                }
                _ => {}
            }
        }
        ItemFailures::new()
    }

    fn timeouts(&mut self) -> Result<Timeouts> {
        Ok(self.timeouts)
    }

    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<()> {
        let TimeoutsUpdate { tcp_secs, tcp_fin_secs, udp_secs, .. } = *timeouts;
        let now = self.timeouts;
        self.timeouts = Timeouts::new(
            tcp_secs.unwrap_or(now.tcp_secs),
            tcp_fin_secs.unwrap_or(now.tcp_fin_secs),
            udp_secs.unwrap_or(now.udp_secs),
        );
        Ok(())
    }
}

impl Sets for SetsOnPaper {
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>> {
        Ok(self.0.get(&set.name()).map(|(_, entries)| entries.clone()))
    }

    fn create(&mut self, set: NamedSet, room: usize) -> Result<()> {
        let spec = set.spec_for(room)?;
        self.0.entry(set.name()).or_insert_with(|| (spec, BTreeSet::new()));
        Ok(())
    }

    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        if let Some((_, entries)) = self.0.get_mut(&set.name()) {
            entries.extend(elements.iter().map(|element| (*element).clone()));
        }
        ItemFailures::new()
    }

    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        if let Some((_, entries)) = self.0.get_mut(&set.name()) {
            entries.retain(|entry| !elements.contains(&entry));
        }
        ItemFailures::new()
    }

    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<()> {
        let spec = set.spec_for(elements.len())?;
        self.0.insert(set.name(), (spec, elements.iter().map(|element| (*element).clone()).collect()));
        Ok(())
    }

    fn destroy(&mut self, set: NamedSet) -> Result<()> {
        self.0.remove(&set.name());
        Ok(())
    }
}

fn untouched(name: &TableName) -> Table {
    let mut table = Table::new(name.clone());
    for chain in name.builtin_chains().iter().filter_map(|chain| ChainName::new(*chain).ok()) {
        table.insert(Chain::new(chain).with_policy(Policy::Accept));
    }
    table
}

fn edit(table: &mut Table, edit: &Edit) {
    let (Edit::Replace(name, _)
    | Edit::Append(name, _)
    | Edit::Insert(name, ..)
    | Edit::Delete(name, _)
    | Edit::Flush(name)
    | Edit::DeleteChain(name)) = edit
    else {
        return;
    };
    let Some(chain) = table.chain_mut(name.as_str()) else { return };
    match edit {
        Edit::Replace(_, rules) => chain.rules.clone_from(rules),
        Edit::Append(_, rule) => chain.rules.push(rule.clone()),
        Edit::Insert(_, at, rule) => chain.rules.insert(at.saturating_sub(1).min(chain.rules.len()), rule.clone()),
        Edit::Delete(_, rule) => {
            if let Some(at) = chain.rules.iter().position(|found| found.same_as(rule)) {
                chain.rules.remove(at);
            }
        }
        Edit::DeleteChain(_) => drop(table.remove(name.as_str())),
        _ => chain.rules.clear(),
    }
}

impl Rules for RulesOnPaper {
    fn has_random_fully(&mut self, _family: Family) -> Result<bool> {
        Ok(true)
    }

    fn dump(&mut self, family: Family) -> Result<Dump> {
        Ok(self.0.get(&family).cloned().unwrap_or_default())
    }

    fn has_tables(&mut self, family: Family) -> Option<bool> {
        Some(self.0.contains_key(&family))
    }

    fn check(&mut self, _family: Family, _transaction: &iptables::Transaction) -> Result<()> {
        Ok(())
    }

    fn restore(&mut self, family: Family, transaction: &iptables::Transaction) -> Result<()> {
        let dump = self.0.entry(family).or_default();
        for changes in transaction.tables() {
            if dump.table(changes.name()).is_none() {
                dump.tables.push(untouched(changes.name()));
            }
            let Some(table) = dump.tables.iter_mut().find(|table| table.name() == changes.name()) else { continue };
            // In the order of the restore programs: first every chain, then every rule.
            for chain in changes.chains() {
                if table.chain(chain.as_str()).is_none() {
                    table.insert(Chain::new(chain.clone()));
                }
            }
            changes.edits().iter().for_each(|change| edit(table, change));
            count_from_zero(table);
        }
        Ok(())
    }
}

/// Saved rules include their counters.
fn count_from_zero(table: &mut Table) {
    let names: Vec<ChainName> = table.chains().iter().map(|chain| chain.name.clone()).collect();
    for name in names {
        for rule in table.chain_mut(name.as_str()).into_iter().flat_map(|chain| &mut chain.rules) {
            rule.counters.get_or_insert(Counters::default());
        }
    }
}

impl Sysctls for Values {
    fn get(&mut self, path: &str) -> Result<String> {
        let missing =
            || PortError::new(PortErrorKind::NotFound, format!("reading /proc/sys/{path}: there is no such value"));
        self.0.get(path).cloned().ok_or_else(missing)
    }

    fn can_set(&mut self, _path: &str) -> bool {
        true
    }

    fn set(&mut self, path: &str, value: &str) -> Result<()> {
        self.0.insert(path.to_owned(), value.to_owned());
        Ok(())
    }
}

impl Tables for TablesOnPaper {
    fn generation(&mut self) -> Result<u32> {
        Ok(1)
    }

    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>> {
        Ok(self.0.snapshot(table))
    }

    fn list(&mut self) -> Result<Vec<TableKey>> {
        Ok(self.0.tables().cloned().collect())
    }

    fn check(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
        self.clone().commit(transaction)
    }

    fn commit(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
        let invalid =
            |error| NotCommitted { error: PortError::from_error(PortErrorKind::Invalid, &error), refused: None };
        self.0.apply(transaction).map_err(invalid)
    }
}

impl Conntrack for NoFlows {
    fn forget_flows(&mut self, _: Protocol, _: Family, _: &UdpServices) -> Result<usize> {
        Ok(0)
    }

    fn find_udp(&mut self, _: &UdpServices) -> Result<BTreeSet<SocketAddr>> {
        Ok(BTreeSet::new())
    }
}

impl RoutesOnPaper {
    pub(crate) fn all(&self) -> BTreeSet<(RouteOwner, LocalRoute)> {
        let route = |network: &Network, source: &Option<IpAddr>| LocalRoute { network: *network, source: *source };
        self.0.iter().map(|((owner, network), source)| (*owner, route(network, source))).gather()
    }
}

impl LocalNetworks for RoutesOnPaper {
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>> {
        let ours = self.0.iter().filter(|((of, _), _)| *of == owner);
        Ok(ours.map(|((_, network), source)| (*network, *source)).gather())
    }

    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        self.0.extend(routes.iter().map(|route| ((owner, route.network.trunc()), route.source)));
        ItemFailures::new()
    }

    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures {
        self.0.retain(|(of, network), _| *of != owner || !networks.iter().any(|of| of.trunc() == *network));
        ItemFailures::new()
    }
}

impl Relays for Listeners {
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener> {
        self.open.clone()
    }

    fn configure(&mut self, _settings: &Settings) -> Result<()> {
        Ok(())
    }

    fn serve(&mut self, listener: &Listener) -> Result<()> {
        if self.taken.contains(&listener.key) {
            self.close(&listener.key);
            let message = format!("listening on {}: another program has the port", listener.key);
            return Err(PortError::new(PortErrorKind::AlreadyExists, message));
        }
        self.open.insert(listener.key, listener.clone());
        Ok(())
    }

    fn close(&mut self, key: &FrontendKey) {
        self.open.remove(key);
    }

    fn busy(&mut self) -> BTreeSet<IpAddr> {
        let served: BTreeSet<IpAddr> = self.open.keys().map(|key| key.address).collect();
        self.connected.difference(&served).copied().collect()
    }
}
