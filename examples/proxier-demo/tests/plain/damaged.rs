//! One damaged object in recorded lists of a real server, in both encodings. What other objects have does not change. What the object had stays if it cannot be read. Each time a new
//! process begins on a kernel that an earlier one has filled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proxier_core::fake::FakeKernel;
use proxier_core::inspect::list_frontends;
use proxier_core::modes::Kind;
use proxier_core::net::FrontendKey;
use proxier_core::ports::Ports;
use proxier_core::snapshot::ObjectKey;
use proxier_demo::engine::{Engine, Kernel};
use proxier_demo::message::change::{Change, Snapshot};
use proxier_demo::message::channel;
use proxier_demo::sources::cluster::{Cluster, Connection, Options};
use proxier_demo::sources::initial_list;
use testkit::apiserver::ApiServer;
use testkit::apiserver::recorded::both;

/// Lists of a server.
#[derive(Clone, Debug)]
struct Answers {
    is_protobuf: bool,
    services: Vec<u8>,
    slices: Vec<u8>,
}

impl Answers {
    fn recorded(is_protobuf: bool) -> Self {
        let of = |(json, protobuf): (&[u8], &[u8])| if is_protobuf { protobuf.to_vec() } else { json.to_vec() };
        Answers { is_protobuf, services: of(both::SERVICES), slices: of(both::ENDPOINT_SLICES) }
    }
}

/// What a new process reads of three lists; `None`: not all in time, or a list that cannot be read was asked for again.
fn read(answers: &Answers) -> Option<Snapshot> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut options = Options::default();
    options.protobuf = answers.is_protobuf;
    (options.first_pause, options.longest_pause) = (Duration::from_millis(5), Duration::from_millis(20));
    options.patience = Duration::from_millis(300);
    let server = ApiServer::start();
    let nodes = if answers.is_protobuf { both::NODES.1 } else { both::NODES.0 };
    for (resource, body) in [("services", &*answers.services), ("endpointslices", &answers.slices), ("nodes", nodes)] {
        server.answer_lists_with(resource, body);
    }
    runtime.block_on(async {
        let (changes, mut events) = channel();
        let connection = Connection { master: Some(server.url()), ..Connection::default() };
        let _cluster = Cluster::start(connection, "n1", options, changes).await.unwrap();
        let mut snapshot = Snapshot::default();
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            match tokio::time::timeout(Duration::from_millis(50), events.recv()).await.map(|of| of.map(|of| of.change))
            {
                Ok(Some(Change::Synced)) => return Some(snapshot),
                Ok(Some(change)) => snapshot.apply(change),
                Ok(None) => return None,
                Err(_silent) => {}
            }
            let lists = server.requests().iter().filter(|of| !of.is_watch()).count();
            if events.is_empty() && lists > 6 {
                return None;
            }
        }
        None
    })
}

/// A kernel in memory.
pub(crate) struct Memory(pub(crate) FakeKernel);

impl Kernel for Memory {
    fn ports(&mut self) -> Ports<'_> {
        self.0.ports()
    }
}

fn engine(kernel: &FakeKernel, mode: Kind, snapshot: Snapshot) -> Engine<Memory> {
    let mut options = proxier_core::engine::Options::default();
    options.mode = mode;
    let mut engine = Engine::new("n1", options, Memory(kernel.clone()));
    for change in initial_list::changes(snapshot) {
        engine.apply_change(change, Instant::now());
    }
    let report = engine.pass().unwrap();
    assert!(!report.has_failed(), "{report:#?}");
    engine
}

/// Each address and port that the kernel serves, with its endpoints. `first` knows what there may be.
fn served(kernel: &FakeKernel, first: &Engine<Memory>) -> BTreeMap<FrontendKey, BTreeSet<String>> {
    let proxier = first.proxier();
    if proxier.mode() != Kind::Ipvs {
        let mut kernel = kernel.clone();
        let all = list_frontends(proxier.mode(), proxier.facts(), proxier.desired(), &mut kernel.ports()).unwrap();
        let endpoints = |of: BTreeSet<_>| of.iter().map(ToString::to_string).collect();
        return all.into_iter().map(|(key, of)| (key, of.endpoints.map(endpoints).unwrap_or_default())).collect();
    }
    let mut all: BTreeMap<FrontendKey, BTreeSet<String>> = BTreeMap::new();
    for line in kernel.state().ipvs.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let protocol = match words[1] {
            "-t" => "TCP",
            "-u" => "UDP",
            "--sctp-service" => "SCTP",
            other => panic!("{other}: {line}"),
        };
        let endpoints = all.entry(format!("{protocol} {}", words[2]).parse().unwrap()).or_default();
        endpoints.extend((words[0] == "-a").then(|| words[4].to_owned()));
    }
    all
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(u8::try_from(value % 128).unwrap() | 128);
        value /= 128;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

fn read_varint(bytes: &[u8], at: &mut usize) -> usize {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= usize::from(byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    value
}

/// The fields of a message of which all have bytes: numbers and contents.
fn fields(message: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let (mut at, mut all) = (0, Vec::new());
    while at < message.len() {
        let number = message[at] >> 3;
        at += 1;
        let length = read_varint(message, &mut at);
        all.push((number, message[at..at + length].to_vec()));
        at += length;
    }
    all
}

fn message(fields: &[(u8, Vec<u8>)]) -> Vec<u8> {
    fields
        .iter()
        .flat_map(|(number, bytes)| [vec![number << 3 | 2], varint(bytes.len()), bytes.clone()].concat())
        .collect()
}

/// A change of bytes.
#[derive(Clone, Debug)]
enum Damage {
    Put(usize, u8),
    Insert(usize, u8),
    Cut(usize, usize),
    End(usize),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let length = bytes.len().max(1);
        match *self {
            Damage::Put(at, byte) => bytes[at % length] = byte,
            Damage::Insert(at, byte) => bytes.insert(at % length, byte),
            Damage::Cut(at, count) => drop(bytes.drain(at % length..(at % length + count).min(length))),
            Damage::End(at) => bytes.truncate(at % length),
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0..4000_usize;
    let byte = prop_oneof![any::<u8>(), Just(0xff), Just(b'"'), Just(b'\\'), Just(0)];
    prop_oneof![
        6 => (at.clone(), byte.clone()).prop_map(|(at, byte)| Damage::Put(at, byte)),
        2 => (at.clone(), byte).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        2 => (at.clone(), 1..20_usize).prop_map(|(at, count)| Damage::Cut(at, count)),
        1 => at.prop_map(Damage::End),
    ]
}

/// Damages an item of a list. Lengths around it are right.
fn damage_item(body: &mut Vec<u8>, is_protobuf: bool, item: usize, damage: &Damage) -> String {
    if is_protobuf {
        let mut envelope = fields(&body[4..]);
        let mut list = fields(&envelope.iter().find(|(number, _)| *number == 2).unwrap().1);
        let items = list.iter().filter(|(number, _)| *number == 2).count();
        let bytes = &mut list.iter_mut().filter(|(number, _)| *number == 2).nth(item % items).unwrap().1;
        let before = bytes.clone();
        damage.apply(bytes);
        envelope.iter_mut().find(|(number, _)| *number == 2).unwrap().1 = message(&list);
        *body = [b"k8s\0", &*message(&envelope)].concat();
        return String::from_utf8_lossy(&before).into_owned();
    }
    let list: serde_json::Value = serde_json::from_slice(body).unwrap();
    let items = list["items"].as_array().unwrap();
    let mut texts: Vec<Vec<u8>> = items.iter().map(|item| item.to_string().into_bytes()).collect();
    let item = item % texts.len();
    let before = texts[item].clone();
    damage.apply(&mut texts[item]);
    let head = format!("{{\"kind\":{},\"metadata\":{},\"items\":[", list["kind"], list["metadata"]);
    *body = [head.as_bytes(), &texts.join(&b','), b"]}"].concat();
    String::from_utf8_lossy(&before).into_owned()
}

/// The Service that an undamaged object belongs to.
fn service_of(object: &str) -> Option<ObjectKey> {
    let names = [("plain", "plain"), ("nodeport", "nodeport"), ("web-1", "web"), ("web-6", "web"), ("web", "web")];
    let is_of = |name: &str| {
        let json = object.contains(&format!("\"name\":\"{name}\""));
        // In protobuf the name is the first field of the metadata.
        json || object.contains(&format!("\n{}{name}\u{12}", char::from(u8::try_from(name.len()).unwrap())))
    };
    names.iter().find(|(name, _)| is_of(name)).map(|(_, service)| ObjectKey::new("shop", service))
}

fn others_keep_what_they_have(
    mode: Kind,
    (is_protobuf, of_slices): (bool, bool),
    item: usize,
    damage: &Damage,
) -> Result<(), TestCaseError> {
    let whole = Answers::recorded(is_protobuf);
    let kernel = FakeKernel::new();
    kernel.set_interface("eth0", &["198.51.100.10".parse().unwrap()]);
    let first = engine(&kernel, mode, read(&whole).unwrap());
    let before = served(&kernel, &first);
    prop_assert!(before.len() >= 5, "{before:?}");

    let mut damaged = Answers::recorded(is_protobuf);
    let body = if of_slices { &mut damaged.slices } else { &mut damaged.services };
    let object = damage_item(body, is_protobuf, item, damage);
    // A list that cannot be taken apart is asked for again, and nothing follows from it.
    let Some(snapshot) = read(&damaged) else { return Ok(()) };
    let unreadable = snapshot.unreadable.clone();
    let own = service_of(&object);
    engine(&kernel, mode, snapshot);
    let after = served(&kernel, &first);
    for (key, endpoints) in &before {
        let desired = first.proxier().desired();
        // iptables mode shows a node port once, for all addresses of the node.
        let at_node =
            || desired.frontends().map(|of| &of.key).find(|of| (of.protocol, of.port) == (key.protocol, key.port));
        let owner = desired.owner(key).or_else(|| desired.owner(at_node()?));
        if owner != own.as_ref() || !unreadable.is_empty() {
            prop_assert_eq!(
                after.get(key),
                Some(endpoints),
                "{} of {:?}; damaged {:?}: {:?}",
                key,
                owner,
                own,
                unreadable
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn one_damaged_object_takes_nothing_away(
        mode in prop_oneof![Just(Kind::Ipvs), Just(Kind::Nftables), Just(Kind::Iptables)],
        form in (any::<bool>(), any::<bool>()),
        item in 0..8_usize,
        damage in damage(),
    ) {
        others_keep_what_they_have(mode, form, item, &damage)?;
    }
}
