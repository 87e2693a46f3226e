//! Why an operation was not tried: something it depends on failed.

use std::fmt;
use std::net::IpAddr;

use ipvs::VirtualServerKey;

use crate::config::{InterfaceName, NamePrefix};
use crate::modes::ipvs::sets::{NamedSet, SetKey, SetKind};
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

pub(super) fn not_without_set(set: NamedSet) -> PortError {
    skipped(format_args!("not tried, because set {set} could not be created"))
}

pub(super) fn not_without_virtual_server(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("not tried, because virtual server {key} could not be made"))
}

pub(super) fn needed() -> PortError {
    skipped(format_args!(
        "stays, because it tells that a virtual server is ours, or guards it, that could not be deleted"
    ))
}

pub(super) fn guards(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("stay, because they guard virtual server {key}, which could not be deleted"))
}

pub(super) fn not_without_rules(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("{key} is not served, because the rules for its loadBalancerSourceRanges are not in place"))
}

pub(super) fn not_without_entry(key: &VirtualServerKey, prefix: NamePrefix) -> PortError {
    let set = SetKey::new(key.family().into(), SetKind::LoadBalancerFirewall).named(prefix);
    skipped(format_args!("{key} is not served, because its loadBalancerSourceRanges could not be put into set {set}"))
}
