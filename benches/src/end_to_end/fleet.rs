//! Cost of proxies for an API server: one proxy, and a hundred, on one simulated server.

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::NamedTempFile;
use testkit::apiserver::ApiServer;
use tokio::runtime::Runtime;

use super::objects::{BIG, FULL, NODE, STEP, big_address, big_slice, service};
use super::proxy::{Proxy, program};
use super::relay::Relay;
use super::server::{BOOKMARKS, filled};
use crate::namespace::enter_fresh;
use crate::network::tool;
use crate::report::{Report, float};
use crate::{Failure, Options};

const REQUESTS: &str = "Requests that the server gets";
const BYTES: &str = "Bytes that the server sends, headers included";
const PROCESSOR: &str = "Processor time of a proxy";
const MEMORY: &str = "Resident memory of a proxy";
/// Between two steps of the rolling update.
const PACE: Duration = Duration::from_millis(50);

/// A cluster, and how long nothing happens.
#[derive(Clone, Copy)]
struct Size {
    services: u32,
    endpoints: u32,
    quiet: Duration,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("fleet", options);
    let (services, endpoints) = if options.smoke { (30, 3) } else { (1_000, 10) };
    let minutes = if options.smoke { 0 } else { 2 };
    let size = Size { services, endpoints, quiet: Duration::from_secs(minutes * 60 + 2) };
    let (rounds, many) = if options.smoke { (1, 3) } else { (options.rounds.min(3), 100) };
    report.note(format!(
        "{services} Services x {endpoints} endpoints, and one x {BIG}; proxier-demo in nftables mode with its defaults, each in a network namespace of its \
         own, all on this machine; testkit's API server, protobuf without compression, bookmarks every {} s. A relay counts its bytes.",
        BOOKMARKS.as_secs()
    ));
    report.note(format!(
        "By turns one proxy and {many}: they start; {} s in which nothing changes; a rolling update of the {BIG} endpoints, in {} changes of \
         {STEP}, {} ms apart. Afterwards `nft` has to show the last endpoint in each namespace.",
        size.quiet.as_secs(),
        BIG / STEP,
        PACE.as_millis()
    ));
    for round in 0..rounds {
        for proxies in [1, many] {
            one(&mut report, size, proxies).map_err(|error| format!("{proxies} proxies: {error}"))?;
            eprintln!("round {round}, {proxies} proxies: done");
        }
    }
    report.finish()
}

/// This many proxies on one server.
fn one(report: &mut Report, size: Size, proxies: u32) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let parts = (0..BIG / FULL).map(|part| big_slice(size.services, part, 0, false));
    let big: Vec<_> = std::iter::once(service(size.services)).chain(parts).collect();
    let server = filled(size.services, size.endpoints, &big);
    Fleet { report, server, members: Vec::new(), counted: (0, 0) }.live(&runtime, size, proxies)
}

/// A proxy with its relay and its kubeconfig.
struct Member {
    proxy: Proxy,
    relay: Relay,
    _kubeconfig: NamedTempFile,
}

/// Proxies on one server.
struct Fleet<'a> {
    report: &'a mut Report,
    server: Arc<ApiServer>,
    members: Vec<Member>,
    /// Requests and bytes that the report has.
    counted: (u64, u64),
}

impl Fleet<'_> {
    fn live(&mut self, runtime: &Runtime, size: Size, proxies: u32) -> Result<(), Failure> {
        for _ in 0..proxies {
            // The thread carries its network namespace.
            let server = &self.server;
            let start = || member(runtime, server).map_err(|error| error.to_string());
            let member = std::thread::scope(|scope| scope.spawn(start).join()).map_err(|_panic| "a start panicked")?;
            self.members.push(member?);
        }
        for member in &mut self.members {
            member.proxy.wait_for("full pass: ")?;
        }
        self.stage("start", &vec![0.0; self.members.len()])?;
        for member in &self.members {
            self.report.record(MEMORY, Some(proxies), "KiB", "after the start", member.proxy.resident_kib()?);
        }
        let used = self.used()?;
        std::thread::sleep(size.quiet);
        self.stage(&format!("{} s without a change", size.quiet.as_secs()), &used)?;
        let used = self.used()?;
        for moved in (STEP..=BIG).step_by(STEP as usize) {
            self.server.put(&big_slice(size.services, (moved - 1) / FULL, moved, false));
            std::thread::sleep(PACE);
        }
        self.stage("rolling update", &used)?;
        let last = big_address(BIG - 1, true).to_string();
        for member in &mut self.members {
            let net = format!("--net=/proc/{}/ns/net", member.proxy.id());
            if !tool(&format!("nsenter {net} nft list ruleset"))?.contains(&last) {
                return Err(format!("nft does not show the last endpoint: {:#?}", member.proxy.heard()).into());
            }
        }
        Ok(())
    }

    fn used(&self) -> Result<Vec<f64>, Failure> {
        self.members.iter().map(|member| member.proxy.processor_ms()).collect()
    }

    /// Cost of a stage, once all proxies are idle.
    fn stage(&mut self, stage: &str, used: &[f64]) -> Result<(), Failure> {
        for member in &self.members {
            member.proxy.wait_until_idle()?;
        }
        let size = Some(u32::try_from(self.members.len())?);
        let requests = u64::try_from(self.server.requests().len())?;
        let bytes = self.members.iter().map(|member| member.relay.sent()).sum();
        let (requests_before, bytes_before) = std::mem::replace(&mut self.counted, (requests, bytes));
        self.report.record(REQUESTS, size, "requests", stage, float(requests - requests_before));
        self.report.record(BYTES, size, "bytes", stage, float(bytes - bytes_before));
        for (now, before) in self.used()?.iter().zip(used) {
            self.report.record(PROCESSOR, size, "ms", stage, now - before);
        }
        Ok(())
    }
}

fn member(runtime: &Runtime, server: &ApiServer) -> Result<Member, Failure> {
    enter_fresh()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = server.address();
    let text = server.kubeconfig(None).replace(&server.url(), &format!("http://{}", listener.local_addr()?));
    let relay = Relay::start(runtime, listener, (address.ip().to_string(), address.port()))?;
    let kubeconfig = NamedTempFile::new()?;
    std::fs::write(&kubeconfig, text)?;
    let mut command = Command::new(program()?);
    command.args(["run", "--proxy-mode", "nftables", "--conntrack-max-per-core", "0", "--hostname-override", NODE]);
    command.arg("--kubeconfig").arg(kubeconfig.path());
    Ok(Member { proxy: Proxy::spawn(command)?, relay, _kubeconfig: kubeconfig })
}
