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
const BOTH: &str = "C program and the two iptables-save";
const PASS: &str = "Proxier, full pass";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (services, endpoints) = options.choose((50, 4), (2_000, 10), (10_000, 10));
    let mut report = Report::new("drift", options);
    report
        .note(format!("{services} Services with {endpoints} endpoints each; every pass is checked to write nothing."));
    report.note(
        "The C program asks for the same dumps once: virtual servers, real servers of each, the sets, devices, addresses. \
         What it does not do: read them, compare, compile. Rules are only to be had from iptables-save, so those programs count on the \
         kernel's side too. The pass has everything, sysctls included.",
    );
    let rounds = options.rounds.to_string();
    collect(&mut report, &["drift", &services.to_string(), &endpoints.to_string(), &rounds])?;
    let (group, goal) = ((WHOLE, Some(services)), Goal::AtMost("<= 1.5", 1.5));
    report.ratio("P7: full pass / the kernel's own dumps", group, PASS, BOTH, goal);
    report.finish()
}

/// Milliseconds of the C program's dumps, and the number of entries.
fn dumps(sets: &[&str]) -> Result<(f64, u64), Failure> {
    let (mut took, mut entries) = (0.0, 0);
    for line in String::from_utf8(program::in_c("ipvs_dump", sets)?)?.lines() {
        match line.split_once(' ').ok_or("the C program printed no number")? {
            ("entries", number) => entries = number.parse()?,
            (_, nanos) => took += nanos.parse::<f64>()? / 1e6,
        }
    }
    Ok((took, entries))
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [services, endpoints, rounds] = arguments else { return Err("SERVICES ENDPOINTS ROUNDS".into()) };
    let (services, endpoints, rounds): (u32, u32, u32) = (services.parse()?, endpoints.parse()?, rounds.parse()?);
    let mut node = Node::in_mode(Kind::default(), services, endpoints)?;
    node.pass()?;
    // The first full pass after programming. What it still writes is not drift.
    node.request_full();
    node.pass()?;
    let families = proxier_core::config::Config::default().families;
    let keys: Vec<SetKey> = families.iter().flat_map(SetKey::all).collect();
    let names: Vec<String> = keys.iter().map(|key| key.named(NamePrefix::KUBE).name()).collect();
    for _ in 0..rounds {
        let (dumped, entries) = dumps(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        if entries != u64::from(services) * u64::from(endpoints + 1) {
            return Err(format!("the C program saw {entries} virtual and real servers").into());
        }
        let mut programs = ["iptables-save", "ip6tables-save"].into_iter();
        let save = || programs.try_for_each(|program| Command::new(program).stdout(Stdio::null()).status().map(drop));
        tell(WHOLE, services, "ms", BOTH, dumped + ms(timed(save)?.1));

        node.request_full();
        let (report, took) = timed(|| node.pass())?;
        tell(WHOLE, services, "ms", PASS, ms(took));
        if !report.full || report.writes() != 0 || !report.drift.is_empty() {
            return Err(
                format!("{} writes although nothing changed: {:?}", report.writes(), report.applied.done).into()
            );
        }
    }
    Ok(())
}
