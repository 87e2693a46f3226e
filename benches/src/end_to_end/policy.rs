//! P15: a change of scheduler or persistence by annotation, compared with one changed endpoint.

use super::{ALONE, CHANGE, PERSISTENT, POLICIES, POLICY, REQUEST, label};
use crate::namespace::{collect, warm_up};
use crate::report::{Goal, Report};
use crate::{Failure, Options};

const ENDPOINTS: u32 = 10;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("policy", options);
    report.note(
        "proxier-demo run --kubeconfig, in IPVS mode, against an API server in a process of its own. A Service of them gets the annotation \
         `proxier/scheduler: wrr`; the change is over when the kernel's virtual server has that scheduler, which is asked for over and \
         over. By turns, another Service gets another endpoint, as in `end-to-end`, and one `proxier/persistence-seconds: 300`. Before, the request that does it, alone: the \
         kernel waits in it until nobody uses the old scheduler any more (ip_vs_ctl.c, ip_vs_edit_service: synchronize_rcu).",
    );
    let (services, changes) = if options.smoke { ("30", "3") } else { ("1000", "50") };
    warm_up(&["end-to-end", "3", "2", "2", POLICIES])?;
    for _ in 0..options.rounds {
        collect(&mut report, &["end-to-end", services, &ENDPOINTS.to_string(), changes, POLICIES])?;
    }
    if !options.smoke {
        let all = Some(services.parse()?);
        let policy = report.median(POLICY, all, &label(ENDPOINTS));
        report.goal("P15: one changed scheduler, ms", policy, Goal::AtMost("<= 20", 20.0));
        let request = report.median(ALONE, all, REQUEST);
        let ratio = (policy - request) / report.median(CHANGE, all, &label(ENDPOINTS));
        report.goal("P15: the rest / a changed endpoint", ratio, Goal::AtMost("<= 1", 1.0));
        let persistent = report.median(PERSISTENT, all, &label(ENDPOINTS));
        let ratio = persistent / report.median(CHANGE, all, &label(ENDPOINTS));
        report.goal("P15: persistence / a changed endpoint", ratio, Goal::AtMost("<= 1.1", 1.1));
    }
    report.finish()
}
