//! Requests, dumps and batches over a simulated kernel that misbehaves the way real sockets can.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]
#![cfg(feature = "testing")]

use std::sync::{Arc, Mutex};

use netlink_batch::testing::{Faults, Reply, Simulated};
use netlink_batch::{Connection, Errno, ErrorKind, Limits, Message, Outcome, WireError};

const SET: u16 = 20;
const DUMP: u16 = 21;
const NAME: u16 = 1;

/// Answers SET by its first payload byte (an errno, 0 for success) and DUMP with 100 numbered entries.
fn connection() -> (Connection, Arc<Mutex<Faults>>) {
    let transport = Simulated::new(|message: &Message<'_>| match message.header.kind {
        SET => match message.payload.first() {
            Some(0) => Reply::Ok,
            Some(&errno) => Reply::Error(Errno(errno.into())),
            None => Reply::Error(Errno::EINVAL),
        },
        DUMP => Reply::Dump((0..100).map(|number| (DUMP, vec![number])).collect()),
        _ => Reply::Error(Errno::EOPNOTSUPP),
    });
    let faults = transport.faults();
    let mut connection = Connection::new(transport);
    let mut limits = Limits::default();
    limits.timeout = std::time::Duration::from_millis(20);
    connection.set_limits(limits);
    (connection, faults)
}

fn entries(connection: &mut Connection) -> Result<Vec<u8>, netlink_batch::Error> {
    let first = |payload: &[u8]| payload.first().copied().ok_or(WireError::Missing { attribute: "entry".into() });
    connection.dump(DUMP, 0, &[], |_| {}, first).map(|dump| dump.items)
}

fn all() -> Vec<u8> {
    (0..100).collect()
}

#[test]
fn a_dump_is_complete_whatever_happens_on_the_way() {
    type Fault = fn(&mut Faults);
    let cases: [(&str, Fault); 6] = [
        ("many datagrams", |_| {}),
        ("stale and foreign messages", |faults| faults.noise = true),
        ("interruptions", |faults| faults.interrupted_dumps = 3),
        ("a truncated datagram", |faults| faults.truncated = 1),
        ("a lost part", |faults| faults.no_buffers = 1),
        ("signals", |faults| faults.signals = 5),
    ];
    for (what, fault) in cases {
        let (mut connection, faults) = connection();
        fault(&mut faults.lock().unwrap());
        assert_eq!(entries(&mut connection).unwrap(), all(), "{what}");
        connection.request(SET, 0, &[0], |_| {}).unwrap();
    }
}

#[test]
fn dump_that_never_settles_is_an_error_and_not_a_partial_list() {
    let (mut connection, faults) = connection();
    faults.lock().unwrap().interrupted_dumps = 1000;
    let error = entries(&mut connection).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Interrupted);
    // Bounded: exactly as many attempts as the limits say were made.
    assert_eq!(faults.lock().unwrap().interrupted_dumps, 1000 - Limits::default().dump_attempts);
}

#[test]
fn missing_end_of_dump_is_a_timeout() {
    let (mut connection, faults) = connection();
    faults.lock().unwrap().lose_end = true;
    assert_eq!(*entries(&mut connection).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn an_unreadable_entry_fails_the_dump_and_leaves_the_connection_usable() {
    let (mut connection, _) = connection();
    let refuse = |payload: &[u8]| {
        if payload == [50] { Err(WireError::Missing { attribute: "fifty".into() }) } else { Ok(()) }
    };
    let error = connection.dump(DUMP, 0, &[], |_| {}, refuse).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Malformed(WireError::Missing { attribute: "fifty".into() }));
    assert_eq!(entries(&mut connection).unwrap(), all());
}

#[test]
fn lost_answers_make_the_chunk_unknown_and_stop_the_batch() {
    let (mut connection, faults) = connection();
    let mut batch = connection.batch();
    for index in 0..300 {
        if index == 128 {
            faults.lock().unwrap().no_buffers = 1;
        }
        batch.push(SET, 0, &[0], |_| {});
    }
    let report = batch.finish();
    assert_eq!(*report.stopped.as_ref().unwrap().kind(), ErrorKind::StateUnknown);
    assert!((0..128).all(|index| report.outcome(index).is_done()));
    assert!((128..256).all(|index| *report.outcome(index) == Outcome::Unknown));
    assert!((256..300).all(|index| *report.outcome(index) == Outcome::NotSent));
    // The connection goes on afterwards.
    connection.request(SET, 0, &[0], |_| {}).unwrap();
}

#[test]
fn silence_is_a_timeout() {
    let (mut connection, faults) = connection();
    faults.lock().unwrap().lost = 1;
    let error = connection.request(SET, 0, &[0], |_| {}).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Timeout);
    faults.lock().unwrap().lost = 1;
    let mut batch = connection.batch();
    batch.push(SET, 0, &[0], |_| {});
    let report = batch.finish();
    assert_eq!(*report.stopped.as_ref().unwrap().kind(), ErrorKind::Timeout);
    assert_eq!(report.failures, [(0, Outcome::Unknown)]);
}

#[test]
fn a_flood_of_other_messages_is_a_timeout_too() {
    let (mut connection, faults) = connection();
    faults.lock().unwrap().flood = true;
    assert_eq!(*connection.request(SET, 0, &[0], |_| {}).unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(*entries(&mut connection).unwrap_err().kind(), ErrorKind::Timeout);
    let mut batch = connection.batch();
    batch.push(SET, 0, &[0], |_| {});
    let report = batch.finish();
    assert_eq!(*report.stopped.as_ref().unwrap().kind(), ErrorKind::Timeout);
}

#[test]
fn what_cannot_be_written_is_never_sent() {
    let (mut connection, _) = connection();
    let long = vec![0_u8; 70_000];
    let error = connection.request(SET, 0, &[0], |out| out.attr(NAME, &&long[..])).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unsendable(WireError::AttributeTooLong { kind: NAME, length: 70_004 }));
    let mut batch = connection.batch();
    batch.push(SET, 0, &[0], |_| {});
    batch.push(SET, 0, &[0], |out| out.attr(NAME, &&long[..]));
    batch.push(SET, 0, &[0], |_| {});
    let report = batch.finish();
    assert!(matches!(report.failures[..], [(1, Outcome::Unsendable(_))]), "{report:?}");
}

/// A group of SET requests with these first bytes, of which the last is acknowledged.
fn together(
    connection: &mut Connection,
    bytes: &[u8],
) -> Result<Vec<(usize, netlink_batch::KernelError)>, netlink_batch::Error> {
    let mut writer = connection.together();
    for (place, byte) in bytes.iter().enumerate() {
        assert_eq!(writer.push(SET, 0, &[*byte], |_| {}).unwrap(), place);
    }
    assert_eq!(writer.len(), bytes.len());
    writer.send(bytes.len().saturating_sub(1))
}

#[test]
fn requests_that_go_together_name_those_refused() {
    let (mut connection, faults) = connection();
    faults.lock().unwrap().noise = true;
    assert_eq!(together(&mut connection, &[0, 0, 0]).unwrap(), []);
    let refused = together(&mut connection, &[0, 17, 0, 22]).unwrap();
    let seen: Vec<(usize, i32)> = refused.iter().map(|(place, error)| (*place, error.errno.0)).collect();
    assert_eq!(seen, [(1, 17), (3, 22)]);
    // A refusal of the group as a whole is reported for its first request.
    assert_eq!(together(&mut connection, &[85, 0]).unwrap().len(), 1);
    assert_eq!(together(&mut connection, &[]).unwrap(), []);
    connection.request(SET, 0, &[0], |_| {}).unwrap();
}

#[test]
fn lost_answers_to_a_group_are_not_success() {
    let (mut connection, faults) = connection();
    faults.lock().unwrap().no_buffers = 1;
    assert_eq!(*together(&mut connection, &[0, 0]).unwrap_err().kind(), ErrorKind::StateUnknown);
    faults.lock().unwrap().lost = 1;
    assert_eq!(*together(&mut connection, &[0, 0]).unwrap_err().kind(), ErrorKind::Timeout);
    connection.request(SET, 0, &[0], |_| {}).unwrap();
}

/// A transport that sends no more than a few bytes.
struct Narrow(Simulated<fn(&Message<'_>) -> Reply>);

impl netlink_batch::Transport for Narrow {
    fn send(&mut self, datagram: &[u8]) -> std::io::Result<()> {
        assert!(datagram.len() <= 64, "{} bytes were sent", datagram.len());
        self.0.send(datagram)
    }
    fn receive(&mut self, buffer: &mut [u8], timeout: std::time::Duration) -> std::io::Result<usize> {
        self.0.receive(buffer, timeout)
    }
    fn port(&self) -> u32 {
        self.0.port()
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
    fn reserve(&mut self, _bytes: usize) -> std::io::Result<usize> {
        Ok(64)
    }
}

#[test]
fn a_group_that_is_too_large_is_not_sent() {
    let accept: fn(&Message<'_>) -> Reply = |_| Reply::Ok;
    let mut connection = Connection::new(Narrow(Simulated::new(accept)));
    assert_eq!(together(&mut connection, &[0; 3]).unwrap(), []);
    let error = together(&mut connection, &[0; 4]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooLarge { bytes: 80, limit: 64 });
    assert!(error.to_string().contains("80 bytes do not fit"), "{error}");
    connection.request(SET, 0, &[0], |_| {}).unwrap();
}

/// linux/netlink.h: `NLM_F_REQUEST` 1, `NLM_F_ACK` 4, `NLM_F_DUMP` 0x300, `NLM_F_CREATE` 0x400. The kernel ignores messages without
/// the first, answers success only with the second, and lists nothing without the third.
#[test]
fn the_kernel_gets_the_flags_that_it_goes_by() {
    const REQUEST: u16 = 1;
    const ACK: u16 = 4;
    const CREATE: u16 = 0x400;
    let flags = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&flags);
    let mut connection = Connection::new(Simulated::new(move |message: &Message<'_>| {
        seen.lock().unwrap().push(message.header.flags);
        if message.header.kind == DUMP { Reply::Dump(vec![(DUMP, vec![1])]) } else { Reply::Ok }
    }));
    for asked in [0, REQUEST, ACK, CREATE] {
        connection.request(SET, asked, &[0], |_| {}).unwrap();
        connection.dump(DUMP, asked & !ACK, &[], |_| {}, |_| Ok(())).unwrap();
    }
    // NLM_F_ROOT is one of the two bits of NLM_F_DUMP.
    connection.dump(DUMP, 0x100, &[], |_| {}, |_| Ok(())).unwrap();
    let taken = std::mem::take(&mut *flags.lock().unwrap());
    assert_eq!(taken, [0x005, 0x301, 0x005, 0x301, 0x005, 0x301, 0x405, 0x701, 0x301]);
    let mut batch = connection.batch();
    for asked in [ACK, CREATE | ACK, CREATE] {
        batch.push(SET, asked, &[0], |_| {});
    }
    assert!(batch.finish().is_done());
    let mut group = connection.together();
    assert!(group.is_empty());
    for asked in [ACK, CREATE | ACK, CREATE] {
        group.push(SET, asked, &[0], |_| {}).unwrap();
    }
    assert!(!group.is_empty());
    assert_eq!(group.send(1).unwrap(), []);
    // Only the last one of a batch is acknowledged, and the one of a group that was named.
    assert_eq!(*flags.lock().unwrap(), [0x001, 0x401, 0x405, 0x001, 0x405, 0x401]);
}
