//! `IPVS_CMD_SET_DEST`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Changes a real server. Takes all attributes; connections stay.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_edit_dest`.
///
/// ```
/// use ipvs_sys::uapi::CONN_F_MASQ;
/// use ipvs_sys::{Command, DestAttr, SetDest, SvcAttr};
/// use netlink_batch::{Be16, Encoder};
///
/// // Weight 0 drains: connections stay, new ones go elsewhere. The kernel refuses a request without the other settings (EINVAL).
/// let service = [SvcAttr::Af(2), SvcAttr::Fwmark(1)];
/// let dest = [
///     DestAttr::Addr([192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
///     DestAttr::Port(Be16(8080)),
///     DestAttr::FwdMethod(CONN_F_MASQ),
///     DestAttr::Weight(0),
///     DestAttr::UThresh(0),
///     DestAttr::LThresh(0),
/// ];
/// let mut out = Encoder::new();
/// SetDest { service: &service[..], dest: &dest[..] }.encode(&mut out);
/// assert_eq!(out.len(), (4 + 8 + 8) + (4 + 20 + 8 + 8 + 8 + 8 + 8));
/// ```
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
