//! Decodes and encodes the family's messages as the kernel does.
//!
//! Decoding follows the policies in net/netfilter/ipvs/ip_vs_ctl.c and lib/nlattr.c. Unknown attributes are skipped,
//! the last of several equal ones counts, and a truncated list ends there. Encoding follows `ip_vs_genl_fill_*`,
//! without `NLA_F_NESTED`.

use ipvs_sys::uapi::{self, SvcFlags};
use ipvs_sys::{Counter, DaemonAttr, DestAttr, FlagsMask, StatsAttr, SvcAttr};
use netlink_batch::{Attribute, Be16, Encoder, Errno, NulStr, RawAttrs};

use crate::fake::table::{Daemon, Destination, DestinationKey, Service, ServiceKey, Tunnel};
use crate::model::Stats;

pub(super) const AF_INET: u16 = 2;
pub(super) const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;

/// The attributes of one list by number.
pub(super) struct List<'a>(Vec<(u16, &'a [u8])>);

impl<'a> List<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        List(RawAttrs::new(bytes).map_while(Result::ok).map(|attr| (attr.kind(), attr.payload)).collect())
    }

    pub(super) fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.iter().rev().find(|(number, _)| *number == kind).map(|(_, payload)| *payload)
    }

    /// The first bytes of an attribute. Longer is allowed (the kernel only warns), shorter is not.
    fn first<const N: usize>(&self, kind: u16) -> Result<Option<[u8; N]>, Errno> {
        self.get(kind).map(|payload| payload.first_chunk().copied().ok_or(Errno::EINVAL)).transpose()
    }

    pub(super) fn u8(&self, kind: u16) -> Result<Option<u8>, Errno> {
        Ok(self.first(kind)?.map(u8::from_ne_bytes))
    }

    pub(super) fn u16(&self, kind: u16) -> Result<Option<u16>, Errno> {
        Ok(self.first(kind)?.map(u16::from_ne_bytes))
    }

    pub(super) fn be16(&self, kind: u16) -> Result<Option<u16>, Errno> {
        Ok(self.first(kind)?.map(u16::from_be_bytes))
    }

    pub(super) fn u32(&self, kind: u16) -> Result<Option<u32>, Errno> {
        Ok(self.first(kind)?.map(u32::from_ne_bytes))
    }

    /// Up to `N` bytes, filled with zeros (`NLA_BINARY` and `nla_memcpy`).
    fn binary<const N: usize>(&self, kind: u16) -> Result<Option<[u8; N]>, Errno> {
        let Some(payload) = self.get(kind) else { return Ok(None) };
        let mut bytes = [0; N];
        bytes.get_mut(..payload.len()).ok_or(Errno::EINVAL)?.copy_from_slice(payload);
        Ok(Some(bytes))
    }

    /// A string with its NUL inside the first `max + 1` bytes (`NLA_NUL_STRING`).
    pub(super) fn name(&self, kind: u16, max: usize) -> Result<Option<String>, Errno> {
        let Some(payload) = self.get(kind) else { return Ok(None) };
        let head = payload.get(..payload.len().min(max.saturating_add(1))).unwrap_or_default();
        if !head.contains(&0) {
            return Err(Errno::EINVAL);
        }
        Ok(Some(String::from_utf8_lossy(NulStr::new(head).as_bytes()).into_owned()))
    }
}

/// Attributes of a service besides its key, in NEW and SET.
pub(super) struct ServiceRest {
    pub(super) scheduler: String,
    pub(super) engine: Option<String>,
    pub(super) flags: u32,
    pub(super) mask: u32,
    pub(super) timeout: u32,
    pub(super) netmask: [u8; 4],
}

/// `ip_vs_genl_parse_service`: the key, which is checked first.
pub(super) fn service_key(list: Option<&[u8]>, ipv6: bool) -> Result<ServiceKey, Errno> {
    let list = checked_service(list)?;
    let (protocol, addr) = (list.u16(SvcAttr::PROTOCOL)?, list.binary::<16>(SvcAttr::ADDR)?);
    let (port, fwmark) = (list.be16(SvcAttr::PORT)?, list.u32(SvcAttr::FWMARK)?);
    let af = list.u16(SvcAttr::AF)?.ok_or(Errno::EINVAL)?;
    let key = match (fwmark, protocol, addr, port) {
        (Some(fwmark), ..) => ServiceKey { fwmark, af, protocol: IPPROTO_TCP, addr: [0; 16], port: 0 },
        (None, Some(protocol), Some(addr), Some(port)) => {
            ServiceKey { fwmark: 0, af, protocol, addr: clipped(af, addr), port }
        }
        _ => return Err(Errno::EINVAL),
    };
    valid_family(af, ipv6)?;
    Ok(key)
}

/// Checks every attribute of a service before any is used.
fn checked_service(list: Option<&[u8]>) -> Result<List<'_>, Errno> {
    let list = List::new(list.ok_or(Errno::EINVAL)?);
    list.name(SvcAttr::SCHED_NAME, uapi::SCHEDNAME_MAXLEN.saturating_sub(1))?;
    list.name(SvcAttr::PE_NAME, uapi::PENAME_MAXLEN)?;
    list.binary::<8>(SvcAttr::FLAGS)?;
    list.u32(SvcAttr::TIMEOUT)?;
    list.u32(SvcAttr::NETMASK)?;
    Ok(list)
}

/// `ip_vs_genl_parse_service`: the attributes that a full entry requires.
pub(super) fn service_rest(list: Option<&[u8]>) -> Result<ServiceRest, Errno> {
    let list = checked_service(list)?;
    let flags: [u8; 8] = list.binary(SvcAttr::FLAGS)?.ok_or(Errno::EINVAL)?;
    let [flags, mask] = match flags.as_chunks::<4>().0 {
        [flags, mask] => [flags, mask].map(|raw| u32::from_ne_bytes(*raw)),
        _ => return Err(Errno::EINVAL),
    };
    Ok(ServiceRest {
        scheduler: list.name(SvcAttr::SCHED_NAME, uapi::SCHEDNAME_MAXLEN.saturating_sub(1))?.ok_or(Errno::EINVAL)?,
        engine: list.name(SvcAttr::PE_NAME, uapi::PENAME_MAXLEN)?.filter(|name| !name.is_empty()),
        flags,
        mask,
        timeout: list.u32(SvcAttr::TIMEOUT)?.ok_or(Errno::EINVAL)?,
        netmask: list.first(SvcAttr::NETMASK)?.ok_or(Errno::EINVAL)?,
    })
}

/// `ip_vs_genl_parse_dest` and the rules about families in `ip_vs_genl_set_cmd`. `full`: NEW and SET.
pub(super) fn destination(list: Option<&[u8]>, service_af: u16, full: bool, ipv6: bool) -> Result<Destination, Errno> {
    let list = List::new(list.ok_or(Errno::EINVAL)?);
    let addr = list.binary::<16>(DestAttr::ADDR)?;
    let port = list.be16(DestAttr::PORT)?;
    let method = list.u32(DestAttr::FWD_METHOD)?;
    let weight = list.u32(DestAttr::WEIGHT)?;
    let (upper, lower) = (list.u32(DestAttr::U_THRESH)?, list.u32(DestAttr::L_THRESH)?);
    let tunnel = Tunnel {
        kind: list.u8(DestAttr::TUN_TYPE)?.unwrap_or(0),
        port: list.be16(DestAttr::TUN_PORT)?.unwrap_or(0),
        flags: list.u16(DestAttr::TUN_FLAGS)?.unwrap_or(0),
    };
    let af = list.u16(DestAttr::ADDR_FAMILY)?.filter(|af| *af != 0).unwrap_or(service_af);
    let (Some(addr), Some(port)) = (addr, port) else { return Err(Errno::EINVAL) };
    if full && [method, weight, upper, lower].contains(&None) {
        return Err(Errno::EINVAL);
    }
    let method = method.unwrap_or(0) & uapi::CONN_F_FWD_MASK;
    valid_family(af, ipv6)?;
    let key = DestinationKey { af, addr: clipped(af, addr), port };
    let mut destination = Destination::new(key);
    destination.method = method;
    destination.weight = weight.unwrap_or(0);
    destination.upper = upper.unwrap_or(0);
    destination.lower = lower.unwrap_or(0);
    destination.tunnel = tunnel;
    Ok(destination)
}

pub(super) fn valid_family(af: u16, ipv6: bool) -> Result<(), Errno> {
    if af == AF_INET || (af == AF_INET6 && ipv6) { Ok(()) } else { Err(Errno::EAFNOSUPPORT) }
}

/// The address, with unused bytes cleared: IPv4 uses four.
fn clipped(af: u16, addr: [u8; 16]) -> [u8; 16] {
    if af == AF_INET6 {
        return addr;
    }
    let [a, b, c, d, ..] = addr;
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// The checks of `ip_vs_genl_new_daemon` that do not need the namespace.
pub(super) fn daemon(list: &List<'_>) -> Result<(u32, Daemon), Errno> {
    let missing = Errno::EINVAL;
    let state = list.u32(DaemonAttr::STATE)?.ok_or(missing)?;
    let interface = list.name(DaemonAttr::MCAST_IFN, uapi::IFNAME_MAXLEN.saturating_sub(1))?.ok_or(missing)?;
    let sync_id = list.u32(DaemonAttr::SYNC_ID)?.ok_or(missing)?;
    let group = match (list.first::<4>(DaemonAttr::MCAST_GROUP)?, list.first::<16>(DaemonAttr::MCAST_GROUP6)?) {
        (Some(group), _) => Some(std::net::IpAddr::from(group)),
        (None, Some(group)) => Some(std::net::IpAddr::from(group)),
        (None, None) => None,
    };
    if group.is_some_and(|group| !group.is_multicast()) {
        return Err(Errno::EINVAL);
    }
    // Zero means the default.
    let or = |value: Option<u16>, default| value.filter(|value| *value != 0).unwrap_or(default);
    let overhead = if group.is_some_and(|group| group.is_ipv6()) { 48_u16 } else { 28 };
    // A backup accepts what the interface can carry: `lo` has an MTU of 65536, the others 1500.
    let backup = state == uapi::STATE_BACKUP;
    let smallest = if backup { 1024 } else { 1 };
    let natural = if backup && interface == "lo" { u16::MAX } else { 1500 }.saturating_sub(overhead);
    let longest = u16::MAX.saturating_sub(overhead);
    Ok((
        state,
        Daemon {
            interface,
            sync_id,
            max_length: or(list.u16(DaemonAttr::SYNC_MAXLEN)?, natural).clamp(smallest, longest),
            group: group.unwrap_or(std::net::IpAddr::from([224, 0, 0, 81])),
            port: or(list.u16(DaemonAttr::MCAST_PORT)?, 8848),
            ttl: list.u8(DaemonAttr::MCAST_TTL)?.filter(|ttl| *ttl != 0).unwrap_or(1),
        },
    ))
}

/// A nest without `NLA_F_NESTED`, as the kernel writes it.
pub(super) fn nest(out: &mut Encoder, kind: u16, inside: impl FnOnce(&mut Encoder)) {
    let mut list = Encoder::new();
    inside(&mut list);
    out.attr(kind, &list.as_slice());
}

fn put_stats(out: &mut Encoder, stats: &Stats, narrow: u16, wide: u16) {
    let clip = |count: u64| Counter::Narrow(u32::try_from(count & u64::from(u32::MAX)).unwrap_or(u32::MAX));
    let put = |out: &mut Encoder, counts: fn(u64) -> Counter, bytes: fn(u64) -> Counter| {
        StatsAttr::Conns(counts(stats.connections)).encode(out);
        StatsAttr::InPkts(counts(stats.packets_in)).encode(out);
        StatsAttr::OutPkts(counts(stats.packets_out)).encode(out);
        StatsAttr::InBytes(bytes(stats.bytes_in)).encode(out);
        StatsAttr::OutBytes(bytes(stats.bytes_out)).encode(out);
        StatsAttr::Cps(counts(stats.rates.connections)).encode(out);
        StatsAttr::InPps(counts(stats.rates.packets_in)).encode(out);
        StatsAttr::OutPps(counts(stats.rates.packets_out)).encode(out);
        StatsAttr::InBps(counts(stats.rates.bytes_in)).encode(out);
        StatsAttr::OutBps(counts(stats.rates.bytes_out)).encode(out);
    };
    nest(out, narrow, |out| put(out, clip, Counter::Wide));
    nest(out, wide, |out| put(out, Counter::Wide, Counter::Wide));
}

/// `ip_vs_genl_fill_service`.
pub(super) fn put_service(out: &mut Encoder, service: &Service) {
    let key = &service.key;
    SvcAttr::Af(key.af).encode(out);
    if key.fwmark == 0 {
        SvcAttr::Protocol(key.protocol).encode(out);
        SvcAttr::Addr(key.addr).encode(out);
        SvcAttr::Port(Be16(key.port)).encode(out);
    } else {
        SvcAttr::Fwmark(key.fwmark).encode(out);
    }
    SvcAttr::SchedName(NulStr::from(service.scheduler.as_str())).encode(out);
    if let Some(engine) = &service.engine {
        SvcAttr::PeName(NulStr::from(engine.as_str())).encode(out);
    }
    let flags = SvcFlags::from_bits_retain(service.flags);
    SvcAttr::Flags(FlagsMask { flags, mask: u32::MAX }).encode(out);
    SvcAttr::Timeout(service.timeout).encode(out);
    SvcAttr::Netmask(service.netmask).encode(out);
    put_stats(out, &service.stats, SvcAttr::STATS, SvcAttr::STATS64);
}

/// `ip_vs_genl_fill_dest`.
pub(super) fn put_destination(out: &mut Encoder, destination: &Destination) {
    DestAttr::Addr(destination.key.addr).encode(out);
    DestAttr::Port(Be16(destination.key.port)).encode(out);
    DestAttr::FwdMethod(destination.method).encode(out);
    DestAttr::Weight(destination.weight).encode(out);
    DestAttr::TunType(destination.tunnel.kind).encode(out);
    DestAttr::TunPort(Be16(destination.tunnel.port)).encode(out);
    DestAttr::TunFlags(destination.tunnel.flags).encode(out);
    DestAttr::UThresh(destination.upper).encode(out);
    DestAttr::LThresh(destination.lower).encode(out);
    DestAttr::ActiveConns(destination.active).encode(out);
    DestAttr::InactConns(destination.inactive).encode(out);
    DestAttr::PersistConns(destination.persistent).encode(out);
    DestAttr::AddrFamily(destination.key.af).encode(out);
    put_stats(out, &destination.stats, DestAttr::STATS, DestAttr::STATS64);
}

/// `ip_vs_genl_fill_daemon`.
pub(super) fn put_daemon(out: &mut Encoder, state: u32, daemon: &Daemon) {
    DaemonAttr::State(state).encode(out);
    DaemonAttr::McastIfn(NulStr::from(daemon.interface.as_str())).encode(out);
    DaemonAttr::SyncId(daemon.sync_id).encode(out);
    DaemonAttr::SyncMaxlen(daemon.max_length).encode(out);
    DaemonAttr::McastPort(daemon.port).encode(out);
    DaemonAttr::McastTtl(daemon.ttl).encode(out);
    match daemon.group {
        std::net::IpAddr::V6(group) => DaemonAttr::McastGroup6(group.octets()).encode(out),
        std::net::IpAddr::V4(group) => DaemonAttr::McastGroup(group.octets()).encode(out),
    }
}
