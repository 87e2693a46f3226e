//! Expressions in nft's syntax. Tracks what each register holds, and prints it where it is used.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::fields::whole;
use super::header::{Place, Protocol, kept_bits, option_name};
use super::statement::{log_text, nat_flags, queue_text, stateful_text, synproxy_text};
use super::value::{Form, Names, field_text, hex, masked_prefix, number, prefix_text};
use super::{anonymous_braces, duration, quoted, set_name, verdict_text};
use crate::expr::{
    ByteOrderOp, CmpOp, CtKey, Direction, DynSetOp, Expression, FibFlags, IcmpCode, MetaKey, Register, Reject,
    SetReference, ShiftOp, SocketKey, XfrmKey,
};
use crate::model::{
    ByteOrder, DataType, Element, Family, Field, FieldTypes, MapData, Name, Rule, Set, SetFlags, Value, Verdict,
};
use crate::operand::{Operand, ct_field, fib_type, is_host_order, load_all, meta_field, rt_field, socket_field};

/// Bytes of a packet: position, first bit and number of bits.
pub(super) type From = (Place, u32, u32);

/// Content of a register.
#[derive(Clone, Debug)]
pub(super) struct Symbol<'a> {
    pub(super) register: Register,
    /// Length in bytes; `None` for a map's data.
    pub(super) length: Option<u32>,
    pub(super) text: String,
    pub(super) data_type: DataType,
    /// How values compared with it are printed.
    pub(super) form: Form<'a>,
    /// A constant, which is printed by the type of its use.
    pub(super) constant: Option<Value>,
    /// Bits that were kept of it and are not a named field.
    pub(super) mask: Option<Value>,
    /// Where it is from.
    pub(super) place: Option<From>,
    /// Bits that were kept of it, and bits that were flipped.
    pub(super) changed: Option<(Value, Value)>,
    pub(super) key: Option<MetaKey>,
    /// The operator in the text with the lowest precedence.
    operator: Operator,
}

/// Operators in nft's order, highest precedence first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    None,
    Shift,
    And,
    Xor,
    Or,
}

/// A set, and its elements if it is anonymous. `None` if unknown.
type Sets<'a> = &'a dyn Fn(&SetReference) -> Option<(&'a Set, Cow<'a, [Element]>)>;

/// Parts of a table to which rules refer.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) sets: Sets<'a>,
    /// The rules of a chain that is bound to the rule that jumps to it; `None` for any other.
    pub(super) bound: &'a dyn Fn(&Name) -> Option<Vec<&'a Rule>>,
    /// Number of enclosing rules.
    pub(super) depth: usize,
}

impl Known<'_> {
    pub(super) fn nothing() -> Self {
        Known { sets: &|_| None, bound: &|_| None, depth: 0 }
    }
}

/// The kernel's limit of nested jumps (`NFT_JUMP_STACK_SIZE`).
const JUMPS: usize = 16;

pub(super) struct Writer<'a> {
    pub(super) family: Family,
    known: Known<'a>,
    symbols: Vec<Symbol<'a>>,
    names: Option<Names<'a>>,
    /// The matched protocols, by which nft names header fields.
    pub(super) link: Option<Protocol>,
    /// Number of matched VLAN tags.
    pub(super) tags: u32,
    pub(super) network: Option<Protocol>,
    pub(super) transport: Option<Protocol>,
    /// Statement indexes of matches on these protocols, which nft omits if a later field implies them.
    pub(super) dependencies: Dependencies,
    pub(super) pending: Pending,
    /// Lengths of the fields of the last key, if known.
    lengths: Vec<u32>,
    /// Whether a map's integers are assigned to something in host byte order.
    is_set_by_map: bool,
    pub(super) statements: Vec<String>,
    /// Whether integers that the current expression reads are in host byte order.
    is_host_order: bool,
    /// Whether addresses are recognised by position, without a match on the IP version.
    pub(super) is_of_any_version: bool,
}

/// Matches on a protocol that only matches have followed so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dependencies {
    pub(super) link: Option<usize>,
    pub(super) vlan: Option<usize>,
    pub(super) network: Option<usize>,
    pub(super) transport: Option<usize>,
}

/// A match that was omitted for a field that no statement has used yet.
type Pending = Option<(usize, String)>;

/// An integer of four bytes.
const NUMBER: Field = Field { data_type: DataType::INTEGER, length: 4 };

/// Operands as a concatenation. Ports are named by a transport protocol, if there is one.
pub(super) fn operands_text(operands: &[Operand], protocol: Option<Protocol>) -> Option<String> {
    let mut expressions = Vec::new();
    load_all(operands, Register::FIRST, &mut expressions).ok()?;
    let mut writer = Writer::new(Family::Inet, Known::nothing(), None);
    (writer.link, writer.transport, writer.is_of_any_version) = (Some(Protocol::Ether), protocol, true);
    expressions.iter().try_for_each(|expression| writer.step(expression))?;
    Some(writer.take_key(Register::FIRST, None)?.0)
}

impl<'a> Writer<'a> {
    pub(super) fn new(family: Family, known: Known<'a>, names: Option<Names<'a>>) -> Self {
        let (link, network) = match family {
            Family::Ip => (None, Some(Protocol::Ip)),
            Family::Ip6 => (None, Some(Protocol::Ip6)),
            Family::Arp => (None, Some(Protocol::Arp)),
            Family::Bridge => (Some(Protocol::Ether), None),
            _ => (None, None),
        };
        Writer {
            family,
            known,
            symbols: Vec::new(),
            names,
            link,
            tags: 0,
            network,
            transport: None,
            dependencies: Dependencies::default(),
            pending: None,
            lengths: Vec::new(),
            is_set_by_map: false,
            statements: Vec::new(),
            is_host_order: false,
            is_of_any_version: false,
        }
    }

    /// The rule; `None` if nft cannot express it.
    pub(super) fn write(mut self, expressions: &[Expression]) -> Option<String> {
        let mut rest = expressions;
        loop {
            rest = match rest {
                // nft before 1.1 writes ranges this way.
                [
                    Expression::Cmp { register, op: CmpOp::Ge, value: from },
                    Expression::Cmp { register: same, op: CmpOp::Le, value: to },
                    more @ ..,
                ] if register == same => {
                    self.range(*register, false, from, to)?;
                    more
                }
                [expression, more @ ..] => {
                    self.is_set_by_map = matches!(more, [Expression::MetaSet { .. } | Expression::CtSet { .. }, ..]);
                    self.step(expression)?;
                    more
                }
                [] => break,
            };
        }
        // nft cannot express a value that is read and never used.
        self.statements.retain(|statement| !statement.is_empty());
        self.symbols.is_empty().then(|| self.statements.join(" "))
    }

    /// Adds a statement that acts. Matches before it can no longer be omitted.
    pub(super) fn say(&mut self, statement: impl Into<String>) -> Option<()> {
        self.dependencies = Dependencies::default();
        self.say_match(statement)
    }

    #[expect(clippy::unnecessary_wraps, reason = "a step ends with it, and steps may fail")]
    pub(super) fn say_match(&mut self, statement: impl Into<String>) -> Option<()> {
        self.pending = None;
        self.statements.push(statement.into());
        Some(())
    }

    fn hold(&mut self, register: Register, field: Field, text: impl Into<String>) -> Option<()> {
        self.put(self.symbol(register, field, text))
    }

    fn symbol(&self, register: Register, field: Field, text: impl Into<String>) -> Symbol<'a> {
        Symbol {
            register,
            length: Some(field.length),
            text: text.into(),
            data_type: field.data_type,
            form: Form { numbers: self.is_host_order, ..self.form() },
            constant: None,
            mask: None,
            place: None,
            changed: None,
            key: None,
            operator: Operator::None,
        }
    }

    fn form(&self) -> Form<'a> {
        Form { names: self.names, ..Form::PLAIN }
    }

    pub(super) fn remove(&mut self, register: Register) -> Option<Symbol<'a>> {
        let place = self.symbols.iter().position(|held| held.register == register)?;
        Some(self.symbols.swap_remove(place))
    }

    /// The target of a statement: a constant of this type, or a value that the rule reads.
    pub(super) fn target(&mut self, register: Register, data_type: DataType) -> Option<String> {
        let symbol = self.remove(register)?;
        match &symbol.constant {
            Some(value) => field_text(value.as_bytes(), data_type, self.form()),
            None => symbol.left(),
        }
    }

    /// An address of this family, or of the constant's length.
    pub(super) fn target_address(&mut self, register: Register) -> Option<String> {
        let held = self.symbols.iter().find(|held| held.register == register)?;
        let is_ip6 = held.constant.as_ref().is_some_and(|value| value.len() == 16);
        self.target(register, if is_ip6 { DataType::IPV6_ADDR } else { DataType::IPV4_ADDR })
    }

    fn put(&mut self, symbol: Symbol<'a>) -> Option<()> {
        // A value that is overwritten before it was used would be lost.
        if self.symbols.iter().any(|held| held.register == symbol.register) {
            return None;
        }
        self.symbols.push(symbol);
        Some(())
    }

    /// Takes the only value, which must be in this register.
    pub(super) fn take(&mut self, register: Register) -> Option<Symbol<'a>> {
        match self.symbols.as_slice() {
            [one] if one.register == register => self.symbols.pop(),
            _ => None,
        }
    }

    /// Takes the values between two registers, and the form in which such a key's values are printed.
    fn take_key(&mut self, register: Register, up_to: Option<Register>) -> Option<(String, Form<'a>)> {
        let (mut parts, mut lengths) = (Vec::new(), Vec::new());
        let mut form = self.form();
        let mut next = Some(register);
        while let Some(at) = next.filter(|at| Some(*at) != up_to) {
            let Some(symbol) = self.remove(at) else { break };
            next = symbol.length.and_then(|length| at.behind(length));
            form.numbers |= symbol.form.numbers;
            form.shift |= symbol.form.shift;
            form.raw |= symbol.form.raw;
            lengths.push(symbol.length);
            parts.push(symbol.left()?);
        }
        self.lengths = lengths.into_iter().collect::<Option<_>>().unwrap_or_default();
        let done = up_to.is_some() || self.symbols.is_empty();
        // Bits within a byte are not concatenated.
        let together = parts.len() == 1 || form.shift == 0;
        (done && together && !parts.is_empty()).then(|| (parts.join(" . "), form))
    }

    /// Rules in braces.
    fn block(&self, rules: &[&Rule]) -> Option<String> {
        let known = Known { depth: self.known.depth.saturating_add(1), ..self.known };
        if known.depth > JUMPS {
            return None;
        }
        let rules: Option<Vec<String>> = rules.iter().map(|rule| rule.text(self.family, known, self.names)).collect();
        Some(format!("{{ {}; }}", rules?.join("; ")))
    }

    /// Names the constants from a register on, by the types of a key.
    fn name_constants(&mut self, register: Register, types: &FieldTypes) {
        let mut next = Some(register);
        for field in types.fields() {
            let held = self.symbols.iter_mut().find(|held| Some(held.register) == next);
            if let Some(symbol) = held
                && let Some(value) = symbol.constant.take_if(|_| types.is_concatenation())
            {
                match field_text(value.as_bytes(), field.data_type, Form { numbers: true, ..Form::PLAIN }) {
                    Some(text) => symbol.text = text,
                    None => symbol.constant = Some(value),
                }
            }
            next = next.and_then(|register| register.behind(field.length));
        }
    }

    /// The types of a key, with the lengths that were read. The kernel only has the total length.
    fn key_types(&self, types: &FieldTypes) -> FieldTypes {
        let fields =
            types.fields().iter().zip(&self.lengths).map(|(field, length)| Field { length: *length, ..*field });
        let read = FieldTypes::new(fields).ok().filter(|_| types.fields().len() == self.lengths.len());
        read.filter(|read| read.length() == types.length()).unwrap_or_else(|| types.clone())
    }

    fn set_text(&self, set: &SetReference, form: Form<'_>) -> Option<String> {
        if let Some((known, elements)) = (self.known.sets)(set)
            && known.flags.contains(SetFlags::ANONYMOUS)
        {
            let mut known = known.clone();
            known.key_type = self.key_types(&known.key_type);
            return anonymous_braces(&known, &elements, Form { data_numbers: self.is_set_by_map, ..form });
        }
        (!set.name.as_str().starts_with("__")).then(|| set_name(&set.name))
    }

    fn step(&mut self, expression: &Expression) -> Option<()> {
        self.is_host_order = is_host_order(expression);
        if let Expression::Nat { .. } | Expression::Masquerade { .. } | Expression::Redirect { .. } = expression
            && let Some((place, text)) = self.pending.take()
            && let Some(statement) = self.statements.get_mut(place)
        {
            // nft accepts ports in a map only after a match on the transport protocol.
            *statement = text;
        }
        self.load(expression)
    }

    /// Handles expressions that read a value, and delegates all others.
    fn load(&mut self, expression: &Expression) -> Option<()> {
        match expression {
            Expression::Payload { base, offset, length, register } => {
                let (field, text) = self.payload_text(*base, *offset, *length)?;
                let place = Some((Place::Header(*base), *offset, *length));
                // Flags of compressed payload have no names either.
                let form = Form { raw: text.starts_with('@') || text == "comp flags", ..self.form() };
                self.put(Symbol { form, place, ..self.symbol(*register, field, text) })
            }
            Expression::Exthdr { op, kind, present: true, register, .. } => {
                self.settle(Place::Option(*op, *kind), "");
                self.hold(*register, DataType::BOOLEAN.into(), option_name(*op, *kind)?)
            }
            Expression::Exthdr { op, kind, offset, length, register, .. } => {
                let place = Place::Option(*op, *kind);
                // If the field has no name, its bits have one.
                let (data_type, text) =
                    self.field(place, whole(*offset, *length)?).unwrap_or((DataType::INTEGER, String::new()));
                self.settle(place, &text);
                let field = Field { data_type, length: *length };
                self.put(Symbol { place: Some((place, *offset, *length)), ..self.symbol(*register, field, text) })
            }
            Expression::Meta { key, register } => {
                let text = match key {
                    MetaKey::Iif
                    | MetaKey::Oif
                    | MetaKey::IifName
                    | MetaKey::OifName
                    | MetaKey::IifGroup
                    | MetaKey::OifGroup => key.name()?.to_owned(),
                    key => format!("meta {}", key.name()?),
                };
                self.put(Symbol { key: Some(*key), ..self.symbol(*register, meta_field(*key), text) })
            }
            Expression::Ct { key, direction, register } => {
                let field = match (key, self.network) {
                    (CtKey::Source | CtKey::Destination, Some(Protocol::Ip)) => DataType::IPV4_ADDR.into(),
                    (CtKey::Source | CtKey::Destination, Some(Protocol::Ip6)) => DataType::IPV6_ADDR.into(),
                    (CtKey::Source | CtKey::Destination, _) => return None,
                    (key, _) => ct_field(*key),
                };
                self.hold(*register, field, format!("ct {}{}", direction_text(*direction), key.name()?))
            }
            Expression::Rt { key, register } => self.hold(*register, rt_field(*key), format!("rt {}", key.name()?)),
            // nft requires the path of a control group.
            Expression::Socket { key: SocketKey::CgroupV2, .. } => None,
            Expression::Socket { key, level: None, register } => {
                self.hold(*register, socket_field(*key), format!("socket {}", key.name()?))
            }
            Expression::Osf { ttl, version, register } => {
                let ttl = ["", "ttl loose ", "ttl skip "].get(usize::from(*ttl))?;
                let field = Field { data_type: DataType::STRING, length: 16 };
                self.hold(*register, field, format!("osf {ttl}{}", if *version { "version" } else { "name" }))
            }
            Expression::Xfrm { key, outgoing, index, register } => {
                let field = match key {
                    XfrmKey::DestinationIp | XfrmKey::SourceIp => DataType::IPV4_ADDR.into(),
                    XfrmKey::DestinationIp6 | XfrmKey::SourceIp6 => DataType::IPV6_ADDR.into(),
                    _ => NUMBER,
                };
                let direction = if *outgoing { "out" } else { "in" };
                let index = if *index == 0 { String::new() } else { format!(" spnum {index}") };
                self.hold(*register, field, format!("ipsec {direction}{index} {}", key.name()?))
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
                self.hold(*register, NUMBER, format!("numgen {} mod {modulus}{offset}", kind.name()?))
            }
            Expression::SymmetricHash { modulus, offset, register } => {
                let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
                self.hold(*register, NUMBER, format!("symhash mod {modulus}{offset}"))
            }
            Expression::Immediate { register, value } => {
                let field = Field { data_type: DataType::INTEGER, length: u32::try_from(value.len()).ok()? };
                self.put(Symbol { constant: Some(value.clone()), ..self.symbol(*register, field, "") })
            }
            other => self.compute(other),
        }
    }

    fn compute(&mut self, expression: &Expression) -> Option<()> {
        match expression {
            Expression::Hash { source, modulus, seed, offset, register, .. } => {
                let (key, _) = self.take_key(*source, None)?;
                let seed = seed.map_or_else(String::new, |seed| format!(" seed {seed:#x}"));
                let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
                self.hold(*register, NUMBER, format!("jhash {key} mod {modulus}{seed}{offset}"))
            }
            Expression::Bitwise { source, register, mask, xor, .. } => {
                let mut symbol =
                    self.remove(*source).filter(|held| held.changed.is_none() && held.constant.is_none())?;
                symbol.register = *register;
                symbol.changed = Some((mask.clone(), xor.clone()));
                let named = symbol.place.and_then(|(place, offset, _)| {
                    let (bits, shift) = kept_bits(offset, mask.as_bytes())?;
                    Some((self.field(place, bits)?, shift))
                });
                match named {
                    _ if xor.as_bytes().iter().any(|byte| *byte != 0) => {
                        // Bits that are not kept but flipped are set.
                        let zip = |one: &Value, other: &Value, of: fn(u8, u8) -> u8| {
                            let bytes = one.as_bytes().iter().zip(other.as_bytes());
                            Value::of(&bytes.map(|(one, other)| of(*one, *other)).collect::<Vec<u8>>())
                        };
                        let set = zip(mask, xor, |mask, xor| !mask & xor);
                        let (kept, flipped) =
                            (zip(mask, &set, |mask, set| mask | set), zip(mask, xor, |mask, xor| mask & xor));
                        let steps = [
                            (Operator::And, "&", kept, u8::MAX),
                            (Operator::Xor, "^", flipped, 0),
                            (Operator::Or, "|", set, 0),
                        ];
                        for (operator, sign, value, idle) in steps {
                            if value.as_bytes().iter().any(|byte| *byte != idle) {
                                let value = field_text(value.as_bytes(), symbol.data_type, symbol.form)?;
                                symbol.apply(operator, sign, &value);
                            }
                        }
                    }
                    Some(((data_type, text), shift)) => {
                        if let Some((place, _, _)) = symbol.place {
                            self.settle(place, &text);
                        }
                        (symbol.data_type, symbol.text, symbol.form.shift) = (data_type, text, shift);
                        symbol.form.raw = false;
                    }
                    None => symbol.mask = Some(mask.clone()),
                }
                self.put(symbol)
            }
            Expression::Shift { source, register, op, bits, .. } => {
                let mut symbol = self.remove(*source)?;
                symbol.register = *register;
                if *op == ShiftOp::Right && *bits > 0 && symbol.form.shift == *bits {
                    // The bits of a field, as a separate number.
                    symbol.form.shift = 0;
                    return self.put(symbol);
                }
                if symbol.form.shift != 0 {
                    return None;
                }
                symbol.text = symbol.left()?;
                if symbol.mask.take().is_some() {
                    symbol.operator = Operator::And;
                }
                symbol.apply(Operator::Shift, op.name()?, &bits.to_string());
                (symbol.changed, symbol.place) = (None, None);
                self.put(symbol)
            }
            Expression::Cmp { register, op, value } => {
                let symbol = self.take(*register)?;
                self.cmp(&symbol, *op, value)
            }
            Expression::Range { register, inverted, from, to } => self.range(*register, *inverted, from, to),
            Expression::ByteOrder { source, register, op, .. } => {
                let mut symbol = self.remove(*source).filter(|held| held.constant.is_none())?;
                symbol.register = *register;
                symbol.form.interval = *op == ByteOrderOp::HostToNetwork;
                symbol.form.numbers = *op == ByteOrderOp::NetworkToHost;
                self.put(symbol)
            }
            Expression::Lookup { set, source, register, inverted } => {
                let is_masked = self.symbols.iter().any(|held| held.register == *source && held.mask.is_some());
                let (key, form) = self.take_key(*source, None)?;
                let set = self.set_text(set, form)?;
                match register {
                    None if *inverted => self.say_match(format!("{key} != {set}")),
                    None if is_masked => self.say_match(format!("{key} == {set}")),
                    None => self.say_match(format!("{key} {set}")),
                    Some(Register::VERDICT) => self.say(format!("{key} vmap {set}")),
                    Some(register) => {
                        let symbol = self.symbol(*register, NUMBER, format!("{key} map {set}"));
                        self.put(Symbol { length: None, form: self.form(), ..symbol })
                    }
                }
            }
            other => self.change(other),
        }
    }

    /// Those that set something.
    fn change(&mut self, expression: &Expression) -> Option<()> {
        match expression {
            Expression::PayloadSet { base, offset, length, source, .. } => {
                self.set_place(Place::Header(*base), *offset, *length, *source)
            }
            Expression::ExthdrSet { op, kind, offset, length, source } => {
                self.set_place(Place::Option(*op, *kind), *offset, *length, *source)
            }
            Expression::ExthdrReset { op, kind } => {
                let name = option_name(*op, *kind)?;
                self.say(format!("reset {name}"))
            }
            Expression::MetaSet { key, source } => {
                let symbol = self.take(*source)?;
                let value = symbol.right(meta_field(*key).data_type)?;
                self.say(format!("meta {} set {value}", key.name()?))
            }
            Expression::CtSet { key, direction, source } => {
                let symbol = self.take(*source)?;
                let value = symbol.right(ct_field(*key).data_type)?;
                self.say(format!("ct {}{} set {value}", direction_text(*direction), key.name()?))
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
            Expression::DynSet { set, op, key, data, timeout, inverted: false, expressions } => {
                if let Some((known, _)) = (self.known.sets)(set) {
                    self.name_constants(*key, &known.key_type);
                }
                let (key, form) = self.take_key(*key, *data)?;
                let data = match data {
                    Some(register) if self.symbols.iter().any(|held| held.constant.is_some()) => {
                        let types = match (self.known.sets)(set)?.0.data.as_ref()? {
                            MapData::Value(types) => types.fields().first().filter(|_| !types.is_concatenation())?,
                            _ => return None,
                        };
                        format!(" : {}", self.take(*register)?.right(types.data_type)?)
                    }
                    Some(register) => format!(" : {}", self.take_key(*register, None)?.0),
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
                let set = match (self.known.sets)(set) {
                    Some((meter, _)) if meter.flags.contains(SetFlags::ANONYMOUS) => {
                        let size = meter.size.map_or_else(String::new, |size| format!(" size {size}"));
                        format!("meter {}{size}", meter.key.name)
                    }
                    _ => format!("{} {}", op.name()?, self.set_text(set, form)?),
                };
                self.say(format!("{set} {{ {inside}{data} }}"))
            }
            Expression::FlowAdd { flowtable } => self.say(format!("flow add {}", set_name(flowtable))),
            Expression::ObjectReference { kind, name } => {
                self.say(format!("{} {}", kind.statement()?, quoted(name.as_str())))
            }
            Expression::ObjectMap { set, source } => {
                let (key, form) = self.take_key(*source, None)?;
                let word = match &(self.known.sets)(set)?.0.data {
                    Some(MapData::Object(kind)) => kind.statement()?,
                    _ => return None,
                };
                let set = self.set_text(set, form)?;
                self.say(format!("{word} {key} map {set}"))
            }
            other => self.act(other),
        }
    }

    /// Handles expressions that decide, count or pass on packets.
    fn act(&mut self, expression: &Expression) -> Option<()> {
        match expression {
            Expression::Verdict(verdict) => {
                let bound = match verdict {
                    Verdict::Jump(chain) => (self.known.bound)(chain).map(|rules| ("jump", rules)),
                    Verdict::Goto(chain) => (self.known.bound)(chain).map(|rules| ("goto", rules)),
                    _ => None,
                };
                let text = match bound {
                    Some((word, rules)) => format!("{word} {}", self.block(&rules)?),
                    None => verdict_text(verdict)?,
                };
                self.say(text)
            }
            Expression::Reject(reject) => self.reject(*reject),
            Expression::Log { prefix, group, snaplen, threshold, level, flags } => {
                let text = log_text(prefix.as_deref(), *group, *snaplen, *threshold, *level, *flags)?;
                self.say(text)
            }
            Expression::NoTrack => self.say("notrack"),
            Expression::Queue { first, count, flags } => {
                let last = first.checked_add(count.checked_sub(1)?)?;
                let to = if *count == 1 { first.to_string() } else { format!("{first}-{last}") };
                self.say(queue_text(&to, *flags)?)
            }
            Expression::QueueFrom { source, flags } => {
                let to = self.target(*source, DataType::INTEGER)?;
                self.say(queue_text(&to, *flags)?)
            }
            Expression::Duplicate { address: Some(address), device } => {
                let address = self.target_address(*address)?;
                let device = match device {
                    Some(device) => format!(" device {}", self.target(*device, DataType::IFACE_INDEX)?),
                    None => String::new(),
                };
                self.say(format!("dup to {address}{device}"))
            }
            Expression::Duplicate { address: None, device: Some(device) } => {
                let device = self.target(*device, DataType::IFACE_INDEX)?;
                self.say(format!("dup to {device}"))
            }
            Expression::Forward { device, address } => {
                let device = self.target(*device, DataType::IFACE_INDEX)?;
                match address {
                    None => self.say(format!("fwd to {device}")),
                    Some((family, address)) => {
                        let address = self.target_address(*address)?;
                        self.say(format!("fwd {family} to {address} device {device}"))
                    }
                }
            }
            Expression::Tproxy { family, address, port } => self.tproxy(*family, *address, *port),
            Expression::Synproxy { mss, window_scale, flags } => self.say(synproxy_text(*mss, *window_scale, *flags)?),
            other => {
                let text = stateful_text(other)?;
                self.say(text)
            }
        }
    }

    fn cmp(&mut self, symbol: &Symbol<'_>, op: CmpOp, value: &Value) -> Option<()> {
        if symbol.constant.is_some() {
            return None;
        }
        let zero = value.as_bytes().iter().all(|byte| *byte == 0);
        let data_type = symbol.data_type;
        let flags = [DataType::CT_STATE, DataType::CT_STATUS, DataType::CT_LABEL, DataType::TCP_FLAG];
        let is_flags = flags.contains(&data_type);
        if let (true, Some(mask)) = (is_flags, &symbol.mask) {
            // nft's syntax for: one of several bits is set, none is, or exactly these are.
            let bits = field_text(mask.as_bytes(), data_type, Form::PLAIN)?;
            let text = match (op, zero) {
                (CmpOp::Ne, true) => format!("{} {bits}", symbol.text),
                (CmpOp::Eq, true) if data_type != DataType::CT_LABEL => format!("{} ! {bits}", symbol.text),
                (CmpOp::Eq | CmpOp::Ne, false) => {
                    let value = field_text(value.as_bytes(), data_type, Form::PLAIN)?;
                    let not = if op == CmpOp::Ne { "!= " } else { "" };
                    match mask.as_bytes().iter().map(|byte| byte.count_ones()).sum::<u32>() {
                        1 => format!("{} & {bits} {} {value}", symbol.text, op.name()?),
                        _ => format!("{} {not}{value} / {bits}", symbol.text),
                    }
                }
                _ => return None,
            };
            return self.say_match(text);
        }
        if let (CmpOp::Eq | CmpOp::Ne, Some(mask)) = (op, &symbol.mask)
            && let Some(prefix) = masked_prefix(value.as_bytes(), mask.as_bytes(), data_type)
        {
            let not = if op == CmpOp::Ne { "!= " } else { "" };
            return self.say_match(format!("{} {not}{prefix}", symbol.text));
        }
        // For a prefix of whole bytes only those are compared.
        let right = prefix_text(value.as_bytes(), symbol.data_type)
            .filter(|_| matches!(op, CmpOp::Eq | CmpOp::Ne))
            .or_else(|| field_text(value.as_bytes(), symbol.data_type, symbol.form))?;
        // nft names a single flag only if all bits are compared.
        let bits = value.as_bytes().iter().map(|byte| byte.count_ones()).sum::<u32>();
        let right = match number(value.as_bytes(), data_type.byte_order()) {
            Some(number) if is_flags && bits > 1 => format!("{number:#x}"),
            _ => right,
        };
        let left = match prefix_text(value.as_bytes(), data_type) {
            Some(_) if symbol.mask.is_none() => symbol.text.clone(),
            _ => symbol.left()?,
        };
        if let (CmpOp::Eq, true, None, Some(place)) = (op, symbol.text.starts_with('@'), &symbol.mask, symbol.place)
            && self.say_fields(place, value.as_bytes()).is_some()
        {
            return Some(());
        }
        let place = self.statements.len();
        // Without an operator word, some of the bits are enough.
        match op {
            CmpOp::Eq if symbol.mask.is_none() && !is_flags => self.say_match(format!("{left} {right}"))?,
            op => self.say_match(format!("{left} {} {right}", op.name()?))?,
        }
        if op == CmpOp::Eq && symbol.mask.is_none() {
            self.follow(symbol.key, symbol.place, value.as_bytes(), place);
        }
        Some(())
    }

    fn reject(&mut self, reject: Reject) -> Option<()> {
        let is_ip6 = self.network == Some(Protocol::Ip6);
        match reject {
            // nft would add a match on TCP.
            Reject::TcpReset if self.transport != Some(Protocol::Tcp) => None,
            Reject::TcpReset => {
                // Where nft adds one, it is the rule's first match.
                if matches!(self.family, Family::Ip | Family::Ip6) {
                    self.leave_out(self.dependencies.transport.filter(|place| *place == 0));
                }
                self.say("reject with tcp reset")
            }
            // This is the default.
            Reject::Unreachable(IcmpCode::PortUnreachable) => self.say("reject"),
            Reject::Unreachable(code) => self.say(format!("reject with icmpx {}", code.name())),
            Reject::Icmp(code) => {
                let (protocol, codes, port) =
                    if is_ip6 { ("icmpv6", DataType::ICMPV6_CODE, 4) } else { ("icmp", DataType::ICMP_CODE, 3) };
                if code == port && matches!(self.family, Family::Ip | Family::Ip6) {
                    return self.say("reject");
                }
                self.leave_out(self.dependencies.network);
                self.say(format!("reject with {protocol} {}", field_text(&[code], codes, Form::PLAIN)?))
            }
        }
    }

    fn range(&mut self, register: Register, inverted: bool, from: &Value, to: &Value) -> Option<()> {
        let symbol = self.take(register)?;
        // The kernel compares byte by byte.
        let form = Form { interval: true, numbers: false, end: true, ..symbol.form };
        let text = |value: &Value| field_text(value.as_bytes(), symbol.data_type, form);
        let not = if inverted { "!= " } else { "" };
        let statement = format!("{} {not}{}-{}", symbol.left()?, text(from)?, text(to)?);
        self.say_match(statement)
    }
}

impl Symbol<'_> {
    /// Appends an operator.
    fn apply(&mut self, operator: Operator, sign: &str, right: &str) {
        let left = if self.operator > operator { format!("({})", self.text) } else { std::mem::take(&mut self.text) };
        self.text = format!("{left} {sign} {right}");
        self.operator = operator;
    }

    /// Text of a value that is compared, looked up or translated to.
    pub(super) fn left(&self) -> Option<String> {
        match (&self.constant, &self.mask) {
            (Some(_), _) => None,
            // Bytes without a name, or some bytes of an address.
            (None, None) => {
                let address = matches!(self.data_type, DataType::IPV4_ADDR | DataType::IPV6_ADDR);
                let is_whole = !address || self.length == Some(self.data_type.length());
                (is_whole && !self.text.is_empty()).then(|| self.text.clone())
            }
            (None, Some(mask)) => {
                let bytes = mask.as_bytes();
                let mask = match self.data_type {
                    DataType::MARK | DataType::IPV4_ADDR | DataType::IPV6_ADDR | DataType::ETHER_ADDR => {
                        field_text(bytes, self.data_type, Form::PLAIN)?
                    }
                    DataType::TCP_FLAG | DataType::CT_STATE | DataType::CT_STATUS => {
                        let words = field_text(bytes, self.data_type, Form { element: true, ..Form::PLAIN })?;
                        if words.contains('|') { format!("({words})") } else { words }
                    }
                    data_type if self.form.numbers || data_type.byte_order() == ByteOrder::Host => {
                        format!("{:#x}", number(bytes, ByteOrder::Host)?)
                    }
                    DataType::INTEGER if self.form.raw => format!("{:#x}", number(bytes, ByteOrder::Network)?),
                    _ => number(bytes, ByteOrder::Network).map_or_else(|| hex(bytes), |number| number.to_string()),
                };
                Some(format!("{} & {mask}", self.text))
            }
        }
    }

    /// Text of a value that is assigned.
    fn right(&self, data_type: DataType) -> Option<String> {
        match &self.constant {
            // Assigned values are in host byte order.
            Some(value) => field_text(value.as_bytes(), data_type, Form { numbers: true, ..self.form.plain() }),
            None => self.left(),
        }
    }
}

fn direction_text(direction: Option<Direction>) -> &'static str {
    match direction {
        None => "",
        Some(Direction::Original) => "original ",
        Some(Direction::Reply) => "reply ",
    }
}
