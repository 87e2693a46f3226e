//! Converts between the model and the attributes of `ipvs-sys`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipvs_sys::uapi::{self, SvcFlags};
use ipvs_sys::{CmdAttr, DaemonAttr, DestAttr, Fields, FlagsMask, InfoAttr, StatsAttr, SvcAttr};
use netlink_batch::{Attribute, Attrs, Be16, Encoder, NulStr, WireError};

use crate::model::{
    DaemonState, Family, ForwardingMethod, Granularity, Info, Name, ObservedRealServer, ObservedVirtualServer,
    Persistence, Protocol, RealServer, RealServerConfig, RealServerKey, Scheduler, SchedulerFlags, Stats, SyncDaemon,
    Thresholds, Timeouts, TimeoutsUpdate, Tunnel, TunnelFlags, TunnelKind, VirtualServer, VirtualServerConfig,
    VirtualServerKey, Weight,
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

fn family_number(family: Family) -> u16 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

fn family(number: u16) -> Option<Family> {
    match number {
        AF_INET => Some(Family::V4),
        AF_INET6 => Some(Family::V6),
        _ => None,
    }
}

/// `union nf_inet_addr`.
fn address_bytes(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => {
            let [a, b, c, d] = addr.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(addr) => addr.octets(),
    }
}

fn address(family: Family, bytes: [u8; 16]) -> IpAddr {
    match family {
        Family::V4 => {
            let [a, b, c, d, ..] = bytes;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        Family::V6 => IpAddr::V6(Ipv6Addr::from(bytes)),
    }
}

fn value_error<'a, A: Attribute<'a>>(kind: u16, value: impl std::fmt::Debug) -> WireError {
    WireError::Value { attribute: A::TABLE.name(kind), value: format!("{value:?}") }
}

fn required<'a, A: Attribute<'a>, T>(value: Option<T>, kind: u16) -> Result<T, WireError> {
    value.ok_or_else(|| WireError::Missing { attribute: A::TABLE.name(kind) })
}

fn name<'a, A: Attribute<'a>>(kind: u16, text: NulStr<'_>) -> Result<Name, WireError> {
    text.to_str().and_then(|text| Name::new(text).ok()).ok_or_else(|| value_error::<A>(kind, text))
}

impl Fields for VirtualServerKey {
    fn put(&self, out: &mut Encoder) {
        SvcAttr::Af(family_number(self.family())).encode(out);
        match self {
            VirtualServerKey::Address { protocol, addr, port } => {
                SvcAttr::Protocol(protocol.number().into()).encode(out);
                SvcAttr::Addr(address_bytes(*addr)).encode(out);
                SvcAttr::Port(Be16(*port)).encode(out);
            }
            VirtualServerKey::Fwmark { mark, .. } => SvcAttr::Fwmark(mark.get()).encode(out),
        }
    }
}

fn service_flags(config: &VirtualServerConfig) -> SvcFlags {
    let mut flags = SvcFlags::from_bits_retain(config.scheduler_flags.bits());
    flags.set(SvcFlags::PERSISTENT, config.persistence.is_some());
    flags.set(SvcFlags::ONEPACKET, config.one_packet);
    flags
}

/// IPv4: a mask in network order. IPv6: a prefix length in host order.
fn netmask_bytes(family: Family, granularity: Granularity) -> [u8; 4] {
    match (family, granularity) {
        (Family::V4, Granularity::Client) => [0xff; 4],
        (Family::V4, Granularity::Prefix(prefix)) => {
            u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0).to_be_bytes()
        }
        (_, Granularity::Mask(mask)) => mask.octets(),
        (Family::V6, Granularity::Client) => 128_u32.to_ne_bytes(),
        (Family::V6, Granularity::Prefix(prefix)) => u32::from(prefix).to_ne_bytes(),
    }
}

fn granularity(family: Family, bytes: [u8; 4]) -> Result<Granularity, WireError> {
    match family {
        Family::V4 => Ok(Granularity::from_mask(Ipv4Addr::from(bytes))),
        Family::V6 => {
            let prefix = u32::from_ne_bytes(bytes);
            u8::try_from(prefix)
                .ok()
                .and_then(|prefix| Granularity::from_prefix(family, prefix).ok())
                .ok_or_else(|| value_error::<SvcAttr<'_>>(SvcAttr::NETMASK, prefix))
        }
    }
}

impl Fields for VirtualServer {
    fn put(&self, out: &mut Encoder) {
        self.key.put(out);
        let config = &self.config;
        SvcAttr::SchedName(NulStr::from(config.scheduler.name())).encode(out);
        SvcAttr::Flags(FlagsMask { flags: service_flags(config), mask: u32::MAX }).encode(out);
        let persistence = config.persistence.unwrap_or(Persistence::new(0));
        SvcAttr::Timeout(persistence.timeout_secs).encode(out);
        SvcAttr::Netmask(netmask_bytes(self.key.family(), persistence.granularity)).encode(out);
        if let Some(engine) = &persistence.engine {
            SvcAttr::PeName(NulStr::from(engine.as_str())).encode(out);
        }
    }
}

impl Fields for RealServerKey {
    fn put(&self, out: &mut Encoder) {
        DestAttr::AddrFamily(family_number(self.family())).encode(out);
        DestAttr::Addr(address_bytes(self.addr)).encode(out);
        DestAttr::Port(Be16(self.port)).encode(out);
    }
}

impl Fields for RealServer {
    fn put(&self, out: &mut Encoder) {
        self.key.put(out);
        let config = &self.config;
        let method = match config.forwarding_method {
            ForwardingMethod::Masquerade => uapi::CONN_F_MASQ,
            ForwardingMethod::Local => uapi::CONN_F_LOCALNODE,
            ForwardingMethod::Tunnel(_) => uapi::CONN_F_TUNNEL,
            ForwardingMethod::DirectRoute => uapi::CONN_F_DROUTE,
            ForwardingMethod::Bypass => uapi::CONN_F_BYPASS,
            ForwardingMethod::Other(number) => u32::from(number) & uapi::CONN_F_FWD_MASK,
        };
        DestAttr::FwdMethod(method).encode(out);
        DestAttr::Weight(config.weight.get()).encode(out);
        DestAttr::UThresh(config.thresholds.upper()).encode(out);
        DestAttr::LThresh(config.thresholds.lower()).encode(out);
        if let ForwardingMethod::Tunnel(tunnel) = config.forwarding_method
            && tunnel != Tunnel::IPIP
        {
            // Absent means 0. A plain IPIP tunnel sends nothing that kernels before 5.2 would not understand.
            let (kind, port) = match tunnel.kind {
                TunnelKind::Ipip => (uapi::TUNNEL_TYPE_IPIP, 0),
                TunnelKind::Gue { port } => (uapi::TUNNEL_TYPE_GUE, port.get()),
                TunnelKind::Gre => (uapi::TUNNEL_TYPE_GRE, 0),
                TunnelKind::Other { kind, port } => (kind, port),
            };
            DestAttr::TunType(kind).encode(out);
            DestAttr::TunPort(Be16(port)).encode(out);
            DestAttr::TunFlags(tunnel.flags.bits()).encode(out);
        }
    }
}

impl Fields for SyncDaemon {
    fn put(&self, out: &mut Encoder) {
        self.state.put(out);
        DaemonAttr::McastIfn(NulStr::from(self.interface.as_str())).encode(out);
        DaemonAttr::SyncId(self.sync_id.into()).encode(out);
        let group = self.group.map(|group| match group {
            IpAddr::V4(group) => DaemonAttr::McastGroup(group.octets()),
            IpAddr::V6(group) => DaemonAttr::McastGroup6(group.octets()),
        });
        let (length, port, ttl) = (self.max_length, self.port, self.ttl);
        let length = length.map(DaemonAttr::SyncMaxlen);
        let rest = [length, group, port.map(DaemonAttr::McastPort), ttl.map(DaemonAttr::McastTtl)];
        rest.iter().flatten().for_each(|attribute| attribute.encode(out));
    }
}

impl Fields for DaemonState {
    fn put(&self, out: &mut Encoder) {
        let state = match self {
            DaemonState::Master => uapi::STATE_MASTER,
            DaemonState::Backup => uapi::STATE_BACKUP,
        };
        DaemonAttr::State(state).encode(out);
    }
}

impl Fields for TimeoutsUpdate {
    fn put(&self, out: &mut Encoder) {
        let timeouts = [
            self.tcp_secs.map(CmdAttr::TimeoutTcp),
            self.tcp_fin_secs.map(CmdAttr::TimeoutTcpFin),
            self.udp_secs.map(CmdAttr::TimeoutUdp),
        ];
        timeouts.iter().flatten().for_each(|timeout| timeout.encode(out));
    }
}

pub(crate) fn read_virtual_server(attributes: Attrs<'_, SvcAttr<'_>>) -> Result<ObservedVirtualServer, WireError> {
    let mut af = None;
    let (mut protocol, mut addr, mut port, mut fwmark) = (None, None, None, None);
    let (mut scheduler, mut flags, mut timeout, mut netmask, mut engine) = (None, None, None, None, None);
    let (mut stats, mut stats64) = (None, None);
    for attribute in attributes.iter() {
        match attribute? {
            SvcAttr::Af(value) => af = Some(value),
            SvcAttr::Protocol(value) => protocol = Some(value),
            SvcAttr::Addr(value) => addr = Some(value),
            SvcAttr::Port(value) => port = Some(value.0),
            SvcAttr::Fwmark(value) => fwmark = std::num::NonZeroU32::new(value),
            SvcAttr::SchedName(value) => scheduler = Some(value),
            SvcAttr::Flags(value) => flags = Some(value.flags),
            SvcAttr::Timeout(value) => timeout = Some(value),
            SvcAttr::Netmask(value) => netmask = Some(value),
            SvcAttr::PeName(value) => engine = Some(value),
            SvcAttr::Stats(value) => stats = Some(value),
            SvcAttr::Stats64(value) => stats64 = Some(value),
            _ => {}
        }
    }
    let af = required::<SvcAttr<'_>, _>(af, SvcAttr::AF)?;
    let family = family(af).ok_or_else(|| value_error::<SvcAttr<'_>>(SvcAttr::AF, af))?;
    let key = if let Some(mark) = fwmark {
        VirtualServerKey::Fwmark { family, mark }
    } else {
        let number = required::<SvcAttr<'_>, _>(protocol, SvcAttr::PROTOCOL)?;
        let number = u8::try_from(number).ok().ok_or_else(|| value_error::<SvcAttr<'_>>(SvcAttr::PROTOCOL, number));
        VirtualServerKey::Address {
            protocol: Protocol::from(number?),
            addr: address(family, required::<SvcAttr<'_>, _>(addr, SvcAttr::ADDR)?),
            port: required::<SvcAttr<'_>, _>(port, SvcAttr::PORT)?,
        }
    };
    let scheduler_name = required::<SvcAttr<'_>, _>(scheduler, SvcAttr::SCHED_NAME)?;
    let scheduler = match scheduler_name.to_str() {
        // Some kernels report an empty name for a virtual server without scheduler.
        Some("") => Some(Scheduler::None),
        Some(text) => text.parse().ok(),
        None => None,
    };
    let flags = required::<SvcAttr<'_>, _>(flags, SvcAttr::FLAGS)?;
    let persistence = if flags.contains(SvcFlags::PERSISTENT) {
        let engine = engine.filter(|engine| !engine.as_bytes().is_empty());
        Some(Persistence {
            timeout_secs: required::<SvcAttr<'_>, _>(timeout, SvcAttr::TIMEOUT)?,
            granularity: netmask.map_or(Ok(Granularity::Client), |bytes| granularity(family, bytes))?,
            engine: engine.map(|engine| name::<SvcAttr<'_>>(SvcAttr::PE_NAME, engine)).transpose()?,
        })
    } else {
        None
    };
    let config = VirtualServerConfig {
        scheduler: scheduler.ok_or_else(|| value_error::<SvcAttr<'_>>(SvcAttr::SCHED_NAME, scheduler_name))?,
        scheduler_flags: SchedulerFlags::from_bits_truncate(flags.bits()),
        persistence,
        one_packet: flags.contains(SvcFlags::ONEPACKET),
    };
    let stats = stats64.or(stats).map(read_stats).transpose()?.unwrap_or_default();
    Ok(ObservedVirtualServer { server: VirtualServer { key, config }, stats })
}

/// `family` is the virtual server's: kernels before 3.18 do not report the real server's.
pub(crate) fn read_real_server(
    attributes: Attrs<'_, DestAttr<'_>>,
    virtual_family: Family,
) -> Result<ObservedRealServer, WireError> {
    let (mut af, mut addr, mut port, mut method, mut weight) = (None, None, None, None, None);
    let (mut upper, mut lower) = (0, 0);
    let (mut active, mut inactive, mut persistent) = (0, 0, 0);
    let (mut tun_type, mut tun_port, mut tun_flags) = (0, 0, 0);
    let (mut stats, mut stats64) = (None, None);
    for attribute in attributes.iter() {
        match attribute? {
            DestAttr::Addr(value) => addr = Some(value),
            DestAttr::Port(value) => port = Some(value.0),
            DestAttr::FwdMethod(value) => method = Some(value),
            DestAttr::Weight(value) => weight = Some(value),
            DestAttr::UThresh(value) => upper = value,
            DestAttr::LThresh(value) => lower = value,
            DestAttr::ActiveConns(value) => active = value,
            DestAttr::InactConns(value) => inactive = value,
            DestAttr::PersistConns(value) => persistent = value,
            DestAttr::Stats(value) => stats = Some(value),
            DestAttr::AddrFamily(value) => af = Some(value),
            DestAttr::Stats64(value) => stats64 = Some(value),
            DestAttr::TunType(value) => tun_type = value,
            DestAttr::TunPort(value) => tun_port = value.0,
            DestAttr::TunFlags(value) => tun_flags = value,
            _ => {}
        }
    }
    let family = match af {
        None | Some(0) => virtual_family,
        Some(af) => family(af).ok_or_else(|| value_error::<DestAttr<'_>>(DestAttr::ADDR_FAMILY, af))?,
    };
    let key = RealServerKey {
        addr: address(family, required::<DestAttr<'_>, _>(addr, DestAttr::ADDR)?),
        port: required::<DestAttr<'_>, _>(port, DestAttr::PORT)?,
    };
    let method = required::<DestAttr<'_>, _>(method, DestAttr::FWD_METHOD)?;
    let tunnel =
        Tunnel { kind: TunnelKind::from_number(tun_type, tun_port), flags: TunnelFlags::from_bits_retain(tun_flags) };
    let forwarding_method = ForwardingMethod::from_number(method, tunnel);
    let weight = required::<DestAttr<'_>, _>(weight, DestAttr::WEIGHT)?;
    let weight = Weight::new(weight).ok().ok_or_else(|| value_error::<DestAttr<'_>>(DestAttr::WEIGHT, weight));
    let thresholds =
        Thresholds::new(upper, lower).ok().ok_or_else(|| value_error::<DestAttr<'_>>(DestAttr::L_THRESH, lower));
    let config = RealServerConfig { weight: weight?, forwarding_method, thresholds: thresholds? };
    Ok(ObservedRealServer {
        server: RealServer { key, config },
        active_connections: active,
        inactive_connections: inactive,
        persistent_connections: persistent,
        stats: stats64.or(stats).map(read_stats).transpose()?.unwrap_or_default(),
    })
}

fn read_stats(attributes: Attrs<'_, StatsAttr<'_>>) -> Result<Stats, WireError> {
    let mut stats = Stats::default();
    for attribute in attributes.iter() {
        match attribute? {
            StatsAttr::Conns(count) => stats.connections = count.get(),
            StatsAttr::InPkts(count) => stats.packets_in = count.get(),
            StatsAttr::OutPkts(count) => stats.packets_out = count.get(),
            StatsAttr::InBytes(count) => stats.bytes_in = count.get(),
            StatsAttr::OutBytes(count) => stats.bytes_out = count.get(),
            StatsAttr::Cps(rate) => stats.rates.connections = rate.get(),
            StatsAttr::InPps(rate) => stats.rates.packets_in = rate.get(),
            StatsAttr::OutPps(rate) => stats.rates.packets_out = rate.get(),
            StatsAttr::InBps(rate) => stats.rates.bytes_in = rate.get(),
            StatsAttr::OutBps(rate) => stats.rates.bytes_out = rate.get(),
            _ => {}
        }
    }
    Ok(stats)
}

pub(crate) fn read_timeouts(attributes: Attrs<'_, CmdAttr<'_>>) -> Result<Timeouts, WireError> {
    // A kernel whose IPVS is built without TCP or UDP omits their timeouts.
    let mut timeouts = Timeouts { tcp_secs: 0, tcp_fin_secs: 0, udp_secs: 0 };
    for attribute in attributes.iter() {
        match attribute? {
            CmdAttr::TimeoutTcp(seconds) => timeouts.tcp_secs = seconds,
            CmdAttr::TimeoutTcpFin(seconds) => timeouts.tcp_fin_secs = seconds,
            CmdAttr::TimeoutUdp(seconds) => timeouts.udp_secs = seconds,
            _ => {}
        }
    }
    Ok(timeouts)
}

pub(crate) fn read_info(attributes: Attrs<'_, InfoAttr<'_>>) -> Result<Info, WireError> {
    let (mut version, mut size) = (None, None);
    for attribute in attributes.iter() {
        match attribute? {
            InfoAttr::Version(value) => version = Some(value),
            InfoAttr::ConnTabSize(value) => size = Some(value),
            _ => {}
        }
    }
    Ok(Info {
        version: required::<InfoAttr<'_>, _>(version, InfoAttr::VERSION)?,
        connection_table_size: required::<InfoAttr<'_>, _>(size, InfoAttr::CONN_TAB_SIZE)?,
    })
}

pub(crate) fn read_daemon(attributes: Attrs<'_, DaemonAttr<'_>>) -> Result<SyncDaemon, WireError> {
    let (mut state, mut interface, mut sync_id) = (None, None, None);
    let (mut max_length, mut group, mut port, mut ttl) = (None, None, None, None);
    for attribute in attributes.iter() {
        match attribute? {
            DaemonAttr::State(value) => state = Some(value),
            DaemonAttr::McastIfn(value) => interface = Some(value),
            DaemonAttr::SyncId(value) => sync_id = Some(value),
            DaemonAttr::SyncMaxlen(value) => max_length = Some(value),
            DaemonAttr::McastGroup(octets) => group = Some(IpAddr::from(octets)),
            DaemonAttr::McastGroup6(octets) => group = Some(IpAddr::from(octets)),
            DaemonAttr::McastPort(value) => port = Some(value),
            DaemonAttr::McastTtl(value) => ttl = Some(value),
            _ => {}
        }
    }
    let state = match required::<DaemonAttr<'_>, _>(state, DaemonAttr::STATE)? {
        uapi::STATE_MASTER => DaemonState::Master,
        uapi::STATE_BACKUP => DaemonState::Backup,
        other => return Err(value_error::<DaemonAttr<'_>>(DaemonAttr::STATE, other)),
    };
    let interface = required::<DaemonAttr<'_>, _>(interface, DaemonAttr::MCAST_IFN)?;
    let sync_id = required::<DaemonAttr<'_>, _>(sync_id, DaemonAttr::SYNC_ID)?;
    Ok(SyncDaemon {
        state,
        interface: name::<DaemonAttr<'_>>(DaemonAttr::MCAST_IFN, interface)?,
        sync_id: u8::try_from(sync_id)
            .ok()
            .ok_or_else(|| value_error::<DaemonAttr<'_>>(DaemonAttr::SYNC_ID, sync_id))?,
        max_length,
        group,
        port,
        ttl,
    })
}
