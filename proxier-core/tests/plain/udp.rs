//! UDP flows to forget after each kind of change.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipvs::model::{Protocol, Weight};
use ipvs::{RealServer, VirtualServerKey};
use proptest::prelude::*;
use proxier_core::config::Config;
use proxier_core::modes::ipvs::diff::{Scope, diff};
use proxier_core::modes::ipvs::drain::{Drains, Policy};
use proxier_core::modes::ipvs::index::Recorded;
use proxier_core::modes::ipvs::observed::Observed;
use proxier_core::modes::ipvs::udp;
use proxier_core::ports::UdpServices;
use proxier_core::service::Indexed;
use proxier_core::snapshot::Store;
use serde_json::{Value, json};

use crate::universe;
use crate::world::World;

fn dns(world: &mut World, address: &str) {
    world.service(
        "dns",
        json!({"clusterIP": address, "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ]}),
    );
}

fn endpoints(world: &mut World, numbers: &[u8]) {
    let endpoints: Vec<Value> =
        numbers.iter().map(|number| json!({"addresses": [format!("10.244.0.{number}")]})).collect();
    world.slice_object(json!({
        "metadata": {"namespace": "demo", "name": "dns-1", "labels": {"kubernetes.io/service-name": "dns"}},
        "addressType": "IPv4",
        "ports": [{"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": "dns-tcp", "port": 5353}],
        "endpoints": endpoints,
    }));
}

/// Flows to forget on the way from the kernel's state to the wanted one; updates `observed`.
fn step(world: &World, observed: &mut Observed, drains: &Drains) -> UdpServices {
    let plan = diff(&world.wanted(), observed, drains, Scope::All, &world.config);
    observed.apply(&plan, &world.wanted());
    udp::stale(&plan, &world.wanted(), drains)
}

fn place(address: &str, endpoints: &[u8]) -> UdpServices {
    let endpoints = endpoints.iter().map(|number| SocketAddr::from(([10, 244, 0, *number], 5353)));
    UdpServices::from([(address.parse().unwrap(), endpoints.collect())])
}

/// A change of configuration alone makes no flow stale.
#[test]
fn another_scheduler() {
    let (mut world, mut observed, drains) = (World::new(), Observed::new(), Drains::default());
    dns(&mut world, "10.96.0.10");
    endpoints(&mut world, &[1]);
    step(&world, &mut observed, &drains);
    world.config.ipvs.scheduler = ipvs::Scheduler::LeastConnection;
    world.restart();
    assert!(!diff(&world.wanted(), &observed, &drains, Scope::All, &world.config).is_empty());
    assert_eq!(step(&world, &mut observed, &drains), UdpServices::new());
}

/// Draining endpoints go on answering if UDP drains too: before and after they are known to drain.
#[test]
fn draining_endpoints_answer() {
    let (mut world, mut observed) = (World::new(), Observed::new());
    let mut policy = Policy::default();
    policy.protocols.insert(Protocol::Udp);
    let mut drains = Drains::new(policy);
    dns(&mut world, "10.96.0.10");
    endpoints(&mut world, &[1, 2]);
    step(&world, &mut observed, &drains);

    endpoints(&mut world, &[2]);
    let plan = diff(&world.wanted(), &observed, &drains, Scope::All, &world.config);
    assert!(!plan.is_empty());
    assert_eq!(udp::stale(&plan, &world.wanted(), &drains), UdpServices::new(), "it is going to drain");
    let key: VirtualServerKey = "UDP 10.96.0.10:53".parse().unwrap();
    let one: SocketAddr = "10.244.0.1:5353".parse().unwrap();
    drains.begin(key, one.into(), None, std::time::Duration::ZERO);
    assert_eq!(udp::all(&world.wanted(), &drains), place("10.96.0.10:53", &[1, 2]));

    endpoints(&mut world, &[3]);
    // Endpoint 1 drains in the kernel as well; endpoint 2 was deleted by another program; so 3 is the first one.
    let draining = RealServer::new(one).with_weight(Weight::DRAIN);
    let server = ipvs::VirtualServer { key, config: observed.virtual_servers[&key].config };
    observed.insert(&server, [draining]);
    let plan = diff(&world.wanted(), &observed, &drains, Scope::All, &world.config);
    assert_eq!(udp::stale(&plan, &world.wanted(), &drains), place("10.96.0.10:53", &[1, 3]));

    drains.forget(&key, &one.into());
    let answering = udp::answering(&key, &world.wanted(), &drains);
    assert_eq!(udp::udp_address(&key).map(|at| (at, answering)), place("10.96.0.10:53", &[3]).into_iter().next());
    world.delete_service("dns");
    drains.begin(key, one.into(), None, std::time::Duration::ZERO);
    assert_eq!(step(&world, &mut observed, &drains), place("10.96.0.10:53", &[]), "nobody answers for what is deleted");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Exactly the flows that no endpoint may answer are forgotten, from any state to any other, and only addresses and ports with such flows are
    /// named.
    #[test]
    fn no_stale_flow_is_missed(before in universe::events(), after in universe::events()) {
        let reach = |events: &[universe::Event]| {
            let mut store = Store::new("node-a");
            for event in events {
                universe::happen(&mut store, event);
            }
            Indexed::build(&store, &universe::facts(), Recorded::new(universe::facts().config()))
        };
        let (before, after, drains) = (reach(&before), reach(&after), Drains::default());
        let (before, after) = (before.wanted(), after.wanted());
        let config = Config::default();
        let mut observed = Observed::new();
        observed.apply(&diff(&before, &observed, &drains, Scope::All, &config), &before);
        let plan = diff(&after, &observed, &drains, Scope::All, &config);
        let stale = udp::stale(&plan, &after, &drains);
        let (old, new) = (udp::all(&before, &drains), udp::all(&after, &drains));
        let nobody = BTreeSet::new();
        // Endpoints that serve and were not selected have no flows.
        let held = |place: &SocketAddr| -> BTreeSet<SocketAddr> {
            let servers = observed.virtual_servers.iter().filter(|(key, _)| udp::udp_address(key) == Some(*place));
            let real = servers.flat_map(|(_, server)| server.real_servers.iter());
            real.map(|real| SocketAddr::new(real.key.addr, real.key.port)).collect()
        };
        for place in old.keys() {
            let left = new.get(place).unwrap_or(&nobody);
            let lost = !held(place).is_subset(left) || !new.contains_key(place);
            prop_assert!(!lost || stale.get(place) == Some(left), "{}", place);
        }
        for (place, endpoints) in &new {
            let first = old.get(place).is_none_or(|old| old.is_empty() && !endpoints.is_empty());
            prop_assert!(!first || stale.get(place) == Some(endpoints), "{}", place);
        }
        for (place, endpoints) in &stale {
            prop_assert_eq!(endpoints, new.get(place).unwrap_or(&nobody));
            prop_assert!(old.get(place) != new.get(place));
        }
        let keys = after.servers().map(|server| server.key);
        prop_assert_eq!(new.len(), keys.filter(|key| udp::udp_address(key).is_some()).count());
    }
}
