use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipvs::model::{Family, Granularity, Name, Persistence};
use ipvs::{ErrorKind, MissingModule, Scheduler, SchedulerFlags, VirtualServer, VirtualServerKey};

use super::{World, add, real, round_robin, served, tcp, udp, update, with_server};

pub(crate) fn an_empty_table_is_an_empty_list(world: &dyn World) {
    let mut client = world.client();
    assert_eq!(client.list_virtual_servers().unwrap(), []);
    assert_eq!(client.snapshot().unwrap().entries, []);
    world.expect(&[]);
}

pub(crate) fn every_kind_of_key(world: &dyn World) {
    let mut client = world.client();
    let keys = [
        tcp("10.0.0.1:80"),
        tcp("10.0.0.1:0"),
        tcp("10.0.0.1:65535"),
        udp("10.0.0.1:53"),
        VirtualServerKey::sctp("10.0.0.1:3868".parse().unwrap()),
        tcp("[fd00::1]:80"),
        udp("[fd00::1]:53"),
        VirtualServerKey::sctp("[fd00::1]:3868".parse().unwrap()),
        VirtualServerKey::fwmark(Family::V4, 7).unwrap(),
        VirtualServerKey::fwmark(Family::V6, 7).unwrap(),
        VirtualServerKey::fwmark(Family::V4, 0x7fff_ffff).unwrap(),
    ];
    for key in keys {
        client.add_virtual_server(&round_robin(key)).unwrap();
    }
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr",
        "-A -t 10.0.0.1:0 -s rr",
        "-A -t 10.0.0.1:65535 -s rr",
        "-A -u 10.0.0.1:53 -s rr",
        "-A --sctp-service 10.0.0.1:3868 -s rr",
        "-A -t [fd00::1]:80 -s rr",
        "-A -u [fd00::1]:53 -s rr",
        "-A --sctp-service [fd00::1]:3868 -s rr",
        "-A -f 7 -s rr",
        "-A -f 7 -6 -s rr",
        "-A -f 2147483647 -s rr",
    ]);
    let listed: BTreeSet<VirtualServer> =
        client.list_virtual_servers().unwrap().iter().map(|observed| observed.server).collect();
    assert_eq!(listed, keys.map(round_robin).into());
    for key in keys {
        assert_eq!(client.get_virtual_server(&key).unwrap().server, round_robin(key));
        client.delete_virtual_server(&key).unwrap();
    }
    world.expect(&[]);
    // ipvsadm 1.31 takes marks for signed numbers.
    let last = VirtualServerKey::fwmark(Family::V4, u32::MAX).unwrap();
    add(&mut client, &round_robin(last));
    world.expect(&["-A -f -1 -s rr"]);
}

pub(crate) fn every_scheduler(world: &dyn World) {
    let mut client = world.client();
    let mut lines = Vec::new();
    for (number, scheduler) in Scheduler::KNOWN.into_iter().enumerate() {
        let key = tcp(&format!("10.0.0.{number}:80"));
        let added = client.add_virtual_server(&VirtualServer::new(key, scheduler));
        if !world.has(scheduler) {
            let error = added.unwrap_err();
            assert_eq!(error.module_missing(), Some(MissingModule::Scheduler(scheduler)), "{error}");
            continue;
        }
        added.unwrap();
        lines.push(format!("-A -t 10.0.0.{number}:80 -s {scheduler}"));
        assert_eq!(client.get_virtual_server(&key).unwrap().server.config.scheduler, scheduler);
        // From any scheduler to another and back.
        update(&mut client, &round_robin(key));
        client.update_virtual_server(&VirtualServer::new(key, scheduler)).unwrap();
    }
    world.expect(&lines.iter().map(String::as_str).collect::<Vec<_>>());
}

pub(crate) fn scheduler_flags_have_names(world: &dyn World) {
    let mut client = world.client();
    let all = SchedulerFlags::all();
    let servers = [
        (1, Scheduler::SourceHashing, SchedulerFlags::SH_PORT, "sh-port"),
        (2, Scheduler::SourceHashing, all, "sh-fallback,sh-port,flag-3"),
        (3, Scheduler::MaglevHashing, SchedulerFlags::MH_FALLBACK, "mh-fallback"),
        (4, Scheduler::MaglevHashing, SchedulerFlags::MH_FALLBACK | SchedulerFlags::MH_PORT, "mh-fallback,mh-port"),
        (5, Scheduler::RoundRobin, all, "flag-1,flag-2,flag-3"),
    ];
    let mut lines = Vec::new();
    for (number, scheduler, flags, names) in servers {
        let server = VirtualServer::new(tcp(&format!("10.0.0.{number}:80")), scheduler).with_scheduler_flags(flags);
        add(&mut client, &server);
        assert_eq!(flags.names(scheduler).join(","), names);
        // ipvsadm 1.31 does not say the third flag of schedulers whose other flags have names.
        let names = if scheduler == Scheduler::RoundRobin { names } else { names.trim_end_matches(",flag-3") };
        lines.push(format!("-A -t 10.0.0.{number}:80 -s {scheduler} -b {names}"));
    }
    world.expect(&lines.iter().map(String::as_str).collect::<Vec<_>>());
}

pub(crate) fn persistence_and_its_granularity(world: &dyn World) {
    let mut client = world.client();
    let persistent = |timeout_secs, granularity| Persistence::new(timeout_secs).with_granularity(granularity);
    let servers = [
        (tcp("10.0.0.1:80"), persistent(300, Granularity::Client)),
        (tcp("10.0.0.2:80"), persistent(10_800, Granularity::Prefix(31))),
        (tcp("10.0.0.3:80"), persistent(1, Granularity::Prefix(0))),
        (tcp("10.0.0.4:80"), persistent(60, Granularity::Mask(Ipv4Addr::new(255, 0, 255, 0)))),
        (tcp("[fd00::1]:80"), persistent(300, Granularity::Client)),
        (tcp("[fd00::2]:80"), persistent(300, Granularity::Prefix(127))),
        (tcp("[fd00::3]:80"), persistent(300, Granularity::Prefix(1))),
    ];
    for (key, persistence) in servers {
        let server = round_robin(key).with_persistence(persistence);
        add(&mut client, &server);
    }
    world.expect(&[
        "-A -t 10.0.0.1:80 -s rr -p 300",
        "-A -t 10.0.0.2:80 -s rr -p 10800 -M 255.255.255.254",
        "-A -t 10.0.0.3:80 -s rr -p 1 -M 0.0.0.0",
        "-A -t 10.0.0.4:80 -s rr -p 60 -M 255.0.255.0",
        "-A -t [fd00::1]:80 -s rr -p 300",
        "-A -t [fd00::2]:80 -s rr -p 300 -M 127",
        "-A -t [fd00::3]:80 -s rr -p 300 -M 1",
    ]);
}

pub(crate) fn persistence_engine(world: &dyn World) {
    let mut client = world.client();
    let engine = Name::new("sip").unwrap();
    let server = round_robin(udp("10.0.0.1:5060")).with_persistence(Persistence::new(60).with_engine(engine));
    add(&mut client, &server);
    world.expect(&["-A -u 10.0.0.1:5060 -s rr -p 60 --pe sip"]);
    let without = round_robin(server.key).with_persistence(Persistence::new(60));
    update(&mut client, &without);
    world.expect(&["-A -u 10.0.0.1:5060 -s rr -p 60"]);
}

/// The kernel keeps the timeout in ticks in 32 bits and does not check it: 2^32 / CONFIG_HZ seconds are as good as none.
pub(crate) fn long_persistence_wraps_in_the_kernel(world: &dyn World) {
    let mut client = world.client();
    let server = round_robin(tcp("10.0.0.1:80")).with_persistence(Persistence::new(u32::MAX));
    client.add_virtual_server(&server).unwrap();
    let kept = client.get_virtual_server(&server.key).unwrap().server.config.persistence.unwrap().timeout_secs;
    assert!(kept < u32::MAX / 100, "kept {kept}");
}

pub(crate) fn an_update_changes_everything_and_keeps_real_servers(world: &dyn World) {
    let (mut client, key) = served(world);
    client.add_real_server(&key, &real("10.1.0.1:8080")).unwrap();
    let granularity = Granularity::Prefix(24);
    let changed = VirtualServer::new(key, Scheduler::SourceHashing)
        .with_scheduler_flags(SchedulerFlags::SH_FALLBACK)
        .with_persistence(Persistence::new(600).with_granularity(granularity));
    client.update_virtual_server(&changed).unwrap();
    world.expect(&[
        "-A -t 10.0.0.1:80 -s sh -p 600 -M 255.255.255.0 -b sh-fallback",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1",
    ]);
    let snapshot = client.snapshot().unwrap();
    assert_eq!(snapshot.entries.len(), 1);
    assert_eq!(snapshot.entries[0].virtual_server.server, changed);
    assert_eq!(snapshot.entries[0].real_servers.len(), 1);
}

pub(crate) fn an_update_takes_flags_away(world: &dyn World) {
    let mut client = world.client();
    let key = udp("10.0.0.1:53");
    let flags = SchedulerFlags::all();
    let server = round_robin(key).with_scheduler_flags(flags).with_persistence(Persistence::new(300));
    let server = server.with_one_packet();
    add(&mut client, &server);
    world.expect(&["-A -u 10.0.0.1:53 -s rr -p 300 -o -b flag-1,flag-2,flag-3"]);
    update(&mut client, &round_robin(key));
    world.expect(&["-A -u 10.0.0.1:53 -s rr"]);
}

pub(crate) fn adding_twice_is_refused(world: &dyn World) {
    let (mut client, key) = served(world);
    let error = client.add_virtual_server(&VirtualServer::new(key, Scheduler::WeightedRoundRobin)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::VirtualServerExists);
    assert!(error.is_already_exists());
    assert!(error.to_string().contains("TCP 10.0.0.1:80"), "{error}");
    world.expect(&["-A -t 10.0.0.1:80 -s rr"]);
    // The same mark in another family, the same port of another protocol are others.
    client.add_virtual_server(&round_robin(udp("10.0.0.1:80"))).unwrap();
}

pub(crate) fn what_does_not_exist_is_not_found(world: &dyn World) {
    let (mut client, _) = served(world);
    for key in [tcp("10.0.0.1:81"), udp("10.0.0.1:80"), VirtualServerKey::fwmark(Family::V6, 80).unwrap()] {
        let refused = [
            client.get_virtual_server(&key).map(|_| ()),
            client.update_virtual_server(&round_robin(key)),
            client.delete_virtual_server(&key),
            client.zero_virtual_server(&key),
        ];
        for result in refused {
            let error = result.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::VirtualServerNotFound, "{error}");
            assert!(error.is_not_found());
        }
    }
    world.expect(&["-A -t 10.0.0.1:80 -s rr"]);
}

pub(crate) fn a_missing_module_is_named(world: &dyn World) {
    let mut client = world.client();
    let scheduler: Scheduler = "nosuch".parse().unwrap();
    let server = VirtualServer::new(tcp("10.0.0.1:80"), scheduler);
    let error = client.add_virtual_server(&server).unwrap_err();
    assert_eq!(error.module_missing(), Some(MissingModule::Scheduler(scheduler)));
    assert!(error.to_string().contains("modprobe ip_vs_nosuch"), "{error}");

    let key = with_server(&mut client);
    let error = client.update_virtual_server(&VirtualServer::new(key, scheduler)).unwrap_err();
    assert_eq!(error.module_missing(), Some(MissingModule::Scheduler(scheduler)));

    let engine = Name::new("nosuch").unwrap();
    let persistence = Persistence::new(300).with_engine(engine);
    let server = round_robin(udp("10.0.0.1:5060")).with_persistence(persistence);
    let error = client.add_virtual_server(&server).unwrap_err();
    let missing = MissingModule::SchedulerOrEngine(Scheduler::RoundRobin, engine);
    assert_eq!(error.module_missing(), Some(missing));
    assert!(error.to_string().contains("ip_vs_pe_nosuch"), "{error}");
    world.expect(&["-A -t 10.0.0.1:80 -s rr"]);
}

pub(crate) fn the_family_of_a_granularity_is_checked(world: &dyn World) {
    let mut client = world.client();
    let persistent = |granularity| Persistence::new(300).with_granularity(granularity);
    for (key, granularity) in [
        (tcp("10.0.0.1:80"), Granularity::Prefix(33)),
        (tcp("[fd00::1]:80"), Granularity::Prefix(0)),
        (tcp("[fd00::1]:80"), Granularity::Prefix(129)),
        (tcp("[fd00::1]:80"), Granularity::Mask(Ipv4Addr::BROADCAST)),
    ] {
        let error = client.add_virtual_server(&round_robin(key).with_persistence(persistent(granularity))).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfRange(_)), "{error}");
    }
    world.expect(&[]);
}

pub(crate) fn deleting_takes_the_real_servers_along(world: &dyn World) {
    let (mut client, key) = served(world);
    client.add_real_server(&key, &real("10.1.0.1:8080")).unwrap();
    client.delete_virtual_server(&key).unwrap();
    world.expect(&[]);
    client.add_virtual_server(&round_robin(key)).unwrap();
    assert_eq!(client.list_real_servers(&key).unwrap(), []);
}

pub(crate) fn flush_empties_the_table(world: &dyn World) {
    let mut client = world.client();
    client.flush_and_cut_everything().unwrap();
    let key = with_server(&mut client);
    client.add_real_server(&key, &real("10.1.0.1:8080")).unwrap();
    client.add_virtual_server(&round_robin(VirtualServerKey::fwmark(Family::V6, 7).unwrap())).unwrap();
    client.flush_and_cut_everything().unwrap();
    assert_eq!(client.list_virtual_servers().unwrap(), []);
    world.expect(&[]);
}
