//! The socket against the running kernel, with families that every kernel has.
#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_batch::header::{GenlHeader, MESSAGE_HEADER};
use netlink_batch::{
    Attrs, Connection, ControllerAttr, Encoder, Errno, Error, ErrorKind, Genl, Listener, NulStr, Outcome, Protocol,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use testkit::{Need, kernel_test, oracle};

const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;

fn get_family() -> [u8; 4] {
    GenlHeader { command: GET_FAMILY, version: 2 }.to_bytes()
}

fn named(name: &str) -> impl Fn(&mut Encoder) {
    move |out| out.attr(ControllerAttr::FAMILY_NAME, &NulStr::from(name))
}

#[test]
fn the_controller_lists_itself_in_a_dump() {
    let mut connection = Connection::open(Protocol::Generic).unwrap();
    let names = connection
        .dump(
            CONTROLLER,
            0,
            &get_family(),
            |_| {},
            |payload| {
                let (_, attributes) = GenlHeader::split(payload).unwrap();
                let all = Attrs::<ControllerAttr<'_>>::new(attributes).to_vec()?;
                Ok(all.iter().find_map(|attribute| match attribute {
                    ControllerAttr::FamilyName(name) => name.to_str().map(str::to_owned),
                    _ => None,
                }))
            },
        )
        .unwrap();
    assert!(names.items.contains(&Some("nlctrl".to_owned())), "{names:?}");
}

#[test]
fn an_unknown_family_is_missing() {
    let error = Genl::open("no-such-family").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::FamilyMissing);
}

#[test]
fn every_request_of_a_batch_may_fail_without_losing_an_answer() {
    let mut connection = Connection::open(Protocol::Generic).unwrap();
    let mut batch = connection.batch();
    for index in 0..10_000 {
        // By number: for an unknown name the kernel would start modprobe each time.
        let absent = u16::MAX - index % 1000;
        batch.push(CONTROLLER, 0, &get_family(), |out| out.attr(ControllerAttr::FAMILY_ID, &absent));
    }
    let report = batch.finish();
    assert!(report.stopped.is_none(), "{:?}", report.stopped);
    assert_eq!(report.failures.len(), 10_000);
    for (_, outcome) in &report.failures {
        assert!(matches!(outcome, Outcome::Refused(error) if error.errno == Errno::ENOENT), "{outcome:?}");
    }
}

#[test]
fn the_kernel_names_the_attribute_it_refuses() {
    let mut connection = Connection::open(Protocol::Generic).unwrap();
    // The family's name as a 40-byte string: its policy allows 16.
    let error = connection.request(CONTROLLER, 0, &get_family(), named(&"x".repeat(40))).unwrap_err();
    let kernel = error.kernel().unwrap();
    assert_eq!(kernel.attribute, [ControllerAttr::FAMILY_NAME], "{kernel:?}");
    assert!(kernel.errno == Errno::EINVAL || kernel.errno == Errno::ERANGE, "{kernel:?}");
}

#[test]
fn a_socket_opens_in_another_namespace() {
    // The thread's own namespace counts as another one here: entering it takes the same path and the same capability.
    let namespace = File::open("/proc/thread-self/ns/net").unwrap();
    match Genl::open_in("nlctrl", namespace.as_fd()) {
        Ok(genl) => assert_eq!(genl.family().id, CONTROLLER),
        Err(error) => assert_eq!(*error.kind(), ErrorKind::Io, "without CAP_SYS_ADMIN: {error}"),
    }
}

#[test]
fn a_message_header_is_sixteen_bytes() {
    assert_eq!(MESSAGE_HEADER, size_of::<libc::nlmsghdr>());
}

/// linux/rtnetlink.h: `RTNLGRP_LINK`, `RTM_NEWLINK`.
const LINKS: u32 = 1;
const NEW_LINK: u16 = 16;

fn ip(arguments: &[&str]) {
    oracle::run("ip", arguments, None).unwrap();
}

fn kinds(listener: &mut Listener, timeout: Duration) -> Result<Option<Vec<u16>>, Error> {
    listener.wait(timeout, |kind, _| Ok(kind))
}

fn is_readable(listener: &Listener, patience: Duration) -> bool {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(patience).unwrap()).unwrap() == 1
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn an_event_loop_waits_for_the_descriptor_and_reads_what_is_there() {
    kernel_test(&[Need::Root], || {
        let mut listener = Listener::open(Protocol::Route, &[LINKS]).unwrap();
        assert_eq!(kinds(&mut listener, Duration::ZERO).unwrap(), None);
        assert!(!is_readable(&listener, Duration::ZERO));
        ip(&["link", "set", "lo", "down"]);
        assert!(is_readable(&listener, PATIENCE));
        assert_eq!(kinds(&mut listener, Duration::ZERO).unwrap(), Some(vec![NEW_LINK]));
        while kinds(&mut listener, Duration::ZERO).unwrap().is_some() {}
        assert!(!is_readable(&listener, Duration::ZERO));
    });
}

#[test]
fn waiting_ends_after_the_time_that_was_given() {
    kernel_test(&[Need::Root], || {
        let mut listener = Listener::open(Protocol::Route, &[LINKS]).unwrap();
        let start = Instant::now();
        assert_eq!(kinds(&mut listener, Duration::from_millis(20)).unwrap(), None);
        assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
        // A request may wait for ten seconds; an event that does not come must not.
        assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
        // Longer than any clock can tell.
        ip(&["link", "set", "lo", "down"]);
        assert_eq!(kinds(&mut listener, Duration::MAX).unwrap(), Some(vec![NEW_LINK]));
    });
}

#[test]
fn lost_events_are_told_and_later_ones_come() {
    kernel_test(&[Need::Root], || {
        let mut listener = Listener::open(Protocol::Route, &[LINKS]).unwrap();
        assert!(listener.set_receive_buffer(2 << 20).unwrap() >= 2 << 20);
        let granted = listener.set_receive_buffer(1).unwrap();
        assert!(granted < 64 << 10, "{granted}");
        // A message about a device takes more than a kilobyte.
        let changes = "link set lo down\nlink set lo up\n".repeat(100);
        oracle::run("ip", &["-batch", "-"], Some(&changes)).unwrap();
        assert!(is_readable(&listener, PATIENCE));
        let error = loop {
            match kinds(&mut listener, Duration::ZERO) {
                Ok(found) => assert!(found.is_some(), "200 events fitted into {granted} bytes"),
                Err(error) => break error,
            }
        };
        assert_eq!(*error.kind(), ErrorKind::StateUnknown, "{error}");
        while kinds(&mut listener, Duration::ZERO).unwrap().is_some() {}
        ip(&["link", "set", "lo", "down"]);
        assert_eq!(kinds(&mut listener, PATIENCE).unwrap(), Some(vec![NEW_LINK]));
    });
}

#[test]
fn events_of_another_namespace_are_heard() {
    kernel_test(&[Need::Root], || {
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        let mut listener = std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                let _own = testkit::NetnsGuard::new().unwrap();
                Listener::open_in(Protocol::Route, &[LINKS], namespace.as_fd()).unwrap()
            });
            elsewhere.join().unwrap()
        });
        ip(&["link", "set", "lo", "down"]);
        assert_eq!(kinds(&mut listener, PATIENCE).unwrap(), Some(vec![NEW_LINK]));
    });
}

/// The family `netdev` tells its group `mgmt` of each new device since Linux 6.3 (net/core/netdev-genl.c).
#[test]
fn groups_of_generic_netlink_are_known_by_name() {
    kernel_test(&[Need::Root, Need::Veth, Need::Kernel(6, 3)], || {
        const DEVICE_ADDED: u8 = 2;
        let mut family = Genl::open("netdev").unwrap();
        assert_eq!(family.group("no-such-group").unwrap(), None);
        let group = family.group("mgmt").unwrap().unwrap();
        let mut listener = Listener::open(Protocol::Generic, &[group]).unwrap();
        ip(&["link", "add", "veth0", "type", "veth", "peer", "name", "veth1"]);
        let read = |kind, payload: &[u8]| Ok((kind, GenlHeader::split(payload).map(|(header, _)| header.command)));
        let heard = listener.wait(PATIENCE, read).unwrap().unwrap();
        assert_eq!(heard, [(family.family().id, Some(DEVICE_ADDED))]);
    });
}

/// A group of every kernel, in the families' own family.
#[test]
fn the_controller_has_a_group() {
    assert!(Genl::open("nlctrl").unwrap().group("notify").unwrap().is_some());
}
