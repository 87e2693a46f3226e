//! Encodes tables, chains, rules, sets and objects.

use netlink_batch::{Be32, Be64, Encoder, NulStr};

use super::object::put_object_data;
use super::parts::{millis, put_expressions, put_name};
use crate::attrs::{
    ChainAttr, DeviceAttr, FlowtableAttr, FlowtableHookAttr, HookAttr, ListAttr, ObjAttr, RuleAttr, SetAttr,
    SetDescAttr, SetFieldAttr, TableAttr,
};
use crate::expr::put_expression_list;
use crate::model::{
    BaseChain, ByteOrder, Chain, ChainKey, Family, FieldTypes, Flowtable, FlowtableKey, MapData, Object, ObjectKey,
    Policy, Priority, Rule, Set, SetKey, SetPolicy, Table,
};
use crate::operand::Operand;
use crate::typing::{self, About};
use crate::uapi;
use crate::userdata;

macro_rules! keys {
    ($($put:ident: $key:ident as $table:path, $name:path;)*) => {
        $(pub(crate) fn $put(out: &mut Encoder, key: &$key) {
            put_name(out, $table, &key.table.name);
            put_name(out, $name, &key.name);
        })*
    };
}

keys! {
    put_chain_key: ChainKey as ChainAttr::TABLE, ChainAttr::NAME;
    put_chain_of_rule: ChainKey as RuleAttr::TABLE, RuleAttr::CHAIN;
    put_set_key: SetKey as SetAttr::TABLE, SetAttr::NAME;
    put_flowtable_key: FlowtableKey as FlowtableAttr::TABLE, FlowtableAttr::NAME;
    put_object_name: ObjectKey as ObjAttr::TABLE, ObjAttr::NAME;
}

pub(crate) fn put_object_key(out: &mut Encoder, key: &ObjectKey) {
    put_object_name(out, key);
    out.attr(ObjAttr::TYPE, &Be32(key.kind.number()));
}

fn put_userdata(out: &mut Encoder, kind: u16, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.attr(kind, &bytes);
    }
}

pub(crate) fn put_table(out: &mut Encoder, table: &Table) {
    put_name(out, TableAttr::NAME, &table.key.name);
    out.attr(TableAttr::FLAGS, &Be32(table.flags.bits()));
    let userdata = userdata::join_comment(table.comment.as_deref(), userdata::COMMENT, &[]);
    put_userdata(out, TableAttr::USERDATA, &userdata);
}

pub(crate) fn put_chain(out: &mut Encoder, chain: &Chain) {
    put_chain_key(out, &chain.key);
    if let Some(base) = &chain.base {
        put_base(out, base, chain.key.table.family);
    }
    if chain.bound {
        out.attr(ChainAttr::FLAGS, &Be32(uapi::NFT_CHAIN_BINDING));
    }
    let userdata = userdata::join_comment(chain.comment.as_deref(), userdata::COMMENT, &[]);
    put_userdata(out, ChainAttr::USERDATA, &userdata);
}

fn put_base(out: &mut Encoder, base: &BaseChain, family: Family) {
    out.attr(ChainAttr::TYPE, &NulStr::from(base.kind.name()));
    out.nest(ChainAttr::HOOK, |out| {
        // `check` has rejected hooks that the family does not have. The fallback is not a number of the kernel either.
        out.attr(HookAttr::HOOKNUM, &Be32(base.hook.number(family).unwrap_or(u32::MAX)));
        out.attr(HookAttr::PRIORITY, &Be32(base.priority.0.cast_unsigned()));
        match base.devices.as_slice() {
            [] => {}
            [one] if !one.ends_with('*') => out.attr(HookAttr::DEV, &NulStr::from(one.as_str())),
            many => put_devices(out, HookAttr::DEVS, many),
        }
    });
    out.attr(ChainAttr::POLICY, &Be32(u32::from(base.policy == Policy::Accept)));
}

/// Devices by name or by prefix.
fn put_devices(out: &mut Encoder, kind: u16, devices: &[String]) {
    out.nest(kind, |out| {
        for device in devices {
            match device.strip_suffix('*') {
                Some(prefix) => out.attr(DeviceAttr::PREFIX, &prefix.as_bytes()),
                None => out.attr(DeviceAttr::NAME, &NulStr::from(device.as_str())),
            }
        }
    });
}

pub(crate) fn put_flowtable(out: &mut Encoder, flowtable: &Flowtable) {
    put_flowtable_key(out, &flowtable.key);
    put_flowtable_hook(out, flowtable.priority, &flowtable.devices);
    out.attr(FlowtableAttr::FLAGS, &Be32(flowtable.flags.bits()));
}

/// The hook of a flow table, which is always ingress.
pub(crate) fn put_flowtable_hook(out: &mut Encoder, priority: Priority, devices: &[String]) {
    out.nest(FlowtableAttr::HOOK, |out| {
        out.attr(FlowtableHookAttr::NUM, &Be32(0));
        out.attr(FlowtableHookAttr::PRIORITY, &Be32(priority.0.cast_unsigned()));
        put_devices(out, FlowtableHookAttr::DEVS, devices);
    });
}

pub(crate) fn put_rule(out: &mut Encoder, chain: &ChainKey, rule: &Rule) {
    put_chain_of_rule(out, chain);
    put_expression_list(out, RuleAttr::EXPRESSIONS, &rule.expressions);
    put_userdata(
        out,
        RuleAttr::USERDATA,
        &userdata::join_comment(rule.comment.as_deref(), userdata::COMMENT, &rule.userdata),
    );
    if !rule.compat.is_empty() {
        out.nest(RuleAttr::COMPAT, |out| out.bytes(&rule.compat));
    }
}

pub(crate) fn put_set(out: &mut Encoder, set: &Set, id: u32) {
    put_set_key(out, &set.key);
    let number = |out: &mut Encoder, kind, value| out.attr(kind, &Be32(value));
    number(out, SetAttr::FLAGS, set.all_flags().bits());
    number(out, SetAttr::KEY_TYPE, set.key_type.number());
    number(out, SetAttr::KEY_LEN, set.key_type.length());
    match &set.data {
        None => {}
        Some(MapData::Verdict) => {
            number(out, SetAttr::DATA_TYPE, uapi::NFT_DATA_VERDICT);
            number(out, SetAttr::DATA_LEN, 0);
        }
        Some(MapData::Value(types)) => {
            number(out, SetAttr::DATA_TYPE, types.number());
            number(out, SetAttr::DATA_LEN, types.length());
        }
        Some(MapData::Object(kind)) => number(out, SetAttr::OBJ_TYPE, kind.number()),
    }
    number(out, SetAttr::ID, id);
    if set.policy == SetPolicy::Memory {
        number(out, SetAttr::POLICY, 1);
    }
    let concatenated = set.is_concatenated_interval();
    if concatenated || set.size.is_some() {
        out.nest(SetAttr::DESC, |out| {
            if let Some(size) = set.size {
                out.attr(SetDescAttr::SIZE, &Be32(size));
            }
            if concatenated {
                out.nest(SetDescAttr::CONCAT, |out| {
                    for field in set.key_type.fields() {
                        out.nest(ListAttr::ELEM, |out| out.attr(SetFieldAttr::LEN, &Be32(field.length)));
                    }
                });
            }
        });
    }
    if let Some(timeout) = set.timeout {
        out.attr(SetAttr::TIMEOUT, &Be64(millis(timeout)));
    }
    if let Some(interval) = set.gc_interval {
        number(out, SetAttr::GC_INTERVAL, u32::try_from(interval.as_millis()).unwrap_or(u32::MAX));
    }
    put_expressions(out, SetAttr::EXPR, SetAttr::EXPRESSIONS, &set.expressions);
    out.attr(SetAttr::USERDATA, &set_userdata(set).as_slice());
}

/// Userdata of a set: its own, otherwise the notes by which nft prints the elements.
pub(crate) fn set_userdata(set: &Set) -> Vec<u8> {
    let mut out = set.userdata.clone();
    if out.is_empty() {
        let of = |types: &FieldTypes, operands: &[Operand]| match operands {
            [one] if one.is_host_order() => ByteOrder::Host.number(),
            _ => types.byte_order().number(),
        };
        let order = of(&set.key_type, &set.key_typeof);
        userdata::put(&mut out, userdata::SET_KEY_BYTE_ORDER, &order.to_ne_bytes());
        if let Some(data) = &set.data {
            let order = if let MapData::Value(types) = data { of(types, &set.data_typeof) } else { 0 };
            userdata::put(&mut out, userdata::SET_DATA_BYTE_ORDER, &order.to_ne_bytes());
        }
    }
    if set.auto_merge {
        userdata::put(&mut out, userdata::SET_MERGE_ELEMENTS, &1_u32.to_ne_bytes());
    }
    if let Some(notes) = typing::put_operands(&set.key_typeof, About::Key) {
        userdata::put(&mut out, userdata::SET_KEY_TYPEOF, &notes);
        if set.data == Some(MapData::Verdict) {
            userdata::put(&mut out, userdata::SET_DATA_TYPEOF, &typing::put_verdict());
        }
    }
    if let Some(notes) = typing::put_operands(&set.data_typeof, About::Data) {
        userdata::put(&mut out, userdata::SET_DATA_TYPEOF, &notes);
    }
    if let Some(comment) = &set.comment {
        userdata::put_comment(&mut out, userdata::SET_COMMENT, comment);
    }
    out
}

pub(crate) fn put_object(out: &mut Encoder, object: &Object) {
    put_object_key(out, &object.key);
    out.nest(ObjAttr::DATA, |out| put_object_data(out, &object.data));
    let userdata = userdata::join_comment(object.comment.as_deref(), userdata::COMMENT, &[]);
    put_userdata(out, ObjAttr::USERDATA, &userdata);
}
