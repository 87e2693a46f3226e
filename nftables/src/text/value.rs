//! Bytes in nft's syntax, by type.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::duration;
use super::header::run_of_bits;
use crate::model::{ByteOrder, DataType, Field, FieldTypes, Value};

/// A host's names for numbers ([`Rule::to_nft_named`](crate::Rule::to_nft_named)).
#[derive(Clone, Copy)]
pub(super) struct Names<'a>(pub(super) &'a dyn Fn(DataType, u64) -> Option<String>);

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

/// Context of a value.
#[expect(clippy::struct_excessive_bools, reason = "they are independent of one another")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Form<'a> {
    /// The value is in a set of intervals, in which all numbers are in network byte order.
    pub(super) interval: bool,
    /// Integers are computed by expressions, in host byte order.
    pub(super) numbers: bool,
    /// The same for single fields of a concatenation, by bits.
    pub(super) host_fields: u16,
    /// Fields without a name, by bits.
    pub(super) raw_fields: u16,
    /// Lengths of fields that are padded to four bytes in a concatenation; 0: the whole field.
    pub(super) lengths: [u8; 16],
    /// Integers in a map's data are in host byte order.
    pub(super) data_numbers: bool,
    /// Number of bits after those of the field.
    pub(super) shift: u32,
    /// The value is an element, so a comma would separate elements.
    pub(super) element: bool,
    /// Bytes without a name, which nft prints in hexadecimal.
    pub(super) raw: bool,
    /// The value is an end of a range, where nft prints numbers instead of names (`range_expr_print`).
    pub(super) end: bool,
    pub(super) names: Option<Names<'a>>,
}

impl Form<'_> {
    pub(super) const PLAIN: Form<'static> = Form {
        interval: false,
        numbers: false,
        host_fields: 0,
        raw_fields: 0,
        lengths: [0; 16],
        data_numbers: false,
        shift: 0,
        element: false,
        raw: false,
        end: false,
        names: None,
    };

    /// The default form, with the same names.
    pub(super) fn plain(self) -> Self {
        Form { names: self.names, ..Form::PLAIN }
    }

    /// The form of one field.
    pub(super) fn of_field(self, place: usize) -> Self {
        let is_in = |bits: u16| place < 16 && bits & (1 << place) != 0;
        Form { numbers: self.numbers || is_in(self.host_fields), raw: self.raw || is_in(self.raw_fields), ..self }
    }

    /// A field without its padding.
    fn unpadded(self, place: usize, bytes: &[u8]) -> &[u8] {
        let length = self.lengths.get(place).filter(|length| **length > 0);
        length.and_then(|length| bytes.get(..usize::from(*length))).unwrap_or(bytes)
    }

    /// The host's name of a number.
    fn name(self, data_type: DataType, number: u64) -> Option<String> {
        let is_host_name = match data_type {
            DataType::IFACE_INDEX | DataType::HOUR | DataType::TIME_DATE => true,
            DataType::DEVICE_GROUP | DataType::REALM | DataType::MARK => !self.end,
            _ => false,
        };
        let name = self.names.filter(|_| is_host_name)?.0(data_type, number)?;
        let is_word = !name.is_empty() && !name.contains(|c: char| c == '"' || c.is_control());
        is_word.then(|| format!("\"{name}\""))
    }
}

/// A value of one or several fields; `None` if it does not fit its type.
pub(super) fn value_text(value: &Value, types: &FieldTypes, form: Form<'_>) -> Option<String> {
    let parts = split(value, types)?.into_iter().enumerate();
    let text = |(place, (field, bytes)): (usize, (&Field, &[u8]))| {
        field_text(form.unpadded(place, bytes), field.data_type, form.of_field(place))
    };
    let parts: Option<Vec<String>> = parts.map(text).collect();
    Some(parts?.join(" . "))
}

/// Both ends of a concatenation's range, field by field.
pub(super) fn range_text(first: &Value, last: &Value, types: &FieldTypes, form: Form<'_>) -> Option<String> {
    let mut parts = Vec::new();
    for (place, ((field, low), (_, high))) in split(first, types)?.into_iter().zip(split(last, types)?).enumerate() {
        let (low, high) = (form.unpadded(place, low), form.unpadded(place, high));
        let form = form.of_field(place);
        let text = |bytes: &[u8]| field_text(bytes, field.data_type, form);
        parts.push(match field.data_type {
            _ if low == high => text(low)?,
            DataType::IFNAME => names_text(low, high)?,
            data_type => span_text(low, high, data_type, form)?,
        });
    }
    Some(parts.join(" . "))
}

fn split<'a>(value: &'a Value, types: &'a FieldTypes) -> Option<Vec<(&'a Field, &'a [u8])>> {
    let bytes = value.as_bytes();
    let mut start = 0_usize;
    let mut parts = Vec::new();
    for field in types.fields() {
        let length = usize::try_from(field.length).ok()?;
        parts.push((field, bytes.get(start..start.checked_add(length)?)?));
        start = start.checked_add(length.next_multiple_of(4))?;
    }
    Some(parts)
}

/// A number of up to eight bytes.
pub(super) fn number(bytes: &[u8], order: ByteOrder) -> Option<u64> {
    let little = order == ByteOrder::Host && cfg!(target_endian = "little");
    let mut wide = [0_u8; 8];
    for (place, byte) in wide.iter_mut().zip(bytes.iter().rev()) {
        *place = *byte;
    }
    if bytes.len() > 8 {
        return None;
    }
    let big = u64::from_le_bytes(wide);
    let unused = u32::try_from(bytes.len()).ok().and_then(|length| 8_u32.checked_sub(length))?.checked_mul(8)?;
    Some(if little { big.swap_bytes().checked_shr(unused).unwrap_or(0) } else { big })
}

/// The first bytes of an address as a network; `None` for a whole address or another type.
pub(super) fn prefix_text(bytes: &[u8], data_type: DataType) -> Option<String> {
    if !matches!(data_type, DataType::IPV4_ADDR | DataType::IPV6_ADDR) {
        return None;
    }
    let missing = usize::try_from(data_type.length()).ok()?.checked_sub(bytes.len()).filter(|missing| *missing > 0)?;
    let whole = [bytes, &vec![0; missing]].concat();
    Some(format!("{}/{}", field_text(&whole, data_type, Form::PLAIN)?, bytes.len().checked_mul(8)?))
}

/// Types that nft prints as prefixes (`DTYPE_F_PREFIX`).
fn has_prefixes(data_type: DataType) -> bool {
    matches!(data_type, DataType::IPV4_ADDR | DataType::IPV6_ADDR | DataType::MARK)
}

/// The prefix length of a mask in network byte order; `None` if it is not a prefix or the whole value.
fn prefix_length(mask: &[u8]) -> Option<u32> {
    let ((first, bits), rest) = run_of_bits(0, mask)?;
    (first == 0 && rest > 0).then_some(bits)
}

/// An operand's masked bits and the value that they are compared with, as a prefix.
pub(super) fn masked_prefix(value: &[u8], mask: &[u8], data_type: DataType) -> Option<String> {
    let mut order = mask.to_vec();
    if data_type.byte_order() == ByteOrder::Host && cfg!(target_endian = "little") {
        order.reverse();
    }
    let bits = prefix_length(&order).filter(|_| has_prefixes(data_type))?;
    let fits = value.len() == mask.len() && value.iter().zip(mask).all(|(value, mask)| value & !mask == 0);
    fits.then(|| Some(format!("{}/{bits}", field_text(value, data_type, Form::PLAIN)?)))?
}

/// Values from one to another, as a prefix if possible.
pub(super) fn span_text(first: &[u8], last: &[u8], data_type: DataType, form: Form<'_>) -> Option<String> {
    let text = |bytes: &[u8], end| field_text(bytes, data_type, Form { end, ..form });
    let mask: Vec<u8> = first.iter().zip(last).map(|(first, last)| !(first ^ last)).collect();
    let is_first = first.iter().zip(&mask).all(|(first, mask)| first & !mask == 0);
    match prefix_length(&mask).filter(|_| is_first && has_prefixes(data_type)) {
        Some(prefix) => Some(format!("{}/{prefix}", text(first, false)?)),
        None => Some(format!("{}-{}", text(first, true)?, text(last, true)?)),
    }
}

/// Interface names from one to another, if they are those with a common prefix.
pub(super) fn names_text(first: &[u8], last: &[u8]) -> Option<String> {
    let length = first.iter().position(|byte| *byte == 0)?;
    let (beginning, rest) = last.split_at_checked(length)?;
    (first.starts_with(beginning) && rest.iter().all(|byte| *byte == 0xff))
        .then(|| field_text(beginning, DataType::IFNAME, Form::PLAIN))?
}

pub(super) fn field_text(bytes: &[u8], data_type: DataType, form: Form<'_>) -> Option<String> {
    if form.shift != 0 {
        let number = number(bytes, ByteOrder::Network)?;
        let fits = number.trailing_zeros() >= form.shift || number == 0;
        let field = (number >> form.shift).to_be_bytes();
        return fits.then(|| field_text(&field, data_type, Form { shift: 0, ..form }))?;
    }
    let order = match data_type {
        _ if form.interval => ByteOrder::Network,
        DataType::INTEGER if form.numbers => ByteOrder::Host,
        other => other.byte_order(),
    };
    if let Some(name) = number(bytes, order).and_then(|number| form.name(data_type, number)) {
        return Some(name);
    }
    Some(match data_type {
        DataType::IPV4_ADDR => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string(),
        DataType::IPV6_ADDR => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string(),
        DataType::ETHER_ADDR => {
            let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            parts.join(":")
        }
        DataType::IFNAME | DataType::STRING => {
            let text = std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()?;
            if text.is_empty() || text.contains(|c: char| c == '"' || c.is_control()) {
                return None;
            }
            // Without the NUL it is a prefix of names.
            match (data_type == DataType::IFNAME, text.strip_suffix('*')) {
                (true, _) if !bytes.contains(&0) => format!("\"{text}*\""),
                (true, Some(text)) => format!("\"{text}\\*\""),
                _ => format!("\"{text}\""),
            }
        }
        DataType::MARK => format!("{:#010x}", number(bytes, order)?),
        DataType::CT_STATE => flags_text(number(bytes, order)?, &CT_STATES, form),
        DataType::CT_STATUS => flags_text(number(bytes, order)?, &CT_STATUSES, form),
        DataType::TCP_FLAG => flags_text(number(bytes, order)?, &TCP_FLAGS, form),
        DataType::TIME => match number(bytes, order)? {
            millis if form.end && millis.is_multiple_of(1000) => format!("{}s", millis / 1000),
            millis => duration(Duration::from_millis(millis)),
        },
        DataType::CLASS_ID => {
            let class = number(bytes, order)?;
            match class {
                0 => "none".to_owned(),
                0xffff_ffff => "root".to_owned(),
                class => format!("{:x}:{:x}", class >> 16, class & 0xffff),
            }
        }
        DataType::DAY if !form.end => format!("\"{}\"", DAYS.get(usize::from(*bytes.first()?))?),
        // The number of the only label.
        DataType::CT_LABEL => {
            let mut places = bytes.iter().zip((0_u32..).step_by(8)).filter(|(byte, _)| **byte != 0);
            match (places.next()?, places.next()) {
                ((byte, before), None) if byte.is_power_of_two() => {
                    before.checked_add(byte.trailing_zeros())?.to_string()
                }
                _ => return None,
            }
        }
        DataType::CT_EVENT => flags_text(number(bytes, order)?, &CT_EVENTS, form),
        // The index of `lo` in every network namespace (LOOPBACK_IFINDEX).
        DataType::IFACE_INDEX if number(bytes, order)? == 1 => "\"lo\"".to_owned(),
        // nft accepts seconds since 1970 without a time zone, and no fractions.
        DataType::TIME_DATE => match number(bytes, order)? {
            nanos if nanos.is_multiple_of(1_000_000_000) => (nanos / 1_000_000_000).to_string(),
            _ => return None,
        },
        DataType::BOOLEAN if !form.end => String::from(if bytes.first()? == &0 { "missing" } else { "exists" }),
        _ => match number(bytes, order) {
            Some(number) => match names(data_type).iter().find(|(known, _)| u64::from(*known) == number) {
                Some((_, name)) if !form.end => (*name).to_owned(),
                _ if form.raw || data_type == DataType::ECN => format!("{number:#x}"),
                _ if data_type == DataType::DSCP => format!("{number:#04x}"),
                _ if data_type == DataType::ETHER_TYPE => format!("{number:#06x}"),
                _ => number.to_string(),
            },
            None => hex(bytes),
        },
    })
}

pub(super) const CT_STATES: [(u64, &str); 5] =
    [(1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked")];
const CT_STATUSES: [(u64, &str); 7] =
    [(1, "expected"), (2, "seen-reply"), (4, "assured"), (8, "confirmed"), (16, "snat"), (32, "dnat"), (512, "dying")];
const CT_EVENTS: [(u64, &str); 11] = [
    (1, "new"),
    (2, "related"),
    (4, "destroy"),
    (8, "reply"),
    (16, "assured"),
    (32, "protoinfo"),
    (64, "helper"),
    (128, "mark"),
    (256, "seqadj"),
    (512, "secmark"),
    (1024, "label"),
];
pub(super) const TCP_FLAGS: [(u64, &str); 8] =
    [(1, "fin"), (2, "syn"), (4, "rst"), (8, "psh"), (16, "ack"), (32, "urg"), (64, "ecn"), (128, "cwr")];

/// nft's built-in names for numbers of a type.
const NAMES: &[(DataType, &[(u32, &str)])] = &[
    (DataType::INET_PROTO, &[(1, "icmp"), (6, "tcp"), (17, "udp"), (58, "ipv6-icmp"), (132, "sctp"), (33, "dccp")]),
    (DataType::NF_PROTO, &[(2, "ipv4"), (10, "ipv6")]),
    (DataType::ETHER_TYPE, &[(0x0800, "ip"), (0x86dd, "ip6"), (0x0806, "arp"), (0x8100, "8021q"), (0x88a8, "8021ad")]),
    (DataType::CT_DIR, &[(0, "original"), (1, "reply")]),
    (
        DataType::FIB_ADDR_TYPE,
        &[
            (0, "unspec"),
            (1, "unicast"),
            (2, "local"),
            (3, "broadcast"),
            (4, "anycast"),
            (5, "multicast"),
            (6, "blackhole"),
            (7, "unreachable"),
            (8, "prohibit"),
        ],
    ),
    (
        DataType::ICMP_TYPE,
        &[
            (0, "echo-reply"),
            (3, "destination-unreachable"),
            (4, "source-quench"),
            (5, "redirect"),
            (8, "echo-request"),
            (9, "router-advertisement"),
            (10, "router-solicitation"),
            (11, "time-exceeded"),
            (12, "parameter-problem"),
            (13, "timestamp-request"),
            (14, "timestamp-reply"),
            (15, "info-request"),
            (16, "info-reply"),
            (17, "address-mask-request"),
            (18, "address-mask-reply"),
        ],
    ),
    (
        DataType::ICMPV6_TYPE,
        &[
            (1, "destination-unreachable"),
            (2, "packet-too-big"),
            (3, "time-exceeded"),
            (4, "parameter-problem"),
            (128, "echo-request"),
            (129, "echo-reply"),
            (130, "mld-listener-query"),
            (131, "mld-listener-report"),
            (132, "mld-listener-done"),
            (133, "nd-router-solicit"),
            (134, "nd-router-advert"),
            (135, "nd-neighbor-solicit"),
            (136, "nd-neighbor-advert"),
            (137, "nd-redirect"),
            (138, "router-renumbering"),
            (141, "ind-neighbor-solicit"),
            (142, "ind-neighbor-advert"),
            (143, "mld2-listener-report"),
        ],
    ),
    (
        DataType::ICMP_CODE,
        &[
            (0, "net-unreachable"),
            (1, "host-unreachable"),
            (2, "prot-unreachable"),
            (3, "port-unreachable"),
            (4, "frag-needed"),
            (9, "net-prohibited"),
            (10, "host-prohibited"),
            (13, "admin-prohibited"),
        ],
    ),
    (
        DataType::ICMPV6_CODE,
        &[
            (0, "no-route"),
            (1, "admin-prohibited"),
            (3, "addr-unreachable"),
            (4, "port-unreachable"),
            (5, "policy-fail"),
            (6, "reject-route"),
        ],
    ),
    (
        DataType::IGMP_TYPE,
        &[
            (17, "membership-query"),
            (18, "membership-report-v1"),
            (22, "membership-report-v2"),
            (23, "leave-group"),
            (34, "membership-report-v3"),
        ],
    ),
    (DataType::PKT_TYPE, &[(0, "host"), (1, "broadcast"), (2, "multicast"), (3, "other")]),
    (
        DataType::IFACE_TYPE,
        &[(1, "ether"), (512, "ppp"), (768, "ipip"), (769, "ipip6"), (772, "loopback"), (776, "sit"), (778, "ipgre")],
    ),
    (
        DataType::ARP_OP,
        &[(1, "request"), (2, "reply"), (3, "rrequest"), (4, "rreply"), (8, "inrequest"), (9, "inreply"), (10, "nak")],
    ),
    (
        DataType::DSCP,
        &[
            (0, "cs0"),
            (8, "cs1"),
            (16, "cs2"),
            (24, "cs3"),
            (32, "cs4"),
            (40, "cs5"),
            (48, "cs6"),
            (56, "cs7"),
            (1, "lephb"),
            (10, "af11"),
            (12, "af12"),
            (14, "af13"),
            (18, "af21"),
            (20, "af22"),
            (22, "af23"),
            (26, "af31"),
            (28, "af32"),
            (30, "af33"),
            (34, "af41"),
            (36, "af42"),
            (38, "af43"),
            (46, "ef"),
        ],
    ),
    (
        DataType::DCCP_TYPE,
        &[
            (0, "request"),
            (1, "response"),
            (2, "data"),
            (3, "ack"),
            (4, "dataack"),
            (5, "closereq"),
            (6, "close"),
            (7, "reset"),
            (8, "sync"),
            (9, "syncack"),
        ],
    ),
    (
        DataType::MH_TYPE,
        &[
            (0, "binding-refresh-request"),
            (1, "home-test-init"),
            (2, "careof-test-init"),
            (3, "home-test"),
            (4, "careof-test"),
            (5, "binding-update"),
            (6, "binding-acknowledgement"),
            (7, "binding-error"),
            (8, "fast-binding-update"),
            (9, "fast-binding-acknowledgement"),
            (10, "fast-binding-advertisement"),
            (11, "experimental-mobility-header"),
            (12, "home-agent-switch-message"),
        ],
    ),
    (DataType::ECN, &[(0, "not-ect"), (1, "ect1"), (2, "ect0"), (3, "ce")]),
];

fn names(data_type: DataType) -> &'static [(u32, &'static str)] {
    NAMES.iter().find(|(of, _)| *of == data_type).map_or(&[], |(_, names)| names)
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Bits by name; as a number if one has none.
fn flags_text(bits: u64, names: &[(u64, &str)], form: Form<'_>) -> String {
    let known: u64 = names.iter().map(|(bit, _)| bit).fold(0, |all, bit| all | bit);
    if bits == 0 || bits & !known != 0 || form.end {
        return format!("{bits:#x}");
    }
    let found: Vec<&str> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    found.join(if form.element { " | " } else { "," })
}

/// Bytes as one number in base 16.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes {
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}
