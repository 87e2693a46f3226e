//! End-to-end on a real cluster: `proxier-demo` and kube-proxy in rotation, each in its own network namespace.

mod cluster;
mod etcd;
mod kernel;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::cluster::{Cluster, not_interrupted};
use self::kernel::{Held, Kernel};
use super::proxy::{Proxy, program};
use crate::machine::version;
use crate::namespace::enter_fresh;
use crate::network::{Network, answer, tool};
use crate::report::{Report, ms};
use crate::{Failure, Options};

const WHOLE: &str = "From the process's start until the kernel has everything";
const AGAIN: &str = "From the process's start, with everything there, until its metrics show a full sync";
const TRANSACTIONS: &str = "Changes of nf_tables' generation in that time, and two seconds more";
const MISSED: &str = "From the process's start, after 5,000 changes without it, until the kernel has everything";
const PROCESSOR: &str = "Processor time, programs that it starts included";
const CHANGE: &str = "From the API request until the kernel has the other endpoint";
const NEW: &str = "From the request that makes a Service until the kernel has it and its endpoints";
const BURST: &str = "Changes as fast as the server takes them";
const MEMORY: &str = "Memory of the process";

const OURS: &str = "proxier-demo";
/// Common arguments of both programs besides mode, kubeconfig and node. A network namespace cannot change the limit of
/// connections.
const SAME: [&str; 3] =
    ["--cluster-cidr=10.128.0.0/9", "--conntrack-max-per-core=0", "--healthz-bind-address=127.0.0.1:10256"];
const START_PATIENCE: Duration = Duration::from_secs(900);
const PATIENCE: Duration = Duration::from_secs(60);
/// Between changes: more than kube-proxy's minimum between two syncs, which would otherwise be included.
const PAUSE: Duration = Duration::from_millis(1_200);
/// Services added and deleted in a run.
const NEW_SERVICES: u32 = 5;
/// Changes of a burst.
const MANY: u32 = 5_000;
/// Up to this many endpoints `nft` lists everything within seconds.
const LISTED: u32 = 20_000;

/// A run on a real cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Live {
    /// A real cluster
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// The program that takes turns with proxier-demo
    #[arg(long, value_name = "PROGRAM")]
    kube_proxy: Option<PathBuf>,
    /// The server's etcd (http://…), into which the Services are written: tens of thousands take the server hours
    #[arg(long, value_name = "URL", value_parser = http)]
    etcd: Option<String>,
    /// nftables, iptables or ipvs, once for each
    #[arg(long, default_value = "nftables")]
    mode: Vec<String>,
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    services: u32,
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    endpoints: u32,
    /// In each run; at most one for each Service
    #[arg(long, default_value_t = 100)]
    changes: u32,
    /// Of proxier-demo, besides those of both programs: --argument=--ipvs-binding=routes (may be repeated)
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    argument: Vec<String>,
}

/// An address of etcd, which the bench speaks to without TLS.
fn http(text: &str) -> Result<String, String> {
    let is_url = text.strip_prefix("http://").is_some_and(|rest| !rest.is_empty());
    is_url.then(|| text.to_owned()).ok_or_else(|| "not a URL of http, such as http://127.0.0.1:2379".to_owned())
}

pub(super) fn run(options: &Options, kubeconfig: &Path) -> Result<(), Failure> {
    let live = &options.live;
    if live.changes > live.services {
        return Err("--changes takes as many as there are --services".into());
    }
    let mut report = Report::new("end-to-end", options);
    let ours = std::iter::once("run").chain(live.argument.iter().map(String::as_str));
    let mut programs: Vec<Program<'_>> = vec![(OURS.to_owned(), program()?, ours.collect())];
    if let Some(path) = &live.kube_proxy {
        let version = version(path).ok_or_else(|| format!("{}: prints no version", path.display()))?;
        programs.push((format!("kube-proxy, {version}"), path.clone(), Vec::new()));
    }
    let mut cluster = Cluster::fill(live, kubeconfig)?;
    report.note(format!(
        "A real API server, {}, with {} Services x {} endpoints and one x 1,000 besides what it had. By turns each proxy runs in a fresh network namespace, with \
         --proxy-mode, --kubeconfig, --hostname-override and {}; a relay takes its connections out to the server.",
        cluster.version()?,
        live.services,
        live.endpoints,
        SAME.join(" "),
    ));
    report.note(format!(
        "What the kernel has is read from it, every 0.2 ms: all of `ip` nf_tables by netlink when their generation has changed, whose time \
         counts; iptables-save; or IPVS by netlink. Changes are {} ms apart, new Services come twice that after a deletion; a new Service is \
         two requests, its own and its EndpointSlice's.",
        PAUSE.as_millis()
    ));
    report.note(format!(
        "After the changes: a burst, {MANY} requests that replace one endpoint each, 16 at a time; a rolling update of the Service with 1,000 \
         endpoints, in 100 requests of 10 endpoints, 20 a second; the process ends (kube-proxy by SIGKILL), and starts again; once more, with \
         such a burst meanwhile.",
    ));
    let outcome = take_turns(&mut report, &mut cluster, options, &programs);
    // Figures measured before a failure are still useful, and deleting a large cluster takes minutes.
    let finished = report.finish();
    drop(cluster);
    outcome.and(finished)
}

/// A program's name, path and first arguments.
type Program<'a> = (String, PathBuf, Vec<&'a str>);

fn take_turns(
    report: &mut Report,
    cluster: &mut Cluster,
    options: &Options,
    programs: &[Program<'_>],
) -> Result<(), Failure> {
    let live = &options.live;
    for round in 0..options.rounds {
        for mode in &live.mode {
            for program in programs {
                let side = Side { name: format!("{mode}, {}", program.0), mode, program, live };
                // The thread carries its network namespace.
                std::thread::scope(|scope| {
                    scope.spawn(|| side.run(report, cluster).map_err(|error| error.to_string())).join()
                })
                .map_err(|_panic| "a side panicked")?
                .map_err(|error| format!("{}: {error}", side.name))?;
                eprintln!("round {round}, {}: done", side.name);
            }
        }
    }
    Ok(())
}

/// One proxy in one mode.
struct Side<'a> {
    name: String,
    mode: &'a str,
    program: &'a Program<'a>,
    live: &'a Live,
}

fn has_all(cluster: &Cluster, held: &Held) -> bool {
    cluster.services.iter().all(|(address, _)| held.services.contains(address))
        && cluster.addresses().all(|address| held.endpoints.contains(&address))
}

impl Side<'_> {
    fn run(&self, report: &mut Report, cluster: &mut Cluster) -> Result<(), Failure> {
        let Live { services, changes, .. } = *self.live;
        let size = Some(services);
        enter_fresh()?;
        let _network = Network::new(answer)?;
        let (_relay, kubeconfig) = cluster.relay(TcpListener::bind("127.0.0.1:0")?)?;
        // Only its owner can read it.
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(&file, kubeconfig)?;
        let node = cluster.node.clone();
        let start = || {
            let (_, program, first) = self.program;
            let mut command = Command::new(program);
            command.args(first).args(["--proxy-mode", self.mode, "--kubeconfig"]).arg(file.path()).args(SAME);
            command.args(["--hostname-override", &node]);
            Proxy::spawn(command)
        };
        let mut kernel = Kernel::open(self.mode)?;

        let mut proxy = start()?;
        let end = kernel.wait(&mut proxy, START_PATIENCE, None, |held| has_all(cluster, held))?;
        report.record(WHOLE, size, "ms", &self.name, ms(end - proxy.started));
        self.check(cluster)?;

        // A start, and a deletion of two objects, may be two passes, a second apart.
        std::thread::sleep(PAUSE);
        for change in 0..changes {
            std::thread::sleep(PAUSE);
            // Each of another Service, in no particular order.
            let number = (change * 7919 + services / 2) % services;
            let seen = kernel.generation()?;
            let asked = Instant::now();
            let address = cluster.change(number)?;
            let answered = Instant::now();
            let end = kernel.wait(&mut proxy, PATIENCE, seen, |held| held.endpoints.contains(&address))?;
            self.after(report, CHANGE, asked, answered, end);
        }
        for number in services..services + NEW_SERVICES {
            std::thread::sleep(2 * PAUSE);
            let seen = kernel.generation()?;
            let asked = Instant::now();
            let (service, endpoint) = cluster.add(number)?;
            let answered = Instant::now();
            let has_it = |held: &Held| held.services.contains(&service) && held.endpoints.contains(&endpoint);
            let end = kernel.wait(&mut proxy, PATIENCE, seen, has_it)?;
            self.after(report, NEW, asked, answered, end);
            std::thread::sleep(PAUSE);
            cluster.delete(number)?;
            kernel.wait(&mut proxy, PATIENCE, None, |held| !held.services.contains(&service))?;
        }
        proxy.wait_until_idle()?;
        let used = proxy.processor_ms()?;
        cluster.burst(MANY)?;
        let answered = Instant::now();
        let end = kernel.wait(&mut proxy, START_PATIENCE, None, |held| has_all(cluster, held))?;
        let side = format!("{}, from the last answer until the kernel has all", self.name);
        report.record(BURST, size, "ms", &side, ms(end - answered));
        self.stage(report, &proxy, "burst", used)?;
        let used = proxy.processor_ms()?;
        cluster.roll()?;
        kernel.wait(&mut proxy, START_PATIENCE, None, |held| has_all(cluster, held))?;
        self.stage(report, &proxy, "rolling update", used)?;
        let side = format!("{}, after the changes, resident", self.name);
        report.record(MEMORY, size, "KiB", &side, proxy.resident_kib()?);
        self.end(proxy)?;

        self.again(report, cluster, &mut kernel, &start)?;
        not_interrupted()
    }

    /// Starts it on the previous process's state: with everything present, and after changes that it has missed.
    fn again(
        &self,
        report: &mut Report,
        cluster: &mut Cluster,
        kernel: &mut Kernel,
        start: &dyn Fn() -> Result<Proxy, Failure>,
    ) -> Result<(), Failure> {
        let size = Some(self.live.services);
        let seen = kernel.generation()?;
        let mut proxy = start()?;
        let end = proxy.wait_for_full_pass()?;
        report.record(AGAIN, size, "ms", &self.name, ms(end - proxy.started));
        proxy.wait_until_idle()?;
        std::thread::sleep(Duration::from_secs(2));
        if let (Some(before), Some(after)) = (seen, kernel.generation()?) {
            report.record(TRANSACTIONS, size, "changes", &self.name, f64::from(after.wrapping_sub(before)));
        }
        if !has_all(cluster, &kernel.held()?) {
            return Err("a start with everything there took something away".into());
        }
        self.end(proxy)?;

        cluster.burst(MANY)?;
        let mut proxy = start()?;
        let end = kernel.wait(&mut proxy, START_PATIENCE, None, |held| has_all(cluster, held))?;
        report.record(MISSED, size, "ms", &self.name, ms(end - proxy.started));
        self.end(proxy)
    }

    /// Records the time of a change since its first request, and since its last answer: zero if the kernel had it before.
    fn after(&self, report: &mut Report, what: &str, asked: Instant, answered: Instant, end: Instant) {
        let size = Some(self.live.services);
        report.record(what, size, "ms", &self.name, ms(end - asked));
        let side = format!("{}, from the last answer", self.name);
        report.record(what, size, "ms", &side, ms(end.saturating_duration_since(answered)));
    }

    /// Ends the process. Its output must not contain a complaint.
    fn end(&self, mut proxy: Proxy) -> Result<(), Failure> {
        if self.program.0 == OURS {
            super::side::complaints(&mut proxy)?;
            proxy.stop()?;
        }
        Ok(())
    }

    /// Processor time since then, once the proxy is idle.
    fn stage(&self, report: &mut Report, proxy: &Proxy, stage: &str, since: f64) -> Result<(), Failure> {
        proxy.wait_until_idle()?;
        let side = format!("{}, {stage}", self.name);
        report.record(PROCESSOR, Some(self.live.services), "ms", &side, proxy.processor_ms()? - since);
        Ok(())
    }

    /// Whether the usual program shows every endpoint too.
    fn check(&self, cluster: &Cluster) -> Result<(), Failure> {
        if self.mode != "nftables" || self.live.services * self.live.endpoints > LISTED {
            return Ok(());
        }
        let text = tool("nft list ruleset ip")?;
        let words: std::collections::HashSet<&str> = text.split([' ', ':', ',', '\n', '\t']).collect();
        let missing = cluster.addresses().filter(|address| !words.contains(address.to_string().as_str())).count();
        if missing == 0 { Ok(()) } else { Err(format!("nft does not show {missing} endpoints").into()) }
    }
}
