//! Deletions that the safeguard holds back although the input asks for them, and those that it lets through.

use std::time::Duration;

use proxier_core::modes::ipvs::diff::{diff, hold, losing};
use proxier_core::modes::ipvs::drain::{Drains, Policy};
use proxier_core::modes::ipvs::observed::Observed;
use proxier_core::modes::ipvs::plan::Plan;
use proxier_core::modes::ipvs::wanted::{Changed, EVERYTHING};
use proxier_core::safeguard::{MassRemoval, Safeguard, Stopped};
use proxier_core::time::Moment;
use serde_json::json;

use crate::world::{World, endpoint};

fn secs(secs: u64) -> Moment {
    Duration::from_secs(secs)
}

/// A cluster with Services 1 to `count`, each with an endpoint on this node, and a kernel that has them.
fn cluster(count: u8) -> (World, Observed) {
    let mut world = World::new();
    for number in 1..=count {
        add(&mut world, number);
    }
    let mut observed = Observed::default();
    observed.apply(&plan(&world, &observed, &EVERYTHING), &world.wanted());
    (world, observed)
}

/// The plan of a pass in which nothing drains.
fn plan(world: &World, observed: &Observed, changed: &Changed) -> Plan {
    let mut policy = Policy::default();
    policy.protocols.clear();
    diff(&world.wanted(), observed, &Drains::new(policy), changed, &world.config)
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

/// Runs a full pass as the reconciler does: changes that the safeguard stops are held back, the rest is done.
fn pass(safeguard: &mut Safeguard, world: &World, observed: &mut Observed, now: Moment) -> Option<Stopped> {
    let mut changes = plan(world, observed, &EVERYTHING);
    let stopped = safeguard.check(losing(&changes), observed, &world.store, world.wanted().desired(), now);
    if let Some(stopped) = &stopped {
        hold(&stopped.inherited().collect(), &mut changes, observed);
    }
    observed.apply(&changes, &world.wanted());
    stopped
}

fn in_step(world: &World, observed: &Observed) -> bool {
    plan(world, observed, &EVERYTHING).is_empty()
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
