//! Checks that the fuzz targets run on their bytes; `tests/corpus.rs` runs the same on the inputs that fuzzing has found.
//!
//! Each function panics when the library breaks a promise; any other outcome is fine.

#[path = "../../../netlink-batch/tests/answers/mod.rs"]
mod answers;

use std::time::Duration;

use answers::{Answers, framed, parts};
use ipvs::Client;
use ipvs::fake::FakeIpvs;
use ipvs_sys::{CmdAttr, DaemonAttr, DestAttr, InfoAttr, StatsAttr, SvcAttr};
use netlink_batch::header::{GenlHeader, MESSAGE_HEADER, NLM_F_DUMP, NLM_F_REQUEST};
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

/// A client reads answers that no kernel would give: it returns an error or a value, and never hangs.
pub(crate) fn dump(data: &[u8]) {
    // The controller: family 0x23, version 1.
    let family = [6, 0, 1, 0, 0x23, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0];
    let controller = [&GenlHeader { command: 1, version: 2 }.to_bytes()[..], &family].concat();
    let answers = Answers::new(data, GenlHeader { command: 1, version: 1 }.to_bytes(), controller);
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
    for part in parts(data, 32) {
        let (command, rest) = part.split_first().map_or((0, &part[..]), |(command, rest)| (*command, rest));
        let payload = [&GenlHeader { command: command & 0x1f, version: 1 }.to_bytes(), rest].concat();
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
        Err(error) => assert!((1..=text.split('\n').count()).contains(&error.line()), "{error}"),
    }
}
