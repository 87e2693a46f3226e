//! The reconciler's passes on a kernel where one Service or many addresses change: a rolling update of a large Service, and
//! binding addresses.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use ipvs::{Client, Operation, RealServer, Scheduler, VirtualServer, VirtualServerKey, Weight};
use proxier_core::kernel::{KernelPorts, LocalRoutes};

use crate::namespace::{collect, enter_fresh, tell, warm_up};
use crate::node::Node;
use crate::report::{Report, ms};
use crate::world::{cluster_ip, endpoint_address, part, service};
use crate::{Failure, Options, program};

const ROLLING: &str = "Rolling update of one Service's endpoints, a slice of 100 after the other, 25 at a time";
const ADDRESSES: &str = "Binding addresses to a dummy device";
const UNBINDING: &str = "Removing them, the last first";
const OURS: &str = "Proxier, passes";
const ALONE: &str = "ipvs crate, the same operations alone";
const PORT: &str = "proxier-core, many in a send";
const IP: &str = "ip -batch";
const ROUTE: &str = "proxier-core, one local route for all";

/// Endpoints of a slice, as many as controllers put into one.
const SLICE: u32 = 100;
/// Number replaced at once.
const WAVE: u32 = 25;
/// A size is left out when the one before it predicts more than this.
const PATIENCE_MS: f64 = 60_000.0;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("passes", options);
    report.note(
        "Rolling update: a pass for each 25 endpoints that others replace, from the changed EndpointSlice on; the old ones drain and are \
         deleted by further passes, which count. The same operations alone: additions, weight 0 and deletions through the \
         ipvs crate, ready and in batches of the same size. That the kernel then has the new ones and no other is checked.",
    );
    report.note(
        "Binding: /32 each. The kernel looks for the address among those of the device at each addition, so the time grows with \
         the square of their number, for everybody.",
    );
    let endpoints = if options.smoke { "200" } else { "1000" };
    for side in ["proxier", "alone"] {
        warm_up(&["passes", "rolling", side, "100"])?;
    }
    for _ in 0..options.rounds {
        for side in ["proxier", "alone"] {
            collect(&mut report, &["passes", "rolling", side, endpoints])?;
        }
    }
    let sizes: &[u32] = match (options.smoke, options.quick) {
        (true, _) => &[200],
        (_, true) => &[1_000, 2_000],
        _ => &[1_000, 5_000, 10_000, 20_000],
    };
    let mut before: Option<u32> = None;
    for size in sizes.iter().copied() {
        let slowest = before.map_or(0.0, |before| {
            let factor = f64::from(size) / f64::from(before);
            report.median(ADDRESSES, Some(before), IP) * factor * factor
        });
        if !slowest.is_finite() || slowest > PATIENCE_MS {
            report.note(format!("{size} addresses are left out: too slow for this bench."));
            continue;
        }
        // Seconds each at the largest: fewer rounds say as much.
        let rounds = if size >= 10_000 { options.rounds.min(3) } else { options.rounds };
        for _ in 0..rounds {
            for way in ["port", "ip", "route"] {
                collect(&mut report, &["passes", "addresses", way, &size.to_string()])?;
            }
        }
        before = Some(size);
    }
    report.curve("addresses", ADDRESSES, "Addresses");
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        ["rolling", "proxier", endpoints] => rolling(endpoints.parse()?),
        ["rolling", "alone", endpoints] => alone(endpoints.parse()?),
        ["addresses", way, size] => addresses(way, size.parse()?),
        other => Err(format!("no such side: {other:?}").into()),
    }
}

fn key() -> Result<VirtualServerKey, Failure> {
    Ok(VirtualServerKey::tcp(SocketAddr::new(cluster_ip(0).parse()?, 80)))
}

/// The real server of an endpoint.
fn server(endpoint: u32) -> Result<RealServer, Failure> {
    Ok(RealServer::new(SocketAddr::new(endpoint_address(0, endpoint).parse()?, 8080)))
}

/// Whether the kernel has the endpoints `endpoints..2 * endpoints` and nothing else.
fn check(endpoints: u32) -> Result<(), Failure> {
    let servers = Client::open()?.list_real_servers(&key()?)?;
    let mut wanted = (endpoints..2 * endpoints).map(|endpoint| Ok(server(endpoint)?.key));
    let all = wanted.try_fold(true, |all, key: Result<_, Failure>| {
        let key = key?;
        Ok::<_, Failure>(all && servers.iter().any(|known| known.server.key == key))
    })?;
    if all && servers.len() == usize::try_from(endpoints)? {
        Ok(())
    } else {
        Err(format!("{} real servers after a rolling update of {endpoints}", servers.len()).into())
    }
}

/// Endpoint `n` becomes endpoint `n + endpoints`.
fn rolling(endpoints: u32) -> Result<(), Failure> {
    let mut node = Node::new()?;
    let mut members: Vec<u32> = (0..endpoints).collect();
    node.proxier.upsert_service(&service(0), Duration::ZERO);
    for (number, slice) in members.chunks(usize::try_from(SLICE)?).enumerate() {
        node.proxier.upsert_slice(&part(0, u32::try_from(number)?, slice), Duration::ZERO);
    }
    node.proxier.start(Duration::ZERO);
    node.pass()?;
    let mut took = Duration::ZERO;
    for first in (0..endpoints).step_by(usize::try_from(WAVE)?) {
        for member in members.iter_mut().skip(usize::try_from(first)?).take(usize::try_from(WAVE)?) {
            *member += endpoints;
        }
        let number = first / SLICE;
        let slice = members.chunks(usize::try_from(SLICE)?).nth(usize::try_from(number)?).unwrap_or_default();
        let object = part(0, number, slice);
        let start = Instant::now();
        node.proxier.upsert_slice(&object, node.now());
        let report = node.pass()?;
        took += start.elapsed();
        if report.full || report.writes() < u64::from(WAVE) {
            return Err("a change was not taken as one".into());
        }
    }
    while node.proxier.drains().is_some_and(|drains| !drains.is_empty()) {
        node.wait();
        let start = Instant::now();
        node.pass()?;
        took += start.elapsed();
    }
    tell(ROLLING, endpoints, "ms", OURS, ms(took));
    check(endpoints)
}

fn alone(endpoints: u32) -> Result<(), Failure> {
    let mut client = Client::open()?;
    let key = key()?;
    let mut prepare = vec![Operation::AddVirtualServer(VirtualServer::new(key, Scheduler::RoundRobin))];
    for endpoint in 0..endpoints {
        prepare.push(Operation::AddRealServer(key, server(endpoint)?));
    }
    client.run(prepare).into_result()?;
    let mut waves = Vec::new();
    for first in (0..endpoints).step_by(usize::try_from(WAVE)?) {
        let (mut change, mut deletion) = (Vec::new(), Vec::new());
        for old in first..(first + WAVE).min(endpoints) {
            change.push(Operation::AddRealServer(key, server(old + endpoints)?));
            let old = server(old)?;
            deletion.push(Operation::DeleteRealServer(key, old.key));
            change.push(Operation::UpdateRealServer(key, old.with_weight(Weight::DRAIN)));
        }
        waves.push(change);
        waves.push(deletion);
    }
    let start = Instant::now();
    for wave in waves {
        client.run(wave).into_result()?;
    }
    tell(ROLLING, endpoints, "ms", ALONE, ms(start.elapsed()));
    check(endpoints)
}

/// Binds addresses and removes them.
fn addresses(way: &str, size: u32) -> Result<(), Failure> {
    const DEVICE: &str = "kube-ipvs0";
    let mut all: Vec<IpAddr> = Vec::new();
    for number in 0..size {
        all.push(cluster_ip(number).parse()?);
    }
    // An emulator translates a program the first time it runs: only the second time counts.
    for (counts, bound) in [(false, all.get(..50).unwrap_or(&all)), (true, &all)] {
        enter_fresh()?;
        let mut kernel = KernelPorts::open(&proxier_core::kernel::Options::default())?;
        let links = kernel.ports().links;
        links.create_device(DEVICE)?;
        let backwards: Vec<IpAddr> = bound.iter().rev().copied().collect();
        let (side, added, removed) = match way {
            "port" => (
                PORT,
                clock(|| none(&links.bind(DEVICE, bound)))?,
                (count(DEVICE, bound.len())?, clock(|| none(&links.unbind(DEVICE, &backwards)))?).1,
            ),
            "ip" => {
                let text = |verb: &str, addresses: &[IpAddr]| {
                    addresses.iter().fold(String::new(), |mut text, address| {
                        let _infallible = writeln!(text, "address {verb} {address}/32 dev {DEVICE}");
                        text
                    })
                };
                let (add, delete) = (text("add", bound), text("delete", &backwards));
                let added = clock(|| batch(&add))?;
                count(DEVICE, bound.len())?;
                (IP, added, clock(|| batch(&delete))?)
            }
            "route" => {
                let mut routes = LocalRoutes::new();
                let network = ["10.96.0.0/15".parse()?];
                let added = clock(|| none(&routes.add("lo", &network)))?;
                // Every address of it is this host's now.
                let last = bound.last().ok_or("no address")?.to_string();
                let told = Command::new("ip").args(["route", "get", &last]).output()?.stdout;
                if !String::from_utf8_lossy(&told).starts_with("local ") {
                    return Err(format!("{last} is not local: {}", String::from_utf8_lossy(&told)).into());
                }
                (ROUTE, added, clock(|| none(&routes.delete("lo", &network)))?)
            }
            other => return Err(format!("no such way: {other}").into()),
        };
        count(DEVICE, 0)?;
        if counts {
            tell(ADDRESSES, size, "ms", side, added);
            tell(UNBINDING, size, "ms", side, removed);
        }
    }
    Ok(())
}

fn none<I: std::fmt::Debug>(failures: &[I]) -> Result<(), Failure> {
    failures.first().map_or(Ok(()), |first| Err(format!("{} failures, the first: {first:?}", failures.len()).into()))
}

/// Milliseconds of work.
fn clock(work: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    work()?;
    Ok(ms(start.elapsed()))
}

/// Whether `ip` shows so many addresses.
fn count(device: &str, number: usize) -> Result<(), Failure> {
    let output = Command::new("ip").args(["-4", "-oneline", "address", "show", "dev", device]).output()?;
    let found = String::from_utf8_lossy(&output.stdout).lines().count();
    if found == number { Ok(()) } else { Err(format!("{found} addresses on {device} instead of {number}").into()) }
}

fn batch(text: &str) -> Result<(), Failure> {
    program::feed("ip", &["-batch", "-"], text).map(drop)
}
