//! `IPVS_CMD_NEW_DAEMON`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Starts the synchronisation daemon in one of its two states.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_new_daemon`, `start_sync_thread`.
#[derive(Clone, Copy, Debug)]
pub struct NewDaemon<A> {
    /// The daemon: its state, and every setting that the kernel should not choose.
    pub daemon: A,
}

impl<A: Fields> Command for NewDaemon<A> {
    const NUMBER: u8 = 9;
    const NAME: &'static str = "IPVS_CMD_NEW_DAEMON";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::EEXIST, Failure::DaemonRunning),
        (Errno::ENODEV, Failure::InterfaceMissing),
        // an attribute is missing, the group is not a multicast address, or a virtual server has real servers of
        // another family
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
        (Errno::ENOMEM, Failure::OutOfMemory),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::DAEMON, |out| self.daemon.put(out));
    }
}
