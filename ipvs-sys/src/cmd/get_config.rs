//! `IPVS_CMD_GET_CONFIG`.

use netlink_batch::{Attrs, Encoder, WireError};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Query};

/// Reads the timeouts.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_get_cmd`.
#[derive(Clone, Copy, Debug)]
pub struct GetConfig;

impl Command for GetConfig {
    const NUMBER: u8 = 13;
    const NAME: &'static str = "IPVS_CMD_GET_CONFIG";

    fn encode(&self, _out: &mut Encoder) {}
}

impl Query for GetConfig {
    type Reply<'a> = Attrs<'a, CmdAttr<'a>>;

    fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError> {
        Ok(Attrs::new(attributes))
    }
}
