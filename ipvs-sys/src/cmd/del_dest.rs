//! `IPVS_CMD_DEL_DEST`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Deletes a real server. Takes the keys only. What happens to its connections depends on
/// `net.ipv4.vs.expire_nodest_conn`.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_del_dest`.
///
/// ```
/// use ipvs_sys::{Command, DelDest, DestAttr, Failure, SvcAttr};
/// use netlink_batch::{Be16, Encoder, Errno};
///
/// let service = [SvcAttr::Af(2), SvcAttr::Fwmark(1)];
/// let dest = [DestAttr::Addr([192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), DestAttr::Port(Be16(8080))];
/// let mut out = Encoder::new();
/// DelDest { service: &service[..], dest: &dest[..] }.encode(&mut out);
///
/// // Either way it is gone.
/// let missing = [Errno::ESRCH, Errno::ENOENT].map(DelDest::<&[SvcAttr], &[DestAttr]>::classify);
/// assert_eq!(missing, [Some(Failure::VirtualServerMissing), Some(Failure::RealServerMissing)]);
/// ```
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
