//! An object that cannot be read, when a process starts on a kernel that an earlier one has filled. What may belong to
//! the object stays, and everything else follows the objects as always.

use proxier_core::config::{Binding, RulesBy};
use proxier_core::engine::{Options, Removal};
use proxier_core::fake::FakeKernel;
use proxier_core::modes::Kind;
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use serde_json::{Value, json};

use crate::node::{Node, held, kernel, options_of, same};

/// Every mode in which the kernel serves, in both variants of its guards and bindings.
fn options() -> Vec<Options> {
    let mut all = Vec::new();
    for (mode, rules, binding) in [
        (Kind::Ipvs, RulesBy::Iptables, Binding::Addresses),
        (Kind::Ipvs, RulesBy::Nftables, Binding::Addresses),
        (Kind::Ipvs, RulesBy::Nftables, Binding::Routes),
        (Kind::Nftables, RulesBy::Nftables, Binding::Addresses),
        (Kind::Iptables, RulesBy::Iptables, Binding::Addresses),
    ] {
        let mut options = options_of(mode);
        (options.config.ipvs.rules, options.config.ipvs.binding) = (rules, binding);
        options.config.ipvs.service_cidrs = ["10.96.0.0/12", "fd00::/112"].map(|of| of.parse().unwrap()).into();
        all.push(options);
    }
    all
}

fn name(number: u8) -> String {
    format!("web-{number}")
}

fn service(number: u8) -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": name(number)},
        "spec": {
            "type": "LoadBalancer", "clusterIP": format!("10.96.0.{number}"),
            "clusterIPs": [format!("10.96.0.{number}"), format!("fd00::{number}")], "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": [format!("203.0.113.{number}")], "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "sessionAffinity": if number == 3 { "ClientIP" } else { "None" },
            "ports": [{"name": "p", "port": 80, "nodePort": 30_000 + u32::from(number)},
                {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 31_000 + u32::from(number)}],
        },
    })
}

/// One of the slices of a Service, which has two in each family.
fn slice(number: u8, part: &str) -> Value {
    let (of_v6, second) = (part.starts_with('6'), part.ends_with('b'));
    let prefix = if of_v6 { "fd01::" } else { "10.244.0." };
    json!({
        "metadata": {"namespace": "demo", "name": format!("{}-{part}", name(number)),
            "labels": {"kubernetes.io/service-name": name(number)}},
        "addressType": if of_v6 { "IPv6" } else { "IPv4" },
        "ports": [{"name": "p", "port": 8080}, {"name": "u", "port": 5353, "protocol": "UDP"}],
        "endpoints": [{"addresses": [format!("{prefix}{}{number}", if second { 2 } else { 1 })]}],
    })
}

const PARTS: [&str; 4] = ["4a", "4b", "6a", "6b"];

/// All objects of Services 1 to 3, by kind and name.
fn objects() -> Vec<(ObjectKind, String, Value)> {
    let of = |number| {
        let slices =
            PARTS.map(|part| (ObjectKind::EndpointSlice, format!("{}-{part}", name(number)), slice(number, part)));
        [(ObjectKind::Service, name(number), service(number))].into_iter().chain(slices)
    };
    (1..=3).flat_map(of).collect()
}

/// What cannot be read: these objects, with their names or without, and the Services that slices name.
#[derive(Clone, Copy, Debug)]
struct Damage {
    objects: &'static [(ObjectKind, &'static str)],
    is_named: bool,
}

const DAMAGES: [Damage; 6] = [
    Damage { objects: &[(ObjectKind::Service, "web-2")], is_named: true },
    Damage { objects: &[(ObjectKind::Service, "web-2")], is_named: false },
    Damage { objects: &[(ObjectKind::EndpointSlice, "web-2-4a")], is_named: true },
    Damage {
        objects: &[(ObjectKind::EndpointSlice, "web-2-4a"), (ObjectKind::EndpointSlice, "web-2-4b")],
        is_named: true,
    },
    Damage {
        objects: &[(ObjectKind::EndpointSlice, "web-2-4a"), (ObjectKind::EndpointSlice, "web-2-4b")],
        is_named: false,
    },
    Damage { objects: &[(ObjectKind::Service, "web-2"), (ObjectKind::EndpointSlice, "web-2-6b")], is_named: true },
];

impl Damage {
    fn has(&self, kind: ObjectKind, name: &str) -> bool {
        self.objects.contains(&(kind, name))
    }

    fn note(&self, node: &mut Node) {
        for (kind, name) in self.objects {
            let key = if self.is_named { ObjectKey::new("demo", name) } else { ObjectKey::new("", "") };
            let service =
                (*kind == ObjectKind::EndpointSlice && self.is_named).then(|| ObjectKey::new("demo", "web-2"));
            node.proxier.note_unreadable(*kind, &key, "damaged", service);
        }
    }

    /// They can be read again.
    fn repair(&self, node: &mut Node) {
        for (kind, _) in self.objects.iter().filter(|_| !self.is_named) {
            node.proxier.note_readable(*kind, &ObjectKey::new("", ""), node.now);
        }
        objects()
            .into_iter()
            .filter(|(kind, name, _)| self.has(*kind, name))
            .for_each(|(_, _, object)| node.take(object));
    }
}

/// A new process whose lists are complete, but for objects that cannot be read.
fn next(kernel: &FakeKernel, options: &Options, damage: Option<Damage>) -> Node {
    let mut node = Node::begin(kernel, options.clone());
    for (kind, name, object) in objects() {
        if damage.is_none_or(|damage| !damage.has(kind, &name)) {
            node.take(object);
        }
    }
    if let Some(damage) = damage {
        damage.note(&mut node);
    }
    node.started()
}

/// The kernel after a process to which all could be read, and in which this happened.
fn undamaged(options: &Options, happens: impl FnOnce(&mut Node)) -> FakeKernel {
    let kernel = kernel();
    let mut node = next(&kernel, options, None);
    node.settle();
    happens(&mut node);
    node.settle();
    kernel
}

/// Service 1 loses an endpoint in each family, and its external address.
fn change_another(node: &mut Node) {
    for part in ["4b", "6b"] {
        node.proxier.delete_slice(&ObjectKey::new("demo", &format!("web-1-{part}")), node.now);
    }
    let mut changed = service(1);
    changed["spec"]["externalIPs"] = json!([]);
    node.take(changed);
}

#[test]
fn what_an_unreadable_object_may_have_stays_and_others_follow() {
    for (options, damage) in options().iter().flat_map(|options| DAMAGES.map(|damage| (options, damage))) {
        let what =
            format!("{:?} {:?} {:?} {damage:?}", options.mode, options.config.ipvs.rules, options.config.ipvs.binding);
        let before = held(&undamaged(options, |_| {}));
        let kernel = undamaged(options, |_| {});
        let mut node = next(&kernel, options, Some(damage));
        let report = node.pass();
        let stopped = report.stopped.clone().unwrap_or_default();
        assert!(!report.has_failed() && stopped.contains("cannot be read"), "{what}: {report:#?}");
        same(&what, &kernel, &before);
        assert!(node.proxier.held().count() >= 4, "{what}");
        // It does not end by itself.
        node.run(std::time::Duration::from_secs(900));
        same(&what, &kernel, &before);

        change_another(&mut node);
        node.run(std::time::Duration::from_secs(60));
        let changed = held(&undamaged(options, change_another));
        same(&what, &kernel, &changed);

        damage.repair(&mut node);
        node.settle();
        same(&what, &kernel, &changed);
        assert_eq!(node.proxier.held().count(), 0, "{what}");
    }
}

#[test]
fn an_unreadable_object_that_is_deleted_or_confirmed_goes() {
    for (options, damage) in options().iter().flat_map(|options| DAMAGES.map(|damage| (options, damage))) {
        for is_confirmed in [false, true] {
            let what = format!("{:?} {damage:?} {is_confirmed}", options.mode);
            let without = |node: &mut Node| {
                for (kind, name) in damage.objects {
                    let key = ObjectKey::new("demo", name);
                    if *kind == ObjectKind::Service {
                        node.proxier.delete_service(&key, node.now);
                    } else {
                        node.proxier.delete_slice(&key, node.now);
                    }
                }
            };
            let kernel = undamaged(options, |_| {});
            let mut node = next(&kernel, options, Some(damage));
            node.pass();
            if is_confirmed {
                assert!(node.proxier.confirm_removal(node.now) > 0, "{what}");
            } else if damage.is_named {
                without(&mut node);
            } else {
                damage
                    .objects
                    .iter()
                    .for_each(|(kind, _)| node.proxier.note_readable(*kind, &ObjectKey::new("", ""), node.now));
            }
            node.settle();
            same(&what, &kernel, &held(&undamaged(options, without)));
        }
    }
}

/// Nothing is held back for an object that was read before, or whose Service was never served.
#[test]
fn an_object_that_becomes_unreadable_later_holds_nothing_back() {
    for options in options() {
        let kernel = undamaged(&options, |_| {});
        let mut node = next(&kernel, &options, None);
        node.settle();
        for (kind, name) in
            [(ObjectKind::Service, "web-2"), (ObjectKind::Service, "new"), (ObjectKind::EndpointSlice, "web-1-4c")]
        {
            let service = (kind == ObjectKind::EndpointSlice).then(|| ObjectKey::new("demo", "web-1"));
            node.proxier.note_unreadable(kind, &ObjectKey::new("demo", name), "damaged", service);
        }
        change_another(&mut node);
        node.proxier.delete_service(&ObjectKey::new("demo", "web-3"), node.now);
        node.settle();
        node.full();
        let wanted = undamaged(&options, |node| {
            change_another(node);
            node.proxier.delete_service(&ObjectKey::new("demo", "web-3"), node.now);
        });
        same(options.mode, &kernel, &held(&wanted));
        assert_eq!(node.proxier.store().unreadable().count(), 3);
    }
}

/// A node changes its mode: what the old mode serves stays while it may be of an object that cannot be read.
#[test]
fn the_old_mode_keeps_what_an_unreadable_object_may_have() {
    for (from, to) in options().iter().flat_map(|from| options().into_iter().map(move |to| (from.clone(), to))) {
        if from.mode == to.mode {
            continue;
        }
        let what = format!("{:?} {:?} to {:?} {:?}", from.mode, from.config.ipvs.rules, to.mode, to.config.ipvs.rules);
        let kernel = undamaged(&from, |_| {});
        let before = held(&kernel);
        let mut node = next(&kernel, &to, Some(DAMAGES[0]));
        let report = node.pass();
        assert!(!report.has_failed(), "{what}: {report:#?}");
        assert!(matches!(node.proxier.remove_others(node.now, &mut node.kernel.ports()), Removal::Held(_)), "{what}");
        if report.waits {
            // Their chains have the same names.
            same(&what, &kernel, &before);
        }
        DAMAGES[0].repair(&mut node);
        node.settle();
        let removal = node.proxier.remove_others(node.now, &mut node.kernel.ports());
        assert!(matches!(removal, Removal::Made(_)), "{what}: {removal:?}");
    }
}
