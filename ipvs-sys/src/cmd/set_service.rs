//! `IPVS_CMD_SET_SERVICE`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Changes a virtual server. Takes all attributes except the statistics. Flags outside the mask are unchanged.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_edit_service`.
#[derive(Clone, Copy, Debug)]
pub struct SetService<S> {
    /// The virtual server: its key and all settings.
    pub service: S,
}

impl<S: Fields> Command for SetService<S> {
    const NUMBER: u8 = 2;
    const NAME: &'static str = "IPVS_CMD_SET_SERVICE";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::ESRCH, Failure::VirtualServerMissing),
        // the scheduler's or persistence engine's module is missing and could not be loaded
        (Errno::ENOENT, Failure::ModuleMissing),
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
        (Errno::ENOMEM, Failure::OutOfMemory),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
    }
}
