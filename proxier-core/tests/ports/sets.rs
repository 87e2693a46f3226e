use std::collections::BTreeSet;

use ipset::{Element, IpSpan, PortRange, Ports, Protocol};
use proxier_core::config::NamePrefix;
use proxier_core::net::Family;
use proxier_core::ports::{NamedSet, PortErrorKind, SetKey, SetKind};

use super::{FAMILIES, World, ip, kinds};

fn cluster_ip(family: Family) -> NamedSet {
    SetKey::new(family, SetKind::ClusterIp).named(NamePrefix::KUBE)
}

/// An entry of a hash:ip,port set.
pub(crate) fn service(address: &str, port: u16) -> Element {
    Element::IpPort(IpSpan::host(ip(address)), Ports::port(Protocol::TCP, port))
}

fn many(count: u32) -> Vec<Element> {
    (0..count)
        .map(|number| {
            let [_, b, c, d] = number.to_be_bytes();
            service(&format!("10.{}.{c}.{d}", 96 + b), 80)
        })
        .collect()
}

fn entries(world: &impl World, set: NamedSet) -> BTreeSet<String> {
    world.saved_set(&set.name()).unwrap().1
}

pub(crate) fn a_set_is_created_filled_and_destroyed(world: &mut impl World) {
    for (family, one, two, three) in
        [(Family::V4, "10.96.0.1", "10.96.0.2", "10.96.0.3"), (Family::V6, "fd00::1", "fd00::2", "fd00::3")]
    {
        let set = cluster_ip(family);
        let (first, second, third) = (service(one, 80), service(two, 443), service(three, 53));
        let ports = world.ports();
        assert_eq!(ports.sets.entries(set).unwrap(), None);
        ports.sets.create(set, 10).unwrap();
        ports.sets.create(set, 10).unwrap();
        assert_eq!(ports.sets.entries(set).unwrap(), Some(BTreeSet::new()));
        assert_eq!(ports.sets.add(set, &[]), [].into());
        assert_eq!(ports.sets.add(set, &[&first, &second]), [].into());
        assert_eq!(ports.sets.add(set, &[&second, &third]), [].into(), "what is there counts as added");
        assert_eq!(ports.sets.delete(set, &[&first, &first]), [].into(), "what is not there counts as deleted");
        assert_eq!(ports.sets.entries(set).unwrap(), Some([second, third].into()));
        let wanted = [format!("{two},tcp:443"), format!("{three},tcp:53")].into();
        assert_eq!(entries(world, set), wanted);
        world.ports().sets.destroy(set).unwrap();
        world.ports().sets.destroy(set).unwrap();
        assert_eq!(world.saved_set(&set.name()), None);
    }
}

pub(crate) fn every_set_is_created_as_kube_proxy_does(world: &mut impl World) {
    for set in FAMILIES.into_iter().flat_map(SetKey::all).map(|set| set.named(NamePrefix::KUBE)) {
        world.ports().sets.create(set, 0).unwrap();
        let options = match (set.key.kind.set_type().is_bitmap(), set.key.family) {
            (true, _) => "range 0-65535",
            (false, Family::V4) => "family inet hashsize 1024 maxelem 65536",
            (false, Family::V6) => "family inet6 hashsize 1024 maxelem 65536",
        };
        let (line, entries) = world.saved_set(&set.name()).unwrap();
        assert_eq!(line, format!("create {set} {} {options}", set.key.kind.set_type()));
        assert!(entries.is_empty());
    }
    // An entry of each form comes back as it went in.
    let host = |address| IpSpan::host(ip(address));
    let tcp = |port| Ports::port(Protocol::TCP, port);
    let network = IpSpan::network(ip("192.0.2.0"), 24).unwrap();
    for (kind, element, text) in [
        (SetKind::LoopBack, Element::IpPortIp(host("10.1.1.1"), tcp(80), host("10.1.1.1")), "10.1.1.1,tcp:80,10.1.1.1"),
        (
            SetKind::LoadBalancerSourceCidr,
            Element::IpPortIp(host("10.1.1.1"), tcp(80), network),
            "10.1.1.1,tcp:80,192.0.2.0/24",
        ),
        (SetKind::NodePortTcp, Element::Port(PortRange::from(30_080)), "30080"),
        (
            SetKind::NodePortSctp,
            Element::IpPort(host("10.1.1.1"), Ports::port(Protocol::SCTP, 30_001)),
            "10.1.1.1,sctp:30001",
        ),
        (SetKind::IpvsIps, Element::Ip(host("10.96.0.1")), "10.96.0.1"),
    ] {
        let set = SetKey::new(Family::V4, kind).named(NamePrefix::KUBE);
        let ports = world.ports();
        assert_eq!(ports.sets.add(set, &[&element]), [].into());
        assert_eq!(ports.sets.entries(set).unwrap(), Some([element].into()));
        assert_eq!(entries(world, set), [text.to_owned()].into());
    }
}

pub(crate) fn a_set_of_another_type_is_not_ours(world: &mut impl World) {
    for (set, line) in [
        (cluster_ip(Family::V4), "create KUBE-CLUSTER-IP hash:ip"),
        (cluster_ip(Family::V6), "create KUBE-6-CLUSTER-IP hash:ip,port family inet"),
        (
            SetKey::new(Family::V4, SetKind::NodePortTcp).named(NamePrefix::KUBE),
            "create KUBE-NODE-PORT-TCP hash:ip,port",
        ),
    ] {
        world.create_set(line);
        let before = world.saved_set(&set.name());
        let sets = world.ports().sets;
        for error in [
            sets.entries(set).unwrap_err(),
            sets.create(set, 1).unwrap_err(),
            sets.replace(set, &[]).unwrap_err(),
            sets.destroy(set).unwrap_err(),
        ] {
            assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(&set.name()), "{error}");
        }
        assert_eq!(world.saved_set(&set.name()), before);
    }
}

pub(crate) fn a_set_with_options_that_lose_entries_is_not_used(world: &mut impl World) {
    world.create_set("create KUBE-CLUSTER-IP hash:ip,port timeout 60");
    world.create_set("create KUBE-IPVS-IPS hash:ip netmask 24");
    world.create_set("create KUBE-NODE-PORT-TCP bitmap:port range 1-1000");
    for kind in [SetKind::ClusterIp, SetKind::IpvsIps, SetKind::NodePortTcp] {
        let set = SetKey::new(Family::V4, kind).named(NamePrefix::KUBE);
        assert_eq!(world.ports().sets.entries(set).unwrap_err().kind(), PortErrorKind::Invalid);
        // Replacing repairs that.
        world.ports().sets.replace(set, &[]).unwrap();
        assert_eq!(world.ports().sets.entries(set).unwrap(), Some(BTreeSet::new()));
    }
}

pub(crate) fn what_is_missing_is_missing(world: &mut impl World) {
    let set = cluster_ip(Family::V4);
    let (one, two) = (service("10.96.0.1", 80), service("10.96.0.2", 80));
    let sets = world.ports().sets;
    let all = [(0, PortErrorKind::NotFound), (1, PortErrorKind::NotFound)];
    assert_eq!(kinds(&sets.add(set, &[&one, &two])), all);
    assert_eq!(sets.delete(set, &[&one, &two]), [].into());
    sets.destroy(set).unwrap();
    // Only the entry of another family or form is refused.
    sets.create(set, 1).unwrap();
    let (six, port) = (service("fd00::1", 80), Element::Port(PortRange::from(80)));
    let refused = [(1, PortErrorKind::Invalid), (2, PortErrorKind::Invalid)];
    assert_eq!(kinds(&sets.add(set, &[&one, &six, &port, &two])), refused);
    assert_eq!(sets.entries(set).unwrap(), Some([one, two].into()));
}

pub(crate) fn a_full_set_is_replaced_by_a_roomier_one(world: &mut impl World) {
    let set = cluster_ip(Family::V4);
    world.create_set("create KUBE-CLUSTER-IP hash:ip,port maxelem 64");
    let elements = many(70);
    let wanted: Vec<&Element> = elements.iter().collect();
    let failures = world.ports().sets.add(set, &wanted);
    let full: Vec<_> = (64..70).map(|index| (index, PortErrorKind::Full)).collect();
    assert_eq!(kinds(&failures), full);
    assert_eq!(entries(world, set).len(), 64);
    world.ports().sets.replace(set, &wanted).unwrap();
    assert_eq!(world.ports().sets.entries(set).unwrap(), Some(elements.iter().cloned().collect()));
    let (line, found) = world.saved_set(&set.name()).unwrap();
    assert!(line.ends_with("maxelem 65536"), "{line}");
    assert_eq!(found.len(), 70);
}

pub(crate) fn a_set_is_made_with_room(world: &mut impl World) {
    let set = cluster_ip(Family::V4);
    world.ports().sets.create(set, 70_000).unwrap();
    let (line, _) = world.saved_set(&set.name()).unwrap();
    assert!(line.ends_with("hashsize 65536 maxelem 131072"), "{line}");
    world.ports().sets.destroy(set).unwrap();
    // More than a set's default capacity.
    let elements = many(66_000);
    let wanted: Vec<&Element> = elements.iter().collect();
    let sets = world.ports().sets;
    sets.create(set, 10).unwrap();
    let failures = sets.add(set, &wanted);
    // The kernel counts by parts of the set, and takes a few more while one part has room (`mtype_add`).
    let first = failures.keys().next().unwrap();
    assert!(*first >= 65_536 && failures.len() <= 464, "{} from {first}", failures.len());
    assert!(failures.values().all(|error| error.kind() == PortErrorKind::Full));
    sets.replace(set, &wanted).unwrap();
    assert_eq!(sets.entries(set).unwrap().unwrap().len(), 66_000);
    assert_eq!(world.set_size(&set.name()), 66_000);
}

pub(crate) fn a_set_is_replaced_by_few_changes(world: &mut impl World) {
    let set = cluster_ip(Family::V6);
    let (one, two, three) = (service("fd00::1", 80), service("fd00::2", 80), service("fd00::3", 80));
    let sets = world.ports().sets;
    sets.replace(set, &[&one, &two]).unwrap();
    sets.replace(set, &[&two, &three]).unwrap();
    assert_eq!(sets.entries(set).unwrap(), Some([two, three].into()));
    assert_eq!(entries(world, set), ["fd00::2,tcp:80".to_owned(), "fd00::3,tcp:80".to_owned()].into());
    world.ports().sets.replace(set, &[]).unwrap();
    assert_eq!(entries(world, set), BTreeSet::new());
}

pub(crate) fn a_missing_set_comes_complete(world: &mut impl World) {
    for family in FAMILIES {
        let set = SetKey::new(family, SetKind::NodePortServed).named(NamePrefix::KUBE);
        let address =
            |number: u16| if family == Family::V4 { format!("192.0.2.{number}") } else { format!("fd00::{number}") };
        let elements: Vec<Element> = (1..=200).map(|number| service(&address(number), 30_000)).collect();
        let wanted: Vec<&Element> = elements.iter().collect();
        // A process that was killed while it made the set left this one.
        let left = format!("{}~00000000", set.name().get(..21).unwrap());
        world.create_set(&format!(
            "create {left} hash:ip,port{}",
            if family == Family::V4 { "" } else { " family inet6" }
        ));
        world.ports().sets.replace(set, &wanted).unwrap();
        assert_eq!(entries(world, set).len(), 200);
        assert!(world.saved_set(&left).is_none());
        let (line, _) = world.saved_set(&set.name()).unwrap();
        assert!(line.ends_with("hashsize 1024 maxelem 65536"), "{line}");
        // A set that cannot be filled is not created.
        world.ports().sets.destroy(set).unwrap();
        let odd = service(if family == Family::V4 { "fd00::1" } else { "192.0.2.1" }, 30_000);
        world.ports().sets.replace(set, &[&elements[0], &odd]).unwrap_err();
        assert!(world.saved_set(&set.name()).is_none() && world.saved_set(&left).is_none());
    }
}

pub(crate) fn what_a_killed_process_left_goes_with_the_set(world: &mut impl World) {
    world.create_set("create KUBE-CLUSTER-IP hash:ip,port");
    world.create_set("create KUBE-CLUSTER-IP~0123abcd hash:ip,port");
    world.create_set("create KUBE-CLUSTER-IP~mine hash:ip,port");
    world.create_set("create KUBE-CLUSTER-IPX hash:ip,port");
    world.ports().sets.destroy(cluster_ip(Family::V4)).unwrap();
    let left = ["KUBE-CLUSTER-IP", "KUBE-CLUSTER-IP~0123abcd", "KUBE-CLUSTER-IP~mine", "KUBE-CLUSTER-IPX"]
        .map(|name| world.saved_set(name).is_some());
    assert_eq!(left, [false, false, true, true]);
}
