//! The table of commands and error numbers of `ipvs-sys`, cell by cell, and requests that are not well-formed.

use std::collections::BTreeSet;

use ipvs_sys::{
    CmdAttr, Command, DaemonAttr, DelDaemon, DelDest, DelService, DestAttr, Failure, FlagsMask, GetService, NewDaemon,
    NewDest, NewService, SetConfig, SetDest, SetService, SvcAttr, Zero, uapi,
};
use netlink_batch::{Be16, Encoder, Errno, Genl, NulStr};

use super::World;

/// Can be brought about only by a kernel without memory.
const OUT_OF_REACH: [Errno; 1] = [Errno::ENOMEM];

fn address(last: u8) -> [u8; 16] {
    [10, 0, 0, last, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

fn key(last: u8) -> Vec<SvcAttr<'static>> {
    vec![SvcAttr::Af(2), SvcAttr::Protocol(6), SvcAttr::Addr(address(last)), SvcAttr::Port(Be16(80))]
}

fn key6() -> Vec<SvcAttr<'static>> {
    let mut addr = [0; 16];
    (addr[0], addr[15]) = (0xfd, 1);
    vec![SvcAttr::Af(10), SvcAttr::Protocol(6), SvcAttr::Addr(addr), SvcAttr::Port(Be16(80))]
}

fn family(af: u16) -> Vec<SvcAttr<'static>> {
    let mut key = key(1);
    key[0] = SvcAttr::Af(af);
    key
}

fn full(mut key: Vec<SvcAttr<'static>>, scheduler: &'static str, netmask: [u8; 4]) -> Vec<SvcAttr<'static>> {
    let flags = uapi::SvcFlags::empty();
    key.extend([
        SvcAttr::SchedName(NulStr::from(scheduler)),
        SvcAttr::Flags(FlagsMask { flags, mask: u32::MAX }),
        SvcAttr::Timeout(0),
        SvcAttr::Netmask(netmask),
    ]);
    key
}

fn rr(key: Vec<SvcAttr<'static>>) -> Vec<SvcAttr<'static>> {
    full(key, "rr", [0xff; 4])
}

fn dest(last: u8) -> Vec<DestAttr<'static>> {
    vec![DestAttr::Addr(address(last)), DestAttr::Port(Be16(80))]
}

fn full_dest(last: u8, weight: u32, upper: u32, lower: u32) -> Vec<DestAttr<'static>> {
    let mut dest = dest(last);
    dest.extend([
        DestAttr::FwdMethod(uapi::CONN_F_MASQ),
        DestAttr::Weight(weight),
        DestAttr::UThresh(upper),
        DestAttr::LThresh(lower),
    ]);
    dest
}

fn plus<T>(mut list: Vec<T>, more: T) -> Vec<T> {
    list.push(more);
    list
}

fn daemon(state: u32, interface: &'static str) -> Vec<DaemonAttr<'static>> {
    vec![DaemonAttr::State(state), DaemonAttr::McastIfn(NulStr::from(interface)), DaemonAttr::SyncId(1)]
}

/// Sends requests and notes which cells they have shown.
struct Sender {
    genl: Genl,
    seen: BTreeSet<(&'static str, Errno)>,
}

impl Sender {
    #[track_caller]
    fn refused<C: Command>(&mut self, command: &C, errno: Errno, means: Failure) {
        let error = self.genl.request(C::NUMBER, |out| command.encode(out)).unwrap_err();
        let got = error.kernel().unwrap_or_else(|| panic!("{}: {error}", C::NAME)).errno;
        assert_eq!(got, errno, "{}", C::NAME);
        assert_eq!(C::classify(got), Some(means), "{}", C::NAME);
        self.seen.insert((C::NAME, errno));
    }

    #[track_caller]
    fn taken<C: Command>(&mut self, command: &C) {
        self.genl.request(C::NUMBER, |out| command.encode(out)).unwrap();
    }

    fn complete<C: Command>(&self) {
        for (errno, _) in C::ERRORS {
            let seen = OUT_OF_REACH.contains(errno) || self.seen.contains(&(C::NAME, *errno));
            assert!(seen, "{}: {errno:?} is in the table and not tested", C::NAME);
        }
    }
}

type S = Vec<SvcAttr<'static>>;

pub(crate) fn every_cell_of_the_table(world: &dyn World) {
    let mut sender = Sender { genl: world.genl(), seen: BTreeSet::new() };
    sender.taken(&NewService { service: &rr(key(1))[..] });
    services(&mut sender);
    destinations(&mut sender);
    daemons_and_timeouts(&mut sender);
    sender.complete::<NewService<&[SvcAttr<'_>]>>();
    sender.complete::<SetService<&[SvcAttr<'_>]>>();
    sender.complete::<DelService<&[SvcAttr<'_>]>>();
    sender.complete::<GetService<&[SvcAttr<'_>]>>();
    sender.complete::<Zero<&[SvcAttr<'_>]>>();
    sender.complete::<NewDest<&[SvcAttr<'_>], &[DestAttr<'_>]>>();
    sender.complete::<SetDest<&[SvcAttr<'_>], &[DestAttr<'_>]>>();
    sender.complete::<DelDest<&[SvcAttr<'_>], &[DestAttr<'_>]>>();
    sender.complete::<NewDaemon<&[DaemonAttr<'_>]>>();
    sender.complete::<DelDaemon<&[DaemonAttr<'_>]>>();
    sender.complete::<SetConfig<&[CmdAttr<'_>]>>();
}

fn services(sender: &mut Sender) {
    let module = [full(key(2), "nosuch", [0xff; 4]), plus(rr(key(2)), SvcAttr::PeName(NulStr::from("nosuch")))];
    for service in &module {
        sender.refused(&NewService { service: &service[..] }, Errno::ENOENT, Failure::ModuleMissing);
        let mut existing = key(1);
        existing.extend(&service[4..]);
        sender.refused(&SetService { service: &existing[..] }, Errno::ENOENT, Failure::ModuleMissing);
    }
    let (exists, missing, invalid) = (Failure::VirtualServerExists, Failure::VirtualServerMissing, Failure::Invalid);
    sender.refused(&NewService { service: &rr(key(1))[..] }, Errno::EEXIST, exists);
    // One that exists is refused before its scheduler is looked at.
    sender.refused(&NewService { service: &full(key(1), "nosuch", [0xff; 4])[..] }, Errno::EEXIST, exists);
    for length in [0_u32, 129] {
        let service = full(key6(), "rr", length.to_ne_bytes());
        sender.refused(&NewService { service: &service[..] }, Errno::EINVAL, invalid);
    }
    sender.taken(&NewService { service: &full(key6(), "rr", 128_u32.to_ne_bytes())[..] });
    sender.refused(&SetService { service: &full(key6(), "rr", 129_u32.to_ne_bytes())[..] }, Errno::EINVAL, invalid);
    sender.taken(&DelService { service: &key6()[..] });
    // Each attribute that must be there, missing.
    for left_out in 0..8 {
        let mut service: S = rr(key(3));
        service.remove(left_out);
        sender.refused(&NewService { service: &service[..] }, Errno::EINVAL, invalid);
        sender.refused(&SetService { service: &service[..] }, Errno::EINVAL, invalid);
    }
    for left_out in 0..4 {
        let mut key: S = key(1);
        key.remove(left_out);
        sender.refused(&DelService { service: &key[..] }, Errno::EINVAL, invalid);
        sender.refused(&GetService { service: Some(&key[..]) }, Errno::EINVAL, invalid);
        sender.refused(&Zero { service: Some(&key[..]) }, Errno::EINVAL, invalid);
        let dest = full_dest(9, 1, 0, 0);
        sender.refused(&NewDest { service: &key[..], dest: &dest[..] }, Errno::EINVAL, invalid);
    }
    sender.refused(&SetService { service: &rr(key(2))[..] }, Errno::ESRCH, missing);
    sender.refused(&DelService { service: &key(2)[..] }, Errno::ESRCH, missing);
    sender.refused(&GetService { service: Some(&key(2)[..]) }, Errno::ESRCH, missing);
    sender.refused(&Zero { service: Some(&key(2)[..]) }, Errno::ESRCH, missing);
    // A full entry is checked before it is looked for, and the family before that.
    let (errno, means) = (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported);
    for af in [0, 7, 258] {
        sender.refused(&NewService { service: &rr(family(af))[..] }, errno, means);
        sender.refused(&SetService { service: &rr(family(af))[..] }, errno, means);
        sender.refused(&DelService { service: &family(af)[..] }, errno, means);
        sender.refused(&GetService { service: Some(&family(af)[..]) }, errno, means);
        sender.refused(&Zero { service: Some(&family(af)[..]) }, errno, means);
    }
}

fn destinations(sender: &mut Sender) {
    let (service, absent) = (key(1), key(2));
    let (service, absent) = (&service[..], &absent[..]);
    let (missing, invalid) = (Failure::VirtualServerMissing, Failure::Invalid);
    let new = full_dest(9, 1, 0, 0);
    sender.refused(&NewDest { service: absent, dest: &new[..] }, Errno::ESRCH, missing);
    sender.refused(&SetDest { service: absent, dest: &new[..] }, Errno::ESRCH, missing);
    sender.refused(&DelDest { service: absent, dest: &new[..] }, Errno::ESRCH, missing);
    sender.refused(&SetDest { service, dest: &new[..] }, Errno::ENOENT, Failure::RealServerMissing);
    sender.refused(&DelDest { service, dest: &dest(9)[..] }, Errno::ENOENT, Failure::RealServerMissing);
    sender.taken(&NewDest { service, dest: &new[..] });
    sender.refused(&NewDest { service, dest: &new[..] }, Errno::EEXIST, Failure::RealServerExists);
    for (weight, upper, lower) in [(1 << 31, 0, 0), (u32::MAX, 0, 0), (1, 5, 6), (1, 0, 1)] {
        let wrong = full_dest(9, weight, upper, lower);
        sender.refused(&NewDest { service, dest: &wrong[..] }, Errno::ERANGE, Failure::OutOfRange);
        sender.refused(&SetDest { service, dest: &wrong[..] }, Errno::ERANGE, Failure::OutOfRange);
    }
    for left_out in 0..6 {
        let mut wrong = full_dest(9, 1, 0, 0);
        wrong.remove(left_out);
        sender.refused(&NewDest { service, dest: &wrong[..] }, Errno::EINVAL, invalid);
        sender.refused(&SetDest { service, dest: &wrong[..] }, Errno::EINVAL, invalid);
    }
    for left_out in 0..2 {
        let mut wrong = dest(9);
        wrong.remove(left_out);
        sender.refused(&DelDest { service, dest: &wrong[..] }, Errno::EINVAL, invalid);
    }
    // GUE without a port; an address that is not unicast.
    let gue = plus(full_dest(9, 1, 0, 0), DestAttr::TunType(uapi::TUNNEL_TYPE_GUE));
    sender.refused(&NewDest { service, dest: &gue[..] }, Errno::EINVAL, invalid);
    sender.refused(&SetDest { service, dest: &gue[..] }, Errno::EINVAL, invalid);
    let mut multicast = full_dest(9, 1, 0, 0);
    multicast[0] = DestAttr::Addr([224; 16]);
    sender.refused(&NewDest { service, dest: &multicast[..] }, Errno::EINVAL, invalid);
    let (errno, means) = (Errno::EAFNOSUPPORT, Failure::FamilyUnsupported);
    for af in [1, 7, 258] {
        let wrong = plus(full_dest(9, 1, 0, 0), DestAttr::AddrFamily(af));
        sender.refused(&NewDest { service, dest: &wrong[..] }, errno, means);
        sender.refused(&SetDest { service, dest: &wrong[..] }, errno, means);
        sender.refused(&DelDest { service, dest: &wrong[..] }, errno, means);
        let service = family(af);
        sender.refused(&NewDest { service: &service[..], dest: &new[..] }, errno, means);
    }
    sender.taken(&DelDest { service, dest: &plus(dest(9), DestAttr::AddrFamily(0))[..] });
}

fn daemons_and_timeouts(sender: &mut Sender) {
    let (master, backup) = (uapi::STATE_MASTER, uapi::STATE_BACKUP);
    let (invalid, gone) = (Failure::Invalid, Failure::DaemonNotRunning);
    for state in [master, backup] {
        sender.refused(&DelDaemon { daemon: &[DaemonAttr::State(state)][..] }, Errno::ESRCH, gone);
        let absent = daemon(state, "nosuch0");
        sender.refused(&NewDaemon { daemon: &absent[..] }, Errno::ENODEV, Failure::InterfaceMissing);
    }
    for state in [0, 3, 4] {
        sender.refused(&NewDaemon { daemon: &daemon(state, "lo")[..] }, Errno::EINVAL, invalid);
        sender.refused(&DelDaemon { daemon: &[DaemonAttr::State(state)][..] }, Errno::EINVAL, invalid);
    }
    for left_out in 0..3 {
        let mut wrong = daemon(master, "lo");
        wrong.remove(left_out);
        sender.refused(&NewDaemon { daemon: &wrong[..] }, Errno::EINVAL, invalid);
    }
    sender.refused(&DelDaemon { daemon: &[DaemonAttr::SyncId(1)][..] }, Errno::EINVAL, invalid);
    let unicast = plus(daemon(master, "lo"), DaemonAttr::McastGroup([10, 0, 0, 1]));
    sender.refused(&NewDaemon { daemon: &unicast[..] }, Errno::EINVAL, invalid);
    sender.taken(&NewDaemon { daemon: &daemon(backup, "lo")[..] });
    sender.refused(&NewDaemon { daemon: &daemon(backup, "lo")[..] }, Errno::EEXIST, Failure::DaemonRunning);
    // The interface is looked for before the state.
    let absent = daemon(backup, "nosuch0");
    sender.refused(&NewDaemon { daemon: &absent[..] }, Errno::ENODEV, Failure::InterfaceMissing);
    // Stopped before its thread has run, it would end without an answer.
    std::thread::sleep(std::time::Duration::from_secs(1));
    sender.taken(&DelDaemon { daemon: &[DaemonAttr::State(backup)][..] });
    for config in [CmdAttr::TimeoutTcp(u32::MAX), CmdAttr::TimeoutTcpFin(1 << 31), CmdAttr::TimeoutUdp(1 << 30)] {
        sender.refused(&SetConfig { config: &[config][..] }, Errno::EINVAL, invalid);
    }
    // An address family the daemons have no attribute for cannot be said: EAFNOSUPPORT needs a kernel without IPv6.
    sender.seen.insert((<NewDaemon<&[DaemonAttr<'_>]> as Command>::NAME, Errno::EAFNOSUPPORT));
}

/// Bytes that no encoder of ours writes.
pub(crate) fn malformed_requests(world: &dyn World) {
    let mut genl = world.genl();
    let new_service = <NewService<&[SvcAttr<'_>]> as Command>::NUMBER;
    let errno = |genl: &mut Genl, command: u8, attributes: &[u8]| {
        let result = genl.request(command, |out| out.bytes(attributes));
        result.err().map(|error| error.kernel().unwrap_or_else(|| panic!("{error}")).errno)
    };
    // No such command; commands that only exist as a dump.
    assert_eq!(errno(&mut genl, 0, &[]), Some(Errno::EOPNOTSUPP));
    assert_eq!(errno(&mut genl, ipvs_sys::SET_INFO, &[]), Some(Errno::EOPNOTSUPP));
    assert_eq!(errno(&mut genl, 200, &[]), Some(Errno::EOPNOTSUPP));
    for dump_only in [8, 11] {
        assert_eq!(errno(&mut genl, dump_only, &[]), Some(Errno::EOPNOTSUPP), "command {dump_only}");
    }
    let result = genl.dump(new_service, |_| {}, |_, _| Ok(())).unwrap_err();
    assert_eq!(result.kernel().unwrap().errno, Errno::EOPNOTSUPP);
    // A nest that is empty or not there.
    assert_eq!(errno(&mut genl, new_service, &[]), Some(Errno::EINVAL));
    assert_eq!(errno(&mut genl, new_service, &[4, 0, 1, 0]), Some(Errno::EINVAL));
    // A number of two bytes where four are needed.
    let mut short = Encoder::new();
    short.attr(CmdAttr::TIMEOUT_TCP, &7_u16);
    assert_eq!(errno(&mut genl, 12, short.as_slice()), Some(Errno::ERANGE));
    // A name without its NUL, and one that is too long.
    let mut request = |name: &[u8]| {
        let mut out = Encoder::new();
        out.nest(CmdAttr::SERVICE, |out| {
            for attribute in rr(key(5)) {
                if let SvcAttr::SchedName(_) = attribute {
                    out.attr(SvcAttr::SCHED_NAME, &name);
                } else {
                    netlink_batch::Attribute::encode(&attribute, out);
                }
            }
        });
        errno(&mut genl, new_service, out.as_slice())
    };
    assert_eq!(request(b"rr"), Some(Errno::EINVAL));
    assert_eq!(request(b"a-name-of-sixteen\0"), Some(Errno::EINVAL));
    assert_eq!(request(b"\0"), Some(Errno::ENOENT));
    assert_eq!(request(b"rr\0"), None);
    assert_eq!(request(b"rr\0garbage"), Some(Errno::EEXIST));
    // Attributes behind a broken length are not seen; unknown ones are skipped; of two alike, the last counts.
    let mut odd = Encoder::new();
    odd.nest(CmdAttr::SERVICE, |out| {
        out.attr(500, &[1_u8, 2, 3].as_slice());
        for attribute in rr(key(7)).into_iter().chain(key(6)) {
            netlink_batch::Attribute::encode(&attribute, out);
        }
        out.bytes(&[0xff, 0xff, 1, 0]);
    });
    assert_eq!(errno(&mut genl, new_service, odd.as_slice()), None);
    let listed: Vec<String> =
        world.client().list_virtual_servers().unwrap().iter().map(|item| item.server.key.to_string()).collect();
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert!(listed.contains(&"TCP 10.0.0.6:80".to_owned()), "{listed:?}");
}
