//! Builds rules with calls that read like nft's syntax.

mod statements;

pub use statements::TcpFlags;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::expr::{
    CmpOp, DynSetOp, Expression, HeaderBase, LimitUnit, MetaKey, NatFlags, NatKind, Register, RegisterRange, Reject,
    SetReference,
};
use crate::model::{Family, InvalidValue, Name, ObjectKey, ObjectType, Rule, Value, Verdict, padded};
use crate::operand::{IpVersion, Operand, load_all};
use crate::userdata;

/// A transport protocol by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct L4Protocol(pub u8);

impl L4Protocol {
    /// ICMP.
    pub const ICMP: L4Protocol = L4Protocol(1);
    /// TCP.
    pub const TCP: L4Protocol = L4Protocol(6);
    /// UDP.
    pub const UDP: L4Protocol = L4Protocol(17);
    /// ICMPv6.
    pub const ICMPV6: L4Protocol = L4Protocol(58);
    /// SCTP.
    pub const SCTP: L4Protocol = L4Protocol(132);
}

bitflags::bitflags! {
    /// States of a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct CtState: u32 {
        /// Fits no connection.
        const INVALID = 1;
        /// Seen in both directions.
        const ESTABLISHED = 2;
        /// Belongs to another connection.
        const RELATED = 4;
        /// Seen in one direction.
        const NEW = 8;
        /// Not tracked.
        const UNTRACKED = 64;
    }
}

/// Starts a rule for a table of this family.
pub fn rule(family: Family) -> RuleBuilder {
    RuleBuilder { family, version: None, rule: Rule::default(), error: None }
}

/// Builds a rule. Each method appends a match or a statement.
///
/// In tables that see both IP versions, a match on an address also adds the match on its version.
/// [`build`](RuleBuilder::build) reports the first mistake.
///
/// # Filters
///
/// ```
/// use nftables::expr::{IcmpCode, LimitUnit, Reject};
/// use nftables::{CtState, Family, L4Protocol, Name, RuleBuilder, rule};
///
/// let inet = || rule(Family::Inet);
/// let nft = |rule: RuleBuilder| rule.build().map(|rule| rule.to_nft(Family::Inet).unwrap_or_default());
///
/// let answers = inet().ct_state(CtState::ESTABLISHED | CtState::RELATED).accept();
/// assert_eq!(nft(answers)?, "ct state established,related accept");
///
/// let forged = inet().iifname("eth0").saddr_in("10.244.0.0".parse()?, 16).drop_packet();
/// assert_eq!(nft(forged)?, "iifname \"eth0\" ip saddr 10.244.0.0/16 drop");
///
/// let ssh = inet().meta_l4proto(L4Protocol::TCP).dport(22).limit(5, LimitUnit::Minute, 3).log("ssh: ").accept();
/// assert_eq!(nft(ssh)?, "tcp dport 22 limit rate 5/minute burst 3 packets log prefix \"ssh: \" accept");
///
/// let pods = inet().daddr_in("2001:db8:1::".parse()?, 48).jump(Name::new("to-pods")?);
/// assert_eq!(nft(pods)?, "ip6 daddr 2001:db8:1::/48 jump to-pods");
///
/// let rest = inet().counter().reject(Reject::Unreachable(IcmpCode::AdminProhibited));
/// assert_eq!(nft(rest)?, "counter reject with icmpx admin-prohibited");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Rules refer to a set by its key. The operands are in the order of the fields of the set's key.
#[derive(Clone, Debug)]
#[must_use = "a rule is made by build()"]
pub struct RuleBuilder {
    family: Family,
    version: Option<IpVersion>,
    rule: Rule,
    error: Option<InvalidValue>,
}

impl RuleBuilder {
    /// Finishes the rule.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn build(self) -> Result<Rule, InvalidValue> {
        userdata::check(self.rule.comment.as_deref(), self.rule.userdata.len())?;
        self.error.map_or(Ok(self.rule), Err)
    }

    /// Adds any expression. The methods of this type never pass a value to the next one in a register.
    pub fn expression(mut self, expression: Expression) -> Self {
        self.rule.expressions.push(expression);
        self
    }

    /// Sets the comment: at most 253 bytes without NUL. nft accepts at most 128.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.rule.comment = Some(comment.into());
        self
    }

    fn note<T>(&mut self, outcome: Result<T, InvalidValue>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Loads operands into registers from the first one, after a match on their IP version.
    fn load(&mut self, operands: &[Operand], register: Register) {
        if let Some(version) = operands.iter().find_map(Operand::ip_version) {
            self.need_version(version);
        }
        let outcome = load_all(operands, register, &mut self.rule.expressions);
        self.note(outcome);
    }

    fn need_version(&mut self, version: IpVersion) {
        let of_table = match self.family {
            Family::Ip => Some(IpVersion::V4),
            Family::Ip6 => Some(IpVersion::V6),
            _ => None,
        };
        match self.version.or(of_table) {
            Some(known) if known == version => return,
            Some(_) => {
                self.note::<()>(Err(InvalidValue::new("a rule", "no packet is of IPv4 and IPv6 at once")));
                return;
            }
            None if self.family == Family::Arp => return,
            None => self.version = Some(version),
        }
        let v4 = version == IpVersion::V4;
        let (key, value) = if self.family == Family::Inet {
            (MetaKey::NfProto, Value::byte(if v4 { 2 } else { 10 }))
        } else {
            (MetaKey::Protocol, Value::port(if v4 { 0x0800 } else { 0x86dd }))
        };
        let register = Register::FIRST;
        self.rule.expressions.push(Expression::Meta { key, register });
        self.rule.expressions.push(Expression::Cmp { register, op: CmpOp::Eq, value });
    }

    /// Matches if the operand compares to the value as `op` says.
    pub fn matches(mut self, operand: &Operand, op: CmpOp, value: Value) -> Self {
        if usize::try_from(operand.length()).is_ok_and(|length| length != value.len()) {
            self.note::<()>(Err(InvalidValue::new(
                format!("{value:?}"),
                "it is not as long as what it is compared with",
            )));
        }
        self.load(std::slice::from_ref(operand), Register::FIRST);
        self.expression(Expression::Cmp { register: Register::FIRST, op, value })
    }

    /// Matches a transport protocol.
    pub fn meta_l4proto(self, protocol: L4Protocol) -> Self {
        self.matches(&Operand::L4PROTO, CmpOp::Eq, Value::byte(protocol.0))
    }

    /// Matches a destination port. Match the protocol first.
    pub fn dport(self, port: u16) -> Self {
        self.matches(&Operand::DPORT, CmpOp::Eq, Value::port(port))
    }

    /// Matches a source port. Match the protocol first.
    pub fn sport(self, port: u16) -> Self {
        self.matches(&Operand::SPORT, CmpOp::Eq, Value::port(port))
    }

    /// Matches a destination.
    pub fn daddr(self, address: IpAddr) -> Self {
        let operand = if address.is_ipv4() { Operand::IP_DADDR } else { Operand::IP6_DADDR };
        self.matches(&operand, CmpOp::Eq, address.into())
    }

    /// Matches a source.
    pub fn saddr(self, address: IpAddr) -> Self {
        let operand = if address.is_ipv4() { Operand::IP_SADDR } else { Operand::IP6_SADDR };
        self.matches(&operand, CmpOp::Eq, address.into())
    }

    /// Matches destinations in a network. Bits behind the prefix are ignored.
    pub fn daddr_in(self, network: IpAddr, prefix: u8) -> Self {
        let operand = if network.is_ipv4() { Operand::IP_DADDR } else { Operand::IP6_DADDR };
        self.in_network(operand, CmpOp::Eq, network, prefix)
    }

    /// Matches sources in a network. Bits behind the prefix are ignored.
    pub fn saddr_in(self, network: IpAddr, prefix: u8) -> Self {
        let operand = if network.is_ipv4() { Operand::IP_SADDR } else { Operand::IP6_SADDR };
        self.in_network(operand, CmpOp::Eq, network, prefix)
    }

    /// Matches sources outside a network. Bits behind the prefix are ignored.
    pub fn saddr_not_in(self, network: IpAddr, prefix: u8) -> Self {
        let operand = if network.is_ipv4() { Operand::IP_SADDR } else { Operand::IP6_SADDR };
        self.in_network(operand, CmpOp::Ne, network, prefix)
    }

    fn in_network(mut self, operand: Operand, op: CmpOp, network: IpAddr, prefix: u8) -> Self {
        let Some((first, last)) = self.note(crate::model::network(network, prefix)) else { return self };
        let (first, last) = (Value::from(first), Value::from(last));
        let mask: Vec<u8> = first.as_bytes().iter().zip(last.as_bytes()).map(|(first, last)| !(first ^ last)).collect();
        self.matches(&operand.masked(Value::of(&mask)), op, first)
    }

    /// Matches destinations outside a network. Bits behind the prefix are ignored.
    pub fn daddr_not_in(self, network: IpAddr, prefix: u8) -> Self {
        let operand = if network.is_ipv4() { Operand::IP_DADDR } else { Operand::IP6_DADDR };
        self.in_network(operand, CmpOp::Ne, network, prefix)
    }

    /// Matches the name of the input device, or its prefix: `eth*`. A name that ends in `*` is written `eth\*`.
    pub fn iifname(self, name: &str) -> Self {
        self.interface(&Operand::IIFNAME, name)
    }

    /// Matches the name of the output device, or its prefix, as [`iifname`](RuleBuilder::iifname).
    pub fn oifname(self, name: &str) -> Self {
        self.interface(&Operand::OIFNAME, name)
    }

    fn interface(mut self, operand: &Operand, name: &str) -> Self {
        let value = match name.strip_suffix('*').map(|start| (start, start.strip_suffix('\\'))) {
            None => Value::interface(name),
            Some((_, Some(start))) => Value::interface(&format!("{start}*")),
            Some(("", None)) => Err(InvalidValue::new("interface \"*\"", "it is all names; leave the match out")),
            // Without the terminating NUL.
            Some((start, None)) => Value::interface(start).map(|_| Value::of(start.as_bytes())),
        };
        let Some(value) = self.note(value) else { return self };
        self.load(std::slice::from_ref(operand), Register::FIRST);
        self.expression(Expression::Cmp { register: Register::FIRST, op: CmpOp::Eq, value })
    }

    /// Matches packets whose `mark & mask` is `value`.
    pub fn mark(self, value: u32, mask: u32) -> Self {
        let operand = if mask == u32::MAX { Operand::MARK } else { Operand::MARK.masked(Value::mark(mask)) };
        self.matches(&operand, CmpOp::Eq, Value::mark(value))
    }

    /// Matches connections in one of these states.
    pub fn ct_state(self, states: CtState) -> Self {
        self.matches(&Operand::CT_STATE.masked(Value::mark(states.bits())), CmpOp::Ne, Value::mark(0))
    }

    /// Matches destinations that are addresses of this host.
    pub fn daddr_is_local(self) -> Self {
        // RTN_LOCAL
        self.matches(&Operand::FIB_DADDR_TYPE, CmpOp::Eq, Value::mark(2))
    }

    /// Matches if the key is in a set. In sets of ranges the kernel compares byte by byte. Convert marks and other
    /// numbers in host byte order first, with an [`expression`](RuleBuilder::expression) of kind
    /// [`ByteOrder`](crate::Expression::ByteOrder).
    pub fn in_set(self, key: &[Operand], set: impl Into<SetReference>) -> Self {
        self.lookup(key, set.into(), None, false)
    }

    /// Matches if the key is not in a set.
    pub fn not_in_set(self, key: &[Operand], set: impl Into<SetReference>) -> Self {
        self.lookup(key, set.into(), None, true)
    }

    /// Looks up the key in a map of verdicts and applies the verdict; continues if the map does not have the key.
    pub fn verdict_map(self, key: &[Operand], map: impl Into<SetReference>) -> Self {
        self.lookup(key, map.into(), Some(Register::VERDICT), false)
    }

    fn lookup(mut self, key: &[Operand], set: SetReference, register: Option<Register>, inverted: bool) -> Self {
        self.load(key, Register::FIRST);
        self.expression(Expression::Lookup { set, source: Register::FIRST, register, inverted })
    }

    /// Counts packets and bytes.
    pub fn counter(self) -> Self {
        self.expression(Expression::COUNTER)
    }

    /// Counts with a named counter.
    pub fn named_counter(self, name: Name) -> Self {
        self.expression(Expression::ObjectReference { kind: ObjectType::Counter, name })
    }

    /// Uses a named object in the way of its kind: `quota name`, `ct helper set`, `meta secmark set`.
    pub fn object(self, object: &ObjectKey) -> Self {
        self.expression(Expression::ObjectReference { kind: object.kind, name: object.name.clone() })
    }

    /// Adds the connection to a flow table of the same table, for chains at hook `forward`.
    #[doc(alias = "flow_offload")]
    pub fn flow_add(self, flowtable: Name) -> Self {
        self.expression(Expression::FlowAdd { flowtable })
    }

    /// Matches up to this many packets per unit of time. Excess packets continue with the next rule.
    pub fn limit(self, rate: u64, unit: LimitUnit, burst: u32) -> Self {
        self.expression(Expression::Limit { rate, unit, burst, bytes: false, inverted: false })
    }

    /// Writes a line to the kernel's log.
    pub fn log(self, prefix: &str) -> Self {
        self.expression(Expression::Log {
            prefix: Some(prefix.to_owned()),
            group: None,
            snaplen: None,
            threshold: None,
            level: None,
            flags: None,
        })
    }

    /// Excludes the packet from connection tracking. Use it in a chain at [`Priority::RAW`](crate::Priority::RAW),
    /// which runs before connection tracking.
    pub fn notrack(self) -> Self {
        self.expression(Expression::NoTrack)
    }

    /// Sets the packet mark.
    pub fn set_mark(self, mark: u32) -> Self {
        self.expression(Expression::Immediate { register: Register::FIRST, value: Value::mark(mark) })
            .expression(Expression::MetaSet { key: MetaKey::Mark, source: Register::FIRST })
    }

    /// Sets the bits of `mask` in the packet mark to those of `bits`; the others are kept.
    pub fn set_mark_bits(mut self, bits: u32, mask: u32) -> Self {
        let register = Register::FIRST;
        self.load(&[Operand::MARK], register);
        self.expression(Expression::Bitwise {
            source: register,
            register,
            length: 4,
            mask: Value::mark(!mask),
            xor: Value::mark(bits & mask),
        })
        .expression(Expression::MetaSet { key: MetaKey::Mark, source: register })
    }

    /// Sets the packet mark to an operand, such as the data of a map.
    pub fn set_mark_to(mut self, operand: &Operand) -> Self {
        self.load(std::slice::from_ref(operand), Register::FIRST);
        self.expression(Expression::MetaSet { key: MetaKey::Mark, source: Register::FIRST })
    }

    /// Adds, updates or deletes an element.
    ///
    /// For session affinity this map remembers for three hours which endpoint, by its number in the packet mark, a
    /// client had:
    pub fn change_set(
        mut self,
        op: DynSetOp,
        set: impl Into<SetReference>,
        key: &[Operand],
        data: &[Operand],
        timeout: Option<Duration>,
    ) -> Self {
        // Do this before anything is loaded into registers.
        if let Some(version) = key.iter().chain(data).find_map(Operand::ip_version) {
            self.need_version(version);
        }
        self.load(key, Register::FIRST);
        let length = key.iter().map(|operand| padded(operand.length())).fold(0, u32::saturating_add);
        let behind = Register::FIRST.behind(length);
        let data = match (data, behind) {
            ([], _) => None,
            (data, Some(register)) => {
                self.load(data, register);
                Some(register)
            }
            (_, None) => {
                self.note::<()>(Err(InvalidValue::new("an element", "the registers hold at most 64 bytes")));
                None
            }
        };
        self.expression(Expression::DynSet {
            set: set.into(),
            op,
            key: Register::FIRST,
            data,
            timeout,
            inverted: false,
            expressions: Vec::new(),
        })
    }

    /// Translates the destination to this address and port.
    pub fn dnat_to(self, target: SocketAddr) -> Self {
        self.nat(NatKind::Destination, target.ip(), Some(target.port()), NatFlags::empty())
    }

    /// Translates the destination to this address; the port is kept.
    pub fn dnat_to_address(self, target: IpAddr) -> Self {
        self.nat(NatKind::Destination, target, None, NatFlags::empty())
    }

    /// Translates the destination to an address that is read from the packet; the port is kept. With the packet's own
    /// destination, the packet stays unchanged and no later chain of type `nat` translates it.
    pub fn dnat_to_operand(mut self, family: Family, address: &Operand) -> Self {
        self.load(std::slice::from_ref(address), Register::FIRST);
        self.expression(Expression::Nat {
            kind: NatKind::Destination,
            family,
            address: Some(Register::FIRST.into()),
            port: None,
            flags: NatFlags::empty(),
        })
    }

    /// Translates the source to this address.
    pub fn snat_to(self, source: IpAddr, flags: NatFlags) -> Self {
        self.nat(NatKind::Source, source, None, flags)
    }

    fn nat(mut self, kind: NatKind, address: IpAddr, port: Option<u16>, flags: NatFlags) -> Self {
        let value = Value::from(address);
        let family = if address.is_ipv4() { Family::Ip } else { Family::Ip6 };
        self.need_version(if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 });
        let behind = Register::FIRST.behind(if address.is_ipv4() { 4 } else { 16 });
        self = self.expression(Expression::Immediate { register: Register::FIRST, value });
        let mut port_at = None;
        if let (Some(port), Some(register)) = (port, behind) {
            self = self.expression(Expression::Immediate { register, value: Value::port(port) });
            port_at = Some(RegisterRange::from(register));
        }
        self.expression(Expression::Nat { kind, family, address: Some(Register::FIRST.into()), port: port_at, flags })
    }

    /// Translates the destination to the address and port that a map has for the key.
    pub fn dnat_to_map(self, family: Family, key: &[Operand], map: impl Into<SetReference>) -> Self {
        self.nat_to_map(NatKind::Destination, family, key, map.into(), true)
    }

    /// Translates the destination to the address that a map has for the key; the port is kept.
    pub fn dnat_to_address_map(self, family: Family, key: &[Operand], map: impl Into<SetReference>) -> Self {
        self.nat_to_map(NatKind::Destination, family, key, map.into(), false)
    }

    /// Translates the source to the address that a map has for the key; the port is kept if possible.
    pub fn snat_to_address_map(self, family: Family, key: &[Operand], map: impl Into<SetReference>) -> Self {
        self.nat_to_map(NatKind::Source, family, key, map.into(), false)
    }

    fn nat_to_map(
        mut self,
        kind: NatKind,
        family: Family,
        key: &[Operand],
        set: SetReference,
        with_port: bool,
    ) -> Self {
        self.load(key, Register::FIRST);
        let register = Register::FIRST;
        let port = register.behind(if family == Family::Ip6 { 16 } else { 4 }).filter(|_| with_port);
        self.expression(Expression::Lookup { set, source: register, register: Some(register), inverted: false })
            .expression(Expression::Nat {
                kind,
                family,
                address: Some(register.into()),
                port: port.map(RegisterRange::from),
                flags: NatFlags::empty(),
            })
    }

    /// Translates the source to the address of the output device.
    pub fn masquerade(self, flags: NatFlags) -> Self {
        self.expression(Expression::Masquerade { port: None, flags })
    }

    /// Translates the destination to this host, at this port.
    pub fn redirect_to(self, port: u16) -> Self {
        let register = Register::FIRST;
        self.expression(Expression::Immediate { register, value: Value::port(port) })
            .expression(Expression::Redirect { port: Some(register.into()), flags: NatFlags::empty() })
    }

    /// Drops the packet and answers with a rejection. A reset is only for TCP: it adds the match on the protocol if the
    /// rule has none.
    pub fn reject(self, how: Reject) -> Self {
        // `ip protocol` and `ip6 nexthdr`; other bytes of the header, such as `ip ttl`, may be 6 too.
        let of_protocol: &[u32] = match self.family {
            Family::Ip => &[9],
            Family::Ip6 => &[6],
            _ => &[9, 6],
        };
        let is_protocol = |expression: &Expression| match expression {
            Expression::Meta { key, .. } => *key == MetaKey::L4Proto,
            Expression::Payload { base: HeaderBase::Network, offset, length: 1, .. } => of_protocol.contains(offset),
            _ => false,
        };
        let is_tcp = |pair: &[Expression]| match pair {
            [read, Expression::Cmp { op: CmpOp::Eq, value, .. }] => {
                is_protocol(read) && value.as_bytes() == [L4Protocol::TCP.0]
            }
            _ => false,
        };
        let needs_match = how == Reject::TcpReset && !self.rule.expressions.windows(2).any(is_tcp);
        let rule = if needs_match { self.meta_l4proto(L4Protocol::TCP) } else { self };
        rule.expression(Expression::Reject(how))
    }

    /// Gives a verdict.
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.expression(Expression::Verdict(verdict))
    }

    /// Lets the packet pass.
    pub fn accept(self) -> Self {
        self.verdict(Verdict::Accept)
    }

    /// Drops the packet.
    pub fn drop_packet(self) -> Self {
        self.verdict(Verdict::Drop)
    }

    /// Jumps to a chain and returns.
    pub fn jump(self, chain: Name) -> Self {
        self.verdict(Verdict::Jump(chain))
    }

    /// Goes to a chain without returning.
    pub fn goto(self, chain: Name) -> Self {
        self.verdict(Verdict::Goto(chain))
    }
}
