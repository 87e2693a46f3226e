//! Statistics of IPVS for Prometheus.
//!
//! `cargo run -p examples --example exporter -- 127.0.0.1:9118`
//!
//! Each request for `/metrics` reads the kernel. If that fails the answer has status 500 and the reason, which
//! Prometheus counts as a failed scrape; old numbers are never shown. One client is served at a time, for at most a few
//! seconds.
//!
//! Needs IPVS and `CAP_NET_ADMIN`, which IPVS requires even for reads.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use examples::Failure;
use ipvs::Client;
use ipvs::model::{ObservedRealServer, Snapshot, Stats};

/// How long a client may take to ask, and again to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request that is read.
const LONGEST: usize = 8 << 10;

type OfVirtual = (&'static str, &'static str, fn(&Stats) -> u64);
type OfReal = (&'static str, &'static str, &'static str, fn(&ObservedRealServer) -> u64);

const OF_VIRTUAL: [OfVirtual; 3] = [
    ("ipvs_connections_total", "Connections of a virtual server.", |stats| stats.connections),
    ("ipvs_incoming_bytes_total", "Bytes from clients.", |stats| stats.bytes_in),
    ("ipvs_outgoing_bytes_total", "Bytes to clients.", |stats| stats.bytes_out),
];

const OF_REAL: [OfReal; 4] = [
    ("ipvs_real_server_weight", "gauge", "Weight; 0 takes no new connections.", |real| {
        real.server.config.weight.get().into()
    }),
    ("ipvs_real_server_active_connections", "gauge", "Established connections.", |real| real.active_connections.into()),
    ("ipvs_real_server_inactive_connections", "gauge", "Connections that begin or end.", |real| {
        real.inactive_connections.into()
    }),
    ("ipvs_real_server_connections_total", "counter", "Connections it was given.", |real| real.stats.connections),
];

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let address = std::env::args().nth(1).ok_or("usage: exporter ADDRESS:PORT")?;
    let mut ipvs = Client::open()?;
    let listener = TcpListener::bind(&address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
    println!("listening on {}", listener.local_addr()?);
    for client in listener.incoming() {
        if let Err(error) = client.and_then(|client| serve(client, &mut ipvs)) {
            eprintln!("a client was not served: {error}");
        }
    }
    Ok(())
}

fn serve(mut client: TcpStream, ipvs: &mut Client) -> io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    let start = Instant::now();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        client.set_read_timeout(Some(left(start)?))?;
        let length = client.read(&mut part)?;
        request.extend_from_slice(part.get(..length).unwrap_or_default());
        if length == 0 || request.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a request"));
        }
    }
    let (status, text) = if request.starts_with(b"GET /metrics ") {
        match ipvs.snapshot() {
            Ok(snapshot) => ("200 OK", page(&snapshot)),
            Err(error) => ("500 Internal Server Error", format!("{error}\n")),
        }
    } else {
        ("404 Not Found", "only /metrics is here\n".to_owned())
    };
    let length = text.len();
    let kind = "text/plain; version=0.0.4";
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let answer = head + &text;
    let (mut rest, start) = (answer.as_bytes(), Instant::now());
    while !rest.is_empty() {
        client.set_write_timeout(Some(left(start)?))?;
        let written = client.write(rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// The patience that is left. The socket's own timeouts start again with each byte.
fn left(start: Instant) -> io::Result<Duration> {
    let left = PATIENCE.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
    left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "too slow"))
}

fn page(snapshot: &Snapshot) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(page, "{line}").unwrap_or_default();
    for (name, help, value) in OF_VIRTUAL {
        line(format_args!("# HELP {name} {help}\n# TYPE {name} counter"));
        for server in snapshot.entries.iter().map(|entry| &entry.virtual_server) {
            let (key, value) = (server.server.key, value(&server.stats));
            line(format_args!("{name}{{virtual_server=\"{key}\"}} {value}"));
        }
    }
    for (name, kind, help, value) in OF_REAL {
        line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        for entry in &snapshot.entries {
            for real in &entry.real_servers {
                let (key, to, value) = (entry.virtual_server.server.key, real.server.key, value(real));
                line(format_args!("{name}{{virtual_server=\"{key}\",real_server=\"{to}\"}} {value}"));
            }
        }
    }
    page
}
