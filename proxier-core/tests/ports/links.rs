use std::collections::BTreeSet;
use std::net::IpAddr;

use proxier_core::ports::PortErrorKind;

use super::{World, ip, ips, kinds};

const DEVICE: &str = "kube-ipvs0";

fn addresses(world: &impl World) -> BTreeSet<IpAddr> {
    world.devices()[DEVICE].clone()
}

pub(crate) fn the_device_is_created_and_deleted(world: &mut impl World) {
    // `lo`, and `tunl0` and its like where a module of tunnels is loaded: it puts its own device into every namespace.
    let before: Vec<String> = world.devices().into_keys().collect();
    let links = world.ports().links;
    links.delete_device(DEVICE).unwrap();
    assert_eq!(links.has_device(DEVICE), Ok(false));
    links.create_device(DEVICE).unwrap();
    links.create_device(DEVICE).unwrap();
    assert_eq!(links.has_device(DEVICE), Ok(true));
    assert_eq!(world.devices()[DEVICE], BTreeSet::new());
    assert_eq!(world.ports().links.bind(DEVICE, &ips(&["10.96.0.1"])), [].into());
    world.ports().links.delete_device(DEVICE).unwrap();
    world.ports().links.delete_device(DEVICE).unwrap();
    assert_eq!(world.devices().into_keys().collect::<Vec<_>>(), before);
    let error = world.ports().links.create_device("a-name-of-more-than-15-bytes").unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
}

pub(crate) fn something_else_of_that_name_is_left_alone(world: &mut impl World) {
    world.add_interface(DEVICE, &ips(&["192.0.2.1"]));
    let links = world.ports().links;
    assert_eq!(links.has_device(DEVICE).unwrap_err().kind(), PortErrorKind::Invalid);
    assert_eq!(links.create_device(DEVICE).unwrap_err().kind(), PortErrorKind::Invalid);
    assert_eq!(links.delete_device(DEVICE).unwrap_err().kind(), PortErrorKind::Invalid);
    assert_eq!(addresses(world), [ip("192.0.2.1")].into());
}

pub(crate) fn addresses_are_bound_and_unbound(world: &mut impl World) {
    let links = world.ports().links;
    links.create_device(DEVICE).unwrap();
    assert_eq!(links.bind(DEVICE, &ips(&["10.96.0.1", "fd00::1", "10.96.0.2"])), [].into());
    assert_eq!(
        links.bind(DEVICE, &ips(&["10.96.0.2", "fd00::1", "fd00::2"])),
        [].into(),
        "what is there counts as added"
    );
    assert_eq!(addresses(world), ips(&["10.96.0.1", "10.96.0.2", "fd00::1", "fd00::2"]).into_iter().collect());
    let gone = ips(&["10.96.0.1", "10.96.0.9", "fd00::1", "fd00::9"]);
    assert_eq!(world.ports().links.unbind(DEVICE, &gone), [].into(), "what is not there counts as deleted");
    assert_eq!(addresses(world), ips(&["10.96.0.2", "fd00::2"]).into_iter().collect());
    assert_eq!(world.ports().links.bind(DEVICE, &[]), [].into());
    assert_eq!(world.ports().links.unbind(DEVICE, &[]), [].into());
}

pub(crate) fn an_impossible_address_does_not_stop_the_others(world: &mut impl World) {
    let links = world.ports().links;
    links.create_device(DEVICE).unwrap();
    let failures = links.bind(DEVICE, &ips(&["10.96.0.1", "::1", "ff02::1", "fd00::1"]));
    assert_eq!(kinds(&failures), [(1, PortErrorKind::Invalid), (2, PortErrorKind::Invalid)]);
    assert_eq!(addresses(world), ips(&["10.96.0.1", "fd00::1"]).into_iter().collect());
}

pub(crate) fn without_the_device(world: &mut impl World) {
    let links = world.ports().links;
    let failures = links.bind(DEVICE, &ips(&["10.96.0.1", "fd00::1"]));
    assert_eq!(kinds(&failures), [(0, PortErrorKind::NotFound), (1, PortErrorKind::NotFound)]);
    assert_eq!(links.unbind(DEVICE, &ips(&["10.96.0.1", "fd00::1"])), [].into());
}

pub(crate) fn every_interface_is_listed(world: &mut impl World) {
    let mut wanted = world.devices();
    world.add_interface("other0", &ips(&["192.0.2.1", "2001:db8::1"]));
    world.add_interface("bare0", &[]);
    let links = world.ports().links;
    links.create_device(DEVICE).unwrap();
    assert_eq!(links.bind(DEVICE, &ips(&["10.96.0.1", "192.0.2.1"])), [].into());
    let found = links.addresses().unwrap().interfaces;
    let link_local = |address: &IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let found: Vec<(String, BTreeSet<IpAddr>)> = found
        .into_iter()
        .map(|(name, addresses)| (name, addresses.into_iter().filter(|address| !link_local(address)).collect()))
        .collect();
    let ours = [
        ("bare0", ips(&[])),
        (DEVICE, ips(&["10.96.0.1", "192.0.2.1"])),
        ("lo", ips(&["127.0.0.1", "::1"])),
        ("other0", ips(&["192.0.2.1", "2001:db8::1"])),
    ];
    wanted.extend(ours.map(|(name, addresses)| (name.to_owned(), addresses.into_iter().collect())));
    assert_eq!(found, wanted.into_iter().collect::<Vec<_>>());
}

pub(crate) fn a_thousand_addresses(world: &mut impl World) {
    let all: Vec<IpAddr> = (0..500_u16)
        .flat_map(|number| {
            let [high, low] = number.to_be_bytes();
            [ip(&format!("10.96.{high}.{low}")), ip(&format!("fd00::{number:x}"))]
        })
        .filter(|address| *address != ip("fd00::"))
        .collect();
    let links = world.ports().links;
    links.create_device(DEVICE).unwrap();
    assert_eq!(links.bind(DEVICE, &all), [].into());
    assert_eq!(links.bind(DEVICE, &all), [].into());
    assert_eq!(links.addresses().unwrap().interfaces[DEVICE].len(), 999);
    assert_eq!(addresses(world), all.iter().copied().collect());
    assert_eq!(world.ports().links.unbind(DEVICE, &all[..998]), [].into());
    assert_eq!(addresses(world), [all[998]].into());
}
