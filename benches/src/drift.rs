//! P7: a full check of a large cluster in which nothing changed, against the kernel's own dumps.

use std::process::{Command, Stdio};

use proxier_core::config::NamePrefix;
use proxier_core::modes::Kind;
use proxier_core::ports::SetKey;

use crate::namespace::{collect, tell};
use crate::node::Node;
use crate::program::{self, timed};
use crate::report::{Goal, Report, ms};
use crate::{Failure, Options};

const WHOLE: &str = "Whole check";
const OURS: &str = "crates";
const KERNEL: &str = "C program, answers thrown away";
const TOOLS: &str = "iptables-save and ip6tables-save, output thrown away";
const BOTH: &str = "C program and the two iptables-save";
const PASS: &str = "Proxier, full pass";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (services, endpoints) = match (options.smoke, options.quick) {
        (true, _) => (50, 4),
        (_, true) => (2_000, 10),
        _ => (10_000, 10),
    };
    let mut report = Report::new("drift", options);
    report
        .note(format!("{services} Services with {endpoints} endpoints each; every pass is checked to write nothing."));
    report.note(
        "The C program asks for the same dumps once: virtual servers, real servers of each, the sets, devices, addresses. \
         What it does not do: read them, compare, compile. IPVS of the crates is a snapshot(), which lists the virtual servers twice; a \
         pass in which nothing is to be done does so once.",
    );
    report.note(
        "Rules are only to be had from iptables-save, so those programs count on the kernel's side too. The parts are the \
         port's calls alone; the whole pass has everything, sysctls included.",
    );
    let rounds = options.rounds.to_string();
    collect(&mut report, &["drift", &services.to_string(), &endpoints.to_string(), &rounds])?;
    let size = Some(services);
    let goal = Goal::AtMost("<= 1.5", 1.5);
    report.ratio("P7: full pass / the kernel's own dumps", (WHOLE, size), PASS, BOTH, goal);
    for part in ["IPVS", "Sets", "Addresses"] {
        report.ratio(&format!("{part}: crates / C program"), (part, size), OURS, KERNEL, goal);
    }
    report.finish()
}

/// Milliseconds by part, and the number of entries.
fn dumps(sets: &[&str]) -> Result<(Vec<(String, f64)>, u64), Failure> {
    let (mut parts, mut entries) = (Vec::new(), 0);
    for line in String::from_utf8(program::in_c("ipvs_dump", sets)?)?.lines() {
        let (part, number) = line.split_once(' ').ok_or("the C program printed no number")?;
        if part == "entries" {
            entries = number.parse()?;
        } else {
            parts.push((part.to_owned(), number.parse::<f64>()? / 1e6));
        }
    }
    Ok((parts, entries))
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [services, endpoints, rounds] = arguments else { return Err("SERVICES ENDPOINTS ROUNDS".into()) };
    let (services, endpoints, rounds): (u32, u32, u32) = (services.parse()?, endpoints.parse()?, rounds.parse()?);
    let mut node = Node::in_mode(Kind::default())?;
    node.load(services, endpoints);
    node.pass()?;
    // The first full pass after programming. What it still writes is not drift.
    node.request_full();
    node.pass()?;
    let families = proxier_core::config::Config::default().families;
    let keys: Vec<SetKey> = families.iter().flat_map(SetKey::all).collect();
    let names: Vec<String> = keys.iter().map(|key| key.named(NamePrefix::KUBE).name()).collect();
    for _ in 0..rounds {
        let (parts, entries) = dumps(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        if entries != u64::from(services) * u64::from(endpoints + 1) {
            return Err(format!("the C program saw {entries} virtual and real servers").into());
        }
        let mut kernel: f64 = parts.iter().map(|(_, millis)| millis).sum();
        for (part, millis) in &parts {
            let part = match part.as_str() {
                "ipvs" => "IPVS",
                "sets" => "Sets",
                _ => "Addresses",
            };
            tell(part, services, "ms", KERNEL, *millis);
        }
        let mut programs = ["iptables-save", "ip6tables-save"].into_iter();
        let save = || programs.try_for_each(|program| Command::new(program).stdout(Stdio::null()).status().map(drop));
        let tools = ms(timed(save)?.1);
        tell("Rules", services, "ms", TOOLS, tools);
        kernel += tools;
        tell(WHOLE, services, "ms", BOTH, kernel);

        node.request_full();
        let (report, took) = timed(|| node.pass())?;
        tell(WHOLE, services, "ms", PASS, ms(took));
        if !report.full || report.writes() != 0 || !report.drift.is_empty() {
            return Err(
                format!("{} writes although nothing changed: {:?}", report.writes(), report.applied.done).into()
            );
        }
        time_parts(&mut node, services, &keys)?;
    }
    Ok(())
}

/// How much of a pass each port takes.
fn time_parts(node: &mut Node, services: u32, keys: &[SetKey]) -> Result<(), Failure> {
    let ports = node.kernel.ports();
    let part = |name, took| tell(name, services, "ms", OURS, ms(took));
    part("IPVS", timed(|| ports.ipvs.snapshot())?.1);
    let entries = |key: &SetKey| ports.sets.entries(key.named(NamePrefix::KUBE)).map(drop);
    part("Sets", timed(|| keys.iter().try_for_each(entries))?.1);
    part("Addresses", timed(|| ports.links.addresses())?.1);
    let mut families = proxier_core::config::Config::default().families.iter();
    part("Rules", timed(|| families.try_for_each(|family| ports.rules.dump(family).map(drop)))?.1);
    Ok(())
}
