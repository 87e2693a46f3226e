//! nft's syntax, for people and for `nft -f -`.

mod fields;
mod header;
mod nat;
mod notes;
mod rule;
mod statement;
mod value;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::builder::L4Protocol;
use crate::expr::{Expression, SetReference, SynproxyFlags};
use crate::gather::Gather as _;
use crate::model::{
    ByteOrder, Chain, ChainKey, DataType, Element, ElementData, ElementExtras, ElementKey, Family, FieldTypes,
    Flowtable, FlowtableFlags, MapData, Name, Object, ObjectData, Rule, Set, SetFlags, SetPolicy, TableFlags, Value,
    Verdict, timeout_states,
};
use crate::snapshot::{SetContents, TableSnapshot};
use crate::transaction::{Elements, Operation, RulePlace, Transaction};
use crate::userdata;
use header::Protocol;
use notes::noted;
use rule::{Known, Writer};
use statement::{stateful_text, synproxy_text};
use value::{Form, Names, field_text, names_text, range_text, span_text, value_text};

/// Text in quotes. nft has no escapes, so inner quotes become apostrophes, and control characters, which could end the
/// line, become blanks.
fn quoted(text: &str) -> String {
    let plain: String = text.replace('"', "'").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("\"{plain}\"")
}

/// A verdict; `None` if nft cannot express it: names assigned by the kernel cannot be written.
fn verdict_text(verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::Other(_) => None,
        Verdict::Jump(chain) | Verdict::Goto(chain) if chain.as_str().starts_with("__chain") => None,
        known => Some(known.to_string()),
    }
}

/// A duration as nft writes it: `1d2h3m4s5ms`.
fn duration(time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    let mut rest = millis;
    for (unit, length) in [("d", 86_400_000_u64), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        let count = rest.checked_div(length).unwrap_or_default();
        rest = rest.checked_rem(length).unwrap_or_default();
        if count > 0 {
            let _infallible = write!(text, "{count}{unit}");
        }
    }
    text
}

/// Form of the values of a named set's keys.
fn form<'a>(set: &Set, names: Option<Names<'a>>) -> Form<'a> {
    let mut form = Form { numbers: !set.key_typeof.is_empty(), names, ..Form::PLAIN };
    let fields = noted(set, userdata::SET_KEY_TYPEOF).unwrap_or_default();
    for ((place, noted), length) in fields.into_iter().enumerate().zip(&mut form.lengths) {
        form.host_fields |= u16::from(noted.is_host_order) << place;
        form.raw_fields |= u16::from(noted.is_raw) << place;
        // Longer fields have no padding that matters.
        *length = u8::try_from(noted.length).ok().filter(|length| *length < 4).unwrap_or(0);
    }
    form
}

/// An element, as written between braces.
fn element_text(set: &Set, element: &Element, form: Form<'_>) -> Option<String> {
    let form = Form { interval: set.flags.contains(SetFlags::INTERVAL), element: true, ..form };
    let types = &set.key_type;
    let mut text = match &element.key {
        ElementKey::CatchAll => "*".to_owned(),
        ElementKey::Value(value) => value_text(value, types, form)?,
        ElementKey::Range(ends) => {
            let (first, last) = &**ends;
            match types.fields() {
                _ if types.is_concatenation() => range_text(first, last, types, form)?,
                fields if fields.iter().any(|field| field.data_type == DataType::IFNAME) => {
                    names_text(first.as_bytes(), last.as_bytes())?
                }
                [field] => span_text(first.as_bytes(), last.as_bytes(), field.data_type, form.of_field(0))?,
                _ => return None,
            }
        }
        ElementKey::End(_) => return None,
    };
    let ElementExtras { timeout, expressions, comment, .. } = element.extras();
    if let Some(timeout) = *timeout {
        let _infallible = write!(text, " timeout {}", duration(timeout));
    }
    for expression in expressions {
        let _infallible = write!(text, " {}", stateful_text(expression)?);
    }
    if let Some(comment) = comment {
        let _infallible = write!(text, " comment {}", quoted(comment));
    }
    match (&element.data, &set.data) {
        (None, _) => {}
        (Some(ElementData::Verdict(verdict)), _) => {
            let _infallible = write!(text, " : {}", verdict_text(verdict)?);
        }
        (Some(ElementData::Value(value)), Some(MapData::Value(types))) => {
            let numbers = form.data_numbers || !set.data_typeof.is_empty();
            let form = Form { numbers, ..form.plain() };
            let data = match data_types(types) {
                (types, true) => {
                    let (first, last) = value.as_bytes().split_at_checked(value.len() / 2)?;
                    range_text(&Value::of(first), &Value::of(last), &types, form)?
                }
                (types, false) => value_text(value, &types, form)?,
            };
            let _infallible = write!(text, " : {data}");
        }
        (Some(ElementData::Object(name)), _) => {
            let _infallible = write!(text, " : {}", quoted(name.as_str()));
        }
        (Some(ElementData::Value(_)), _) => return None,
    }
    Some(text)
}

/// Types of a map's data, and whether each value is a range.
fn data_types(types: &FieldTypes) -> (FieldTypes, bool) {
    if let [field] = types.fields() {
        let half = FieldTypes::from_kernel(field.data_type.0, field.length / 2, &[]);
        let is_one = half.length() > 0 && half.length() == field.data_type.length();
        if field.length % 2 == 0 && (half.is_concatenation() || is_one) {
            return (half, true);
        }
    }
    (types.clone(), false)
}

/// Elements in braces (`None` if there are none), and the number of those that nft cannot express.
fn braces<'a>(set: &Set, elements: impl IntoIterator<Item = &'a Element>, form: Form<'_>) -> (Option<String>, usize) {
    let mut wordless = 0_usize;
    let texts: Vec<String> = elements
        .into_iter()
        .filter_map(|element| {
            let text = element_text(set, element, form);
            wordless = wordless.saturating_add(usize::from(text.is_none()));
            text
        })
        .collect();
    ((!texts.is_empty()).then(|| format!("{{ {} }}", texts.join(", "))), wordless)
}

/// Elements in nft's order: by number, names and concatenations as host-order numbers (`expr_msort_cmp`).
fn in_order<'a>(set: &Set, elements: &'a [Element], form: Form<'_>) -> Vec<&'a Element> {
    let mut sorted: Vec<&Element> = elements.iter().collect();
    if set.flags.contains(SetFlags::INTERVAL) {
        return sorted;
    }
    let is_network = match set.key_type.fields() {
        [field] if field.data_type == DataType::INTEGER => !form.numbers,
        [field] => field.data_type.byte_order() == ByteOrder::Network,
        _ => false,
    };
    let reverse = !is_network && cfg!(target_endian = "little");
    sorted.sort_by_cached_key(|element| {
        let mut bytes = element.key.start().map_or_else(Vec::new, |value| value.as_bytes().to_vec());
        if reverse {
            bytes.reverse();
        }
        (element.key == ElementKey::CatchAll, bytes)
    });
    sorted
}

/// The elements of an anonymous set; `None` if nft cannot express one of them.
fn anonymous_braces(set: &Set, elements: &[Element], form: Form<'_>) -> Option<String> {
    match braces(set, in_order(set, elements, form), form) {
        (text, 0) => text,
        _ => None,
    }
}

/// The lines in a set's braces, without the elements. `None` if nft cannot express its types or expressions.
fn set_lines(set: &Set) -> Option<Vec<String>> {
    let mut lines = vec![typeof_line(set).or_else(|| type_line(set))?];
    let named = [
        (SetFlags::CONSTANT, "constant"),
        (SetFlags::INTERVAL, "interval"),
        (SetFlags::DYNAMIC, "dynamic"),
        (SetFlags::TIMEOUT, "timeout"),
    ];
    let flags: Vec<&str> = named.iter().filter(|(flag, _)| set.flags.contains(*flag)).map(|(_, name)| *name).collect();
    if !flags.is_empty() {
        lines.push(format!("flags {}", flags.join(",")));
    }
    if set.auto_merge {
        lines.push("auto-merge".to_owned());
    }
    if let Some(size) = set.size {
        lines.push(format!("size {size}"));
    }
    if set.policy == SetPolicy::Memory {
        lines.push("policy memory".to_owned());
    }
    if let Some(timeout) = set.timeout {
        lines.push(format!("timeout {}", duration(timeout)));
    }
    if let Some(interval) = set.gc_interval {
        lines.push(format!("gc-interval {}", duration(interval)));
    }
    let each: Vec<String> = set.expressions.iter().map(stateful_text).collect::<Option<_>>()?;
    if !each.is_empty() {
        lines.push(each.join(" "));
    }
    if let Some(comment) = &set.comment {
        lines.push(format!("comment {}", quoted(comment)));
    }
    Some(lines)
}

/// The types of keys and data, if nft has names for all of them.
fn type_line(set: &Set) -> Option<String> {
    let key = set.key_type.has_names().then_some(&set.key_type)?;
    match &set.data {
        None => Some(format!("type {key}")),
        Some(MapData::Verdict) => Some(format!("type {key} : verdict")),
        Some(MapData::Value(types)) => {
            let (types, is_range) = data_types(types);
            types.has_names().then(|| format!("type {key} : {}{types}", interval_word(is_range)))
        }
        Some(MapData::Object(kind)) => Some(format!("type {key} : {}", kind.name()?)),
    }
}

/// The `typeof` line of a set. `None` unless all operands of keys and data are known.
fn typeof_line(set: &Set) -> Option<String> {
    let noted = |kind| {
        let words: Vec<String> = noted(set, kind)?.into_iter().map(|one| one.text).collect();
        Some(words.join(" . "))
    };
    let key = rule::operands_text(&set.key_typeof, None).or_else(|| noted(userdata::SET_KEY_TYPEOF))?;
    match &set.data {
        None => Some(format!("typeof {key}")),
        Some(MapData::Verdict) => Some(format!("typeof {key} : verdict")),
        Some(MapData::Value(types)) => {
            let data = rule::operands_text(&set.data_typeof, Some(Protocol::Tcp))
                .or_else(|| noted(userdata::SET_DATA_TYPEOF))?;
            Some(format!("typeof {key} : {}{data}", interval_word(data_types(types).1)))
        }
        Some(MapData::Object(kind)) => Some(format!("typeof {key} : {}", kind.name()?)),
    }
}

/// nft's keyword for a map whose data are ranges.
fn interval_word(is_range: bool) -> &'static str {
    if is_range { "interval " } else { "" }
}

fn wordless_set(set: &Set) -> String {
    format!("{} {} of a kind that nft has no words for", set_word(set), set.key)
}

fn set_word(set: &Set) -> &'static str {
    if set.data.is_some() { "map" } else { "set" }
}

/// The line in a base chain's braces, for its hook.
fn base_line(chain: &Chain) -> Option<String> {
    let base = chain.base.as_ref()?;
    let devices: Vec<String> = base.devices.iter().map(|device| quoted(device)).collect();
    let devices = match devices.as_slice() {
        [] => String::new(),
        [one] => format!(" device {one}"),
        many => format!(" devices = {{ {} }}", many.join(", ")),
    };
    let (kind, hook, priority) = (base.kind.name(), base.hook, base.priority.0);
    Some(format!("type {kind} hook {hook}{devices} priority {priority}; policy {};", base.policy))
}

/// The lines in an object's braces.
fn object_lines(object: &Object) -> Option<Vec<String>> {
    let protocol = |protocol: &L4Protocol| field_text(&[protocol.0], DataType::INET_PROTO, Form::PLAIN);
    Some(match &object.data {
        ObjectData::Counter { packets, bytes } => vec![format!("packets {packets} bytes {bytes}")],
        ObjectData::CtHelper { helper, family, protocol: of } => {
            vec![format!("type {} protocol {}", quoted(helper), protocol(of)?), format!("l3proto {family}")]
        }
        ObjectData::CtTimeout { family, protocol: of, policy } => {
            // nft has no words for other states.
            let states = Some(timeout_states(*of)).filter(|states| !states.is_empty())?;
            let given = states.iter().filter_map(|(_, state, default)| Some((state, default, policy.get(*state)?)));
            // Missing states get nft's default, not the kernel's, once nft has parsed the text.
            let said = given.filter(|(_, default, time)| time.as_secs() != **default);
            let said: Vec<String> = said.map(|(state, _, time)| format!("{state} : {}", time.as_secs())).collect();
            // nft prints an object without states but cannot parse it.
            let policy = (!said.is_empty()).then(|| format!("policy = {{ {} }}", said.join(", ")));
            let protocols = [format!("protocol {}", protocol(of)?), format!("l3proto {family}")];
            protocols.into_iter().chain(policy).collect()
        }
        ObjectData::CtExpectation { family, protocol: of, port, timeout, size } => vec![
            format!("protocol {}", protocol(of)?),
            format!("dport {port}"),
            format!("timeout {}", duration(Duration::from_millis((*timeout).into()))),
            format!("size {size}"),
            format!("l3proto {family}"),
        ],
        ObjectData::Synproxy { mss, window_scale, flags } => {
            let rest = flags.difference(SynproxyFlags::MSS | SynproxyFlags::WSCALE);
            let words = synproxy_text(0, 0, rest)?.split_off("synproxy".len());
            // nft always writes both.
            let both = flags.contains(SynproxyFlags::MSS | SynproxyFlags::WSCALE);
            let lines = both.then(|| vec![format!("mss {mss}"), format!("wscale {window_scale}")])?;
            lines.into_iter().chain(Some(words.trim().to_owned()).filter(|words| !words.is_empty())).collect()
        }
        ObjectData::Secmark { context } => vec![quoted(context)],
        other => vec![stateful_text(&other.to_expression()?)?.split_once(' ')?.1.to_owned()],
    })
}

/// The lines in a flow table's braces.
fn flowtable_lines(flowtable: &Flowtable) -> Option<Vec<String>> {
    let known = FlowtableFlags::HW_OFFLOAD | FlowtableFlags::COUNTER;
    if !flowtable.flags.difference(known).is_empty() {
        return None;
    }
    let devices: Vec<String> = flowtable.devices.iter().map(|device| quoted(device)).collect();
    let lines = [
        Some(format!("hook ingress priority {}", flowtable.priority.0)),
        (!devices.is_empty()).then(|| format!("devices = {{ {} }}", devices.join(", "))),
        flowtable.flags.contains(FlowtableFlags::HW_OFFLOAD).then(|| "flags offload".to_owned()),
        flowtable.flags.contains(FlowtableFlags::COUNTER).then(|| "counter".to_owned()),
    ];
    Some(lines.into_iter().flatten().collect())
}

impl Rule {
    /// The rule in nft's syntax, for a table of this family. `None` if nft cannot express it. nft cannot express
    /// registers that keep a value from one statement to another, and dates with fractions of a second. The same holds
    /// for a TCP reset without a match on TCP, and for expressions that this crate keeps as bytes. Sets, chains and
    /// meters of a rule, and maps of objects, can only be expressed in the text of a whole table.
    ///
    /// Indexes of devices (except `lo`), device groups, realms, marks, hours and dates are printed as numbers, which
    /// have the same meaning on every host. [`Rule::to_nft_named`] prints their names.
    pub fn to_nft(&self, family: Family) -> Option<String> {
        self.text(family, Known::nothing(), None)
    }

    /// Like [`Rule::to_nft`], with a host's names for numbers, as `nft list` prints them on that host. There nft parses
    /// it back. On another host a name may be another number, or none.
    ///
    /// `names` gets a number and its type. It returns the name without quotes, or `None` to keep the number:
    ///
    /// | type | number | where nft looks it up |
    /// | --- | --- | --- |
    /// | [`DataType::IFACE_INDEX`] | index of a device | the network namespace |
    /// | [`DataType::DEVICE_GROUP`] | group of devices | `/etc/iproute2/group` |
    /// | [`DataType::REALM`] | realm of a route | `/etc/iproute2/rt_realms` |
    /// | [`DataType::MARK`] | mark | `/etc/iproute2/rt_marks` |
    /// | [`DataType::HOUR`] | seconds since midnight, UTC | its time zone: `10:00`, `10:00:01` |
    /// | [`DataType::TIME_DATE`] | nanoseconds since 1970, UTC | its time zone: `2030-01-01 10:00:00` |
    ///
    /// A name with quotes or control characters, which nft could not parse, is ignored.
    ///
    /// ```
    /// use nftables::expr::{CmpOp, Expression, MetaKey, Register};
    /// use nftables::{DataType, Family, Rule, Value};
    ///
    /// let register = Register::FIRST;
    /// let compared = Expression::Cmp { register, op: CmpOp::Eq, value: Value::new(&7_u32.to_ne_bytes())? };
    /// let rule = Rule::new(vec![Expression::Meta { key: MetaKey::Iif, register }, compared]);
    /// assert_eq!(rule.to_nft(Family::Inet).as_deref(), Some("iif 7"));
    /// let names = |of, number| (of == DataType::IFACE_INDEX && number == 7).then(|| "eth0".to_owned());
    /// assert_eq!(rule.to_nft_named(Family::Inet, &names).as_deref(), Some("iif \"eth0\""));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_nft_named(&self, family: Family, names: &dyn Fn(DataType, u64) -> Option<String>) -> Option<String> {
        self.text(family, Known::nothing(), Some(Names(names)))
    }

    fn text<'a>(&self, family: Family, known: Known<'a>, names: Option<Names<'a>>) -> Option<String> {
        if !self.compat.is_empty() {
            return None;
        }
        let mut text = Writer::new(family, known, names).write(&self.expressions)?;
        if let Some(comment) = &self.comment {
            let _infallible = write!(text, " comment {}", quoted(comment));
        }
        Some(text)
    }
}

/// Text for a rule that nft cannot express: a comment that names its expressions.
fn wordless(expressions: &[Expression]) -> String {
    let names: Vec<&str> = expressions.iter().map(Expression::name).collect();
    format!("# a rule that nft has no words for: {}", names.join(", "))
}

impl fmt::Display for TableSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(None, f)
    }
}

impl TableSnapshot {
    /// The table as it prints, with a host's names for numbers ([`Rule::to_nft_named`]).
    pub fn to_nft_named(&self, names: &dyn Fn(DataType, u64) -> Option<String>) -> String {
        let mut text = String::new();
        let _infallible = self.write(Some(Names(names)), &mut text);
        text
    }

    fn write(&self, names: Option<Names<'_>>, f: &mut dyn fmt::Write) -> fmt::Result {
        let table = &self.table.table;
        writeln!(f, "table {} {{", table.key)?;
        if let Some(comment) = &table.comment {
            writeln!(f, "\tcomment {}", quoted(comment))?;
        }
        if table.flags.contains(TableFlags::DORMANT) {
            writeln!(f, "\tflags dormant")?;
        }
        if self.left_out > 0 {
            writeln!(f, "\t# {} parts that are not in the snapshot", self.left_out)?;
        }
        for observed in &self.objects {
            let object = &observed.object;
            let (Some(word), Some(lines)) = (object.key.kind.name(), object_lines(object)) else {
                writeln!(f, "\t# object {} of a kind that nft has no words for", object.key.name)?;
                continue;
            };
            writeln!(f, "\t{word} {} {{", object.key.name)?;
            if let Some(comment) = &object.comment {
                writeln!(f, "\t\tcomment {}", quoted(comment))?;
            }
            lines.iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
            writeln!(f, "\t}}")?;
        }
        for SetContents { set, elements } in &self.sets {
            let set = &set.set;
            if set.flags.contains(SetFlags::ANONYMOUS) {
                continue;
            }
            let Some(lines) = set_lines(set) else {
                writeln!(f, "\t# {}", wordless_set(set))?;
                continue;
            };
            writeln!(f, "\t{} {} {{", set_word(set), set.key.name)?;
            lines.iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
            let form = form(set, names);
            let (text, wordless) = braces(set, in_order(set, elements, form), form);
            if let Some(text) = text {
                writeln!(f, "\t\telements = {text}")?;
            }
            if wordless > 0 {
                writeln!(f, "\t\t# {wordless} elements that nft has no words for")?;
            }
            writeln!(f, "\t}}")?;
        }
        for observed in &self.flowtables {
            let flowtable = &observed.flowtable;
            let Some(lines) = flowtable_lines(flowtable) else {
                writeln!(f, "\t# flow table {} with flags that nft has no words for", flowtable.key.name)?;
                continue;
            };
            writeln!(f, "\tflowtable {} {{", flowtable.key.name)?;
            lines.iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
            writeln!(f, "\t}}")?;
        }
        // By name, and rules by chain: there may be tens of thousands.
        let sets: BTreeMap<_, _> = self.sets.iter().map(|contents| (&contents.set.set.key.name, contents)).gather();
        let sets = |wanted: &SetReference| {
            let found = sets.get(&wanted.name)?;
            Some((&found.set.set, Cow::Borrowed(found.elements.as_slice())))
        };
        let mut rules: BTreeMap<&ChainKey, Vec<&Rule>> = BTreeMap::new();
        self.rules.iter().for_each(|found| rules.entry(&found.chain).or_default().push(&found.rule));
        let bound = self.chains.iter().map(|found| &found.chain).filter(|chain| chain.bound).map(|chain| &chain.key);
        let bound: BTreeMap<_, _> = bound.map(|key| (&key.name, key)).gather();
        let bound = |name: &Name| Some(rules.get(bound.get(name)?).cloned().unwrap_or_default());
        let known = Known { sets: &sets, bound: &bound, depth: 0 };
        for chain in self.chains.iter().map(|found| &found.chain).filter(|chain| !chain.bound) {
            writeln!(f, "\tchain {} {{", chain.key.name)?;
            if let Some(comment) = &chain.comment {
                writeln!(f, "\t\tcomment {}", quoted(comment))?;
            }
            if let Some(line) = base_line(chain) {
                writeln!(f, "\t\t{line}")?;
            }
            for rule in rules.get(&chain.key).into_iter().flatten() {
                let text = rule.text(table.key.family, known, names);
                writeln!(f, "\t\t{}", text.unwrap_or_else(|| wordless(&rule.expressions)))?;
            }
            writeln!(f, "\t}}")?;
        }
        writeln!(f, "}}")
    }
}

fn block(lines: &[String]) -> String {
    lines.iter().fold(String::from("{ "), |text, line| text + line + "; ") + "}"
}

/// Commands, one per line, for `nft -f -`.
impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What rules refer to: sets by name, anonymous ones by number, and the rules of chains that are bound to a rule.
        let (mut named, mut anonymous, mut bound) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for operation in &self.operations {
            match operation {
                Operation::AddElements(of, _) if of.set.flags.contains(SetFlags::ANONYMOUS) => {
                    anonymous.entry(of.id).or_insert(of);
                }
                Operation::AddSet(set, ..) if !set.flags.contains(SetFlags::ANONYMOUS) => {
                    named.entry(&set.key.name).or_insert(set);
                }
                Operation::AddChain(chain, _) if chain.bound => drop(bound.insert(&chain.key.name, Vec::new())),
                _ => {}
            }
        }
        let mut others = Vec::with_capacity(self.operations.len());
        for operation in &self.operations {
            match operation {
                Operation::AddRule(chain, rule, _) if bound.contains_key(&chain.name) => {
                    bound.entry(&chain.name).or_default().push(rule);
                }
                other => others.push(other),
            }
        }
        let sets = |wanted: &SetReference| {
            let of = anonymous.get(&wanted.id).filter(|of| of.id.is_some());
            let of = of.map(|of| (&*of.set, Cow::Owned(of.elements.iter().collect())));
            of.or_else(|| Some((*named.get(&wanted.name)?, Cow::default())))
        };
        let known = Known { sets: &sets, bound: &|name| bound.get(name).cloned(), depth: 0 };
        others.into_iter().try_for_each(|operation| operation.write(known, f))
    }
}

impl Operation {
    fn write(&self, known: Known<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::transaction::Present;
        let verb = |present: &Present| if *present == Present::Keep { "add" } else { "create" };
        let rule_text =
            |family: Family, rule: &Rule| rule.text(family, known, None).ok_or_else(|| wordless(&rule.expressions));
        match self {
            Operation::AddTable(table, present) => {
                let comment = table.comment.as_ref().map(|comment| format!("comment {}", quoted(comment)));
                let dormant = table.flags.contains(TableFlags::DORMANT).then(|| "flags dormant".to_owned());
                let lines: Vec<String> = comment.into_iter().chain(dormant).collect();
                write!(f, "{} table {}", verb(present), table.key)?;
                if lines.is_empty() { writeln!(f) } else { writeln!(f, " {}", block(&lines)) }
            }
            Operation::DeleteTable(key) => writeln!(f, "delete table {key}"),
            Operation::FlushTable(key) => writeln!(f, "flush table {key}"),
            Operation::AddChain(chain, _) if chain.bound => Ok(()),
            Operation::AddChain(chain, present) => {
                let mut lines: Vec<String> = Vec::new();
                if let Some(line) = base_line(chain) {
                    lines.push(line.trim_end_matches(';').to_owned());
                }
                if let Some(comment) = &chain.comment {
                    lines.push(format!("comment {}", quoted(comment)));
                }
                write!(f, "{} chain {}", verb(present), chain.key)?;
                if lines.is_empty() { writeln!(f) } else { writeln!(f, " {}", block(&lines)) }
            }
            Operation::DeleteChain(key) => writeln!(f, "delete chain {key}"),
            Operation::FlushChain(key) => writeln!(f, "flush chain {key}"),
            Operation::AddRule(key, rule, place) => match rule_text(key.table.family, rule) {
                Err(comment) => writeln!(f, "{comment} (chain {key})"),
                Ok(text) => match place {
                    RulePlace::Last => writeln!(f, "add rule {key} {text}"),
                    RulePlace::First => writeln!(f, "insert rule {key} {text}"),
                    RulePlace::After(handle) => writeln!(f, "add rule {key} position {handle} {text}"),
                    RulePlace::Before(handle) => writeln!(f, "insert rule {key} position {handle} {text}"),
                },
            },
            Operation::ReplaceRule(key, handle, rule) => match rule_text(key.table.family, rule) {
                Err(comment) => writeln!(f, "{comment} (chain {key}, handle {handle})"),
                Ok(text) => writeln!(f, "replace rule {key} handle {handle} {text}"),
            },
            Operation::DeleteRule(key, handle) => writeln!(f, "delete rule {key} handle {handle}"),
            Operation::AddSet(set, _, _) if set.flags.contains(SetFlags::ANONYMOUS) => Ok(()),
            Operation::AddSet(set, _, present) => match set_lines(set) {
                Some(lines) => writeln!(f, "{} {} {} {}", verb(present), set_word(set), set.key, block(&lines)),
                None => writeln!(f, "# {}", wordless_set(set)),
            },
            Operation::DeleteSet(key) => writeln!(f, "delete set {key}"),
            Operation::FlushSet(key, word) => writeln!(f, "flush {word} {key}"),
            Operation::AddElements(elements, _) if elements.set.flags.contains(SetFlags::ANONYMOUS) => Ok(()),
            Operation::AddElements(elements, present) => elements.command(verb(present), f),
            Operation::DeleteElements(elements) => elements.command("delete", f),
            Operation::AddObject(object, present) => {
                let (verb, key) = (verb(present), &object.key);
                match (key.kind.name(), object_lines(object)) {
                    (Some(word), Some(lines)) => {
                        let comment = object.comment.as_ref().map(|comment| format!("comment {}", quoted(comment)));
                        let lines: Vec<String> = comment.into_iter().chain(lines).collect();
                        writeln!(f, "{verb} {word} {key} {}", block(&lines))
                    }
                    _ => writeln!(f, "# object {key} of a kind that nft has no words for"),
                }
            }
            Operation::AddFlowtable(flowtable, present) => match flowtable_lines(flowtable) {
                Some(lines) => writeln!(f, "{} flowtable {} {}", verb(present), flowtable.key, block(&lines)),
                None => writeln!(f, "# flow table {} with flags that nft has no words for", flowtable.key),
            },
            Operation::DeleteFlowtable(key) => writeln!(f, "delete flowtable {key}"),
            Operation::DeleteFlowtableDevices(flowtable) => {
                let lines = flowtable_lines(&Flowtable { flags: FlowtableFlags::empty(), ..flowtable.clone() });
                writeln!(f, "delete flowtable {} {}", flowtable.key, block(&lines.unwrap_or_default()))
            }
            Operation::DeleteObject(key) => {
                writeln!(f, "delete {} {key}", key.kind.name().unwrap_or("object"))
            }
        }
    }
}

impl Elements {
    fn command(&self, verb: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements: Vec<Element> = self.elements.iter().collect();
        let (text, wordless) = braces(&self.set, &elements, form(&self.set, None));
        if self.elements.is_empty() {
            writeln!(f, "# no elements for set {}", self.set.key)?;
        }
        if wordless > 0 {
            writeln!(f, "# {wordless} elements of set {} that nft has no words for", self.set.key)?;
        }
        text.map_or(Ok(()), |text| writeln!(f, "{verb} element {} {text}", self.set.key))
    }
}

/// A set's name as written in rules.
fn set_name(name: &Name) -> String {
    format!("@{name}")
}
