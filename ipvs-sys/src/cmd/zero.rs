//! `IPVS_CMD_ZERO`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Resets the counters of one virtual server and its real servers, or of all of them if no key is given.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_zero_service`, `ip_vs_zero_all`.
#[derive(Clone, Copy, Debug)]
pub struct Zero<S> {
    /// The virtual server's key; `None` for all.
    pub service: Option<S>,
}

impl<S: Fields> Command for Zero<S> {
    const NUMBER: u8 = 16;
    const NAME: &'static str = "IPVS_CMD_ZERO";
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
