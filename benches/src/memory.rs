//! P6, P16: the reconciler's memory by endpoint, in iptables mode compared with IPVS mode.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::Command;

use proxier_core::modes::iptables;
use proxier_core::modes::ipvs::wanted::Recorded;
use proxier_core::net::FrontendKey;
use proxier_core::service::Indexed;

use crate::cases::World;
use crate::machine::resident_kib;
use crate::report::{Goal, Report};
use crate::world::{service, slice};
use crate::{Failure, Options};

const RESIDENT: &str = "Resident memory beyond an empty process";
const PER_ENDPOINT: &str = "The same, per endpoint";

/// The measured modes: their names in arguments, and their suffixes in figures.
const MODES: [(&str, &str); 2] = [("ipvs", ""), ("iptables", ", iptables mode")];

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("memory", options);
    report.note("Store, Wanted and Observed as a running proxy has them, with lists of real servers shared where they are equal. Resident pages, so what malloc adds is in it.");
    report.note("iptables mode: the Store likewise, Wanted, and Known, which is what the kernel serves. No rules are kept: they are made anew.");
    report.note("Per endpoint: the whole, keys and virtual servers included, divided by the number of endpoints.");
    let sizes: &[(u32, u32)] = if options.smoke { &[(100, 10)] } else { &[(1_000, 10), (10_000, 10)] };
    let each = sizes.iter().flat_map(|size| MODES.map(|mode| (*size, mode)));
    for ((services, endpoints), (mode, called)) in each {
        let output = Command::new(std::env::current_exe()?)
            .args(["memory-case", mode, &services.to_string(), &endpoints.to_string()])
            .output()?;
        if !output.status.success() {
            return Err(format!("memory-case: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let kib: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
        let side = format!("whole, {endpoints} endpoints each{called}");
        report.record(RESIDENT, Some(services), "KiB", &side, kib);
        let bytes = kib * 1024.0 / f64::from(services * endpoints);
        report.record(PER_ENDPOINT, Some(services), "bytes", &side, bytes);
    }
    if !options.smoke {
        let whole = "whole, 10 endpoints each";
        let value = report.median(PER_ENDPOINT, Some(10_000), whole);
        report.goal("P6: bytes per endpoint, 10,000 x 10", value, Goal::AtMost("<= 300", 300.0));
        for services in [1_000, 10_000] {
            let kib = |called| report.median(RESIDENT, Some(services), &format!("{whole}{called}"));
            let name = format!("P16: iptables mode / IPVS mode, {services} x 10");
            let times = kib(", iptables mode") / kib("");
            report.goal(name, times, Goal::AtMost("<= 2", 2.0));
        }
    }
    report.finish()
}

/// Fills a world and prints the KiB that it takes.
pub(crate) fn case(arguments: &[&str]) -> Result<(), Failure> {
    let [mode, services, endpoints] = arguments else { return Err("MODE SERVICES ENDPOINTS".into()) };
    let (services, endpoints): (u32, u32) = (services.parse()?, endpoints.parse()?);
    let mut world = World::new(0, 0);
    let start = resident_kib()?;
    for number in 0..services {
        world.store.upsert_service(&service(number));
        world.store.upsert_slice(&slice(number, endpoints));
    }
    world.store.compact();
    if *mode == "iptables" {
        let index = iptables::Index::new(&world.facts, iptables::IptablesOptions::default());
        let mut all = Indexed::build(&world.store, &world.facts, index);
        all.desired.compact();
        // As in the mode: including whether there are endpoints.
        let served = all.desired.frontends().map(|frontend| (frontend.key, !frontend.endpoints().is_empty()));
        let known: BTreeMap<FrontendKey, bool> = served.collect();
        println!("{}", resident_kib()? - start);
        black_box((all, known));
        return Ok(());
    }
    let index = Recorded::new(world.facts.config());
    world.all = Indexed::build(&world.store, &world.facts, index);
    drop(std::mem::take(&mut world.all.index.changed));
    world.all.desired.compact();
    world.all.index.index.compact();
    share(&mut world);
    println!("{}", resident_kib()? - start);
    Ok(())
}

/// Fills Observed as a read of the kernel does: equal lists of real servers are shared.
fn share(world: &mut World) {
    world.observed.virtual_servers.extend(world.all.wanted().servers());
    for set in world.all.wanted().sets() {
        world.observed.sets.insert(set, world.all.wanted().entries(set).cloned().collect());
    }
    world.observed.addresses = world.all.wanted().addresses().collect();
    world.observed.compact();
}
