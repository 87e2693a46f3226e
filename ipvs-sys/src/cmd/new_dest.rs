//! `IPVS_CMD_NEW_DEST`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Adds a real server to a virtual server. The kernel keeps deleted real servers for two minutes. It searches that list
/// at every addition, and restores a match with its counters.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_add_dest`, `ip_vs_new_dest`.
#[derive(Clone, Copy, Debug)]
pub struct NewDest<S, D> {
    /// The virtual server: its key.
    pub service: S,
    /// The real server: its key and all settings.
    pub dest: D,
}

impl<S: Fields, D: Fields> Command for NewDest<S, D> {
    const NUMBER: u8 = 5;
    const NAME: &'static str = "IPVS_CMD_NEW_DEST";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::ESRCH, Failure::VirtualServerMissing),
        (Errno::EEXIST, Failure::RealServerExists),
        // weight above 2^31-1, or lower threshold above the upper
        (Errno::ERANGE, Failure::OutOfRange),
        // the address is neither unicast nor local in this namespace (without a route it is not local: bring `lo` up
        // first); GUE has no port; the family differs from the virtual server's without a tunnel
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
        (Errno::ENOMEM, Failure::OutOfMemory),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
        out.nest(CmdAttr::DEST, |out| self.dest.put(out));
    }
}
