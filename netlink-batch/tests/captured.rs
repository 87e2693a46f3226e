//! Answers as Linux 6.18 sent them on x86-64, and a kernel that sends nothing but prepared datagrams.
//!
//! Captured with a raw socket of `NETLINK_GENERIC`, with `NETLINK_CAP_ACK` and `NETLINK_EXT_ACK` off and on. The
//! controller was asked (`CTRL_CMD_GETFAMILY`) for a name of 17 letters, one more than its policy allows. Sequence
//! 0x01020304, port 0x1234.
#![cfg(target_endian = "little")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::collections::VecDeque;
use std::error::Error as _;
use std::io;
use std::time::Duration;

use netlink_batch::header::{
    GenlHeader, MessageHeader, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NfGenHeader,
};
use netlink_batch::{
    Connection, Content, Encoder, Errno, ErrorKind, Limits, Messages, NulStr, Outcome, RawAttrs, Transport, WireError,
};

/// The message that the kernel refused, from behind its message header: command 3, version 2, the name as attribute 2.
const REQUEST: &str = "03020000 16000200 78787878 78787878 78787878 78787878 78000000";

/// The refusal: `EINVAL` (-22), the refused message's header; then `NLMSGERR_ATTR_MSG`, `_OFFS` (20) and `_POLICY`.
const NEITHER: &str = "40000000 02000000 04030201 34120000 eaffffff 2c000000 10000500 04030201 00000000 \
    03020000 16000200 78787878 78787878 78787878 78787878 78000000";
const CAPPED: &str = "24000000 02000001 04030201 34120000 eaffffff 2c000000 10000500 04030201 00000000";
const EXTENDED: &str = "84000000 02000002 04030201 34120000 eaffffff 2c000000 10000500 04030201 00000000 \
    03020000 16000200 78787878 78787878 78787878 78787878 78000000 \
    27000100 41747472 69627574 65206661 696c6564 20706f6c 69637920 76616c69 64617469 6f6e0000 08000200 14000000 \
    14000480 08000700 0f000000 08000100 0c000000";
const BOTH: &str = "68000000 02000003 04030201 34120000 eaffffff 2c000000 10000500 04030201 00000000 \
    27000100 41747472 69627574 65206661 696c6564 20706f6c 69637920 76616c69 64617469 6f6e0000 08000200 14000000 \
    14000480 08000700 0f000000 08000100 0c000000";

const WORDS: &str = "Attribute failed policy validation";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn a_refusal_says_what_the_socket_asked_to_be_told() {
    for (datagram, words, echo) in
        [(NEITHER, None, REQUEST), (CAPPED, None, ""), (EXTENDED, Some(WORDS), REQUEST), (BOTH, Some(WORDS), "")]
    {
        let datagram = bytes(datagram);
        let messages: Vec<_> = Messages::new(&datagram).map(Result::unwrap).collect();
        let [message] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((message.header.sequence, message.header.port), (0x0102_0304, 0x1234));
        let Content::Error { errno, extended, echo: repeated } = message.content().unwrap() else {
            panic!("{message:?}");
        };
        assert_eq!(errno, Errno::EINVAL.0);
        assert_eq!(extended.text.and_then(|text| text.to_str()), words);
        assert_eq!(extended.offset, words.map(|_| 20));
        assert_eq!(extended.missing, None);
        assert_eq!(repeated, bytes(echo));
    }
}

#[test]
fn words_that_are_not_announced_are_not_read() {
    let mut datagram = bytes(BOTH);
    // NLM_F_CAPPED without NLM_F_ACK_TLVS.
    datagram[6..8].copy_from_slice(&0x100_u16.to_ne_bytes());
    let message = Messages::new(&datagram).next().unwrap().unwrap();
    let Content::Error { extended, .. } = message.content().unwrap() else { panic!("{message:?}") };
    assert_eq!((extended.text, extended.offset), (None, None));
}

#[test]
fn a_refusal_that_is_cut_off_is_none() {
    let whole = bytes(CAPPED);
    for length in 16..whole.len() {
        let mut part = whole[..length].to_vec();
        part[..4].copy_from_slice(&u32::try_from(length).unwrap().to_ne_bytes());
        let message = Messages::new(&part).next().unwrap().unwrap();
        assert_eq!(message.content(), Err(WireError::Message { offset: 0, available: length - 16 }), "{length} bytes");
    }
    // A length beyond the datagram, or below the header, ends the reading: what follows cannot be trusted.
    for length in [0, 15, 37] {
        let mut broken = whole.clone();
        broken[..4].copy_from_slice(&u32::to_ne_bytes(length));
        broken.extend_from_slice(&whole);
        broken.truncate(36);
        let read: Vec<_> = Messages::new(&broken).collect();
        assert_eq!(read, [Err(WireError::Message { offset: 0, available: 36 })], "length {length}");
    }
}

#[test]
fn attributes_start_behind_the_fixed_header() {
    let datagram = bytes(NEITHER);
    let message = Messages::new(&datagram).next().unwrap().unwrap();
    // Error number, the refused header and genlmsghdr.
    let names: Vec<_> = message.attributes(4 + 16 + 4).map(|attribute| attribute.map(|found| found.kind())).collect();
    assert_eq!(names, [Ok(2)]);
    assert_eq!(message.attributes(1000).count(), 0);
}

/// A message of any type that answers the last request of the datagram which is on its way.
fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    to_earlier(0, kind, flags, payload)
}

/// The same for a request this many before the last one.
fn to_earlier(before: u32, kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Encoder::new();
    let length = u32::try_from(16 + payload.len()).unwrap();
    MessageHeader { length, kind, flags, sequence: before, port: PORT }.put(&mut out);
    out.bytes(payload);
    out.as_slice().to_vec()
}

/// An acknowledgement, or a refusal: error number and the header of the request.
fn answer(before: u32, errno: i32) -> Vec<u8> {
    to_earlier(before, NLMSG_ERROR, 0, &[&(-errno).to_ne_bytes()[..], &[0; 16]].concat())
}

const PORT: u32 = 0x1234;
const DATA: u16 = 20;

fn done(errno: i32) -> Vec<u8> {
    message(NLMSG_DONE, 0, &(-errno).to_ne_bytes())
}

/// Hands out prepared datagrams, or fails; puts the sequence numbers of the requests into their messages.
#[derive(Default)]
struct Script {
    answers: VecDeque<Result<Vec<u8>, i32>>,
    /// Sequence numbers of the last datagram, the last one first.
    sequences: Vec<u32>,
    in_flight: usize,
}

impl Transport for Script {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.sequences = Messages::new(datagram).map(|message| message.unwrap().header.sequence).collect();
        self.sequences.reverse();
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        let Some(answer) = self.answers.pop_front() else { return Err(io::ErrorKind::WouldBlock.into()) };
        let mut datagram = answer.map_err(io::Error::from_raw_os_error)?;
        let headers: Vec<_> = Messages::new(&datagram).map(|message| message.unwrap().header).collect();
        let mut at = 0;
        for header in headers {
            let before = usize::try_from(header.sequence).unwrap();
            let sequence = self.sequences.get(before).unwrap_or(&self.sequences[0]);
            datagram[at + 8..at + 12].copy_from_slice(&sequence.to_ne_bytes());
            at += usize::try_from(header.length).unwrap().next_multiple_of(4);
        }
        let fits = datagram.len().min(buffer.len());
        buffer[..fits].copy_from_slice(&datagram[..fits]);
        Ok(datagram.len())
    }

    fn port(&self) -> u32 {
        PORT
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

fn script(answers: impl IntoIterator<Item = Result<Vec<u8>, i32>>) -> Connection {
    let answers = answers.into_iter().collect();
    let mut connection = Connection::new(Script { answers, in_flight: 128, ..Script::default() });
    connection.set_limits(Limits::default().with_timeout(Duration::from_millis(20)));
    connection
}

/// Reads a dump of one-byte entries.
fn dump(connection: &mut Connection) -> Result<(Vec<u8>, usize), netlink_batch::Error> {
    let dump = connection.dump(DATA, 0, &[], |_| {}, |payload| Ok(payload[0]))?;
    Ok((dump.items, dump.datagrams))
}

#[test]
fn the_kernels_words_and_place_come_with_the_error() {
    let mut connection = script([Ok(bytes(BOTH))]);
    let name = "x".repeat(17);
    let error = connection.request(16, 0, &[3, 2, 0, 0], |out| out.attr(2, &NulStr::from(name.as_str()))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "netlink request: the kernel answered EINVAL (Invalid argument): Attribute failed policy validation"
    );
    let refusal = error.kernel().unwrap();
    assert_eq!((&refusal.attribute[..], refusal.offset, refusal.missing), (&[2][..], Some(20), None));
    assert!(refusal.echo.is_empty());
    // The same where the request is one of many.
    let mut connection = script([Ok(bytes(EXTENDED))]);
    let mut batch = connection.batch();
    batch.push(16, 0, &[3, 2, 0, 0], |out| out.attr(2, &NulStr::from(name.as_str())));
    let report = batch.finish();
    let [(0, Outcome::Refused(refusal))] = &report.failures[..] else { panic!("{report:?}") };
    assert_eq!((&refusal.attribute[..], refusal.offset), (&[2][..], Some(20)));
    assert_eq!(refusal.echo, bytes(REQUEST));
}

/// Linux 6.1 and later: `NLMSGERR_ATTR_MISS_TYPE` (5) names an attribute that the request lacks.
#[test]
fn a_missing_attribute_is_named() {
    let mut payload = Encoder::new();
    payload.bytes(&(-22_i32).to_ne_bytes());
    payload.bytes(&bytes(CAPPED)[20..36]);
    payload.attr(5, &7_u32);
    // NLM_F_CAPPED | NLM_F_ACK_TLVS
    let mut connection = script([Ok(message(NLMSG_ERROR, 0x300, payload.as_slice()))]);
    let error = connection.request(DATA, 0, &[], |_| {}).unwrap_err();
    assert_eq!(error.kernel().unwrap().missing, Some(7));
}

#[test]
fn a_dump_counts_datagrams_with_data_and_skips_what_means_nothing() {
    let two = [message(DATA, 0, &[1, 0, 0, 0]), message(NLMSG_NOOP, 0, &[]), message(DATA, 0, &[2, 0, 0, 0])].concat();
    let mut connection = script([Ok(two), Ok([message(DATA, 0, &[3, 0, 0, 0]), done(0)].concat())]);
    assert_eq!(dump(&mut connection).unwrap(), (vec![1, 2, 3], 2));
    // Old kernels end a dump with an empty message.
    let mut connection = script([Ok(message(DATA, 0, &[1])), Ok(message(NLMSG_DONE, 0, &[]))]);
    assert_eq!(dump(&mut connection).unwrap(), (vec![1], 1));
}

#[test]
fn a_dump_is_read_again_when_any_of_its_messages_is_marked() {
    let marked = [message(DATA, NLM_F_DUMP_INTR, &[1, 0, 0, 0]), done(0)].concat();
    let mut connection = script([Ok(marked), Ok([message(DATA, 0, &[2, 0, 0, 0]), done(0)].concat())]);
    assert_eq!(dump(&mut connection).unwrap(), (vec![2], 1));
}

#[test]
fn what_is_left_of_a_dump_is_read_away_before_the_next_attempt() {
    let lost = || Err(libc::ENOBUFS);
    let whole = [message(DATA, 0, &[2, 0, 0, 0]), done(0)].concat();
    let mut connection = script([lost(), Ok(message(DATA, 0, &[1])), lost(), Ok(done(0)), Ok(whole)]);
    assert_eq!(dump(&mut connection).unwrap().0, [2]);
    let mut connection = script([lost(), Ok(message(DATA, 0, &[1])), Err(libc::EBADF), Ok(done(0))]);
    assert_eq!(*dump(&mut connection).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_dump_may_fail_at_its_end() {
    let mut connection = script([Ok(message(DATA, 0, &[1])), Ok(done(Errno::ENOMEM.0))]);
    assert_eq!(dump(&mut connection).unwrap_err().kernel().unwrap().errno, Errno::ENOMEM);
}

#[test]
fn data_that_the_kernel_lost_makes_the_state_unknown() {
    let mut connection = script([Ok(message(NLMSG_OVERRUN, 0, &[]))]);
    assert_eq!(*connection.request(DATA, 0, &[], |_| {}).unwrap_err().kind(), ErrorKind::StateUnknown);
    let mut connection = script([Ok(message(NLMSG_OVERRUN, 0, &[]))]);
    let mut batch = connection.batch();
    batch.push(DATA, 0, &[], |_| {});
    assert_eq!(*batch.finish().stopped.unwrap().kind(), ErrorKind::StateUnknown);
}

#[test]
fn answers_to_another_socket_are_none() {
    let mut foreign = message(DATA, 0, &[9, 0, 0, 0]);
    foreign[12..16].copy_from_slice(&0x4321_u32.to_ne_bytes());
    let mut connection = script([Ok(foreign), Ok([message(DATA, 0, &[1, 0, 0, 0]), done(0)].concat())]);
    assert_eq!(dump(&mut connection).unwrap().0, [1]);
}

#[test]
fn a_failed_system_call_keeps_its_reason_and_a_late_answer_is_a_timeout() {
    let mut connection = script([Err(libc::EBADF)]);
    let error = connection.request(DATA, 0, &[], |_| {}).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Io);
    assert_eq!(error.context(), "netlink request");
    assert_eq!(error.source().unwrap().to_string(), "Bad file descriptor (os error 9)");
    for errno in [libc::EAGAIN, libc::ETIMEDOUT, libc::EINTR] {
        let mut connection = script([Err(errno), Ok(answer(0, 0))]);
        connection.request(DATA, 0, &[], |_| {}).unwrap();
    }
}

#[test]
fn a_datagram_that_does_not_fit_makes_room_for_the_next_attempt() {
    let long = message(DATA, 0, &[5; 200].repeat(100));
    let whole = || [Ok(long.clone()), Ok(done(0))];
    let answers = whole().into_iter().chain(whole()).collect();
    let mut connection = Connection::for_short_dumps(Script { answers, ..Script::default() });
    assert_eq!(dump(&mut connection).unwrap().0, [5]);
    // A single attempt does not see the longer buffer.
    let mut connection = Connection::for_short_dumps(Script { answers: whole().into(), ..Script::default() });
    connection.set_limits(Limits::default().with_dump_attempts(1));
    assert_eq!(*dump(&mut connection).unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn a_chunk_is_as_large_as_the_limits_and_the_socket_allow() {
    // (limits, answers that fit into the receive buffer) and how many requests of 20 bytes are then waiting after each one.
    let cases = [
        (Limits::default(), 128, [1, 2, 3]),
        (Limits::default().with_chunk(2, 48 << 10), 128, [1, 0, 1]),
        (Limits::default(), 2, [1, 0, 1]),
        (Limits::default().with_chunk(128, 40), 128, [1, 0, 1]),
        (Limits::default().with_chunk(128, 41), 128, [1, 2, 0]),
        (Limits::default().with_chunk(0, 48 << 10), 0, [0, 0, 0]),
    ];
    for (limits, in_flight, pending) in cases {
        let answers = (0..4).map(|_| Ok(answer(0, 0))).collect();
        let mut connection = Connection::new(Script { answers, in_flight, ..Script::default() });
        connection.set_limits(limits.with_timeout(Duration::from_millis(20)));
        assert_eq!(connection.limits().timeout, Duration::from_millis(20));
        let mut batch = connection.batch();
        assert!(batch.is_empty());
        let seen = [0; 3].map(|byte| {
            batch.push(DATA, 0, &[byte], |_| {});
            batch.pending()
        });
        assert_eq!(seen, pending, "{limits:?}, {in_flight}");
        assert!(!batch.is_empty());
        assert_eq!(batch.len(), 3);
        assert!(batch.finish().is_done(), "{limits:?}, {in_flight}");
    }
}

#[test]
fn a_batch_is_done_when_nothing_failed_and_nothing_stopped_it() {
    let mut connection = script([Ok([answer(1, Errno::EEXIST.0), answer(0, 0)].concat())]);
    let mut batch = connection.batch();
    batch.push(DATA, 0, &[], |_| {});
    batch.push(DATA, 0, &[], |_| {});
    let report = batch.finish();
    assert!(report.stopped.is_none() && !report.is_done(), "one was refused");
    assert_eq!(report.failures.len(), 1);
    let mut connection = script([]);
    assert!(connection.batch().finish().is_done(), "nothing to do");
    let mut batch = connection.batch();
    batch.push(DATA, 0, &[], |_| {});
    assert!(!batch.finish().is_done(), "no answer came");
}

#[test]
fn refusals_that_are_queued_when_answers_were_lost_are_read() {
    let mut foreign = answer(0, 0);
    foreign[12..16].copy_from_slice(&0x4321_u32.to_ne_bytes());
    let lost = || Err(libc::ENOBUFS);
    let mut connection = script([lost(), lost(), Ok(foreign), Ok(answer(1, Errno::EEXIST.0))]);
    let mut batch = connection.batch();
    batch.push(DATA, 0, &[], |_| {});
    batch.push(DATA, 0, &[], |_| {});
    let report = batch.finish();
    assert_eq!(*report.stopped.as_ref().unwrap().kind(), ErrorKind::StateUnknown);
    assert!(matches!(report.outcome(0), Outcome::Refused(error) if error.errno == Errno::EEXIST), "{report:?}");
    assert_eq!(*report.outcome(1), Outcome::Unknown);
    assert_eq!(connection.limits().timeout, Duration::from_millis(20), "as it was before");
}

/// Three requests in one datagram, of which the last is acknowledged.
fn group(answers: impl IntoIterator<Item = Result<Vec<u8>, i32>>) -> Result<Vec<(usize, Errno)>, ErrorKind> {
    let mut connection = script(answers);
    let mut group = connection.together();
    for _ in 0..3 {
        group.push(DATA, 0, &[], |_| {}).unwrap();
    }
    let refused = group.send(2).map_err(|error| error.kind().clone())?;
    Ok(refused.into_iter().map(|(place, error)| (place, error.errno)).collect())
}

#[test]
fn a_group_whose_answers_overflowed_gives_the_refusals_that_came() {
    let refusal = || Ok(answer(1, Errno::EEXIST.0));
    assert_eq!(group([refusal(), Ok(answer(0, 0))]), Ok(vec![(1, Errno::EEXIST)]));
    assert_eq!(group([Err(libc::ENOBUFS), refusal()]), Ok(vec![(1, Errno::EEXIST)]));
    // The first request's refusal may stand for the whole group: nothing else comes then.
    assert_eq!(group([Ok(answer(2, Errno::EINVAL.0))]), Ok(vec![(0, Errno::EINVAL)]));
    assert_eq!(group([refusal()]), Err(ErrorKind::Timeout));
    assert_eq!(group([Err(libc::ENOBUFS)]), Err(ErrorKind::StateUnknown));
    assert_eq!(group([Err(libc::EBADF)]), Err(ErrorKind::Io));
    assert_eq!(group([Err(libc::ENOBUFS), Err(libc::EBADF)]), Err(ErrorKind::Io));
}

/// `struct nfgenmsg`: family, version, and the subsystem's number in network order.
#[test]
fn headers_lie_on_the_wire_as_in_c() {
    let header = NfGenHeader { family: 2, version: 0, resource: 0x1234 };
    assert_eq!(header.to_bytes(), [2, 0, 0x12, 0x34]);
    assert_eq!(NfGenHeader::split(&[2, 0, 0x12, 0x34, 9]), Some((header, &[9][..])));
    assert_eq!(NfGenHeader::split(&[2, 0, 0x12]), None);
    assert_eq!(GenlHeader::split(&[3, 2, 0]), None);
}

#[test]
fn an_attribute_of_a_broken_length_ends_the_list() {
    let mut out = Encoder::new();
    out.attr(1, &7_u32);
    let good = out.as_slice().to_vec();
    for length in [0_u16, 3, 9] {
        let mut list = [good.clone(), good.clone()].concat();
        list[8..10].copy_from_slice(&length.to_ne_bytes());
        let read: Vec<_> = RawAttrs::new(&list).map(|found| found.map(|attribute| attribute.kind())).collect();
        assert_eq!(read, [Ok(1), Err(WireError::AttributeLength { offset: 8, available: 8 })], "length {length}");
    }
}
