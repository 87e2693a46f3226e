//! Rules of each set type: revisions, entries, matching.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::model::{Element, Entry, Family, IpSpan, Part, SetSpec, SetType};
use crate::precheck::{in_range, is_null, missing_extension};
use crate::uapi;
use crate::wire::get_entry;

/// An error number.
pub(super) type Refusal = i32;

/// The revisions of Linux 6.6.
pub(super) fn features_revisions(set_type: SetType) -> RangeInclusive<u8> {
    0..=match set_type {
        SetType::HashIp | SetType::HashIpPortIp => 6,
        SetType::HashIpPort | SetType::HashNet => 7,
        SetType::HashIpPortNet | SetType::HashNetIface | SetType::HashNetPort => 8,
        SetType::HashNetNet => 4,
        SetType::HashIpMac | SetType::HashMac => 1,
        _ => 3,
    }
}

/// Reads an entry and refuses what does not fit the set's family, extensions or range.
pub(super) fn get_entry_checked(set: &SetSpec, bytes: &[u8]) -> Result<Entry, Refusal> {
    let entry = get_entry(set.set_type, bytes).map_err(|_unreadable| uapi::IPSET_ERR_PROTOCOL)?;
    entry.check(set).map_err(|_other_form| uapi::IPSET_ERR_PROTOCOL)?;
    if let Some(extension) = missing_extension(set, &entry.options) {
        return Err(match extension {
            "timeout" => uapi::IPSET_ERR_TIMEOUT,
            "counters" => uapi::IPSET_ERR_COUNTER,
            "comment" => uapi::IPSET_ERR_COMMENT,
            _ => uapi::IPSET_ERR_SKBINFO,
        });
    }
    let zero = |span: Option<IpSpan>| span.and_then(|span| span.prefix()) == Some(0);
    let (first, second) = entry.element.spans();
    if set.set_type.has_nomatch() && !set.set_type.has_zero_prefix() && (zero(first) || zero(second)) {
        return Err(uapi::IPSET_ERR_INVALID_CIDR);
    }
    let is_network = |span: IpSpan| span.family() == Family::Inet6 && !span.is_host();
    if set.set_type.info().first == Part::Each && first.is_some_and(is_network) {
        return Err(uapi::IPSET_ERR_INVALID_CIDR);
    }
    if !in_range(set.options.range, &entry.element) {
        return Err(uapi::IPSET_ERR_BITMAP_RANGE);
    }
    // Cut to the mask first: `hash_ip4_uadt`, `hash_ip6_uadt`.
    let stored = |span: IpSpan| set.mask().map_or(span, |mask| span.and_mask(mask)).first();
    let is_cut_to_null = |span: IpSpan| stored(IpSpan::from(span.first())).is_unspecified();
    if is_null(set.set_type, &entry.element) || set.set_type == SetType::HashIp && first.is_some_and(is_cut_to_null) {
        return Err(uapi::IPSET_ERR_HASH_ELEM);
    }
    Ok(entry)
}

/// If the stored element contains the tested one, returns the prefix lengths of its networks, which tell how closely it
/// matches.
///
/// Only single addresses are looked up in networks. A network matches only itself.
pub(super) fn matches(set_type: SetType, stored: &Element, tested: &Element) -> Option<(u8, u8)> {
    let hosts = |element: &Element| {
        let (first, second) = element.spans();
        first.is_none_or(|span| span.is_host()) && second.is_none_or(|span| span.is_host())
    };
    if stored == tested {
        return Some((128, 128));
    }
    if !set_type.has_nomatch() || !hosts(tested) {
        return None;
    }
    let (stored_spans, tested_spans) = (stored.spans(), tested.spans());
    let holds = |network: Option<IpSpan>, host: Option<IpSpan>| match (network, host) {
        (Some(network), Some(host)) => {
            let address: IpAddr = host.first();
            network.contains(address).then(|| network.prefix().unwrap_or(0))
        }
        (None, None) => Some(0),
        _ => None,
    };
    let first = holds(stored_spans.0, tested_spans.0)?;
    let second = holds(stored_spans.1, tested_spans.1)?;
    let rest = match (stored, tested) {
        (
            Element::IpInterface { interface: a, physdev: p, .. },
            Element::IpInterface { interface: b, physdev: q, .. },
        ) => a == b && p == q,
        _ => stored.ports() == tested.ports(),
    };
    rest.then_some((first, second))
}
