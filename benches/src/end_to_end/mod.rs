//! P4, P5 and P6: `proxier-demo` in its usual deployment, with an API server, on a kernel: time until it serves, time
//! of a change, memory.

mod fleet;
mod live;
mod objects;
mod policy;
mod proxy;
mod relay;
mod server;
mod side;
mod start;

pub(crate) use self::fleet::run as run_fleet;
pub(crate) use self::live::Live;
pub(crate) use self::policy::run as run_policy;
pub(crate) use self::server::serve;
pub(crate) use self::side::side;
pub(crate) use self::start::run as run_start;
use crate::namespace::{collect, warm_up};
use crate::report::{Goal, Report};
use crate::{Failure, Options};

const WHOLE: &str = "From the process's start until everything is served";
const CHANGE: &str = "From the API server's event until the kernel has the other endpoint";
const POLICY: &str = "From the API server's event until the kernel has the other scheduler";
const PERSISTENT: &str = "From the API server's event until the kernel has the persistence";
const ALONE: &str = "That change of a virtual server, alone";
const MEMORY: &str = "Memory of the process";
const SLOPE: &str = "Resident memory per endpoint beyond 1,000 x 10";

const COLD: &str = "empty kernel";
const WARM: &str = "everything there";
/// Kinds of start: rules by the programs of iptables; by one table of nf_tables; the latter with no module loaded.
const PROGRAMS: &str = "programs";
const TABLE: &str = "ipvs.rules nftables";
const BOOTED: &str = "ipvs.rules nftables, no module loaded";
/// By programs, with changes of policies besides endpoints.
const POLICIES: &str = "policies";
const REQUEST: &str = "one request of the crate ipvs";

/// Changes of each compared cluster. Meanwhile the proxy polls the draining real servers of earlier changes, so a few
/// changes would be cheaper than many.
const CHANGES: u32 = 100;
/// With `--quick`.
const FEW_CHANGES: u32 = 30;

/// A cluster and how often it is measured.
struct Size {
    services: u32,
    endpoints: u32,
    rounds: usize,
    changes: u32,
}

fn label(endpoints: u32) -> String {
    format!("{endpoints} endpoints each")
}

fn sizes(options: &Options) -> Vec<Size> {
    let size = |services, endpoints, rounds, changes| Size { services, endpoints, rounds, changes };
    let all = options.rounds;
    if options.smoke {
        return vec![size(30, 3, 1, 3)];
    }
    if options.quick {
        return vec![size(100, 10, 1, FEW_CHANGES), size(1_000, 10, all, FEW_CHANGES)];
    }
    vec![
        size(100, 10, all, CHANGES),
        size(1_000, 10, all, CHANGES),
        size(1_000, 2, all, CHANGES),
        size(1_000, 50, all, 20),
        size(5_000, 10, all, 20),
        size(10_000, 10, all, CHANGES),
        // They take minutes each, and an API server of half a gigabyte.
        size(50_000, 2, 1, CHANGES),
    ]
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if let Some(kubeconfig) = &options.live.kubeconfig {
        return live::run(options, kubeconfig);
    }
    let mut report = Report::new("end-to-end", options);
    report.note(
        "proxier-demo run --kubeconfig, with its defaults, against testkit's API server in a process of its own: watches that \
         begin with all objects, which have what a cluster's controllers write. A network namespace of its own for each \
         round, in which the proxy starts on an empty kernel, ends, starts again and gets the changes.",
    );
    report.note(
        "The end of a start is the proxy's report of its first pass; right then virtual servers, real servers, addresses, \
         entries of KUBE-CLUSTER-IP and rules are counted in the kernel. A start with everything there ends when the \
         metrics show a full pass, which is looked at every 10 ms; that it wrote nothing is checked.",
    );
    report.note(
        "A change replaces the last endpoint of a slice. It is over when the kernel sends connections to the new one and \
         none to the old one: the list of that virtual server's real servers is read over and over.",
    );
    warm_up(&["end-to-end", "3", "2", "2", PROGRAMS])?;
    let sizes = sizes(options);
    for round in 0..options.rounds {
        for size in sizes.iter().filter(|size| round < size.rounds) {
            let start = std::time::Instant::now();
            let [services, endpoints, changes] = [size.services, size.endpoints, size.changes].map(|n| n.to_string());
            collect(&mut report, &["end-to-end", &services, &endpoints, &changes, PROGRAMS])?;
            eprintln!("{services} Services x {endpoints}: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    if !options.smoke {
        goals(&mut report, options);
    }
    report.finish()
}

fn goals(report: &mut Report, options: &Options) {
    let thousand = Some(1_000);
    for start in [COLD, WARM] {
        let took = report.median(WHOLE, thousand, &format!("{}, {start}", label(10)));
        report.goal(format!("P4: start, 1,000 x 10, {start}, ms"), took, Goal::AtMost("<= 1,000", 1_000.0));
    }
    let change = report.median(CHANGE, thousand, &label(10));
    report.goal("P5: one change, 1,000 x 10, ms", change, Goal::AtMost("<= 20", 20.0));
    let resident = |report: &Report, services, endpoints| {
        report.median(MEMORY, Some(services), &format!("{}, {COLD}, resident", label(endpoints)))
    };
    let base = resident(report, 1_000, 10);
    let mut others = vec![(100, 10)];
    if !options.quick {
        others.extend([(10_000, 10), (50_000, 2)]);
    }
    for (services, endpoints) in others {
        let of = |services| report.median(CHANGE, Some(services), &label(endpoints));
        let ratio = of(services) / of(1_000);
        let name = format!("P5: one change, {services} x {endpoints} / 1,000 x {endpoints}");
        report.goal(name, ratio, Goal::Within("0.8 to 1.2", 0.8, 1.2));
    }
    report.goal("P6: resident memory, 1,000 x 10, MB", base * 1024.0 / 1e6, Goal::AtMost("<= 16", 16.0));
    if options.quick {
        return;
    }
    for (services, endpoints, what) in
        [(1_000_u32, 50_u32, "1,000 Services x 50 endpoints"), (5_000, 10, "5,000 Services x 10 endpoints")]
    {
        let more = f64::from(services * endpoints - 10_000);
        let bytes = (resident(report, services, endpoints) - base) * 1024.0 / more;
        report.record(SLOPE, None, "bytes", what, bytes);
        report.goal(format!("P6: bytes per endpoint, {what}"), bytes, Goal::AtMost("<= 300", 300.0));
    }
}
