//! Devices. Kernel: net/core/rtnetlink.c, `rtnl_newlink`, `rtnl_getlink`, `rtnl_dellink`.

use netlink_batch::header::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_batch::{Attrs, Connection, Errno, Error, NulStr, WireError, attrs};

use super::{AF_UNSPEC, number, split};

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;

/// `RTEXT_FILTER_SKIP_STATS`: a dump without counters is a third shorter.
const SKIP_STATS: u32 = 1 << 3;

/// The kind of device that holds addresses and transmits no packets.
const DUMMY: &str = "dummy";

attrs! {
    /// Inside `IFLA_LINKINFO`.
    "IFLA_INFO_",
    pub enum InfoAttr<'a> {
        /// The kind: `dummy`, `veth`; missing for hardware devices.
        KIND = 1 => Kind(NulStr<'a>),
    }
}

attrs! {
    /// A device.
    "IFLA_",
    pub enum LinkAttr<'a> {
        IFNAME = 3 => Name(NulStr<'a>),
        LINKINFO = 18 => Info(Attrs<'a, InfoAttr<'a>>),
        /// What a listing should omit: `RTEXT_FILTER_*`.
        EXT_MASK = 29 => ExtMask(u32),
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) kind: Option<String>,
    /// `AF_UNSPEC`, or the reporting family: `AF_BRIDGE` for a message about a bridge and its port.
    family: u8,
}

impl Link {
    /// Whether the message is about a port of a bridge rather than the device itself.
    pub(super) fn is_bridge_port(&self) -> bool {
        self.family != AF_UNSPEC
    }

    pub(super) fn is_dummy(&self) -> bool {
        self.kind.as_deref() == Some(DUMMY)
    }
}

/// `struct ifinfomsg` with only an index.
fn header(index: u32) -> [u8; 16] {
    let mut header = [0; 16];
    let [a, b, c, d] = index.to_ne_bytes();
    header[0] = AF_UNSPEC;
    [header[4], header[5], header[6], header[7]] = [a, b, c, d];
    header
}

pub(super) fn read(payload: &[u8]) -> Result<Link, WireError> {
    let (header, attributes) = split::<16>(payload)?;
    let &[family, ..] = header;
    let mut link = Link { index: number(header, 4), name: String::new(), kind: None, family };
    for attr in Attrs::<LinkAttr<'_>>::new(attributes).iter() {
        match attr? {
            LinkAttr::Name(name) => link.name = String::from_utf8_lossy(name.as_bytes()).into_owned(),
            LinkAttr::Info(info) => {
                for attr in info.iter() {
                    if let InfoAttr::Kind(kind) = attr? {
                        link.kind = Some(String::from_utf8_lossy(kind.as_bytes()).into_owned());
                    }
                }
            }
            LinkAttr::ExtMask(_) | LinkAttr::Unknown(_) => {}
        }
    }
    Ok(link)
}

pub(super) fn get(connection: &mut Connection, name: &str) -> Result<Option<Link>, Error> {
    let answer = connection.query(
        RTM_GETLINK,
        0,
        &header(0),
        |out| {
            out.attr(LinkAttr::IFNAME, &NulStr::from(name));
            out.attr(LinkAttr::EXT_MASK, &SKIP_STATS);
        },
        read,
    );
    match answer {
        Ok(links) => Ok(links.into_iter().next()),
        Err(error) if error.kernel().is_some_and(|refusal| refusal.errno == Errno::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn list(connection: &mut Connection) -> Result<Vec<Link>, Error> {
    let dump = connection.dump(RTM_GETLINK, 0, &header(0), |out| out.attr(LinkAttr::EXT_MASK, &SKIP_STATS), read)?;
    Ok(dump.items)
}

/// Creates a dummy device that is down.
pub(super) fn create_dummy(connection: &mut Connection, name: &str) -> Result<(), Error> {
    connection.request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &header(0), |out| {
        out.attr(LinkAttr::IFNAME, &NulStr::from(name));
        out.nest(LinkAttr::LINKINFO, |out| out.attr(InfoAttr::KIND, &NulStr::from(DUMMY)));
    })
}

/// Deletes the device with this index, so a new device of the same name is safe.
pub(super) fn delete(connection: &mut Connection, index: u32) -> Result<(), Error> {
    connection.request(RTM_DELLINK, 0, &header(index), |_| {})
}
