//! Bytes captured between the tool `ipset` and Linux 6.18: we write what it writes, we read what the kernel answers,
//! and the fake kernel answers what the kernel answered. Each file in `fixtures` says how it was captured.
//! They were captured on a little-endian machine.
#![cfg(target_endian = "little")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::sync::{Arc, Mutex};

use ipset::fake::FakeIpset;
use ipset::{Client, Entry, IfPresent, SavedSet, SetName, SetSpec, SetType, save};
use netlink_batch::header::NLMSG_ERROR;
use netlink_batch::testing::{Reply, Responder, Simulated, attribute_tree};
use netlink_batch::{Message, Messages, RawAttrs};
use testkit::Capture;

fn capture(name: &str) -> Capture {
    Capture::read(format!("{}/tests/fixtures/{name}.nl", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn messages(datagrams: &[Vec<u8>]) -> Vec<Message<'_>> {
    datagrams.iter().flat_map(|datagram| Messages::new(datagram)).map(Result::unwrap).collect()
}

fn of_command(message: &Message<'_>, command: u8) -> bool {
    message.header.kind.to_be_bytes() == [ipset::uapi::NFNL_SUBSYS_IPSET, command]
}

const LINENO: u16 = 9;

/// The tool numbers the lines of its input, we number entries otherwise.
fn tree(bytes: &[u8]) -> String {
    attribute_tree(bytes, &[LINENO])
}

/// Flags and payload.
type Request = (u16, Vec<u8>);

/// Checks that a client's message for one command is the message of the `ipset` tool.
fn assert_sends_like_the_tool(name: &str, command: u8, act: impl FnOnce(&mut Client)) {
    let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
    let mut kernel = FakeIpset::new();
    let recorder = {
        let seen = Arc::clone(&seen);
        move |message: &Message<'_>| {
            if of_command(message, command) {
                seen.lock().unwrap().push((message.header.flags, message.payload.to_vec()));
            }
            kernel.respond(message)
        }
    };
    act(&mut Client::with_transport(Simulated::new(recorder)).unwrap());
    let captured = capture(name);
    let theirs = messages(&captured.sent).into_iter().find(|message| of_command(message, command)).unwrap();
    let ours = seen.lock().unwrap().first().cloned().unwrap();
    // ACK is asked for by us on the last message only, and REQUEST is always there.
    let (ack, dump) = (0x4, 0x300);
    assert_eq!(ours.0 | ack, theirs.header.flags | ack, "{name}: flags; {dump:#x} is a dump");
    assert_eq!(tree(&ours.1[4..]), tree(&theirs.payload[4..]), "{name}");
}

fn name(text: &str) -> SetName {
    text.parse().unwrap()
}

const CREATE: &str = "create allowed hash:ip,port family inet hashsize 64 maxelem 4660 timeout 0 counters comment skbinfo bucketsize 6 initval 0x01020304";
const ADD: &str = "192.0.2.171,tcp:4660 timeout 0 packets 72623859790382856 bytes 1 comment \"hello there\" skbmark 0x1020304/0xff00 skbprio 1:203 skbqueue 772";

fn allowed() -> SetSpec {
    CREATE.parse().unwrap()
}

fn entry(text: &str) -> Entry {
    Entry::parse(SetType::HashIpPort, text).unwrap()
}

#[test]
fn requests_are_the_tools() {
    use ipset::uapi::{
        IPSET_CMD_ADD, IPSET_CMD_CREATE, IPSET_CMD_DEL, IPSET_CMD_DESTROY, IPSET_CMD_FLUSH, IPSET_CMD_LIST,
        IPSET_CMD_RENAME, IPSET_CMD_SWAP,
    };
    assert_sends_like_the_tool("create", IPSET_CMD_CREATE, |client| client.create_set(&allowed()).unwrap());
    assert_sends_like_the_tool("destroy", IPSET_CMD_DESTROY, |client| {
        client.destroy_set(&name("third")).unwrap_err();
    });
    assert_sends_like_the_tool("swap", IPSET_CMD_SWAP, |client| {
        client.swap_sets(&name("allowed"), &name("other")).unwrap_err();
    });
    assert_sends_like_the_tool("rename", IPSET_CMD_RENAME, |client| {
        client.rename_set(&name("other"), &name("third")).unwrap_err();
    });
    assert_sends_like_the_tool("list-names", IPSET_CMD_LIST, |client| assert_eq!(client.list_names().unwrap(), []));
    let restored = ["192.0.2.1,sctp:258", "192.0.2.2,udp:53", "192.0.2.3,icmp:echo-request"].map(entry);
    assert_sends_like_the_tool("restore", IPSET_CMD_ADD, |client| {
        client.create_set(&allowed()).unwrap();
        client.add_entries(&name("allowed"), &restored, IfPresent::Refuse).into_result().unwrap();
    });
    // The tool sends one entry as DATA, we as a list of one.
    let single = |file: &str, command: u8| {
        let captured = capture(file);
        let message = messages(&captured.sent).into_iter().find(|message| of_command(message, command)).unwrap();
        let data = RawAttrs::new(&message.payload[4..]).map(Result::unwrap).find(|attr| attr.kind() == 7).unwrap();
        tree(data.payload)
    };
    let ours = |command: u8, act: &dyn Fn(&mut Client)| {
        let mut kernel = FakeIpset::new();
        let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let keep = Arc::clone(&seen);
        let recorder = move |message: &Message<'_>| {
            if of_command(message, command) {
                *keep.lock().unwrap() = message.payload.to_vec();
            }
            kernel.respond(message)
        };
        act(&mut Client::with_transport(Simulated::new(recorder)).unwrap());
        let payload = seen.lock().unwrap().clone();
        let list = RawAttrs::new(&payload[4..]).map(Result::unwrap).find(|attr| attr.kind() == 8).unwrap();
        let data = RawAttrs::new(list.payload).map(Result::unwrap).next().unwrap();
        tree(data.payload)
    };
    let add = |client: &mut Client| {
        client.create_set(&allowed()).unwrap();
        client.add_entry(&name("allowed"), &entry(ADD)).unwrap();
    };
    assert_eq!(ours(IPSET_CMD_ADD, &add), single("add", IPSET_CMD_ADD));
    let delete = |client: &mut Client| {
        client.create_set(&allowed()).unwrap();
        client.delete_entry(&name("allowed"), &entry("192.0.2.2,udp:53")).unwrap_err();
    };
    assert_eq!(ours(IPSET_CMD_DEL, &delete), single("delete", IPSET_CMD_DEL));
    // The tool asks for a set's type before it flushes one; the flush itself asks the same of the kernel.
    let flush = capture("flush");
    let sent = messages(&flush.sent);
    assert!(sent.iter().any(|message| of_command(message, IPSET_CMD_FLUSH)));
}

/// A kernel that answers listings with captured ones.
fn replaying(file: &str) -> Client {
    let captured = capture(file);
    let listed: Vec<(u16, Vec<u8>)> = messages(&captured.received)
        .into_iter()
        .filter(|message| of_command(message, ipset::uapi::IPSET_CMD_LIST))
        .map(|message| (message.header.kind, message.payload.to_vec()))
        .collect();
    assert!(!listed.is_empty());
    let mut kernel = FakeIpset::new();
    let responder = move |message: &Message<'_>| match kernel.respond(message) {
        Reply::Dump(_) => Reply::Dump(listed.clone()),
        other => other,
    };
    Client::with_transport(Simulated::new(responder)).unwrap()
}

#[test]
fn listings_are_read() {
    let set = replaying("save").list_sets().unwrap().remove(0);
    assert_eq!((set.revision, set.index, set.references, set.elements), (7, Some(0), 0, Some(5)));
    let mut lines: Vec<String> = save(&[SavedSet::from(set)]).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "add allowed 192.0.2.1,sctp:258 timeout 0 packets 0 bytes 0",
            &format!("add allowed {ADD}"),
            "add allowed 192.0.2.2,udp:53 timeout 0 packets 0 bytes 0",
            "add allowed 192.0.2.3,icmp:echo-request timeout 0 packets 0 bytes 0",
            // Before the line that the kernel refused.
            "add allowed 192.0.2.9,tcp:9 timeout 0 packets 0 bytes 0",
            CREATE,
        ]
    );
    let set = replaying("save-nets").list_sets().unwrap().remove(0);
    assert_eq!(set.entries[0].to_string(), "2001:db8::/31 nomatch");
    let names: Vec<String> = replaying("list-names").list_names().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["allowed", "third", "nets"]);
}

/// Gives the tool's requests to the fake kernel and compares the answers: data by its attributes, refusals by number.
#[test]
fn the_fake_kernel_answers_the_tool_as_the_kernel_did() {
    let mut kernel = FakeIpset::new();
    let mut compared = 0;
    for file in ["create", "add", "restore", "restore-refused", "test", "delete"] {
        let captured = capture(file);
        let received = messages(&captured.received);
        for request in messages(&captured.sent) {
            // "delete" was captured after a rename.
            let renamed = String::from_utf8_lossy(request.payload).contains("third");
            let Some(answer) = received.iter().find(|answer| answer.header.sequence == request.header.sequence) else {
                panic!("{file}: a request without answer");
            };
            if renamed {
                continue;
            }
            let reply = kernel.respond(&request);
            let errno = |bytes: &[u8]| i32::from_ne_bytes(bytes[..4].try_into().unwrap());
            match (&reply, answer.header.kind) {
                (Reply::Ok, NLMSG_ERROR) => assert_eq!(errno(answer.payload), 0, "{file}"),
                (Reply::Error(refusal), NLMSG_ERROR) => assert_eq!(refusal.0, -errno(answer.payload), "{file}"),
                (Reply::Data(items), kind) => {
                    assert_eq!(items[0].0, kind, "{file}");
                    let (ours, theirs) = (&items[0].1, answer.payload);
                    if kind == NLMSG_ERROR {
                        // The number and the copy of the request with the failing line's number in it.
                        assert_eq!(ours, theirs, "{file}");
                    } else {
                        assert_eq!(tree(&ours[4..]), tree(&theirs[4..]), "{file}");
                    }
                }
                other => panic!("{file}: {other:?}"),
            }
            compared += 1;
        }
    }
    assert!(compared > 12, "{compared}");
}
