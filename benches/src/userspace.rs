//! The relay of userspace mode: one TCP stream, and connections one after another, compared with other kinds of
//! relay. Client, relay and server share this machine's processors.

use std::any::Any;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, SpliceFFlags, splice};
use nix::sys::socket::{Backlog, listen};
use nix::unistd::pipe2;
use proxier_core::kernel::Relay;
use proxier_core::net::{EndpointKey, FrontendKey, Protocol};
use proxier_core::ports::{Listener, Relays as _, Settings};

use crate::namespace::{collect, tell};
use crate::program::Killed;
use crate::report::{Goal, Report, ms};
use crate::{Failure, Options};

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 8080);
const SERVICE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)), 80);

const STREAM: &str = "One stream";
const MANY: &str = "Connections";

const LOOP: &str = "a loop of splice(2)";
const OURS: &str = "userspace mode";
const HAPROXY: &str = "HAProxy";

/// Connections that are open at the same time.
const CLIENTS: usize = 8;
/// Bytes per write and read of client and server.
const PIECE: usize = 256 << 10;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mebibytes = if options.smoke { "64" } else { "4096" };
    let connections = if options.smoke { "400" } else { "20000" };
    let has_haproxy =
        Command::new("haproxy").arg("-v").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    let mut report = Report::new("userspace", options);
    report.note(format!("A stream: {mebibytes} MiB from a server. Connections: {connections}, {CLIENTS} at a time, one byte there and back."));
    if !has_haproxy {
        report.note("HAProxy is not installed.");
    }
    for _ in 0..options.rounds {
        for (work, size) in [(STREAM, mebibytes), (MANY, connections)] {
            for way in [LOOP, OURS, HAPROXY] {
                if (way != LOOP || work == STREAM) && (way != HAPROXY || has_haproxy) {
                    collect(&mut report, &["userspace", work, way, size])?;
                }
            }
        }
    }
    let (stream, many) = ((STREAM, Some(mebibytes.parse()?)), (MANY, Some(connections.parse()?)));
    report.ratio("U1: a loop of splice(2) / userspace mode", stream, LOOP, OURS, Goal::AtLeast(">= 0.8", 0.8));
    if has_haproxy {
        report.ratio("U2: HAProxy / userspace mode", many, HAPROXY, OURS, Goal::AtLeast(">= 0.8", 0.8));
    }
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [work, way, size] = arguments else { return Err("WORK WAY SIZE".into()) };
    let amount: usize = size.parse()?;
    let server = TcpListener::bind(SERVER)?;
    listen(&server, Backlog::MAXALLOWABLE)?;
    let is_stream = *work == STREAM;
    thread::spawn(move || if is_stream { send(&server, amount) } else { echo(&server) });
    let _relay = relay(way)?;
    let took = if is_stream { receive(SERVICE, amount)? } else { connect(SERVICE, amount)? };
    tell(work, size.parse()?, "ms", way, ms(took));
    Ok(())
}

/// Starts the measured relay. It ends when the returned value is dropped.
fn relay(way: &str) -> Result<Box<dyn Any>, Failure> {
    Ok(match way {
        LOOP => {
            let listener = TcpListener::bind(SERVICE)?;
            let each = move || {
                for client in listener.incoming().flatten() {
                    // The side that counts bytes notices lost ones.
                    thread::spawn(move || drop(splice_all(&client)));
                }
            };
            Box::new(thread::spawn(each))
        }
        OURS => {
            let mut relay = Relay::new(Settings::default());
            let key = FrontendKey::new(Protocol::Tcp, SERVICE.ip(), SERVICE.port());
            let endpoint = EndpointKey::new(SERVER.ip(), SERVER.port());
            relay.serve(&Listener::new(key, "bench").with_endpoints([endpoint]))?;
            Box::new(relay)
        }
        HAPROXY => Box::new(haproxy()?),
        other => return Err(format!("no such way: {other}").into()),
    })
}

fn haproxy() -> Result<Killed, Failure> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let configuration = format!(
        "global\n nbthread {threads}\n maxconn 2000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1m\n timeout server 1m\n \
         option splice-auto\nlisten bench\n bind {SERVICE}\n server one {SERVER}\n"
    );
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(&file, configuration)?;
    let child = Command::new("haproxy").arg("-db").arg("-f").arg(file.path()).stderr(Stdio::null()).spawn()?;
    let child = Killed(child);
    let start = Instant::now();
    while TcpStream::connect(SERVICE).is_err() {
        if start.elapsed() > Duration::from_secs(10) {
            return Err("HAProxy does not listen".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(child)
}

/// From the server to the client, by one thread and one pipe.
fn splice_all(client: &TcpStream) -> Result<(), Failure> {
    let server = TcpStream::connect(SERVER)?;
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    loop {
        let mut length = splice(&server, None, &write, None, 1 << 20, SpliceFFlags::SPLICE_F_MOVE)?;
        if length == 0 {
            return Ok(client.shutdown(Shutdown::Write)?);
        }
        while length > 0 {
            length -= splice(&read, None, client, None, length, SpliceFFlags::SPLICE_F_MOVE)?;
        }
    }
}

fn send(server: &TcpListener, mebibytes: usize) {
    let piece = vec![7; PIECE];
    for mut stream in server.incoming().flatten() {
        for _ in 0..mebibytes * ((1 << 20) / PIECE) {
            if stream.write_all(&piece).is_err() {
                break;
            }
        }
    }
}

fn receive(from: SocketAddr, mebibytes: usize) -> Result<Duration, Failure> {
    let mut stream = TcpStream::connect(from)?;
    let start = Instant::now();
    let (mut piece, mut received) = (vec![0; PIECE], 0);
    while let length @ 1.. = stream.read(&mut piece)? {
        received += length;
    }
    let took = start.elapsed();
    if received != mebibytes << 20 {
        return Err(format!("{received} bytes have arrived").into());
    }
    Ok(took)
}

fn echo(server: &TcpListener) {
    for mut stream in server.incoming().flatten() {
        thread::spawn(move || {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_ok() {
                // A client that does not wait for the answer counts it as missing.
                let _is_sent = stream.write_all(&byte);
            }
        });
    }
}

fn connect(to: SocketAddr, connections: usize) -> Result<Duration, Failure> {
    let one = move || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(to)?;
        stream.write_all(&[7])?;
        stream.read_exact(&mut [0])
    };
    let client = || thread::spawn(move || (0..connections / CLIENTS).try_for_each(|_| one()));
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS).map(|_| client()).collect();
    for client in clients {
        client.join().map_err(|_panic| "a client has panicked")??;
    }
    Ok(start.elapsed())
}
