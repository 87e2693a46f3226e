//! Decodes tables, chains, rules, sets and objects.

use std::time::Duration;

use netlink_batch::{Attrs, Be32, Be64, NulStr, RawAttrs, WireError};

use crate::attrs::{
    ChainAttr, DeviceAttr, FlowtableAttr, FlowtableHookAttr, HookAttr, ListAttr, ObjAttr, RuleAttr, SetAttr,
    SetDescAttr, SetFieldAttr, TableAttr,
};
use crate::expr::{get_expression, get_expressions};
use crate::model::{
    BaseChain, Chain, ChainKey, ChainType, Family, FieldTypes, Flowtable, FlowtableFlags, FlowtableKey, Hook, MapData,
    Name, Object, ObjectKey, ObjectType, ObservedChain, ObservedFlowtable, ObservedObject, ObservedRule, ObservedSet,
    ObservedTable, Policy, Priority, Rule, Set, SetFlags, SetKey, SetPolicy, Table, TableFlags, TableKey,
};
use crate::typing::{self, About};
use crate::uapi;
use crate::userdata;
use crate::wire::object::get_object_data;
use crate::wire::parts::{get_key, get_name, missing, split};
use crate::wire::set_userdata;

/// Whether a message concerns a table, according to its first attribute. Messages about the whole rule set do not.
pub(crate) fn is_of_table(payload: &[u8], table: &TableKey) -> bool {
    let Ok((family, attributes)) = split(payload) else { return false };
    let named = RawAttrs::new(attributes).map_while(Result::ok).find(|attr| attr.kind() == 1);
    family == table.family
        && named.is_some_and(|attr| NulStr::new(attr.payload).as_bytes() == table.name.as_str().as_bytes())
}

pub(crate) fn get_table(payload: &[u8]) -> Result<ObservedTable, WireError> {
    let (family, attributes) = split(payload)?;
    let (mut found, mut flags, mut handle, mut references, mut owner, mut comment) = (None, 0, 0, 0, None, None);
    for attr in Attrs::<TableAttr<'_>>::new(attributes).iter() {
        match attr? {
            TableAttr::Name(text) => found = Some(get_name(text)),
            TableAttr::Flags(Be32(bits)) => flags = bits,
            TableAttr::Use(Be32(count)) => references = count,
            TableAttr::Handle(Be64(number)) => handle = number,
            TableAttr::Owner(Be32(port)) => owner = Some(port),
            TableAttr::Userdata(bytes) => comment = userdata::split_comment(bytes, userdata::COMMENT).0,
            TableAttr::Pad(_) | TableAttr::Unknown(_) => {}
        }
    }
    let key = TableKey { family, name: found.ok_or_else(|| missing("NFTA_TABLE_NAME"))? };
    let table = Table { key, flags: TableFlags::from_bits_retain(flags), comment };
    Ok(ObservedTable { table, handle, references, owner })
}

pub(crate) fn get_chain(payload: &[u8]) -> Result<ObservedChain, WireError> {
    let (family, attributes) = split(payload)?;
    let (mut table, mut found, mut handle, mut references, mut comment) = (None, None, 0, 0, None);
    let (mut hook, mut policy, mut kind, mut flags) = (None, Policy::Accept, None, 0);
    for attr in Attrs::<ChainAttr<'_>>::new(attributes).iter() {
        match attr? {
            ChainAttr::Table(text) => table = Some(get_name(text)),
            ChainAttr::Name(text) => found = Some(get_name(text)),
            ChainAttr::Handle(Be64(number)) => handle = number,
            ChainAttr::Hook(attrs) => hook = Some(attrs),
            ChainAttr::Policy(Be32(number)) => policy = if number == 0 { Policy::Drop } else { Policy::Accept },
            ChainAttr::Use(Be32(count)) => references = count,
            ChainAttr::Flags(Be32(bits)) => flags = bits,
            ChainAttr::Type(text) => kind = Some(ChainType::from_name(&String::from_utf8_lossy(text.as_bytes()))),
            ChainAttr::Userdata(bytes) => comment = userdata::split_comment(bytes, userdata::COMMENT).0,
            _ => {}
        }
    }
    let base = match (hook, kind) {
        (Some(hook), Some(kind)) => Some(get_base(hook, kind, policy, family)?),
        _ => None,
    };
    let (table, name) = get_key(family, (table, "NFTA_CHAIN_TABLE"), (found, "NFTA_CHAIN_NAME"))?;
    let (key, bound) = (ChainKey { table, name }, flags & uapi::NFT_CHAIN_BINDING != 0);
    Ok(ObservedChain { chain: Chain { key, base, comment, bound }, handle, references })
}

fn get_base<'a>(
    attrs: Attrs<'a, HookAttr<'a>>,
    kind: ChainType,
    policy: Policy,
    family: Family,
) -> Result<BaseChain, WireError> {
    let (mut hook, mut priority, mut devices) = (0, 0, Vec::new());
    for attr in attrs.iter() {
        match attr? {
            HookAttr::Hooknum(Be32(number)) => hook = number,
            HookAttr::Priority(Be32(number)) => priority = number.cast_signed(),
            HookAttr::Dev(device) => devices = vec![device_name(device.as_bytes())],
            HookAttr::Devs(list) => devices = get_devices(list)?,
            HookAttr::Unknown(_) => {}
        }
    }
    Ok(BaseChain { kind, hook: Hook::from_number(family, hook), priority: Priority(priority), policy, devices })
}

fn device_name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(NulStr::new(bytes).as_bytes()).into_owned()
}

fn get_devices(list: &[u8]) -> Result<Vec<String>, WireError> {
    let name = |attr| match attr {
        DeviceAttr::Name(text) => Some(device_name(text.as_bytes())),
        DeviceAttr::Prefix(bytes) => Some(device_name(bytes) + "*"),
        DeviceAttr::Unknown(_) => None,
    };
    let names = Attrs::<DeviceAttr<'_>>::new(list).iter().map(|attr| attr.map(name));
    names.filter_map(Result::transpose).collect()
}

pub(crate) fn get_flowtable(payload: &[u8]) -> Result<ObservedFlowtable, WireError> {
    let (family, attributes) = split(payload)?;
    let (mut table, mut found, mut handle, mut references, mut flags) = (None, None, 0, 0, 0);
    let (mut priority, mut devices) = (Priority::default(), Vec::new());
    for attr in Attrs::<FlowtableAttr<'_>>::new(attributes).iter() {
        match attr? {
            FlowtableAttr::Table(text) => table = Some(get_name(text)),
            FlowtableAttr::Name(text) => found = Some(get_name(text)),
            FlowtableAttr::Use(Be32(count)) => references = count,
            FlowtableAttr::Handle(Be64(number)) => handle = number,
            FlowtableAttr::Flags(Be32(bits)) => flags = bits,
            FlowtableAttr::Hook(hook) => {
                for attr in hook.iter() {
                    match attr? {
                        FlowtableHookAttr::Priority(Be32(number)) => priority = Priority(number.cast_signed()),
                        FlowtableHookAttr::Devs(list) => devices = get_devices(list)?,
                        FlowtableHookAttr::Num(_) | FlowtableHookAttr::Unknown(_) => {}
                    }
                }
            }
            FlowtableAttr::Pad(_) | FlowtableAttr::Unknown(_) => {}
        }
    }
    let (table, name) = get_key(family, (table, "NFTA_FLOWTABLE_TABLE"), (found, "NFTA_FLOWTABLE_NAME"))?;
    let (key, flags) = (FlowtableKey { table, name }, FlowtableFlags::from_bits_retain(flags));
    let flowtable = Flowtable { key, priority, devices, flags };
    Ok(ObservedFlowtable { flowtable, handle, references })
}

pub(crate) fn get_rule(payload: &[u8]) -> Result<ObservedRule, WireError> {
    let (family, attributes) = split(payload)?;
    let (mut table, mut chain, mut handle, mut rule) = (None, None, 0, Rule::default());
    for attr in Attrs::<RuleAttr<'_>>::new(attributes).iter() {
        match attr? {
            RuleAttr::Table(text) => table = Some(get_name(text)),
            RuleAttr::Chain(text) => chain = Some(get_name(text)),
            RuleAttr::Handle(Be64(number)) => handle = number,
            RuleAttr::Expressions(list) => rule.expressions = get_expressions(list)?,
            RuleAttr::Compat(bytes) => rule.compat = bytes.to_vec(),
            RuleAttr::Userdata(bytes) => {
                (rule.comment, rule.userdata) = userdata::split_comment(bytes, userdata::COMMENT);
            }
            _ => {}
        }
    }
    let (table, name) = get_key(family, (table, "NFTA_RULE_TABLE"), (chain, "NFTA_RULE_CHAIN"))?;
    Ok(ObservedRule { chain: ChainKey { table, name }, rule, handle })
}

#[derive(Default)]
struct SetParts<'a> {
    table: Option<Name>,
    name: Option<Name>,
    flags: u32,
    key: (u32, u32),
    data: (u32, u32),
    object: Option<u32>,
    desc: Option<Attrs<'a, SetDescAttr<'a>>>,
}

pub(crate) fn get_set(payload: &[u8]) -> Result<ObservedSet, WireError> {
    let (family, attributes) = split(payload)?;
    let mut parts = SetParts::default();
    let (mut handle, mut count, mut timeout, mut gc_interval, mut notes) = (0, None, None, None, &[][..]);
    let (mut policy, mut expressions, mut comment, mut rest) = (SetPolicy::Performance, Vec::new(), None, Vec::new());
    for attr in Attrs::<SetAttr<'_>>::new(attributes).iter() {
        match attr? {
            SetAttr::Table(text) => parts.table = Some(get_name(text)),
            SetAttr::Name(text) => parts.name = Some(get_name(text)),
            SetAttr::Flags(Be32(bits)) => parts.flags = bits,
            SetAttr::KeyType(Be32(number)) => parts.key.0 = number,
            SetAttr::KeyLen(Be32(length)) => parts.key.1 = length,
            SetAttr::DataType(Be32(number)) => parts.data.0 = number,
            SetAttr::DataLen(Be32(length)) => parts.data.1 = length,
            SetAttr::ObjType(Be32(number)) => parts.object = Some(number),
            SetAttr::Desc(desc) => parts.desc = Some(desc),
            SetAttr::Policy(Be32(number)) if number != 0 => policy = SetPolicy::Memory,
            SetAttr::Timeout(Be64(millis)) => timeout = Some(Duration::from_millis(millis)),
            SetAttr::GcInterval(Be32(millis)) => gc_interval = Some(Duration::from_millis(millis.into())),
            SetAttr::Userdata(bytes) => {
                notes = bytes;
                (comment, rest) = userdata::split_comment(bytes, userdata::SET_COMMENT);
            }
            SetAttr::Handle(Be64(number)) => handle = number,
            SetAttr::Expr(one) => expressions = vec![get_expression(one)?],
            SetAttr::Expressions(list) => expressions = get_expressions(list)?,
            SetAttr::Count(Be32(number)) => count = Some(number),
            _ => {}
        }
    }
    let (size, lengths) = parts.desc.map(get_desc).transpose()?.unwrap_or_default();
    let own = SetFlags::MAP | SetFlags::OBJECT | SetFlags::CONCATENATION;
    let flags = SetFlags::from_bits_retain(parts.flags);
    let data = if flags.contains(SetFlags::OBJECT) {
        Some(MapData::Object(ObjectType::from_number(parts.object.unwrap_or_default())))
    } else if !flags.contains(SetFlags::MAP) {
        None
    } else if parts.data.0 == uapi::NFT_DATA_VERDICT {
        Some(MapData::Verdict)
    } else {
        Some(MapData::Value(FieldTypes::from_kernel(parts.data.0, parts.data.1, &[])))
    };
    let (table, name) = get_key(family, (parts.table, "NFTA_SET_TABLE"), (parts.name, "NFTA_SET_NAME"))?;
    let key_type = FieldTypes::from_kernel(parts.key.0, parts.key.1, &lengths);
    let mut set = Set {
        data,
        flags: flags.difference(own),
        timeout,
        gc_interval,
        size,
        policy,
        expressions,
        comment,
        ..Set::new(SetKey { table, name }, key_type)
    };
    take_notes(&mut set, &rest);
    // Keep only what this crate would not write itself.
    let kept = std::mem::take(&mut set.userdata);
    if set_userdata(&set) != notes {
        set.userdata = kept;
    }
    Ok(ObservedSet { set, handle, count })
}

/// Separates nft's notes about keys and data from other userdata.
fn take_notes(set: &mut Set, userdata: &[u8]) {
    let whole: usize =
        userdata::items(userdata).map(|(_, value)| value.len().saturating_add(2)).fold(0, usize::saturating_add);
    if whole != userdata.len() {
        set.userdata = userdata.to_vec();
        return;
    }
    for (kind, value) in userdata::items(userdata) {
        let about = if kind == userdata::SET_DATA_TYPEOF { About::Data } else { About::Key };
        match (kind, typing::get_operands(value, about)) {
            (userdata::SET_KEY_TYPEOF, Some(operands)) => set.key_typeof = operands,
            (userdata::SET_DATA_TYPEOF, Some(operands)) => set.data_typeof = operands,
            (userdata::SET_DATA_TYPEOF, None)
                if !set.key_typeof.is_empty()
                    && set.data == Some(MapData::Verdict)
                    && value == typing::put_verdict() => {}
            _ if kind == userdata::SET_MERGE_ELEMENTS && value == 1_u32.to_ne_bytes() => set.auto_merge = true,
            _ => userdata::put(&mut set.userdata, kind, value),
        }
    }
}

/// Size and lengths of the fields.
fn get_desc<'a>(attrs: Attrs<'a, SetDescAttr<'a>>) -> Result<(Option<u32>, Vec<u32>), WireError> {
    let (mut size, mut lengths) = (None, Vec::new());
    for attr in attrs.iter() {
        match attr? {
            SetDescAttr::Size(Be32(number)) => size = Some(number),
            SetDescAttr::Concat(fields) => {
                for raw in RawAttrs::new(fields) {
                    let raw = raw?;
                    if raw.kind() != ListAttr::ELEM {
                        continue;
                    }
                    for field in Attrs::<SetFieldAttr<'_>>::new(raw.payload).iter() {
                        if let SetFieldAttr::Len(Be32(length)) = field? {
                            lengths.push(length);
                        }
                    }
                }
            }
            SetDescAttr::Unknown(_) => {}
        }
    }
    Ok((size, lengths))
}

pub(crate) fn get_object(payload: &[u8]) -> Result<ObservedObject, WireError> {
    let (family, attributes) = split(payload)?;
    let (mut table, mut found, mut kind, mut data, mut references, mut handle, mut comment) =
        (None, None, 0, &[][..], 0, 0, None);
    for attr in Attrs::<ObjAttr<'_>>::new(attributes).iter() {
        match attr? {
            ObjAttr::Table(text) => table = Some(get_name(text)),
            ObjAttr::Name(text) => found = Some(get_name(text)),
            ObjAttr::Type(Be32(number)) => kind = number,
            ObjAttr::Data(bytes) => data = bytes,
            ObjAttr::Use(Be32(count)) => references = count,
            ObjAttr::Handle(Be64(number)) => handle = number,
            ObjAttr::Userdata(bytes) => comment = userdata::split_comment(bytes, userdata::COMMENT).0,
            ObjAttr::Pad(_) | ObjAttr::Unknown(_) => {}
        }
    }
    let kind = ObjectType::from_number(kind);
    let data = get_object_data(kind, data)?;
    let (table, name) = get_key(family, (table, "NFTA_OBJ_TABLE"), (found, "NFTA_OBJ_NAME"))?;
    let key = ObjectKey { table, kind, name };
    Ok(ObservedObject { object: Object { key, data, comment }, handle, references })
}
