//! Connections of a client over veth through the node's rules to backends, and straight to them.

use std::net::{Ipv4Addr, SocketAddr};

use super::cluster::Cluster;
use crate::Failure;
use crate::machine::ticks;
use crate::network::Network;
use crate::report::{Report, float};

const LATENCY: &str = "A new connection, from SYN to ACK";
const RATE: &str = "Connections, each until the backend has seen its end";
const CPU: &str = "Processor time of a connection, client and backend included";
const THROUGHPUT: &str = "One stream";
const CPU_OF_BYTES: &str = "Processor time of a gigabyte, client and backend included";

/// Connections by one client, and by all together.
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
        network.exchange(1, place, CONNECTIONS / 10, 0)?;
        let number = float(CONNECTIONS.try_into()?);
        let busy = || ticks().map(|ticks| ticks.busy).ok_or("/proc/stat cannot be read");
        for clients in [1, CLIENTS] {
            let way = format!("{way}, clients at a time: {clients}");
            let before = busy()?;
            let exchanged = network.exchange(clients, place, CONNECTIONS, 0)?;
            report.record(CPU, Some(size), "µs", &way, (busy()? - before) * 1e3 / number);
            let mut micros = exchanged.micros;
            micros.sort_by(f64::total_cmp);
            for (quantile, at) in [("median", CONNECTIONS / 2), ("99 of 100 are faster", CONNECTIONS * 99 / 100)] {
                let took = micros.get(at).copied().unwrap_or(f64::NAN);
                report.record(LATENCY, Some(size), "µs", &format!("{way}, {quantile}"), took);
            }
            report.record(RATE, Some(size), "connections a second", &way, number / exchanged.took.as_secs_f64());
        }
        let before = busy()?;
        let took = network.exchange(1, place, 1, STREAM)?.took;
        let gigabytes = float(STREAM) / 1e9;
        report.record(CPU_OF_BYTES, Some(size), "ms", &way, (busy()? - before) / gigabytes);
        report.record(THROUGHPUT, Some(size), "Gbit/s", &way, 8.0 * gigabytes / took.as_secs_f64());
    }
    Ok(())
}
