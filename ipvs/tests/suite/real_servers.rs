use std::num::NonZeroU16;

use ipvs::model::{Thresholds, Tunnel, TunnelFlags, TunnelKind};
use ipvs::{ErrorKind, ForwardingMethod, RealServer, RealServerKey, Weight};

use super::{World, add_real, real, round_robin, served, tcp, with_server};

pub(crate) fn every_forwarding_method(world: &dyn World) {
    let (mut client, key) = served(world);
    let methods = [
        ForwardingMethod::Masquerade,
        ForwardingMethod::Local,
        ForwardingMethod::Tunnel(Tunnel::IPIP),
        ForwardingMethod::DirectRoute,
        ForwardingMethod::Bypass,
    ];
    for (number, method) in (1..).zip(methods) {
        let server = real(&format!("10.1.0.{number}:80")).with_forwarding_method(method);
        add_real(&mut client, &key, &server);
    }
    // ipvsadm 1.31 has no option for the local node, nor for a cache bypass, which it prints as nothing at all.
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1",
        "-a -t 10.0.0.1:80 -r 10.1.0.2:80 -g -w 1",
        "-a -t 10.0.0.1:80 -r 10.1.0.3:80 -i -w 1 --tun-type ipip",
        "-a -t 10.0.0.1:80 -r 10.1.0.4:80 -g -w 1",
        "-a -t 10.0.0.1:80 -r 10.1.0.5:80 (null) -w 1",
    ]);
    // A local address stays what was asked for.
    let local = real("127.0.0.1:80");
    add_real(&mut client, &key, &local);
}

pub(crate) fn tunnels(world: &dyn World) {
    let (mut client, key) = served(world);
    let gue = TunnelKind::Gue { port: NonZeroU16::new(0x1234).unwrap() };
    let tunnels = [
        Tunnel::IPIP,
        Tunnel::new(gue, TunnelFlags::empty()),
        Tunnel::new(gue, TunnelFlags::CHECKSUM),
        Tunnel::new(gue, TunnelFlags::REMOTE_CHECKSUM),
        Tunnel::new(TunnelKind::Gre, TunnelFlags::empty()),
        Tunnel::new(TunnelKind::Gre, TunnelFlags::CHECKSUM),
    ];
    for (number, tunnel) in (1..).zip(tunnels) {
        let server = real(&format!("10.1.0.{number}:80")).with_forwarding_method(ForwardingMethod::Tunnel(tunnel));
        add_real(&mut client, &key, &server);
    }
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -i -w 1 --tun-type ipip",
        "-a -t 10.0.0.1:80 -r 10.1.0.2:80 -i -w 1 --tun-type gue --tun-port 4660 --tun-nocsum",
        "-a -t 10.0.0.1:80 -r 10.1.0.3:80 -i -w 1 --tun-type gue --tun-port 4660 --tun-csum",
        "-a -t 10.0.0.1:80 -r 10.1.0.4:80 -i -w 1 --tun-type gue --tun-port 4660 --tun-remcsum",
        "-a -t 10.0.0.1:80 -r 10.1.0.5:80 -i -w 1 --tun-type gre --tun-nocsum",
        "-a -t 10.0.0.1:80 -r 10.1.0.6:80 -i -w 1 --tun-type gre --tun-csum",
    ]);
    // From one kind to another, and to no tunnel at all.
    let changed = real("10.1.0.2:80").with_forwarding_method(ForwardingMethod::Tunnel(Tunnel::IPIP));
    client.update_real_server(&key, &changed).unwrap();
    assert_eq!(client.get_real_server(&key, &changed.key).unwrap().server, changed);
    client.update_real_server(&key, &real("10.1.0.2:80")).unwrap();
    assert_eq!(client.get_real_server(&key, &changed.key).unwrap().server, real("10.1.0.2:80"));
}

pub(crate) fn another_family_needs_a_tunnel(world: &dyn World) {
    let (mut client, v4) = served(world);
    let v6 = tcp("[fd00::1]:80");
    client.add_virtual_server(&round_robin(v6)).unwrap();
    let tunnel = ForwardingMethod::Tunnel(Tunnel::IPIP);
    for (key, other) in [(v4, real("[fd01::1]:80")), (v6, real("10.1.0.1:80"))] {
        for method in [ForwardingMethod::Masquerade, ForwardingMethod::DirectRoute, ForwardingMethod::Local] {
            let error = client.add_real_server(&key, &other.with_forwarding_method(method)).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        }
        client.add_real_server(&key, &other.with_forwarding_method(tunnel)).unwrap();
        assert_eq!(client.list_real_servers(&key).unwrap()[0].server, other.with_forwarding_method(tunnel));
        let error = client.update_real_server(&key, &other).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
    }
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t 10.0.0.1:80 -r [fd01::1]:80 -i -w 1 --tun-type ipip",
        "-A -t [fd00::1]:80 -s rr",
        "-a -t [fd00::1]:80 -r 10.1.0.1:80 -i -w 1 --tun-type ipip",
    ]);
    client.delete_real_server(&v4, &real("[fd01::1]:80").key).unwrap();
    client.delete_real_server(&v6, &real("10.1.0.1:80").key).unwrap();
}

pub(crate) fn weights_and_thresholds(world: &dyn World) {
    let (mut client, key) = served(world);
    let server = |number: u8, weight, upper, lower| {
        real(&format!("10.1.0.{number}:80")).with_weight(weight).with_thresholds(Thresholds::new(upper, lower).unwrap())
    };
    let servers = [
        server(1, Weight::DRAIN, 0, 0),
        server(2, Weight::MAX, 100, 50),
        server(3, Weight::new(0x0102_0304).unwrap(), 7, 7),
        server(4, Weight::ONE, 0x7fff_ffff, 0),
    ];
    for server in servers {
        add_real(&mut client, &key, &server);
    }
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 0",
        "-a -t 10.0.0.1:80 -r 10.1.0.2:80 -m -w 2147483647",
        "-a -t 10.0.0.1:80 -r 10.1.0.3:80 -m -w 16909060",
        "-a -t 10.0.0.1:80 -r 10.1.0.4:80 -m -w 1",
    ]);
    // The output of `ipvsadm --save` lacks the thresholds; `--list` has them.
    world.expect_thresholds(&["10.1.0.1:80 0 0", "10.1.0.2:80 100 50", "10.1.0.3:80 7 7", "10.1.0.4:80 2147483647 0"]);
    // Above that, kernels since 7.0 refuse and older ones take it.
    let beyond = server(5, Weight::ONE, u32::MAX, 0);
    match client.add_real_server(&key, &beyond) {
        Ok(()) => assert_eq!(client.get_real_server(&key, &beyond.key).unwrap().server, beyond),
        Err(error) => assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}"),
    }
}

pub(crate) fn the_last_added_comes_first(world: &dyn World) {
    let (mut client, key) = served(world);
    let servers: Vec<RealServer> = (1..=20).map(|number| real(&format!("10.1.0.{}:80", number * 7 % 23))).collect();
    for server in &servers {
        client.add_real_server(&key, server).unwrap();
    }
    let listed: Vec<RealServer> =
        client.list_real_servers(&key).unwrap().iter().map(|observed| observed.server).collect();
    assert_eq!(listed, servers.into_iter().rev().collect::<Vec<_>>());
}

pub(crate) fn an_update_keeps_the_place(world: &dyn World) {
    let (mut client, key) = served(world);
    for at in ["10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"] {
        client.add_real_server(&key, &real(at)).unwrap();
    }
    let changed = real("10.1.0.2:80")
        .with_weight(Weight::DRAIN)
        .with_forwarding_method(ForwardingMethod::DirectRoute)
        .with_thresholds(Thresholds::new(9, 3).unwrap());
    client.update_real_server(&key, &changed).unwrap();
    let listed: Vec<RealServer> =
        client.list_real_servers(&key).unwrap().iter().map(|observed| observed.server).collect();
    assert_eq!(listed, [real("10.1.0.3:80"), changed, real("10.1.0.1:80")]);
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1",
        "-a -t 10.0.0.1:80 -r 10.1.0.2:80 -g -w 0",
        "-a -t 10.0.0.1:80 -r 10.1.0.3:80 -m -w 1",
    ]);
}

pub(crate) fn adding_twice_is_refused(world: &dyn World) {
    let (mut client, key) = served(world);
    client.add_real_server(&key, &real("10.1.0.1:80")).unwrap();
    let error = client.add_real_server(&key, &real("10.1.0.1:80").with_weight(Weight::MAX)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::RealServerExists);
    assert!(error.is_already_exists());
    assert!(error.to_string().contains("10.1.0.1:80 of virtual server TCP 10.0.0.1:80"), "{error}");
    client.add_real_server(&key, &real("10.1.0.1:81")).unwrap();
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:81 -m -w 1",
    ]);
}

pub(crate) fn what_does_not_exist_is_not_found(world: &dyn World) {
    let (mut client, key) = served(world);
    let absent = tcp("10.0.0.9:80");
    let server = real("10.1.0.1:80");
    for result in [
        client.update_real_server(&key, &server),
        client.delete_real_server(&key, &server.key),
        client.get_real_server(&key, &server.key).map(|_| ()),
        client.get_real_server(&absent, &server.key).map(|_| ()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::RealServerNotFound, "{error}");
        assert!(error.is_not_found());
    }
    for result in [
        client.add_real_server(&absent, &server),
        client.update_real_server(&absent, &server),
        client.delete_real_server(&absent, &server.key),
    ] {
        let error = result.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::VirtualServerNotFound, "{error}");
    }
    world.expect(&["-A -t 10.0.0.1:80 -s rr"]);
}

pub(crate) fn addresses_the_kernel_refuses(world: &dyn World) {
    let (mut client, v4) = served(world);
    let v6 = tcp("[fd00::1]:80");
    client.add_virtual_server(&round_robin(v6)).unwrap();
    for at in ["0.0.0.0:80", "224.0.0.1:80", "255.255.255.255:80", "127.255.255.255:80"] {
        let error = client.add_real_server(&v4, &real(at)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{at}: {error}");
        assert!(error.to_string().contains("unicast"), "{error}");
    }
    for at in ["[::]:80", "[ff02::1]:80", "[fe80::1]:80", "[::ffff:10.1.0.1]:80"] {
        let error = client.add_real_server(&v6, &real(at)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{at}: {error}");
    }
    for at in ["0.0.0.1:80", "127.0.0.1:80", "240.0.0.1:80", "192.0.2.1:0"] {
        client.add_real_server(&v4, &real(at)).unwrap();
    }
    for at in ["[::1]:80", "[2001:db8::1]:80", "[fec0::1]:80"] {
        client.add_real_server(&v6, &real(at)).unwrap();
    }
}

pub(crate) fn a_removed_one_comes_back(world: &dyn World) {
    let (mut client, key) = served(world);
    let server = real("10.1.0.1:80").with_weight(Weight::new(3).unwrap());
    for _ in 0..3 {
        client.add_real_server(&key, &server).unwrap();
        client.delete_real_server(&key, &server.key).unwrap();
        assert_eq!(client.list_real_servers(&key).unwrap(), []);
    }
    let other = server.with_weight(Weight::DRAIN).with_forwarding_method(ForwardingMethod::DirectRoute);
    add_real(&mut client, &key, &other);
    world.expect(&["-A -t 10.0.0.1:80 -s rr", "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g -w 0"]);
}

pub(crate) fn the_list_of_an_absent_virtual_server_is_empty(world: &dyn World) {
    let mut client = world.client();
    assert_eq!(client.list_real_servers(&tcp("10.0.0.1:80")).unwrap(), []);
    let key: RealServerKey = "10.1.0.1:80".parse().unwrap();
    assert!(client.get_real_server(&tcp("10.0.0.1:80"), &key).unwrap_err().is_not_found());
}

/// A datagram takes 17 of them with the small buffer and about 80 with the large one: up to beyond the second of those.
pub(crate) fn lists_of_every_length(world: &dyn World) {
    let (mut client, key) = served(world);
    let mut added = Vec::new();
    for number in 1..=170 {
        let server = real(&format!("10.1.0.{number}:8080")).with_weight(Weight::new(number).unwrap());
        client.add_real_server(&key, &server).unwrap();
        added.insert(0, server);
        let listed: Vec<_> = client.list_real_servers(&key).unwrap().iter().map(|observed| observed.server).collect();
        assert_eq!(listed, added);
        let snapshot = client.snapshot().unwrap();
        let [entry] = snapshot.entries.as_slice() else { panic!("{snapshot:?}") };
        assert!(entry.real_servers.iter().map(|observed| observed.server).eq(listed), "{number}: {entry:?}");
    }
    let mut lines = vec!["-A -t 10.0.0.1:80 -s rr".to_owned()];
    lines.extend((1..=170).map(|number| format!("-a -t 10.0.0.1:80 -r 10.1.0.{number}:8080 -m -w {number}")));
    world.expect(&lines.iter().map(String::as_str).collect::<Vec<_>>());
}

pub(crate) fn a_snapshot_is_still_so_or_not(world: &dyn World) {
    let (mut client, mut other) = (world.client(), world.client());
    let key = with_server(&mut client);
    client.add_real_server(&key, &real("10.1.0.1:8080")).unwrap();
    let snapshot = client.snapshot_once().unwrap();
    assert_eq!(snapshot, client.snapshot().unwrap());
    assert!(client.is_still(&snapshot).unwrap());
    other.add_real_server(&key, &real("10.1.0.2:8080")).unwrap();
    assert!(client.is_still(&snapshot).unwrap(), "real servers are not compared");
    other.add_virtual_server(&round_robin(tcp("10.0.0.2:80"))).unwrap();
    assert!(!client.is_still(&snapshot).unwrap());
    other.delete_virtual_server(&tcp("10.0.0.2:80")).unwrap();
    assert!(client.is_still(&snapshot).unwrap());
    let mut changed = round_robin(key);
    changed.config.one_packet = true;
    other.update_virtual_server(&changed).unwrap();
    assert!(!client.is_still(&snapshot).unwrap());
    other.delete_virtual_server(&key).unwrap();
    assert!(!client.is_still(&snapshot).unwrap());
    let mut twice = client.snapshot_once().unwrap();
    twice.entries.extend(snapshot.entries.iter().cloned().chain(snapshot.entries.clone()));
    assert!(!client.is_still(&twice).unwrap());
}

pub(crate) fn a_drain_ends_with_the_deletion(world: &dyn World) {
    use std::time::Duration;
    let (mut client, key) = served(world);
    let (idle, other) = (real("10.1.0.1:8080").with_weight(Weight::new(7).unwrap()), real("10.1.0.2:8080"));
    client.add_real_server(&key, &idle).unwrap();
    client.add_real_server(&key, &other).unwrap();
    // Without connections nothing is waited for.
    let start = std::time::Instant::now();
    assert_eq!(client.drain_real_server(&key, &idle.key, Duration::from_secs(600)).unwrap(), 0);
    assert!(start.elapsed() < Duration::from_secs(60));
    world.expect(&["-A -t 10.0.0.1:80 -s rr", "-a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 1"]);
    // What is gone is drained.
    assert_eq!(client.drain_real_server(&key, &idle.key, Duration::ZERO).unwrap(), 0);
    assert_eq!(client.drain_step(&tcp("10.0.0.9:80"), &idle.key, true).unwrap(), None);
    assert_eq!(client.drain_step(&key, &other.key, true).unwrap(), None);
    world.expect(&["-A -t 10.0.0.1:80 -s rr"]);
}
