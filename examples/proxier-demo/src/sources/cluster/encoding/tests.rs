//! A real server's answers read the same in both encodings.

use proptest::prelude::*;
use testkit::apiserver::recorded::both;

use super::*;
use crate::sources::cluster::objects::{CidrVersion, Identity, Resource, Status, is_end_of_list};

/// All of a page, after reading.
fn contents(resource: &Resource, page: Page<'_>) -> String {
    let items = page.items.map(|item| {
        let Identity { key, version } = Identity::of(item).unwrap();
        format!("{key} {version} {:#?}\n", resource.read(item).unwrap())
    });
    let items = items.collect::<Vec<_>>().concat();
    format!("{} {:?}\n{items}", page.metadata.resource_version, page.metadata.next)
}

fn events(encoding: Encoding, bytes: &[u8]) -> Vec<(String, String)> {
    let (mut rest, mut events) = (bytes, Vec::new());
    while let Some((event, after)) = encoding.split_event(rest, 0).unwrap() {
        rest = after;
        let (what, object) = encoding.event(event).unwrap();
        let Identity { key, version } = Identity::of(object).unwrap();
        let is_end = is_end_of_list(object);
        let change =
            if what == "BOOKMARK" { String::new() } else { format!("{:#?}", Resource::Services.read(object).unwrap()) };
        events.push((what.into_owned(), format!("{key} {version} {is_end} {change}")));
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
        let expected = contents(&resource, Encoding::Json.page(json).unwrap());
        assert_eq!(contents(&resource, Encoding::Protobuf.page(protobuf).unwrap()), expected);
        assert!(expected.lines().count() > 10, "{expected}");
    }
}

/// Weights of nodes are read from their metadata alone.
#[test]
fn metadata_of_nodes_is_the_same_in_both_encodings() {
    let resource = Resource::AllNodes { addresses: false };
    let (json, protobuf) = both::NODES_METADATA;
    let without_status = |text: String| text.split("status: ").next().unwrap_or_default().to_owned();
    let json = without_status(contents(&resource, Encoding::Json.page(json).unwrap()));
    assert_eq!(without_status(contents(&resource, Encoding::Protobuf.page(protobuf).unwrap())), json);
}

#[test]
fn watches_are_the_same_in_both_encodings() {
    for ((json, protobuf), last) in [(both::WATCH_ALL_SERVICES, "BOOKMARK"), (both::WATCH_SERVICES, "MODIFIED")] {
        let expected = events(Encoding::Json, json);
        assert_eq!(events(Encoding::Protobuf, protobuf), expected);
        assert_eq!(expected.last().unwrap().0, last);
        assert_eq!(expected.last().unwrap().1.contains(" true "), last == "BOOKMARK");
    }
}

#[test]
fn failures_are_the_same_in_both_encodings() {
    let (json, protobuf) = both::NOT_FOUND;
    let [json, protobuf] = [(Encoding::Json, json), (Encoding::Protobuf, protobuf)].map(|(encoding, body)| {
        let status: Status = encoding.object(body).unwrap().read(protobuf::STATUS).unwrap();
        (status.code, status.message, status.reason)
    });
    assert_eq!(protobuf, json);
    assert_eq!(json, (404, "services \"nothing\" not found".to_owned(), "NotFound".to_owned()));
}

/// An answer truncated anywhere is an error, or a page with fewer items, each of which can be read or is itself an
/// error.
#[test]
fn protobuf_may_end_anywhere() {
    for (resource, (_, whole)) in LISTS {
        let all = Encoding::Protobuf.page(whole).unwrap().items.count();
        for length in 0..whole.len() {
            let Ok(page) = Encoding::Protobuf.page(&whole[..length]) else { continue };
            let mut count = 0;
            for item in page.items {
                count += 1;
                drop(resource.read(item));
            }
            // The four bytes after the list are empty fields.
            assert!(count < all || length + 4 >= whole.len(), "{length} of {}", whole.len());
        }
        for item in Encoding::Protobuf.page(whole).unwrap().items {
            let Object::Protobuf(message) = item else { unreachable!() };
            for length in 0..message.len() {
                drop(resource.read(Object::Protobuf(&message[..length])));
            }
        }
    }
}

#[test]
fn a_field_of_another_type_is_named() {
    // spec.ports[0].port as text, and as an invalid number.
    let port = |port: &[u8]| {
        [&[0x12, 2 + u8::try_from(port.len()).unwrap(), 0x0a, u8::try_from(port.len()).unwrap()], port].concat()
    };
    let read = |message: &[u8]| Resource::Services.read(Object::Protobuf(message)).unwrap_err();
    assert_eq!(read(&port(&[0x1a, 1, b'x'])).0, "spec.ports[0].port");
    assert_eq!(read(&port(&[0x18, 0xff])).1, "the protobuf message ends too early");
}

proptest! {
    #[test]
    fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..200), start in 0_usize..3000, one in any::<u8>()) {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            drop(encoding.page(&bytes));
            drop(encoding.event(&bytes));
        }
        for (resource, (_, whole)) in LISTS {
            drop(resource.read(Object::Protobuf(&bytes)));
            let mut changed = whole.to_vec();
            let place = start % changed.len();
            changed[place] = one;
            for item in Encoding::Protobuf.page(&changed).into_iter().flat_map(|page| page.items) {
                drop((Identity::of(item), resource.read(item)));
            }
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
            let body = encoding.readable(&body);
            contents(&resource, encoding.page(&body).unwrap())
        });
        assert_eq!(protobuf, json);
    }
    let (_, services) = both::SERVICES;
    let services = damaged(services);
    let page = contents(&Resource::Services, Encoding::Protobuf.page(&services).unwrap());
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
    assert_eq!(Encoding::Json.page(json.as_bytes()).unwrap().items.count(), 1003);
    for (none, count) in [("{\"items\":null}", 0), ("{}", 0), ("{\"items\":[]}", 0), ("{\"items\":[{}]}", 1)] {
        assert_eq!(Encoding::Json.page(none.as_bytes()).unwrap().items.count(), count, "{none}");
    }
    assert!(Encoding::Json.page(b"{\"items\":{}}").is_err() && Encoding::Json.page(b"{\"items\":[{},]}").is_err());
    let protobuf = [b"k8s\0\x12\xd0\x0f".to_vec(), [0x12, 0].repeat(1000)].concat();
    assert_eq!(Encoding::Protobuf.page(&protobuf).unwrap().items.count(), 1000);
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
