use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use ipvs::model::{Granularity, Persistence};
use ipvs::{Batch, ErrorKind, Operation, Outcome, RealServer, Scheduler, VirtualServer, VirtualServerKey, Weight};

use super::{World, real, round_robin, tcp};

pub(crate) fn failures_in_the_middle(world: &dyn World) {
    let mut client = world.client();
    let (first, second) = (tcp("10.0.0.1:80"), tcp("10.0.0.2:80"));
    let server = real("10.1.0.1:8080");
    let mut batch = Batch::new();
    batch
        .add_virtual_server(round_robin(first))
        .add_virtual_server(round_robin(first))
        .add_real_server(first, server)
        .add_real_server(first, server)
        .add_real_server(second, server)
        .update_real_server(first, real("10.1.0.2:8080"))
        .update_real_server(first, server.with_weight(Weight::new(5).unwrap()))
        .delete_real_server(first, real("10.1.0.3:8080").key)
        .delete_virtual_server(second)
        .update_virtual_server(round_robin(second))
        .add_virtual_server(round_robin(second))
        .update_virtual_server(VirtualServer::new(second, Scheduler::SourceHashing));
    batch.push(Operation::ZeroVirtualServer(first));
    batch.push(Operation::ZeroVirtualServer(tcp("10.0.0.3:80")));
    batch.add_virtual_server(VirtualServer::new(tcp("10.0.0.4:80"), "nosuch".parse().unwrap()));
    batch.delete_virtual_server(second).add_virtual_server(round_robin(tcp("10.0.0.5:80")));
    let report = client.run(&batch);
    assert!(!report.is_done());
    assert!(report.stopped.is_none());
    let kinds: Vec<Option<ErrorKind>> =
        report.outcomes.iter().map(|outcome| outcome.error().map(|error| error.kind().clone())).collect();
    let module = ErrorKind::ModuleMissing(ipvs::MissingModule::Scheduler("nosuch".parse().unwrap()));
    assert_eq!(
        kinds,
        [
            None,
            Some(ErrorKind::VirtualServerExists),
            None,
            Some(ErrorKind::RealServerExists),
            Some(ErrorKind::VirtualServerNotFound),
            Some(ErrorKind::RealServerNotFound),
            None,
            Some(ErrorKind::RealServerNotFound),
            Some(ErrorKind::VirtualServerNotFound),
            Some(ErrorKind::VirtualServerNotFound),
            None,
            None,
            None,
            Some(ErrorKind::VirtualServerNotFound),
            Some(module),
            None,
            None,
        ]
    );
    for (outcome, operation) in report.outcomes.iter().zip(batch.operations()) {
        let done = outcome.is_done();
        assert!(done || outcome.error().is_some_and(|error| error.subject() == operation.subject()), "{operation}");
    }
    assert_eq!(report.failures().count(), 9);
    assert_eq!(report.into_result().unwrap_err().kind(), &ErrorKind::VirtualServerExists);
    world.expect(&["-A -t 10.0.0.1:80 -s rr", "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 5", "-A -t 10.0.0.5:80 -s rr"]);
}

pub(crate) fn impossible_operations_keep_their_place(world: &dyn World) {
    let mut client = world.client();
    let impossible = round_robin(tcp("[fd00::1]:80"))
        .with_persistence(Persistence::new(300).with_granularity(Granularity::Prefix(0)));
    let key = tcp("10.0.0.1:80");
    let mut batch = Batch::new();
    batch
        .add_virtual_server(impossible)
        .add_virtual_server(round_robin(key))
        .add_virtual_server(impossible)
        .add_virtual_server(round_robin(key))
        .add_real_server(key, real("10.1.0.1:80"))
        .add_virtual_server(impossible);
    let report = client.run(&batch);
    let describe = |outcome: &Outcome| match outcome.error().map(ipvs::Error::kind) {
        None => "done",
        Some(ErrorKind::OutOfRange(_)) => "impossible",
        Some(ErrorKind::VirtualServerExists) => "exists",
        Some(_) => "other",
    };
    let outcomes: Vec<&str> = report.outcomes.iter().map(describe).collect();
    assert_eq!(outcomes, ["impossible", "done", "impossible", "exists", "done", "impossible"]);
    world.expect(&["-A -t 10.0.0.1:80 -s rr", "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1"]);
}

pub(crate) fn a_batch_in_which_everything_fails(world: &dyn World) {
    let mut client = world.client();
    let key = tcp("10.0.0.1:80");
    let absent = |number: u32| real(&format!("10.1.{}.{}:80", number / 250, number % 250 + 1));
    let batch: Batch = (0..3000).map(|number| Operation::AddRealServer(key, absent(number))).collect();
    let report = client.run(&batch);
    assert!(report.stopped.is_none(), "{:?}", report.stopped);
    assert_eq!(report.outcomes.len(), 3000);
    for (operation, outcome) in batch.operations().iter().zip(&report.outcomes) {
        let error = outcome.error().unwrap();
        assert_eq!(*error.kind(), ErrorKind::VirtualServerNotFound);
        assert_eq!(error.subject(), operation.subject());
    }
}

pub(crate) fn refusals_know_what_they_follow_from(world: &dyn World) {
    let mut client = world.client();
    let (bad, good) = (tcp("10.0.0.1:80"), tcp("10.0.0.2:80"));
    let multicast = real("224.0.0.1:80");
    let mut batch = Batch::new();
    batch
        .add_real_server(bad, real("10.1.0.1:80")) // 0: nobody has tried to add the virtual server yet
        .add_virtual_server(VirtualServer::new(bad, "nosuch".parse().unwrap())) // 1
        .add_real_server(bad, real("10.1.0.1:80")) // 2: from 1
        .update_real_server(bad, real("10.1.0.1:80")) // 3: from 1
        .delete_virtual_server(bad) // 4: from 1
        .add_virtual_server(round_robin(good))
        .add_virtual_server(round_robin(good)) // 6: exists
        .add_real_server(good, multicast) // 7: the kernel refuses the address
        .update_real_server(good, multicast) // 8: from 7
        .delete_real_server(good, real("10.1.0.2:80").key) // 9: was never there
        .delete_real_server(bad, multicast.key); // 10: from 1
    let report = client.run(&batch);
    let causes: Vec<(usize, Option<usize>)> =
        report.failures().map(|(index, _)| (index, report.cause(index))).collect();
    assert_eq!(
        causes,
        [
            (0, None),
            (1, None),
            (2, Some(1)),
            (3, Some(1)),
            (4, Some(1)),
            (6, None),
            (7, None),
            (8, Some(7)),
            (9, None),
            (10, Some(1)),
        ]
    );
}

pub(crate) fn a_later_addition_ends_the_blame(world: &dyn World) {
    let mut client = world.client();
    let (key, real) = (tcp("10.0.0.1:80"), real("10.1.0.1:80"));
    let mut batch = Batch::new();
    batch
        .add_virtual_server(VirtualServer::new(key, "nosuch".parse().unwrap())) // 0
        .add_real_server(key, real) // 1: from 0
        .add_virtual_server(round_robin(key))
        .add_real_server(key, real)
        .delete_real_server(key, real.key)
        .update_real_server(key, real) // 5: the last addition of it succeeded
        .delete_virtual_server(key)
        .update_virtual_server(round_robin(key)) // 7: the last addition of it succeeded
        .add_virtual_server(VirtualServer::new(key, "nosuch".parse().unwrap())) // 8
        .delete_virtual_server(key); // 9: from 8
    let report = client.run(&batch);
    let causes: Vec<(usize, Option<usize>)> =
        report.failures().map(|(index, _)| (index, report.cause(index))).collect();
    assert_eq!(causes, [(0, None), (1, Some(0)), (5, None), (7, None), (8, None), (9, Some(8))]);
}

/// Virtual servers with their real servers, in the kernel's order.
fn contents(world: &dyn World) -> BTreeMap<VirtualServerKey, Vec<SocketAddr>> {
    let snapshot = world.client().snapshot().unwrap();
    let count = snapshot.entries.len();
    let contents: BTreeMap<_, _> = snapshot
        .entries
        .into_iter()
        .map(|entry| {
            let at = |server: RealServer| SocketAddr::new(server.key.addr, server.key.port);
            let servers = entry.real_servers.iter().map(|observed| at(observed.server)).collect();
            (entry.virtual_server.server.key, servers)
        })
        .collect();
    assert_eq!(contents.len(), count, "a virtual server was listed twice");
    contents
}

pub(crate) fn a_big_table(world: &dyn World) {
    let mut client = world.client();
    let mut batch = Batch::new();
    let mut expected = BTreeMap::new();
    for number in 0..2000_u32 {
        let at = SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + number / 4), 80));
        let at = SocketAddr::new(at.ip(), 80 + u16::try_from(number % 4).unwrap());
        let key = VirtualServerKey::tcp(at);
        batch.add_virtual_server(round_robin(key));
        let servers: Vec<SocketAddr> =
            (0..5).map(|real| SocketAddr::from((Ipv4Addr::from(0x0a80_0000 + number * 5 + real), 8080))).collect();
        for at in &servers {
            batch.add_real_server(key, RealServer::new(*at));
        }
        expected.insert(key, servers.into_iter().rev().collect::<Vec<_>>());
    }
    let report = client.run(&batch);
    assert!(report.is_done(), "{:?}", report.failures().next());
    assert_eq!(client.list_virtual_servers().unwrap().len(), 2000);
    assert!(contents(world) == expected, "the snapshot is not what was written");
    if let Some(saved) = world.saved() {
        let lines: BTreeSet<&String> = saved.iter().collect();
        assert_eq!((saved.len(), lines.len()), (12_000, 12_000));
        let [first, last] = [(0_u32, 0), (1999, 4)].map(|(number, real)| {
            let (vip, port) = (Ipv4Addr::from(0x0a00_0000 + number / 4), 80 + number % 4);
            let backend = Ipv4Addr::from(0x0a80_0000 + number * 5 + real);
            format!("-a -t {vip}:{port} -r {backend}:8080 -m -w 1")
        });
        assert!(lines.contains(&first) && lines.contains(&last), "{first} {last}");
    }
    let keys: Batch = expected.keys().map(|key| Operation::DeleteVirtualServer(*key)).collect();
    assert!(client.run(&keys).is_done());
    assert_eq!(client.list_virtual_servers().unwrap(), []);
}
