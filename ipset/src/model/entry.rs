//! The entries of a set.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Comment, Family, Interface, IpSpan, MacAddr, PortRange, Ports, SetName, SetType, Shape, Timeout};

/// The identity of an entry: its addresses, ports, MAC address, interface or mark. Printed in `ipset`'s syntax.
///
/// The set's type decides whether a network or range is one entry or many: see [`Entry::expand`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Element {
    /// hash:ip, hash:net, bitmap:ip.
    Ip(IpSpan),
    /// hash:ip,mark.
    IpMark(IpSpan, u32),
    /// hash:ip,port, hash:net,port.
    IpPort(IpSpan, Ports),
    /// hash:ip,port,ip, hash:ip,port,net, hash:net,port,net.
    IpPortIp(IpSpan, Ports, IpSpan),
    /// hash:ip,mac, and bitmap:ip,mac where the MAC address may be missing.
    IpMac(IpSpan, Option<MacAddr>),
    /// hash:mac.
    Mac(MacAddr),
    /// hash:net,net.
    IpIp(IpSpan, IpSpan),
    /// hash:net,iface.
    IpInterface {
        /// The network.
        network: IpSpan,
        /// The interface.
        interface: Interface,
        /// The interface is the bridge port on which the packet arrived (`physdev:`).
        physdev: bool,
    },
    /// bitmap:port.
    Port(PortRange),
    /// list:set.
    Set(SetName),
}

impl Element {
    /// The parts it consists of.
    pub fn shape(&self) -> Shape {
        match self {
            Element::Ip(_) => Shape::Ip,
            Element::IpMark(..) => Shape::IpMark,
            Element::IpPort(..) => Shape::IpPort,
            Element::IpPortIp(..) => Shape::IpPortIp,
            Element::IpMac(..) => Shape::IpMac,
            Element::Mac(_) => Shape::Mac,
            Element::IpIp(..) => Shape::IpIp,
            Element::IpInterface { .. } => Shape::IpInterface,
            Element::Port(_) => Shape::Port,
            Element::Set(_) => Shape::Set,
        }
    }

    /// First and second address part.
    pub(crate) fn spans(&self) -> (Option<IpSpan>, Option<IpSpan>) {
        match self {
            Element::Ip(span) | Element::IpMark(span, _) | Element::IpPort(span, _) | Element::IpMac(span, _) => {
                (Some(*span), None)
            }
            Element::IpInterface { network, .. } => (Some(*network), None),
            Element::IpPortIp(first, _, second) | Element::IpIp(first, second) => (Some(*first), Some(*second)),
            Element::Mac(_) | Element::Port(_) | Element::Set(_) => (None, None),
        }
    }

    /// The family of its addresses; `None` if it has none or both.
    pub(crate) fn family(&self) -> Option<Family> {
        match self.spans() {
            (Some(first), Some(second)) if first.family() != second.family() => None,
            (first, _) => first.map(|span| span.family()),
        }
    }

    /// The protocol and ports.
    pub(crate) fn ports(&self) -> Option<Ports> {
        match self {
            Element::IpPort(_, ports) | Element::IpPortIp(_, ports, _) => Some(*ports),
            _ => None,
        }
    }
}

/// An element with the kernel's notion of equality: a bitmap:ip,mac has one MAC address per address
/// (net/netfilter/ipset/ip_set_bitmap_ipmac.c).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    element: &'a Element,
    by_address: bool,
}

impl<'a> Identity<'a> {
    pub(crate) fn new(set_type: SetType, element: &'a Element) -> Self {
        Identity { element, by_address: set_type == SetType::BitmapIpMac }
    }
}

impl PartialEq for Identity<'_> {
    fn eq(&self, other: &Self) -> bool {
        if self.by_address { self.element.spans() == other.element.spans() } else { self.element == other.element }
    }
}
impl Eq for Identity<'_> {}

impl Hash for Identity<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if self.by_address { self.element.spans().hash(state) } else { self.element.hash(state) }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Ip(span) | Element::IpMac(span, None) => write!(f, "{span}"),
            Element::IpMark(span, mark) => write!(f, "{span},0x{mark:08x}"),
            Element::IpPort(span, ports) => write!(f, "{span},{ports}"),
            Element::IpPortIp(first, ports, second) => write!(f, "{first},{ports},{second}"),
            Element::IpMac(span, Some(mac)) => write!(f, "{span},{mac}"),
            Element::Mac(mac) => write!(f, "{mac}"),
            Element::IpIp(first, second) => write!(f, "{first},{second}"),
            Element::IpInterface { network, interface, physdev } => {
                write!(f, "{network},{}{interface}", if *physdev { "physdev:" } else { "" })
            }
            Element::Port(range) => write!(f, "{range}"),
            Element::Set(name) => write!(f, "{name}"),
        }
    }
}

/// A mark and the bits to which it applies. Printed as `0x1234/0xff00`, or without the mask if that is all bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SkbMark {
    /// The mark.
    pub mark: u32,
    /// The bits that are set or cleared.
    pub mask: u32,
}

impl fmt::Display for SkbMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.mark)?;
        if self.mask == u32::MAX { Ok(()) } else { write!(f, "/{:#x}", self.mask) }
    }
}

/// A traffic-control class. Printed as `1:10`, both parts in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SkbPriority {
    /// The upper part.
    pub major: u16,
    /// The lower part.
    pub minor: u16,
}

impl fmt::Display for SkbPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.major, self.minor)
    }
}

/// Where a member is added to a list:set. The kernel does not report it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Position {
    /// Directly before this member.
    Before(SetName),
    /// Directly after this member.
    After(SetName),
}

/// The options of an entry. Most of them need a set that was created for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct EntryOptions {
    /// Time left. `None` is the set's default. Needs a set with a timeout.
    pub timeout: Option<Timeout>,
    /// Packet counter. `None` leaves it unchanged. Needs [`SetFlags::COUNTERS`](crate::SetFlags::COUNTERS).
    pub packets: Option<u64>,
    /// Byte counter. `None` leaves it unchanged. Needs [`SetFlags::COUNTERS`](crate::SetFlags::COUNTERS).
    pub bytes: Option<u64>,
    /// A comment. Needs [`SetFlags::COMMENT`](crate::SetFlags::COMMENT).
    pub comment: Option<Comment>,
    /// Mark for the SET target's `--map-mark`. Needs [`SetFlags::SKBINFO`](crate::SetFlags::SKBINFO).
    pub skbmark: Option<SkbMark>,
    /// Class for `--map-prio`. Needs [`SetFlags::SKBINFO`](crate::SetFlags::SKBINFO).
    pub skbprio: Option<SkbPriority>,
    /// Queue for `--map-queue`. Needs [`SetFlags::SKBINFO`](crate::SetFlags::SKBINFO).
    pub skbqueue: Option<u16>,
    /// An exception: addresses in this network are not in the set, even if a larger network contains them. Only for
    /// types whose entries are networks.
    pub nomatch: bool,
    /// The interface's name is a prefix. Only for hash:net,iface, since Linux 5.5.
    pub wildcard: bool,
    /// Position of the member in a list:set.
    pub position: Option<Position>,
}

impl EntryOptions {
    /// No options.
    pub fn new() -> Self {
        Self::default()
    }
}

/// One entry of a set.
///
/// Built from its parts:
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use ipset::{Comment, Element, Entry, Timeout};
///
/// let entry = Entry::new(Element::from(Ipv4Addr::new(192, 0, 2, 1)))
///     .with_timeout(Timeout::from_secs(600)?)
///     .with_counters(3, 180)
///     .with_comment(Comment::new("failed logins")?);
/// assert_eq!(entry.to_string(), "192.0.2.1 timeout 600 packets 3 bytes 180 comment \"failed logins\"");
///
/// // All of the network but its upper half.
/// let network: ipset::IpSpan = "198.51.100.128/25".parse()?;
/// let upper = Entry::new(network.into()).with_nomatch();
/// assert_eq!(upper.to_string(), "198.51.100.128/25 nomatch");
/// # Ok::<(), ipset::InvalidValue>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Entry {
    /// Identity of the entry.
    pub element: Element,
    /// Options of the entry.
    #[cfg_attr(feature = "serde", serde(default))]
    pub options: EntryOptions,
}

impl Entry {
    /// An entry without options.
    pub fn new(element: Element) -> Self {
        Entry { element, options: EntryOptions::default() }
    }

    /// Sets all options.
    #[must_use]
    pub fn with_options(mut self, options: EntryOptions) -> Self {
        self.options = options;
        self
    }
}

netlink_batch::settings! {
    EntryOptions, Entry in options:
    /// Sets the time left.
    with_timeout(timeout: Timeout) |of| of.timeout = Some(timeout);
    /// Sets the counters.
    with_counters(packets: u64, bytes: u64) |of| (of.packets, of.bytes) = (Some(packets), Some(bytes));
    /// Sets the comment.
    with_comment(comment: Comment) |of| of.comment = Some(comment);
    /// Sets the mark.
    with_skbmark(skbmark: SkbMark) |of| of.skbmark = Some(skbmark);
    /// Sets the class.
    with_skbprio(skbprio: SkbPriority) |of| of.skbprio = Some(skbprio);
    /// Sets the queue.
    with_skbqueue(skbqueue: u16) |of| of.skbqueue = Some(skbqueue);
    /// Makes the entry an exception: its addresses are not in the set.
    with_nomatch() |of| of.nomatch = true;
    /// Treats the interface's name as a prefix.
    with_wildcard() |of| of.wildcard = true;
    /// Sets the position in a list:set.
    with_position(position: Position) |of| of.position = Some(position);
}

impl From<Element> for Entry {
    fn from(element: Element) -> Self {
        Entry::new(element)
    }
}

macro_rules! element_from {
    ($($part:ty => $variant:ident),*) => { $(
        impl From<$part> for Element {
            fn from(part: $part) -> Self {
                Element::$variant(part.into())
            }
        }
    )* };
}
// Types that are a whole element by themselves.
element_from!(IpAddr => Ip, Ipv4Addr => Ip, Ipv6Addr => Ip, IpSpan => Ip, MacAddr => Mac, PortRange => Port, SetName => Set);

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.element, self.options)
    }
}

/// Each option with a leading blank, in the order of `ipset save`.
impl fmt::Display for EntryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.position {
            Some(Position::Before(name)) => write!(f, " before {name}")?,
            Some(Position::After(name)) => write!(f, " after {name}")?,
            None => {}
        }
        if let Some(timeout) = self.timeout {
            write!(f, " timeout {}", timeout.secs())?;
        }
        if self.nomatch {
            f.write_str(" nomatch")?;
        }
        if self.wildcard {
            f.write_str(" wildcard")?;
        }
        if let Some(packets) = self.packets {
            write!(f, " packets {packets}")?;
        }
        if let Some(bytes) = self.bytes {
            write!(f, " bytes {bytes}")?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{comment}\"")?;
        }
        if let Some(mark) = self.skbmark {
            write!(f, " skbmark {mark}")?;
        }
        if let Some(priority) = self.skbprio {
            write!(f, " skbprio {priority}")?;
        }
        if let Some(queue) = self.skbqueue {
            write!(f, " skbqueue {queue}")?;
        }
        Ok(())
    }
}
