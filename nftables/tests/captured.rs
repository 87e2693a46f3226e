//! Bytes captured between the program `nft` and Linux 6.18. We read what nft writes and what the kernel answers, the
//! fake kernel accepts what nft writes, and we write the same bytes as nft. Each file in `fixtures` says how it was
//! captured. They were captured on a little-endian machine.
#![cfg(target_endian = "little")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use netlink_batch::header::NLM_F_DUMP;
use netlink_batch::testing::{Reply, Responder, Simulated, attribute_tree};
use netlink_batch::{Message, Messages, NulStr, RawAttrs};
use nftables::fake::FakeNftables;
use nftables::uapi::{
    NFNL_SUBSYS_NFTABLES, NFT_MSG_GETSETELEM, NFT_MSG_NEWCHAIN, NFT_MSG_NEWOBJ, NFT_MSG_NEWRULE, NFT_MSG_NEWSET,
    NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE,
};
use nftables::{Client, Family, TableKey, TableSnapshot};
use testkit::Capture;

fn capture(name: &str) -> Capture {
    Capture::read(format!("{}/tests/fixtures/{name}.nl", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn messages(datagrams: &[Vec<u8>]) -> Vec<Message<'_>> {
    datagrams.iter().flat_map(|datagram| Messages::new(datagram)).map(Result::unwrap).collect()
}

fn command(message: &Message<'_>) -> Option<u8> {
    match message.header.kind.to_be_bytes() {
        [NFNL_SUBSYS_NFTABLES, command] => Some(command),
        _ => None,
    }
}

fn table() -> TableKey {
    TableKey::new(Family::Inet, "t").unwrap()
}

/// The fake kernel after nft's own transaction.
fn fake() -> FakeNftables {
    let capture = capture("load");
    let batch = capture.sent.last().unwrap();
    let messages: Vec<Message<'_>> = Messages::new(batch).map(Result::unwrap).collect();
    let mut kernel = FakeNftables::new();
    let replies = kernel.respond_together(&messages).unwrap();
    assert!(replies.iter().all(|reply| *reply == Reply::Ok), "{replies:?}");
    kernel
}

fn snapshot(transport: impl netlink_batch::Transport + 'static) -> TableSnapshot {
    Client::with_transport(transport).snapshot(&table()).unwrap()
}

/// Lines of a table's text, sorted, without the number of its rules in the kernel.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn what_nft_writes_is_read() {
    let text = snapshot(fake().transport()).to_string();
    for line in [
        "comment \"about\"",
        "packets 16909060 bytes 72623859790382856",
        "type ipv4_addr . inet_proto . inet_service . mark : ipv4_addr . inet_service",
        "elements = { 10.1.2.3 . tcp . 4660 . 0x01020304 comment \"web\" : 10.4.5.6 . 22136 }",
        "elements = { 10.1.2.3 . tcp . 4660 : goto pick }",
        "elements = { 10.1.2.4/31, 255.255.255.0/24 }",
        "timeout 4h41m49s60ms",
        "ip daddr 10.1.2.3 meta l4proto tcp counter name \"hits\" dnat ip to 10.4.5.6:4660 comment \"one\"",
        "type nat hook prerouting priority -99; policy accept;",
        "tcp dport { 4660, 22136 } accept",
        "ip daddr . meta l4proto . th dport vmap @services",
        "meta mark & 0x0000ff00 == 0x00001200 accept",
        "type filter hook input priority 258; policy drop;",
        "update @recent { ip saddr timeout 4h41m49s }",
        "limit rate 258/minute burst 772 packets log prefix \"hi\" level debug",
        "ct state established,related accept",
        "fib daddr type local reject with icmpx admin-prohibited",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

/// Answers each request with what the kernel answered to nft.
fn replay() -> impl FnMut(&Message<'_>) -> Reply + Send {
    let capture = capture("list");
    let mut answers: BTreeMap<u8, Vec<(u16, Vec<u8>)>> = BTreeMap::new();
    for message in messages(&capture.received) {
        if let Some(command) = command(&message) {
            answers.entry(command).or_default().push((message.header.kind, message.payload.to_vec()));
        }
    }
    let second = |payload: &[u8]| -> Vec<u8> {
        let attr = RawAttrs::new(&payload[4..]).map(Result::unwrap).find(|attr| attr.kind() == 2).unwrap();
        NulStr::new(attr.payload).as_bytes().to_vec()
    };
    move |request: &Message<'_>| {
        let asked = command(request).unwrap();
        // Requests and answers follow one another: NEW, GET, DEL.
        let mut found = answers.get(&(asked - 1)).cloned().unwrap_or_default();
        if asked == NFT_MSG_GETSETELEM {
            let set = second(request.payload);
            found.retain(|(_, payload)| second(payload) == set);
        }
        if request.header.flags & NLM_F_DUMP == NLM_F_DUMP {
            return Reply::Dump(found);
        }
        found.truncate(1);
        Reply::Data(found)
    }
}

#[test]
fn what_the_kernel_answers_is_what_nft_wrote() {
    let real = snapshot(Simulated::new(replay()));
    let fake = snapshot(fake().transport());
    assert_eq!(sorted(&real.to_string()), sorted(&fake.to_string()));
    assert_eq!(real.table.handle, 1);
    assert!(real.rules.iter().all(|rule| rule.handle != 0));
}

#[test]
fn what_we_write_is_what_nft_writes() {
    let seen: Arc<Mutex<Vec<(u8, String)>>> = Arc::default();
    let mut transport = Simulated::new({
        let seen = Arc::clone(&seen);
        move |message: &Message<'_>| {
            if let Some(command) = command(message) {
                seen.lock().unwrap().push((command, attribute_tree(&message.payload[4..], &[])));
            }
            Reply::Ok
        }
    });
    let transaction = snapshot(fake().transport()).to_transaction().unwrap();
    netlink_batch::Transport::reserve(&mut transport, 0).unwrap();
    Client::with_transport(transport).commit(&transaction).unwrap();
    let ours = seen.lock().unwrap();
    let capture = capture("load");
    let theirs = messages(&capture.sent);
    let mut compared = BTreeMap::new();
    for message in theirs {
        let Some(command) = command(&message).filter(|command| {
            [NFT_MSG_NEWTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWOBJ, NFT_MSG_NEWRULE, NFT_MSG_NEWSETELEM].contains(command)
        }) else {
            continue;
        };
        let wanted = attribute_tree(&message.payload[4..], &[]);
        if ours.iter().any(|(number, found)| *number == command && *found == wanted) {
            *compared.entry(command).or_insert(0) += 1;
        }
    }
    // Known differences: nft names sets by number as well as by name, numbers each element of a list, and begins sets
    // of ranges with an end at zero. It writes a single address or port once where the kernel writes it twice.
    let at_least = [(NFT_MSG_NEWTABLE, 1), (NFT_MSG_NEWCHAIN, 3), (NFT_MSG_NEWOBJ, 1), (NFT_MSG_NEWRULE, 3)];
    for (command, count) in at_least {
        assert!(compared.get(&command).is_some_and(|found| *found >= count), "{command}: {compared:?}\n{ours:#?}");
    }
    assert_eq!(ours.iter().filter(|(command, _)| *command == NFT_MSG_NEWSET).count(), 5);
}
