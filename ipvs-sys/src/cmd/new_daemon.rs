//! `IPVS_CMD_NEW_DAEMON`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Starts the synchronisation daemon in one of its two states.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_new_daemon`, `start_sync_thread`.
///
/// ```
/// use ipvs_sys::uapi::STATE_MASTER;
/// use ipvs_sys::{Command, DaemonAttr, Failure, GetDaemon, NewDaemon, Query};
/// use netlink_batch::{Encoder, Errno, NulStr};
///
/// // ipvsadm --start-daemon master --mcast-interface eth0 --syncid 1
/// let daemon = [DaemonAttr::State(STATE_MASTER), DaemonAttr::McastIfn(NulStr::from("eth0")), DaemonAttr::SyncId(1)];
/// let mut out = Encoder::new();
/// NewDaemon { daemon: &daemon[..] }.encode(&mut out);
/// assert_eq!(GetDaemon::decode(out.as_slice())?.to_vec()?, daemon); // the kernel answers in the same form
/// assert_eq!(NewDaemon::<&[DaemonAttr]>::classify(Errno::ENODEV), Some(Failure::InterfaceMissing));
/// # Ok::<(), netlink_batch::WireError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NewDaemon<A> {
    /// The daemon: its state, and all settings that are not left to the kernel.
    pub daemon: A,
}

impl<A: Fields> Command for NewDaemon<A> {
    const NUMBER: u8 = 9;
    const NAME: &'static str = "IPVS_CMD_NEW_DAEMON";
    const ERRORS: &'static [(Errno, Failure)] = &[
        (Errno::EEXIST, Failure::DaemonRunning),
        (Errno::ENODEV, Failure::InterfaceMissing),
        // an attribute is missing, the group is no multicast address, or a virtual server has real servers of
        // another family
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
        (Errno::ENOMEM, Failure::OutOfMemory),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::DAEMON, |out| self.daemon.put(out));
    }
}
