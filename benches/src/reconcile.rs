//! What the reconciler's pure part costs, in instructions counted by callgrind: a whole cluster, nothing changed, one
//! changed EndpointSlice, at several sizes.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Instant;

use proxier_core::compile::Facts;
use proxier_core::config::Config;
use proxier_core::diff::{diff, diff_touched};
use proxier_core::drain::Drains;
use proxier_core::objects::{
    EndpointObject, EndpointPortObject, EndpointSliceObject, Metadata, ServiceObject, ServicePortObject,
};
use proxier_core::observed::Observed;
use proxier_core::plan::plan;
use proxier_core::rules::{Capabilities, Inputs};
use proxier_core::snapshot::{HostAddresses, Node, Store};
use proxier_core::state::Desired;
use serde::Serialize;

use crate::{Failure, Options};

/// Services and endpoints of each.
#[derive(Clone, Copy, Debug, Serialize)]
struct Size {
    services: u32,
    endpoints: u32,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    #[serde(flatten)]
    size: Size,
    instructions: u64,
    microseconds: f64,
    goal: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Results {
    bench: &'static str,
    cpu: String,
    rows: Vec<Row>,
}

const GOAL_FULL: u64 = 400_000_000;
const GOAL_SLICE: u64 = 60_000;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let size = |services, endpoints| Size { services, endpoints };
    let mut cases = Vec::new();
    if options.smoke {
        cases.push(("full", size(50, 4), None));
        cases.push(("unchanged", size(50, 4), None));
        cases.push(("slice", size(50, 4), None));
        cases.push(("service", size(50, 4), None));
    } else {
        cases.push(("full", size(1_000, 10), None));
        cases.push(("full", size(10_000, 10), Some(GOAL_FULL)));
        cases.push(("unchanged", size(10_000, 10), None));
        for services in [100, 1_000, 10_000, 50_000] {
            cases.push(("slice", size(services, 10), Some(GOAL_SLICE)));
        }
        for services in [100, 50_000] {
            cases.push(("service", size(services, 10), None));
        }
    }
    println!("{:<34} {:>16} {:>14} {:>12}  goal", "", "Services x ends", "instructions", "µs natively");
    let mut results = Results { bench: "reconcile", cpu: crate::compare::cpu(), rows: Vec::new() };
    let mut missed = Vec::new();
    for (what, size, goal) in cases {
        let row = Row { what, size, instructions: count(what, size)?, microseconds: time(what, size)?, goal };
        let verdict = match goal {
            Some(goal) if row.instructions > goal => {
                missed.push(what);
                format!("{goal}: NOT reached")
            }
            Some(goal) => format!("{goal}: reached"),
            None => String::new(),
        };
        let of = format!("{} x {}", size.services, size.endpoints);
        println!("{:<34} {of:>16} {:>14} {:>12.1}  {verdict}", words(what), row.instructions, row.microseconds);
        results.rows.push(row);
    }
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&results)? + "\n")
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn words(what: &str) -> &'static str {
    match what {
        "full" => "compile, diff and plan everything",
        "unchanged" => "compare everything, all as wanted",
        "slice" => "one changed EndpointSlice",
        _ => "one new Service with its slice",
    }
}

/// Runs one case under callgrind and reads how many instructions it counted.
fn count(what: &str, size: Size) -> Result<u64, Failure> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*reconcile*measured*")
        .arg(std::env::current_exe()?)
        .args(["reconcile-case", what, &size.services.to_string(), &size.endpoints.to_string()])
        .stdout(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind (apt install valgrind): {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let number = text.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, number)| number.trim());
    match number.and_then(|number| number.parse().ok()).filter(|number| *number > 0) {
        Some(number) if output.status.success() => Ok(number),
        _ => Err(format!("callgrind counted nothing: {text}").into()),
    }
}

/// Runs one case in a process of its own and reads how long it took.
fn time(what: &str, size: Size) -> Result<f64, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(["reconcile-case", what, &size.services.to_string(), &size.endpoints.to_string()])
        .output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The part that is counted.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

/// One case: prints the microseconds that it took.
pub(crate) fn case(arguments: &[String]) -> Result<(), Failure> {
    let [what, services, endpoints] = arguments else { return Err("WHAT SERVICES ENDPOINTS".into()) };
    let (services, endpoints) = (services.parse()?, endpoints.parse()?);
    let mut world = World::new(services, endpoints);
    let middle = services / 2;
    let start;
    match what.as_str() {
        "full" => {
            let (empty, drains) = (Observed::new(), Drains::default());
            start = Instant::now();
            let mut operations = 0;
            measured(&mut || {
                let desired = Desired::build(&world.store, &world.facts);
                let changes = diff(&desired, &empty, world.facts.config());
                let plan = black_box(plan(changes, &desired, &empty, &drains));
                operations = plan.serve.len();
            });
            check(operations, usize::try_from(services * (endpoints + 1))?)?;
        }
        "unchanged" => {
            world.converge();
            start = Instant::now();
            measured(&mut || {
                let changes = diff(&world.desired, &world.observed, world.facts.config());
                assert!(plan(changes, &world.desired, &world.observed, &world.drains).is_empty(), "all is as wanted");
            });
        }
        "slice" => {
            world.converge();
            let changed = slice(middle, endpoints - 1);
            let mut operations = 0;
            start = Instant::now();
            measured(&mut || operations = world.take(None, &changed));
            check(operations, 1)?;
        }
        "service" => {
            world.converge();
            let (new_service, new_slice) = (service(services), slice(services, endpoints));
            let mut operations = 0;
            start = Instant::now();
            measured(&mut || operations = world.take(Some(&new_service), &new_slice));
            check(operations, usize::try_from(endpoints + 1)?)?;
        }
        other => return Err(format!("no such case: {other}").into()),
    }
    println!("{}", start.elapsed().as_secs_f64() * 1e6);
    Ok(())
}

fn check(found: usize, expected: usize) -> Result<(), Failure> {
    if found == expected { Ok(()) } else { Err(format!("{found} operations instead of {expected}").into()) }
}

struct World {
    store: Store,
    facts: Facts,
    desired: Desired,
    observed: Observed,
    drains: Drains,
}

impl World {
    fn new(services: u32, endpoints: u32) -> Self {
        let mut store = Store::new("node-a");
        for number in 0..services {
            store.upsert_service(&service(number));
            store.upsert_slice(&slice(number, endpoints));
        }
        let facts = Facts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
        World { store, facts, desired: Desired::new(), observed: Observed::new(), drains: Drains::default() }
    }

    /// The kernel holds what is wanted.
    fn converge(&mut self) {
        self.desired = Desired::build(&self.store, &self.facts);
        let changes = diff(&self.desired, &self.observed, self.facts.config());
        self.observed.apply(&changes);
    }

    /// A whole pass for a change but for the kernel: how many operations on real and virtual servers it comes to.
    fn take(&mut self, service: Option<&ServiceObject>, slice: &EndpointSliceObject) -> usize {
        let mut touched = Vec::new();
        if let Some(service) = service {
            touched.extend(self.store.upsert_service(service));
        }
        touched.extend(self.store.upsert_slice(slice));
        let touched = self.desired.refresh(&self.store, &self.facts, &touched);
        let changes = diff_touched(&self.desired, &self.observed, &touched, self.facts.config());
        let plan = plan(changes, &self.desired, &self.observed, &self.drains);
        for family in self.facts.config().families.iter() {
            black_box(Inputs::new(family, &self.desired, &self.facts, Capabilities::default()));
        }
        plan.serve.len() + plan.retire.len()
    }
}

fn octets(number: u32) -> [u32; 3] {
    [number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff]
}

fn service(number: u32) -> ServiceObject {
    let mut object = ServiceObject::default();
    object.metadata = metadata(format!("service-{number:05}"));
    let [a, b, c] = octets(number);
    object.spec.cluster_ip = Some(format!("10.{}.{b}.{c}", 96 + a));
    let mut port = ServicePortObject::default();
    (port.name, port.port) = (Some("http".into()), 80);
    object.spec.ports = vec![port];
    object
}

fn slice(number: u32, endpoints: u32) -> EndpointSliceObject {
    let mut object = EndpointSliceObject::default();
    object.metadata = metadata(format!("service-{number:05}-x7k2p"));
    object.metadata.labels.insert("kubernetes.io/service-name".into(), format!("service-{number:05}"));
    object.address_type = "IPv4".into();
    let mut port = EndpointPortObject::default();
    (port.name, port.port) = (Some("http".into()), Some(8080));
    object.ports = vec![port];
    for endpoint in 0..endpoints {
        let [a, b, c] = octets(number * 16 + endpoint);
        let mut of = EndpointObject::default();
        of.addresses = vec![format!("10.{}.{b}.{c}", 128 + a)];
        of.node_name = Some(format!("node-{}", endpoint % 10 + 10));
        object.endpoints.push(of);
    }
    object
}

fn metadata(name: String) -> Metadata {
    let mut metadata = Metadata::default();
    (metadata.namespace, metadata.name) = ("demo".into(), name);
    metadata
}
