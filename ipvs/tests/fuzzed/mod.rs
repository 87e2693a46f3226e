//! Checks that the fuzz targets run on their bytes; `tests/corpus.rs` runs the same on the inputs that fuzzing has found.
//!
//! Each function panics when the library breaks a promise; any other outcome is fine.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use ipvs::Client;
use ipvs::fake::FakeIpvs;
use ipvs_sys::{CmdAttr, DaemonAttr, DestAttr, InfoAttr, StatsAttr, SvcAttr};
use netlink_batch::header::{
    GenlHeader, MESSAGE_HEADER, MessageHeader, NLM_F_DUMP, NLM_F_MULTI, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
};
use netlink_batch::{Attribute, Attrs, Encoder, Limits, Messages, RawAttrs, Transport};

/// A datagram is split into messages that lie within it, one behind the other.
pub(crate) fn message(data: &[u8]) {
    let mut bytes = 0;
    for message in Messages::new(data).map_while(Result::ok) {
        bytes += MESSAGE_HEADER + message.payload.len();
        if let Ok(content) = message.content() {
            assert!(!format!("{content:?}").is_empty());
        }
        assert!(message.attributes(4).map_while(Result::ok).all(|attr| attr.payload.len() <= message.payload.len()));
    }
    assert!(bytes <= data.len());
}

/// Checks that every attribute that can be read is written as bytes that read the same.
fn again<'a, A: Attribute<'a> + PartialEq + std::fmt::Debug>(data: &'a [u8], nested: &dyn Fn(&A)) {
    for raw in RawAttrs::new(data).map_while(Result::ok) {
        let Ok(attribute) = A::decode(raw) else { continue };
        nested(&attribute);
        let mut out = Encoder::new();
        attribute.encode(&mut out);
        if out.finish().is_err() {
            continue;
        }
        // The written bytes are owned here; compare them after a second round.
        let written = out.as_slice();
        let bytes: Vec<u8> = written.to_vec();
        let read = RawAttrs::new(&bytes).next().map(|raw| raw.map(|raw| raw.kind()));
        assert_eq!(read, Some(Ok(raw.kind())));
    }
}

/// A list of attributes, taken for each of the tables.
pub(crate) fn attributes(data: &[u8]) {
    let stats = |list: &Attrs<'_, StatsAttr<'_>>| again::<StatsAttr<'_>>(list.as_bytes(), &|_| {});
    let service = |attribute: &SvcAttr<'_>| {
        if let SvcAttr::Stats(list) | SvcAttr::Stats64(list) = attribute {
            stats(list);
        }
    };
    let dest = |attribute: &DestAttr<'_>| {
        if let DestAttr::Stats(list) | DestAttr::Stats64(list) = attribute {
            stats(list);
        }
    };
    again::<CmdAttr<'_>>(data, &|attribute| match attribute {
        CmdAttr::Service(list) => again::<SvcAttr<'_>>(list.as_bytes(), &service),
        CmdAttr::Dest(list) => again::<DestAttr<'_>>(list.as_bytes(), &dest),
        CmdAttr::Daemon(list) => again::<DaemonAttr<'_>>(list.as_bytes(), &|_| {}),
        _ => {}
    });
    again::<SvcAttr<'_>>(data, &service);
    again::<DestAttr<'_>>(data, &dest);
    again::<DaemonAttr<'_>>(data, &|_| {});
    again::<StatsAttr<'_>>(data, &|_| {});
    again::<InfoAttr<'_>>(data, &|_| {});
}

const PORT: u32 = 7;

/// A kernel that answers every request but the first with the fuzzer's bytes.
///
/// The first two bits of each part select how it is sent: unchanged, or as the payload of a message that fits the
/// request.
struct Answers {
    parts: VecDeque<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
    looked_up: bool,
}

fn framed(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(MESSAGE_HEADER + payload.len()).unwrap_or(u32::MAX);
    let mut out = Encoder::new();
    MessageHeader { length, kind, flags, sequence, port: PORT }.put(&mut out);
    out.bytes(payload);
    out.as_slice().to_vec()
}

impl Transport for Answers {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let Some(request) = MessageHeader::get(datagram) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let sequence = request.sequence;
        if !self.looked_up {
            self.looked_up = true;
            // The controller: family 0x23, version 1.
            let mut payload = GenlHeader { command: 1, version: 2 }.to_bytes().to_vec();
            payload.extend_from_slice(&[6, 0, 1, 0, 0x23, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0]);
            self.queue.push_back(framed(0x10, 0, sequence, &payload));
            self.queue.push_back(framed(NLMSG_ERROR, 0x100, sequence, &[0; 20]));
            return Ok(());
        }
        let dump = request.flags & NLM_F_DUMP == NLM_F_DUMP;
        for part in &self.parts {
            let Some((how, rest)) = part.split_first() else { continue };
            let how = how & 3;
            let flags = if dump { NLM_F_MULTI } else { 0 };
            match how {
                0 => self.queue.push_back(rest.to_vec()),
                1 => self.queue.push_back(framed(0x23, flags, sequence, rest)),
                2 => {
                    let mut payload = GenlHeader { command: 1, version: 1 }.to_bytes().to_vec();
                    payload.extend_from_slice(rest);
                    self.queue.push_back(framed(0x23, flags, sequence, &payload));
                }
                _ => self.queue.push_back(framed(NLMSG_ERROR, 0x200, sequence, rest)),
            }
        }
        let end = if dump { NLMSG_DONE } else { NLMSG_ERROR };
        self.queue.push_back(framed(end, 0x100 | flags_of(dump), sequence, &[0; 20]));
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        let datagram = self.queue.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        for (place, byte) in buffer.iter_mut().zip(&datagram) {
            *place = *byte;
        }
        Ok(datagram.len())
    }

    fn port(&self) -> u32 {
        PORT
    }

    fn in_flight(&self) -> usize {
        16
    }
}

fn flags_of(dump: bool) -> u16 {
    if dump { NLM_F_MULTI } else { 0 }
}

/// A client reads answers that no kernel would give: it returns an error or a value, and never hangs.
pub(crate) fn dump(data: &[u8]) {
    let parts = data.split(|byte| *byte == 0xf5).take(16).map(<[u8]>::to_vec).collect();
    let answers = Answers { parts, queue: VecDeque::new(), looked_up: false };
    let Ok(mut client) = Client::with_transport(answers) else { return };
    let mut limits = Limits::default();
    (limits.timeout, limits.dump_attempts) = (Duration::ZERO, 2);
    client.set_limits(limits);
    if let Ok(key) = "TCP 10.0.0.1:80".parse() {
        let results = [
            client.list_real_servers(&key).err(),
            client.get_virtual_server(&key).err(),
            client.snapshot().err(),
            client.list_daemons().err(),
            client.info().err(),
            client.timeouts().err(),
        ];
        for error in results.iter().flatten() {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// Requests to the fake kernel: it answers each, and its table stays one that can be read.
pub(crate) fn requests(data: &[u8]) {
    let kernel = FakeIpvs::new();
    let mut socket = kernel.transport();
    let mut buffer = vec![0; 1 << 16];
    for part in data.split(|byte| *byte == 0xf5).take(32) {
        let (command, rest) = part.split_first().map_or((0, part), |(command, rest)| (*command, rest));
        let mut payload = GenlHeader { command: command & 0x1f, version: 1 }.to_bytes().to_vec();
        payload.extend_from_slice(rest);
        let flags = NLM_F_REQUEST | 4 | if command & 0x20 == 0 { 0 } else { NLM_F_DUMP };
        assert!(socket.send(&framed(0x23, flags, 1, &payload)).is_ok());
        assert!(socket.receive(&mut buffer, Duration::ZERO).is_ok(), "no answer to command {}", command & 0x1f);
        while socket.receive(&mut buffer, Duration::ZERO).is_ok() {}
    }
    // A name that is not a name of the model's is the one thing that the client cannot show.
    if let Err(error) = kernel.snapshot() {
        assert!(
            std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("SVC_ATTR")),
            "{error}"
        );
    }
}

/// Text is read or refused; what is read, is written as text that reads the same.
pub(crate) fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<ipvs::text::Ruleset>() {
        Ok(rules) => {
            let written = rules.to_string();
            assert_eq!(written.parse::<ipvs::text::Ruleset>().as_ref(), Ok(&rules), "{written}");
            // Nothing is to be done where the kernel has it already; a table that no kernel can have is an error.
            if let Ok(batch) = rules.diff(&ipvs::model::Snapshot::from(&rules), &ipvs::SyncPolicy::owning_all()) {
                assert!(batch.is_empty(), "{batch}");
            }
        }
        Err(error) => {
            let line = text.split('\n').nth(error.line() - 1).unwrap_or_default();
            assert!(error.column() <= line.chars().count() + 1 && !error.expected().is_empty(), "{error}");
        }
    }
}
