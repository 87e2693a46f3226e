//! Services and endpoints in the kernel, regardless of the program that wrote them.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ipvs::VirtualServerKey;
use nftables::{ElementData, Family};

use super::super::proxy::Proxy;
use super::cluster::not_interrupted;
use crate::Failure;
use crate::network::tool;

/// Between looks.
const LOOK: Duration = Duration::from_micros(200);
/// Between reads of the same generation.
const SAME: Duration = Duration::from_millis(100);

/// The kernel of the calling thread's network namespace.
pub(super) struct Kernel {
    mode: Mode,
    /// Reports when rules change, also those that iptables has written by nf_tables.
    changes: Option<nftables::Client>,
}

#[derive(Clone, Copy)]
enum Mode {
    Nftables,
    Iptables,
    Ipvs,
}

/// Addresses found in the kernel.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Addresses to which clients connect.
    pub(super) services: HashSet<Ipv4Addr>,
    pub(super) endpoints: HashSet<Ipv4Addr>,
}

impl Kernel {
    pub(super) fn open(mode: &str) -> Result<Self, Failure> {
        let mode = match mode {
            "nftables" => Mode::Nftables,
            "iptables" => Mode::Iptables,
            "ipvs" => Mode::Ipvs,
            other => return Err(format!("--mode {other}: nftables, iptables or ipvs").into()),
        };
        let changes = if let Mode::Ipvs = mode { None } else { Some(nftables::Client::open()?) };
        Ok(Kernel { mode, changes })
    }

    /// A number that changes with the rules, if there is one.
    pub(super) fn generation(&mut self) -> Result<Option<u32>, Failure> {
        Ok(match (&mut self.changes, self.mode) {
            (None, _) => None,
            (Some(_), Mode::Iptables) if has_legacy_tables() => None,
            (Some(changes), _) => Some(changes.generation()?),
        })
    }

    pub(super) fn held(&self) -> Result<Held, Failure> {
        self.mode.held()
    }

    /// Reads the kernel repeatedly until it holds this. Reads again only when the rules have another generation than
    /// the given one: a change during a read is only seen by the next. Returns the time since which it held: that of
    /// the last change of generation before the end of the read, if there is one, so the read itself is not included.
    /// While the kernel enlarges a set, a list may omit elements without a sign of it, so a mismatch is read again.
    pub(super) fn wait(
        &mut self,
        proxy: &mut Proxy,
        patience: Duration,
        mut seen: Option<u32>,
        holds: impl Fn(&Held) -> bool,
    ) -> Result<Instant, Failure> {
        let end = Instant::now() + patience;
        let (mut latest, mut again) = ((self.generation()?, Instant::now()), None);
        loop {
            not_interrupted()?;
            let generation = latest.0;
            if generation.is_none() || generation != seen || again.is_some_and(|again| Instant::now() > again) {
                // A list that changes while it is read fails; the next attempt reads it again.
                match self.held_until(&mut latest) {
                    Ok(held) if holds(&held) => return Ok(latest.1),
                    Ok(_) => (seen, again) = (generation, Some(Instant::now() + SAME)),
                    Err(error) if Instant::now() > end => return Err(error),
                    Err(_) => {}
                }
            }
            proxy.still_runs()?;
            if Instant::now() > end {
                return Err(format!("not in the kernel after {} s: {:#?}", patience.as_secs(), proxy.heard()).into());
            }
            std::thread::sleep(LOOK);
            let generation = self.generation()?;
            if generation.is_none() || generation != latest.0 {
                latest = (generation, Instant::now());
            }
        }
    }

    /// Reads the kernel, and notes the time of each change of generation meanwhile: `iptables-save` takes longer than
    /// two changes in a row.
    fn held_until(&mut self, latest: &mut (Option<u32>, Instant)) -> Result<Held, Failure> {
        let mode = self.mode;
        std::thread::scope(|scope| {
            let read = scope.spawn(move || mode.held().map_err(|error| error.to_string()));
            while !read.is_finished() {
                let generation = self.generation()?;
                if generation != latest.0 {
                    *latest = (generation, Instant::now());
                }
                std::thread::sleep(LOOK);
            }
            Ok(read.join().map_err(|_panic| "a reader panicked")??)
        })
    }
}

impl Mode {
    fn held(self) -> Result<Held, Failure> {
        match self {
            Mode::Nftables => by_nftables(),
            Mode::Iptables => by_iptables(),
            Mode::Ipvs => by_ipvs(),
        }
    }
}

/// Keys of maps are Services. An endpoint is what a map contains, or a chain of kube-proxy's named after it.
fn by_nftables() -> Result<Held, Failure> {
    let mut client = nftables::Client::open()?;
    let first = |bytes: &[u8]| bytes.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets));
    let mut held = Held::default();
    for table in client.list_tables(Some(Family::Ip))? {
        let table = table.table.key;
        for chain in client.list_chains(&table)? {
            let name = chain.chain.key.name;
            let place = name.as_str().rsplit_once("__").and_then(|(_, place)| place.split_once('/'));
            held.endpoints.extend(place.and_then(|(address, _)| address.parse::<Ipv4Addr>().ok()));
        }
        for set in client.list_sets(&table)? {
            for element in client.list_elements(&set.set)? {
                let (nftables::ElementKey::Value(key), Some(data)) = (&element.key, &element.data) else { continue };
                held.services.extend(first(key.as_bytes()));
                if let ElementData::Value(value) = data {
                    held.endpoints.extend(first(value.as_bytes()));
                }
            }
        }
    }
    Ok(held)
}

fn has_legacy_tables() -> bool {
    std::fs::read_to_string("/proc/thread-self/net/ip_tables_names").is_ok_and(|names| names.contains("nat"))
}

/// Destinations of rules are Services. Targets of translations are endpoints, in chains to which some rule jumps:
/// kube-proxy keeps those of deleted Services until its next full sync.
fn by_iptables() -> Result<Held, Failure> {
    let program = if has_legacy_tables() { "iptables-legacy-save" } else { "iptables-nft-save" };
    let text = tool(&format!("{program} -t nat"))?;
    let (mut served, mut leads, mut used) = (Vec::new(), BTreeMap::new(), HashSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let after =
            |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1).copied());
        let Some(chain) = after("-A") else { continue };
        used.extend(after("-j").or_else(|| after("-g")));
        let address = |text: &str, end| text.split(end).next().and_then(|text| text.parse::<Ipv4Addr>().ok());
        served.extend(after("-d").and_then(|text| address(text, '/')).map(|address| (chain, address)));
        if let Some(address) = after("--to-destination").and_then(|text| address(text, ':')) {
            leads.insert(chain, address);
        }
    }
    let is_used = |(chain, address)| used.contains(chain).then_some(address);
    Ok(Held {
        services: served.into_iter().filter_map(is_used).collect(),
        endpoints: leads.into_iter().filter_map(is_used).collect(),
    })
}

fn by_ipvs() -> Result<Held, Failure> {
    let mut held = Held::default();
    for entry in ipvs::Client::open()?.snapshot()?.entries {
        if let VirtualServerKey::Address { addr: IpAddr::V4(address), .. } = entry.virtual_server.server.key {
            held.services.insert(address);
        }
        for known in entry.real_servers {
            if let (IpAddr::V4(address), true) = (known.server.key.addr, known.server.config.weight.get() > 0) {
                held.endpoints.insert(address);
            }
        }
    }
    Ok(held)
}
