//! CREATE, DESTROY, FLUSH, RENAME, SWAP: commands on whole sets. Kernel: net/netfilter/ipset/ip_set_core.c.

use netlink_batch::header::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_batch::{Encoder, Errno, NulStr};

use super::{Command, common, put_name};
use crate::attrs::CmdAttr;
use crate::error::ErrorKind;
use crate::model::{SetName, SetSpec, SetType};
use crate::uapi;
use crate::wire::put_set_options;

/// `ip_set_create`. With `EXISTING` an equal existing set is not an error.
pub(crate) struct Create<'a, const EXISTING: bool> {
    pub(crate) set: &'a SetSpec,
    pub(crate) revision: u8,
}

impl<const EXISTING: bool> Command for Create<'_, EXISTING> {
    const CMD: u8 = uapi::IPSET_CMD_CREATE;
    const FLAGS: u16 = if EXISTING { NLM_F_CREATE } else { NLM_F_CREATE | NLM_F_EXCL };

    fn action(&self) -> String {
        format!("creating set {} of type {}", self.set.name, self.set.set_type)
    }

    fn encode(&self, out: &mut Encoder) {
        let SetSpec { name, set_type, options } = self.set;
        put_name(out, CmdAttr::SETNAME, name);
        out.attr(CmdAttr::TYPENAME, &NulStr::from(set_type.name()));
        out.attr(CmdAttr::REVISION, &self.revision);
        out.attr(CmdAttr::FAMILY, &set_type.family_number(options.family));
        out.nest(CmdAttr::DATA, |out| put_set_options(out, options));
    }

    fn classify(&self, errno: i32) -> ErrorKind {
        match errno {
            _ if Errno(errno) == Errno::EEXIST => ErrorKind::SetExists,
            uapi::IPSET_ERR_MAX_SETS => ErrorKind::TooManySets,
            uapi::IPSET_ERR_INVALID_FAMILY => ErrorKind::OptionInvalid("family"),
            uapi::IPSET_ERR_INVALID_NETMASK | uapi::IPSET_ERR_BITMASK_NETMASK_EXCL => {
                ErrorKind::OptionInvalid("netmask or bitmask")
            }
            uapi::IPSET_ERR_INVALID_MARKMASK => ErrorKind::OptionInvalid("markmask"),
            uapi::IPSET_ERR_INVALID_CIDR => ErrorKind::OptionInvalid("range"),
            uapi::IPSET_ERR_BITMAP_RANGE | uapi::IPSET_ERR_BITMAP_RANGE_SIZE if self.set.set_type.is_bitmap() => {
                ErrorKind::OptionInvalid("range")
            }
            _ if Errno(errno) == Errno::EINVAL && self.set.set_type == SetType::BitmapPort => {
                ErrorKind::OptionInvalid("range")
            }
            _ => common(errno),
        }
    }
}

/// `ip_set_destroy`: one set, or all.
pub(crate) struct Destroy<'a>(pub(crate) Option<&'a SetName>);

impl Command for Destroy<'_> {
    const CMD: u8 = uapi::IPSET_CMD_DESTROY;
    /// Without it, newer kernels report success for a missing set.
    const FLAGS: u16 = NLM_F_EXCL;

    fn action(&self) -> String {
        self.0.map_or_else(|| "destroying all sets".to_owned(), |name| format!("destroying set {name}"))
    }

    fn encode(&self, out: &mut Encoder) {
        if let Some(name) = self.0 {
            put_name(out, CmdAttr::SETNAME, name);
        }
    }

    fn classify(&self, errno: i32) -> ErrorKind {
        if errno == uapi::IPSET_ERR_BUSY { ErrorKind::InUse } else { common(errno) }
    }
}

/// `ip_set_flush`: one set, or all.
pub(crate) struct Flush<'a>(pub(crate) Option<&'a SetName>);

impl Command for Flush<'_> {
    const CMD: u8 = uapi::IPSET_CMD_FLUSH;

    fn action(&self) -> String {
        self.0.map_or_else(|| "flushing all sets".to_owned(), |name| format!("flushing set {name}"))
    }

    fn encode(&self, out: &mut Encoder) {
        if let Some(name) = self.0 {
            put_name(out, CmdAttr::SETNAME, name);
        }
    }
}

/// `ip_set_rename`.
pub(crate) struct Rename<'a>(pub(crate) &'a SetName, pub(crate) &'a SetName);

impl Command for Rename<'_> {
    const CMD: u8 = uapi::IPSET_CMD_RENAME;

    fn action(&self) -> String {
        format!("renaming set {} to {}", self.0, self.1)
    }

    fn encode(&self, out: &mut Encoder) {
        put_name(out, CmdAttr::SETNAME, self.0);
        put_name(out, CmdAttr::TYPENAME, self.1);
    }

    fn classify(&self, errno: i32) -> ErrorKind {
        match errno {
            uapi::IPSET_ERR_REFERENCED => ErrorKind::InUse,
            uapi::IPSET_ERR_EXIST_SETNAME2 => ErrorKind::SetExists,
            _ => common(errno),
        }
    }
}

/// `ip_set_swap`.
pub(crate) struct Swap<'a>(pub(crate) &'a SetName, pub(crate) &'a SetName);

impl Command for Swap<'_> {
    const CMD: u8 = uapi::IPSET_CMD_SWAP;

    fn action(&self) -> String {
        format!("swapping sets {} and {}", self.0, self.1)
    }

    fn encode(&self, out: &mut Encoder) {
        put_name(out, CmdAttr::SETNAME, self.0);
        put_name(out, CmdAttr::TYPENAME, self.1);
    }

    fn classify(&self, errno: i32) -> ErrorKind {
        match errno {
            uapi::IPSET_ERR_EXIST_SETNAME2 => ErrorKind::SecondSetMissing,
            uapi::IPSET_ERR_TYPE_MISMATCH => ErrorKind::TypeMismatch,
            _ if Errno(errno) == Errno::EBUSY => ErrorKind::InUse,
            _ => common(errno),
        }
    }
}
