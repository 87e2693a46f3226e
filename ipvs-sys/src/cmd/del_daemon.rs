//! `IPVS_CMD_DEL_DAEMON`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Stops the synchronisation daemon in the given state.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_del_daemon`, `stop_sync_thread`.
#[derive(Clone, Copy, Debug)]
pub struct DelDaemon<A> {
    /// The daemon: its state.
    pub daemon: A,
}

impl<A: Fields> Command for DelDaemon<A> {
    const NUMBER: u8 = 10;
    const NAME: &'static str = "IPVS_CMD_DEL_DAEMON";
    const ERRORS: &'static [(Errno, Failure)] =
        &[(Errno::ESRCH, Failure::DaemonNotRunning), (Errno::EINVAL, Failure::Invalid)];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::DAEMON, |out| self.daemon.put(out));
    }
}
