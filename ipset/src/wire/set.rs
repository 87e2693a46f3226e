//! Encodes and decodes create options and listed sets.

use netlink_batch::{Attrs, Be16, Be32, Encoder, WireError};

use super::{SpanParts, get_address, get_entry, missing, put_address};
use crate::attrs::{CmdAttr, CreateAttr, put_net};
use crate::model::{
    Entry, Family, ObservedSet, PortRange, Range, SetFlags, SetName, SetOptions, SetSpec, SetType, Timeout,
};
use crate::uapi;

const WITH: [(SetFlags, u32); 4] = [
    (SetFlags::COUNTERS, uapi::IPSET_FLAG_WITH_COUNTERS),
    (SetFlags::COMMENT, uapi::IPSET_FLAG_WITH_COMMENT),
    (SetFlags::SKBINFO, uapi::IPSET_FLAG_WITH_SKBINFO),
    (SetFlags::FORCEADD, uapi::IPSET_FLAG_WITH_FORCEADD),
];

/// The create options.
pub(crate) fn put_set_options(out: &mut Encoder, options: &SetOptions) {
    match options.range {
        Some(Range::Addresses(span)) => {
            put_address(out, CreateAttr::IP, span.first());
            put_address(out, CreateAttr::IP_TO, span.last());
        }
        Some(Range::Ports(range)) => {
            put_net(out, CreateAttr::PORT, &Be16(range.first()));
            put_net(out, CreateAttr::PORT_TO, &Be16(range.last()));
        }
        None => {}
    }
    let numbers = [
        (CreateAttr::HASHSIZE, options.hashsize),
        (CreateAttr::MAXELEM, options.maxelem),
        (CreateAttr::MARKMASK, options.markmask),
        (CreateAttr::TIMEOUT, options.timeout.map(Timeout::secs)),
        (CreateAttr::INITVAL, options.initval),
        (CreateAttr::SIZE, options.size),
    ];
    for (kind, number) in numbers {
        if let Some(number) = number {
            put_net(out, kind, &Be32(number));
        }
    }
    if let Some(netmask) = options.netmask {
        out.attr(CreateAttr::NETMASK, &netmask);
    }
    if let Some(bitmask) = options.bitmask {
        put_address(out, CreateAttr::BITMASK, bitmask);
    }
    if let Some(size) = options.bucketsize {
        out.attr(CreateAttr::BUCKETSIZE, &size);
    }
    let with = |(flag, bit): &(SetFlags, u32)| options.flags.contains(*flag).then_some(*bit);
    let flags = WITH.iter().filter_map(with).fold(0, |all, bit| all | bit);
    if flags != 0 {
        put_net(out, CreateAttr::CADT_FLAGS, &Be32(flags));
    }
}

/// Numbers that only a listing contains.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetFigures {
    pub(crate) references: u32,
    pub(crate) memory: u32,
    pub(crate) elements: Option<u32>,
}

/// The writer of the options, on which the byte order of the mark mask depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Kernel,
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "only the fake kernel reads requests"))]
    Client,
}

/// Reads create options, of a request or of a listing.
pub(crate) fn get_set_options(
    set_type: SetType,
    bytes: &[u8],
    writer: Writer,
) -> Result<(SetOptions, SetFigures), WireError> {
    let mut options = SetOptions::default();
    let mut figures = SetFigures::default();
    let mut addresses = SpanParts::default();
    let (mut port, mut port_to) = (None, None);
    for attr in Attrs::<CreateAttr<'_>>::new(bytes).iter() {
        match attr? {
            CreateAttr::Ip(address) => addresses.address = Some(get_address(address)?),
            CreateAttr::IpTo(address) => addresses.last = Some(get_address(address)?),
            CreateAttr::Cidr(prefix) => addresses.prefix = Some(prefix),
            CreateAttr::Port(Be16(first)) => port = Some(first),
            CreateAttr::PortTo(Be16(last)) => port_to = Some(last),
            CreateAttr::Timeout(Be32(secs)) => options.timeout = Some(Timeout::from_kernel(secs)),
            CreateAttr::CadtFlags(Be32(bits)) => {
                let present = |(flag, bit): &(SetFlags, u32)| (bits & bit != 0).then_some(*flag);
                options.flags = WITH.iter().filter_map(present).collect();
            }
            CreateAttr::MarkMask(octets) => {
                options.markmask = Some(match writer {
                    Writer::Kernel => u32::from_ne_bytes(octets),
                    Writer::Client => u32::from_be_bytes(octets),
                });
            }
            CreateAttr::BitMask(address) => options.bitmask = Some(get_address(address)?),
            CreateAttr::InitVal(Be32(value)) => options.initval = Some(value),
            CreateAttr::HashSize(Be32(size)) => options.hashsize = Some(size),
            CreateAttr::MaxElem(Be32(max)) => options.maxelem = Some(max),
            CreateAttr::NetMask(prefix) => options.netmask = Some(prefix),
            CreateAttr::BucketSize(size) => options.bucketsize = Some(size),
            CreateAttr::Size(Be32(size)) => options.size = Some(size),
            CreateAttr::Elements(Be32(count)) => figures.elements = Some(count),
            CreateAttr::References(Be32(count)) => figures.references = count,
            CreateAttr::MemSize(Be32(bytes)) => figures.memory = bytes,
            CreateAttr::Unknown(_) => {}
        }
    }
    if set_type == SetType::BitmapPort {
        options.range = port.map(|first| Range::Ports(PortRange::new(first, port_to.unwrap_or(first))));
    } else if set_type.is_bitmap() && addresses.address.is_some() {
        options.range = Some(Range::Addresses(addresses.span("IPSET_ATTR_IP")?));
    }
    Ok((options, figures))
}

/// One message of a listing.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: SetName,
    /// The set's header, in the first message about it.
    pub(crate) header: Option<ObservedSet>,
    pub(crate) entries: Vec<Entry>,
}

/// Reads one message of a listing. `last` is the type of the previous message's set, and is updated.
pub(crate) fn get_listed(attributes: &[u8], last: &mut SetType) -> Result<Listed, WireError> {
    let mut name = None;
    let mut type_name = None;
    let (mut family, mut revision, mut index) = (0, 0, None);
    let (mut data, mut adt) = (None, None);
    for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        match attr? {
            CmdAttr::SetName(text) => name = Some(SetName::from_kernel(text.as_bytes())),
            CmdAttr::TypeName(text) => type_name = Some(text.as_bytes().escape_ascii().to_string()),
            CmdAttr::Family(number) => family = number,
            CmdAttr::Revision(number) => revision = number,
            CmdAttr::Index(Be16(number)) => index = Some(number),
            CmdAttr::Data(bytes) => data = Some(bytes),
            CmdAttr::Adt(bytes) => adt = Some(bytes),
            _ => {}
        }
    }
    let name = name.ok_or_else(|| missing("IPSET_ATTR_SETNAME"))?;
    if let Some(type_name) = &type_name {
        *last = type_name.parse().unwrap_or(SetType::Unknown);
    }
    let set_type = *last;
    let header = match (type_name, data) {
        (Some(type_name), data) => {
            let (mut options, figures) = get_set_options(set_type, data.unwrap_or_default(), Writer::Kernel)?;
            options.family = Family::from_number(family);
            Some(ObservedSet {
                spec: SetSpec { name: name.clone(), set_type, options },
                type_name,
                revision,
                index,
                references: figures.references,
                memory: figures.memory,
                elements: figures.elements,
                entries: Vec::new(),
            })
        }
        (None, _) => None,
    };
    let mut entries = Vec::new();
    if set_type != SetType::Unknown {
        for attr in Attrs::<CmdAttr<'_>>::new(adt.unwrap_or_default()).iter() {
            if let CmdAttr::Data(bytes) = attr? {
                entries.push(get_entry(set_type, bytes)?);
            }
        }
    }
    Ok(Listed { name, header, entries })
}
