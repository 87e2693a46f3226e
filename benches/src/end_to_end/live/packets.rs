//! Connections of a client over veth through the node's rules to backends, and straight to them.

use std::net::{Ipv4Addr, SocketAddr};

use super::cluster::Cluster;
use crate::Failure;
use crate::machine::ticks;
use crate::network::Network;
use crate::report::{Report, float};

const LATENCY: &str = "A new connection, from SYN to ACK";
const RATE: &str = "Connections";
const CPU: &str = "Processor time of a connection, client and backend included";
const THROUGHPUT: &str = "One stream";
const CPU_OF_BYTES: &str = "Processor time of a gigabyte, client and backend included";

/// Connections that are opened one after the other, and by all clients together.
const CONNECTIONS: usize = 5_000;
const CLIENTS: usize = 8;
/// Bytes of the stream.
const STREAM: u64 = 8 << 30;
/// A backend's address that no Service has: IPVS takes the answer of a real server for one of a connection that it knows.
const DIRECT: Ipv4Addr = Ipv4Addr::new(10, 250, 0, 1);

/// Measures through the last Service, and directly.
pub(super) fn measure(
    report: &mut Report,
    network: &Network,
    cluster: &Cluster,
    (size, side): (u32, &str),
) -> Result<(), Failure> {
    let (service, _) = *cluster.services.last().ok_or("no Service")?;
    let ways = [
        (format!("{side}, through the last Service"), SocketAddr::from((service, 80))),
        (format!("{side}, directly"), SocketAddr::from((DIRECT, 8080))),
    ];
    for (way, place) in ways {
        network.connect(place, CONNECTIONS / 10)?;
        let number = float(CONNECTIONS.try_into()?);
        let busy = || ticks().map(|ticks| ticks.busy).ok_or("/proc/stat cannot be read");
        let before = busy()?;
        let connected = network.connect(place, CONNECTIONS)?;
        report.record(CPU, Some(size), "µs", &way, (busy()? - before) * 1e3 / number);
        let mut micros = connected.micros;
        micros.sort_by(f64::total_cmp);
        for (quantile, at) in [("median", CONNECTIONS / 2), ("99 of 100 are faster", CONNECTIONS * 99 / 100)] {
            report.record(
                LATENCY,
                Some(size),
                "µs",
                &format!("{way}, {quantile}"),
                micros.get(at).copied().unwrap_or(f64::NAN),
            );
        }
        for (clients, took) in [(1, connected.took), (CLIENTS, network.connect_by(CLIENTS, place, CONNECTIONS)?)] {
            let name = format!("{way}, clients at a time: {clients}");
            report.record(RATE, Some(size), "connections a second", &name, number / took.as_secs_f64());
        }
        let before = busy()?;
        let took = network.send(place, STREAM)?;
        let gigabytes = float(STREAM) / 1e9;
        report.record(CPU_OF_BYTES, Some(size), "ms", &way, (busy()? - before) / gigabytes);
        report.record(THROUGHPUT, Some(size), "Gbit/s", &way, 8.0 * gigabytes / took.as_secs_f64());
    }
    Ok(())
}
