//! Decodes requests and encodes answers.

use netlink_batch::header::{MessageHeader, NLM_F_EXCL, NLMSG_ERROR, NfGenHeader};
use netlink_batch::testing::Reply;
use netlink_batch::{Attrs, Be16, Be32, Encoder, Errno, Message, NulStr, RawAttrs};

use super::rules::Refusal;
use super::rules::{features_revisions, get_entry_checked};
use super::state::{FakeSet, Sets};
use crate::attrs::{CmdAttr, CreateAttr, EntryAttr, put_net};
use crate::cmd::{HEADER, message_type};
use crate::model::{Entry, Family, SetName, SetSpec, SetType};
use crate::uapi;
use crate::wire::{Writer, get_set_options, put_entry, put_set_options};

/// The attributes of a request.
#[derive(Default)]
struct Request<'a> {
    protocol: Option<u8>,
    name: Option<SetName>,
    type_name: Option<String>,
    revision: Option<u8>,
    family: Option<u8>,
    flags: u32,
    data: Option<&'a [u8]>,
    adt: Option<&'a [u8]>,
    lineno: bool,
    exclusive: bool,
}

impl<'a> Request<'a> {
    fn read(message: &Message<'a>) -> Option<Self> {
        let (_, attributes) = NfGenHeader::split(message.payload)?;
        let mut request = Request { exclusive: message.header.flags & NLM_F_EXCL != 0, ..Request::default() };
        for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
            match attr.ok()? {
                CmdAttr::Protocol(version) => request.protocol = Some(version),
                CmdAttr::SetName(name) => request.name = Some(SetName::from_kernel(name.as_bytes())),
                CmdAttr::TypeName(name) => request.type_name = name.to_str().map(str::to_owned),
                CmdAttr::Revision(revision) => request.revision = Some(revision),
                CmdAttr::Family(family) => request.family = Some(family),
                CmdAttr::Flags(Be32(flags)) => request.flags = flags,
                CmdAttr::Data(bytes) => request.data = Some(bytes),
                CmdAttr::Adt(bytes) => request.adt = Some(bytes),
                CmdAttr::Lineno(_) => request.lineno = true,
                CmdAttr::Index(_) | CmdAttr::ProtocolMin(_) | CmdAttr::Unknown(_) => {}
            }
        }
        Some(request)
    }

    fn name(&self) -> Result<&SetName, Refusal> {
        self.name.as_ref().ok_or(uapi::IPSET_ERR_PROTOCOL)
    }

    /// RENAME and SWAP have the second name in the attribute of CREATE's type.
    fn second_name(&self) -> Result<SetName, Refusal> {
        self.type_name.as_ref().map(|name| SetName::from_kernel(name.as_bytes())).ok_or(uapi::IPSET_ERR_PROTOCOL)
    }

    fn set_type(&self) -> Result<SetType, Refusal> {
        let name = self.type_name.as_ref().ok_or(uapi::IPSET_ERR_PROTOCOL)?;
        name.parse().map_err(|_unknown| uapi::IPSET_ERR_FIND_TYPE)
    }
}

pub(super) fn answer(state: &mut Sets, message: &Message<'_>) -> Reply {
    let [subsystem, command] = message.header.kind.to_be_bytes();
    let request = Request::read(message);
    let Some(request) = request.filter(|_| subsystem == uapi::NFNL_SUBSYS_IPSET) else {
        return Reply::Error(Errno::EINVAL);
    };
    if request.protocol.is_none_or(|version| version < uapi::IPSET_PROTOCOL_MIN) && command != uapi::IPSET_CMD_PROTOCOL
    {
        return Reply::Error(Errno(uapi::IPSET_ERR_PROTOCOL));
    }
    let outcome = match command {
        uapi::IPSET_CMD_PROTOCOL => Ok(data(command, |out| {
            out.attr(CmdAttr::PROTOCOL, &uapi::IPSET_PROTOCOL);
            out.attr(CmdAttr::PROTOCOL_MIN, &uapi::IPSET_PROTOCOL_MIN);
        })),
        uapi::IPSET_CMD_CREATE => create(state, &request),
        uapi::IPSET_CMD_DESTROY => match state.destroy(request.name.as_ref()) {
            Err(errno) if errno == Errno::ENOENT.0 && !request.exclusive => Ok(Reply::Ok),
            outcome => outcome.map(|()| Reply::Ok),
        },
        uapi::IPSET_CMD_FLUSH => state.flush(request.name.as_ref()).map(|()| Reply::Ok),
        uapi::IPSET_CMD_RENAME => {
            request.name().and_then(|name| state.rename(name, request.second_name()?)).map(|()| Reply::Ok)
        }
        uapi::IPSET_CMD_SWAP => {
            request.name().and_then(|name| state.swap(name, &request.second_name()?)).map(|()| Reply::Ok)
        }
        uapi::IPSET_CMD_LIST | uapi::IPSET_CMD_SAVE => list(state, &request),
        uapi::IPSET_CMD_ADD | uapi::IPSET_CMD_DEL => return change(state, &request, message, command),
        uapi::IPSET_CMD_TEST => test(state, &request),
        uapi::IPSET_CMD_HEADER => header(state, &request),
        uapi::IPSET_CMD_TYPE => revisions(&request),
        _ => Err(Errno::EINVAL.0),
    };
    outcome.unwrap_or_else(|errno| Reply::Error(Errno(errno)))
}

fn message_body(body: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut out = Encoder::new();
    out.bytes(&HEADER.to_bytes());
    body(&mut out);
    out.as_slice().to_vec()
}

fn data(command: u8, body: impl FnOnce(&mut Encoder)) -> Reply {
    Reply::Data(vec![(message_type(command), message_body(body))])
}

fn create(state: &mut Sets, request: &Request<'_>) -> Result<Reply, Refusal> {
    let set_type = request.set_type()?;
    let name = request.name()?.clone();
    let (Some(revision), Some(family)) = (request.revision, request.family) else {
        return Err(uapi::IPSET_ERR_PROTOCOL);
    };
    let offered = features_revisions(set_type);
    let family_known = set_type.info().family.is_none_or(|fixed| fixed == 0 || fixed == family);
    if !offered.contains(&revision) || !family_known {
        return Err(uapi::IPSET_ERR_FIND_TYPE);
    }
    let (mut options, _) = get_set_options(set_type, request.data.unwrap_or_default(), Writer::Client)
        .map_err(|_unreadable| uapi::IPSET_ERR_PROTOCOL)?;
    options.family = Family::from_number(family);
    let set = FakeSet::new(SetSpec { name, set_type, options }, revision, *offered.end())?;
    state.create(set, request.exclusive).map(|()| Reply::Ok)
}

fn revisions(request: &Request<'_>) -> Result<Reply, Refusal> {
    let set_type = request.set_type()?;
    let family = request.family.ok_or(uapi::IPSET_ERR_PROTOCOL)?;
    let offered = features_revisions(set_type);
    Ok(data(uapi::IPSET_CMD_TYPE, |out| {
        out.attr(CmdAttr::PROTOCOL, &uapi::IPSET_PROTOCOL);
        out.attr(CmdAttr::TYPENAME, &NulStr::from(set_type.name()));
        out.attr(CmdAttr::FAMILY, &family);
        out.attr(CmdAttr::REVISION, offered.end());
        out.attr(CmdAttr::PROTOCOL_MIN, offered.start());
    }))
}

fn put_identity(out: &mut Encoder, set: &FakeSet) {
    out.attr(CmdAttr::PROTOCOL, &uapi::IPSET_PROTOCOL);
    out.attr(CmdAttr::SETNAME, &NulStr::from(set.spec.name.as_str()));
    out.attr(CmdAttr::TYPENAME, &NulStr::from(set.spec.set_type.name()));
    out.attr(CmdAttr::FAMILY, &set.spec.set_type.family_number(set.spec.options.family));
    out.attr(CmdAttr::REVISION, &set.revision);
}

fn header(state: &Sets, request: &Request<'_>) -> Result<Reply, Refusal> {
    let (_, set) = state.find(request.name()?).ok_or(Errno::ENOENT.0)?;
    Ok(data(uapi::IPSET_CMD_HEADER, |out| put_identity(out, set)))
}

/// Entries in one message of a listing.
const LISTED: usize = 50;

fn list(state: &Sets, request: &Request<'_>) -> Result<Reply, Refusal> {
    let sets: Vec<(usize, &FakeSet)> = if let Some(name) = &request.name {
        vec![state.find(name).ok_or(Errno::ENOENT.0)?]
    } else {
        // Lists come last.
        let is_list = |(_, set): &(usize, &FakeSet)| set.spec.set_type == SetType::ListSet;
        let (lists, others): (Vec<_>, Vec<_>) = state.all().partition(is_list);
        others.into_iter().chain(lists).collect()
    };
    let kind = message_type(uapi::IPSET_CMD_LIST);
    let mut messages = Vec::new();
    for (index, set) in sets {
        if request.flags & uapi::IPSET_FLAG_LIST_SETNAME != 0 {
            messages.push(message_body(|out| {
                out.attr(CmdAttr::PROTOCOL, &uapi::IPSET_PROTOCOL);
                out.attr(CmdAttr::SETNAME, &NulStr::from(set.spec.name.as_str()));
            }));
            continue;
        }
        let entries = state.entries(set);
        let mut chunks = entries.chunks(LISTED);
        let only_header = request.flags & uapi::IPSET_FLAG_LIST_HEADER != 0;
        messages.push(message_body(|out| {
            put_identity(out, set);
            put_net(out, CmdAttr::INDEX, &Be16(u16::try_from(index).unwrap_or(u16::MAX)));
            put_header(out, state, index, set, entries.len());
            if !only_header {
                put_entries(out, chunks.next().unwrap_or_default());
            }
        }));
        for chunk in chunks.filter(|_| !only_header) {
            messages.push(message_body(|out| {
                out.attr(CmdAttr::PROTOCOL, &uapi::IPSET_PROTOCOL);
                out.attr(CmdAttr::SETNAME, &NulStr::from(set.spec.name.as_str()));
                put_entries(out, chunk);
            }));
        }
    }
    Ok(Reply::Dump(messages.into_iter().map(|body| (kind, body)).collect()))
}

fn put_header(out: &mut Encoder, state: &Sets, index: usize, set: &FakeSet, elements: usize) {
    out.nest(CmdAttr::DATA, |out| {
        let mut options = set.spec.options.clone();
        let mark_mask = options.markmask.take();
        put_set_options(out, &options);
        if let Some(mask) = mark_mask {
            out.attr(CreateAttr::MARKMASK, &mask.to_ne_bytes());
        }
        put_net(out, CreateAttr::REFERENCES, &Be32(state.references(index)));
        put_net(out, CreateAttr::MEMSIZE, &Be32(0));
        put_net(out, CreateAttr::ELEMENTS, &Be32(u32::try_from(elements).unwrap_or(u32::MAX)));
    });
}

fn put_entries(out: &mut Encoder, entries: &[Entry]) {
    out.nest(CmdAttr::ADT, |out| {
        for entry in entries {
            out.nest(CmdAttr::DATA, |out| put_entry(out, entry));
        }
    });
}

fn test(state: &Sets, request: &Request<'_>) -> Result<Reply, Refusal> {
    let (_, set) = state.find(request.name()?).ok_or(Errno::ENOENT.0)?;
    let bytes = request.data.ok_or(uapi::IPSET_ERR_PROTOCOL)?;
    let entry = get_entry_checked(&set.spec, bytes)?;
    if state.test(set, &entry) { Ok(Reply::Ok) } else { Err(uapi::IPSET_ERR_EXIST) }
}

fn change(state: &mut Sets, request: &Request<'_>, message: &Message<'_>, command: u8) -> Reply {
    let refuse = |errno| Reply::Error(Errno(errno));
    let (Some(name), true) = (&request.name, request.data.is_some() != request.adt.is_some()) else {
        return refuse(uapi::IPSET_ERR_PROTOCOL);
    };
    let Some((index, _)) = state.find(name) else {
        return Reply::Error(Errno::ENOENT);
    };
    let entries: Vec<&[u8]> = match (request.data, request.adt) {
        (Some(bytes), _) => vec![bytes],
        (None, adt) => {
            let attrs = Attrs::<CmdAttr<'_>>::new(adt.unwrap_or_default());
            attrs
                .iter()
                .filter_map(|attr| if let Ok(CmdAttr::Data(bytes)) = attr { Some(bytes) } else { None })
                .collect()
        }
    };
    for bytes in entries {
        let outcome = if command == uapi::IPSET_CMD_ADD {
            state.add(index, bytes, request.exclusive)
        } else {
            state.delete(index, bytes, request.exclusive)
        };
        if let Err(errno) = outcome {
            let number = RawAttrs::new(bytes).filter_map(Result::ok).find(|attr| attr.kind() == EntryAttr::LINENO);
            let number = number.and_then(|attr| attr.payload.try_into().ok()).map_or(0, u32::from_ne_bytes);
            if number == 0 || !request.lineno {
                return refuse(errno);
            }
            return Reply::Data(vec![(NLMSG_ERROR, with_number(message, errno, number))]);
        }
    }
    Reply::Ok
}

/// The kernel's answer, with the number of the failing entry in its copy of the request (`call_ad`).
fn with_number(message: &Message<'_>, errno: i32, number: u32) -> Vec<u8> {
    let mut out = Encoder::new();
    out.bytes(&errno.saturating_neg().to_ne_bytes());
    MessageHeader::put(message.header, &mut out);
    let header = message.payload.get(..NfGenHeader::LENGTH).unwrap_or_default();
    out.bytes(header);
    for attr in RawAttrs::new(message.payload.get(NfGenHeader::LENGTH..).unwrap_or_default()).flatten() {
        match attr.kind() {
            CmdAttr::LINENO => out.attr(attr.type_field, &number),
            _ => out.attr(attr.type_field, &attr.payload),
        }
    }
    out.as_slice().to_vec()
}
