//! `IPVS_CMD_GET_DEST`.

use netlink_batch::{Attrs, Encoder, WireError};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Fields, Query};
use crate::dest::DestAttr;

/// Lists the real servers of a virtual server. Only works as a dump. The kernel returns an empty list if the virtual
/// server does not exist.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_dump_dests`.
#[derive(Clone, Copy, Debug)]
pub struct GetDest<S> {
    /// The virtual server: its key.
    pub service: S,
}

impl<S: Fields> Command for GetDest<S> {
    const NUMBER: u8 = 8;
    const NAME: &'static str = "IPVS_CMD_GET_DEST";

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
    }
}

impl<S: Fields> Query for GetDest<S> {
    type Reply<'a> = Attrs<'a, DestAttr<'a>>;

    fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError> {
        for attribute in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
            if let CmdAttr::Dest(found) = attribute? {
                return Ok(found);
            }
        }
        Err(WireError::Missing { attribute: "IPVS_CMD_ATTR_DEST".to_owned() })
    }
}
