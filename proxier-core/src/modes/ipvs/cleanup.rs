//! Removes all objects of IPVS mode.

use iptables::{Dump, TableName};
use ipvs::VirtualServerKey;

use crate::config::{Config, Families, KernelNames, NamePrefix, RulesBy};
use crate::modes::ipvs::diff::foreign;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::wanted::Index;
use crate::modes::ipvs::{guards, reading, rules};
use crate::modes::shared::chains::Removal;
use crate::modes::shared::cleaned::{Cleaned, IsKeptIn, ServedFrontends};
use crate::modes::shared::networks::{delete_routes, read_host};
use crate::net::FrontendKey;
use crate::plan::operation::Operation;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Names};
use crate::ports::{PortErrorKind, Ports, RouteOwner, SetKey};
use crate::service::Desired;

/// Removes everything that this proxy, or a kube-proxy in IPVS mode, has created in both families, except the kept
/// chains and virtual servers in [`exclude_cidrs`](crate::config::IpvsConfig::exclude_cidrs), and nothing else. Values
/// below `/proc/sys` and timeouts stay: their earlier values are not known. Missing objects, and parts that this kernel
/// does not have, count as done.
///
/// The order is that of deletion: virtual servers, routes before the rules that guard them, sets, tables, addresses. If
/// a part fails, the records that identify it as this proxy's stay, and the other parts continue.
pub fn cleanup(config: &Config, is_kept: IsKeptIn<'_>, ports: &mut Ports<'_>) -> Cleaned {
    let (config, mut cleaned) = (of_both_families(config), Cleaned::default());
    let served = clean_virtual_servers(&config, ports, &mut cleaned);
    // Routes of proxies with other names look the same.
    if served && config.names == KernelNames::default() {
        delete_routes(RouteOwner::Ipvs, ports, &mut cleaned);
    }
    removal(config.names.prefix, is_kept).carry_out(ports, &mut cleaned);
    if !served {
        // The next cleanup needs the sets and addresses to recognize this proxy's virtual servers.
        return cleaned;
    }
    clean_sets(config.families.iter().flat_map(SetKey::all), &config, ports, &mut cleaned);
    guards::nft::cleanup(&config, ports.tables, &mut cleaned);
    match ports.links.addresses() {
        Ok(host) if reading::has_device(&host, &config.names) => {
            let delete = Operation::Device(Action::Delete, &config.names.device);
            cleaned.applied.carry_out([delete], &Names::NONE, ports);
        }
        Ok(_) => {}
        Err(error) => cleaned.miss("addresses", error),
    }
    cleaned
}

/// Removes what this proxy has and a kube-proxy in IPVS mode lacks, while that serves: virtual servers of marks, local
/// routes, and the set that records node ports. Call it before the tables are removed, which record the marks. Returns
/// whether they may be.
pub(crate) fn cleanup_beside_kube_proxy(config: &Config, ports: &mut Ports<'_>, cleaned: &mut Cleaned) -> bool {
    let config = &of_both_families(config);
    let marks = match guards::nft::marks(config, ports.tables) {
        Ok(marks) => marks,
        Err(unread) => {
            cleaned.unread.extend(unread);
            return false;
        }
    };
    let is_done = marks.is_empty() || delete_virtual_servers(marks.into_keys(), ports, cleaned);
    // Routes of proxies with other names look the same.
    if config.names == KernelNames::default() {
        delete_routes(RouteOwner::Ipvs, ports, cleaned);
    }
    let sets = config.families.iter().flat_map(SetKey::all);
    clean_sets(sets.filter(|set| !set.kind.is_of_kube_proxy()), config, ports, cleaned);
    is_done
}

/// Removes the objects of the variant of [`guards`] that does not serve.
pub(crate) fn cleanup_other_guards(
    config: &Config,
    is_kept: IsKeptIn<'_>,
    ports: &mut Ports<'_>,
    cleaned: &mut Cleaned,
) {
    removal(config.names.prefix, is_kept).carry_out(ports, cleaned);
    if config.ipvs.rules == RulesBy::Nftables {
        let config = of_both_families(config);
        clean_sets(config.families.iter().flat_map(SetKey::all), &config, ports, cleaned);
    } else {
        guards::nft::cleanup(config, ports.tables, cleaned);
    }
}

fn of_both_families(config: &Config) -> Config {
    Config { families: Families::Dual, ..config.clone() }
}

fn clean_sets(sets: impl Iterator<Item = SetKey>, config: &Config, ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
    for set in sets {
        let set = set.named(config.names.prefix);
        let entries = ports.sets.entries(set);
        match entries.and_then(|entries| Ok(entries.is_some() || ports.sets.has_unfinished(set)?)) {
            Ok(false) => {}
            Ok(true) => {
                let destroy = Operation::Set(Action::Delete, set);
                cleaned.applied.carry_out([destroy], &Names::NONE, ports);
            }
            Err(error) => cleaned.miss(format_args!("set {set}"), error),
        }
    }
}

/// Frontends that this proxy's virtual servers serve: none without the device or routes for them.
pub(crate) fn served(config: &Config, ports: &mut Ports<'_>) -> ServedFrontends {
    let (config, mut served) = (of_both_families(config), ServedFrontends::default());
    let may_have = match (read_host(ports.links), ports.routes.networks(RouteOwner::Ipvs)) {
        (Ok(host), Ok(routes)) => reading::has_device(&host, &config.names) || !routes.is_empty(),
        // Reading the existing objects decides.
        (Err(_), _) | (_, Err(_)) => true,
    };
    if !may_have {
        return served;
    }
    match read_own(&config, ports) {
        Ok((observed, _)) => {
            for (key, server) in &observed.virtual_servers {
                if let Ok(frontend) = FrontendKey::try_from(*key) {
                    served.add(frontend, !server.real_servers.is_empty());
                }
            }
        }
        Err(unread) => served.unread = unread,
    }
    served
}

/// Reads this proxy's virtual servers and everything that identifies them. Also returns other programs' virtual
/// servers. `config`: of both families.
fn read_own(config: &Config, ports: &mut Ports<'_>) -> Result<(Observed, Vec<VirtualServerKey>), Vec<Unread>> {
    let (desired, index) = (Desired::new(), Index::new(config));
    let wanted = &index.wanted(&desired);
    let host = read_host(ports.links).map_err(|unread| vec![unread])?;
    let sets = guards::read_ipsets(config, ports.sets);
    // Routes of proxies with other names look the same.
    let routes = (config.names == KernelNames::default()).then_some(&mut *ports.routes);
    let (mut observed, mut unread) =
        reading::read(sets, (ports.ipvs, ports.links, routes), (&host, config), wanted, false);
    // A part that this kernel lacks is empty.
    unread.retain(|unread| unread.error.kind() != PortErrorKind::Unavailable);
    let (before, more) = guards::nft::read_contents(config.families.iter(), config, ports.tables);
    observed.before = before;
    unread.extend(more);
    if !unread.is_empty() {
        return Err(unread);
    }
    observed.is_first = true;
    observed.recall_marks(config);
    let foreign: Vec<_> = foreign(wanted, &observed, config).collect();
    observed.virtual_servers.retain(|key, _| foreign.binary_search(key).is_err());
    Ok((observed, foreign))
}

/// Returns whether none of ours is left.
fn clean_virtual_servers(config: &Config, ports: &mut Ports<'_>, cleaned: &mut Cleaned) -> bool {
    let (observed, foreign) = match read_own(config, ports) {
        Ok(own) => own,
        Err(unread) => {
            cleaned.unread.extend(unread);
            return false;
        }
    };
    cleaned.foreign = foreign;
    delete_virtual_servers(observed.virtual_servers.into_keys(), ports, cleaned)
}

/// Returns whether none of them is left.
fn delete_virtual_servers(
    keys: impl Iterator<Item = VirtualServerKey>,
    ports: &mut Ports<'_>,
    cleaned: &mut Cleaned,
) -> bool {
    let operations: Vec<_> = keys.map(ipvs::Operation::DeleteVirtualServer).collect();
    let mut failures = ports.ipvs.run(&operations.iter().collect::<Vec<_>>());
    failures.retain(|_, error| error.kind() != PortErrorKind::NotFound);
    let is_done = failures.is_empty();
    let mut operations: Vec<_> = operations.iter().map(|of| Operation::Server(of, None)).collect();
    cleaned.applied.record(&mut operations, failures, &Names::NONE);
    is_done
}

/// The removal of the chains and jumps of a proxy with this prefix, except the kept chains.
pub(crate) fn removal(prefix: NamePrefix, is_kept: IsKeptIn<'_>) -> Removal<'_> {
    let may_go = move |backend, table: &TableName, chain: &str| {
        rules::has_chain(prefix, table, chain) && !is_kept(backend, table, chain)
    };
    let edits = move |backend, dump: &Dump| {
        let changes = rules::cleanup(dump, prefix, &|table, chain| is_kept(backend, table, chain));
        changes.map(|changes| changes.transaction)
    };
    Removal { may_go: Box::new(may_go), edits: Box::new(edits) }
}
