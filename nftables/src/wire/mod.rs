//! Converts between the model and attributes.

mod element;
mod get;
mod object;
mod put;

pub(crate) use element::{ElementForm, get_elements, pair_intervals, put_element};
pub(crate) use get::{
    get_chain, get_flowtable, get_generation, get_object, get_rule, get_set, get_table, is_of_table, split,
};
pub(crate) use put::{
    put_chain, put_flowtable, put_flowtable_hook, put_object, put_rule, put_set, put_table, set_userdata,
};

use netlink_batch::{Encoder, NulStr};

use crate::model::Name;

pub(crate) fn put_name(out: &mut Encoder, kind: u16, name: &Name) {
    out.attr(kind, &NulStr::from(name.as_str()));
}
