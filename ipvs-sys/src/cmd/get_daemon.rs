//! `IPVS_CMD_GET_DAEMON`.

use netlink_batch::{Attrs, Encoder, WireError};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Query};
use crate::daemon::DaemonAttr;

/// Lists the running synchronisation daemons. Only works as a dump.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_dump_daemons`.
#[derive(Clone, Copy, Debug)]
pub struct GetDaemon;

impl Command for GetDaemon {
    const NUMBER: u8 = 11;
    const NAME: &'static str = "IPVS_CMD_GET_DAEMON";

    fn encode(&self, _out: &mut Encoder) {}
}

impl Query for GetDaemon {
    type Reply<'a> = Attrs<'a, DaemonAttr<'a>>;

    fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError> {
        for attribute in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
            if let CmdAttr::Daemon(found) = attribute? {
                return Ok(found);
            }
        }
        Err(WireError::Missing { attribute: "IPVS_CMD_ATTR_DAEMON".to_owned() })
    }
}
