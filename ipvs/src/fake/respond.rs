//! Answers messages (net/netlink/genetlink.c; net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_set_cmd`,
//! `ip_vs_genl_get_cmd`, `ip_vs_genl_dump_*`).

use ipvs_sys::{
    CmdAttr, Command, DelDaemon, DelDest, DelService, Flush, GetConfig, GetDaemon, GetDest, GetInfo, GetService,
    InfoAttr, NewDaemon, NewDest, NewService, SET_INFO, SetConfig, SetDest, SetService, SvcAttr, Zero, uapi,
};
use netlink_batch::header::{GenlHeader, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_batch::testing::Reply;
use netlink_batch::{Attribute, ControllerAttr, Encoder, Errno, Message, NulStr};

use crate::fake::Kernel;
use crate::fake::table::{Namespace, ServiceKey};
use crate::fake::wire::{self, List};

type S<'a> = &'a [SvcAttr<'a>];
type D<'a> = &'a [ipvs_sys::DestAttr<'a>];
type A<'a> = &'a [ipvs_sys::DaemonAttr<'a>];
type C<'a> = &'a [CmdAttr<'a>];

const NEW_SERVICE: u8 = <NewService<S<'_>> as Command>::NUMBER;
const SET_SERVICE: u8 = <SetService<S<'_>> as Command>::NUMBER;
const DEL_SERVICE: u8 = <DelService<S<'_>> as Command>::NUMBER;
const GET_SERVICE: u8 = <GetService<S<'_>> as Command>::NUMBER;
const NEW_DEST: u8 = <NewDest<S<'_>, D<'_>> as Command>::NUMBER;
const SET_DEST: u8 = <SetDest<S<'_>, D<'_>> as Command>::NUMBER;
const DEL_DEST: u8 = <DelDest<S<'_>, D<'_>> as Command>::NUMBER;
const GET_DEST: u8 = <GetDest<S<'_>> as Command>::NUMBER;
const NEW_DAEMON: u8 = <NewDaemon<A<'_>> as Command>::NUMBER;
const DEL_DAEMON: u8 = <DelDaemon<A<'_>> as Command>::NUMBER;
const GET_DAEMON: u8 = <GetDaemon as Command>::NUMBER;
const SET_CONFIG: u8 = <SetConfig<C<'_>> as Command>::NUMBER;
const GET_CONFIG: u8 = <GetConfig as Command>::NUMBER;
const GET_INFO: u8 = <GetInfo as Command>::NUMBER;
const ZERO: u8 = <Zero<S<'_>> as Command>::NUMBER;
const FLUSH: u8 = <Flush as Command>::NUMBER;

/// Version 1.2.1, as the kernel encodes it, and the usual table size.
const VERSION: u32 = 0x01_02_01;
const TABLE_SIZE: u32 = 4096;

const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const NEW_FAMILY: u8 = 1;
/// Linux: `net/netlink/genetlink.c`, version of the controller's family.
const CONTROLLER_VERSION: u8 = 2;

/// Handles one message, with or without injected faults and changes.
pub(super) fn respond(state: &mut Kernel, message: &Message<'_>, arranged: bool) -> Reply {
    if message.header.flags & NLM_F_REQUEST == 0 {
        return Reply::Ok;
    }
    let Some((header, attributes)) = GenlHeader::split(message.payload) else {
        return Reply::Error(Errno::EINVAL);
    };
    if message.header.kind == CONTROLLER {
        return controller(state, header, attributes);
    }
    if message.header.kind != state.family || !state.present {
        return Reply::Error(Errno::ENOENT);
    }
    if arranged {
        let number = state.handled;
        state.handled = number.saturating_add(1);
        if let Some(change) = state.before.remove(&number) {
            change(&mut crate::fake::Table(&mut state.namespace));
        }
        if let Some(errno) = state.refusals.remove(&number) {
            return Reply::Error(errno);
        }
    }
    let dump = message.header.flags & NLM_F_DUMP == NLM_F_DUMP;
    let known = match header.command {
        GET_SERVICE => true,
        GET_DEST | GET_DAEMON => dump,
        GET_CONFIG | GET_INFO | NEW_SERVICE | SET_SERVICE | DEL_SERVICE | NEW_DEST | SET_DEST | DEL_DEST
        | NEW_DAEMON | DEL_DAEMON | SET_CONFIG | ZERO | FLUSH => !dump,
        _ => false,
    };
    if !known {
        return Reply::Error(Errno::EOPNOTSUPP);
    }
    if arranged && !state.permitted {
        return Reply::Error(Errno::EPERM);
    }
    let list = List::new(attributes);
    if dump {
        return dumped(state, header.command, &list, arranged);
    }
    let outcome = match header.command {
        GET_SERVICE => get_service(&state.namespace, &list),
        GET_CONFIG => Ok(vec![config(&state.namespace)]),
        GET_INFO => Ok(vec![info()]),
        command => set(&mut state.namespace, command, &list).map(|()| Vec::new()),
    };
    match outcome {
        Ok(answers) if answers.is_empty() => Reply::Ok,
        Ok(answers) => {
            Reply::Data(answers.into_iter().map(|(command, out)| framed(state.family, command, &out)).collect())
        }
        Err(errno) => Reply::Error(errno),
    }
}

fn framed(family: u16, command: u8, attributes: &Encoder) -> (u16, Vec<u8>) {
    let mut payload = GenlHeader { command, version: uapi::GENL_VERSION }.to_bytes().to_vec();
    payload.extend_from_slice(attributes.as_slice());
    (family, payload)
}

fn controller(state: &Kernel, header: GenlHeader, attributes: &[u8]) -> Reply {
    if header.command != GET_FAMILY {
        return Reply::Error(Errno::EOPNOTSUPP);
    }
    let list = List::new(attributes);
    let (name, id) = match list.name(ControllerAttr::FAMILY_NAME, 15) {
        Ok(Some(name)) if name == uapi::GENL_NAME && state.present => (uapi::GENL_NAME, state.family),
        Ok(Some(name)) if name == "nlctrl" => ("nlctrl", CONTROLLER),
        Ok(Some(_)) => return Reply::Error(Errno::ENOENT),
        Ok(None) | Err(_) => return Reply::Error(Errno::EINVAL),
    };
    let mut out = Encoder::new();
    ControllerAttr::FamilyName(NulStr::from(name)).encode(&mut out);
    ControllerAttr::FamilyId(id).encode(&mut out);
    ControllerAttr::Version(uapi::GENL_VERSION.into()).encode(&mut out);
    let mut payload = GenlHeader { command: NEW_FAMILY, version: CONTROLLER_VERSION }.to_bytes().to_vec();
    payload.extend_from_slice(out.as_slice());
    Reply::Data(vec![(CONTROLLER, payload)])
}

/// `ip_vs_genl_set_cmd`, `ip_vs_genl_set_daemon`.
pub(super) fn set(namespace: &mut Namespace, command: u8, list: &List<'_>) -> Result<(), Errno> {
    let service = list.get(CmdAttr::SERVICE);
    match command {
        FLUSH => {
            namespace.flush();
            return Ok(());
        }
        SET_CONFIG => {
            // The policy of the top level refuses a length below four bytes with ERANGE.
            let timeout = |kind| list.u32(kind).or(Err(Errno::ERANGE));
            let (tcp, fin) = (timeout(CmdAttr::TIMEOUT_TCP)?, timeout(CmdAttr::TIMEOUT_TCP_FIN)?);
            return namespace.set_timeouts(tcp, fin, timeout(CmdAttr::TIMEOUT_UDP)?);
        }
        ZERO if service.is_none() => return namespace.zero(None),
        NEW_DAEMON | DEL_DAEMON => {
            let list = List::new(list.get(CmdAttr::DAEMON).ok_or(Errno::EINVAL)?);
            if command == DEL_DAEMON {
                let state = list.u32(ipvs_sys::DaemonAttr::STATE)?.ok_or(Errno::EINVAL)?;
                return namespace.stop_daemon(state);
            }
            let (state, daemon) = wire::daemon(&list)?;
            return namespace.start_daemon(state, daemon);
        }
        _ => {}
    }
    let key = wire::service_key(service, namespace.ipv6)?;
    let rest = match command {
        NEW_SERVICE | SET_SERVICE => Some(wire::service_rest(service)?),
        _ => None,
    };
    if command != NEW_SERVICE {
        namespace.service(&key)?;
    }
    let destination = match command {
        NEW_DEST | SET_DEST | DEL_DEST => {
            Some(wire::destination(list.get(CmdAttr::DEST), key.af, command != DEL_DEST, namespace.ipv6)?)
        }
        _ => None,
    };
    match (command, rest, destination) {
        (NEW_SERVICE, Some(rest), _) => namespace.add_service(key, rest),
        (SET_SERVICE, Some(rest), _) => namespace.set_service(&key, rest),
        (DEL_SERVICE, ..) => namespace.delete_service(&key),
        (NEW_DEST, _, Some(destination)) => namespace.add_destination(&key, destination),
        (SET_DEST, _, Some(destination)) => namespace.set_destination(&key, &destination),
        (DEL_DEST, _, Some(destination)) => namespace.delete_destination(&key, &destination.key),
        (ZERO, ..) => namespace.zero(Some(&key)),
        _ => Err(Errno::EINVAL),
    }
}

/// An answer: command and attributes.
type Answer = (u8, Encoder);

fn get_service(namespace: &Namespace, list: &List<'_>) -> Result<Vec<Answer>, Errno> {
    let key = wire::service_key(list.get(CmdAttr::SERVICE), namespace.ipv6)?;
    Ok(vec![service_answer(namespace.service(&key)?)])
}

fn service_answer(service: &crate::fake::table::Service) -> Answer {
    let mut out = Encoder::new();
    wire::nest(&mut out, CmdAttr::SERVICE, |out| wire::put_service(out, service));
    (NEW_SERVICE, out)
}

fn config(namespace: &Namespace) -> Answer {
    let mut out = Encoder::new();
    CmdAttr::TimeoutTcp(namespace.timeouts.tcp_secs).encode(&mut out);
    CmdAttr::TimeoutTcpFin(namespace.timeouts.tcp_fin_secs).encode(&mut out);
    CmdAttr::TimeoutUdp(namespace.timeouts.udp_secs).encode(&mut out);
    (SET_CONFIG, out)
}

fn info() -> Answer {
    let mut out = Encoder::new();
    InfoAttr::Version(VERSION).encode(&mut out);
    InfoAttr::ConnTabSize(TABLE_SIZE).encode(&mut out);
    (SET_INFO, out)
}

/// Fills a dump one datagram at a time. The kernel remembers how many entries it has sent and continues at that
/// position of the current table.
fn dumped(state: &mut Kernel, command: u8, list: &List<'_>, arranged: bool) -> Reply {
    let service = match command {
        GET_DEST => {
            // The kernel reports no error if the virtual server does not exist.
            let Ok(key) = wire::service_key(list.get(CmdAttr::SERVICE), state.namespace.ipv6) else {
                return Reply::Dump(Vec::new());
            };
            Some(key)
        }
        _ => None,
    };
    let mut given = Vec::new();
    loop {
        let part = entries(&state.namespace, command, service.as_ref(), given.len(), super::DATAGRAM);
        let last = part.len() < super::DATAGRAM;
        given.extend(part.into_iter().map(|(command, out)| framed(state.family, command, &out)));
        if last && given.len() > super::DATAGRAM {
            break;
        }
        // A dump in one datagram is consistent, so the change comes after it.
        let changed = arranged && change(state);
        if last || (!changed && given.is_empty()) {
            break;
        }
    }
    Reply::Dump(given)
}

fn change(state: &mut Kernel) -> bool {
    let Some((times, mut change)) = state.during_dumps.take() else { return false };
    change(&mut crate::fake::Table(&mut state.namespace));
    let left = times.saturating_sub(1);
    if left > 0 {
        state.during_dumps = Some((left, change));
    }
    true
}

fn entries(namespace: &Namespace, command: u8, key: Option<&ServiceKey>, skip: usize, most: usize) -> Vec<Answer> {
    match (command, key) {
        (GET_DEST, Some(key)) => {
            let Ok(service) = namespace.service(key) else { return Vec::new() };
            let answer = |destination| {
                let mut out = Encoder::new();
                wire::nest(&mut out, CmdAttr::DEST, |out| wire::put_destination(out, destination));
                (NEW_DEST, out)
            };
            service.destinations().skip(skip).take(most).map(answer).collect()
        }
        (GET_DAEMON, _) => {
            let states = [uapi::STATE_MASTER, uapi::STATE_BACKUP].into_iter().zip(&namespace.daemons);
            let running = states.filter_map(|(state, daemon)| daemon.as_ref().map(|daemon| (state, daemon)));
            let answer = |(state, daemon)| {
                let mut out = Encoder::new();
                wire::nest(&mut out, CmdAttr::DAEMON, |out| wire::put_daemon(out, state, daemon));
                (NEW_DAEMON, out)
            };
            running.skip(skip).map(answer).collect()
        }
        _ => namespace.services().skip(skip).take(most).map(service_answer).collect(),
    }
}
