use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proxier_core::net::Network;
use proxier_core::ports::{LocalRoute, PortErrorKind, RouteOwner};

use super::{World, ip, ips, kinds};

const V4: &str = "10.96.0.0/12";
const V6: &str = "fd00:10::/112";

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

fn route(of: &str, source: Option<&str>) -> LocalRoute {
    let mut route = LocalRoute::new(network(of));
    route.source = source.map(ip);
    route
}

fn routes(of: &[(&str, Option<&str>)]) -> BTreeMap<Network, Option<IpAddr>> {
    of.iter().map(|(of, source)| (network(of), source.map(ip))).collect()
}

/// Lines as `ip route` prints them.
fn lines(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|&line| line.to_owned()).collect()
}

pub(crate) fn networks_become_local_and_are_listed(world: &mut impl World) {
    world.add_interface("other0", &ips(&["192.0.2.1", "2001:db8::1"]));
    let all = [route(V4, Some("192.0.2.1")), route("192.0.2.7/32", None), route(V6, Some("2001:db8::1"))];
    let port = world.ports().routes;
    assert_eq!(port.add(RouteOwner::Ipvs, &all), [].into());
    assert_eq!(port.add(RouteOwner::Ipvs, &all), [].into(), "what is there counts as added");
    let expected = routes(&[(V4, Some("192.0.2.1")), ("192.0.2.7/32", None), (V6, Some("2001:db8::1"))]);
    assert_eq!(port.networks(RouteOwner::Ipvs).unwrap(), expected);
    let shown = [
        "local 10.96.0.0/12 dev lo src 192.0.2.1 proto 119 metric 119",
        "local 192.0.2.7/32 dev lo proto 119 metric 119",
        "local fd00:10::/112 dev lo src 2001:db8::1 proto 119 metric 119",
    ];
    assert_eq!(world.local_routes(), lines(&shown));
    let port = world.ports().routes;
    assert_eq!(port.delete(RouteOwner::Ipvs, &[network(V4), network("198.51.100.0/24"), network(V6)]), [].into());
    assert_eq!(port.networks(RouteOwner::Ipvs).unwrap(), routes(&[("192.0.2.7/32", None)]));
    assert_eq!(world.local_routes(), lines(&shown[1..2]));
    assert_eq!(
        (world.ports().routes.add(RouteOwner::Ipvs, &[]), world.ports().routes.delete(RouteOwner::Ipvs, &[])),
        ([].into(), [].into())
    );
}

pub(crate) fn owners_do_not_touch_each_others_routes(world: &mut impl World) {
    world.add_interface("other0", &ips(&["192.0.2.1"]));
    let port = world.ports().routes;
    assert_eq!(port.add(RouteOwner::Userspace, &[route(V4, None), route(V6, None)]), [].into());
    assert_eq!(port.add(RouteOwner::Ipvs, &[route(V4, Some("192.0.2.1")), route(V6, None)]), [].into());
    assert_eq!(port.networks(RouteOwner::Userspace).unwrap(), routes(&[(V4, None), (V6, None)]));
    assert_eq!(port.delete(RouteOwner::Ipvs, &[network(V4), network(V6)]), [].into());
    assert_eq!(port.networks(RouteOwner::Ipvs).unwrap(), routes(&[]));
    let shown = ["local 10.96.0.0/12 dev lo proto 118 metric 118", "local fd00:10::/112 dev lo proto 118 metric 118"];
    assert_eq!(world.local_routes(), lines(&shown));
}

pub(crate) fn a_source_is_changed_in_place(world: &mut impl World) {
    world.add_interface("other0", &ips(&["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"]));
    let port = world.ports().routes;
    for (four, six) in
        [(Some("192.0.2.1"), Some("2001:db8::1")), (Some("192.0.2.2"), Some("2001:db8::2")), (None, None)]
    {
        assert_eq!(port.add(RouteOwner::Ipvs, &[route(V4, four), route(V6, six)]), [].into());
        assert_eq!(port.networks(RouteOwner::Ipvs).unwrap(), routes(&[(V4, four), (V6, six)]));
    }
}

pub(crate) fn a_source_is_an_address_of_this_host(world: &mut impl World) {
    world.add_interface("other0", &ips(&["192.0.2.1", "2001:db8::1"]));
    let port = world.ports().routes;
    let failures = port.add(
        RouteOwner::Ipvs,
        &[route(V4, Some("192.0.2.9")), route("203.0.113.7/32", Some("192.0.2.1")), route(V6, Some("2001:db8::9"))],
    );
    assert_eq!(kinds(&failures), [(0, PortErrorKind::Invalid), (2, PortErrorKind::Invalid)]);
    assert_eq!(port.networks(RouteOwner::Ipvs).unwrap(), routes(&[("203.0.113.7/32", Some("192.0.2.1"))]));
}

pub(crate) fn an_ipv4_route_may_go_with_its_source(world: &mut impl World) {
    world.add_interface("other0", &ips(&["192.0.2.1", "2001:db8::1"]));
    let all = [route(V4, Some("192.0.2.1")), route("203.0.113.7/32", None), route(V6, Some("2001:db8::1"))];
    assert_eq!(world.ports().routes.add(RouteOwner::Ipvs, &all), [].into());
    world.remove_address("other0", ip("192.0.2.1"));
    world.remove_address("other0", ip("2001:db8::1"));
    // The kernel deletes the route if it looks at all tables, as before commit c0d999348e01; later ones look at the device's own. An IPv6 route
    // stays.
    let left: Vec<Network> = world.ports().routes.networks(RouteOwner::Ipvs).unwrap().into_keys().collect();
    let others = [network("203.0.113.7/32"), network(V6)];
    assert!(left == others || left == [&[network(V4)][..], &others].concat(), "{left:?}");
    // The route is there with another source, whether or not it was deleted.
    world.add_interface("other1", &ips(&["192.0.2.7"]));
    assert_eq!(world.ports().routes.add(RouteOwner::Ipvs, &[route(V4, Some("192.0.2.7"))]), [].into());
    let known = world.ports().routes.networks(RouteOwner::Ipvs).unwrap();
    assert_eq!(known[&network(V4)], Some(ip("192.0.2.7")));
}

/// The kernel has a route of its own for each bound address.
pub(crate) fn a_route_stands_beside_a_bound_address(world: &mut impl World) {
    const DEVICE: &str = "kube-ipvs0";
    let links = world.ports().links;
    links.create_device(DEVICE).unwrap();
    let addresses = ips(&["203.0.113.7", "2001:db8:f::7"]);
    assert_eq!(links.bind(DEVICE, &addresses), [].into());
    let both = [route("203.0.113.7/32", None), route("2001:db8:f::7/128", None)];
    assert_eq!(world.ports().routes.add(RouteOwner::Ipvs, &both), [].into());
    assert_eq!(world.ports().links.unbind(DEVICE, &addresses), [].into());
    let left = world.ports().routes.networks(RouteOwner::Ipvs).unwrap();
    assert_eq!(left, routes(&[("203.0.113.7/32", None), ("2001:db8:f::7/128", None)]));
    // And back.
    assert_eq!(world.ports().links.bind(DEVICE, &addresses), [].into());
    let networks = both.map(|route| route.network);
    assert_eq!(world.ports().routes.delete(RouteOwner::Ipvs, &networks), [].into());
    assert_eq!(world.devices()[DEVICE], addresses.into_iter().collect());
    assert_eq!(world.local_routes(), lines(&[]));
}
