//! A real server's answers read the same in both encodings.

use proptest::prelude::*;
use serde_json::Value;
use testkit::apiserver::recorded::both;

use super::list::ListMetadata;
use super::*;
use crate::sources::cluster::objects::{CidrVersion, Identity, Resource};

/// Reads a list that arrives in pieces of this size; returns its metadata.
fn read_list(
    (encoding, body): (Encoding, &[u8]),
    size: usize,
    mut take: impl FnMut(Object<'_>),
) -> Result<ListMetadata, String> {
    let (mut list, mut metadata) = (List::new(encoding), None);
    let mut pieces = body.chunks(size);
    loop {
        let piece = pieces.next();
        list.push(piece);
        while let Some(part) = list.next()? {
            match part {
                Part::Metadata(of) => assert!(metadata.replace(of).is_none()),
                Part::Item(_) if metadata.is_none() => panic!("an object before the metadata"),
                Part::Item(item) => take(item),
            }
        }
        if piece.is_none() {
            return Ok(metadata.unwrap());
        }
    }
}

/// All of a list, after reading: the same in pieces of any size.
fn contents(resource: &Resource, encoding: Encoding, body: &[u8]) -> String {
    let of = |size| {
        let mut items = String::new();
        let metadata = read_list((encoding, body), size, |item| {
            let Identity { key, version } = Identity::of(item).unwrap();
            items += &format!("{key} {version} {:#?}\n", resource.read(item).unwrap());
        });
        let metadata = metadata.unwrap();
        assert!(!metadata.kind.is_empty() && resource.is_listed_in(&metadata.kind), "{}", metadata.kind);
        format!("{} {:?}\n{items}", metadata.resource_version, metadata.next)
    };
    let whole = of(usize::MAX);
    for size in [1, 7, 1000] {
        assert_eq!(of(size), whole, "{size}");
    }
    whole
}

fn count((encoding, body): (Encoding, &[u8])) -> Result<usize, String> {
    let mut count = 0;
    read_list((encoding, body), usize::MAX, |_| count += 1).map(|_| count)
}

fn events(encoding: Encoding, bytes: &[u8]) -> Vec<(String, String)> {
    let (mut rest, mut events) = (bytes, Vec::new());
    while let Some((event, after)) = encoding.split_event(rest, 0).unwrap() {
        rest = after;
        let (what, object) = encoding.event(event).unwrap();
        let Identity { key, version } = Identity::of(object).unwrap();
        let change =
            if what == "BOOKMARK" { String::new() } else { format!("{:#?}", Resource::Services.read(object).unwrap()) };
        events.push((what.into_owned(), format!("{key} {version} {change}")));
    }
    assert!(encoding.is_blank(rest), "{rest:?}");
    events
}

/// JSON, and protobuf.
type Both = (&'static [u8], &'static [u8]);

const LISTS: [(Resource, Both); 4] = [
    (Resource::Services, both::SERVICES),
    (Resource::EndpointSlices, both::ENDPOINT_SLICES),
    (Resource::Node(String::new()), both::NODES),
    (Resource::ServiceCidrs(CidrVersion::V1), both::SERVICE_CIDRS),
];

#[test]
fn lists_are_the_same_in_both_encodings() {
    for (resource, (json, protobuf)) in LISTS {
        let expected = contents(&resource, Encoding::Json, json);
        assert_eq!(contents(&resource, Encoding::Protobuf, protobuf), expected);
        assert!(expected.lines().count() > 10, "{expected}");
    }
}

/// Weights of nodes are read from their metadata alone.
#[test]
fn metadata_of_nodes_is_the_same_in_both_encodings() {
    let resource = Resource::AllNodes { addresses: false };
    let (json, protobuf) = both::NODES_METADATA;
    let without_status = |text: String| text.split("status: ").next().unwrap_or_default().to_owned();
    let json = without_status(contents(&resource, Encoding::Json, json));
    assert_eq!(without_status(contents(&resource, Encoding::Protobuf, protobuf)), json);
}

#[test]
fn watches_are_the_same_in_both_encodings() {
    for ((json, protobuf), last) in [(both::WATCH_ALL_SERVICES, "BOOKMARK"), (both::WATCH_SERVICES, "MODIFIED")] {
        let expected = events(Encoding::Json, json);
        assert_eq!(events(Encoding::Protobuf, protobuf), expected);
        assert_eq!(expected.last().unwrap().0, last);
    }
}

#[test]
fn failures_are_the_same_in_both_encodings() {
    let (json, protobuf) = both::NOT_FOUND;
    let [json, protobuf] = [(Encoding::Json, json), (Encoding::Protobuf, protobuf)].map(|(encoding, body)| {
        let status: Value = encoding.object(body).unwrap().read(protobuf::STATUS).unwrap();
        ["code", "message", "reason"].map(|field| status[field].clone())
    });
    assert_eq!(protobuf, json);
    assert_eq!(json, [404.into(), "services \"nothing\" not found".into(), Value::from("NotFound")]);
}

/// A list truncated anywhere is an error. The objects before that can be read, or each is itself an error.
#[test]
fn protobuf_may_end_anywhere() {
    for (resource, (_, whole)) in LISTS {
        let mut messages = Vec::new();
        let take = |item: Object<'_>| {
            let Object::Protobuf(message) = item else { unreachable!() };
            messages.push(message.to_vec());
        };
        read_list((Encoding::Protobuf, whole), usize::MAX, take).unwrap();
        for length in 0..whole.len() {
            let read = read_list((Encoding::Protobuf, &whole[..length]), 100, |item| drop(resource.read(item)));
            // The four bytes after the list are empty fields.
            assert_eq!(read.is_ok(), length + 4 >= whole.len(), "{length} of {}", whole.len());
        }
        for message in messages {
            for length in 0..message.len() {
                drop(resource.read(Object::Protobuf(&message[..length])));
            }
        }
    }
}

/// An object need not be kept until the list ends, and metadata may come last.
#[test]
fn objects_of_protobuf_are_taken_when_they_have_arrived() {
    let (_, whole) = both::SERVICES;
    let (mut list, mut kept) = (List::new(Encoding::Protobuf), 0);
    for piece in whole.chunks(64) {
        kept = kept.max(list.push(Some(piece)));
        while list.next().unwrap().is_some() {}
    }
    assert!(kept < whole.len() / 2, "{kept} of {}", whole.len());
    let last = b"k8s\0\x12\x0b\x12\0\x12\0\x0a\x05\x12\x037.1";
    let mut count = 0;
    let metadata = read_list((Encoding::Protobuf, last), 1, |_| count += 1).unwrap();
    assert_eq!((metadata.resource_version.as_str(), count), ("7.1", 2));
}

#[test]
fn what_has_another_form_is_said_without_words_of_this_program() {
    let list = count((Encoding::Json, br#"{"metadata": null, "items": []}"#)).unwrap_err();
    let event = Encoding::Json.event(b"7").unwrap_err();
    for (reason, expected) in
        [(list, "invalid type: null, expected an object"), (event, "invalid type: integer `7`, expected an object")]
    {
        assert_eq!(reason, expected);
    }
}

#[test]
fn a_field_that_is_there_twice_is_refused() {
    let twice = r#"{"metadata": {"name": "web", "namespace": "demo"}, "spec": {}, "spec": {}}"#;
    let refused = Resource::Services.read(Object::Json(twice)).unwrap_err();
    assert!(refused.1.starts_with("duplicate field `spec`"), "{refused:?}");
}

#[test]
fn a_number_that_ends_too_early_is_refused() {
    // spec.ports[0].port.
    let message = [0x12, 4, 0x0a, 2, 0x18, 0xff];
    let refused = Resource::Services.read(Object::Protobuf(&message)).unwrap_err();
    assert_eq!(refused.1, "the protobuf message ends too early");
}

proptest! {
    #[test]
    fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..200), start in 0_usize..3000, one in any::<u8>()) {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            drop(count((encoding, &bytes)));
            drop(encoding.event(&bytes));
        }
        for (resource, (_, whole)) in LISTS {
            drop(resource.read(Object::Protobuf(&bytes)));
            let mut changed = whole.to_vec();
            let place = start % changed.len();
            changed[place] = one;
            drop(read_list((Encoding::Protobuf, &changed), 50, |item| drop((Identity::of(item), resource.read(item)))));
        }
    }
}

/// An API server accepts bytes that are not UTF-8, and writes each of them as U+FFFD in JSON.
#[test]
fn text_that_is_not_utf8_is_read_alike() {
    let damaged = |body: &[u8]| {
        let mut body = body.to_vec();
        for at in 0..body.len().saturating_sub(3) {
            if body[at..].starts_with(b"shop") {
                body[at + 2..at + 4].copy_from_slice(b"\xe9\xa9");
            }
        }
        body
    };
    for (resource, (json, protobuf)) in LISTS {
        let [json, protobuf] = [(Encoding::Json, json), (Encoding::Protobuf, protobuf)].map(|(encoding, body)| {
            let body = if body.windows(4).any(|of| of == b"shop") { damaged(body) } else { body.to_vec() };
            contents(&resource, encoding, &body)
        });
        assert_eq!(protobuf, json);
    }
    let (_, services) = both::SERVICES;
    let services = damaged(services);
    let page = contents(&Resource::Services, Encoding::Protobuf, &services);
    assert!(page.contains("sh\u{fffd}\u{fffd}/web"), "{page}");
}

#[test]
fn escaped_surrogates_that_are_not_pairs_are_read_as_go_reads_them() {
    for (sent, read) in [
        (r"a\ud800b", "a\u{fffd}b"),
        (r"\udc00\ud83d\ude00\ud83d", "\u{fffd}\u{1f600}\u{fffd}"),
        (r"\\ud800\n", "\\ud800\n"),
        (r"\ud800\ud800\udc00", "\u{fffd}\u{10000}"),
    ] {
        let object = format!(r#"{{"metadata":{{"namespace":"a","name":"{sent}","resourceVersion":"1"}}}}"#);
        let identity = Identity::of(Object::Json(&object)).unwrap();
        assert_eq!(&*identity.key, format!("a/{read}"), "{sent}");
    }
}

/// A list of 40 MB may have millions of empty items, so none is kept.
#[test]
fn items_are_taken_from_a_list_one_at_a_time() {
    let json = format!("{{\"items\": [ {} 7, null, \"x\" ], \"metadata\": {{}}}}", "{} ,".repeat(1000));
    let of = |json: &str| count((Encoding::Json, json.as_bytes()));
    assert_eq!(of(&json), Ok(1003));
    for (none, count) in [("{\"items\":null}", 0), ("{}", 0), ("{\"items\":[]}", 0), ("{\"items\":[{}]}", 1)] {
        assert_eq!(of(none), Ok(count), "{none}");
    }
    assert!(of("{\"items\":{}}").is_err() && of("{\"items\":[{},]}").is_err());
    let protobuf = [b"k8s\0\x12\xd0\x0f".to_vec(), [0x12, 0].repeat(1000)].concat();
    assert_eq!(count((Encoding::Protobuf, &protobuf)), Ok(1000));
}

#[test]
fn an_event_of_an_absurd_length_is_refused_at_once() {
    let split = |bytes: &[u8]| Encoding::Protobuf.split_event(bytes, 0).map(|event| event.is_some());
    for (bytes, expected) in [
        (&b"\xff\xff\xff\xff"[..], None),
        (b"{\"type\":", None),
        (b"\x01\0\0\x01", None),
        (b"\x01\0\0\0", Some(false)),
        (b"\0\0\0", Some(false)),
        (b"\0\0\0\x01x", Some(true)),
    ] {
        assert_eq!(split(bytes).ok(), expected, "{bytes:?}");
    }
    let mut line = vec![b'x'; EVENT_BYTES + 1];
    assert!(Encoding::Json.split_event(&line, 0).is_err());
    line[EVENT_BYTES] = b'\n';
    assert!(Encoding::Json.split_event(&line, EVENT_BYTES - 1).unwrap().is_some());
}
