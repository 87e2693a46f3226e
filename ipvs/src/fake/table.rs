//! The table of one network namespace and the rules for changing it (net/netfilter/ipvs/ip_vs_ctl.c).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipvs_sys::uapi::{self, SvcFlags};
use netlink_batch::Errno;

use crate::fake::address::{takes_v4, takes_v6};
use crate::fake::wire::{AF_INET, AF_INET6, ServiceRest};
use crate::model::{Scheduler, Stats, Timeouts};

/// Ticks per second of Debian's kernels (`CONFIG_HZ`). Timeouts are stored in ticks.
const HZ: u32 = 250;
/// Buckets of the table of services (`IP_VS_SVC_TAB_SIZE`).
const BUCKETS: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceKey {
    pub(super) fwmark: u32,
    pub(super) af: u16,
    pub(super) protocol: u16,
    pub(super) addr: [u8; 16],
    pub(super) port: u16,
}

impl ServiceKey {
    /// Services by address come before those by mark; both are ordered by bucket. The kernel's hash depends on memory
    /// addresses, so no test may rely on an order. This one deliberately differs from the order of keys and of
    /// insertion.
    fn bucket(&self) -> u64 {
        let parts = [u32::from(self.af), u32::from(self.protocol), u32::from(self.port), self.fwmark];
        let addr = self.addr.iter().map(|byte| u32::from(*byte));
        let hash = parts
            .into_iter()
            .chain(addr)
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, part| (hash ^ u64::from(part)).wrapping_mul(0x0100_0000_01b3));
        (hash >> 32) % BUCKETS
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DestinationKey {
    pub(super) af: u16,
    pub(super) addr: [u8; 16],
    pub(super) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tunnel {
    pub(super) kind: u8,
    pub(super) port: u16,
    pub(super) flags: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    pub(super) key: DestinationKey,
    pub(super) method: u32,
    pub(super) weight: u32,
    pub(super) upper: u32,
    pub(super) lower: u32,
    pub(super) tunnel: Tunnel,
    pub(super) active: u32,
    pub(super) inactive: u32,
    pub(super) persistent: u32,
    pub(super) stats: Stats,
}

impl Destination {
    pub(super) fn new(key: DestinationKey) -> Self {
        Destination {
            key,
            method: 0,
            weight: 0,
            upper: 0,
            lower: 0,
            tunnel: Tunnel { kind: 0, port: 0, flags: 0 },
            active: 0,
            inactive: 0,
            persistent: 0,
            stats: Stats::default(),
        }
    }

    /// The checks of `ip_vs_add_dest` and `ip_vs_edit_dest` before they look anything up.
    fn check(&self) -> Result<(), Errno> {
        if i32::try_from(self.weight).is_err() || self.lower > self.upper {
            return Err(Errno::ERANGE);
        }
        if self.tunnel.kind == uapi::TUNNEL_TYPE_GUE && self.tunnel.port == 0 {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// `__ip_vs_update_dest`.
    fn take_config(&mut self, from: &Destination) {
        self.method = from.method;
        self.weight = from.weight;
        self.upper = from.upper;
        self.lower = from.lower;
        self.tunnel = from.tunnel;
    }
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) key: ServiceKey,
    pub(super) scheduler: String,
    pub(super) engine: Option<String>,
    pub(super) flags: u32,
    pub(super) timeout: u32,
    pub(super) netmask: [u8; 4],
    pub(super) stats: Stats,
    /// Distinguishes this service from an earlier one with the same key.
    serial: u64,
    /// Newest first.
    destinations: BTreeMap<Reverse<u64>, Destination>,
    places: BTreeMap<DestinationKey, Reverse<u64>>,
}

impl Service {
    pub(super) fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.destinations.values()
    }

    pub(super) fn destination_mut(&mut self, key: &DestinationKey) -> Option<&mut Destination> {
        self.places.get(key).and_then(|place| self.destinations.get_mut(place))
    }

    fn set(&mut self, rest: ServiceRest) {
        self.scheduler = rest.scheduler;
        self.engine = rest.engine;
        self.flags = ((self.flags & !rest.mask) | (rest.flags & rest.mask)) | SvcFlags::HASHED.bits();
        // Stored as 32-bit ticks and reported in seconds.
        self.timeout = rest.timeout.wrapping_mul(HZ) / HZ;
        self.netmask = rest.netmask;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Daemon {
    pub(super) interface: String,
    pub(super) sync_id: u32,
    pub(super) max_length: u16,
    pub(super) group: IpAddr,
    pub(super) port: u16,
    pub(super) ttl: u8,
}

/// Position in a dump.
type DumpOrder = (bool, u64, Reverse<u64>);

/// The IPVS state of one network namespace.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    services: BTreeMap<DumpOrder, Service>,
    places: BTreeMap<ServiceKey, DumpOrder>,
    trash: BTreeMap<(ServiceKey, DestinationKey), (u64, Destination)>,
    serial: u64,
    /// Daemons, at most one in each state: master, backup.
    pub(super) daemons: [Option<Daemon>; 2],
    pub(super) timeouts: Timeouts,
    pub(super) interfaces: BTreeSet<String>,
    pub(super) modules: BTreeSet<String>,
    pub(super) ipv6: bool,
    pub(super) loopback: bool,
}

impl Namespace {
    pub(super) fn new() -> Self {
        let schedulers = Scheduler::KNOWN.iter().filter_map(Scheduler::module);
        Namespace {
            services: BTreeMap::new(),
            places: BTreeMap::new(),
            trash: BTreeMap::new(),
            serial: 0,
            daemons: [None, None],
            timeouts: Timeouts::default(),
            interfaces: ["lo", "eth0"].map(str::to_owned).into(),
            modules: schedulers.chain(["ip_vs_pe_sip".to_owned()]).collect(),
            ipv6: true,
            loopback: true,
        }
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    pub(super) fn service(&self, key: &ServiceKey) -> Result<&Service, Errno> {
        self.places.get(key).and_then(|place| self.services.get(place)).ok_or(Errno::ESRCH)
    }

    pub(super) fn service_mut(&mut self, key: &ServiceKey) -> Result<&mut Service, Errno> {
        self.places.get(key).and_then(|place| self.services.get_mut(place)).ok_or(Errno::ESRCH)
    }

    fn next_serial(&mut self) -> u64 {
        self.serial = self.serial.saturating_add(1);
        self.serial
    }

    /// Checks that the modules exist and that an IPv6 prefix length is valid.
    fn check(&self, key: &ServiceKey, rest: &ServiceRest) -> Result<(), Errno> {
        let scheduler = rest.scheduler == "none" || self.modules.contains(&format!("ip_vs_{}", rest.scheduler));
        let engine = rest.engine.as_ref().is_none_or(|name| self.modules.contains(&format!("ip_vs_pe_{name}")));
        if !scheduler || !engine {
            return Err(Errno::ENOENT);
        }
        if key.af == AF_INET6 && !(1..=128).contains(&u32::from_ne_bytes(rest.netmask)) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    pub(super) fn add_service(&mut self, key: ServiceKey, rest: ServiceRest) -> Result<(), Errno> {
        if self.places.contains_key(&key) {
            return Err(Errno::EEXIST);
        }
        self.check(&key, &rest)?;
        let serial = self.next_serial();
        let mut service = Service {
            key,
            scheduler: String::new(),
            engine: None,
            flags: 0,
            timeout: 0,
            netmask: [0; 4],
            stats: Stats::default(),
            serial,
            destinations: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        service.set(rest);
        let place = (key.fwmark != 0, key.bucket(), Reverse(serial));
        self.places.insert(key, place);
        self.services.insert(place, service);
        Ok(())
    }

    pub(super) fn set_service(&mut self, key: &ServiceKey, rest: ServiceRest) -> Result<(), Errno> {
        self.service(key)?;
        self.check(key, &rest)?;
        self.service_mut(key)?.set(rest);
        Ok(())
    }

    pub(super) fn delete_service(&mut self, key: &ServiceKey) -> Result<(), Errno> {
        let place = self.places.remove(key).ok_or(Errno::ESRCH)?;
        if let Some(service) = self.services.remove(&place) {
            for destination in service.destinations.into_values() {
                self.trash.insert((*key, destination.key), (service.serial, destination));
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) {
        let keys: Vec<ServiceKey> = self.places.keys().copied().collect();
        for key in keys {
            // Nothing else has changed the table, so each exists.
            self.delete_service(&key).unwrap_or_default();
        }
    }

    /// Forgets removed destinations, as two minutes without a change do.
    pub(super) fn empty_trash(&mut self) {
        self.trash.clear();
    }

    /// Refuses a destination of another family without a tunnel, or while a synchronisation daemon runs. Applies to NEW
    /// and SET.
    fn check_family(&self, key: &ServiceKey, destination: &Destination) -> Result<(), Errno> {
        let syncing = self.daemons.iter().any(Option::is_some);
        let mixed = destination.key.af != key.af;
        if mixed && (syncing || destination.method != uapi::CONN_F_TUNNEL) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    pub(super) fn add_destination(&mut self, key: &ServiceKey, new: Destination) -> Result<(), Errno> {
        self.service(key)?;
        self.check_family(key, &new)?;
        new.check()?;
        if self.service(key)?.places.contains_key(&new.key) {
            return Err(Errno::EEXIST);
        }
        let place = Reverse(self.next_serial());
        let removed = self.trash.remove(&(*key, new.key));
        let loopback = self.loopback;
        let service = self.service_mut(key)?;
        let destination = match removed {
            Some((serial, mut removed)) => {
                if serial != service.serial {
                    removed.stats = Stats::default();
                }
                removed.take_config(&new);
                removed
            }
            None if takes(&new.key, loopback) => new,
            None => return Err(Errno::EINVAL),
        };
        service.places.insert(destination.key, place);
        service.destinations.insert(place, destination);
        Ok(())
    }

    pub(super) fn set_destination(&mut self, key: &ServiceKey, new: &Destination) -> Result<(), Errno> {
        self.service(key)?;
        self.check_family(key, new)?;
        new.check()?;
        self.service_mut(key)?.destination_mut(&new.key).ok_or(Errno::ENOENT)?.take_config(new);
        Ok(())
    }

    pub(super) fn delete_destination(&mut self, key: &ServiceKey, real: &DestinationKey) -> Result<(), Errno> {
        let service = self.service_mut(key)?;
        let place = service.places.remove(real).ok_or(Errno::ENOENT)?;
        let serial = service.serial;
        if let Some(destination) = service.destinations.remove(&place) {
            self.trash.insert((*key, *real), (serial, destination));
        }
        Ok(())
    }

    pub(super) fn zero(&mut self, key: Option<&ServiceKey>) -> Result<(), Errno> {
        let zero = |service: &mut Service| {
            service.stats = Stats::default();
            service.destinations.values_mut().for_each(|destination| destination.stats = Stats::default());
        };
        match key {
            Some(key) => zero(self.service_mut(key)?),
            None => self.services.values_mut().for_each(zero),
        }
        Ok(())
    }

    /// `ip_vs_set_timeout`: checks all timeouts before it sets any; zero leaves one unchanged.
    pub(super) fn set_timeouts(&mut self, tcp: Option<u32>, fin: Option<u32>, udp: Option<u32>) -> Result<(), Errno> {
        let most = u32::MAX / 2 / HZ;
        if [tcp, fin, udp].into_iter().flatten().any(|seconds| seconds > most) {
            return Err(Errno::EINVAL);
        }
        let set = |place: &mut u32, seconds: Option<u32>| {
            if let Some(seconds) = seconds.filter(|seconds| *seconds != 0) {
                *place = seconds;
            }
        };
        set(&mut self.timeouts.tcp_secs, tcp);
        set(&mut self.timeouts.tcp_fin_secs, fin);
        set(&mut self.timeouts.udp_secs, udp);
        Ok(())
    }

    pub(super) fn start_daemon(&mut self, state: u32, daemon: Daemon) -> Result<(), Errno> {
        let mixed = self.services().any(|service| {
            let af = service.key.af;
            service.destinations().any(|destination| destination.key.af != af)
        });
        if mixed {
            return Err(Errno::EINVAL);
        }
        if !self.interfaces.contains(&daemon.interface) {
            return Err(Errno::ENODEV);
        }
        let place = self.daemon(state).ok_or(Errno::EINVAL)?;
        if place.is_some() {
            return Err(Errno::EEXIST);
        }
        *place = Some(daemon);
        Ok(())
    }

    pub(super) fn stop_daemon(&mut self, state: u32) -> Result<(), Errno> {
        let place = self.daemon(state).ok_or(Errno::EINVAL)?;
        place.take().map(|_| ()).ok_or(Errno::ESRCH)
    }

    fn daemon(&mut self, state: u32) -> Option<&mut Option<Daemon>> {
        let [master, backup] = &mut self.daemons;
        match state {
            uapi::STATE_MASTER => Some(master),
            uapi::STATE_BACKUP => Some(backup),
            _ => None,
        }
    }
}

fn takes(key: &DestinationKey, loopback: bool) -> bool {
    let [a, b, c, d, ..] = key.addr;
    if key.af == AF_INET { takes_v4(Ipv4Addr::new(a, b, c, d), loopback) } else { takes_v6(Ipv6Addr::from(key.addr)) }
}
