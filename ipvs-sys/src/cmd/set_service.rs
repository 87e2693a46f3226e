//! `IPVS_CMD_SET_SERVICE`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Changes a virtual server. Takes all attributes but the statistics; flags outside the mask stay as they are.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_edit_service`.
///
/// ```
/// use ipvs_sys::uapi::SvcFlags;
/// use ipvs_sys::{Command, Failure, FlagsMask, SetService, SvcAttr};
/// use netlink_batch::{Encoder, Errno, NulStr};
///
/// // Another scheduler for firewall mark 1; no persistence, the other flags stay.
/// let service = [
///     SvcAttr::Af(2),
///     SvcAttr::Fwmark(1),
///     SvcAttr::SchedName(NulStr::from("mh")),
///     SvcAttr::Flags(FlagsMask { flags: SvcFlags::empty(), mask: SvcFlags::PERSISTENT.bits() }),
///     SvcAttr::Timeout(0),
///     SvcAttr::Netmask([255; 4]),
/// ];
/// let mut out = Encoder::new();
/// SetService { service: &service[..] }.encode(&mut out);
/// assert_eq!(SetService::<&[SvcAttr]>::classify(Errno::ESRCH), Some(Failure::VirtualServerMissing));
/// assert_eq!(SetService::<&[SvcAttr]>::classify(Errno::ENOENT), Some(Failure::ModuleMissing)); // ip_vs_mh
/// ```
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
