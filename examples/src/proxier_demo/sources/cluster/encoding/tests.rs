//! Answers of a real server read the same in both encodings.

use proptest::prelude::*;
use testkit::apiserver::recorded::both;

use super::*;
use crate::proxier_demo::sources::cluster::objects::{CidrVersion, Identity, Resource, Status, is_end_of_list};

/// All of a page, as it is read.
fn contents(resource: &Resource, page: &Page<'_>) -> String {
    let items = page.items.iter().map(|item| {
        let Identity { key, version } = Identity::of(*item).unwrap();
        format!("{key} {version} {:#?}\n", resource.read(*item).unwrap())
    });
    format!("{} {:?}\n{}", page.metadata.resource_version, page.metadata.next, items.collect::<Vec<_>>().concat())
}

fn events(encoding: Encoding, bytes: &[u8]) -> Vec<(String, String)> {
    let (mut rest, mut events) = (bytes, Vec::new());
    while let Some((event, after)) = encoding.split_event(rest, 0) {
        rest = after;
        let Event { what, object } = encoding.event(event).unwrap();
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
        let expected = contents(&resource, &Encoding::Json.page(json).unwrap());
        assert_eq!(contents(&resource, &Encoding::Protobuf.page(protobuf).unwrap()), expected);
        assert!(expected.lines().count() > 10, "{expected}");
    }
}

/// Weights of nodes come from their metadata alone.
#[test]
fn metadata_of_nodes_is_the_same_in_both_encodings() {
    let resource = Resource::AllNodes { addresses: false };
    let (json, protobuf) = both::NODES_METADATA;
    let without_status = |text: String| text.split("status: ").next().unwrap_or_default().to_owned();
    let json = without_status(contents(&resource, &Encoding::Json.page(json).unwrap()));
    assert_eq!(without_status(contents(&resource, &Encoding::Protobuf.page(protobuf).unwrap())), json);
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

/// An answer that breaks off anywhere is an error, or a page with fewer items: each of which is read, or is an error of its own.
#[test]
fn protobuf_may_break_off_anywhere() {
    for (resource, (_, whole)) in LISTS {
        let all = Encoding::Protobuf.page(whole).unwrap().items.len();
        for length in 0..whole.len() {
            let Ok(page) = Encoding::Protobuf.page(&whole[..length]) else { continue };
            // Four bytes behind the list are of empty fields.
            assert!(page.items.len() < all || length + 4 >= whole.len(), "{length} of {}", whole.len());
            for item in page.items {
                drop(resource.read(item));
            }
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
    // spec.ports[0].port as text, and a number that is none.
    let port = |port: &[u8]| {
        [&[0x12, 2 + u8::try_from(port.len()).unwrap(), 0x0a, u8::try_from(port.len()).unwrap()], port].concat()
    };
    let read = |message: &[u8]| Resource::Services.read(Object::Protobuf(message)).unwrap_err();
    assert_eq!(read(&port(&[0x1a, 1, b'x'])).0, "spec.ports[0].port");
    assert_eq!(read(&port(&[0x18, 0xff])).1, "protobuf that ends too early");
    assert_eq!(read(&port(&[0x0a, 1, 0xff])).0, "spec.ports[0].name");
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..200), start in 0_usize..3000, one in any::<u8>()) {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            drop(encoding.page(&bytes));
            drop(encoding.event(&bytes));
        }
        for (resource, (_, whole)) in LISTS {
            drop(resource.read(Object::Protobuf(&bytes)));
            let mut changed = whole.to_vec();
            let place = start % changed.len();
            changed[place] = one;
            for item in Encoding::Protobuf.page(&changed).map(|page| page.items).unwrap_or_default() {
                drop((Identity::of(item), resource.read(item)));
            }
        }
    }
}
