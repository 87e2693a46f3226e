//! P4 nft: the start of `proxier-demo` in IPVS mode, with rules by the programs of iptables and by one table of
//! nf_tables, also right after boot.

use super::{BOOTED, COLD, PROGRAMS, TABLE, WARM, WHOLE, label};
use crate::machine::is_emulated;
use crate::namespace::{collect, warm_up};
use crate::report::{Goal, Report};
use crate::{Failure, Options};

const ENDPOINTS: u32 = 10;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("cold-start", options);
    report.note(
        "proxier-demo run --kubeconfig, in IPVS mode, against an API server in a process of its own, in a fresh network namespace each \
         round. A start ends as in `end-to-end`, and the kernel is checked likewise.",
    );
    report.note(
        "With `ipvs.rules: nftables` the proxy starts no program, and makes no ipset. \"No module loaded\": those of IPVS, netfilter and the \
         dummy device are unloaded first, as after a boot but for what the page cache has; only in the virtual machine.",
    );
    let services: u32 = if options.smoke { 30 } else { 1_000 };
    let kinds: &[&str] = if is_emulated() { &[PROGRAMS, TABLE, BOOTED] } else { &[PROGRAMS, TABLE] };
    for kind in [PROGRAMS, TABLE] {
        warm_up(&["end-to-end", "3", "2", "0", kind])?;
    }
    for _ in 0..options.rounds {
        for kind in kinds {
            collect(&mut report, &["end-to-end", &services.to_string(), &ENDPOINTS.to_string(), "0", kind])?;
        }
    }
    if options.smoke {
        return report.finish();
    }
    for start in [COLD, WARM] {
        let took = report.median(WHOLE, Some(services), &format!("{}, {TABLE}, {start}", label(ENDPOINTS)));
        report.goal(format!("P4 nft: {TABLE}, {start}, ms"), took, Goal::AtMost("<= 1,000", 1_000.0));
    }
    let all = (WHOLE, Some(services));
    let by = |what: &str| format!("{}, {what}", label(ENDPOINTS));
    // 1 s and 2 s on the machine on which the start with programs takes 1.43 s.
    let by_table = by(&format!("{TABLE}, {COLD}"));
    report.ratio("P4 nft: rules nftables / by programs", all, &by_table, &by(COLD), Goal::AtMost("<= 0.7", 0.7));
    if is_emulated() {
        let booted = by(&format!("{BOOTED}, {COLD}"));
        let took = report.median(WHOLE, Some(services), &booted);
        report.goal(format!("P4 nft: {BOOTED}, ms"), took, Goal::AtMost("<= 2,000", 2_000.0));
        let goal = Goal::AtMost("<= 1.4", 1.4);
        report.ratio("P4 nft: the same with no module loaded / by programs with all", all, &booted, &by(COLD), goal);
    }
    report.finish()
}
