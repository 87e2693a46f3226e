//! The attribute tables: number, name and type of each attribute, as in linux/netfilter/ipset/ip_set.h.
//!
//! Numbers in network byte order need the flag `NLA_F_NET_BYTEORDER` (kernel: `ip_set_attr_netorder`,
//! include/linux/netfilter/ipset/ip_set.h). [`put_net`] is the only place that sets it.

use netlink_batch::{Attrs, Be16, Be32, Be64, Encoder, NulStr, Wire, attrs};

/// The attribute is in network byte order (linux/netlink.h).
pub(crate) const NLA_F_NET_BYTEORDER: u16 = 0x4000;

/// Appends a number in network byte order, marked as such.
pub(crate) fn put_net<'a, W: Wire<'a>>(out: &mut Encoder, kind: u16, value: &W) {
    out.attr(kind | NLA_F_NET_BYTEORDER, value);
}

attrs! {
    /// Attributes of a command.
    "IPSET_ATTR_", pub enum CmdAttr<'a> {
        /// Protocol version of the request, or the newest version that the kernel supports.
        PROTOCOL = 1 => Protocol(u8),
        SETNAME = 2 => SetName(NulStr<'a>),
        /// Name of the type. For RENAME and SWAP the name of the second set (`IPSET_ATTR_SETNAME2`).
        TYPENAME = 3 => TypeName(NulStr<'a>),
        REVISION = 4 => Revision(u8),
        /// `NFPROTO_*`.
        FAMILY = 5 => Family(u8),
        /// `IPSET_FLAG_LIST_*`, in network byte order.
        FLAGS = 6 => Flags(Be32),
        DATA = 7 => Data(&'a [u8]),
        /// Many entries, each an `IPSET_ATTR_DATA`.
        ADT = 8 => Adt(&'a [u8]),
        /// Number of the failing entry, written by the kernel into its copy of the request. Host byte order.
        LINENO = 9 => Lineno(u32),
        /// The oldest protocol version (`IPSET_ATTR_PROTOCOL_MIN`), or the type's lowest revision
        /// (`IPSET_ATTR_REVISION_MIN`).
        PROTOCOL_MIN = 10 => ProtocolMin(u8),
        /// The kernel's index of the set, in network byte order.
        INDEX = 11 => Index(Be16),
    }

    /// One address.
    "IPSET_ATTR_", pub enum AddressAttr<'a> {
        /// Four bytes.
        IPADDR_IPV4 = 1 => V4([u8; 4]),
        /// Sixteen bytes.
        IPADDR_IPV6 = 2 => V6([u8; 16]),
    }

    /// Create options, inside `IPSET_ATTR_DATA` of CREATE and of a listing.
    "IPSET_ATTR_", pub enum CreateAttr<'a> {
        IP = 1 => Ip(Attrs<'a, AddressAttr<'a>>),
        IP_TO = 2 => IpTo(Attrs<'a, AddressAttr<'a>>),
        /// Prefix length, instead of the last address.
        CIDR = 3 => Cidr(u8),
        PORT = 4 => Port(Be16),
        PORT_TO = 5 => PortTo(Be16),
        /// Default timeout in seconds.
        TIMEOUT = 6 => Timeout(Be32),
        /// `IPSET_FLAG_WITH_*`.
        CADT_FLAGS = 8 => CadtFlags(Be32),
        /// Mask of hash:ip,mark. The kernel reads it in network byte order but writes it in host byte order, without
        /// the byte-order flag (net/netfilter/ipset/ip_set_hash_gen.h, `mtype_head`).
        MARKMASK = 11 => MarkMask([u8; 4]),
        /// Mask of addresses. Since Linux 6.2.
        BITMASK = 12 => BitMask(Attrs<'a, AddressAttr<'a>>),
        INITVAL = 17 => InitVal(Be32),
        HASHSIZE = 18 => HashSize(Be32),
        MAXELEM = 19 => MaxElem(Be32),
        /// Prefix length to which addresses are cut.
        NETMASK = 20 => NetMask(u8),
        BUCKETSIZE = 21 => BucketSize(u8),
        SIZE = 23 => Size(Be32),
        ELEMENTS = 24 => Elements(Be32),
        REFERENCES = 25 => References(Be32),
        /// Bytes of memory.
        MEMSIZE = 26 => MemSize(Be32),
    }

    /// One entry, inside `IPSET_ATTR_DATA`.
    "IPSET_ATTR_", pub enum EntryAttr<'a> {
        IP = 1 => Ip(Attrs<'a, AddressAttr<'a>>),
        IP_TO = 2 => IpTo(Attrs<'a, AddressAttr<'a>>),
        CIDR = 3 => Cidr(u8),
        PORT = 4 => Port(Be16),
        PORT_TO = 5 => PortTo(Be16),
        /// Seconds left.
        TIMEOUT = 6 => Timeout(Be32),
        PROTO = 7 => Proto(u8),
        /// `IPSET_FLAG_*`.
        CADT_FLAGS = 8 => CadtFlags(Be32),
        /// The entry's number, in host byte order.
        LINENO = 9 => Lineno(u32),
        MARK = 10 => Mark(Be32),
        ETHER = 17 => Ether([u8; 6]),
        NAME = 18 => Name(NulStr<'a>),
        NAMEREF = 19 => NameRef(NulStr<'a>),
        IP2 = 20 => Ip2(Attrs<'a, AddressAttr<'a>>),
        CIDR2 = 21 => Cidr2(u8),
        IP2_TO = 22 => Ip2To(Attrs<'a, AddressAttr<'a>>),
        IFACE = 23 => Iface(NulStr<'a>),
        BYTES = 24 => Bytes(Be64),
        PACKETS = 25 => Packets(Be64),
        COMMENT = 26 => Comment(NulStr<'a>),
        /// Mark in the upper half, mask in the lower.
        SKBMARK = 27 => SkbMark(Be64),
        /// Traffic-control class: major in the upper half, minor in the lower.
        SKBPRIO = 28 => SkbPrio(Be32),
        SKBQUEUE = 29 => SkbQueue(Be16),
        /// Padding.
        PAD = 30 => Pad(&'a [u8]),
    }
}
