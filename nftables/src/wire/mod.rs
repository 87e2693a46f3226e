//! Converts between the model and attributes.

mod element;
mod fields;
mod get;
mod object;
mod parts;
mod put;

pub(crate) use element::{ElementForm, get_elements, pair_intervals, put_element, put_set_of_elements};
pub(crate) use fields::{Field, listed, put_field};
pub(crate) use get::{get_chain, get_flowtable, get_object, get_rule, get_set, get_table, is_of_table};
pub(crate) use parts::{
    get_data, get_generation, get_key, get_name, get_verdict, millis, missing, put_data, put_expressions, put_name,
    put_verdict, split,
};
pub(crate) use put::{
    put_chain, put_chain_key, put_chain_of_rule, put_flowtable, put_flowtable_hook, put_flowtable_key, put_object,
    put_object_key, put_rule, put_set, put_set_key, put_table, set_userdata,
};
