//! Reasons why operations were not tried: something they depend on failed.

use std::fmt;
use std::net::IpAddr;

use ipvs::VirtualServerKey;

use crate::config::InterfaceName;
use crate::modes::ipvs::sets::NamedSet;
use crate::net::{FrontendKey, Network};
use crate::ports::{PortError, PortErrorKind};

fn skipped(message: fmt::Arguments<'_>) -> PortError {
    PortError::new(PortErrorKind::Skipped, message)
}

pub(super) fn bound_too_early(address: IpAddr) -> PortError {
    skipped(format_args!("{address} is not bound, because none of its virtual servers could be made"))
}

pub(super) fn not_without_device(address: IpAddr, device: &InterfaceName) -> PortError {
    skipped(format_args!("{address} is not bound, because there is no device {device}"))
}

pub(super) fn not_without_guard(network: &Network) -> PortError {
    skipped(format_args!(
        "{network} is not made local, because the rules that reject its unserved addresses are missing"
    ))
}

pub(super) fn not_without_route(address: IpAddr) -> PortError {
    skipped(format_args!("{address} stays bound, because no route makes it local yet"))
}

pub(super) fn not_unbound(address: IpAddr) -> PortError {
    skipped(format_args!("stays, because {address} is not bound in any other way yet"))
}

pub(super) fn not_without_set(set: NamedSet) -> PortError {
    skipped(format_args!("not tried, because set {set} could not be created"))
}

pub(super) fn not_without_virtual_server(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("not tried, because virtual server {key} could not be made"))
}

pub(super) fn needed() -> PortError {
    skipped(format_args!("stays, because it marks or guards a virtual server that could not be deleted"))
}

pub(super) fn guards(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("stay, because they guard virtual server {key}, which could not be deleted"))
}

pub(super) fn not_without_rules(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("{key} is not served, because the rules for its loadBalancerSourceRanges are not in place"))
}

pub(super) fn not_without_record(key: &VirtualServerKey) -> PortError {
    skipped(format_args!(
        "{key} is not made, because nothing would show that it is ours: its mark could not be recorded"
    ))
}

pub(super) fn not_without_mark(place: &FrontendKey) -> PortError {
    skipped(format_args!(
        "stays, because packets to {place} do not get the mark of the virtual server that is to serve it yet"
    ))
}

pub(super) fn still_marked(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("stays, because packets to node ports still get the mark of {key}"))
}

pub(super) fn not_without_own(place: &FrontendKey) -> PortError {
    skipped(format_args!("stays, because {place} has no virtual server of its own yet"))
}

pub(super) fn not_without_entry(key: &VirtualServerKey, set: &str) -> PortError {
    skipped(format_args!("{key} is not served, because its loadBalancerSourceRanges could not be put into set {set}"))
}
