//! Values, counters and errors without a kernel.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use ipvs::fake::FakeIpvs;
use ipvs::model::{
    DaemonState, Family, RealServerConfig, SyncDaemon, Thresholds, Tunnel, TunnelFlags, TunnelKind, VirtualServerConfig,
};
use ipvs::text::Statement;
use ipvs::{
    Batch, Client, ErrorKind, ForwardingMethod, Limits, MissingModule, Operation, RealServer, Ruleset, Scheduler,
    SyncPolicy, VirtualServer, VirtualServerKey, Weight,
};
use netlink_batch::header::GenlHeader;
use netlink_batch::testing::{Reply, Simulated};
use netlink_batch::{Encoder, Errno, Message, NulStr};

/// `GENL_ID_CTRL`, and a number for the family.
const CONTROLLER: u16 = 0x10;
const FAMILY: u16 = 0x1c;

/// The controller's answer about the family, in attributes of linux/genetlink.h: `CTRL_ATTR_FAMILY_ID` 1, `_NAME` 2, `_VERSION` 3.
fn family() -> Reply {
    let mut out = Encoder::new();
    out.bytes(&GenlHeader { command: 1, version: 2 }.to_bytes());
    out.attr(1, &FAMILY);
    out.attr(2, &NulStr::from("IPVS"));
    out.attr(3, &1_u32);
    Reply::Data(vec![(CONTROLLER, out.as_slice().to_vec())])
}

/// A kernel with the same answer to every command of the family.
fn answering(reply: impl Fn() -> Reply + Send + 'static) -> Client {
    let transport =
        Simulated::new(move |message: &Message<'_>| if message.header.kind == CONTROLLER { family() } else { reply() });
    let mut client = Client::with_transport(transport).unwrap();
    let mut limits = Limits::default();
    limits.timeout = std::time::Duration::from_millis(20);
    client.set_limits(limits);
    client
}

/// A virtual server as in a dump (linux/ip_vs.h), with statistics as attribute `kind`, whose counters 1 to 10 are `first` and on.
fn virtual_server(statistics: &[(u16, bool, u32)]) -> Vec<u8> {
    let mut out = Encoder::new();
    out.bytes(&GenlHeader { command: 1, version: 1 }.to_bytes());
    out.nest(1, |out| {
        out.attr(1, &2_u16);
        out.attr(2, &6_u16);
        out.attr(3, &[10_u8, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        out.attr(4, &netlink_batch::Be16(80));
        out.attr(6, &NulStr::from("rr"));
        out.attr(7, &[0_u8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        out.attr(8, &0_u32);
        out.attr(9, &[0xff_u8; 4]);
        for (kind, wide, first) in statistics {
            out.nest(*kind, |out| {
                for number in 1..=10_u16 {
                    let count = first + u32::from(number);
                    if *wide { out.attr(number, &u64::from(count)) } else { out.attr(number, &count) }
                }
            });
        }
    });
    out.as_slice().to_vec()
}

/// `IPVS_SVC_ATTR_STATS` is 10, `_STATS64` is 12; their attributes are connections, packets in and out, bytes in and out, and the same a
/// second.
#[test]
fn counters_are_in_their_places_and_the_wide_ones_count() {
    for (statistics, first) in
        [(&[(10, false, 100)][..], 100), (&[(12, true, 200)], 200), (&[(10, false, 100), (12, true, 200)], 200)]
    {
        let item = virtual_server(statistics);
        let mut client = answering(move || Reply::Dump(vec![(FAMILY, item.clone())]));
        let [found] = &client.list_virtual_servers().unwrap()[..] else { panic!("one is listed") };
        assert_eq!(
            found.server,
            VirtualServer::new(VirtualServerKey::tcp("10.0.0.1:80".parse().unwrap()), Scheduler::RoundRobin)
        );
        let (stats, rates) = (found.stats, found.stats.rates);
        let seen = [
            [stats.connections, stats.packets_in, stats.packets_out, stats.bytes_in, stats.bytes_out],
            [rates.connections, rates.packets_in, rates.packets_out, rates.bytes_in, rates.bytes_out],
        ];
        assert_eq!(seen.concat(), (first + 1..=first + 10).collect::<Vec<u64>>());
    }
}

#[test]
fn what_fails_below_keeps_its_kind() {
    let key = VirtualServerKey::tcp("10.0.0.1:80".parse().unwrap());
    let failing = |reply: Reply| answering(move || reply.clone()).get_virtual_server(&key).unwrap_err();
    let cut_off = failing(Reply::Data(vec![(FAMILY, vec![1, 1, 0, 0, 200, 0, 1, 0])]));
    assert_eq!(*cut_off.kind(), ErrorKind::Malformed);
    assert!(!cut_off.is_permission() && cut_off.errno().is_none() && cut_off.attribute().is_none());
    // Even the request for the family is refused.
    let refused = Simulated::new(|_: &Message<'_>| Reply::Error(Errno::EPERM));
    let error = Client::with_transport(refused).unwrap_err();
    assert!(error.is_permission() && !error.is_not_found() && error.module_missing().is_none());
    assert_eq!(error.errno(), Some(1));
    let absent = Simulated::new(|_: &Message<'_>| Reply::Error(Errno::ENOENT));
    let error = Client::with_transport(absent).unwrap_err();
    assert!(!error.is_permission());
    assert_eq!(error.module_missing(), Some(MissingModule::Ipvs));
}

/// The kernel names an attribute by where it lies in the request (`NLMSGERR_ATTR_OFFS`).
#[test]
fn a_refused_attribute_has_its_name_in_c() {
    let server = VirtualServer::new(VirtualServerKey::tcp("10.0.0.1:80".parse().unwrap()), Scheduler::RoundRobin);
    // Behind 16 bytes of nlmsghdr and 4 of genlmsghdr: IPVS_CMD_ATTR_SERVICE, and in it the first attribute.
    for (offset, name) in [(20, "IPVS_CMD_ATTR_SERVICE"), (24, "IPVS_CMD_ATTR_SERVICE > IPVS_SVC_ATTR_AF")] {
        let error = answering(move || Reply::ErrorAt(Errno::EINVAL, offset)).add_virtual_server(&server).unwrap_err();
        assert_eq!(error.attribute().as_deref(), Some(name));
    }
    let error = answering(|| Reply::Error(Errno::EINVAL)).add_virtual_server(&server).unwrap_err();
    assert_eq!((error.attribute(), error.errno()), (None, Some(22)));
}

#[test]
fn a_configuration_is_taken_over_as_a_whole() {
    let key = VirtualServerKey::udp("10.0.0.1:53".parse().unwrap());
    let mut config = VirtualServerConfig::new(Scheduler::WeightedLeastConnection);
    config.one_packet = true;
    let server = VirtualServer::new(key, Scheduler::RoundRobin).with_config(config);
    assert_eq!(Statement::Operation(Operation::AddVirtualServer(server)).to_string(), "-A -u 10.0.0.1:53 -s wlc -o");
    let config = RealServerConfig::new()
        .with_weight(Weight::new(7).unwrap())
        .with_forwarding_method(ForwardingMethod::DirectRoute)
        .with_thresholds(Thresholds::new(9, 3).unwrap());
    let real = RealServer::new("10.1.0.1:53".parse().unwrap()).with_config(config);
    let text = Statement::Operation(Operation::AddRealServer(key, real)).to_string();
    assert_eq!(text, "-a -u 10.0.0.1:53 -r 10.1.0.1:53 -g -w 7 -x 9 -y 3");
    assert_eq!(u32::from(config.weight), 7);
    assert_eq!(<(u32, u32)>::from(config.thresholds), (9, 3));
    assert_eq!(Thresholds::try_from((9, 3)).unwrap(), config.thresholds);
    assert!(Thresholds::try_from((3, 9)).is_err() && Thresholds::try_from((3, 3)).is_ok());
}

#[test]
fn batches_are_extended_and_zeroing_reaches_the_kernel() {
    let kernel = FakeIpvs::new();
    let mut client = kernel.client().unwrap();
    let keys = ["10.0.0.1:80", "10.0.0.2:80"].map(|at| VirtualServerKey::tcp(at.parse().unwrap()));
    let mut batch = Batch::with_capacity(2);
    batch.extend(keys.map(|key| Operation::AddVirtualServer(VirtualServer::new(key, Scheduler::RoundRobin))));
    assert!(client.run(&batch).is_done());
    assert_eq!(client.list_virtual_servers().unwrap().len(), 2);
    // The error names the operation that failed.
    let twice = client.run(&batch);
    assert_eq!(twice.failures().count(), 2, "{twice:?}");
    assert!(format!("{twice:?}").contains("adding"), "{twice:?}");
    let absent = VirtualServerKey::tcp("10.0.0.3:80".parse().unwrap());
    for (operation, doing) in [
        (Operation::UpdateVirtualServer(VirtualServer::new(absent, Scheduler::RoundRobin)), "updating"),
        (Operation::DeleteVirtualServer(absent), "deleting"),
        (Operation::ZeroVirtualServer(absent), "zeroing the counters of"),
    ] {
        let batch: Batch = [operation].into_iter().collect();
        let report = client.run(&batch);
        assert!(format!("{report:?}").contains(doing), "{doing}: {report:?}");
    }
}

/// `Debug` of an error, as a `main` that returns it prints, is its `Display`.
#[test]
fn debug_of_errors_prints_what_display_prints() {
    let range = VirtualServerKey::fwmark(Family::V4, 0).unwrap_err();
    assert_eq!(format!("{range:?}"), range.to_string());
    assert!(range.to_string().contains("allowed: "), "{range}");
    let text = "-A -t 10.0.0.1:http -s rr".parse::<Statement>().unwrap_err();
    assert_eq!(format!("{text:?}"), text.to_string());
    let nowhere = std::env::temp_dir().join("ipvs-values-nowhere");
    let proc = ipvs::proc::Proc::at(&nowhere).stats().unwrap_err();
    assert_eq!(format!("{proc:?}"), format!("{proc}: No such file or directory (os error 2)"));
    let sysctl = ipvs::sysctl::Sysctl::at(&nowhere).read_all().unwrap_err();
    assert_eq!(format!("{sysctl:?}"), format!("{sysctl}: No such file or directory (os error 2)"));
    // The kind alone, for metrics and reports.
    assert_eq!(sysctl.kind().to_string(), "there are no settings of IPVS; load the module with `modprobe ip_vs`");
}

/// Words are those that people read elsewhere.
#[test]
fn values_are_serialised_as_they_are_printed() {
    use serde_json::json;
    let real = RealServer::new("10.1.0.1:80".parse().unwrap());
    for method in
        ["masquerade", "local", "route", "bypass", "7", "tunnel", "tunnel gue:6080 csum remcsum", "tunnel 9:80 flags:4"]
    {
        let of = real.with_forwarding_method(method.parse().unwrap());
        let value = serde_json::to_value(of).unwrap();
        assert_eq!(value["config"]["forwarding_method"], json!(method));
        assert_eq!(serde_json::from_value::<RealServer>(value).unwrap(), of);
    }
    let tunnel = Tunnel::new(TunnelKind::Gre, TunnelFlags::CHECKSUM);
    assert_eq!(serde_json::to_value(tunnel).unwrap(), json!("tunnel gre csum"));
    assert_eq!(serde_json::from_value::<Tunnel>(json!("tunnel gre csum")).unwrap(), tunnel);
    let backup = SyncDaemon::new(DaemonState::Backup, "eth0".parse().unwrap(), 7);
    let value = serde_json::to_value(backup).unwrap();
    assert_eq!((&value["state"], &value["interface"]), (&json!("backup"), &json!("eth0")));
    assert_eq!(serde_json::from_value::<SyncDaemon>(value).unwrap(), backup);
    assert_eq!(serde_json::to_value([Family::V4, Family::V6]).unwrap(), json!(["IPv4", "IPv6"]));
    for wrong in ["Masquerade", "tunnel gue", "tunnel gue:0", "8", ""] {
        assert!(serde_json::from_value::<ForwardingMethod>(json!(wrong)).is_err(), "{wrong}");
    }
    for wrong in ["Master", "MASTER", ""] {
        assert!(serde_json::from_value::<DaemonState>(json!(wrong)).is_err(), "{wrong}");
    }
    assert!("masquerade".parse::<Tunnel>().is_err() && "tunnelgre".parse::<Tunnel>().is_err());
}

#[test]
fn a_snapshot_is_looked_into_by_key() {
    let mut client = FakeIpvs::new().client().unwrap();
    let wanted: Ruleset =
        "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m\n-A -u 10.0.0.1:80 -s wrr".parse().unwrap();
    client.sync(&wanted, &SyncPolicy::owning_all()).unwrap().into_result().unwrap();
    let snapshot = client.snapshot().unwrap();
    let at = "10.0.0.1:80".parse().unwrap();
    assert_eq!(snapshot.get(&VirtualServerKey::tcp(at)).unwrap().real_servers.len(), 1);
    let udp = snapshot.get(&VirtualServerKey::udp(at)).unwrap();
    assert_eq!(udp.virtual_server.server.config.scheduler, Scheduler::WeightedRoundRobin);
    assert_eq!(snapshot.get(&VirtualServerKey::sctp(at)), None);
}

#[test]
fn reports_are_compared_and_serialised() {
    let wanted: Ruleset = "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 224.0.0.1:80 -m".parse().unwrap();
    let sync = || FakeIpvs::new().client().unwrap().sync(&wanted, &SyncPolicy::owning_all()).unwrap();
    let report = sync();
    assert_eq!(report, sync());
    assert_ne!(report, ipvs::SyncReport::default());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["done"]["operations"][0]["AddVirtualServer"]["key"], "TCP 10.0.0.1:80");
    assert_eq!(json["stopped"], serde_json::Value::Null);
    let failure = &json["failures"][0];
    assert_eq!(failure["is_consequence"], false);
    let error = &failure["outcome"]["Failed"];
    assert_eq!((&error["kind"], &error["errno"]), (&"Invalid".into(), &22.into()));
    assert!(error["message"].as_str().unwrap().starts_with("adding real server 224.0.0.1:80"), "{error}");
}

#[test]
fn kinds_of_errors_come_back() {
    let range = VirtualServerKey::fwmark(Family::V4, 0).unwrap_err();
    for kind in [
        ErrorKind::Permission,
        ErrorKind::OutOfRange(range.clone()),
        ErrorKind::ModuleMissing(MissingModule::Scheduler(Scheduler::MaglevHashing)),
    ] {
        let text = serde_json::to_string(&kind).unwrap();
        assert_eq!(serde_json::from_str::<ErrorKind>(&text).unwrap(), kind, "{text}");
    }
    for kind in [ipvs::sysctl::ErrorKind::Malformed("x".to_owned()), ipvs::sysctl::ErrorKind::OutOfRange(range)] {
        let text = serde_json::to_string(&kind).unwrap();
        assert_eq!(serde_json::from_str::<ipvs::sysctl::ErrorKind>(&text).unwrap(), kind, "{text}");
    }
    assert_eq!(serde_json::from_str::<ipvs::model::Snapshot>("{}").unwrap(), ipvs::model::Snapshot::default());
    let timeouts: ipvs::model::Timeouts = serde_json::from_str(r#"{"udp_secs": 30}"#).unwrap();
    assert_eq!(timeouts, ipvs::model::Timeouts::new(900, 120, 30));
}
