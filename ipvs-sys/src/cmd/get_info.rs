//! `IPVS_CMD_GET_INFO`.

use netlink_batch::{Attrs, Encoder, WireError};

use crate::attr::InfoAttr;
use crate::cmd::{Command, Query};

/// Reads the version and the table size. The answer arrives as `IPVS_CMD_SET_INFO`.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_get_cmd`.
#[derive(Clone, Copy, Debug)]
pub struct GetInfo;

impl Command for GetInfo {
    const NUMBER: u8 = 15;
    const NAME: &'static str = "IPVS_CMD_GET_INFO";

    fn encode(&self, _out: &mut Encoder) {}
}

impl Query for GetInfo {
    type Reply<'a> = Attrs<'a, InfoAttr<'a>>;

    fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError> {
        Ok(Attrs::new(attributes))
    }
}
