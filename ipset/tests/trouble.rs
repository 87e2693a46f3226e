//! Old kernels, missing rights, busy sets and lost answers, with the fake kernel behind something that makes trouble.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::sync::{Arc, Mutex};

use ipset::fake::FakeIpset;
use ipset::{Client, Entry, ErrorKind, IfPresent, SetFlags, SetSpec};
use netlink_batch::testing::{Reply, Responder, Simulated};
use netlink_batch::{Errno, Message};

fn command(message: &Message<'_>) -> u8 {
    message.header.kind.to_be_bytes()[1]
}

/// A client whose requests `meddle` may answer in the kernel's place.
fn meddled(
    mut kernel: FakeIpset,
    mut meddle: impl FnMut(&Message<'_>) -> Option<Reply> + Send + 'static,
) -> Result<Client, ipset::Error> {
    Client::with_transport(Simulated::new(move |message: &Message<'_>| {
        meddle(message).unwrap_or_else(|| kernel.respond(message))
    }))
}

/// An answer to PROTOCOL.
fn versions(newest: u8, oldest: u8) -> Reply {
    let kind = u16::from_be_bytes([ipset::uapi::NFNL_SUBSYS_IPSET, ipset::uapi::IPSET_CMD_PROTOCOL]);
    let attribute = |number: u16, version| [5_u16.to_ne_bytes(), number.to_ne_bytes(), [version, 0], [0, 0]].concat();
    Reply::Data(vec![(kind, [vec![2, 0, 0, 0], attribute(1, newest), attribute(10, oldest)].concat())])
}

/// The protocol version of each request.
type Versions = Arc<Mutex<Vec<u8>>>;

fn speaking(newest: u8, oldest: u8) -> Result<(Client, Versions), ipset::Error> {
    let seen = Versions::default();
    let keep = Arc::clone(&seen);
    let client = meddled(FakeIpset::new(), move |message| {
        // Behind the four bytes of nfgenmsg and the four of the attribute's header.
        keep.lock().unwrap().push(message.payload[8]);
        (command(message) == ipset::uapi::IPSET_CMD_PROTOCOL).then(|| versions(newest, oldest))
    })?;
    Ok((client, seen))
}

#[test]
fn an_older_protocol_is_spoken() {
    let (mut client, seen) = speaking(6, 6).unwrap();
    assert_eq!(client.protocol(), 6);
    client.create_set(&"create a hash:ip".parse().unwrap()).unwrap();
    assert_eq!(client.list_sets().unwrap().len(), 1);
    assert!(seen.lock().unwrap().iter().skip(1).all(|version| *version == 6));
    assert_eq!(speaking(9, 6).unwrap().0.protocol(), 7);
}

#[test]
fn a_kernel_that_is_too_old_or_too_new_is_reported() {
    for (newest, oldest) in [(5, 5), (9, 8)] {
        assert_eq!(*speaking(newest, oldest).unwrap_err().kind(), ErrorKind::ProtocolMismatch);
    }
}

#[test]
fn a_kernel_without_ipset_and_a_caller_without_rights_are_reported() {
    let error = meddled(FakeIpset::new(), |_| Some(Reply::Error(Errno::EINVAL))).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unsupported);
    let error = meddled(FakeIpset::new(), |_| Some(Reply::Error(Errno::EPERM))).unwrap_err();
    assert!(error.is_permission(), "{error}");
    assert_eq!(
        error.to_string(),
        "asking for ipset's protocol version: not permitted; CAP_NET_ADMIN in this network namespace is needed"
    );
}

fn set_and_entries() -> (SetSpec, Vec<Entry>) {
    let set: SetSpec = "create a hash:ip".parse().unwrap();
    let entries = (1..200).map(|last| Entry::parse(set.set_type, &format!("10.0.0.{last}")).unwrap()).collect();
    (set, entries)
}

/// While a program lists a set the kernel neither swaps nor destroys it.
#[test]
fn a_sync_waits_for_a_listing_to_end() {
    let (set, entries) = set_and_entries();
    let mut swaps = 0;
    let mut destroys = 0;
    let kernel = FakeIpset::new();
    let mut client = meddled(kernel, move |message| match command(message) {
        ipset::uapi::IPSET_CMD_SWAP => {
            swaps += 1;
            (swaps < 4).then_some(Reply::Error(Errno::EBUSY))
        }
        ipset::uapi::IPSET_CMD_DESTROY => {
            destroys += 1;
            (destroys < 3).then_some(Reply::Error(Errno(ipset::uapi::IPSET_ERR_BUSY)))
        }
        _ => None,
    })
    .unwrap();
    client.sync(&set, &entries).unwrap();
    let mut counting = set.clone();
    counting.options.flags |= SetFlags::COUNTERS;
    let report = client.sync(&counting, &entries).unwrap();
    assert!(report.swapped && report.leftover.is_none(), "{report:?}");
    assert_eq!(client.list_names().unwrap(), [set.name]);
}

#[test]
fn a_set_that_cannot_be_destroyed_is_reported_and_destroyed_later() {
    let (set, entries) = set_and_entries();
    let swapped = Arc::new(Mutex::new(false));
    let after_swap = Arc::clone(&swapped);
    let mut client = meddled(FakeIpset::new(), move |message| {
        let mut swapped = after_swap.lock().unwrap();
        *swapped |= command(message) == ipset::uapi::IPSET_CMD_SWAP;
        let blocked = command(message) == ipset::uapi::IPSET_CMD_DESTROY && *swapped;
        blocked.then_some(Reply::Error(Errno(ipset::uapi::IPSET_ERR_BUSY)))
    })
    .unwrap();
    client.sync(&set, &entries).unwrap();
    let mut counting = set.clone();
    counting.options.flags |= SetFlags::COUNTERS;
    let report = client.sync(&counting, &entries[..5]).unwrap();
    assert!(report.swapped, "{report:?}");
    let leftover = report.leftover.unwrap();
    assert_eq!(client.list_names().unwrap().len(), 2);
    // The busy leftover blocks a rebuild, which would need its name.
    assert_eq!(*client.sync(&set, &entries).unwrap_err().kind(), ErrorKind::InUse);
    assert_eq!(client.get_set(&set.name).unwrap().entries.len(), 5, "nothing was changed");
    assert_eq!(client.get_set(&leftover).unwrap().entries.len(), entries.len());
    *swapped.lock().unwrap() = false;
    client.destroy_set(&leftover).unwrap();
    assert_eq!(client.list_names().unwrap(), [set.name]);
}

#[test]
fn lost_answers_are_reported_as_unknown() {
    let kernel = FakeIpset::new();
    let transport = netlink_batch::testing::Simulated::new(kernel.clone());
    let faults = transport.faults();
    let mut client = Client::with_transport(transport).unwrap();
    let set: SetSpec = "create a hash:ip".parse().unwrap();
    client.create_set(&set).unwrap();
    let all: Vec<Entry> = (0..5000_u32)
        .map(|number| Entry::parse(set.set_type, &format!("10.1.{}.{}", number >> 8, number & 255)).unwrap())
        .collect();
    client.add_entries(&set.name, &all, IfPresent::Refuse).into_result().unwrap();
    faults.lock().unwrap().no_buffers = 1;
    let error = client.set_header(&set.name).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::StateUnknown);
    // A dump that loses a part, is cut off or interrupted is read again, and is complete.
    faults.lock().unwrap().no_buffers = 1;
    assert_eq!(client.get_set(&set.name).unwrap().entries.len(), 5000);
    faults.lock().unwrap().interrupted_dumps = 2;
    assert_eq!(client.get_set(&set.name).unwrap().entries.len(), 5000);
    faults.lock().unwrap().interrupted_dumps = 1000;
    assert_eq!(*client.get_set(&set.name).unwrap_err().kind(), ErrorKind::Interrupted);
}
