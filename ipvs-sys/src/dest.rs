//! Real servers. Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_dest_policy`, `ip_vs_genl_fill_dest`.

use netlink_batch::{Attrs, Be16, attrs};

use crate::stats::StatsAttr;

attrs! {
    /// A real server, nested in `IPVS_CMD_ATTR_DEST`.
    "IPVS_DEST_ATTR_", pub enum DestAttr<'a> {
        /// Address: `union nf_inet_addr`, IPv4 in the first four bytes.
        ADDR = 1 => Addr([u8; 16]),
        /// Port.
        PORT = 2 => Port(Be16),
        /// Forwarding method (`IP_VS_CONN_F_*`). Answers may contain other connection flags as well.
        FWD_METHOD = 3 => FwdMethod(u32),
        /// Weight: 0 to 2^31-1; the kernel refuses more with `ERANGE`.
        WEIGHT = 4 => Weight(u32),
        /// No new connections above this number; 0 for no limit.
        U_THRESH = 5 => UThresh(u32),
        /// New connections again below this number.
        L_THRESH = 6 => LThresh(u32),
        /// Active connections.
        ACTIVE_CONNS = 7 => ActiveConns(u32),
        /// Inactive connections: closing, or not established yet.
        INACT_CONNS = 8 => InactConns(u32),
        /// Persistence templates.
        PERSIST_CONNS = 9 => PersistConns(u32),
        /// Counters and rates, truncated to 32 bits.
        STATS = 10 => Stats(Attrs<'a, StatsAttr<'a>>),
        /// Address family of the address, host order; missing if it is the virtual server's. Since Linux 3.18.
        ADDR_FAMILY = 11 => AddrFamily(u16),
        /// Counters and rates, 64 bits. Since Linux 4.1.
        STATS64 = 12 => Stats64(Attrs<'a, StatsAttr<'a>>),
        /// Type of the tunnel. Since Linux 5.2.
        TUN_TYPE = 13 => TunType(u8),
        /// UDP port of a GUE tunnel. Since Linux 5.2.
        TUN_PORT = 14 => TunPort(Be16),
        /// Flags of the tunnel, host order. Since Linux 5.3.
        TUN_FLAGS = 15 => TunFlags(u16),
    }
}
