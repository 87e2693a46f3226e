//! Checks that the fuzz targets run on their bytes; `tests/corpus.rs` runs the same on the bytes that fuzzing has found.
//!
//! Each function panics when the library breaks a promise; any other outcome is fine.

use std::io;
use std::time::Duration;

use netlink_batch::header::NLM_F_DUMP;
use netlink_batch::testing::{Reply, Responder, Simulated};
use netlink_batch::{Encoder, Message, Messages, Transport};
use nftables::fake::FakeNftables;
use nftables::uapi::{NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES};
use nftables::{Client, ElementKey, Events, Family, TableKey};

/// Parts of the fuzzer's bytes: the number of a command, and what is behind the message header.
fn parts(data: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let split = data.split(|byte| *byte == 0xf5).take(16);
    split.filter_map(|part| part.split_first().map(|(command, rest)| (*command, rest.to_vec()))).collect()
}

fn message_type(command: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_NFTABLES, command])
}

/// A client reads answers that no kernel would give: it says an error or something, and what it read it can write and print.
pub(crate) fn replies(data: &[u8]) {
    let answers = parts(data);
    let transport = Simulated::new(move |request: &Message<'_>| {
        let messages = answers.iter().map(|(command, body)| (message_type(*command), body.clone())).collect();
        if request.header.flags & NLM_F_DUMP == NLM_F_DUMP { Reply::Dump(messages) } else { Reply::Data(messages) }
    });
    let mut client = Client::with_transport(transport);
    let Ok(table) = TableKey::new(Family::Inet, "t") else { return };
    let (Ok(chain), Ok(set)) = (table.chain("pick"), table.set("eps")) else { return };
    let Ok(object) = table.object(nftables::ObjectType::Counter, "hits") else { return };
    let errors = [
        client.generation().err(),
        client.list_tables(None).err(),
        client.list_chains(&table).err(),
        client.get_chain(&chain).err(),
        client.list_objects(&table).err(),
        client.get_object(&object).err(),
        client.snapshot(&table).err(),
    ];
    for error in errors.iter().flatten() {
        assert!(!error.to_string().is_empty());
    }
    let mut kernel = Client::with_transport(FakeNftables::new().transport());
    if let Ok(rules) = client.list_rules(&chain) {
        for found in rules {
            let _text = found.rule.to_nft(Family::Inet);
            let _text = found.rule.to_nft_named(Family::Inet, &|_, number| Some(number.to_string()));
            let mut transaction = nftables::Transaction::new();
            transaction.add_rule(&found.chain, found.rule);
            assert!(!transaction.to_string().is_empty());
            let _refused = kernel.commit(&transaction);
        }
    }
    for found in client.list_sets(&table).unwrap_or_default() {
        let elements = client.list_elements(&found.set).unwrap_or_default();
        let mut streamed = 0_usize;
        let _interrupted = client.for_each_element(&set, |_| streamed += 1);
        let ends = elements.iter().any(|element| matches!(element.key, ElementKey::End(_)));
        assert!(
            !ends || !found.set.flags.contains(nftables::SetFlags::INTERVAL) || found.set.key_type.is_concatenation()
        );
        let mut transaction = nftables::Transaction::new();
        transaction.add_set(found.set.clone());
        transaction.add_elements(&found.set, elements);
        let _text = transaction.to_string();
        let _refused = kernel.commit(&transaction);
    }
}

/// The fake kernel takes a batch of requests that no program would make; everything that it keeps can be read, printed and made again.
pub(crate) fn requests(data: &[u8]) {
    let mut kernel = FakeNftables::new();
    let mut out = Encoder::new();
    let mut put = |kind: u16, flags: u16, payload: &[u8]| {
        let length = u32::try_from(payload.len() + 16).unwrap_or(u32::MAX);
        netlink_batch::header::MessageHeader { length, kind, flags, sequence: 1, port: 7 }.put(&mut out);
        out.bytes(payload);
        out.bytes(&[0; 3][..(4 - payload.len() % 4) % 4]);
    };
    put(NFNL_MSG_BATCH_BEGIN, 1, &[0, 0, 0, 10]);
    for (command, body) in parts(data) {
        put(message_type(command & 0x1f), 0x401, &body);
    }
    put(NFNL_MSG_BATCH_END, 1, &[0, 0, 0, 10]);
    let messages: Vec<Message<'_>> = Messages::new(out.as_slice()).map_while(Result::ok).collect();
    let replies = kernel.respond_together(&messages).unwrap_or_default();
    assert_eq!(replies.len(), messages.len());
    let mut client = Client::with_transport(kernel.transport());
    let Ok(tables) = client.list_tables(None) else { panic!("the fake kernel's own tables cannot be read") };
    for found in tables {
        match client.snapshot(&found.table.key) {
            Ok(snapshot) => {
                let _text = snapshot.to_string();
                let _again = snapshot.to_transaction().map(|transaction| transaction.to_string());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A socket of one datagram.
#[derive(Debug)]
struct Heard(Option<Vec<u8>>);

impl Transport for Heard {
    fn send(&mut self, _datagram: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn receive(&mut self, buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        let Some(datagram) = self.0.take() else { return Err(io::ErrorKind::WouldBlock.into()) };
        for (place, byte) in buffer.iter_mut().zip(&datagram) {
            *place = *byte;
        }
        Ok(datagram.len())
    }
    fn port(&self) -> u32 {
        1
    }
    fn in_flight(&self) -> usize {
        1
    }
}

/// Datagrams of events that no kernel would send: the bytes as they are, and as messages that are framed well. Each is an error or events that
/// print.
pub(crate) fn events(data: &[u8]) {
    let mut framed = Encoder::new();
    for (command, body) in parts(data) {
        let length = u32::try_from(body.len() + 16).unwrap_or(u32::MAX);
        let kind = message_type(command);
        netlink_batch::header::MessageHeader { length, kind, flags: 0, sequence: 0, port: 0 }.put(&mut framed);
        framed.bytes(&body);
        framed.bytes(&[0; 3][..(4 - body.len() % 4) % 4]);
    }
    for datagram in [data.to_vec(), framed.as_slice().to_vec()] {
        let mut events = Events::with_transport(Heard(Some(datagram)));
        match events.wait(Duration::ZERO) {
            Ok(heard) => {
                for event in heard.unwrap_or_default() {
                    assert!(!format!("{event:?}").is_empty());
                    assert!(event.table().is_none_or(|table| !table.to_string().contains(char::is_control)));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert_eq!(events.wait(Duration::ZERO).ok(), Some(None), "what was read is gone");
    }
}
