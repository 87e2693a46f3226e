//! Encodes and decodes entries.

use netlink_batch::{Attrs, Be16, Be32, Be64, Encoder, NulStr, WireError};

use super::{SpanParts, get_address, missing, put_address};
use crate::attrs::{EntryAttr, put_net};
use crate::model::{
    Comment, Element, Entry, EntryOptions, Interface, IpSpan, MacAddr, PortRange, Ports, Position, Protocol, SetName,
    SetType, Shape, SkbMark, SkbPriority, Timeout,
};
use crate::uapi;

/// Writes an address, network or range with up to three attributes.
fn put_span(out: &mut Encoder, span: IpSpan, [ip, cidr, ip_to]: [u16; 3]) {
    put_address(out, ip, span.first());
    match span.prefix() {
        // The kernel is slower with a prefix length or a range; a single address needs neither.
        _ if span.is_host() => {}
        Some(prefix) => out.attr(cidr, &prefix),
        None => put_address(out, ip_to, span.last()),
    }
}

const FIRST: [u16; 3] = [EntryAttr::IP, EntryAttr::CIDR, EntryAttr::IP_TO];
const SECOND: [u16; 3] = [EntryAttr::IP2, EntryAttr::CIDR2, EntryAttr::IP2_TO];

fn put_ports(out: &mut Encoder, ports: Ports) {
    put_port_range(out, ports.ports());
    out.attr(EntryAttr::PROTO, &ports.protocol().number());
}

fn put_port_range(out: &mut Encoder, range: PortRange) {
    put_net(out, EntryAttr::PORT, &Be16(range.first()));
    if range.first() != range.last() {
        put_net(out, EntryAttr::PORT_TO, &Be16(range.last()));
    }
}

/// The attributes of one entry.
pub(crate) fn put_entry(out: &mut Encoder, entry: &Entry) {
    let options = &entry.options;
    let mut flags = 0;
    match &entry.element {
        Element::Ip(span) => put_span(out, *span, FIRST),
        Element::IpMark(span, mark) => {
            put_span(out, *span, FIRST);
            put_net(out, EntryAttr::MARK, &Be32(*mark));
        }
        Element::IpPort(span, ports) => {
            put_span(out, *span, FIRST);
            put_ports(out, *ports);
        }
        Element::IpPortIp(first, ports, second) => {
            put_span(out, *first, FIRST);
            put_ports(out, *ports);
            put_span(out, *second, SECOND);
        }
        Element::IpMac(span, mac) => {
            put_span(out, *span, FIRST);
            if let Some(MacAddr(octets)) = mac {
                out.attr(EntryAttr::ETHER, octets);
            }
        }
        Element::Mac(MacAddr(octets)) => out.attr(EntryAttr::ETHER, octets),
        Element::IpIp(first, second) => {
            put_span(out, *first, FIRST);
            put_span(out, *second, SECOND);
        }
        Element::IpInterface { network, interface, physdev } => {
            put_span(out, *network, FIRST);
            out.attr(EntryAttr::IFACE, &NulStr::from(interface.as_str()));
            flags |= if *physdev { uapi::IPSET_FLAG_PHYSDEV } else { 0 };
        }
        Element::Port(range) => put_port_range(out, *range),
        Element::Set(name) => out.attr(EntryAttr::NAME, &NulStr::from(name.as_str())),
    }
    flags |= if options.nomatch { uapi::IPSET_FLAG_NOMATCH } else { 0 };
    flags |= if options.wildcard { uapi::IPSET_FLAG_IFACE_WILDCARD } else { 0 };
    match &options.position {
        Some(Position::Before(name)) => {
            flags |= uapi::IPSET_FLAG_BEFORE;
            out.attr(EntryAttr::NAMEREF, &NulStr::from(name.as_str()));
        }
        Some(Position::After(name)) => out.attr(EntryAttr::NAMEREF, &NulStr::from(name.as_str())),
        None => {}
    }
    put_options(out, options);
    if flags != 0 {
        put_net(out, EntryAttr::CADT_FLAGS, &Be32(flags));
    }
}

fn put_options(out: &mut Encoder, options: &EntryOptions) {
    if let Some(timeout) = options.timeout {
        put_net(out, EntryAttr::TIMEOUT, &Be32(timeout.secs()));
    }
    if let Some(bytes) = options.bytes {
        put_net(out, EntryAttr::BYTES, &Be64(bytes));
    }
    if let Some(packets) = options.packets {
        put_net(out, EntryAttr::PACKETS, &Be64(packets));
    }
    if let Some(comment) = &options.comment {
        out.attr(EntryAttr::COMMENT, &NulStr::from(comment.as_str()));
    }
    if let Some(SkbMark { mark, mask }) = options.skbmark {
        put_net(out, EntryAttr::SKBMARK, &Be64(u64::from(mark) << 32 | u64::from(mask)));
    }
    if let Some(SkbPriority { major, minor }) = options.skbprio {
        put_net(out, EntryAttr::SKBPRIO, &Be32(u32::from(major) << 16 | u32::from(minor)));
    }
    if let Some(queue) = options.skbqueue {
        put_net(out, EntryAttr::SKBQUEUE, &Be16(queue));
    }
}

/// Upper and lower half.
fn halves(value: u64) -> (u32, u32) {
    let lower = value & u64::from(u32::MAX);
    (u32::try_from(value >> 32).unwrap_or(0), u32::try_from(lower).unwrap_or(0))
}

/// Attributes of an entry before they are interpreted for the set's type.
#[derive(Default)]
struct EntryParts<'a> {
    first: SpanParts,
    second: SpanParts,
    port: Option<u16>,
    port_to: Option<u16>,
    protocol: Option<u8>,
    mark: Option<u32>,
    ether: Option<[u8; 6]>,
    name: Option<NulStr<'a>>,
    reference: Option<NulStr<'a>>,
    interface: Option<NulStr<'a>>,
    flags: u32,
}

pub(crate) fn get_entry(set_type: SetType, bytes: &[u8]) -> Result<Entry, WireError> {
    let mut parts = EntryParts::default();
    let mut options = EntryOptions::default();
    for attr in Attrs::<EntryAttr<'_>>::new(bytes).iter() {
        match attr? {
            EntryAttr::Ip(address) => parts.first.address = Some(get_address(address)?),
            EntryAttr::IpTo(address) => parts.first.last = Some(get_address(address)?),
            EntryAttr::Cidr(prefix) => parts.first.prefix = Some(prefix),
            EntryAttr::Ip2(address) => parts.second.address = Some(get_address(address)?),
            EntryAttr::Ip2To(address) => parts.second.last = Some(get_address(address)?),
            EntryAttr::Cidr2(prefix) => parts.second.prefix = Some(prefix),
            EntryAttr::Port(Be16(port)) => parts.port = Some(port),
            EntryAttr::PortTo(Be16(port)) => parts.port_to = Some(port),
            EntryAttr::Proto(protocol) => parts.protocol = Some(protocol),
            EntryAttr::Mark(Be32(mark)) => parts.mark = Some(mark),
            EntryAttr::Ether(octets) => parts.ether = Some(octets),
            EntryAttr::Name(name) => parts.name = Some(name),
            EntryAttr::NameRef(name) => parts.reference = Some(name),
            EntryAttr::Iface(name) => parts.interface = Some(name),
            EntryAttr::CadtFlags(Be32(flags)) => parts.flags = flags,
            EntryAttr::Timeout(Be32(secs)) => options.timeout = Some(Timeout::from_kernel(secs)),
            EntryAttr::Bytes(Be64(bytes)) => options.bytes = Some(bytes),
            EntryAttr::Packets(Be64(packets)) => options.packets = Some(packets),
            EntryAttr::Comment(text) => options.comment = Some(Comment::from_kernel(text.as_bytes())),
            EntryAttr::SkbMark(Be64(value)) => {
                let (mark, mask) = halves(value);
                options.skbmark = Some(SkbMark { mark, mask });
            }
            EntryAttr::SkbPrio(Be32(value)) => {
                let [a, b, c, d] = value.to_be_bytes();
                let (major, minor) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                options.skbprio = Some(SkbPriority { major, minor });
            }
            EntryAttr::SkbQueue(Be16(queue)) => options.skbqueue = Some(queue),
            EntryAttr::Lineno(_) | EntryAttr::Pad(_) | EntryAttr::Unknown(_) => {}
        }
    }
    options.nomatch = parts.flags & uapi::IPSET_FLAG_NOMATCH != 0;
    options.wildcard = parts.flags & uapi::IPSET_FLAG_IFACE_WILDCARD != 0;
    options.position = parts.reference.map(|name| {
        let name = SetName::from_kernel(name.as_bytes());
        if parts.flags & uapi::IPSET_FLAG_BEFORE == 0 { Position::After(name) } else { Position::Before(name) }
    });
    Ok(Entry { element: parts.element(set_type)?, options })
}

impl EntryParts<'_> {
    fn first(&self) -> Result<IpSpan, WireError> {
        self.first.span("IPSET_ATTR_IP")
    }

    fn second(&self) -> Result<IpSpan, WireError> {
        self.second.span("IPSET_ATTR_IP2")
    }

    fn range(&self) -> Result<PortRange, WireError> {
        let port = self.port.ok_or_else(|| missing("IPSET_ATTR_PORT"))?;
        Ok(PortRange::new(port, self.port_to.unwrap_or(port)))
    }

    fn ports(&self) -> Result<Ports, WireError> {
        let protocol = self.protocol.ok_or_else(|| missing("IPSET_ATTR_PROTO"))?;
        Ok(Ports::range(Protocol::from_kernel(protocol), self.range()?))
    }

    fn element(&self, set_type: SetType) -> Result<Element, WireError> {
        Ok(match set_type.shape() {
            Shape::Ip => Element::Ip(self.first()?),
            Shape::IpMark => Element::IpMark(self.first()?, self.mark.ok_or_else(|| missing("IPSET_ATTR_MARK"))?),
            Shape::IpPort => Element::IpPort(self.first()?, self.ports()?),
            Shape::IpPortIp => Element::IpPortIp(self.first()?, self.ports()?, self.second()?),
            Shape::IpMac => Element::IpMac(self.first()?, self.ether.map(MacAddr)),
            Shape::Mac => Element::Mac(MacAddr(self.ether.ok_or_else(|| missing("IPSET_ATTR_ETHER"))?)),
            Shape::IpIp => Element::IpIp(self.first()?, self.second()?),
            Shape::IpInterface => {
                let name = self.interface.ok_or_else(|| missing("IPSET_ATTR_IFACE"))?;
                Element::IpInterface {
                    network: self.first()?,
                    interface: Interface::from_kernel(name.as_bytes()),
                    physdev: self.flags & uapi::IPSET_FLAG_PHYSDEV != 0,
                }
            }
            Shape::Port => Element::Port(self.range()?),
            Shape::Set => {
                let name = self.name.ok_or_else(|| missing("IPSET_ATTR_NAME"))?;
                Element::Set(SetName::from_kernel(name.as_bytes()))
            }
            Shape::Unknown => {
                return Err(WireError::Value {
                    attribute: "IPSET_ATTR_TYPENAME".to_owned(),
                    value: "the type of the set".to_owned(),
                });
            }
        })
    }
}
