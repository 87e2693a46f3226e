//! Less common matches and statements: ranges, flags, options, connection state, and where packets are sent.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::RuleBuilder;
use crate::expr::{
    ByteOrderOp, CmpOp, CtKey, DynSetOp, Expression, ExthdrOp, MetaKey, NatFlags, NatKind, QueueFlags, Register,
    RegisterRange, RtKey, SetReference,
};
use crate::model::{ByteOrder, DataType, Family, InvalidValue, Value};
use crate::operand::{IpVersion, Operand};

bitflags::bitflags! {
    /// Flags of TCP.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct TcpFlags: u8 {
        /// The last segment.
        const FIN = 0x01;
        /// The first segment.
        const SYN = 0x02;
        /// A reset.
        const RST = 0x04;
        /// Push data to the application at once.
        const PSH = 0x08;
        /// An acknowledgement.
        const ACK = 0x10;
        /// Urgent data.
        const URG = 0x20;
        /// Congestion was noticed.
        const ECN = 0x40;
        /// Congestion was answered.
        const CWR = 0x80;
    }
}

/// TCP option kind of the maximum segment size (RFC 9293).
const MAXSEG: u8 = 2;

/// The first register after an address.
fn behind(address: IpAddr) -> Option<Register> {
    Register::FIRST.behind(if address.is_ipv4() { 4 } else { 16 })
}

fn version(address: IpAddr) -> (IpVersion, Family) {
    if address.is_ipv4() { (IpVersion::V4, Family::Ip) } else { (IpVersion::V6, Family::Ip6) }
}

/// # Ranges, negation and options
impl RuleBuilder {
    /// Negates the last match: `!=` instead of `==`, outside a range, not in a set, above a rate, a quota or a number
    /// of connections (`over`).
    ///
    /// # Errors
    /// By [`build`](RuleBuilder::build), if the last call was not a match.
    #[doc(alias = "over")]
    #[doc(alias = "not")]
    pub fn negated(mut self) -> Self {
        match self.rule.expressions.last_mut() {
            Some(Expression::Cmp { op, .. }) => {
                *op = match *op {
                    CmpOp::Eq => CmpOp::Ne,
                    CmpOp::Ne => CmpOp::Eq,
                    CmpOp::Lt => CmpOp::Ge,
                    CmpOp::Ge => CmpOp::Lt,
                    CmpOp::Gt => CmpOp::Le,
                    CmpOp::Le => CmpOp::Gt,
                    CmpOp::Other(other) => CmpOp::Other(other),
                }
            }
            Some(
                Expression::Range { inverted, .. }
                | Expression::Lookup { inverted, register: None, .. }
                | Expression::Limit { inverted, .. }
                | Expression::Quota { inverted, .. }
                | Expression::ConnectionLimit { inverted, .. },
            ) => *inverted = !*inverted,
            _ => {
                self.note::<()>(Err(InvalidValue::new("a negation", "there is no match before it")));
            }
        }
        self
    }

    /// Matches if an operand is in a range, both ends inclusive. Both must be in network byte order ([`Value::be32`]),
    /// since the kernel compares byte by byte. The rule converts an operand in host byte order.
    pub fn in_range(mut self, operand: &Operand, from: impl Into<Value>, to: impl Into<Value>) -> Self {
        let (from, to, length) = (from.into(), to.into(), operand.length());
        let invalid = |why| Err(InvalidValue::new(format!("a range from {from:?} to {to:?}"), why));
        if [&from, &to].iter().any(|end| u32::try_from(end.len()) != Ok(length)) {
            self.note::<()>(invalid("its ends are not as long as what is compared with them"));
        } else if from > to {
            self.note::<()>(invalid("its first value is the greater one"));
        }
        let register = Register::FIRST;
        self.load(std::slice::from_ref(operand), register);
        let is_host_order = match operand.field().data_type {
            DataType::INTEGER => operand.is_host_order(),
            DataType::IFNAME | DataType::STRING => false,
            other => other.byte_order() == ByteOrder::Host,
        };
        if is_host_order && matches!(length, 2 | 4 | 8) {
            let op = ByteOrderOp::HostToNetwork;
            self = self.expression(Expression::ByteOrder { source: register, register, op, length, size: length });
        }
        self.expression(Expression::Range { register, inverted: false, from, to })
    }

    /// Matches destination ports in a range. Match the protocol first.
    pub fn dport_in(self, ports: RangeInclusive<u16>) -> Self {
        self.in_range(&Operand::DPORT, Value::port(*ports.start()), Value::port(*ports.end()))
    }

    /// Matches source ports in a range. Match the protocol first.
    pub fn sport_in(self, ports: RangeInclusive<u16>) -> Self {
        self.in_range(&Operand::SPORT, Value::port(*ports.start()), Value::port(*ports.end()))
    }

    /// Matches TCP packets whose flags under `mask` are `value`. Adds the match on the protocol.
    pub fn tcp_flags(self, value: TcpFlags, mask: TcpFlags) -> Self {
        let flags = Operand::TCP_FLAGS;
        let flags = if mask.is_all() { flags } else { flags.masked(Value::byte(mask.bits())) };
        self.meta_l4proto(super::L4Protocol::TCP).matches(&flags, CmpOp::Eq, Value::byte(value.bits()))
    }

    /// Lowers TCP's maximum segment size to what the packet's route allows (`set rt mtu`). It is never raised
    /// (`nft_exthdr_tcp_set_eval`). Match packets with the flag SYN first.
    #[doc(alias = "maxseg")]
    pub fn clamp_mss(mut self) -> Self {
        let register = Register::FIRST;
        self.load(&[Operand::Rt(RtKey::TcpMss)], register);
        let op = ByteOrderOp::HostToNetwork;
        self.expression(Expression::ByteOrder { source: register, register, op, length: 2, size: 2 }).write_mss()
    }

    /// Lowers TCP's maximum segment size to at most this; it is never raised. Match packets with the flag SYN first.
    #[doc(alias = "maxseg")]
    pub fn set_mss(self, bytes: u16) -> Self {
        self.expression(Expression::Immediate { register: Register::FIRST, value: Value::port(bytes) }).write_mss()
    }

    fn write_mss(self) -> Self {
        let source = Register::FIRST;
        self.expression(Expression::ExthdrSet { op: ExthdrOp::Tcp, kind: MAXSEG, offset: 2, length: 2, source })
    }
}

/// # Connections
impl RuleBuilder {
    /// Sets packet metadata to a constant or to a value read from the packet.
    pub fn set_meta(mut self, key: MetaKey, value: impl Into<Operand>) -> Self {
        self.load(&[value.into()], Register::FIRST);
        self.expression(Expression::MetaSet { key, source: Register::FIRST })
    }

    /// Sets a connection property to a constant or to a value read from the packet.
    pub fn set_ct(mut self, key: CtKey, value: impl Into<Operand>) -> Self {
        self.load(&[value.into()], Register::FIRST);
        self.expression(Expression::CtSet { key, direction: None, source: Register::FIRST })
    }

    /// Matches connections whose `mark & mask` is `value`.
    pub fn ct_mark(self, value: u32, mask: u32) -> Self {
        let operand = if mask == u32::MAX { Operand::CT_MARK } else { Operand::CT_MARK.masked(Value::mark(mask)) };
        self.matches(&operand, CmpOp::Eq, Value::mark(value))
    }

    /// Sets the connection mark.
    pub fn set_ct_mark(self, mark: u32) -> Self {
        self.set_ct(CtKey::Mark, Value::mark(mark))
    }

    /// Copies the packet mark to the connection.
    pub fn save_mark(self) -> Self {
        self.set_ct(CtKey::Mark, Operand::MARK)
    }

    /// Copies the connection mark to the packet.
    pub fn restore_mark(self) -> Self {
        self.set_meta(MetaKey::Mark, Operand::CT_MARK)
    }

    /// Puts the packet into a connection-tracking zone: equal addresses in different zones are different connections.
    /// Use it in a chain at [`Priority::RAW`](crate::Priority::RAW), which runs before connection tracking.
    pub fn set_ct_zone(self, zone: u16) -> Self {
        self.set_ct(CtKey::Zone, Value::of(&zone.to_ne_bytes()))
    }

    /// Matches connections with a label, 0 to 127.
    pub fn ct_label(mut self, label: u8) -> Self {
        let Some(bits) = self.label_bits(label) else { return self };
        let labels = Operand::Ct(CtKey::Labels, None).masked(bits);
        self.matches(&labels, CmpOp::Ne, Value::of(&[0; 16]))
    }

    /// Adds a label, 0 to 127, to the connection.
    pub fn set_ct_label(mut self, label: u8) -> Self {
        let Some(bits) = self.label_bits(label) else { return self };
        self.set_ct(CtKey::Labels, bits)
    }

    fn label_bits(&mut self, label: u8) -> Option<Value> {
        let bits = 1_u128.checked_shl(u32::from(label)).map(|bits| Value::of(&bits.to_ne_bytes()));
        self.note(bits.ok_or_else(|| InvalidValue::new(format!("label {label}"), "labels are 0 to 127")))
    }

    /// Matches up to this many concurrent connections; with [`negated`](RuleBuilder::negated), more than that: `ct
    /// count over`. In an element of a set ([`meter`](RuleBuilder::meter)) connections are counted per key.
    pub fn ct_count(self, connections: u32) -> Self {
        self.expression(Expression::ConnectionLimit { count: connections, inverted: false })
    }

    /// Matches up to this many bytes in total; with [`negated`](RuleBuilder::negated), beyond that: `quota over`.
    pub fn quota(self, bytes: u64) -> Self {
        self.expression(Expression::Quota { bytes, consumed: 0, inverted: false })
    }

    /// Matches up to this many bytes per unit of time, with bursts of `burst` bytes; with
    /// [`negated`](RuleBuilder::negated), beyond that: `limit rate over`.
    pub fn limit_bytes(self, rate: u64, unit: crate::expr::LimitUnit, burst: u32) -> Self {
        self.expression(Expression::Limit { rate, unit, burst, bytes: true, inverted: false })
    }

    /// Adds or updates an element with its own expressions: counters, limits or quotas per key. Matches if these match.
    /// The set needs [`SetFlags::DYNAMIC`](crate::SetFlags::DYNAMIC) and, for connection limits, must have no timeout.
    pub fn meter(
        self,
        op: DynSetOp,
        set: impl Into<SetReference>,
        key: &[Operand],
        timeout: Option<Duration>,
        each: impl IntoIterator<Item = Expression>,
    ) -> Self {
        let mut rule = self.change_set(op, set, key, &[], timeout);
        if let Some(Expression::DynSet { expressions, .. }) = rule.rule.expressions.last_mut() {
            expressions.extend(each);
        }
        rule
    }

    /// Lets `nft monitor trace` and [`Events`](crate::Events) follow the packet from here.
    #[doc(alias = "nftrace")]
    pub fn trace(self) -> Self {
        self.set_meta(MetaKey::NfTrace, Value::byte(1))
    }
}

/// # Where packets are sent
///
/// Devices are given by index: the crate does not look up names.
impl RuleBuilder {
    fn immediate(self, register: Register, value: Value) -> Self {
        self.expression(Expression::Immediate { register, value })
    }

    /// Passes the packet unchanged to this host's socket at this address and port. At hook `prerouting`.
    pub fn tproxy_to(mut self, target: SocketAddr) -> Self {
        let (version, family) = version(target.ip());
        self.need_version(version);
        let (address, port) = (Some(Register::FIRST), behind(target.ip()));
        self = self.immediate(Register::FIRST, target.ip().into());
        match port {
            Some(register) => self.immediate(register, Value::port(target.port())),
            None => self,
        }
        .expression(Expression::Tproxy { family, address, port })
    }

    /// Passes the packet to this host's socket at this port and the packet's destination address.
    pub fn tproxy_to_port(self, port: u16) -> Self {
        // NFPROTO_UNSPEC: both IP versions.
        let family = if self.family == Family::Inet { Family::Other(0) } else { self.family };
        let register = Register::FIRST;
        let tproxy = Expression::Tproxy { family, address: None, port: Some(register) };
        self.immediate(register, Value::port(port)).expression(tproxy)
    }

    /// Passes the packet to a program; connections are spread over the queues.
    pub fn queue(mut self, queues: RangeInclusive<u16>, flags: QueueFlags) -> Self {
        let (first, last) = (*queues.start(), *queues.end());
        let count = last.checked_sub(first).and_then(|more| more.checked_add(1));
        let invalid =
            || InvalidValue::new(format!("queues {first} to {last}"), "they are 1 to 65535 queues, the lowest first");
        match self.note(count.ok_or_else(invalid)) {
            Some(count) => self.expression(Expression::Queue { first, count, flags }),
            None => self,
        }
    }

    /// Forwards the packet through a device, by its index. Family `netdev`.
    pub fn fwd_to(self, device: u32) -> Self {
        let register = Register::FIRST;
        self.immediate(register, Value::mark(device))
            .expression(Expression::Forward { device: register, address: None })
    }

    /// Forwards the packet to a neighbour at a device, by its index. Family `netdev`.
    pub fn fwd_to_neighbour(mut self, address: IpAddr, device: u32) -> Self {
        let (version, family) = version(address);
        self.need_version(version);
        let Some(register) = behind(address) else { return self };
        self.immediate(Register::FIRST, address.into())
            .immediate(register, Value::mark(device))
            .expression(Expression::Forward { device: register, address: Some((family, Register::FIRST)) })
    }

    /// Sends a copy of the packet to an address, through the device with this index or as routed. Families `ip` and
    /// `ip6`.
    pub fn dup_to(mut self, address: IpAddr, device: Option<u32>) -> Self {
        self.need_version(version(address).0);
        self = self.immediate(Register::FIRST, address.into());
        let register = behind(address).filter(|_| device.is_some());
        if let (Some(device), Some(register)) = (device, register) {
            self = self.immediate(register, Value::mark(device));
        }
        self.expression(Expression::Duplicate { address: Some(Register::FIRST), device: register })
    }

    /// Sends a copy of the packet through a device, by its index. Family `netdev`.
    pub fn dup_to_device(self, device: u32) -> Self {
        let register = Register::FIRST;
        let dup = Expression::Duplicate { address: None, device: Some(register) };
        self.immediate(register, Value::mark(device)).expression(dup)
    }

    /// Translates to one of several addresses, and ports if given.
    pub fn nat_to(
        mut self,
        kind: NatKind,
        addresses: RangeInclusive<IpAddr>,
        ports: Option<RangeInclusive<u16>>,
        flags: NatFlags,
    ) -> Self {
        let (first, last) = (*addresses.start(), *addresses.end());
        let is_right = first <= last && first.is_ipv4() == last.is_ipv4();
        if !is_right || ports.as_ref().is_some_and(RangeInclusive::is_empty) {
            let why = "the first address or port is the greater one, or of another IP version";
            self.note::<()>(Err(InvalidValue::new(format!("a translation to {first}-{last}"), why)));
        }
        let (version, family) = version(first);
        self.need_version(version);
        let mut values = vec![Value::from(first)];
        values.extend((first != last).then(|| Value::from(last)));
        let address = self.constants(&mut Some(Register::FIRST), values);
        let mut next = address.and_then(|range| range.last.behind(if first.is_ipv4() { 4 } else { 16 }));
        let port = ports.and_then(|ports| {
            let (first, last) = (*ports.start(), *ports.end());
            let mut values = vec![Value::port(first)];
            values.extend((first != last).then(|| Value::port(last)));
            self.constants(&mut next, values)
        });
        self.expression(Expression::Nat { kind, family, address, port, flags })
    }

    /// Loads one or two constants into registers, starting at one.
    fn constants(&mut self, next: &mut Option<Register>, values: Vec<Value>) -> Option<RegisterRange> {
        let mut range: Option<RegisterRange> = None;
        for value in values {
            let register = (*next)?;
            *next = register.behind(u32::try_from(value.len()).ok()?);
            self.rule.expressions.push(Expression::Immediate { register, value });
            range = Some(RegisterRange { first: range.map_or(register, |range| range.first), last: register });
        }
        range
    }

    /// Translates a network to this one, address by address (`prefix to`, netmap): the bits behind the prefix are kept.
    /// Match the original network first. Since Linux 5.8.
    #[doc(alias = "netmap")]
    pub fn nat_to_network(mut self, kind: NatKind, network: IpAddr, prefix: u8) -> Self {
        match self.note(crate::model::network(network, prefix)) {
            Some((first, last)) => self.nat_to(kind, first..=last, None, NatFlags::NETMAP),
            None => self,
        }
    }
}
