//! Expressions in nft's words: tracks what each register holds, and prints it where it is used.

use std::fmt::Write as _;

use super::value::{Form, field_text, hex};
use super::{duration, quoted, set_name, verdict_text};
use crate::expr::{
    CmpOp, CtKey, DynSetOp, Expression, FibFlags, HeaderBase, MetaKey, NatFlags, NatKind, Register, RegisterRange,
    Reject, SetReference,
};
use crate::model::{DataType, Family, Field, ObjectType, Value};
use crate::operand::{Operand, ct_field, fib_type, load_all, meta_type};

/// Content of a register.
#[derive(Clone, Debug)]
struct Symbol {
    register: Register,
    /// Length in bytes; `None` for what a map has.
    length: Option<u32>,
    text: String,
    data_type: DataType,
    /// A constant, which is written by the type of what it is used for.
    constant: Option<Value>,
    /// Bits that were kept of it.
    mask: Option<Value>,
}

pub(super) struct Writer<'a> {
    family: Family,
    anonymous: &'a dyn Fn(&SetReference) -> Option<String>,
    symbols: Vec<Symbol>,
    /// The transport protocol that was matched: nft wants ports by its name then.
    protocol: Option<&'static str>,
    statements: Vec<String>,
}

const PLAIN: Form = Form { interval: false, numbers: false };

/// Operands one after another, as a concatenation; ports by the name of a transport protocol, if there is one.
pub(super) fn operands_text(operands: &[Operand], protocol: Option<&'static str>) -> Option<String> {
    let mut expressions = Vec::new();
    load_all(operands, Register::FIRST, &mut expressions).ok()?;
    let mut writer = Writer::new(Family::Inet, &|_| None);
    writer.protocol = protocol;
    expressions.iter().try_for_each(|expression| writer.step(expression))?;
    writer.take_key(Register::FIRST, None)
}

impl<'a> Writer<'a> {
    pub(super) fn new(family: Family, anonymous: &'a dyn Fn(&SetReference) -> Option<String>) -> Self {
        Writer { family, anonymous, symbols: Vec::new(), protocol: None, statements: Vec::new() }
    }

    /// The rule; `None` when nft has no words for it.
    pub(super) fn write(mut self, expressions: &[Expression]) -> Option<String> {
        for expression in expressions {
            self.step(expression)?;
        }
        // nft has no words for a value that is read and never used.
        self.symbols.is_empty().then(|| self.statements.join(" "))
    }

    #[expect(clippy::unnecessary_wraps, reason = "a step ends with it, and steps may fail")]
    fn say(&mut self, statement: impl Into<String>) -> Option<()> {
        self.statements.push(statement.into());
        Some(())
    }

    fn hold(&mut self, register: Register, field: Field, text: impl Into<String>) -> Option<()> {
        self.put(Symbol {
            register,
            length: Some(field.length),
            text: text.into(),
            data_type: field.data_type,
            constant: None,
            mask: None,
        })
    }

    fn put(&mut self, symbol: Symbol) -> Option<()> {
        // A value that is overwritten before it was used would be lost.
        if self.symbols.iter().any(|held| held.register == symbol.register) {
            return None;
        }
        self.symbols.push(symbol);
        Some(())
    }

    /// Takes the only value, which must be at this register.
    fn take(&mut self, register: Register) -> Option<Symbol> {
        match self.symbols.as_slice() {
            [one] if one.register == register => self.symbols.pop(),
            _ => None,
        }
    }

    /// Takes values that follow one another from a register on, as many as there are up to another register.
    fn take_key(&mut self, register: Register, up_to: Option<Register>) -> Option<String> {
        let mut parts = Vec::new();
        let mut next = Some(register);
        while let Some(at) = next.filter(|at| Some(*at) != up_to) {
            let Some(place) = self.symbols.iter().position(|held| held.register == at) else { break };
            let symbol = self.symbols.swap_remove(place);
            next = symbol.length.and_then(|length| at.behind(length));
            parts.push(symbol.left()?);
        }
        let done = if up_to.is_some() { next == up_to } else { self.symbols.is_empty() };
        (done && !parts.is_empty()).then(|| parts.join(" . "))
    }

    fn set_text(&self, set: &SetReference) -> Option<String> {
        if let Some(elements) = (self.anonymous)(set) {
            return Some(elements);
        }
        (!set.name.as_str().starts_with("__")).then(|| set_name(&set.name))
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each expression")]
    fn step(&mut self, expression: &Expression) -> Option<()> {
        match expression {
            Expression::Payload { base, offset, length, register } => {
                let (field, mut text) = payload_text(*base, *offset, *length)?;
                if let (Some(protocol), Some(name)) = (self.protocol, text.strip_prefix("th ")) {
                    text = format!("{protocol} {name}");
                }
                self.hold(*register, field, text)
            }
            Expression::Meta { key, register } => {
                let data_type = meta_type(*key);
                let text = match key {
                    MetaKey::Other(_) => return None,
                    MetaKey::Iif | MetaKey::Oif | MetaKey::IifName | MetaKey::OifName => key.name()?.to_owned(),
                    key => format!("meta {}", key.name()?),
                };
                self.hold(*register, data_type.into(), text)
            }
            Expression::Ct { key, direction, register } => {
                let field = ct_field(*key);
                let direction = match direction {
                    None => "",
                    Some(crate::expr::Direction::Original) => "original ",
                    Some(crate::expr::Direction::Reply) => "reply ",
                };
                if matches!(key, CtKey::Source | CtKey::Destination) {
                    return None;
                }
                self.hold(*register, field, format!("ct {direction}{}", key.name()?))
            }
            Expression::Fib { result, flags, register } => {
                let result_text = if flags.contains(FibFlags::PRESENT) { "oif" } else { result.name()? };
                let words = [
                    (FibFlags::SADDR, "saddr"),
                    (FibFlags::DADDR, "daddr"),
                    (FibFlags::MARK, "mark"),
                    (FibFlags::IIF, "iif"),
                    (FibFlags::OIF, "oif"),
                ];
                let of: Vec<&str> =
                    words.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, word)| *word).collect();
                self.hold(*register, fib_type(*result, *flags).into(), format!("fib {} {result_text}", of.join(" . ")))
            }
            Expression::Numgen { kind, modulus, offset, register } => {
                let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
                let field = Field { data_type: DataType::INTEGER, length: 4 };
                self.hold(*register, field, format!("numgen {} mod {modulus}{offset}", kind.name()?))
            }
            Expression::Hash { source, modulus, seed, offset, register, .. } => {
                let key = self.take_key(*source, None)?;
                let seed = seed.map_or_else(String::new, |seed| format!(" seed {seed:#x}"));
                let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
                let field = Field { data_type: DataType::INTEGER, length: 4 };
                self.hold(*register, field, format!("jhash {key} mod {modulus}{seed}{offset}"))
            }
            Expression::SymmetricHash { modulus, offset, register } => {
                let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
                let field = Field { data_type: DataType::INTEGER, length: 4 };
                self.hold(*register, field, format!("symhash mod {modulus}{offset}"))
            }
            Expression::Immediate { register, value } => self.put(Symbol {
                register: *register,
                length: u32::try_from(value.len()).ok(),
                text: String::new(),
                data_type: DataType::INTEGER,
                constant: Some(value.clone()),
                mask: None,
            }),
            Expression::Bitwise { source, register, mask, xor, .. } => {
                let place = self.symbols.iter().position(|held| held.register == *source && held.mask.is_none())?;
                let mut symbol = self.symbols.swap_remove(place);
                symbol.register = *register;
                if xor.as_bytes().iter().all(|byte| *byte == 0) {
                    symbol.mask = Some(mask.clone());
                } else {
                    let bits = |value: &Value| field_text(value.as_bytes(), symbol.data_type, PLAIN);
                    symbol.text = format!("{} & {} ^ {}", symbol.text, bits(mask)?, bits(xor)?);
                }
                self.put(symbol)
            }
            Expression::Cmp { register, op, value } => {
                let symbol = self.take(*register)?;
                self.cmp(&symbol, *op, value)
            }
            Expression::Range { register, inverted, from, to } => {
                let symbol = self.take(*register)?;
                let text = |value: &Value| {
                    field_text(value.as_bytes(), symbol.data_type, Form { interval: true, numbers: false })
                };
                let not = if *inverted { "!= " } else { "" };
                let statement = format!("{} {not}{}-{}", symbol.left()?, text(from)?, text(to)?);
                self.say(statement)
            }
            Expression::Lookup { set, source, register, inverted } => {
                let key = self.take_key(*source, None)?;
                let set = self.set_text(set)?;
                match register {
                    None if *inverted => self.say(format!("{key} != {set}")),
                    None => self.say(format!("{key} {set}")),
                    Some(Register::VERDICT) => self.say(format!("{key} vmap {set}")),
                    Some(register) => self.put(Symbol {
                        register: *register,
                        length: None,
                        text: format!("{key} map {set}"),
                        data_type: DataType::INTEGER,
                        constant: None,
                        mask: None,
                    }),
                }
            }
            Expression::Verdict(verdict) => {
                let text = verdict_text(verdict)?;
                self.say(text)
            }
            Expression::MetaSet { key, source } => {
                let symbol = self.take(*source)?;
                let value = symbol.right(meta_type(*key))?;
                self.say(format!("meta {} set {value}", key.name()?))
            }
            Expression::CtSet { key, direction: None, source } => {
                let symbol = self.take(*source)?;
                let value = symbol.right(ct_field(*key).data_type)?;
                self.say(format!("ct {} set {value}", key.name()?))
            }
            Expression::Nat { kind, family, address, port, flags } => self.nat(*kind, *family, *address, *port, *flags),
            Expression::Masquerade { port, flags } => {
                let port = self.port(*port)?;
                self.say(format!("masquerade{port}{}", nat_flags(*flags)?))
            }
            Expression::Redirect { port, flags } => {
                let port = self.port(*port)?;
                self.say(format!("redirect{port}{}", nat_flags(*flags)?))
            }
            Expression::Reject(reject) => match reject {
                Reject::TcpReset => self.say("reject with tcp reset"),
                Reject::Unreachable(code) => self.say(format!("reject with icmpx {}", code.name())),
                Reject::Icmp(code) => {
                    let protocol = if self.family == Family::Ip6 { "icmpv6" } else { "icmp" };
                    self.say(format!("reject with {protocol} {code}"))
                }
            },
            Expression::DynSet { set, op, key, data, timeout, inverted: false, expressions } => {
                let key = self.take_key(*key, *data)?;
                let data = match data {
                    Some(register) => format!(" : {}", self.take_key(*register, None)?),
                    None => String::new(),
                };
                if !self.symbols.is_empty() || matches!(op, DynSetOp::Other(_)) {
                    return None;
                }
                let mut inside = key;
                if let Some(timeout) = timeout {
                    let _infallible = write!(inside, " timeout {}", duration(*timeout));
                }
                for expression in expressions {
                    let _infallible = write!(inside, " {}", stateful_text(expression)?);
                }
                let set = self.set_text(set)?;
                self.say(format!("{} {set} {{ {inside}{data} }}", op.name()?))
            }
            Expression::Log { prefix, group, snaplen, threshold, level, flags } => {
                let text = log_text(prefix.as_deref(), *group, *snaplen, *threshold, *level, *flags)?;
                self.say(text)
            }
            Expression::NoTrack => self.say("notrack"),
            Expression::ObjectReference { kind: ObjectType::Counter, name } => {
                self.say(format!("counter name {}", quoted(name.as_str())))
            }
            Expression::ObjectReference { kind, name } => {
                self.say(format!("{} name {}", kind.name()?, quoted(name.as_str())))
            }
            Expression::ObjectMap { set, source } => {
                let key = self.take_key(*source, None)?;
                let set = self.set_text(set)?;
                self.say(format!("counter name {key} map {set}"))
            }
            other => {
                let text = stateful_text(other)?;
                self.say(text)
            }
        }
    }

    fn cmp(&mut self, symbol: &Symbol, op: CmpOp, value: &Value) -> Option<()> {
        if symbol.constant.is_some() {
            return None;
        }
        let right = field_text(value.as_bytes(), symbol.data_type, PLAIN)?;
        let zero = value.as_bytes().iter().all(|byte| *byte == 0);
        if let (Some(mask), CmpOp::Ne, true, DataType::CT_STATE | DataType::CT_STATUS) =
            (&symbol.mask, op, zero, symbol.data_type)
        {
            // nft's way of saying that one of several bits is set.
            let bits = field_text(mask.as_bytes(), symbol.data_type, PLAIN)?;
            return self.say(format!("{} {bits}", symbol.text));
        }
        let left = symbol.left()?;
        if op == CmpOp::Eq && left == "meta l4proto" {
            self.protocol = ["tcp", "udp", "sctp", "dccp"].into_iter().find(|known| *known == right);
        }
        match op {
            CmpOp::Eq if symbol.mask.is_none() => self.say(format!("{left} {right}")),
            op => self.say(format!("{left} {} {right}", op.name()?)),
        }
    }

    fn nat(
        &mut self,
        kind: NatKind,
        family: Family,
        address: Option<RegisterRange>,
        port: Option<RegisterRange>,
        flags: NatFlags,
    ) -> Option<()> {
        let verb = kind.name()?;
        let family = if self.family == Family::Inet { format!(" {family}") } else { String::new() };
        let Some(address) = address else {
            let port = self.port(port)?;
            return self.say(format!("{verb}{family}{port}{}", nat_flags(flags)?));
        };
        let length = if family.ends_with('6') || self.family == Family::Ip6 { 16 } else { 4 };
        let place = self.symbols.iter().position(|held| held.register == address.first)?;
        let target = self.symbols.swap_remove(place);
        if address.first != address.last {
            return None;
        }
        let text = match &target.constant {
            Some(value) => {
                let data_type = if value.len() == 16 { DataType::IPV6_ADDR } else { DataType::IPV4_ADDR };
                let text = field_text(value.as_bytes(), data_type, PLAIN)?;
                let port = self.port(port)?;
                match port.strip_prefix(" to ") {
                    Some(port) if value.len() == 16 => format!("[{text}]{port}"),
                    _ => format!("{text}{}", port.trim_start_matches(" to ")),
                }
            }
            // Data of a map: the port is in the registers behind the address, or there is none.
            None if target.length.is_none() => {
                let behind = address.first.behind(length).map(RegisterRange::from);
                if port.is_some() && port != behind {
                    return None;
                }
                target.text
            }
            None if port.is_none() => target.left()?,
            None => return None,
        };
        self.say(format!("{verb}{family} to {text}{}", nat_flags(flags)?))
    }

    /// Constant ports: ` to :80`, or nothing.
    fn port(&mut self, port: Option<RegisterRange>) -> Option<String> {
        let Some(range) = port else { return Some(String::new()) };
        let mut take = |register| {
            let place = self.symbols.iter().position(|held| held.register == register)?;
            let value = self.symbols.swap_remove(place).constant?;
            field_text(value.as_bytes(), DataType::INET_SERVICE, PLAIN)
        };
        let first = take(range.first)?;
        Some(if range.first == range.last {
            format!(" to :{first}")
        } else {
            format!(" to :{first}-{}", take(range.last)?)
        })
    }
}

impl Symbol {
    /// Text of a value that is compared, looked up or translated to.
    fn left(&self) -> Option<String> {
        match (&self.constant, &self.mask) {
            (Some(_), _) => None,
            (None, None) => Some(self.text.clone()),
            (None, Some(mask)) => {
                let mask = if self.data_type == DataType::MARK
                    || self.data_type == DataType::IPV4_ADDR
                    || self.data_type == DataType::IPV6_ADDR
                {
                    field_text(mask.as_bytes(), self.data_type, PLAIN)?
                } else {
                    hex(mask.as_bytes())
                };
                Some(format!("{} & {mask}", self.text))
            }
        }
    }

    /// Text of a value that something is set to.
    fn right(&self, data_type: DataType) -> Option<String> {
        match &self.constant {
            Some(value) => field_text(value.as_bytes(), data_type, PLAIN),
            None => self.left(),
        }
    }
}

fn nat_flags(flags: NatFlags) -> Option<String> {
    let words =
        [(NatFlags::RANDOM, "random"), (NatFlags::FULLY_RANDOM, "fully-random"), (NatFlags::PERSISTENT, "persistent")];
    let known = words.iter().fold(NatFlags::empty(), |known, (flag, _)| known | *flag);
    if !flags.difference(known).is_empty() {
        return None;
    }
    let said: Vec<&str> = words.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, word)| *word).collect();
    Some(if said.is_empty() { String::new() } else { format!(" {}", said.join(",")) })
}

/// Header fields by their names; others by their place.
fn payload_text(base: HeaderBase, offset: u32, length: u32) -> Option<(Field, String)> {
    let known: &[(HeaderBase, u32, u32, DataType, &str)] = &[
        (HeaderBase::Network, 12, 4, DataType::IPV4_ADDR, "ip saddr"),
        (HeaderBase::Network, 16, 4, DataType::IPV4_ADDR, "ip daddr"),
        (HeaderBase::Network, 8, 16, DataType::IPV6_ADDR, "ip6 saddr"),
        (HeaderBase::Network, 24, 16, DataType::IPV6_ADDR, "ip6 daddr"),
        (HeaderBase::Network, 9, 1, DataType::INET_PROTO, "ip protocol"),
        (HeaderBase::Network, 6, 1, DataType::INET_PROTO, "ip6 nexthdr"),
        (HeaderBase::Transport, 0, 2, DataType::INET_SERVICE, "th sport"),
        (HeaderBase::Transport, 2, 2, DataType::INET_SERVICE, "th dport"),
        (HeaderBase::Link, 0, 6, DataType::ETHER_ADDR, "ether daddr"),
        (HeaderBase::Link, 6, 6, DataType::ETHER_ADDR, "ether saddr"),
        (HeaderBase::Link, 12, 2, DataType::ETHER_TYPE, "ether type"),
    ];
    let found = known.iter().find(|(b, o, l, _, _)| (*b, *o, *l) == (base, offset, length));
    if let Some((_, _, _, data_type, name)) = found {
        return Some((Field { data_type: *data_type, length }, (*name).to_owned()));
    }
    let (first, bits) = (offset.checked_mul(8)?, length.checked_mul(8)?);
    Some((Field { data_type: DataType::INTEGER, length }, format!("@{},{first},{bits}", base.name()?)))
}

fn log_text(
    prefix: Option<&str>,
    group: Option<u16>,
    snaplen: Option<u32>,
    threshold: Option<u16>,
    level: Option<u32>,
    flags: Option<u32>,
) -> Option<String> {
    const LEVELS: [&str; 9] = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit"];
    let mut text = String::from("log");
    if let Some(prefix) = prefix {
        let _infallible = write!(text, " prefix {}", quoted(prefix));
    }
    let numbers =
        [("group", group.map(u32::from)), ("snaplen", snaplen), ("queue-threshold", threshold.map(u32::from))];
    for (word, number) in numbers {
        if let Some(number) = number {
            let _infallible = write!(text, " {word} {number}");
        }
    }
    // Without a word the level is "warn".
    if let Some(level) = level.filter(|level| *level != 4) {
        let _infallible = write!(text, " level {}", LEVELS.get(usize::try_from(level).ok()?)?);
    }
    flags.is_none_or(|flags| flags == 0).then_some(text)
}

/// Counters and limits: what elements have, too.
pub(super) fn stateful_text(expression: &Expression) -> Option<String> {
    match expression {
        Expression::Counter { packets: 0, bytes: 0 } => Some("counter".to_owned()),
        Expression::Counter { packets, bytes } => Some(format!("counter packets {packets} bytes {bytes}")),
        Expression::Limit { rate, unit, burst, bytes, inverted } => {
            let over = if *inverted { "over " } else { "" };
            let (what, burst_what) = if *bytes { (" bytes", " bytes") } else { ("", " packets") };
            let unit = unit.name()?;
            let burst = if *burst == 0 { String::new() } else { format!(" burst {burst}{burst_what}") };
            Some(format!("limit rate {over}{rate}{what}/{unit}{burst}"))
        }
        _ => None,
    }
}
