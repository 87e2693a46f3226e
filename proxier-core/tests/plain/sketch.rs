//! A node on paper holds what the fake kernel holds, which passes the same suites as the real one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use proxier_core::config::RulesBy;
use proxier_core::engine::{Options, Reconciler};
use proxier_core::fake::FakeKernel;
use proxier_core::modes::Kind;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::plan::report::Failure;
use proxier_core::ports::Ports;
use proxier_core::sketch::Sketch;
use proxier_core::snapshot::ObjectKind;

use crate::corpus::{Scenario, corpus, facts, objects};

/// Programs a scenario; returns what failed.
fn program(scenario: &Scenario, (mode, rules): (Kind, RulesBy), ports: &mut Ports<'_>) -> Vec<Failure> {
    let (value, now) = (&scenario.value, Duration::ZERO);
    let mut options = Options::default();
    options.mode = mode;
    options.config = facts(scenario).config().clone();
    options.config.ipvs.rules = rules;
    let mut proxier = Reconciler::new(value["node"]["name"].as_str().unwrap(), options, now);
    for service in objects::<ServiceObject>(&value["services"]) {
        proxier.upsert_service(&service, now);
    }
    for slice in objects::<EndpointSliceObject>(&value["endpointSlices"]) {
        proxier.upsert_slice(&slice, now);
    }
    for kind in [ObjectKind::Service, ObjectKind::EndpointSlice] {
        proxier.list_ends(kind);
    }
    proxier.start(now);
    let report = proxier.pass(&|| now, ports).unwrap();
    report.applied.failures
}

/// The lines of a saved table of rules, without comments and policies: the programs print chains in an order of their own.
fn rules(text: &str) -> BTreeSet<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn paper_holds_what_the_fake_kernel_holds() {
    let mut compared = 0;
    for (number, scenario) in corpus().into_iter().enumerate().filter(|(number, _)| number % 29 == 0) {
        for side in [
            (Kind::Ipvs, RulesBy::Iptables),
            (Kind::Ipvs, RulesBy::Nftables),
            (Kind::Nftables, RulesBy::Iptables),
            (Kind::Iptables, RulesBy::Iptables),
            (Kind::Userspace, RulesBy::Iptables),
        ] {
            let context = format!("{side:?} {number} {}", scenario.id);
            let (mut kernel, mut paper) = (FakeKernel::new(), Sketch::default());
            let interfaces = scenario.value["node"]["interfaces"].as_object().unwrap();
            for (device, addresses) in interfaces.iter().filter(|(device, _)| device.starts_with("eth")) {
                let addresses: Vec<IpAddr> = serde_json::from_value(addresses.clone()).unwrap();
                kernel.set_interface(device, &addresses);
                paper.set_interface(device, &addresses);
            }
            assert_eq!(program(&scenario, side, &mut kernel.ports()), program(&scenario, side, &mut paper.ports()));
            let (real, held) = (kernel.state(), paper.state());
            assert_eq!(held.ipvs, real.ipvs, "{context}");
            assert_eq!(held.sets, real.sets, "{context}");
            assert_eq!(held.tables, real.tables, "{context}");
            assert_eq!(held.devices, real.devices, "{context}");
            assert_eq!(held.routes, real.routes, "{context}");
            assert_eq!(held.sysctls, real.sysctls, "{context}");
            assert_eq!(*paper.listeners(), kernel.listeners(), "{context}");
            assert_eq!(held.rules.len(), real.rules.len(), "{context}");
            for (of, text) in &real.rules {
                assert_eq!(rules(&held.rules[of]), rules(text), "{context}");
            }
            compared += 1;
        }
    }
    assert!(compared > 80, "{compared}");
}
