//! Cases for parts that only a real kernel has.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use proxier_core::config::NamePrefix;
use proxier_core::kernel::{Changes, Monitor, Presence};
use proxier_core::net::{Family, Network};
use proxier_core::ports::{LocalRoute, NamedSet, PortErrorKind, RouteOwner, SetKey, SetKind};
use testkit::{Need, kernel_test};

use super::{Kernel, run, wait_until_local};
use crate::ports::{World, ip, ips, kinds};

const DEVICE: &str = "kube-ipvs0";

/// The device stays down; its addresses are still this host's.
#[test]
fn bound_addresses_are_local() {
    kernel_test(&[Need::Root, Need::Dummy], || {
        let mut world = Kernel::new();
        let links = world.ports().links;
        links.create_device(DEVICE).unwrap();
        assert_eq!(links.bind(DEVICE, &ips(&["10.96.0.1", "fd00::1"])), [].into());
        assert!(run("ip", "-br link show kube-ipvs0").contains("DOWN"));
        assert_eq!(
            run("ip", "-br address show kube-ipvs0").split_whitespace().skip(2).collect::<Vec<_>>(),
            ["10.96.0.1/32", "fd00::1/128"]
        );
        // The device has no routes but the local ones.
        for family in ["-4", "-6"] {
            assert_eq!(run("ip", &format!("{family} route show dev kube-ipvs0")), "");
        }
        for address in ips(&["10.96.0.1", "fd00::1"]) {
            wait_until_local(address);
            let server = UdpSocket::bind((address, 0)).unwrap();
            let client = UdpSocket::bind((address, 0)).unwrap();
            server.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
            assert_eq!(server.recv_from(&mut [0; 16]).unwrap().0, 5);
        }
    });
}

/// An address with a foreign prefix length is unbound all the same.
#[test]
fn addresses_with_another_prefix_are_unbound() {
    kernel_test(&[Need::Root, Need::Dummy], || {
        let mut world = Kernel::new();
        world.ports().links.create_device(DEVICE).unwrap();
        run("ip", "address add 10.96.0.1/16 dev kube-ipvs0");
        run("ip", "address add fd00::1/64 dev kube-ipvs0 nodad");
        run("ip", "address add fd00::2/128 dev kube-ipvs0 nodad");
        let found = &world.ports().links.addresses().unwrap().interfaces[DEVICE];
        assert_eq!(found.len(), 3);
        assert_eq!(world.ports().links.unbind(DEVICE, &ips(&["10.96.0.1", "fd00::1", "fd00::9"])), [].into());
        assert_eq!(world.devices()[DEVICE], [ip("fd00::2")].into());
    });
}

#[test]
fn a_device_without_ipv6() {
    kernel_test(&[Need::Root, Need::Dummy], || {
        let mut world = Kernel::new();
        let ports = world.ports();
        ports.links.create_device(DEVICE).unwrap();
        ports.sysctls.set("net/ipv6/conf/kube-ipvs0/disable_ipv6", "1").unwrap();
        let failures = ports.links.bind(DEVICE, &ips(&["10.96.0.1", "fd00::1", "10.96.0.2"]));
        assert_eq!(kinds(&failures), [(1, PortErrorKind::Unavailable)]);
        let said = failures[&1].to_string();
        assert!(said.contains("set net.ipv6.conf.kube-ipvs0.disable_ipv6 to 0"), "{said}");
        assert_eq!(world.devices()[DEVICE].len(), 2);
    });
}

/// Collects changes until there are enough. The kernel tells of an IPv6 address a little later, from a work queue.
fn heard(monitor: &mut Monitor, enough: impl Fn(&Changes) -> bool) -> Changes {
    let start = std::time::Instant::now();
    let mut changes = Changes::default();
    loop {
        let more = monitor.drain().unwrap();
        changes.overflowed |= more.overflowed;
        changes.default_routes |= more.default_routes;
        changes.bound_routes |= more.bound_routes;
        changes.devices.extend(more.devices);
        for (device, addresses) in more.addresses {
            changes.addresses.entry(device).or_default().extend(addresses);
        }
        changes.came.extend(more.came);
        if enough(&changes) || start.elapsed().as_secs() >= 10 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(monitor.drain().unwrap().is_empty());
    changes
}

/// Changes of addresses that are heard, up to the first.
fn heard_addresses(monitor: &mut Monitor) -> BTreeMap<String, BTreeMap<IpAddr, Presence>> {
    heard(monitor, |changes| !changes.addresses.is_empty()).addresses
}

fn one(device: &str, address: &str, change: Presence) -> BTreeMap<String, BTreeMap<IpAddr, Presence>> {
    [(device.to_owned(), [(ip(address), change)].into())].into()
}

#[test]
fn changes_are_heard() {
    kernel_test(&[Need::Root, Need::Dummy], || {
        let mut world = Kernel::new();
        world.ports().links.create_device(DEVICE).unwrap();
        run("ip", "link add other0 type bridge");
        let mut monitor = Monitor::open().unwrap();
        assert!(monitor.drain().unwrap().is_empty());

        run("ip", "address add 10.96.0.1/32 dev kube-ipvs0");
        assert_eq!(heard_addresses(&mut monitor), one(DEVICE, "10.96.0.1", Presence::Present));
        run("ip", "address del 10.96.0.1/32 dev kube-ipvs0");
        assert_eq!(heard_addresses(&mut monitor), one(DEVICE, "10.96.0.1", Presence::Gone));
        run("ip", "address add fd00::1/128 dev other0 nodad");
        assert_eq!(heard_addresses(&mut monitor), one("other0", "fd00::1", Presence::Present));
        // The last of several changes counts.
        run("ip", "address add 10.96.0.2/32 dev kube-ipvs0");
        run("ip", "address del 10.96.0.2/32 dev kube-ipvs0");
        let changes = heard(&mut monitor, |changes| !changes.addresses.is_empty());
        assert_eq!(changes.addresses, one(DEVICE, "10.96.0.2", Presence::Gone));
        assert_eq!(changes.came, [ip("10.96.0.2")].into());

        assert_eq!(world.ports().links.bind(DEVICE, &ips(&["10.96.0.3", "fd00::3"])), [].into());
        let both = |changes: &Changes| changes.addresses.get(DEVICE).is_some_and(|addresses| addresses.len() == 2);
        assert!(both(&heard(&mut monitor, both)));
        run("ip", "link del kube-ipvs0");
        let changes = heard(&mut monitor, |changes| both(changes) && changes.devices.contains_key(DEVICE));
        assert_eq!(changes.devices[DEVICE], Presence::Gone);
        let gone: BTreeMap<IpAddr, Presence> =
            ips(&["10.96.0.3", "fd00::3"]).into_iter().map(|address| (address, Presence::Gone)).collect();
        assert_eq!(changes.addresses[DEVICE], gone);
        assert!(!changes.overflowed);

        // A device gets another name, and then an address.
        run("ip", "link set other0 name third0");
        let changes = heard(&mut monitor, |changes| changes.devices.len() == 2);
        assert_eq!((changes.devices["other0"], changes.devices["third0"]), (Presence::Gone, Presence::Present));
        run("ip", "address add 192.0.2.7/32 dev third0");
        assert_eq!(heard_addresses(&mut monitor), one("third0", "192.0.2.7", Presence::Present));
        world.ports().links.create_device(DEVICE).unwrap();
        assert_eq!(heard(&mut monitor, |changes| !changes.devices.is_empty()).devices[DEVICE], Presence::Present);
    });
}

/// More changes than the kernel keeps for a slow listener.
#[test]
fn too_many_changes_are_noticed() {
    kernel_test(&[Need::Root, Need::Dummy], || {
        let mut world = Kernel::new();
        world.ports().links.create_device(DEVICE).unwrap();
        let mut monitor = Monitor::open().unwrap();
        let all: Vec<IpAddr> =
            (0..2000_u16).map(|number| ip(&format!("10.96.{}.{}", number / 250, number % 250))).collect();
        for _ in 0..8 {
            assert_eq!(world.ports().links.bind(DEVICE, &all), [].into());
            assert_eq!(world.ports().links.unbind(DEVICE, &all), [].into());
        }
        assert!(monitor.drain().unwrap().overflowed);
        run("ip", "address add 10.97.0.1/32 dev kube-ipvs0");
        assert_eq!(heard_addresses(&mut monitor), one(DEVICE, "10.97.0.1", Presence::Present));
    });
}

#[test]
fn a_monitor_wakes_a_poll() {
    kernel_test(&[Need::Root], || {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        let mut monitor = Monitor::open().unwrap();
        let readable = |monitor: &Monitor, wait: u16| {
            let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(wait)).unwrap() == 1
        };
        assert!(!readable(&monitor, 0));
        run("ip", "address add 10.97.0.1/32 dev lo");
        assert!(readable(&monitor, 1000));
        assert!(!monitor.drain().unwrap().is_empty());
        assert!(!readable(&monitor, 0));
    });
}

/// Finds exactly the gateways of default routes, in any notation; the monitor reports them.
#[test]
fn the_gateways_of_default_routes() {
    kernel_test(&[Need::Root, Need::Dummy], || {
        let mut world = Kernel::new();
        for line in [
            "link set lo up",
            "link add up0 type dummy",
            "link set up0 up",
            "address add 192.0.2.1/24 dev up0",
            "address add 2001:db8::1/64 dev up0 nodad",
            "route add 10.1.0.0/16 via 192.0.2.99",
            "route add 2001:db8:9::/48 via 2001:db8::99",
        ] {
            run("ip", line);
        }
        let gateways = |world: &mut Kernel| world.ports().links.gateways().unwrap();
        assert_eq!(gateways(&mut world), [].into());
        let mut monitor = Monitor::open().unwrap();
        run("ip", "route add 10.2.0.0/16 via 192.0.2.99");
        assert!(!monitor.drain().unwrap().default_routes);
        for (route, found) in [
            ("route add default via 192.0.2.254", &["192.0.2.254"][..]),
            (
                "route add default nexthop via 192.0.2.253 dev up0 nexthop via 192.0.2.252 dev up0",
                &["192.0.2.252", "192.0.2.253"],
            ),
            ("route add 128.0.0.0/1 via 192.0.2.251", &["192.0.2.251"]),
            ("route add default via 192.0.2.250 table 77", &["192.0.2.250"]),
            ("-6 route add default via 2001:db8::fe", &["2001:db8::fe"]),
            ("-6 route add 2000::/3 via 2001:db8::fd", &["2001:db8::fd"]),
            ("route add default via inet6 2001:db8::fc dev up0", &["2001:db8::fc"]),
            ("route add default dev up0", &[]),
        ] {
            run("ip", route);
            assert_eq!(gateways(&mut world), ips(found).into_iter().collect(), "{route}");
            assert!(monitor.drain().unwrap().default_routes, "{route}");
            run("ip", &route.replace(" add ", " delete "));
            assert_eq!(gateways(&mut world), [].into(), "{route}");
            assert!(monitor.drain().unwrap().default_routes, "{route}");
        }
    });
}

#[test]
fn whole_networks_are_local() {
    kernel_test(&[Need::Root], || {
        let mut world = Kernel::new();
        let networks: [Network; 2] = ["10.96.0.0/12".parse().unwrap(), "fd00:10::/108".parse().unwrap()];
        assert_eq!(world.ports().routes.add(RouteOwner::Userspace, &networks.map(LocalRoute::new)), [].into());
        assert!(
            run("ip", "route show table local").contains("local 10.96.0.0/12 dev lo proto 118 scope host metric 118")
        );
        assert!(run("ip", "-6 route show table local").contains("local fd00:10::/108 dev lo proto 118 metric 118"));
        for address in ["10.96.1.2", "10.100.200.3", "fd00:10::7"] {
            let route = run("ip", &format!("route get {address}"));
            assert!(route.starts_with(&format!("local {address} ")) && route.contains(" dev lo "), "{route}");
        }
        assert_eq!(world.ports().routes.delete(RouteOwner::Userspace, &networks[..1]), [].into());
        assert!(UdpSocket::bind("10.96.1.2:0").is_err());
    });
}

#[test]
fn a_host_without_ipv6_has_routes_of_ipv4() {
    kernel_test(&[Need::Root], || {
        let mut world = Kernel::new();
        let ports = world.ports();
        ports.sysctls.set("net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
        let networks: [Network; 2] = ["10.96.0.0/12".parse().unwrap(), "fd00:10::/112".parse().unwrap()];
        let failures = ports.routes.add(RouteOwner::Userspace, &networks.map(LocalRoute::new));
        assert_eq!(kinds(&failures), [(1, PortErrorKind::Unavailable)]);
        assert!(failures[&1].to_string().contains("set net.ipv6.conf.lo.disable_ipv6 to 0"), "{failures:?}");
        assert_eq!(ports.routes.networks(RouteOwner::Userspace).unwrap().len(), 1);
    });
}

/// The monitor reports exactly the lost routes of the modes.
#[test]
fn lost_routes_are_heard() {
    kernel_test(&[Need::Root], || {
        let mut world = Kernel::new();
        let networks = ["10.96.0.0/12".parse().unwrap(), "fd00:10::/112".parse().unwrap()];
        let mut monitor = Monitor::open().unwrap();
        for owner in RouteOwner::ALL {
            assert_eq!(world.ports().routes.add(owner, &networks.map(LocalRoute::new)), [].into());
        }
        assert!(!monitor.drain().unwrap().bound_routes, "they came");
        run("ip", "route add local 10.96.0.0/12 dev lo proto 120 metric 120 table local");
        run("ip", "route delete local 10.96.0.0/12 proto 120 table local");
        assert!(!monitor.drain().unwrap().bound_routes, "another program's");
        for owner in RouteOwner::ALL {
            for line in ["route delete local 10.96.0.0/12", "-6 route delete local fd00:10::/112"] {
                run("ip", &format!("{line} proto {} table local", owner.number()));
                assert!(heard(&mut monitor, |changes| changes.bound_routes).bound_routes, "{line} of {owner:?}");
            }
        }
    });
}

/// A kernel without some parts fails exactly the calls that need them.
#[test]
fn one_missing_part_stops_no_other() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip,port")], || {
        let options = proxier_core::kernel::KernelOptions::default();
        let mut kernel = proxier_core::kernel::KernelPorts::open(&options).unwrap();
        let ports = kernel.ports();
        if testkit::missing(Need::IpVs).is_some() {
            assert_eq!(ports.ipvs.snapshot().unwrap_err().kind(), PortErrorKind::Unavailable);
        }
        if testkit::missing(Need::Dummy).is_some() {
            assert_eq!(ports.links.create_device(DEVICE).unwrap_err().kind(), PortErrorKind::Unavailable);
        }
        assert!(ports.links.addresses().unwrap().interfaces.contains_key("lo"));
        let set = SetKey::new(Family::V4, SetKind::ClusterIp).named(NamePrefix::KUBE);
        ports.sets.create(set, 1).unwrap();
        assert_eq!(ports.sysctls.get("net/ipv4/ip_forward").unwrap().len(), 1);
    });
}

/// The kernel lets go of the sets of a deleted rule a moment later.
#[test]
fn a_set_in_use_is_waited_for_once() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip,port"), Need::Ipset("list:set")], || {
        let mut world = Kernel::new();
        let sets = world.ports().sets;
        let names =
            [SetKind::ClusterIp, SetKind::ExternalIp].map(|kind| SetKey::new(Family::V4, kind).named(NamePrefix::KUBE));
        for set in &names {
            sets.create(*set, 0).unwrap();
        }
        let keep = |list: &str, set: &NamedSet| {
            run("ipset", &format!("create {list} list:set"));
            run("ipset", &format!("add {list} {}", set.name()));
        };
        keep("short", &names[0]);
        keep("long", &names[1]);
        let rule = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            run("ipset", "destroy short");
        });
        sets.destroy(names[0]).unwrap();
        rule.join().unwrap();
        let times = [0; 2].map(|_| {
            let start = Instant::now();
            assert_eq!(sets.destroy(names[1]).map_err(|error| error.kind()), Err(PortErrorKind::Busy));
            start.elapsed()
        });
        assert!(times[0] >= Duration::from_secs(2) && times[1] < times[0] / 2, "{times:?}");
        run("ipset", "destroy long");
        sets.destroy(names[1]).unwrap();
        assert_eq!(run("ipset", "list -name"), "");
    });
}
