//! The top level: attributes of a command. Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_cmd_policy`.

use netlink_batch::{Attrs, attrs};

use crate::daemon::DaemonAttr;
use crate::dest::DestAttr;
use crate::service::SvcAttr;

attrs! {
    /// Attributes of a command.
    "IPVS_CMD_ATTR_", pub enum CmdAttr<'a> {
        /// The virtual server the command is about.
        SERVICE = 1 => Service(Attrs<'a, SvcAttr<'a>>),
        /// The real server the command is about.
        DEST = 2 => Dest(Attrs<'a, DestAttr<'a>>),
        /// The synchronisation daemon the command is about.
        DAEMON = 3 => Daemon(Attrs<'a, DaemonAttr<'a>>),
        /// Timeout of an idle TCP connection, in seconds.
        TIMEOUT_TCP = 4 => TimeoutTcp(u32),
        /// Timeout of a TCP connection after a FIN, in seconds.
        TIMEOUT_TCP_FIN = 5 => TimeoutTcpFin(u32),
        /// Timeout of an idle UDP flow, in seconds.
        TIMEOUT_UDP = 6 => TimeoutUdp(u32),
    }

    /// Attributes of the answer to `IPVS_CMD_GET_INFO`.
    "IPVS_INFO_ATTR_", pub enum InfoAttr<'a> {
        /// Version of IPVS: major, minor and patch in one byte each.
        VERSION = 1 => Version(u32),
        /// Size of the connection table.
        CONN_TAB_SIZE = 2 => ConnTabSize(u32),
    }
}
