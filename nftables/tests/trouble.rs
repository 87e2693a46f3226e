//! Faults between a client and the kernel: no partial result is given out, and nothing unknown passes for success.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

#[allow(dead_code, unused_imports, unused_macros, reason = "the cases run in another test program")]
mod suite;

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netlink_batch::testing::{Faults, Reply, Responder, Simulated};
use netlink_batch::{Errno, Message, Transport};
use nftables::fake::FakeNftables;
use nftables::uapi::NFNL_MSG_BATCH_BEGIN;
use nftables::{Client, DataType, Element, ErrorKind, Set, Table, Transaction};
use suite::{table, types};

fn set() -> Set {
    Set::new(table().set("s").unwrap(), types(&[DataType::IPV4_ADDR]))
}

fn fill(count: u32) -> Transaction {
    let mut transaction = Transaction::new();
    transaction.add_table(Table::new(table()));
    transaction.add_set(set());
    transaction.add_elements(&set(), (0..count).map(|number| Element::value(Ipv4Addr::from(number))));
    transaction
}

fn impatient(transport: impl Transport + 'static) -> Client {
    let mut client = Client::with_transport(transport);
    let mut limits = client.connection_mut().limits();
    limits.timeout = Duration::from_millis(20);
    client.connection_mut().set_limits(limits);
    client
}

fn client() -> (Client, Arc<Mutex<Faults>>) {
    let transport = FakeNftables::new().transport();
    let faults = transport.faults();
    let mut client = impatient(transport);
    client.commit(&fill(1000)).unwrap();
    (client, faults)
}

#[test]
fn an_interrupted_dump_is_read_again() {
    let (mut client, faults) = client();
    faults.lock().unwrap().interrupted_dumps = 3;
    assert_eq!(client.list_elements(&set()).unwrap().len(), 1000);
    faults.lock().unwrap().interrupted_dumps = 1000;
    assert_eq!(client.list_elements(&set()).unwrap_err().kind(), ErrorKind::Interrupted);
    // Streams are not started again behind the caller's back.
    faults.lock().unwrap().interrupted_dumps = 1;
    assert_eq!(client.for_each_element(&set().key, |_| {}).unwrap_err().kind(), ErrorKind::Interrupted);
    let mut count = 0;
    client.for_each_element(&set().key, |_| count += 1).unwrap();
    assert_eq!(count, 1000);
}

#[test]
fn a_dump_without_end_is_an_error() {
    let (mut client, faults) = client();
    faults.lock().unwrap().lose_end = true;
    assert_eq!(client.list_sets(&table()).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn lost_answers_are_not_success() {
    let (mut client, faults) = client();
    faults.lock().unwrap().lost = 1;
    assert_eq!(client.commit(&fill(1)).unwrap_err().kind(), ErrorKind::Timeout);
    faults.lock().unwrap().no_buffers = 1;
    assert_eq!(client.commit(&fill(1)).unwrap_err().kind(), ErrorKind::StateUnknown);
    faults.lock().unwrap().noise = true;
    client.commit(&fill(1)).unwrap();
}

/// A rule set that another program changes each time its generation is asked for.
struct Restless {
    kernel: FakeNftables,
    other: Client,
    times: u32,
}

impl Responder for Restless {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        if message.header.kind.to_be_bytes() == [10, nftables::uapi::NFT_MSG_GETGEN] && self.times > 0 {
            self.times -= 1;
            self.other.commit(&fill(2)).unwrap();
        }
        self.kernel.respond(message)
    }
}

#[test]
fn a_snapshot_is_of_one_generation() {
    let kernel = FakeNftables::new();
    Client::with_transport(kernel.transport()).commit(&fill(3)).unwrap();
    let restless = |times| {
        let other = Client::with_transport(kernel.transport());
        impatient(Simulated::new(Restless { kernel: kernel.clone(), other, times }))
    };
    let snapshot = restless(5).snapshot(&table()).unwrap();
    assert_eq!(snapshot.generation, Client::with_transport(kernel.transport()).generation().unwrap());
    assert_eq!(snapshot.sets.len(), 1);
    assert_eq!(restless(u32::MAX).snapshot(&table()).unwrap_err().kind(), ErrorKind::Interrupted);
}

/// A rule set that another program changes just before a transaction comes.
struct Busy {
    kernel: FakeNftables,
    other: Client,
    times: u32,
}

impl Responder for Busy {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        self.kernel.respond(message)
    }

    fn respond_together(&mut self, messages: &[Message<'_>]) -> Option<Vec<Reply>> {
        let batch = messages.first().is_some_and(|first| first.header.kind == NFNL_MSG_BATCH_BEGIN);
        if batch && self.times > 0 {
            self.times -= 1;
            self.other.commit(&fill(2)).unwrap();
        }
        self.kernel.respond_together(messages)
    }
}

#[test]
fn a_change_starts_again_when_somebody_was_faster() {
    let kernel = FakeNftables::new();
    let busy = |times| {
        let other = Client::with_transport(kernel.transport());
        impatient(Simulated::new(Busy { kernel: kernel.clone(), other, times }))
    };
    let mut seen = Vec::new();
    let plan = |found: Option<&nftables::TableSnapshot>, seen: &mut Vec<bool>| {
        seen.push(found.is_some());
        fill(3)
    };
    busy(2).change_table(&table(), |found| plan(found, &mut seen)).unwrap();
    assert_eq!(seen, [false, true, true]);
    let error = busy(u32::MAX).change_table(&table(), |found| plan(found, &mut seen)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::GenerationChanged);
}

#[test]
fn a_kernel_without_nf_tables_is_told() {
    // The kernel's answer for a subsystem that it does not have (net/netfilter/nfnetlink.c).
    let mut client = impatient(Simulated::new(|message: &Message<'_>| {
        let of_batch = message.header.kind == NFNL_MSG_BATCH_BEGIN;
        Reply::Error(if of_batch { Errno::EOPNOTSUPP } else { Errno::EINVAL })
    }));
    assert_eq!(client.generation().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.list_tables(None).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.snapshot(&table()).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.list_sets(&table()).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.commit(&fill(1)).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// A transport of a process that may not send large datagrams.
struct Narrow(Simulated<FakeNftables>);

impl Transport for Narrow {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.0.send(datagram)
    }
    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.0.receive(buffer, timeout)
    }
    fn port(&self) -> u32 {
        self.0.port()
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
    fn reserve(&mut self, _bytes: usize) -> io::Result<usize> {
        Ok(4096)
    }
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_sent() {
    let kernel = FakeNftables::new();
    let mut client = impatient(Narrow(kernel.transport()));
    let error = client.commit(&fill(1000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("do not fit into one datagram of at most 4096"), "{cause}");
    assert_eq!(client.list_tables(None).unwrap(), []);
    client.commit(&fill(10)).unwrap();
    assert_eq!(client.list_elements(&set()).unwrap().len(), 10);
}
