//! `IPVS_CMD_SET_DEST`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Changes a real server. Takes all attributes. Connections continue.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_edit_dest`.
#[derive(Clone, Copy, Debug)]
pub struct SetDest<S, D> {
    /// The virtual server: its key.
    pub service: S,
    /// The real server: its key and all settings.
    pub dest: D,
}

impl<S: Fields, D: Fields> Command for SetDest<S, D> {
    const NUMBER: u8 = 6;
    const NAME: &'static str = "IPVS_CMD_SET_DEST";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::ESRCH, Failure::VirtualServerMissing),
        (Errno::ENOENT, Failure::RealServerMissing),
        (Errno::ERANGE, Failure::OutOfRange),
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
        out.nest(CmdAttr::DEST, |out| self.dest.put(out));
    }
}
