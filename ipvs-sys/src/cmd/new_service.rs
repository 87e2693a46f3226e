//! `IPVS_CMD_NEW_SERVICE`.

use netlink_batch::{Encoder, Errno};

use crate::attr::CmdAttr;
use crate::cmd::{Command, Failure, Fields};

/// Adds a virtual server. Takes all attributes but the statistics.
///
/// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_set_cmd`, `ip_vs_add_service`.
///
/// ```
/// use std::net::Ipv6Addr;
///
/// use ipvs_sys::uapi::SvcFlags;
/// use ipvs_sys::{Command, FlagsMask, GetService, NewService, Query, SvcAttr};
/// use netlink_batch::{Be16, Encoder, NulStr};
///
/// // ipvsadm -A -t [2001:db8::10]:443 -s rr -p 10800
/// let service = [
///     SvcAttr::Af(10),      // AF_INET6
///     SvcAttr::Protocol(6), // TCP
///     SvcAttr::Addr("2001:db8::10".parse::<Ipv6Addr>()?.octets()),
///     SvcAttr::Port(Be16(443)),
///     SvcAttr::SchedName(NulStr::from("rr")),
///     SvcAttr::Flags(FlagsMask { flags: SvcFlags::PERSISTENT, mask: u32::MAX }),
///     SvcAttr::Timeout(10_800),
///     SvcAttr::Netmask(128_u32.to_ne_bytes()), // every client for itself
/// ];
/// let mut out = Encoder::new();
/// NewService { service: &service[..] }.encode(&mut out);
/// // The kernel's answers have the same form.
/// assert_eq!(GetService::<&[SvcAttr]>::decode(out.as_slice())?.to_vec()?, service);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
        // an attribute is missing or impossible: IPv6 prefix length outside 1..=128, for one
        (Errno::EINVAL, Failure::Invalid),
        // neither IPv4 nor IPv6, or IPv6 is not part of this kernel's IPVS
        (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported),
        (Errno::ENOMEM, Failure::OutOfMemory),
    ];

    fn encode(&self, out: &mut Encoder) {
        out.nest(CmdAttr::SERVICE, |out| self.service.put(out));
    }
}
