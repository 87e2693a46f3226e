//! Cases that only a fake kernel can be brought into: lost answers, no memory, changes in the middle of a dump.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipvs::fake::FakeIpvs;
use ipvs::{
    Batch, Client, ErrorKind, Limits, MissingModule, Operation, Outcome, RealServer, Ruleset, Scheduler, SyncPolicy,
    VirtualServer, VirtualServerKey,
};

use crate::suite::{real, round_robin, tcp, with_server};

const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;

fn patient_for(client: &mut Client, millis: u64) {
    let mut limits = Limits::default();
    limits.timeout = Duration::from_millis(millis);
    client.set_limits(limits);
}

fn at(number: u32) -> SocketAddr {
    (Ipv4Addr::from(0x0a80_0000 + number), 80).into()
}

fn listed(client: &mut Client, key: &VirtualServerKey) -> Result<Vec<SocketAddr>, ipvs::Error> {
    let servers = client.list_real_servers(key)?;
    Ok(servers.iter().map(|item| SocketAddr::new(item.server.key.addr, item.server.key.port)).collect())
}

/// A kernel with one virtual server, and a client of it.
fn served() -> (FakeIpvs, Client, VirtualServerKey) {
    let kernel = FakeIpvs::new();
    let mut client = kernel.client().unwrap();
    let key = with_server(&mut client);
    (kernel, client, key)
}

/// 300 real servers, 299 first.
fn three_hundred(client: &mut Client) -> (VirtualServerKey, Vec<SocketAddr>) {
    let key = with_server(client);
    let batch: Batch = (0..300).map(|number| Operation::AddRealServer(key, RealServer::new(at(number)))).collect();
    assert!(client.run(&batch).is_done());
    (key, (0..300).rev().map(at).collect())
}

#[test]
fn a_kernel_without_ipvs() {
    let kernel = FakeIpvs::new();
    kernel.set_present(false);
    let error = kernel.client().unwrap_err();
    assert_eq!(error.module_missing(), Some(MissingModule::Ipvs));
    assert!(error.to_string().contains("modprobe ip_vs"), "{error}");
}

#[test]
fn the_module_goes_and_comes_back_under_another_number() {
    let (kernel, mut client, key) = served();
    kernel.set_present(false);
    assert_eq!(client.add_virtual_server(&round_robin(key)).unwrap_err().module_missing(), Some(MissingModule::Ipvs));
    assert_eq!(client.snapshot().unwrap_err().module_missing(), Some(MissingModule::Ipvs));
    kernel.set_present(true);
    assert_eq!(client.list_virtual_servers().unwrap(), []);
    kernel.set_present(false);
    kernel.set_present(true);
    let mut batch = Batch::new();
    batch.add_virtual_server(round_robin(key)).add_real_server(key, real("10.1.0.1:80"));
    let report = client.run(&batch);
    assert!(report.is_done(), "{report:?}");
    assert_eq!(kernel.snapshot().unwrap().entries[0].real_servers.len(), 1);
}

#[test]
fn without_the_capability_everything_is_refused() {
    let (kernel, mut client, key) = served();
    kernel.set_permitted(false);
    assert!(client.list_virtual_servers().unwrap_err().is_permission());
    assert!(client.info().unwrap_err().is_permission());
    assert!(client.delete_virtual_server(&key).unwrap_err().is_permission());
    assert!(client.list_daemons().unwrap_err().is_permission());
    assert_eq!(kernel.snapshot().unwrap().entries.len(), 1);
}

#[test]
fn no_memory() {
    let (kernel, mut client, key) = served();
    let server = round_robin(tcp("10.0.0.2:80"));
    kernel.refuse(0, ENOMEM);
    assert_eq!(*client.add_virtual_server(&server).unwrap_err().kind(), ErrorKind::OutOfMemory);
    kernel.refuse(0, ENOMEM);
    assert_eq!(*client.add_real_server(&key, &real("10.1.0.1:80")).unwrap_err().kind(), ErrorKind::OutOfMemory);
    kernel.refuse(0, EBUSY);
    let error = client.add_virtual_server(&server).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (&ErrorKind::Other, Some(EBUSY)));
    client.add_virtual_server(&server).unwrap();
}

#[test]
fn one_refusal_in_a_batch_is_that_operations() {
    let (kernel, mut client, key) = served();
    kernel.refuse(200, ENOMEM);
    let batch: Batch = (0..400).map(|number| Operation::AddRealServer(key, RealServer::new(at(number)))).collect();
    let report = client.run(&batch);
    let failed: Vec<usize> = report.failures().map(|(index, _)| index).collect();
    assert_eq!(failed, [200]);
    assert_eq!(kernel.snapshot().unwrap().entries[0].real_servers.len(), 399);
}

#[test]
fn without_ipv6_in_the_kernel() {
    let kernel = FakeIpvs::new();
    kernel.set_ipv6(false);
    let mut client = kernel.client().unwrap();
    let error = client.add_virtual_server(&round_robin(tcp("[fd00::1]:80"))).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::FamilyUnsupported);
    assert!(error.to_string().contains("CONFIG_IP_VS_IPV6"), "{error}");
}

#[test]
fn without_the_loopback_there_are_no_routes() {
    let kernel = FakeIpvs::new();
    kernel.set_loopback(false);
    let mut client = kernel.client().unwrap();
    let key = with_server(&mut client);
    let error = client.add_real_server(&key, &real("10.1.0.1:80")).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`lo`"), "{error}");
    kernel.set_loopback(true);
    client.add_real_server(&key, &real("10.1.0.1:80")).unwrap();
}

#[test]
fn modules_come_and_go() {
    let kernel = FakeIpvs::new();
    let mut client = kernel.client().unwrap();
    kernel.remove_module("ip_vs_rr");
    let server = round_robin(tcp("10.0.0.1:80"));
    let missing = client.add_virtual_server(&server).unwrap_err().module_missing();
    assert_eq!(missing, Some(MissingModule::Scheduler(Scheduler::RoundRobin)));
    kernel.add_module("ip_vs_rr");
    client.add_virtual_server(&server).unwrap();
    kernel.add_module("ip_vs_own");
    let own = ipvs::VirtualServer::new(server.key, "own".parse().unwrap());
    client.update_virtual_server(&own).unwrap();
    assert_eq!(client.get_virtual_server(&server.key).unwrap().server, own);
}

#[test]
fn counters_stay_while_the_kernel_remembers() {
    let (kernel, mut client, key) = served();
    let server = real("10.1.0.1:80");
    let count = |client: &mut Client| client.get_real_server(&key, &server.key).unwrap().stats.connections;
    client.add_real_server(&key, &server).unwrap();
    assert!(kernel.set_counters(&key, Some((&server.key, 3, 1)), 77, 1 << 40));
    let observed = client.get_real_server(&key, &server.key).unwrap();
    assert_eq!((observed.active_connections, observed.inactive_connections), (3, 1));
    assert_eq!((observed.stats.connections, observed.stats.bytes_in), (77, 1 << 40));
    // Removed and added again: with its counters; after two minutes, or under a new virtual server: without.
    client.delete_real_server(&key, &server.key).unwrap();
    client.add_real_server(&key, &server).unwrap();
    assert_eq!(count(&mut client), 77);
    client.delete_real_server(&key, &server.key).unwrap();
    kernel.forget_removed();
    client.add_real_server(&key, &server).unwrap();
    assert_eq!(count(&mut client), 0);
    kernel.set_counters(&key, Some((&server.key, 0, 0)), 77, 0);
    client.delete_virtual_server(&key).unwrap();
    client.add_virtual_server(&round_robin(key)).unwrap();
    client.add_real_server(&key, &server).unwrap();
    assert_eq!(count(&mut client), 0);
    kernel.set_counters(&key, None, 5, 0);
    assert_eq!(client.get_virtual_server(&key).unwrap().stats.connections, 5);
    client.zero_virtual_server(&key).unwrap();
    assert_eq!(client.get_virtual_server(&key).unwrap().stats.connections, 0);
    assert!(!kernel.set_counters(&tcp("10.0.0.9:80"), None, 1, 1));
}

#[test]
fn a_drain_waits_no_longer_than_it_may() {
    let (kernel, mut client, key) = served();
    let server = real("10.1.0.1:80").with_weight(ipvs::Weight::new(5).unwrap());
    client.add_real_server(&key, &server).unwrap();
    kernel.set_counters(&key, Some((&server.key, 2, 1)), 3, 0);
    let start = std::time::Instant::now();
    let patience = std::time::Duration::from_millis(1500);
    assert_eq!(client.drain_real_server(&key, &server.key, patience).unwrap(), 3);
    assert!(start.elapsed() >= patience);
    assert_eq!(client.list_real_servers(&key).unwrap(), []);
    // Connections that have ended meanwhile.
    client.add_real_server(&key, &server).unwrap();
    kernel.set_counters(&key, Some((&server.key, 0, 4)), 3, 0);
    let other = kernel.clone();
    let (of, real) = (key, server.key);
    let ends = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        other.set_counters(&of, Some((&real, 0, 0)), 3, 0)
    });
    assert_eq!(client.drain_real_server(&key, &server.key, std::time::Duration::from_secs(600)).unwrap(), 0);
    assert!(ends.join().unwrap());
    // A refusal is one.
    client.add_real_server(&key, &server).unwrap();
    kernel.set_permitted(false);
    assert!(client.drain_step(&key, &server.key, true).is_err());
}

#[test]
fn a_socket_that_misbehaves() {
    let kernel = FakeIpvs::new();
    let (mut client, faults) = kernel.client_with_faults().unwrap();
    patient_for(&mut client, 50);
    let (key, servers) = three_hundred(&mut client);
    {
        let mut faults = faults.lock().unwrap();
        (faults.interrupted_dumps, faults.signals, faults.noise) = (3, 2, true);
    }
    assert_eq!(listed(&mut client, &key).unwrap(), servers);
    faults.lock().unwrap().truncated = 2;
    assert_eq!(listed(&mut client, &key).unwrap(), servers);
    faults.lock().unwrap().no_buffers = 1;
    assert_eq!(listed(&mut client, &key).unwrap(), servers);
    faults.lock().unwrap().interrupted_dumps = 1000;
    assert_eq!(*listed(&mut client, &key).unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(*client.snapshot().unwrap_err().kind(), ErrorKind::Interrupted);
    faults.lock().unwrap().interrupted_dumps = 0;
    faults.lock().unwrap().lose_end = true;
    assert_eq!(*listed(&mut client, &key).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn lost_answers_are_not_taken_for_success() {
    let kernel = FakeIpvs::new();
    let (mut client, faults) = kernel.client_with_faults().unwrap();
    patient_for(&mut client, 20);
    let key = with_server(&mut client);
    faults.lock().unwrap().lost = 1;
    let error = client.add_virtual_server(&round_robin(tcp("10.0.0.2:80"))).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Timeout);
    assert_eq!(kernel.snapshot().unwrap().entries.len(), 2, "the kernel had done it");
    let batch: Batch = (0..300).map(|number| Operation::AddRealServer(key, RealServer::new(at(number)))).collect();
    faults.lock().unwrap().no_buffers = 1;
    let report = client.run(&batch);
    assert_eq!(*report.stopped.as_ref().unwrap().kind(), ErrorKind::StateUnknown);
    let unknown = report.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Unknown)).count();
    let not_sent = report.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::NotSent)).count();
    assert!(unknown > 0 && unknown + not_sent == 300, "{unknown} unknown, {not_sent} not sent");
    let there = kernel.snapshot().unwrap().entries.iter().map(|entry| entry.real_servers.len()).sum::<usize>();
    assert_eq!(there, unknown);
}

/// One real server goes away after the first 80 were read: without a second look the 81st would be missing.
#[test]
fn a_change_in_the_middle_of_a_list() {
    let kernel = FakeIpvs::new();
    let mut client = kernel.client().unwrap();
    let (key, servers) = three_hundred(&mut client);
    kernel.change_during_dumps(1, move |table| {
        table.apply(&Operation::DeleteRealServer(key, at(299).into())).unwrap();
    });
    assert_eq!(listed(&mut client, &key).unwrap(), servers[1..]);
    // One is added: without a second look the 80th would be there twice.
    kernel.change_during_dumps(1, move |table| {
        table.apply(&Operation::AddRealServer(key, RealServer::new(at(299)))).unwrap();
    });
    assert_eq!(listed(&mut client, &key).unwrap(), servers);
}

#[test]
fn a_table_that_never_rests_gives_no_list() {
    let kernel = FakeIpvs::new();
    let mut client = kernel.client().unwrap();
    let (key, _) = three_hundred(&mut client);
    let mut next = 1000;
    kernel.change_during_dumps(u32::MAX, move |table| {
        table.apply(&Operation::AddRealServer(key, RealServer::new(at(next)))).unwrap();
        next += 1;
    });
    assert_eq!(*listed(&mut client, &key).unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn a_virtual_server_that_comes_during_a_snapshot_is_in_it() {
    let kernel = FakeIpvs::new();
    let mut client = kernel.client().unwrap();
    let keys: Vec<VirtualServerKey> = (0..10).map(|number| VirtualServerKey::tcp(at(number))).collect();
    let batch: Batch = keys[..9].iter().map(|key| Operation::AddVirtualServer(round_robin(*key))).collect();
    assert!(client.run(&batch).is_done());
    let late = keys[9];
    kernel.change_before(5, move |table| {
        table.apply(&Operation::AddVirtualServer(round_robin(late))).unwrap();
        table.apply(&Operation::AddRealServer(late, RealServer::new(at(99)))).unwrap();
    });
    let snapshot = client.snapshot().unwrap();
    assert_eq!(snapshot.entries.len(), 10);
    let entry = snapshot.entries.iter().find(|entry| entry.virtual_server.server.key == late).unwrap();
    assert_eq!(entry.real_servers.len(), 1);
    // And one that goes is not.
    kernel.change_before(3, move |table| {
        table.apply(&Operation::DeleteVirtualServer(late)).unwrap();
    });
    assert_eq!(client.snapshot().unwrap().entries.len(), 9);
}

#[test]
fn a_snapshot_of_a_table_that_never_rests_is_an_error() {
    let (kernel, mut client, _) = served();
    let mut next = 0;
    kernel.change_during_dumps(u32::MAX, move |table| {
        table.apply(&Operation::AddVirtualServer(round_robin(VirtualServerKey::udp(at(next))))).unwrap();
        next += 1;
    });
    assert_eq!(*client.snapshot().unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn the_table_as_text() {
    let kernel = FakeIpvs::new();
    let text = "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 3\n-A -u 10.0.0.1:53 -s wlc -p 300\n";
    kernel.load(text).unwrap();
    assert_eq!(kernel.dump().unwrap(), text);
    let mut client = kernel.client().unwrap();
    let key = tcp("10.0.0.1:80");
    assert_eq!(client.get_real_server(&key, &real("10.1.0.1:8080").key).unwrap().server.config.weight.get(), 3);
    client.delete_virtual_server(&key).unwrap();
    assert_eq!(kernel.dump().unwrap(), "-A -u 10.0.0.1:53 -s wlc -p 300\n");
    let error = kernel.load("-A -u 10.0.0.1:53 -s rr").unwrap_err().to_string();
    assert!(error.contains("UDP 10.0.0.1:53") && error.contains("EEXIST"), "{error}");
    assert!(kernel.load("-A -t nonsense").is_err());
}

/// Another program adds, and takes away, what a sync is about to: it reads again and writes what is left to do.
#[test]
fn a_sync_beside_another_program_arrives() {
    let kernel = FakeIpvs::new();
    let mut client = kernel.client().unwrap();
    let (late, gone) = (tcp("10.0.0.1:80"), tcp("10.0.0.2:80"));
    client.add_virtual_server(&round_robin(gone)).unwrap();
    let mut wanted = Ruleset::new();
    wanted.push(round_robin(late), [real("10.1.0.1:80")]);
    // A snapshot of one virtual server is three messages.
    kernel.change_before(3, move |table| {
        table.apply(&Operation::AddVirtualServer(round_robin(late))).unwrap();
        table.apply(&Operation::AddRealServer(late, real("10.1.0.2:80"))).unwrap();
        table.apply(&Operation::DeleteVirtualServer(gone)).unwrap();
    });
    let done = client.sync(&wanted, &SyncPolicy::owning_all()).unwrap().into_result().unwrap();
    assert_eq!(
        done.to_string(),
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1\n\
         -d -t 10.0.0.1:80 -r 10.1.0.2:80\n"
    );
    assert_eq!(Ruleset::from(&kernel.snapshot().unwrap()), wanted);
}

/// A table that cannot be read is not written.
#[test]
fn a_sync_that_cannot_read_writes_nothing() {
    let (kernel, mut client, key) = served();
    let before = kernel.dump().unwrap();
    kernel.set_permitted(false);
    assert!(client.sync(&Ruleset::new(), &SyncPolicy::owning_all()).unwrap_err().is_permission());
    kernel.set_permitted(true);
    kernel.refuse(1, ENOMEM);
    let error = client.sync(&Ruleset::new(), &SyncPolicy::owning_all()).unwrap_err();
    assert_eq!(error.errno(), Some(ENOMEM), "{error}");
    assert_eq!(kernel.dump().unwrap(), before);
    // A refused write is in the report.
    kernel.refuse(3, ENOMEM);
    let report = client.sync(&Ruleset::new(), &SyncPolicy::owning_all()).unwrap();
    assert!(!report.is_changed());
    assert_eq!(report.failures[0].operation, Operation::DeleteVirtualServer(key));
    assert_eq!(report.into_result().unwrap_err().errno(), Some(ENOMEM));
}

/// `fn main() -> Result<(), Box<dyn Error>>` prints this.
#[test]
fn an_error_is_readable_in_debug_too() {
    let mut client = FakeIpvs::new().client().unwrap();
    let missing = client.add_real_server(&tcp("10.0.0.1:80"), &real("10.1.0.1:80")).unwrap_err();
    assert_eq!(format!("{missing:?}"), missing.to_string());
    let module = VirtualServer::new(tcp("10.0.0.1:80"), "nosuch".parse().unwrap());
    let refused = client.add_virtual_server(&module).unwrap_err();
    for error in [missing, refused] {
        let shown = format!("{error:?} {error:#?}");
        assert!(shown.len() < 500 && !shown.contains('\n'), "{shown}");
        let boxed: Box<dyn std::error::Error> = Box::new(error.clone());
        assert_eq!(format!("{boxed:?}"), error.to_string());
    }
}
