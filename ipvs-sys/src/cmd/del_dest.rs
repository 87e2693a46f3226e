//! `IPVS_CMD_DEL_DEST`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Deletes a real server. Takes only the keys. `net.ipv4.vs.expire_nodest_conn` decides what happens to its
/// connections.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_del_dest`.
#[derive(Clone, Copy, Debug)]
pub struct DelDest<S, D> {
    /// The virtual server: its key.
    pub service: S,
    /// The real server: its key.
    pub dest: D,
}

impl<S: Fields, D: Fields> Command for DelDest<S, D> {
    const NUMBER: u8 = 7;
    const NAME: &'static str = "IPVS_CMD_DEL_DEST";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::ESRCH, Failure::VirtualServerMissing),
        (Errno::ENOENT, Failure::RealServerMissing),
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
        out.nest(CmdAttr::DEST, |out| self.dest.put(out));
    }
}
