//! Pure work of a fixed size, one case per process, so that callgrind counts nothing else.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

use ipset::{Element, Entry, IfPresent, IpSpan, Ports, SetSpec, SetType};
use ipvs::Transport as _;
use ipvs::proc::Connections;
use proxier_core::config::{Config, RulesBy};
use proxier_core::engine::{Options, Reconciler};
use proxier_core::fake::FakeKernel;
use proxier_core::modes::ipvs::diff::diff;
use proxier_core::modes::ipvs::drain::Drains;
use proxier_core::modes::ipvs::observed::Observed;
use proxier_core::modes::ipvs::plan::Plan;
use proxier_core::modes::ipvs::rules::{self, Capabilities, Inputs};
use proxier_core::modes::ipvs::wanted::{EVERYTHING, Recorded};
use proxier_core::net::Family;
use proxier_core::objects::EndpointSliceObject;
use proxier_core::service::{Indexed, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node, Store};

use crate::tape::Tape;
use crate::world::{part, service, slice};
use crate::{Failure, ipvs_program};

/// Services, and endpoints per Service; for cases about sets: entries and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
}

/// A case: its name, its description, the size at which it is counted, and its work.
pub(crate) type Case = (&'static str, &'static str, Size, fn(Size) -> Result<(), Failure>);

const fn size(services: u32, endpoints: u32) -> Size {
    Size { services, endpoints }
}

/// Small, so that counting all of them together takes less than a minute.
pub(crate) const CASES: [Case; 13] = [
    ("full", "compile, diff and plan everything", size(1_000, 10), full),
    ("unchanged", "compare everything, all as wanted", size(1_000, 10), unchanged),
    ("slice", "one changed EndpointSlice", size(1_000, 10), changed_slice),
    ("rolling", "25 of a Service's 1,000 endpoints replaced", size(100, 10), rolling),
    (
        "pass",
        "a pass for one changed EndpointSlice, IPVS mode with rules of iptables, a kernel in memory included",
        size(1_000, 10),
        |size| pass(RulesBy::Iptables, size),
    ),
    (
        "pass-nft",
        "a pass for one changed EndpointSlice, IPVS mode with a table of nf_tables, a kernel in memory included",
        size(1_000, 10),
        |size| pass(RulesBy::Nftables, size),
    ),
    ("ipvs-encode", "write IPVS operations in batches", size(100, 9), ipvs_encode),
    ("ipvs-decode", "read a snapshot of IPVS", size(100, 10), ipvs_decode),
    ("ipset-encode", "write entries of a set", size(10_000, 0), |size| ipset(size.services, true)),
    ("ipset-decode", "read entries of a set", size(10_000, 0), |size| ipset(size.services, false)),
    ("rules", "make the rules of one family", size(100, 2), rules),
    ("iptables-parse", "parse a dump of iptables-save", size(125, 2), iptables_parse),
    ("connections", "parse connections", size(1_000, 0), parse_connections),
];

/// A case by its name.
pub(crate) fn named(what: &str) -> Result<Case, Failure> {
    CASES.into_iter().find(|(name, ..)| *name == what).ok_or_else(|| format!("no such case: {what}").into())
}

/// The part that is counted.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

/// Runs one case.
pub(crate) fn case(arguments: &[&str]) -> Result<(), Failure> {
    let [what, services, endpoints] = arguments else { return Err("WHAT SERVICES ENDPOINTS".into()) };
    let (.., work) = named(what)?;
    work(size(services.parse()?, endpoints.parse()?))
}

/// Set for a run that ends where the counted work would start. Its cost is that of the setup.
pub(crate) const SETUP_ONLY: &str = "BENCHES_SETUP_ONLY";

/// Does the work, whose result must be `expected`.
fn counted(expected: usize, mut work: impl FnMut() -> usize) -> Result<(), Failure> {
    if std::env::var_os(SETUP_ONLY).is_some() {
        std::process::exit(0);
    }
    let mut found = 0;
    measured(&mut || found = work());
    if found == expected { Ok(()) } else { Err(format!("{found} instead of {expected}").into()) }
}

fn full(Size { services, endpoints }: Size) -> Result<(), Failure> {
    let (world, empty, drains) = (World::new(services, endpoints), Observed::default(), Drains::default());
    counted(usize::try_from(services * (endpoints + 1))?, || {
        let all = world.compiled();
        server_operations(&black_box(diff(&all.wanted(), &empty, &drains, &EVERYTHING, world.facts.config())))
    })
}

fn unchanged(Size { services, endpoints }: Size) -> Result<(), Failure> {
    let world = World::converged(services, endpoints);
    counted(0, || {
        let (wanted, config) = (world.all.wanted(), world.facts.config());
        let plan = diff(&wanted, &world.observed, &world.drains, &EVERYTHING, config);
        usize::from(!plan.is_empty())
    })
}

fn changed_slice(Size { services, endpoints }: Size) -> Result<(), Failure> {
    let mut world = World::converged(services, endpoints);
    let changed = slice(services / 2, endpoints - 1);
    counted(1, || world.take(&changed))
}

fn rolling(Size { services, endpoints }: Size) -> Result<(), Failure> {
    let mut world = World::new(services, endpoints);
    let members: Vec<u32> = (0..1_000).collect();
    world.store.upsert_service(&service(services));
    for (number, slice) in (0..).zip(members.chunks(100)) {
        world.store.upsert_slice(&part(services, number, slice));
    }
    world.converge();
    let changed: Vec<u32> = (0..100).map(|member| if member < 25 { member + 1_000 } else { member }).collect();
    let changed = part(services, 0, &changed);
    counted(50, || world.take(&changed))
}

/// A whole pass for one changed endpoint.
fn pass(rules: RulesBy, size: Size) -> Result<(), Failure> {
    let mut options = Options::default();
    options.config.ipvs.rules = rules;
    let mut kernel = FakeKernel::new();
    let mut proxier = Reconciler::new("node-a", options, Duration::ZERO);
    for number in 0..size.services {
        proxier.upsert_service(&service(number), Duration::ZERO);
        proxier.upsert_slice(&slice(number, size.endpoints), Duration::ZERO);
    }
    proxier.start(Duration::ZERO);
    let mut pass = |proxier: &mut Reconciler, seconds: u64| {
        let report = proxier.pass(&|| Duration::from_secs(seconds), &mut kernel.ports());
        report.map_or(0, |report| report.writes()).try_into().unwrap_or(usize::MAX)
    };
    pass(&mut proxier, 1);
    proxier.upsert_slice(&slice(size.services / 2, size.endpoints - 1), Duration::from_secs(1));
    counted(1, || pass(&mut proxier, 2))
}

/// Encodes operations and decodes answers to a report, without a kernel.
fn ipvs_encode(size: Size) -> Result<(), Failure> {
    let operations: Vec<ipvs::Operation> = ipvs_program::operations(size.services, size.endpoints).collect();
    let kernel = ipvs::fake::FakeIpvs::new();
    let (tape, port) = (Tape::default(), kernel.transport().port());
    ipvs::Client::with_transport(tape.record(kernel.transport()))?.run(&operations).into_result()?;
    let mut client = ipvs::Client::with_transport(tape.play(port))?;
    counted(1, || usize::from(client.run(&operations).into_result().is_ok()))
}

fn ipvs_decode(size: Size) -> Result<(), Failure> {
    let kernel = ipvs::fake::FakeIpvs::new();
    kernel.client()?.run(ipvs_program::operations(size.services, size.endpoints)).into_result()?;
    let (tape, port) = (Tape::default(), kernel.transport().port());
    ipvs::Client::with_transport(tape.record(kernel.transport()))?.snapshot()?;
    let mut client = ipvs::Client::with_transport(tape.play(port))?;
    counted(usize::try_from(size.services * size.endpoints)?, || {
        let entries = client.snapshot().map(|snapshot| snapshot.entries).unwrap_or_default();
        entries.iter().map(|entry| entry.real_servers.len()).sum()
    })
}

/// Writes entries as those of `KUBE-CLUSTER-IP`, or reads them.
fn ipset(number: u32, write: bool) -> Result<(), Failure> {
    let set = SetSpec::new("filled".parse()?, SetType::HashIpPort);
    let entry = |number: u32| {
        let address = std::net::Ipv4Addr::from(0x0a60_0001 + number);
        Entry::new(Element::IpPort(IpSpan::host(address.into()), Ports::port(ipset::Protocol::TCP, 80)))
    };
    let entries: Vec<Entry> = (0..number).map(entry).collect();
    let kernel = ipset::fake::FakeIpset::new();
    let (tape, port) = (Tape::default(), kernel.transport().port());
    ipset::Client::with_transport(kernel.transport())?.create_set(&set)?;
    let mut client = ipset::Client::with_transport(tape.record(kernel.transport()))?;
    if !write {
        ipset::Client::with_transport(kernel.transport())?
            .add_entries(&set.name, &entries, IfPresent::Update)
            .into_result()?;
        client.get_set(&set.name)?;
        let mut client = ipset::Client::with_transport(tape.play(port))?;
        return counted(entries.len(), || client.get_set(&set.name).map_or(0, |set| set.entries.len()));
    }
    client.add_entries(&set.name, &entries, IfPresent::Update).into_result()?;
    let mut client = ipset::Client::with_transport(tape.play(port))?;
    counted(entries.len(), || {
        client.add_entries(&set.name, &entries, IfPresent::Update).into_result().unwrap_or_default()
    })
}

fn iptables_parse(size: Size) -> Result<(), Failure> {
    let text = crate::kube_rules::full(size.services, size.endpoints);
    counted(1, || {
        let dump = iptables::Dump::parse(&text);
        dump.map_or(0, |dump| dump.tables.iter().map(|table| table.chains().len()).sum::<usize>().min(1))
    })
}

fn parse_connections(size: Size) -> Result<(), Failure> {
    let text = connections(size.services);
    counted(usize::try_from(size.services)?, || Connections::new(text.as_bytes(), "ip_vs_conn").flatten().count())
}

/// A kernel's list of this many TCP connections.
fn connections(number: u32) -> String {
    let mut text = String::from("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n");
    for index in 0..number {
        let state = match index % 3 {
            0 => "ESTABLISHED",
            1 => "TIME_WAIT",
            _ => "FIN_WAIT",
        };
        let (client, port) = (0x0a80_0001 + index / 1000, 32_768 + index % 1000);
        let (service, real) = (0x0a60_0001 + index % 5000, 0x0a90_0001 + index % 50_000);
        let _infallible = writeln!(
            text,
            "TCP {client:08X} {port:04X} {service:08X} 0050 {real:08X} 1F90 {state:<11} {:>7}",
            index % 900
        );
    }
    text
}

fn rules(size: Size) -> Result<(), Failure> {
    let world = World::converged(size.services, size.endpoints);
    counted(1, || {
        let inputs = Inputs::new(Family::V4, &world.all.wanted(), &world.facts, Capabilities::default());
        rules::compile(&inputs).map_or(0, |rules| rules.chains(&iptables::TableName::NAT).len().min(1))
    })
}

/// Number of operations on virtual and real servers.
fn server_operations(plan: &Plan) -> usize {
    plan.stages.values().map(|stage| stage.servers.len()).sum()
}

/// A cluster and a kernel in memory.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) facts: NodeFacts,
    pub(crate) all: Indexed<Recorded>,
    pub(crate) observed: Observed,
    drains: Drains,
}

impl World {
    pub(crate) fn new(services: u32, endpoints: u32) -> Self {
        let mut store = Store::new("node-a");
        for number in 0..services {
            store.upsert_service(&service(number));
            store.upsert_slice(&slice(number, endpoints));
        }
        let facts = NodeFacts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
        World {
            store,
            facts,
            all: Indexed::new(Recorded::new(&Config::default())),
            observed: Observed::default(),
            drains: Drains::default(),
        }
    }

    /// With everything in the kernel.
    fn converged(services: u32, endpoints: u32) -> Self {
        let mut world = World::new(services, endpoints);
        world.converge();
        world
    }

    /// Everything, compiled.
    fn compiled(&self) -> Indexed<Recorded> {
        Indexed::build(&self.store, &self.facts, Recorded::new(self.facts.config()))
    }

    /// Brings the kernel to the desired state.
    pub(crate) fn converge(&mut self) {
        self.all = self.compiled();
        drop(std::mem::take(&mut self.all.index.changed));
        let wanted = self.all.wanted();
        let plan = diff(&wanted, &self.observed, &self.drains, &EVERYTHING, self.facts.config());
        self.observed.apply(&plan, &wanted);
    }

    /// A whole pass for a change, without the kernel. Returns the number of operations on real and virtual servers.
    fn take(&mut self, slice: &EndpointSliceObject) -> usize {
        let changed = self.store.upsert_slice(slice);
        self.all.refresh(&self.store, &self.facts, &changed);
        let changed = std::mem::take(&mut self.all.index.changed);
        let wanted = self.all.wanted();
        let plan = diff(&wanted, &self.observed, &self.drains, &changed, self.facts.config());
        for family in self.facts.config().families.iter() {
            black_box(Inputs::new(family, &self.all.wanted(), &self.facts, Capabilities::default()));
        }
        server_operations(&plan)
    }
}
