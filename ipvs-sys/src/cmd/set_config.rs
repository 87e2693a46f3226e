//! `IPVS_CMD_SET_CONFIG`.

use netlink_batch::{Encoder, Errno};

use crate::cmd::{Command, Failure, Fields};

/// Sets the timeouts. A timeout that is missing or 0 is left unchanged.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_set_config`.
#[derive(Clone, Copy, Debug)]
pub struct SetConfig<C> {
    /// The timeouts to set, as [`CmdAttr`](crate::CmdAttr)s.
    pub config: C,
}

impl<C: Fields> Command for SetConfig<C> {
    const NUMBER: u8 = 12;
    const NAME: &'static str = "IPVS_CMD_SET_CONFIG";
    const ERRORS: &'static [(Errno, Failure)] = &[
        // a timeout is larger than the kernel's clock can represent
        (Errno::EINVAL, Failure::Invalid),
    ];

    fn encode(&self, out: &mut Encoder) {
        self.config.put(out);
    }
}
