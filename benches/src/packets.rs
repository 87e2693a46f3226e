//! Packets through each mode's rules: connections, a stream, and small segments of established connections. Compared
//! with kube-proxy's rules of the same mode, with the fast path, and with direct connections.

use std::net::{Ipv4Addr, SocketAddr};

use proxier_core::config::FastPath;
use proxier_core::engine::Options as ReconcilerOptions;
use proxier_core::kernel::KernelOptions;
use proxier_core::modes::Kind;
use testkit::{Need, missing};

use crate::machine::{is_emulated, ticks};
use crate::modes::restore;
use crate::namespace::{collect, tell, warm_up};
use crate::network::{Network, answer};
use crate::node::Node;
use crate::program::feed;
use crate::report::{Report, float};
use crate::world::cluster_ip;
use crate::{Failure, Options, kube_rules, kube_table};

const LATENCY: &str = "A new connection, from SYN to ACK";
const RATE: &str = "Connections, each until the backend has seen its end";
const THROUGHPUT: &str = "One stream";
const CPU_OF_BYTES: &str = "Processor time of a gigabyte, client and backend included";
const SEGMENTS: &str = "Segments of one byte in an established connection, 64 under way";

/// Concurrent clients.
const CLIENTS: [usize; 2] = [1, 8];
/// A backend's address that is not an endpoint: IPVS assigns an answer of a real server to a known connection.
const DIRECT: Ipv4Addr = Ipv4Addr::new(10, 250, 0, 1);
/// Segments under way.
const WINDOW: u8 = 64;

/// Amount of work in one measurement.
#[derive(Clone, Copy, Debug)]
struct Work {
    connections: usize,
    /// Bytes of the stream.
    stream: u64,
    /// Rounds of [`WINDOW`] segments.
    rounds: usize,
}

impl Work {
    /// Enough work for seconds on a processor of its own, or in QEMU without KVM.
    fn of(is_emulated: bool) -> Self {
        if is_emulated {
            Work { connections: 600, stream: 256 << 20, rounds: 200 }
        } else {
            Work { connections: 3_000, stream: 2 << 30, rounds: 1_000 }
        }
    }
}

/// Measures a path to an address, and prints each figure with its unit and side.
fn measure(network: &Network, services: u32, (way, place): (&str, SocketAddr), work: Work) -> Result<(), Failure> {
    let busy = || ticks().map(|ticks| ticks.busy).ok_or("/proc/stat cannot be read");
    let number = work.connections;
    network.exchange(1, place, number / 10, 0)?;
    for clients in CLIENTS {
        let way = format!("{way}, clients at a time: {clients}");
        let mut exchanged = network.exchange(clients, place, number, 0)?;
        exchanged.micros.sort_by(f64::total_cmp);
        let median = exchanged.micros.get(exchanged.micros.len() / 2).copied().unwrap_or(f64::NAN);
        tell(LATENCY, services, "µs", &format!("{way}, median"), median);
        let rate = float(number.try_into()?) / exchanged.took.as_secs_f64();
        tell(RATE, services, "connections a second", &way, rate);
    }
    let before = busy()?;
    let took = network.exchange(1, place, 1, work.stream)?.took;
    let gigabytes = float(work.stream) / 1e9;
    tell(CPU_OF_BYTES, services, "ms", way, (busy()? - before) / gigabytes);
    tell(THROUGHPUT, services, "Gbit/s", way, 8.0 * gigabytes / took.as_secs_f64());
    let asked = network.ask(place, WINDOW, work.rounds)?;
    let segments = f64::from(WINDOW) * float(work.rounds.try_into()?);
    tell(SEGMENTS, services, "segments a second", way, segments / asked.took.as_secs_f64());
    Ok(())
}

/// Rules on the node.
#[derive(Clone, Copy, Debug)]
enum Rules {
    Ours { mode: Kind, fast: bool },
    KubeProxyTable,
    KubeProxyIptables,
}

const DIRECTLY: &str = "directly, no Service";
const ENDPOINTS: u32 = 2;
/// In QEMU without KVM, and with the nft back end of iptables, more Services take minutes to write.
const LIMIT: u32 = 1_000;

const WAYS: [(&str, &str, Rules); 6] = [
    ("nftables", "nftables mode", Rules::Ours { mode: Kind::Nftables, fast: false }),
    ("nftables-fast", "nftables mode, fast path", Rules::Ours { mode: Kind::Nftables, fast: true }),
    ("kube-table", "nftables mode, kube-proxy's table", Rules::KubeProxyTable),
    ("iptables", "iptables mode", Rules::Ours { mode: Kind::Iptables, fast: false }),
    ("iptables-fast", "iptables mode, fast path", Rules::Ours { mode: Kind::Iptables, fast: true }),
    ("kube-rules", "iptables mode, kube-proxy's rules", Rules::KubeProxyIptables),
];

impl Rules {
    /// Whether the kernel takes this many Services within seconds.
    fn is_feasible(self, services: u32) -> bool {
        match self {
            Rules::Ours { fast: true, .. } if missing(Need::FlowTables).is_some() => false,
            Rules::KubeProxyIptables | Rules::Ours { mode: Kind::Iptables, .. } => services <= LIMIT,
            Rules::KubeProxyTable => services <= LIMIT || !is_emulated(),
            Rules::Ours { .. } => true,
        }
    }

    fn write(self, services: u32) -> Result<Option<Node>, Failure> {
        match self {
            Rules::KubeProxyTable => feed("nft", &["-f", "-"], &kube_table::full(services, ENDPOINTS))?,
            Rules::KubeProxyIptables => {
                restore("nft", kube_rules::JUMPS)?;
                restore("nft", &kube_rules::full(services, ENDPOINTS))?
            }
            Rules::Ours { mode, fast } => {
                let mut options = ReconcilerOptions::default();
                options.mode = mode;
                options.config.fast_path = fast.then(|| FastPath::new(["*"]));
                let mut node = Node::with(&KernelOptions::default(), options, services, ENDPOINTS)?;
                let report = node.pass()?;
                if let Some(lack) = report.applied.lacks.first() {
                    return Err(format!("{lack:?}").into());
                }
                return Ok(Some(node));
            }
        };
        Ok(None)
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("packets", options);
    let work = Work::of(is_emulated() || options.smoke);
    report.note(format!(
        "From a client's network namespace over veth to the node, through the last of so many Services with {ENDPOINTS} endpoints each, and on over veth to \
         the backends'. {} connections by each number of clients, a client's next one when its last has ended; {} MiB in one stream; {} segments.",
        work.connections,
        work.stream >> 20,
        work.rounds * usize::from(WINDOW)
    ));
    report.note("Client, node and backends share this machine's processors: processor time is that of all of them.");
    report.note(
        "Fast path: `interfaces: all`, `minPackets: 0`. kube-proxy's rules: those of 1.28 in iptables mode (the nft back end) and the table of 1.36 in \
         nftables mode, for the same Services.",
    );
    if missing(Need::FlowTables).is_some() {
        report.note("Without the fast path: this kernel has no flow tables.");
    }
    let sizes: &[u32] = options.choose(&[3], &[1_000], if is_emulated() { &[1_000] } else { &[1_000, 10_000] });
    for round in 0..options.rounds {
        for size in sizes {
            for (way, name, rules) in WAYS {
                if rules.is_feasible(*size) {
                    if round == 0 {
                        warm_up(&["packets", way, "1", "smoke"])?;
                    }
                    collect(
                        &mut report,
                        &["packets", way, &size.to_string(), if options.smoke { "smoke" } else { "" }],
                    )?;
                    eprintln!("round {round}, {size} Services, {name}: done");
                }
            }
        }
    }
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, services, amount] = arguments else { return Err("WAY SERVICES AMOUNT".into()) };
    let services: u32 = services.parse()?;
    let (_, name, rules) = WAYS.into_iter().find(|known| known.0 == *way).ok_or("no such way")?;
    let mut work = Work::of(is_emulated());
    if *amount == "smoke" {
        work = Work { connections: 100, stream: 16 << 20, rounds: 20 };
    }
    let network = Network::new(answer)?;
    let _node = rules.write(services)?;
    let place = SocketAddr::from((cluster_ip(services - 1), 80));
    measure(&network, services, (DIRECTLY, SocketAddr::from((DIRECT, 8080))), work)?;
    measure(&network, services, (name, place), work)
}
