//! Objects that a list lacks all at once, in every mode: they are doubted, and what they serve stays. What an event deletes goes.

use std::collections::BTreeSet;
use std::time::Duration;

use proxier_core::engine::Options;
use proxier_core::modes::Kind;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::safeguard::MassRemoval;
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use serde_json::json;

use crate::every_way::state;
use crate::node::{Node, kernel, options_of, service, slice};

type Objects = (Vec<ServiceObject>, Vec<EndpointSliceObject>);

const COUNT: u8 = 20;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A Service of its own network, with a slice of that. Some need rules or chains that no other one needs.
fn stall(number: u8) -> (ServiceObject, EndpointSliceObject) {
    let mut spec = json!({"clusterIP": format!("10.96.0.{number}")});
    let first = if number.is_multiple_of(2) { "1@node-a" } else { "1" };
    let endpoints = [first, "2", "3", "4", "5"].map(|last| format!("10.244.{number}.{last}"));
    let count = match number {
        19 => {
            spec["sessionAffinity"] = "ClientIP".into();
            3
        }
        20 => {
            let ports =
                json!([{"name": "p", "port": 80, "nodePort": 30080}, {"name": "u", "port": 53, "protocol": "UDP"}]);
            let more = json!({"type": "LoadBalancer", "ports": ports, "loadBalancerSourceRanges": ["198.51.100.0/24"],
                "externalIPs": ["203.0.113.1"], "status": {"loadBalancer": {"ingress": [{"ip": "198.18.0.1"}]}}});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            5
        }
        _ => 2,
    };
    let endpoints: Vec<&str> = endpoints[..count].iter().map(String::as_str).collect();
    let name = format!("s{number}");
    (service(&name, spec), slice(&name, &endpoints))
}

fn stalls(numbers: impl IntoIterator<Item = u8>) -> Objects {
    numbers.into_iter().map(stall).unzip()
}

/// A second slice of a Service.
fn another(number: u8) -> EndpointSliceObject {
    let mut slice = slice(&format!("s{number}"), &["10.244.99.1", "10.244.99.2"]);
    slice.metadata.name.push_str("-new");
    slice
}

fn key_of(object: &ServiceObject) -> ObjectKey {
    ObjectKey::of(&object.metadata)
}

impl Node {
    fn begins(mode: Options, objects: &Objects) -> Self {
        Node::begin(&kernel(), mode).knowing(objects)
    }

    fn knowing(mut self, (services, slices): &Objects) -> Self {
        self.proxier.replace_objects(services, slices, self.now);
        self.started()
    }

    /// All of these, or most, are lost; the pass that follows keeps them.
    fn loses(&mut self, (services, slices): (&[ServiceObject], &[EndpointSliceObject])) {
        for service in services {
            self.proxier.lose(ObjectKind::Service, &key_of(service), self.now);
        }
        for slice in slices {
            self.proxier.lose(ObjectKind::EndpointSlice, &ObjectKey::of(&slice.metadata), self.now);
        }
    }

    fn gets(&mut self, (services, slices): (&[ServiceObject], &[EndpointSliceObject])) {
        for service in services {
            self.proxier.upsert_service(service, self.now);
        }
        for slice in slices {
            self.proxier.upsert_slice(slice, self.now);
        }
    }

    /// Everything that is due in this time is done, and something is held back all the time.
    #[track_caller]
    fn holds_for(&mut self, time: Duration) {
        let reports = self.run(time);
        assert!(reports.iter().all(|report| report.stopped.is_some() && !report.has_failed()), "{reports:#?}");
    }

    /// The kernel has what it has on a node that knows these objects and never knew others.
    #[track_caller]
    fn serves_like(&self, objects: &Objects, what: &str) {
        let mut alone = Node::begins(options_of(self.proxier.mode()), objects);
        alone.settle();
        let (found, wanted) = (state(&self.kernel), state(&alone.kernel));
        let [missing, more] = [wanted.difference(&found), found.difference(&wanted)].map(Iterator::collect::<Vec<_>>);
        assert!(missing.is_empty() && more.is_empty(), "{}, {what}: {missing:#?}\nmore {more:#?}", self.proxier.mode());
    }

    fn held_back(&self) -> usize {
        self.proxier.held().count()
    }
}

/// A node that serves everything, the objects, and the state.
fn served(options: Options) -> (Node, Objects, BTreeSet<String>) {
    let all = stalls(1..=COUNT);
    let mut node = Node::begins(options, &all);
    node.settle();
    let state = state(&node.kernel);
    (node, all, state)
}

/// Services and slices come by separate watches: either list may be handled first, and come back first, one object after the other.
#[test]
fn lists_that_are_suddenly_empty_take_nothing_away() {
    let orders = [(true, true), (true, false), (false, true), (false, false)];
    for (mode, (slices_go_first, slices_come_first)) in Kind::ALL.into_iter().flat_map(|of| orders.map(|by| (of, by))) {
        let what = format!("{mode}: slices go first {slices_go_first}, come first {slices_come_first}");
        let (mut node, (services, slices), full) = served(options_of(mode));
        let count = node.proxier.desired().frontends().count();
        for of_slices in [slices_go_first, !slices_go_first] {
            node.loses(if of_slices { (&[], &slices) } else { (&services, &[]) });
            let stopped = node.pass().stopped.unwrap().to_string();
            assert!(stopped.starts_with(&format!("{count} of {count} virtual servers would go or lose")), "{stopped}");
            node.holds_for(secs(65));
            assert_eq!(state(&node.kernel), full, "{what}");
            assert_eq!(node.held_back(), count, "{what}");
        }
        // What is kept serves: the node is healthy, and nothing is retried.
        assert_eq!((node.proxier.schedule().failures(), node.proxier.schedule().pending_since()), (0, None));
        assert_eq!(node.proxier.totals().failed_passes, 0);
        // A new Service comes and goes meanwhile, and one that is doubted gets another slice.
        let new = stalls([30]);
        node.gets((&new.0, &[new.1[0].clone(), another(7)]));
        node.holds_for(secs(31));
        let all = ([&services[..], &new.0].concat(), [&slices[..], &new.1, &[another(7)]].concat());
        node.serves_like(&all, &what);
        node.proxier.delete_service(&key_of(&new.0[0]), node.now);
        node.proxier.delete_slice(&ObjectKey::of(&new.1[0].metadata), node.now);
        node.proxier.delete_slice(&ObjectKey::of(&another(7).metadata), node.now);
        node.holds_for(secs(31));
        node.serves_like(&(services.clone(), slices.clone()), &what);
        for of_slices in [slices_come_first, !slices_come_first] {
            for number in 0..usize::from(COUNT) {
                let one = number..=number;
                node.gets(if of_slices { (&[], &slices[one]) } else { (&services[one], &[]) });
                node.run(secs(1));
            }
            node.serves_like(&(services.clone(), slices.clone()), &what);
        }
        let last = node.run(secs(31)).pop().unwrap();
        assert!(last.is_done() && last.writes() == 0 && node.held_back() == 0, "{what}: {last:#?}");
    }
}

/// A person confirms what is held back at that time, or the input does not change for five minutes.
#[test]
fn doubts_end_when_somebody_confirms_or_with_time() {
    for (mode, patience) in Kind::ALL.into_iter().flat_map(|mode| [(mode, Some(secs(300))), (mode, None)]) {
        let mut options = options_of(mode);
        options.mass_removal.patience = patience;
        let (mut node, all, full) = served(options);
        let what = format!("{patience:?}");
        assert_eq!(node.proxier.confirm_removal(node.now), 0);
        node.loses((&all.0[4..], &all.1[4..]));
        let stopped = node.pass().stopped.unwrap().to_string();
        assert_eq!(stopped.contains("for a while"), patience.is_some(), "{stopped}");
        // Later ones would each seem few.
        node.loses((&all.0[3..4], &all.1[3..4]));
        node.holds_for(secs(199));
        // Another list that lacks them does not begin the time again.
        node.loses((&all.0[3..], &all.1[3..]));
        node.holds_for(if patience.is_some() { secs(100) } else { secs(2_000) });
        assert_eq!(state(&node.kernel), full, "{mode}");
        if patience.is_some() {
            node.settle();
        } else {
            assert_eq!(node.proxier.confirm_removal(node.now), node.proxier.desired().frontends().count() - 3);
            node.settle();
        }
        node.serves_like(&stalls(1..=3), &what);
        // They come back, and are lost again.
        node.gets((&all.0, &all.1));
        node.settle();
        // Objects that are there before anything was done about them are not missing any more.
        node.loses((&all.0, &all.1));
        node.gets((&all.0, &all.1));
        node.settle();
        node.loses((&all.0, &all.1));
        node.holds_for(secs(1));
        assert!(node.proxier.confirm_removal(node.now) > 0);
        node.gets((&all.0, &all.1));
        node.settle();
        node.serves_like(&all, &what);
        node.loses((&all.0, &all.1));
        node.holds_for(secs(10));
        node.serves_like(&all, &what);
        // An event is believed at once, also of what is doubted.
        node.proxier.delete_service(&key_of(&all.0[2]), node.now);
        node.holds_for(secs(10));
        node.serves_like(&stalls((1..=COUNT).filter(|number| *number != 3)), &what);
        assert!(node.proxier.confirm_removal(node.now) > 0);
        // What was confirmed is not doubted again.
        node.loses((&all.0, &all.1));
        node.settle();
        node.serves_like(&stalls([]), &what);
        assert_eq!(node.held_back(), 0);
    }
}

/// Services without endpoints are missed too. Another one may have a missing one's external IP, but not its cluster IP or
/// node port: then the missing one goes at once.
#[test]
fn an_address_that_others_may_have_replaces_no_missing_service() {
    let cluster_ip = json!({"clusterIP": "10.96.0.20"});
    let ports = json!([{"name": "p", "port": 81, "nodePort": 30080}]);
    let node_port = json!({"type": "NodePort", "clusterIP": "10.96.1.2", "ports": ports});
    for (mode, claim) in Kind::ALL.into_iter().flat_map(|mode| [(mode, &cluster_ip), (mode, &node_port)]) {
        let (services, slices) = stalls(1..=COUNT);
        let mut node = Node::begins(options_of(mode), &(services.clone(), Vec::new()));
        node.settle();
        node.loses((&services, &[]));
        node.holds_for(secs(31));
        node.service("other", json!({"clusterIP": "10.96.1.1", "externalIPs": ["203.0.113.1"]}));
        node.holds_for(secs(31));
        let is_there = |node: &Node, name: &str| node.proxier.store().service(&ObjectKey::new("demo", name)).is_some();
        assert!(is_there(&node, "s20"), "{mode}, {claim}");
        // Of its slices, the missing one goes with it.
        node.gets((&[], &[slices[19].clone(), another(20)]));
        node.loses((&[], &slices[19..]));
        node.holds_for(secs(31));
        node.service("another", claim.clone());
        let report = node.pass();
        assert!(report.stopped.is_some() && report.applied.failures.is_empty(), "{mode}, {claim}: {report:#?}");
        assert!(!is_there(&node, "s20") && is_there(&node, "s19"), "{mode}, {claim}");
        let s20 = ObjectKey::new("demo", "s20");
        let left = node.proxier.store().slices_of(&s20).map(|slice| slice.key.name());
        assert_eq!(left.collect::<Vec<_>>(), ["s20-1-new"], "{mode}, {claim}");
    }
}

/// A list that breaks off again and again has not said anything about its last page, however long that takes.
#[test]
fn what_is_missing_stays_while_the_next_list_is_incomplete() {
    for mode in Kind::ALL {
        let (mut node, all, _) = served(options_of(mode));
        node.loses((&all.0, &[]));
        node.proxier.list_begins(ObjectKind::Service);
        node.run(secs(200));
        node.gets((&all.0[..8], &[]));
        node.run(secs(400));
        node.serves_like(&all, "ten minutes, but no complete list");
        node.proxier.list_ends(ObjectKind::Service);
        node.run(secs(60));
        node.serves_like(&stalls(1..=8), "the list is complete");
    }
}

/// Few that are missing, and other objects in place of these, are no empty list; nor is what events say.
#[test]
fn what_is_believed_goes_at_once() {
    let others = stalls(40..=70);
    for mode in Kind::ALL {
        let (mut node, all, _) = served(options_of(mode));
        node.loses((&all.0[..4], &all.1[4..9]));
        assert_eq!(node.settles().stopped, None, "{mode}");
        node.settle();
        let mut few = (all.0[4..].to_vec(), all.1[9..].to_vec());
        node.serves_like(&few, "few are missing");
        // All endpoints go, and their slices show it.
        few.1.iter_mut().for_each(|slice| slice.endpoints.clear());
        node.gets((&[], &few.1));
        assert_eq!(node.settles().stopped, None, "{mode}");
        node.settle();
        node.serves_like(&few, "no endpoints");
        node.proxier.replace_objects(&others.0, &others.1, node.now);
        assert_eq!(node.settles().stopped, None, "{mode}");
        node.settle();
        node.serves_like(&others, "others");
        for service in &others.0 {
            node.proxier.delete_service(&key_of(service), node.now);
        }
        assert_eq!(node.settles().stopped, None, "{mode}");
        node.settle();
        node.serves_like(&stalls([]), "each was deleted by an event");
        // A small cluster may lose its last Service.
        let small = stalls(1..=9);
        node.gets((&small.0, &small.1));
        node.settle();
        node.loses((&small.0, &small.1));
        assert_eq!(node.settles().stopped, None, "{mode}");
        node.settle();
        node.serves_like(&stalls([]), "nine are few");
    }
}

/// The Services are still there: only the list of slices is empty. It comes back in parts.
#[test]
fn slices_alone_that_are_missing_are_waited_for() {
    for mode in Kind::ALL {
        let (mut node, all, full) = served(options_of(mode));
        node.loses((&[], &all.1));
        node.holds_for(secs(5));
        node.gets((&[], &all.1[..15]));
        node.holds_for(secs(31));
        assert_eq!(state(&node.kernel), full, "{mode}: five are few, but they went with the rest");
        let mut left = all.clone();
        left.1.push(another(20));
        node.gets((&[], &[another(20)]));
        node.holds_for(secs(10));
        node.serves_like(&left, "a new slice counts, in addition to the doubted ones");
        left.1[18].endpoints.clear();
        node.gets((&[], &left.1[18..19]));
        let gone = left.1.remove(17);
        node.proxier.delete_slice(&ObjectKey::of(&gone.metadata), node.now);
        node.holds_for(secs(10));
        node.serves_like(&left, "slices that say that they are empty, or are deleted, are believed");
        node.run(secs(400));
        left.1.drain(15..17);
        left.1.retain(|slice| slice.metadata.name != "s20-1");
        node.serves_like(&left, "after five minutes the rest is believed");
        assert_eq!(node.held_back(), 0);
    }
}

/// The kernel shows what an earlier process served; only sockets end with their process.
#[test]
fn a_new_process_whose_lists_are_empty_takes_nothing_away() {
    let modes = Kind::ALL.into_iter().filter(|mode| *mode != Kind::Userspace);
    for (mode, has_services, end) in modes.flat_map(|mode| (0..6).map(move |case| (mode, case < 3, case % 3))) {
        let what = format!("has Services: {has_services}, end {end}");
        let (node, all, full) = served(options_of(mode));
        let known = if has_services { (all.0.clone(), Vec::new()) } else { (Vec::new(), Vec::new()) };
        let mut next = Node::begin(&node.kernel, options_of(mode)).knowing(&known);
        next.holds_for(secs(65));
        assert_eq!(state(&next.kernel), full, "{mode}, {what}");
        assert_eq!(next.full().writes(), 0, "{mode}, {what}");
        // A new Service is served meanwhile, and one that is there, or comes back, follows its slices.
        let new = stalls([30]);
        next.gets((&[&all.0[2..3], &new.0].concat(), &[another(3), new.1[0].clone()]));
        next.holds_for(secs(31));
        let mut kept = ([&all.0[..], &new.0].concat(), [&all.1[..], &new.1].concat());
        kept.1[2] = another(3);
        next.serves_like(&kept, &what);
        match end {
            0 => {
                next.gets((&all.0, &all.1));
                kept.1.push(all.1[2].clone());
            }
            1 => assert!(next.proxier.confirm_removal(next.now) > 0, "{mode}, {what}"),
            _ => next.now += secs(301),
        }
        next.settle();
        if end > 0 {
            let services = if has_services { all.0 } else { vec![all.0[2].clone()] };
            kept = ([services, new.0].concat(), [new.1, vec![another(3)]].concat());
        }
        next.serves_like(&kept, &what);
        assert_eq!((next.full().writes(), next.held_back()), (0, 0), "{mode}, {what}");
    }
    // A Service whose slices have no endpoints is not doubted, and other Services in place of these are no empty list.
    for mode in [Kind::Ipvs, Kind::Nftables, Kind::Iptables] {
        let (node, mut all, _) = served(options_of(mode));
        all.1.iter_mut().for_each(|slice| slice.endpoints.clear());
        let mut next = Node::begin(&node.kernel, options_of(mode)).knowing(&all);
        next.settle();
        next.serves_like(&all, "no endpoints");
        let others = stalls(40..=70);
        let mut next = Node::begin(&next.kernel, options_of(mode)).knowing(&others);
        next.settle();
        next.serves_like(&others, "others");
    }
}

#[test]
fn the_share_and_the_number_both_count() {
    for (total, gone, at_least, share, stops) in [
        (9, 9, 10, 0.5, false), // nine are few
        (10, 10, 10, 0.5, true),
        (18, 9, 9, 0.5, false), // half is not more than half
        (18, 10, 9, 0.5, true),
        (18, 3, 0, 0.1, true),
        (18, 1, 0, 0.0, true),
        (18, 0, 0, 0.0, false),
        (18, 18, 0, 1.0, false), // switched off
        (18, 1, 0, f64::NAN, true),
        (18, 18, usize::MAX, 0.0, false),
    ] {
        let mut options = Options::default();
        options.mass_removal = MassRemoval { share, remains: 1.0, at_least, patience: None };
        let mut node = Node::begins(options.clone(), &stalls(1..=total));
        node.settles();
        let mut next = Node::begin(&node.kernel, options).knowing(&stalls(gone + 1..=total));
        let what = format!("{gone} of {total}, at least {at_least}, share {share}");
        assert_eq!(next.pass().stopped.is_some(), stops, "{what}");
        assert_eq!(next.served().len(), usize::from(if stops { total } else { total - gone }), "{what}");
    }
}
