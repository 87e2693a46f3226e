//! The synchronisation daemon. Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_daemon_policy`, `ip_vs_genl_fill_daemon`.

use netlink_batch::{NulStr, attrs};

attrs! {
    /// A synchronisation daemon, nested in `IPVS_CMD_ATTR_DAEMON`.
    "IPVS_DAEMON_ATTR_", pub enum DaemonAttr<'a> {
        /// `STATE_MASTER` or `STATE_BACKUP`.
        STATE = 1 => State(u32),
        /// Interface over which connections are multicast.
        MCAST_IFN = 2 => McastIfn(NulStr<'a>),
        /// Daemons exchange connections only with those of the same number (0 to 255); a backup with 0 accepts all.
        SYNC_ID = 3 => SyncId(u32),
        /// Largest UDP payload in bytes. 0 means what fits into 1500 bytes, or for a backup into the interface's MTU if
        /// that is more. Since Linux 4.3.
        SYNC_MAXLEN = 4 => SyncMaxlen(u16),
        /// IPv4 multicast group, default 224.0.0.81. Since Linux 4.3.
        MCAST_GROUP = 5 => McastGroup([u8; 4]),
        /// IPv6 multicast group. Since Linux 4.3.
        MCAST_GROUP6 = 6 => McastGroup6([u8; 16]),
        /// UDP port, host order, default 8848. Since Linux 4.3.
        MCAST_PORT = 7 => McastPort(u16),
        /// Time to live of the multicasts, default 1. Since Linux 4.3.
        MCAST_TTL = 8 => McastTtl(u8),
    }
}
