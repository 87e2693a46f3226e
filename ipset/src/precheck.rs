//! Finds refusals that follow from the set's description alone, without asking the kernel.

use crate::cmd::entries;
use crate::error::ErrorKind;
use crate::model::{Element, Entry, EntryOptions, MacAddr, Range, SetFlags, SetSpec, SetType};

/// Why the kernel would refuse an expanded entry, in the kernel's order: first extensions, then the entry.
pub(crate) fn refusal(set: &SetSpec, entry: &Entry) -> Option<ErrorKind> {
    if let Some(extension) = missing_extension(set, &entry.options) {
        return Some(ErrorKind::ExtensionMissing(extension));
    }
    if !in_range(set.reported_options().range, &entry.element) {
        return Some(ErrorKind::OutOfRange);
    }
    is_null(set.set_type, &entry.element).then_some(entries::NULL_ENTRY)
}

/// Kernel: `ip_set_get_extensions`.
pub(crate) fn missing_extension(set: &SetSpec, options: &EntryOptions) -> Option<&'static str> {
    let lacks = |flag| !set.options.flags.contains(flag);
    let counters = options.packets.is_some() || options.bytes.is_some();
    let skbinfo = options.skbmark.is_some() || options.skbprio.is_some() || options.skbqueue.is_some();
    if options.timeout.is_some() && set.options.timeout.is_none() {
        Some("timeout")
    } else if counters && lacks(SetFlags::COUNTERS) {
        Some("counters")
    } else if options.comment.is_some() && lacks(SetFlags::COMMENT) {
        Some("comment")
    } else if skbinfo && lacks(SetFlags::SKBINFO) {
        Some("skbinfo")
    } else {
        None
    }
}

/// Whether the element is inside the range of a bitmap. Always true for other types.
pub(crate) fn in_range(range: Option<Range>, element: &Element) -> bool {
    match (range, element) {
        (Some(Range::Ports(range)), Element::Port(ports)) => {
            range.first() <= ports.first() && ports.last() <= range.last()
        }
        (Some(Range::Addresses(range)), Element::Ip(span) | Element::IpMac(span, _)) => {
            range.contains(span.first()) && range.contains(span.last())
        }
        _ => true,
    }
}

/// Kernel: `IPSET_ERR_HASH_ELEM` in `hash_ip4_uadt`, `hash_ip6_uadt`, `hash_mac4_uadt`, `hash_ipmac4_uadt`, `hash_ipmac6_uadt`.
pub(crate) fn is_null(set_type: SetType, element: &Element) -> bool {
    let no_mac = MacAddr([0; 6]);
    match (set_type, element) {
        (SetType::HashIp, Element::Ip(span)) => span.first().is_unspecified(),
        (SetType::HashMac, Element::Mac(mac)) | (SetType::HashIpMac, Element::IpMac(_, Some(mac))) => *mac == no_mac,
        _ => false,
    }
}
