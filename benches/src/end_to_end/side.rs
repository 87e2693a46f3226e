//! One cluster: a proxy starts on an empty kernel, follows changes, ends, and starts again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ipvs::model::{ObservedRealServer, VirtualServerConfig};
use ipvs::{Client, Scheduler, VirtualServer};
use tempfile::NamedTempFile;

use super::objects::{OTHER, address};
use super::proxy::Proxy;
use super::server::{Server, monotonic};
use super::{ALONE, BOOTED, CHANGE, COLD, MEMORY, PERSISTENT, POLICIES, POLICY, PROGRAMS, REQUEST, WARM, WHOLE, label};
use crate::ipvs_program::key;
use crate::namespace::tell;
use crate::network::tool;
use crate::report::ms;
use crate::{Failure, machine};

/// After this time a change is considered lost.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between reads of the kernel while waiting for a change.
const LOOK: Duration = Duration::from_micros(200);
/// Between one change's arrival and the next change.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [services, endpoints, changes, kind] = arguments else { return Err("SERVICES ENDPOINTS CHANGES KIND".into()) };
    let (services, endpoints, changes): (u32, u32, u32) = (services.parse()?, endpoints.parse()?, changes.parse()?);
    let server = Server::start(services, endpoints)?;
    let kubeconfig = NamedTempFile::new()?;
    std::fs::write(&kubeconfig, &server.kubeconfig)?;
    let by_programs = [PROGRAMS, POLICIES].contains(kind);
    let rules = if by_programs { "iptables" } else { "nftables" };
    let side = if by_programs { label(endpoints) } else { format!("{}, {kind}", label(endpoints)) };
    let start = Start { kubeconfig: kubeconfig.path(), rules, side: &side, services, endpoints };
    if *kind == BOOTED {
        unload_modules()?;
        return cold(&start);
    }
    if !by_programs {
        cold(&start)?;
        return warm(&start)?.stop();
    }
    if *kind == POLICIES {
        request_alone(services, changes)?;
    }

    cold(&start)?;
    let mut proxy = warm(&start)?;
    let mut cluster = Cluster { server, client: Client::open()?, services, endpoints };
    for change in 0..changes {
        // Each of another Service, in no particular order.
        let number = (change * 7919 + services / 2) % services;
        std::thread::sleep(PAUSE);
        cluster.one_change(number)?;
        if *kind == POLICIES {
            std::thread::sleep(PAUSE);
            cluster.one_scheduler((number + 1) % services)?;
            std::thread::sleep(PAUSE);
            cluster.one_persistence((number + 2) % services)?;
        }
    }
    proxy.wait_until_idle()?;
    check_kernel(&start)?;
    complaints(&mut proxy)?;
    proxy.stop()
}

/// A proxy's start on a cluster.
#[derive(Clone, Copy, Debug)]
struct Start<'a> {
    kubeconfig: &'a Path,
    /// `iptables` or `nftables`.
    rules: &'a str,
    /// Its name in the report.
    side: &'a str,
    services: u32,
    endpoints: u32,
}

/// Prefixes of modules that are loaded for serving Services.
const OF_NETFILTER: [&str; 8] = ["ip_vs", "nf_", "nft_", "ip_set", "xt_", "ip6", "iptable", "dummy"];

/// Unloads unused modules that were loaded since boot. The virtual machine needs those for its files and network card,
/// and keeps them.
fn unload_modules() -> Result<(), Failure> {
    if !machine::is_emulated() {
        return Err("modules are unloaded in a virtual machine only".into());
    }
    loop {
        let modules = std::fs::read_to_string("/proc/modules")?;
        // Name, size, users.
        let unused = modules.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let (name, users) = (words.next()?, words.nth(1)?);
            let ours = OF_NETFILTER.iter().any(|prefix| name.starts_with(prefix));
            (ours && users == "0").then_some(name)
        });
        let mut gone = false;
        for module in unused {
            gone |= Command::new("rmmod").arg(module).stderr(Stdio::null()).status()?.success();
        }
        if !gone {
            break;
        }
    }
    let left = std::fs::read_to_string("/proc/modules")?;
    let left: Vec<&str> = ["ip_vs ", "nf_tables "].into_iter().filter(|name| left.contains(*name)).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?} could not be unloaded").into()) }
}

/// Starts on an empty kernel, checks the kernel, and stops.
fn cold(start: &Start<'_>) -> Result<(), Failure> {
    let Start { side, services, .. } = *start;
    let mut proxy = Proxy::start(start.kubeconfig, start.rules)?;
    let (end, _) = proxy.wait_for("full pass: ")?;
    check_kernel(start)?;
    tell(WHOLE, services, "ms", &format!("{side}, {COLD}"), ms(end - proxy.started));
    proxy.wait_until_idle()?;
    tell(MEMORY, services, "KiB", &format!("{side}, {COLD}, resident"), proxy.resident_kib()?);
    complaints(&mut proxy)?;
    proxy.stop()
}

/// Starts with everything there.
fn warm(start: &Start<'_>) -> Result<Proxy, Failure> {
    let Start { side, services, .. } = *start;
    let mut proxy = Proxy::start(start.kubeconfig, start.rules)?;
    let end = proxy.wait_for_full_pass()?;
    tell(WHOLE, services, "ms", &format!("{side}, {WARM}"), ms(end - proxy.started));
    proxy.wait_until_idle()?;
    check_kernel(start)?;
    complaints(&mut proxy)?;
    // A pass that only took long is logged too.
    if let Some(wrote) = proxy.said.iter().find(|line| line.contains("pass: ") && !line.contains("pass: 0 changes")) {
        return Err(format!("everything was there, and yet: {wrote}").into());
    }
    Ok(proxy)
}

pub(super) fn complaints(proxy: &mut Proxy) -> Result<(), Failure> {
    proxy.heard();
    let complaint = proxy.said.iter().find(|line| line.contains(" ERROR ") || line.contains("another program"));
    complaint.map_or(Ok(()), |line| Err(line.clone().into()))
}

/// An API server, and the kernel that a proxy programs for it.
struct Cluster {
    server: Server,
    client: Client,
    services: u32,
    endpoints: u32,
}

impl Cluster {
    /// One endpoint is replaced. Measures from the server's first event until the kernel sends connections to the new
    /// one and none to the old one.
    fn one_change(&mut self, number: u32) -> Result<(), Failure> {
        let key = key(number);
        let serves = |servers: &[ObservedRealServer], place: u32| {
            let addr = address(number, place);
            servers.iter().any(|known| known.server.key.addr == addr && known.server.config.weight.get() > 0)
        };
        let (old, new) = (self.endpoints - 1, OTHER);
        if !serves(&self.client.list_real_servers(&key)?, old) {
            return Err(format!("endpoint {old} of Service {number} is not there before the change").into());
        }
        let told = self.server.change(number, true)?;
        loop {
            let servers = self.client.list_real_servers(&key)?;
            let now = monotonic()?;
            if serves(&servers, new) && !serves(&servers, old) {
                let side = label(self.endpoints);
                tell(CHANGE, self.services, "ms", &side, ms(now.saturating_sub(told)));
                break;
            }
            if now.saturating_sub(told) > PATIENCE {
                return Err(format!("Service {number} never got its other endpoint: {servers:?}").into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// A Service gets another scheduler. Measures from the server's first event until the kernel has it.
    fn one_scheduler(&mut self, number: u32) -> Result<(), Failure> {
        let other = Scheduler::WeightedRoundRobin;
        let value = other.to_string();
        self.one_policy(number, POLICY, ("proxier/scheduler", &value), |config| config.scheduler == other)
    }

    /// A Service gets persistence.
    fn one_persistence(&mut self, number: u32) -> Result<(), Failure> {
        let asked = ("proxier/persistence-seconds", "300");
        self.one_policy(number, PERSISTENT, asked, |config| {
            config.persistence.as_ref().is_some_and(|persistence| persistence.timeout_secs == 300)
        })
    }

    fn one_policy(
        &mut self,
        number: u32,
        what: &str,
        (annotation, value): (&str, &str),
        is_there: impl Fn(&VirtualServerConfig) -> bool,
    ) -> Result<(), Failure> {
        let key = key(number);
        let mut has_it =
            || -> Result<bool, Failure> { Ok(is_there(&self.client.get_virtual_server(&key)?.server.config)) };
        if has_it()? {
            return Err(format!("Service {number} has {annotation} {value} before the change").into());
        }
        let told = self.server.annotate(number, annotation, value)?;
        while !has_it()? {
            if monotonic()?.saturating_sub(told) > PATIENCE {
                return Err(format!("Service {number} never got {annotation} {value}").into());
            }
            std::thread::sleep(LOOK);
        }
        tell(what, self.services, "ms", &label(self.endpoints), ms(monotonic()?.saturating_sub(told)));
        Ok(())
    }
}

/// The request that changes a virtual server's scheduler, on an otherwise empty IPVS.
fn request_alone(services: u32, changes: u32) -> Result<(), Failure> {
    let mut client = Client::open()?;
    let key = key(0);
    let with = |scheduler| VirtualServer::new(key, scheduler);
    client.add_virtual_server(&with(Scheduler::RoundRobin))?;
    // The first loads the module.
    client.update_virtual_server(&with(Scheduler::WeightedRoundRobin))?;
    for _ in 0..changes {
        client.update_virtual_server(&with(Scheduler::RoundRobin))?;
        std::thread::sleep(PAUSE);
        let start = Instant::now();
        client.update_virtual_server(&with(Scheduler::WeightedRoundRobin))?;
        tell(ALONE, services, "ms", REQUEST, ms(start.elapsed()));
    }
    client.delete_virtual_server(&key)?;
    Ok(())
}

/// Checks that the kernel and the usual programs show everything: real servers, addresses, masquerading. After a
/// change, draining real servers may be present too.
fn check_kernel(start: &Start<'_>) -> Result<(), Failure> {
    let (services, endpoints) = (start.services, start.endpoints);
    let snapshot = Client::open()?.snapshot()?;
    let used = |known: &&ObservedRealServer| known.server.config.weight.get() > 0;
    let used: usize = snapshot.entries.iter().map(|entry| entry.real_servers.iter().filter(used).count()).sum();
    let addresses = tool("ip -4 -oneline address show dev kube-ipvs0")?.lines().count();
    let mut found = vec![
        ("virtual servers", snapshot.entries.len().to_string(), services.to_string()),
        ("real servers", used.to_string(), (services * endpoints).to_string()),
        ("addresses", addresses.to_string(), services.to_string()),
    ];
    if start.rules == "nftables" {
        let table = tool("nft list table ip proxier-ipvs")?;
        let entries = table.matches(" . tcp . ").count() + table.matches("tcp . ").count();
        found.push(("entries of the table", (entries >= services as usize).to_string(), true.to_string()));
    } else {
        let entries = tool("ipset list -terse KUBE-CLUSTER-IP")?;
        let entries =
            entries.lines().find_map(|line| line.strip_prefix("Number of entries: ")).unwrap_or("none").to_owned();
        let rules = tool("iptables-save -t nat")?;
        found.push(("entries of KUBE-CLUSTER-IP", entries, services.to_string()));
        found.push(("rules", rules.contains("--match-set KUBE-CLUSTER-IP").to_string(), true.to_string()));
    }
    for (what, found, expected) in found {
        if found != expected {
            return Err(format!("{what}: {found} instead of {expected}").into());
        }
    }
    Ok(())
}
