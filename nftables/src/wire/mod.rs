//! Converts between the model and attributes.

mod element;
mod fields;
mod get;
mod object;
mod put;

pub(crate) use element::{ElementForm, get_elements, pair_intervals, put_element};
pub(crate) use fields::{Field, listed, put_field};
pub(crate) use get::{
    get_chain, get_flowtable, get_generation, get_object, get_rule, get_set, get_table, is_of_table, split,
};
pub(crate) use put::{
    put_chain, put_flowtable, put_flowtable_hook, put_object, put_rule, put_set, put_table, set_userdata,
};

use netlink_batch::{Be32, Encoder, NulStr};

use crate::attrs::{ChainAttr, ElemListAttr, FlowtableAttr, ObjAttr, RuleAttr, SetAttr};
use crate::model::{ChainKey, FlowtableKey, Name, ObjectKey, SetKey};

pub(crate) fn put_name(out: &mut Encoder, kind: u16, name: &Name) {
    out.attr(kind, &NulStr::from(name.as_str()));
}

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
    put_set_of_elements: SetKey as ElemListAttr::TABLE, ElemListAttr::SET;
    put_flowtable_key: FlowtableKey as FlowtableAttr::TABLE, FlowtableAttr::NAME;
    put_object_name: ObjectKey as ObjAttr::TABLE, ObjAttr::NAME;
}

pub(crate) fn put_object_key(out: &mut Encoder, key: &ObjectKey) {
    put_object_name(out, key);
    out.attr(ObjAttr::TYPE, &Be32(key.kind.number()));
}
