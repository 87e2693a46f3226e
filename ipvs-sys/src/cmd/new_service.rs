//! `IPVS_CMD_NEW_SERVICE`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Adds a virtual server. Takes all attributes except the statistics.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_set_cmd`, `ip_vs_add_service`.
#[derive(Clone, Copy, Debug)]
pub struct NewService<S> {
    /// The virtual server: its key and all settings.
    pub service: S,
}

impl<S: Fields> Command for NewService<S> {
    const NUMBER: u8 = 1;
    const NAME: &'static str = "IPVS_CMD_NEW_SERVICE";
    const ERRORS: &'static [(Errno, Failure)] = &[
        // the key is taken
        (Errno::EEXIST, Failure::VirtualServerExists),
        // the scheduler's or persistence engine's module is missing and could not be loaded
        (Errno::ENOENT, Failure::ModuleMissing),
        // an attribute is missing or invalid, such as an IPv6 prefix length outside 1..=128
        (Errno::EINVAL, Failure::Invalid),
        // neither IPv4 nor IPv6, or this kernel's IPVS is built without IPv6
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
        (Errno::ENOMEM, Failure::OutOfMemory),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
    }
}
