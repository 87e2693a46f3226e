use ipvs::model::{DaemonState, Family, Name, SyncDaemon, Timeouts, TimeoutsUpdate};
use ipvs::{ErrorKind, ForwardingMethod, Subject, VirtualServerKey};

use super::{World, real, round_robin, tcp, with_server};

pub(crate) fn timeouts_one_by_one(world: &dyn World) {
    let mut client = world.client();
    let timeouts = Timeouts::new;
    assert_eq!(client.timeouts().unwrap(), timeouts(900, 120, 300));
    let none = TimeoutsUpdate::default();
    client.set_timeouts(&none).unwrap();
    client.set_timeouts(&none.with_tcp_secs(901)).unwrap();
    assert_eq!(client.timeouts().unwrap(), timeouts(901, 120, 300));
    client.set_timeouts(&none.with_tcp_fin_secs(121)).unwrap();
    assert_eq!(client.timeouts().unwrap(), timeouts(901, 121, 300));
    client.set_timeouts(&none.with_udp_secs(301)).unwrap();
    assert_eq!(client.timeouts().unwrap(), timeouts(901, 121, 301));
    let zero = none.with_tcp_secs(0).with_tcp_fin_secs(0).with_udp_secs(0);
    client.set_timeouts(&zero).unwrap();
    assert_eq!(client.timeouts().unwrap(), timeouts(901, 121, 301));
}

pub(crate) fn impossible_timeouts_change_nothing(world: &dyn World) {
    let mut client = world.client();
    let before = client.timeouts().unwrap();
    for secs in [u32::MAX, 1 << 31, 1 << 30] {
        let update = TimeoutsUpdate::new().with_tcp_secs(77).with_udp_secs(secs);
        let error = client.set_timeouts(&update).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(client.timeouts().unwrap(), before);
    }
}

pub(crate) fn version_and_size(world: &dyn World) {
    let mut client = world.client();
    // Since Linux 7.1 the table is created with the first virtual server; until then its size is reported as 0.
    let size = client.info().unwrap().connection_table_size;
    assert!(size == 0 || size.is_power_of_two(), "{size}");
    with_server(&mut client);
    let info = client.info().unwrap();
    assert_eq!(info.version, 0x01_02_01);
    assert!(info.connection_table_size.is_power_of_two(), "{info}");
}

pub(crate) fn daemons(world: &dyn World) {
    let mut client = world.client();
    let lo = Name::new("lo").unwrap();
    assert_eq!(client.list_daemons().unwrap(), []);
    for state in [DaemonState::Master, DaemonState::Backup] {
        let error = client.stop_daemon(state).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::DaemonNotRunning, "{error}");
        assert!(error.is_not_found());
    }
    let absent = SyncDaemon::new(DaemonState::Master, Name::new("nosuch0").unwrap(), 1);
    let error = client.start_daemon(&absent).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InterfaceNotFound, "{error}");
    assert_eq!(error.subject(), Subject::Daemon(DaemonState::Master, Some(absent.interface)));
    let words = "starting synchronisation daemon master on nosuch0: there is no network interface nosuch0";
    assert!(error.to_string().starts_with(words), "{error}");

    client.start_daemon(&SyncDaemon::new(DaemonState::Backup, lo, 42)).unwrap();
    let error = client.start_daemon(&SyncDaemon::new(DaemonState::Backup, lo, 43)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::DaemonRunning, "{error}");
    assert!(error.is_already_exists());
    assert!(error.to_string().contains("backup on lo: one runs in this state already"), "{error}");
    client.start_daemon(&SyncDaemon::new(DaemonState::Master, lo, 41)).unwrap();

    // Omitted values come back as the kernel's defaults; the master first.
    let listed = client.list_daemons().unwrap();
    let filled = |state, sync_id, max_length| {
        let group = "224.0.0.81".parse().unwrap();
        SyncDaemon::new(state, lo, sync_id).with_max_length(max_length).with_group(group).with_port(8848).with_ttl(1)
    };
    assert_eq!(listed, [filled(DaemonState::Master, 41, 1472), filled(DaemonState::Backup, 42, 65_507)]);
    let wanted = |state, sync_id| SyncDaemon::new(state, lo, sync_id);
    assert!(
        wanted(DaemonState::Master, 41).is_met_by(&listed[0]) && wanted(DaemonState::Backup, 42).is_met_by(&listed[1])
    );
    for other in [
        wanted(DaemonState::Backup, 41),
        wanted(DaemonState::Master, 42),
        SyncDaemon::new(DaemonState::Master, Name::new("eth0").unwrap(), 41),
        wanted(DaemonState::Master, 41).with_group("224.0.0.82".parse().unwrap()),
        wanted(DaemonState::Master, 41).with_port(8849),
        wanted(DaemonState::Master, 41).with_ttl(2),
        wanted(DaemonState::Master, 41).with_max_length(1471),
    ] {
        assert!(!other.is_met_by(&listed[0]), "{other:?}");
    }
    // Only that of a backup depends on the interface.
    assert!(!wanted(DaemonState::Master, 41).is_met_by(&filled(DaemonState::Master, 41, 512)));
    assert!(wanted(DaemonState::Backup, 42).is_met_by(&filled(DaemonState::Backup, 42, 1472)));
    client.stop_daemon(DaemonState::Master).unwrap();
    assert_eq!(client.list_daemons().unwrap(), listed[1..]);
    client.stop_daemon(DaemonState::Backup).unwrap();
    assert_eq!(client.list_daemons().unwrap(), []);
}

pub(crate) fn daemons_with_everything_said(world: &dyn World) {
    let mut client = world.client();
    let lo = Name::new("lo").unwrap();
    let said = |state, group: &str, max_length| {
        let group = group.parse().unwrap();
        SyncDaemon::new(state, lo, 255).with_max_length(max_length).with_group(group).with_port(0x1234).with_ttl(7)
    };
    let master = said(DaemonState::Master, "224.1.2.3", 512);
    client.start_daemon(&master).unwrap();
    assert_eq!(client.list_daemons().unwrap(), [master]);
    client.stop_daemon(DaemonState::Master).unwrap();
    let backup = said(DaemonState::Backup, "ff02::1234", 2000);
    client.start_daemon(&backup).unwrap();
    assert_eq!(client.list_daemons().unwrap(), [backup]);
    client.stop_daemon(DaemonState::Backup).unwrap();
    // A backup takes at least 1024 bytes, and no daemon more than fit into a packet.
    for (state, group, wanted, taken) in [
        (DaemonState::Backup, "224.1.2.3", 100, 1024),
        (DaemonState::Master, "224.1.2.3", 65_535, 65_507),
        (DaemonState::Backup, "ff02::1234", 65_535, 65_487),
    ] {
        let wanted = said(state, group, wanted);
        client.start_daemon(&wanted).unwrap();
        let running = client.list_daemons().unwrap();
        assert_eq!(running, [said(state, group, taken)]);
        assert!(wanted.is_met_by(&running[0]) && !said(state, group, 1500).is_met_by(&running[0]));
        client.stop_daemon(state).unwrap();
    }
    for group in ["10.0.0.1", "fd00::1"] {
        let error = client.start_daemon(&said(DaemonState::Master, group, 512)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        assert!(
            error.to_string().contains("master on lo: the kernel refuses the values; the group must be"),
            "{error}"
        );
    }
}

pub(crate) fn daemons_and_mixed_families_exclude_each_other(world: &dyn World) {
    let mut client = world.client();
    let daemon = SyncDaemon::new(DaemonState::Master, Name::new("lo").unwrap(), 1);
    let key = with_server(&mut client);
    let tunnel = ForwardingMethod::Tunnel(ipvs::model::Tunnel::IPIP);
    let mixed = real("[fd01::1]:80").with_forwarding_method(tunnel);
    client.add_real_server(&key, &mixed).unwrap();
    let error = client.start_daemon(&daemon).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
    client.delete_real_server(&key, &mixed.key).unwrap();
    client.start_daemon(&daemon).unwrap();
    let error = client.add_real_server(&key, &mixed).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
    client.stop_daemon(DaemonState::Master).unwrap();
    client.add_real_server(&key, &mixed).unwrap();
}

/// The kernel does not answer when a daemon is stopped before its thread has run: the client must not wait for that
/// answer.
pub(crate) fn a_daemon_can_be_stopped_at_once(world: &dyn World) {
    let mut client = world.client();
    let started = std::time::Instant::now();
    for number in 0..10 {
        let state = if number % 2 == 0 { DaemonState::Master } else { DaemonState::Backup };
        client.start_daemon(&SyncDaemon::new(state, Name::new("lo").unwrap(), number)).unwrap();
        client.stop_daemon(state).unwrap();
        assert_eq!(client.list_daemons().unwrap(), []);
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", started.elapsed());
}

/// Without traffic there is nothing to see but that it is allowed; `tests/kernel_traffic.rs` has counters to zero.
pub(crate) fn counters_can_be_zeroed(world: &dyn World) {
    let mut client = world.client();
    client.zero_all().unwrap();
    let key = with_server(&mut client);
    client.add_real_server(&key, &real("10.1.0.1:80")).unwrap();
    client.zero_virtual_server(&key).unwrap();
    client.zero_all().unwrap();
    let mark = VirtualServerKey::fwmark(Family::V4, 7).unwrap();
    assert!(client.zero_virtual_server(&mark).unwrap_err().is_not_found());
    client.add_virtual_server(&round_robin(mark)).unwrap();
    client.zero_virtual_server(&mark).unwrap();
    assert!(client.zero_virtual_server(&tcp("10.0.0.2:80")).unwrap_err().is_not_found());
}
