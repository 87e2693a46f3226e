//! Numbers and limits as in `linux/ip_vs.h`. A test compares each with the C header.

use bitflags::bitflags;

/// Name of the family (`IPVS_GENL_NAME`).
pub const GENL_NAME: &str = "IPVS";
/// Version of the family (`IPVS_GENL_VERSION`).
pub const GENL_VERSION: u8 = 1;

/// Length of a scheduler's name with its NUL (`IP_VS_SCHEDNAME_MAXLEN`).
pub const SCHEDNAME_MAXLEN: usize = 16;
/// Length of a persistence engine's name with its NUL (`IP_VS_PENAME_MAXLEN`).
pub const PENAME_MAXLEN: usize = 16;
/// Length of an interface's name with its NUL (`IP_VS_IFNAME_MAXLEN`).
pub const IFNAME_MAXLEN: usize = 16;

bitflags! {
    /// Flags of a virtual server (`IP_VS_SVC_F_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct SvcFlags: u32 {
        /// Persistent: a client stays with its real server.
        const PERSISTENT = 0x0001;
        /// The kernel has it in its hash table. Only the kernel sets it.
        const HASHED = 0x0002;
        /// One-packet scheduling (UDP): every packet is scheduled separately.
        const ONEPACKET = 0x0004;
        /// First scheduler flag: fallback for `sh` and `mh`.
        const SCHED1 = 0x0008;
        /// Second scheduler flag: hash the port too, for `sh` and `mh`.
        const SCHED2 = 0x0010;
        /// Third scheduler flag; no scheduler in the kernel uses it.
        const SCHED3 = 0x0020;
        const _ = !0;
    }
}

/// `IP_VS_CONN_F_FWD_MASK`: the bits of a real server's flags that hold the forwarding method.
pub const CONN_F_FWD_MASK: u32 = 0x0007;
/// Network address translation (`IP_VS_CONN_F_MASQ`).
pub const CONN_F_MASQ: u32 = 0x0000;
/// This host itself (`IP_VS_CONN_F_LOCALNODE`).
pub const CONN_F_LOCALNODE: u32 = 0x0001;
/// Tunnelling (`IP_VS_CONN_F_TUNNEL`).
pub const CONN_F_TUNNEL: u32 = 0x0002;
/// Direct routing (`IP_VS_CONN_F_DROUTE`).
pub const CONN_F_DROUTE: u32 = 0x0003;
/// Cache bypass (`IP_VS_CONN_F_BYPASS`).
pub const CONN_F_BYPASS: u32 = 0x0004;

/// IP in IP (`IP_VS_CONN_F_TUNNEL_TYPE_IPIP`).
pub const TUNNEL_TYPE_IPIP: u8 = 0;
/// Generic UDP encapsulation (`IP_VS_CONN_F_TUNNEL_TYPE_GUE`). Since Linux 5.2.
pub const TUNNEL_TYPE_GUE: u8 = 1;
/// Generic routing encapsulation (`IP_VS_CONN_F_TUNNEL_TYPE_GRE`). Since Linux 5.3.
pub const TUNNEL_TYPE_GRE: u8 = 2;

bitflags! {
    /// Flags of a tunnel (`IP_VS_TUNNEL_ENCAP_FLAG_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct TunnelFlags: u16 {
        /// The outer header carries a checksum.
        const CSUM = 0x1;
        /// Remote checksum offload (GUE).
        const REMCSUM = 0x2;
        const _ = !0;
    }
}

/// The synchronisation daemon is not running (`IP_VS_STATE_NONE`).
pub const STATE_NONE: u32 = 0;
/// State of a daemon that sends connections (`IP_VS_STATE_MASTER`).
pub const STATE_MASTER: u32 = 1;
/// State of a daemon that receives connections (`IP_VS_STATE_BACKUP`).
pub const STATE_BACKUP: u32 = 2;
