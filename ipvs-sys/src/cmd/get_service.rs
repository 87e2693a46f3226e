//! `IPVS_CMD_GET_SERVICE`.

use netlink_batch::{Attrs, Encoder, Errno, WireError};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields, Query};
use crate::service::SvcAttr;

/// Reads one virtual server by its key, or lists all of them as a dump without attributes.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_get_cmd`, `ip_vs_genl_dump_services`.
#[derive(Clone, Copy, Debug)]
pub struct GetService<S> {
    /// The virtual server's key; `None` for all.
    pub service: Option<S>,
}

impl<S: Fields> Command for GetService<S> {
    const NUMBER: u8 = 4;
    const NAME: &'static str = "IPVS_CMD_GET_SERVICE";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::ESRCH, Failure::VirtualServerMissing),
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
    ];

    fn encode(&self, out: &mut Encoder) {
        if let Some(service) = &self.service {
            out.nest(CmdAttr::SERVICE, |out| service.put(out));
        }
    }
}

impl<S: Fields> Query for GetService<S> {
    type Reply<'a> = Attrs<'a, SvcAttr<'a>>;

    fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError> {
        for attribute in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
            if let CmdAttr::Service(found) = attribute? {
                return Ok(found);
            }
        }
        Err(WireError::Missing { attribute: "IPVS_CMD_ATTR_SERVICE".to_owned() })
    }
}
