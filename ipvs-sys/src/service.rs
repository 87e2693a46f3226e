//! Virtual servers. Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_svc_policy`, `ip_vs_genl_fill_service`.

use netlink_batch::{Attrs, Be16, Encoder, NulStr, Wire, attrs};

use crate::stats::StatsAttr;
use crate::uapi::SvcFlags;

/// `struct ip_vs_flags`. The kernel keeps the flags outside `mask`: the result is `old & !mask | flags & mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagsMask {
    /// The flags.
    pub flags: SvcFlags,
    /// The flags to change. The kernel's answers have all bits set.
    pub mask: u32,
}

impl Wire<'_> for FlagsMask {
    const EXPECTED: &'static str = "8 bytes";
    const LENGTH: Option<usize> = Some(8);

    fn get(payload: &[u8]) -> Option<Self> {
        let (flags, mask) = payload.split_first_chunk::<4>()?;
        let mask = u32::get(mask)?;
        Some(FlagsMask { flags: SvcFlags::from_bits_retain(u32::from_ne_bytes(*flags)), mask })
    }

    fn put(&self, out: &mut Encoder) {
        self.flags.bits().put(out);
        self.mask.put(out);
    }
}

attrs! {
    /// A virtual server, nested in `IPVS_CMD_ATTR_SERVICE`.
    "IPVS_SVC_ATTR_", pub enum SvcAttr<'a> {
        /// Address family: `AF_INET` or `AF_INET6`, host order.
        AF = 1 => Af(u16),
        /// IP protocol, host order. With a firewall mark the kernel ignores it and reports TCP.
        PROTOCOL = 2 => Protocol(u16),
        /// Address: `union nf_inet_addr`, IPv4 in the first four bytes.
        ADDR = 3 => Addr([u8; 16]),
        /// Port.
        PORT = 4 => Port(Be16),
        /// Firewall mark, host order; replaces protocol, address and port.
        FWMARK = 5 => Fwmark(u32),
        /// Name of the scheduler; `none` for no scheduler, since Linux 4.2.
        SCHED_NAME = 6 => SchedName(NulStr<'a>),
        /// Flags with mask.
        FLAGS = 7 => Flags(FlagsMask),
        /// Persistence timeout: seconds that a client stays with its real server.
        TIMEOUT = 8 => Timeout(u32),
        /// Persistence treats client addresses that are equal under this mask as one client. IPv4: netmask in network
        /// order. IPv6: prefix length of 1 to 128 in host order.
        NETMASK = 9 => Netmask([u8; 4]),
        /// Counters and rates, truncated to 32 bits.
        STATS = 10 => Stats(Attrs<'a, StatsAttr<'a>>),
        /// Name of the persistence engine (`sip`).
        PE_NAME = 11 => PeName(NulStr<'a>),
        /// Counters and rates, 64 bits. Since Linux 4.1.
        STATS64 = 12 => Stats64(Attrs<'a, StatsAttr<'a>>),
    }
}
