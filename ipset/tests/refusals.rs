//! Meaning of the kernel's error numbers, command by command, and the messages made of them. A kernel in memory refuses
//! with any number of linux/netfilter/ipset/ip_set.h, ip_set_hash.h, ip_set_bitmap.h and ip_set_list.h.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipset::fake::FakeIpset;
use ipset::uapi::{
    IPSET_CMD_ADD, IPSET_CMD_CREATE, IPSET_CMD_DEL, IPSET_CMD_PROTOCOL, IPSET_CMD_TEST, IPSET_ERR_BEFORE,
    IPSET_ERR_BITMAP_RANGE, IPSET_ERR_BITMAP_RANGE_SIZE, IPSET_ERR_BITMASK_NETMASK_EXCL, IPSET_ERR_COMMENT,
    IPSET_ERR_COUNTER, IPSET_ERR_EXIST, IPSET_ERR_FIND_TYPE, IPSET_ERR_HASH_ELEM, IPSET_ERR_HASH_FULL,
    IPSET_ERR_HASH_RANGE, IPSET_ERR_HASH_RANGE_UNSUPPORTED, IPSET_ERR_INVALID_CIDR, IPSET_ERR_INVALID_FAMILY,
    IPSET_ERR_INVALID_MARKMASK, IPSET_ERR_INVALID_NETMASK, IPSET_ERR_INVALID_PROTO, IPSET_ERR_IPADDR_IPV4,
    IPSET_ERR_IPADDR_IPV6, IPSET_ERR_LIST_FULL, IPSET_ERR_LOOP, IPSET_ERR_MAX_SETS, IPSET_ERR_MISSING_PROTO,
    IPSET_ERR_NAME, IPSET_ERR_NAMEREF, IPSET_ERR_PROTOCOL, IPSET_ERR_REF_EXIST, IPSET_ERR_SKBINFO, IPSET_ERR_TIMEOUT,
};
use ipset::{Client, Entry, Error, ErrorKind, Family, IfAbsent, IfPresent, Limits, SetName, SetSpec, SetType};
use netlink_batch::testing::{Faults, Reply, Responder as _, Simulated};
use netlink_batch::{Errno, Message};

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;

/// The command refused (`None`: every one) and the error number; `None`: nothing is refused.
type Refused = Arc<Mutex<Option<(Option<u8>, i32)>>>;

struct Kernel {
    client: Client,
    refused: Refused,
    faults: Arc<Mutex<Faults>>,
}

fn kernel() -> Kernel {
    let refused = Refused::default();
    let asked = Arc::clone(&refused);
    let mut fake = FakeIpset::new();
    let transport = Simulated::new(move |message: &Message<'_>| {
        let command = message.header.kind.to_be_bytes()[1];
        match *asked.lock().unwrap() {
            Some((which, errno)) if which.is_none_or(|which| which == command) => Reply::Error(Errno(errno)),
            _ => fake.respond(message),
        }
    });
    let faults = transport.faults();
    Kernel { client: Client::with_transport(transport).unwrap(), refused, faults }
}

impl Kernel {
    fn refuse(&self, command: u8, errno: i32) {
        *self.refused.lock().unwrap() = Some((Some(command), errno));
    }
}

fn spec(line: &str) -> SetSpec {
    line.parse().unwrap()
}

#[test]
fn why_a_set_is_not_created() {
    let option = ErrorKind::OptionInvalid;
    for (line, errno, kind) in [
        ("create a hash:ip", IPSET_ERR_MAX_SETS, ErrorKind::TooManySets),
        ("create a hash:ip", IPSET_ERR_INVALID_FAMILY, option("family")),
        ("create a hash:ip netmask 24", IPSET_ERR_INVALID_NETMASK, option("netmask or bitmask")),
        ("create a hash:ip netmask 24", IPSET_ERR_BITMASK_NETMASK_EXCL, option("netmask or bitmask")),
        ("create a hash:ip,mark markmask 1", IPSET_ERR_INVALID_MARKMASK, option("markmask")),
        ("create a bitmap:ip range 10.0.0.0/8", IPSET_ERR_INVALID_CIDR, option("range")),
        ("create a bitmap:ip range 10.0.0.0/8", IPSET_ERR_BITMAP_RANGE, option("range")),
        ("create a bitmap:ip range 10.0.0.0/8", IPSET_ERR_BITMAP_RANGE_SIZE, option("range")),
        ("create a bitmap:port range 1-2", EINVAL, option("range")),
        // The same numbers mean other things to other types.
        ("create a hash:ip", IPSET_ERR_BITMAP_RANGE, ErrorKind::Other(IPSET_ERR_BITMAP_RANGE)),
        ("create a hash:ip", EINVAL, ErrorKind::Other(EINVAL)),
        ("create a bitmap:port range 1-2", ERANGE, ErrorKind::Other(ERANGE)),
        ("create a hash:ip", IPSET_ERR_FIND_TYPE, ErrorKind::TypeUnsupported),
        ("create a hash:ip", IPSET_ERR_PROTOCOL, ErrorKind::ProtocolMismatch),
        ("create a hash:ip", ENOMEM, ErrorKind::NoMemory),
    ] {
        let mut kernel = kernel();
        kernel.refuse(IPSET_CMD_CREATE, errno);
        let error = kernel.client.create_set(&spec(line)).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (&kind, Some(errno)), "{line}");
        assert!(error.to_string().starts_with("creating set a of type "), "{error}");
    }
}

#[test]
fn why_an_entry_is_not_added() {
    let invalid = |kind: &ErrorKind| matches!(kind, ErrorKind::EntryInvalid(_));
    let (hash, bitmap, list) = ("create a hash:ip", "create a bitmap:ip range 10.0.0.0/24", "create a list:set");
    for (line, entry, errno, expected) in [
        (hash, "10.0.0.1", IPSET_ERR_EXIST, Some(ErrorKind::ElementExists)),
        (hash, "10.0.0.1", IPSET_ERR_TIMEOUT, Some(ErrorKind::ExtensionMissing("timeout"))),
        (hash, "10.0.0.1", IPSET_ERR_COUNTER, Some(ErrorKind::ExtensionMissing("counters"))),
        (hash, "10.0.0.1", IPSET_ERR_COMMENT, Some(ErrorKind::ExtensionMissing("comment"))),
        (hash, "10.0.0.1", IPSET_ERR_SKBINFO, Some(ErrorKind::ExtensionMissing("skbinfo"))),
        (hash, "10.0.0.1", IPSET_ERR_INVALID_CIDR, None),
        (hash, "10.0.0.1", IPSET_ERR_IPADDR_IPV4, None),
        (hash, "10.0.0.1", IPSET_ERR_IPADDR_IPV6, None),
        (hash, "10.0.0.1", ERANGE, None),
        (hash, "10.0.0.1", EINVAL, None),
        (hash, "10.0.0.1", IPSET_ERR_HASH_FULL, Some(ErrorKind::SetFull)),
        (hash, "10.0.0.1", IPSET_ERR_HASH_ELEM, None),
        (hash, "10.0.0.1", IPSET_ERR_INVALID_PROTO, None),
        (hash, "10.0.0.1", IPSET_ERR_MISSING_PROTO, None),
        (hash, "10.0.0.1", IPSET_ERR_HASH_RANGE_UNSUPPORTED, None),
        (hash, "10.0.0.1", IPSET_ERR_HASH_RANGE, None),
        (hash, "10.0.0.1", ENOENT, Some(ErrorKind::SetMissing)),
        (hash, "10.0.0.1", EPERM, Some(ErrorKind::Permission)),
        (bitmap, "10.0.0.1", IPSET_ERR_BITMAP_RANGE, Some(ErrorKind::OutOfRange)),
        (bitmap, "10.0.0.1", IPSET_ERR_BITMAP_RANGE_SIZE, Some(ErrorKind::OutOfRange)),
        (bitmap, "10.0.0.1", IPSET_ERR_MISSING_PROTO, Some(ErrorKind::Other(IPSET_ERR_MISSING_PROTO))),
        (list, "b", IPSET_ERR_NAME, Some(ErrorKind::MemberMissing)),
        (list, "b", IPSET_ERR_NAMEREF, Some(ErrorKind::MemberMissing)),
        (list, "b", IPSET_ERR_LOOP, Some(ErrorKind::MemberIsList)),
        (list, "b", IPSET_ERR_BEFORE, Some(ErrorKind::PositionMissing)),
        (list, "b", IPSET_ERR_REF_EXIST, Some(ErrorKind::PositionMissing)),
        (list, "b", IPSET_ERR_LIST_FULL, Some(ErrorKind::SetFull)),
    ] {
        let mut kernel = kernel();
        let set = spec(line);
        kernel.client.create_set(&set).unwrap();
        kernel.refuse(IPSET_CMD_ADD, errno);
        let report =
            kernel.client.add_entries(&set.name, &[Entry::parse(set.set_type, entry).unwrap()], IfPresent::Refuse);
        let [failure] = &report.failures[..] else { panic!("{line} {errno}: {report:?}") };
        match expected {
            Some(kind) => assert_eq!(*failure.error.kind(), kind, "{line} {errno}"),
            None => assert!(invalid(failure.error.kind()), "{line} {errno}: {:?}", failure.error.kind()),
        }
        assert!(!report.is_done());
        assert!(failure.error.action().contains("set a"), "{}", failure.error);
    }
    let mut kernel = kernel();
    let set = spec(hash);
    kernel.client.create_set(&set).unwrap();
    let entry = Entry::parse(set.set_type, "10.0.0.1").unwrap();
    kernel.refuse(IPSET_CMD_DEL, IPSET_ERR_EXIST);
    let report = kernel.client.delete_entries(&set.name, std::slice::from_ref(&entry), IfAbsent::Refuse);
    assert_eq!(*report.failures[0].error.kind(), ErrorKind::ElementMissing);
    // Presence and absence are answers; a refused question is none.
    kernel.refuse(IPSET_CMD_TEST, IPSET_ERR_EXIST);
    assert!(!kernel.client.test_entry(&set.name, &entry).unwrap());
    kernel.refuse(IPSET_CMD_TEST, EPERM);
    assert!(kernel.client.test_entry(&set.name, &entry).unwrap_err().is_permission());
}

type Attempt<'a> = Box<dyn Fn(&mut Client) -> Result<(), Error> + 'a>;

#[test]
fn every_error_says_what_was_being_done() {
    let (a, b) = (SetName::new("alpha").unwrap(), SetName::new("beta").unwrap());
    let attempts: Vec<(&str, Attempt<'_>)> = vec![
        ("asking for ipset's protocol version", Box::new(|client| client.protocols().map(drop))),
        (
            "asking for set type hash:ip",
            Box::new(|client| client.type_revisions(SetType::HashIp, Family::Inet).map(drop)),
        ),
        ("destroying set alpha", Box::new(|client| client.destroy_set(&a))),
        ("destroying all sets", Box::new(Client::destroy_all_sets)),
        ("flushing set alpha", Box::new(|client| client.flush_set(&a))),
        ("flushing all sets", Box::new(Client::flush_all_sets)),
        ("renaming set alpha to beta", Box::new(|client| client.rename_set(&a, &b))),
        ("swapping sets alpha and beta", Box::new(|client| client.swap_sets(&a, &b))),
        ("listing sets", Box::new(|client| client.list_sets().map(drop))),
        ("listing set alpha", Box::new(|client| client.get_set(&a).map(drop))),
        ("asking for the type of set alpha", Box::new(|client| client.set_header(&a).map(drop))),
    ];
    for (action, attempt) in attempts {
        let mut kernel = kernel();
        *kernel.refused.lock().unwrap() = Some((None, EPERM));
        let error = attempt(&mut kernel.client).unwrap_err();
        assert_eq!((error.action(), error.errno()), (action, Some(EPERM)));
        assert!(error.is_permission() && !error.is_not_found() && !error.is_already_exists());
        assert!(std::error::Error::source(&error).is_some());
    }
}

#[test]
fn what_is_not_known_is_said_so() {
    let mut kernel = kernel();
    let mut limits = Limits::default();
    limits.timeout = Duration::from_millis(20);
    kernel.client.set_limits(limits);
    assert_eq!(kernel.client.limits(), limits);
    let set = spec("create a hash:ip");
    kernel.client.create_set(&set).unwrap();
    kernel.faults.lock().unwrap().lost = 1;
    assert_eq!(*kernel.client.flush_set(&set.name).unwrap_err().kind(), ErrorKind::Timeout);
    // PROTOCOL is sent when a conversation opens, and by `protocols`.
    kernel.refuse(IPSET_CMD_PROTOCOL, ENOMEM);
    assert_eq!(*kernel.client.protocols().unwrap_err().kind(), ErrorKind::NoMemory);
}

/// The refusals themselves are compared with the kernel's in `suite`.
#[test]
fn a_sync_refuses_before_it_writes() {
    for (line, entry) in [
        ("create a hash:ip", "0.0.0.0"),
        ("create a hash:ip", "10.0.0.1 timeout 5"),
        ("create a bitmap:port range 5-9", "9-10"),
    ] {
        let mut kernel = kernel();
        let set = spec(line);
        // A sync that wrote would fail with this instead.
        kernel.refuse(IPSET_CMD_CREATE, ENOMEM);
        let error = kernel.client.sync(&set, &[Entry::parse(set.set_type, entry).unwrap()]).unwrap_err();
        assert_ne!(*error.kind(), ErrorKind::NoMemory, "{line}: {entry}");
    }
}

#[test]
fn a_sync_says_whether_it_changed_anything() {
    let set = spec("create a hash:net comment skbinfo timeout 0");
    let mut client = kernel().client;
    let mut changes = |texts: &[&str]| {
        let wanted: Vec<Entry> = texts.iter().map(|text| Entry::parse(set.set_type, text).unwrap()).collect();
        client.sync(&set, &wanted).unwrap().is_changed()
    };
    assert!(changes(&["10.0.0.0/8"]), "it is created");
    assert!(!changes(&["10.0.0.0/8"]));
    assert!(changes(&["10.0.0.0/8", "11.0.0.0/8"]), "one is added");
    assert!(changes(&["10.0.0.0/8"]), "one is deleted");
    for option in ["comment x", "skbmark 0x1/0xff", "skbprio 1:2", "skbqueue 3", "nomatch", "timeout 500"] {
        let with = format!("10.0.0.0/8 {option}");
        assert!(changes(&[&with]), "{option} comes");
        assert!(!changes(&[&with]), "{option} is there");
        assert!(changes(&["10.0.0.0/8 timeout 0"]), "{option} goes");
        assert!(!changes(&["10.0.0.0/8"]), "{option} is gone");
    }
}

/// A sync starts over when another program deletes or makes the set meanwhile, fewer than twenty times.
#[test]
fn a_sync_looks_again_when_another_program_was_faster() {
    let set = spec("create a hash:ip");
    let entry = Entry::parse(set.set_type, "10.0.0.1").unwrap();
    for (losses, done) in [(1, true), (2, true), (1000, false)] {
        let left = Arc::new(Mutex::new(losses));
        let (count, mut fake) = (Arc::clone(&left), FakeIpset::new());
        let mut client = Client::with_transport(Simulated::new(move |message: &Message<'_>| {
            let mut left = count.lock().unwrap();
            if message.header.kind.to_be_bytes()[1] == IPSET_CMD_CREATE && *left > 0 {
                *left -= 1;
                return Reply::Error(Errno::EEXIST);
            }
            fake.respond(message)
        }))
        .unwrap();
        let outcome = client.sync(&set, std::slice::from_ref(&entry));
        assert_eq!(outcome.is_ok(), done, "{losses}: {outcome:?}");
        let tried = losses - *left.lock().unwrap();
        assert!(if done { tried == losses } else { (2..20).contains(&tried) }, "{losses}: {tried}");
    }
}
