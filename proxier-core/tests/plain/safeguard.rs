//! Deletions that the safeguard holds back although the input asks for them, and those that it lets through.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipvs::{Operation, VirtualServerKey};
use proptest::prelude::*;
use proxier_core::config::{Reserved, ReservedPort, User};
use proxier_core::modes::ipvs::diff::{Scope, diff, hold, losing};
use proxier_core::modes::ipvs::drain::{Drains, Policy};
use proxier_core::modes::ipvs::observed::Observed;
use proxier_core::modes::ipvs::plan::Plan;
use proxier_core::net::FrontendKey;
use proxier_core::safeguard::{MassRemoval, Safeguard, Stopped};
use proxier_core::snapshot::ObjectKind;
use proxier_core::time::Moment;
use serde_json::{Value, json};

use crate::world::{World, cluster_ip, endpoint};

fn secs(secs: u64) -> Moment {
    Duration::from_secs(secs)
}

/// A cluster with Services 1 to `count`, each with an endpoint on this node, and a kernel that has them.
fn cluster(count: u8) -> (World, Observed) {
    let mut world = World::new();
    for number in 1..=count {
        add(&mut world, number);
    }
    let mut observed = Observed::new();
    observed.apply(&plan(&world, &observed, Scope::All), &world.wanted());
    (world, observed)
}

/// The plan of a pass in which nothing drains.
fn plan(world: &World, observed: &Observed, scope: Scope<'_>) -> Plan {
    let mut policy = Policy::default();
    policy.protocols.clear();
    diff(&world.wanted(), observed, &Drains::new(policy), scope, &world.config)
}

/// The entries that a plan adds or deletes.
fn entries(plan: &Plan, adds: bool) -> usize {
    let stages = plan.stages.iter().filter(|(phase, _)| phase.adds() == adds);
    stages.flat_map(|(_, stage)| stage.entries.values()).map(BTreeSet::len).sum()
}

/// The addresses that a plan binds or unbinds.
fn addresses(plan: &Plan, adds: bool) -> BTreeSet<IpAddr> {
    let stages = plan.stages.iter().filter(|(phase, _)| phase.adds() == adds);
    stages.flat_map(|(_, stage)| stage.addresses.iter().copied()).collect()
}

/// The virtual servers that a plan changes.
fn servers(plan: &Plan) -> BTreeSet<VirtualServerKey> {
    plan.stages.values().flat_map(|stage| &stage.servers).map(Operation::virtual_server).collect()
}

fn add(world: &mut World, number: u8) {
    let name = format!("s{number}");
    world.service(
        &name,
        json!({
            "type": "LoadBalancer",
            "clusterIP": format!("10.96.0.{number}"),
            "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["203.0.113.0/24"],
            "ports": [{"name": "http", "port": 80, "nodePort": 30_000 + u16::from(number)}],
            "status": {"loadBalancer": {"ingress": [{"ip": format!("192.0.2.{number}")}]}},
        }),
    );
    world.slice(&format!("{name}-1"), &name, json!([endpoint(&format!("10.244.0.{number}"), "node-a")]));
}

fn remove(world: &mut World, numbers: impl IntoIterator<Item = u8>) {
    for number in numbers {
        world.delete_service(&format!("s{number}"));
    }
}

fn keys_of(number: u8) -> Vec<FrontendKey> {
    let texts = [
        format!("TCP 10.96.0.{number}:80"),
        format!("TCP 192.0.2.{number}:80"),
        format!("TCP 192.168.0.10:{}", 30_000 + u16::from(number)),
    ];
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Runs a full pass as the reconciler does: changes that the safeguard stops are held back, the rest is done.
fn pass(safeguard: &mut Safeguard, world: &World, observed: &mut Observed, now: Moment) -> Option<Stopped> {
    let mut changes = plan(world, observed, Scope::All);
    let stopped = safeguard.check(losing(&changes), observed, &world.store, world.wanted().desired(), now);
    if let Some(stopped) = &stopped {
        hold(&stopped.inherited().collect(), &mut changes, observed);
    }
    observed.apply(&changes, &world.wanted());
    stopped
}

fn in_step(world: &World, observed: &Observed) -> bool {
    plan(world, observed, Scope::All).is_empty()
}

#[test]
fn the_share_and_the_number_both_count() {
    for (total, gone, at_least, share, stops) in [
        (3, 3, 10, 0.5, false), // 9 virtual servers are few
        (4, 4, 10, 0.5, true),
        (20, 10, 10, 0.5, false), // half is not more than half
        (20, 11, 10, 0.5, true),
        (20, 3, 0, 0.1, true),
        (20, 1, 0, 0.0, true),
        (20, 0, 0, 0.0, false),
        (20, 20, 0, 1.0, false), // switched off
        (20, 1, 0, f64::NAN, true),
        (20, 20, usize::MAX, 0.0, false),
    ] {
        let (mut world, mut observed) = cluster(total);
        let mut safeguard = Safeguard::new(MassRemoval { share, remains: 1.0, at_least, patience: None });
        remove(&mut world, 1..=gone);
        let stopped = pass(&mut safeguard, &world, &mut observed, secs(0));
        assert_eq!(stopped.is_some(), stops, "{gone} of {total}, at least {at_least}, share {share}");
        assert_eq!(in_step(&world, &observed), !stops);
    }
}

/// A pass for changes neither ends a stop nor deletes a Service that goes missing later.
#[test]
fn small_passes_do_not_nibble() {
    let (mut world, mut observed) = cluster(20);
    let mut safeguard = Safeguard::new(MassRemoval::default());
    remove(&mut world, 1..=12);
    assert!(pass(&mut safeguard, &world, &mut observed, secs(0)).is_some());
    let before = observed.clone();
    let changed = world.delete_service("s13");
    let mut changes = plan(&world, &observed, Scope::Changed(&changed));
    let stopped =
        safeguard.check(losing(&changes), &observed, &world.store, world.wanted().desired(), secs(1)).unwrap();
    assert_eq!((stopped.would_lose, stopped.of), (39, 60));
    hold(&stopped.inherited().collect(), &mut changes, &observed);
    observed.apply(&changes, &world.wanted());
    assert_eq!(observed, before);
    // An unrelated change is carried out; the rest is still held back.
    let changed = world.slice("s20-1", "s20", json!([]));
    let mut changes = plan(&world, &observed, Scope::Changed(&changed));
    let stopped =
        safeguard.check(losing(&changes), &observed, &world.store, world.wanted().desired(), secs(2)).unwrap();
    assert_eq!(stopped.held().count(), 39);
    hold(&stopped.inherited().collect(), &mut changes, &observed);
    observed.apply(&changes, &world.wanted());
    let server = |number| &observed.virtual_servers[&keys_of(number)[0].into()];
    assert_eq!((server(20).real_servers.len(), server(13).real_servers.len()), (0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Services come and go in bulk. Nothing wanted is held back; every held Service keeps all that it needs; everything wanted is served in every
    /// pass; and after the patience the kernel is as wanted.
    #[test]
    fn what_is_held_is_whole_and_nothing_else_is_held(
        steps in prop::collection::vec((prop::collection::btree_set(1..30_u8, 0..25), any::<bool>(), 0..200_u64), 1..8),
        share in 0.0..1.0_f64,
        at_least in 0..40_usize,
    ) {
        let (mut world, mut observed) = cluster(25);
        let mut safeguard = Safeguard::new(MassRemoval { share, remains: 1.0, at_least, patience: Some(secs(300)) });
        let mut now = secs(0);
        for (numbers, goes, waits) in steps {
            now += secs(waits);
            for number in numbers {
                if goes { remove(&mut world, [number]) } else { add(&mut world, number) }
            }
            let before = observed.clone();
            let stopped = pass(&mut safeguard, &world, &mut observed, now);
            let held: BTreeSet<VirtualServerKey> =
                stopped.iter().flat_map(Stopped::held).map(VirtualServerKey::from).collect();
            for key in &held {
                prop_assert!(!world.wanted().has_server(key));
                prop_assert_eq!(observed.virtual_servers.get(key), before.virtual_servers.get(key));
                prop_assert!(observed.owns(key));
            }
            for (key, wanted) in world.wanted().servers() {
                let server = &observed.virtual_servers[&key];
                prop_assert_eq!(&server.real_servers, &wanted.real_servers);
            }
            prop_assert_eq!(observed.virtual_servers.len(), world.wanted().servers().count() + held.len());
            // Only held deletions are left to do, and no wanted entry or address is missing.
            let rest = plan(&world, &observed, Scope::All);
            prop_assert_eq!(servers(&rest), held.clone());
            prop_assert!(entries(&rest, true) == 0 && addresses(&rest, true).is_empty());
            if held.is_empty() {
                prop_assert!(entries(&rest, false) == 0 && addresses(&rest, false).is_empty());
            }
            prop_assert!(stopped.is_none_or(|stopped| stopped.until.is_some_and(|until| until <= now + secs(300))));
        }
        pass(&mut safeguard, &world, &mut observed, now + secs(300));
        prop_assert!(in_step(&world, &observed));
    }

    /// Interfaces get and lose Services' addresses while Services come and go. An address that another interface has is served, never bound then, and
    /// never unbound while a Service wants it; comparing only changes gives the same as comparing everything.
    #[test]
    fn an_address_of_another_interface_is_left_alone(
        steps in prop::collection::vec((1..4_u8, 0..4_u8), 1..40),
    ) {
        let mut world = World::new();
        let mut observed = Observed::new();
        observed.apply(&plan(&world, &observed, Scope::All), &world.wanted());
        for (number, what) in steps {
            let address = IpAddr::from([192, 0, 2, number]);
            let eth0 = world.host.interfaces.get_mut("eth0").unwrap();
            let changed = match what {
                0 => { add(&mut world, number); world.refresh_all() }
                1 => world.delete_service(&format!("s{number}")),
                2 => { eth0.push(address); world.refresh_all() }
                _ => { eth0.retain(|of| *of != address); world.refresh_all() }
            };
            let on_eth0: BTreeSet<IpAddr> = world.host.interfaces["eth0"].iter().copied().collect();
            let changes = plan(&world, &observed, Scope::All);
            if what != 0 {
                let small = plan(&world, &observed, Scope::Changed(&changed));
                prop_assert_eq!(&small, &changes);
            }
            prop_assert!(addresses(&changes, true).is_disjoint(&on_eth0));
            let frontends = world.wanted().desired().frontends();
            let wanted: BTreeSet<IpAddr> = frontends.map(|frontend| frontend.key.address).collect();
            let unbound = addresses(&changes, false);
            let unbound: Vec<_> = unbound.intersection(&wanted).collect();
            // A node port is served on an address while the node has it, also after another interface had it.
            prop_assert!(unbound.iter().all(|address| !world.wanted().has_address(**address)
                && !world.wanted().is_elsewhere(**address)));
            observed.apply(&changes, &world.wanted());
            for (key, _) in world.wanted().servers() {
                prop_assert!(observed.virtual_servers.contains_key(&key));
            }
            prop_assert!(in_step(&world, &observed));
        }
    }
}

/// The node's own address is never bound, even for a cluster IP: it would be in KUBE-IPVS-IPS, and its every other port closed.
#[test]
fn the_nodes_own_address_is_served_but_never_bound() {
    let mut world = World::new();
    world.service("odd", json!({"clusterIP": "192.168.0.10", "ports": [{"name": "http", "port": 80}]}));
    let changes = plan(&world, &Observed::new(), Scope::All);
    assert!(servers(&changes).contains(&"TCP 192.168.0.10:80".parse().unwrap()));
    assert!(addresses(&changes, true).is_empty());
}

fn external(address: &str, port: u16) -> Value {
    json!({"clusterIP": "10.96.0.9", "externalIPs": [address], "ports": [{"name": "http", "port": port}]})
}

fn rejected(world: &World) -> Vec<String> {
    world.wanted().desired().rejected().map(|(service, refusal)| format!("{service}: {refusal}")).collect()
}

fn has(world: &World, key: &str) -> bool {
    world.wanted().frontend(&key.parse().unwrap()).is_some()
}

#[test]
fn reserved_places_are_refused() {
    let mut world = World::new();
    world.config.reserved.reserve(ReservedPort::tcp("192.168.0.1".parse().unwrap(), 6443), User::ApiServer);
    for (address, port, user) in [
        ("192.168.0.10", 10250, Some("the kubelet")),
        ("2001:db8:1::10", 10250, None), // the Service has no IPv6
        ("192.168.0.10", 10256, Some("this proxy's health checks")),
        ("192.168.0.10", 10249, Some("this proxy's metrics")),
        ("192.168.0.10", 443, None),
        ("192.168.0.77", 10250, None), // another node's kubelet is not ours to guard
        ("192.168.0.1", 6443, Some("the API server")),
        ("192.168.0.1", 443, None),
    ] {
        world.service("web", external(address, port));
        let key = format!("TCP {}", std::net::SocketAddr::new(address.parse().unwrap(), port));
        let expected: Vec<_> = user
            .iter()
            .map(|user| format!("demo/web: {key}: {user} answers there; not served unless allowed"))
            .collect();
        assert_eq!(rejected(&world), expected);
        assert!(has(&world, &format!("TCP 10.96.0.9:{port}")), "the rest of the Service is served");
        let v4 = !address.contains(':');
        assert_eq!(has(&world, &key), user.is_none() && v4, "{key}");
        assert!(user.is_none() || !world.addresses().contains(&address.to_owned()));
    }
}

#[test]
fn what_is_allowed_is_served() {
    let mut world = World::new();
    world.service("web", external("192.168.0.10", 10250));
    assert_eq!(rejected(&world).len(), 1);
    assert_eq!(world.config.reserved.allow(&ReservedPort::tcp_here(Reserved::KUBELET)), Some(User::Kubelet));
    world.refresh_all();
    assert!(rejected(&world).is_empty());
    assert!(has(&world, "TCP 192.168.0.10:10250"));
    world.config.reserved = Reserved::none();
    world.refresh_all();
    assert!(has(&world, "TCP 192.168.0.10:10250"));
}

/// Pods reach the API server by its own Service, even if a caller reserves the address.
#[test]
fn the_cluster_ip_of_the_api_server_is_never_refused() {
    let mut world = World::new();
    world.config.reserved.reserve(ReservedPort::tcp("10.96.0.1".parse().unwrap(), 443), User::ApiServer);
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]});
    world.service_object(json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": spec}));
    assert!(has(&world, "TCP 10.96.0.1:443"));
    world.service_object(
        json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": external("10.96.0.1", 443)}),
    );
    assert_eq!(rejected(&world).len(), 1);
}

/// Addresses that no Service can have are rejected in every field, in every notation; the rest of the Service is served.
#[test]
fn impossible_addresses() {
    let mut world = World::new();
    let all = "0.0.0.0 :: ::ffff:0.0.0.0 127.0.0.1 ::1 ::ffff:127.0.0.1 224.0.0.1 239.255.255.255 ff02::1 ff0e::1 \
               ::ffff:224.0.0.1 255.255.255.255 ::ffff:255.255.255.255 169.254.1.1 169.254.169.254 fe80::1 febf::1 \
               ::ffff:169.254.1.1";
    for text in all.split(' ') {
        let mut spec = external(text, 80);
        spec["status"] = json!({"loadBalancer": {"ingress": [{"ip": text}]}});
        world.service("web", spec);
        let fields = world.rejected(ObjectKind::Service, "web");
        assert_eq!(fields, ["spec.externalIPs[0]", "status.loadBalancer.ingress[0].ip"], "{text}");
        assert_eq!(world.frontends(), ["TCP 10.96.0.9:80"], "{text}");
        world.service("odd", cluster_ip(text));
        assert_eq!(world.rejected(ObjectKind::Service, "odd"), ["spec.clusterIP"], "{text}");
    }
    let plan = plan(&world, &Observed::new(), Scope::All);
    assert_eq!((addresses(&plan, true).len(), plan.is_empty()), (1, false));
}
