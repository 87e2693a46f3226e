use ipvs::model::TimeoutsUpdate;
use ipvs::{Operation, RealServer, Scheduler, VirtualServer, VirtualServerKey, Weight};
use proxier_core::ports::PortErrorKind;

use super::{World, at, kinds};

fn server(text: &str) -> VirtualServer {
    VirtualServer::new(VirtualServerKey::tcp(at(text)), Scheduler::RoundRobin)
}

fn real(text: &str) -> RealServer {
    RealServer::new(at(text))
}

pub(crate) fn operations_are_carried_out_in_order(world: &mut impl World) {
    let (one, six) = (server("10.96.0.1:443"), server("[fd00::1]:80"));
    let operations = [
        Operation::AddVirtualServer(one),
        Operation::AddRealServer(one.key, real("10.244.1.1:6443")),
        Operation::AddRealServer(one.key, real("10.244.1.2:6443").with_weight(Weight::DRAIN)),
        Operation::AddVirtualServer(six),
        Operation::AddRealServer(six.key, real("[fd00:1::1]:8080")),
        Operation::DeleteRealServer(one.key, real("10.244.1.1:6443").key),
    ];
    assert_eq!(world.ports().ipvs.run(&operations.each_ref()), [].into());
    assert_eq!(
        world.saved_ipvs(),
        [
            "-A -t 10.96.0.1:443 -s rr",
            "-A -t [fd00::1]:80 -s rr",
            "-a -t 10.96.0.1:443 -r 10.244.1.2:6443 -m -w 0",
            "-a -t [fd00::1]:80 -r [fd00:1::1]:8080 -m -w 1",
        ]
    );
    let snapshot = world.ports().ipvs.snapshot().unwrap();
    let mut found: Vec<_> =
        snapshot.entries.iter().map(|entry| (entry.virtual_server.server.key, entry.real_servers.len())).collect();
    found.sort_unstable();
    let mut wanted = [(one.key, 1), (six.key, 1)];
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    assert_eq!(world.ports().ipvs.run(&[]), [].into());
}

pub(crate) fn a_refused_operation_is_named_and_the_others_go_on(world: &mut impl World) {
    let (one, two, none) = (server("10.96.0.1:80"), server("10.96.0.2:80"), server("10.96.0.3:80"));
    let operations = [
        Operation::AddVirtualServer(one),
        Operation::AddVirtualServer(one),
        Operation::AddRealServer(none.key, real("10.244.1.1:80")),
        Operation::AddRealServer(one.key, real("224.0.0.1:80")),
        Operation::UpdateRealServer(one.key, real("10.244.1.9:80")),
        Operation::DeleteVirtualServer(none.key),
        Operation::AddVirtualServer(two),
    ];
    assert_eq!(
        kinds(&world.ports().ipvs.run(&operations.each_ref())),
        [
            (1, PortErrorKind::AlreadyExists),
            (2, PortErrorKind::NotFound),
            (3, PortErrorKind::Invalid),
            (4, PortErrorKind::NotFound),
            (5, PortErrorKind::NotFound),
        ]
    );
    assert_eq!(world.saved_ipvs(), ["-A -t 10.96.0.1:80 -s rr", "-A -t 10.96.0.2:80 -s rr"]);
}

pub(crate) fn real_servers_of_one_virtual_server(world: &mut impl World) {
    let (one, empty) = (server("10.96.0.1:80"), server("10.96.0.2:80"));
    let setup = [
        Operation::AddVirtualServer(one),
        Operation::AddVirtualServer(empty),
        Operation::AddRealServer(one.key, real("10.244.1.1:80")),
    ];
    let ports = world.ports();
    assert_eq!(ports.ipvs.run(&setup.each_ref()), [].into());
    let found = ports.ipvs.real_servers(&one.key).unwrap();
    assert_eq!(found.iter().map(|found| found.server.key.to_string()).collect::<Vec<_>>(), ["10.244.1.1:80"]);
    assert_eq!(ports.ipvs.real_servers(&empty.key).unwrap(), []);
    let missing = ports.ipvs.real_servers(&server("10.96.0.3:80").key).unwrap_err();
    assert_eq!(missing.kind(), PortErrorKind::NotFound);
}

pub(crate) fn a_thousand_operations(world: &mut impl World) {
    let mut operations = Vec::new();
    for number in 0..500_u16 {
        let [high, low] = number.to_be_bytes();
        let one = server(&format!("10.96.{high}.{low}:80"));
        operations.push(Operation::AddVirtualServer(one));
        operations.push(Operation::AddRealServer(one.key, real(&format!("10.244.{high}.{}:80", low.max(1)))));
    }
    let again = operations[40];
    operations.insert(777, again);
    let operations: Vec<&Operation> = operations.iter().collect();
    assert_eq!(kinds(&world.ports().ipvs.run(&operations)), [(777, PortErrorKind::AlreadyExists)]);
    assert_eq!(world.saved_ipvs().len(), 1000);
}

pub(crate) fn timeouts_are_read_and_set(world: &mut impl World) {
    let ports = world.ports();
    let before = ports.ipvs.timeouts().unwrap();
    ports.ipvs.set_timeouts(&TimeoutsUpdate::new().with_udp_secs(77)).unwrap();
    let after = ports.ipvs.timeouts().unwrap();
    assert_eq!((after.tcp_secs, after.tcp_fin_secs, after.udp_secs), (before.tcp_secs, before.tcp_fin_secs, 77));
}
