//! The socket against the running kernel, with families that every kernel has.
#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::fs::File;
use std::os::fd::AsFd;

use netlink_batch::header::{GenlHeader, MESSAGE_HEADER};
use netlink_batch::{Attrs, Connection, ControllerAttr, Encoder, Errno, ErrorKind, Genl, NulStr, Outcome, Protocol};

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
