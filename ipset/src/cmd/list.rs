//! LIST and SAVE. Both are dumps with the same messages. Kernel: `ip_set_dump`, `ip_set_dump_start`.

use netlink_batch::{Be32, Encoder};

use super::{Command, put_name};
use crate::attrs::{CmdAttr, put_net};
use crate::model::SetName;
use crate::uapi;

/// How much of each set is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    Names,
    Headers,
    Entries,
}

/// Lists one set, or all. list:set sets come after their members.
pub(crate) struct List<'a> {
    pub(crate) set: Option<&'a SetName>,
    pub(crate) detail: Detail,
}

impl Command for List<'_> {
    const CMD: u8 = uapi::IPSET_CMD_LIST;

    fn action(&self) -> String {
        self.set.map_or_else(|| "listing sets".to_owned(), |name| format!("listing set {name}"))
    }

    fn encode(&self, out: &mut Encoder) {
        if let Some(name) = self.set {
            put_name(out, CmdAttr::SETNAME, name);
        }
        let flags = match self.detail {
            Detail::Names => uapi::IPSET_FLAG_LIST_SETNAME,
            Detail::Headers => uapi::IPSET_FLAG_LIST_HEADER,
            Detail::Entries => return,
        };
        put_net(out, CmdAttr::FLAGS, &Be32(flags));
    }
}
