//! `IPVS_CMD_FLUSH`.

use netlink_batch::Encoder;

use crate::cmd::Command;

/// Deletes every virtual server of the network namespace and so cuts all connections. Adding the same real servers
/// again within two minutes is twenty times slower; see [`NewDest`](super::NewDest).
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_flush`.
#[derive(Clone, Copy, Debug)]
pub struct Flush;

impl Command for Flush {
    const NUMBER: u8 = 17;
    const NAME: &'static str = "IPVS_CMD_FLUSH";

    fn encode(&self, _out: &mut Encoder) {}
}
