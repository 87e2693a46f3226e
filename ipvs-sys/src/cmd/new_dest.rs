//! `IPVS_CMD_NEW_DEST`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Adds a real server to a virtual server. A real server deleted less than two minutes ago is taken back from the
/// kernel's list of removed ones with its counters, and every addition searches that list.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_add_dest`, `ip_vs_new_dest`.
///
/// ```
/// use ipvs_sys::uapi::CONN_F_MASQ;
/// use ipvs_sys::{Command, DestAttr, Failure, GetDest, NewDest, Query, SvcAttr};
/// use netlink_batch::{Be16, Encoder, Errno};
///
/// let bytes = |[a, b, c, d]: [u8; 4]| [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// // ipvsadm -a -t 10.96.0.10:80 -r 192.0.2.7:8080 -m -w 100
/// let service = [SvcAttr::Af(2), SvcAttr::Protocol(6), SvcAttr::Addr(bytes([10, 96, 0, 10])), SvcAttr::Port(Be16(80))];
/// let dest = [
///     DestAttr::Addr(bytes([192, 0, 2, 7])),
///     DestAttr::Port(Be16(8080)),
///     DestAttr::FwdMethod(CONN_F_MASQ),
///     DestAttr::Weight(100),
///     DestAttr::UThresh(0), // no limit
///     DestAttr::LThresh(0),
/// ];
/// let mut out = Encoder::new();
/// NewDest { service: &service[..], dest: &dest[..] }.encode(&mut out);
/// assert_eq!(GetDest::<&[SvcAttr]>::decode(out.as_slice())?.to_vec()?, dest);
/// // A weight above 2^31 - 1, or a lower threshold above the upper one.
/// assert_eq!(NewDest::<&[SvcAttr], &[DestAttr]>::classify(Errno::ERANGE), Some(Failure::OutOfRange));
/// # Ok::<(), netlink_batch::WireError>(())
/// ```
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
        // the address is neither unicast nor local seen from this namespace (no route to it counts: bring `lo` up
        // first), GUE without a port, or another family than the virtual server's without a tunnel
        (Errno::EINVAL, Failure::Invalid),
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
        (Errno::ENOMEM, Failure::OutOfMemory),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
        out.nest(CmdAttr::DEST, |out| self.dest.put(out));
    }
}
