//! The kernel's set types and their properties.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{InvalidValue, SetFlags, SetOptions};

/// The family of a set's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Family {
    /// IPv4.
    #[default]
    Inet,
    /// IPv6.
    Inet6,
}

impl Family {
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    pub(crate) fn number(self) -> u8 {
        match self {
            Family::Inet => 2,
            Family::Inet6 => 10,
        }
    }

    pub(crate) fn from_number(number: u8) -> Self {
        if number == 10 { Family::Inet6 } else { Family::Inet }
    }

    /// Bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Family::Inet => 32,
            Family::Inet6 => 128,
        }
    }
}

/// Family of an address.
impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::Inet } else { Family::Inet6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Inet6 => "inet6",
        })
    }
}

impl FromStr for Family {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "inet" | "ipv4" | "-4" => Ok(Family::Inet),
            "inet6" | "ipv6" | "-6" => Ok(Family::Inet6),
            _ => Err(InvalidValue::Family(text.to_owned())),
        }
    }
}

/// The parts of an entry of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Shape {
    /// `IP`
    Ip,
    /// `IP,MARK`
    IpMark,
    /// `IP,PORT`
    IpPort,
    /// `IP,PORT,IP`
    IpPortIp,
    /// `IP,MAC`
    IpMac,
    /// `MAC`
    Mac,
    /// `IP,IP`
    IpIp,
    /// `IP,INTERFACE`
    IpInterface,
    /// `PORT`
    Port,
    /// `SET`
    Set,
    /// Form of an unknown type.
    Unknown,
}

/// How a type treats an address part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A network or range is expanded to its addresses.
    Each,
    /// A single address only.
    One,
    /// A network is one entry.
    Net,
}

/// A row of the table of types.
#[derive(Debug)]
pub(crate) struct TypeInfo {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) first: Part,
    pub(crate) second: Part,
    /// The only family of such sets, as an `NFPROTO_*` number; `None` if each set has its own.
    pub(crate) family: Option<u8>,
    /// The first revision with every entry option.
    base: u8,
    /// The first revision with bucketsize and initval.
    bucketsize: Option<u8>,
    /// The first revision with netmask.
    netmask: Option<u8>,
    /// The first revision with bitmask.
    bitmask: Option<u8>,
}

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $shape:ident, $first:ident, $second:ident, $family:expr,
        base $base:literal, bucketsize $bucketsize:expr, netmask $netmask:expr, bitmask $bitmask:expr;)*) => {
        /// A set type.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum SetType {
            $($(#[$doc])* #[doc = concat!("`", $text, "`.")] $name,)*
            /// A type from a module outside the kernel's tree, which this crate does not know. Such sets are listed
            /// without entries.
            Unknown,
        }

        impl SetType {
            /// Every type of the kernel.
            pub const ALL: &'static [SetType] = &[$(SetType::$name),*];

            pub(crate) const fn info(self) -> &'static TypeInfo {
                match self {
                    $(SetType::$name => &TypeInfo {
                        name: $text, shape: Shape::$shape, first: Part::$first, second: Part::$second, family: $family,
                        base: $base, bucketsize: $bucketsize, netmask: $netmask, bitmask: $bitmask,
                    },)*
                    SetType::Unknown => &TypeInfo {
                        name: "unknown", shape: Shape::Unknown, first: Part::One, second: Part::One, family: None,
                        base: 0, bucketsize: None, netmask: None, bitmask: None,
                    },
                }
            }
        }
    };
}

const UNSPEC: Option<u8> = Some(0);
const IPV4: Option<u8> = Some(2);

// Revisions: the comments at IPSET_TYPE_REV_MAX in each net/netfilter/ipset/ip_set_*.c.
types! {
    /// Addresses.
    HashIp = "hash:ip", Ip, Each, One, None, base 4, bucketsize Some(5), netmask Some(0), bitmask Some(6);
    /// Addresses with a packet mark.
    HashIpMark = "hash:ip,mark", IpMark, Each, One, None, base 2, bucketsize Some(3), netmask None, bitmask None;
    /// Addresses with protocol and port.
    HashIpPort = "hash:ip,port", IpPort, Each, One, None, base 5, bucketsize Some(6), netmask Some(7), bitmask Some(7);
    /// Address, protocol and port, and a second address.
    HashIpPortIp = "hash:ip,port,ip", IpPortIp, Each, One, None, base 5, bucketsize Some(6), netmask None, bitmask None;
    /// Address, protocol and port, and a network.
    HashIpPortNet = "hash:ip,port,net", IpPortIp, Each, Net, None, base 7, bucketsize Some(8), netmask None, bitmask None;
    /// Address and MAC address.
    HashIpMac = "hash:ip,mac", IpMac, One, One, None, base 0, bucketsize Some(1), netmask None, bitmask None;
    /// MAC addresses.
    HashMac = "hash:mac", Mac, One, One, UNSPEC, base 0, bucketsize Some(1), netmask None, bitmask None;
    /// Networks.
    HashNet = "hash:net", Ip, Net, One, None, base 6, bucketsize Some(7), netmask None, bitmask None;
    /// Two networks.
    HashNetNet = "hash:net,net", IpIp, Net, Net, None, base 2, bucketsize Some(3), netmask Some(4), bitmask Some(4);
    /// Network and interface.
    HashNetIface = "hash:net,iface", IpInterface, Net, One, None, base 7, bucketsize Some(8), netmask None, bitmask None;
    /// Network, protocol and port.
    HashNetPort = "hash:net,port", IpPort, Net, One, None, base 7, bucketsize Some(8), netmask None, bitmask None;
    /// Network, protocol and port, and a second network.
    HashNetPortNet = "hash:net,port,net", IpPortIp, Net, Net, None, base 2, bucketsize Some(3), netmask None, bitmask None;
    /// IPv4 addresses of one range, one bit each.
    BitmapIp = "bitmap:ip", Ip, Each, One, IPV4, base 3, bucketsize None, netmask Some(0), bitmask None;
    /// IPv4 addresses of one range, each with an optional MAC address that the first packet fills in.
    BitmapIpMac = "bitmap:ip,mac", IpMac, One, One, IPV4, base 3, bucketsize None, netmask None, bitmask None;
    /// Ports of one range, without protocol.
    BitmapPort = "bitmap:port", Port, One, One, UNSPEC, base 3, bucketsize None, netmask None, bitmask None;
    /// Other sets.
    ListSet = "list:set", Set, One, One, UNSPEC, base 3, bucketsize None, netmask None, bitmask None;
}

impl SetType {
    /// The kernel's name: `"hash:ip,port"`.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The parts an entry consists of.
    pub fn shape(self) -> Shape {
        self.info().shape
    }

    /// Whether it is a `hash:` type.
    pub fn is_hash(self) -> bool {
        self.name().starts_with("hash:")
    }

    /// Whether it is a `bitmap:` type.
    pub fn is_bitmap(self) -> bool {
        self.name().starts_with("bitmap:")
    }

    /// Whether a set's family can be chosen. Other types are IPv4 only or have no addresses.
    pub fn has_family(self) -> bool {
        self.info().family.is_none()
    }

    /// Whether entries may be `nomatch`: only types whose entries are networks.
    pub fn has_nomatch(self) -> bool {
        let info = self.info();
        info.first == Part::Net || info.second == Part::Net
    }

    /// Whether an entry may be a network of prefix length 0, that is, all addresses. These types refuse it
    /// (`IPSET_ERR_INVALID_CIDR` in their `..._uadt`): hash:net, hash:net,net, hash:net,port and hash:ip,port,net.
    /// [`Entry::expand`](crate::Entry::expand) returns its two halves for these.
    pub fn has_zero_prefix(self) -> bool {
        matches!(self, SetType::HashNetIface | SetType::HashNetPortNet)
    }

    /// Whether sets may have `netmask`.
    pub fn has_netmask(self) -> bool {
        self.info().netmask.is_some()
    }

    /// Whether sets may have `bitmask`.
    pub fn has_bitmask(self) -> bool {
        self.info().bitmask.is_some()
    }

    pub(crate) fn family_number(self, family: Family) -> u8 {
        self.info().family.unwrap_or_else(|| family.number())
    }

    /// The lowest revision offered by the kernel that supports all entry options and every option in `options`. If
    /// there is none, the name of the option for which the kernel is too old.
    ///
    /// bucketsize and initval use the newest revision, since the kernel reports them only for that one
    /// (`create_flags[IPSET_TYPE_REV_MAX]`).
    pub(crate) fn revision(self, options: &SetOptions, offered: &RangeInclusive<u8>) -> Result<u8, &'static str> {
        let info = self.info();
        let (least, newest) = (*offered.start(), *offered.end());
        let mut revision = info.base.clamp(least, newest.max(least));
        let asked = [
            (options.netmask.is_some(), info.netmask, "netmask"),
            (options.bitmask.is_some(), info.bitmask, "bitmask"),
            (options.bucketsize.is_some(), info.bucketsize, "bucketsize"),
            (options.initval.is_some(), info.bucketsize, "initval"),
        ];
        for (_, since, option) in asked.into_iter().filter(|(asked, ..)| *asked) {
            let since = since.filter(|since| *since <= newest).ok_or(option)?;
            revision = revision.max(since);
        }
        if options.bucketsize.is_some() || options.initval.is_some() {
            revision = newest;
        }
        Ok(revision)
    }

    /// The name of the first option that sets of this type do not support.
    pub(crate) fn foreign_option(self, options: &SetOptions) -> Option<&'static str> {
        let info = self.info();
        let hash = self.is_hash();
        let present = [
            (options.hashsize.is_some() && !hash, "hashsize"),
            (options.maxelem.is_some() && !hash, "maxelem"),
            (options.bucketsize.is_some() && !hash, "bucketsize"),
            (options.initval.is_some() && !hash, "initval"),
            (options.flags.contains(SetFlags::FORCEADD) && !hash, "forceadd"),
            (options.netmask.is_some() && info.netmask.is_none(), "netmask"),
            (options.bitmask.is_some() && info.bitmask.is_none(), "bitmask"),
            (options.markmask.is_some() && self != SetType::HashIpMark, "markmask"),
            (options.range.is_some() && !self.is_bitmap(), "range"),
            (options.size.is_some() && self != SetType::ListSet, "size"),
        ];
        present.into_iter().find_map(|(foreign, name)| foreign.then_some(name))
    }
}

impl fmt::Display for SetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SetType {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let found = SetType::ALL.iter().find(|set_type| set_type.name() == text);
        found.copied().ok_or_else(|| InvalidValue::SetType(text.to_owned()))
    }
}
