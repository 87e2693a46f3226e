//! `IPVS_CMD_DEL_SERVICE`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Deletes a virtual server with its real servers. Takes only the key. Its connections lose their real servers.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_del_service`.
#[derive(Clone, Copy, Debug)]
pub struct DelService<S> {
    /// The virtual server: its key.
    pub service: S,
}

impl<S: Fields> Command for DelService<S> {
    const NUMBER: u8 = 3;
    const NAME: &'static str = "IPVS_CMD_DEL_SERVICE";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::ESRCH, Failure::VirtualServerMissing),
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
    }
}
