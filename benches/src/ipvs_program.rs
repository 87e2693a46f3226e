//! P1 and P2: programming 1,000 virtual servers with 10 real servers each.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipvs::{Client, Operation, RealServer, Scheduler, Transport, VirtualServer, VirtualServerKey};

use crate::compare::{Side, compare};
use crate::report::{Goal, Report};
use crate::{Failure, Options, namespace, program};

/// The n-th virtual server's key.
pub(crate) fn key(number: u32) -> VirtualServerKey {
    VirtualServerKey::tcp(SocketAddr::from((Ipv4Addr::from(0x0a60_0001 + number), 80)))
}

/// All of them with their real servers, as operations.
pub(crate) fn operations(virtual_servers: u32, real_servers: u32) -> impl Iterator<Item = Operation> {
    (0..virtual_servers).flat_map(move |number| {
        let add = Operation::AddVirtualServer(VirtualServer::new(key(number), Scheduler::RoundRobin));
        std::iter::once(add).chain((0..real_servers).map(move |real| {
            let addr = Ipv4Addr::from(0x7f10_0001 + number * real_servers + real);
            Operation::AddRealServer(key(number), RealServer::new(SocketAddr::from((addr, 8080))))
        }))
    })
}

/// The same as ipvsadm reads it.
fn text(virtual_servers: u32, real_servers: u32) -> String {
    let mut text = String::new();
    for number in 0..virtual_servers {
        let vip = Ipv4Addr::from(0x0a60_0001 + number);
        let _infallible = writeln!(text, "-A -t {vip}:80 -s rr");
        for real in 0..real_servers {
            let addr = Ipv4Addr::from(0x7f10_0001 + number * real_servers + real);
            let _infallible = writeln!(text, "-a -t {vip}:80 -r {addr}:8080 -m -w 1");
        }
    }
    text
}

/// A transport that keeps what it is given and answers as a kernel that accepts everything.
struct Recorder {
    sent: Arc<Mutex<Vec<u8>>>,
    answers: Vec<Vec<u8>>,
}

impl Transport for Recorder {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        // The family lookup is the first request; everything else counts.
        let lookup = datagram.get(4..6) == Some(&[0x10, 0]);
        let mut last = 0;
        let mut at = 0;
        while let Some(length) = datagram.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()) {
            last = at;
            at += usize::try_from(u32::from_ne_bytes(length)).map_err(io::Error::other)?.next_multiple_of(4);
        }
        let header = datagram.get(last..last + 16).unwrap_or_default().to_vec();
        let sequence = header.get(8..12).unwrap_or_default().to_vec();
        let message = |kind: u16, payload: &[u8]| {
            let mut out = u32::try_from(16 + payload.len()).unwrap_or_default().to_ne_bytes().to_vec();
            out.extend(kind.to_ne_bytes());
            out.extend(0_u16.to_ne_bytes());
            out.extend(&sequence);
            out.extend(0_u32.to_ne_bytes());
            out.extend(payload);
            out
        };
        if lookup {
            // Family id 0, as the C program prints it.
            self.answers.push(message(0x10, &[1, 2, 0, 0, 6, 0, 1, 0, 0, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0]));
        } else {
            self.sent.lock().unwrap_or_else(PoisonError::into_inner).extend(datagram);
        }
        let acknowledgement = [&0_i32.to_ne_bytes(), header.as_slice()].concat();
        self.answers.push(message(2, &acknowledgement));
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        if self.answers.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let answer = self.answers.remove(0);
        for (place, byte) in buffer.iter_mut().zip(&answer) {
            *place = *byte;
        }
        Ok(answer.len())
    }

    fn port(&self) -> u32 {
        0
    }

    fn in_flight(&self) -> usize {
        128
    }
}

/// Whether the C program and the crate send the same bytes: sequence numbers aside, since the crate has looked the family up
/// with its first.
fn same_bytes() -> Result<(), Failure> {
    let (virtual_servers, real_servers) = (50, 3);
    let sent = Arc::new(Mutex::new(Vec::new()));
    let mut client = Client::with_transport(Recorder { sent: Arc::clone(&sent), answers: Vec::new() })?;
    client.run(operations(virtual_servers, real_servers)).into_result()?;
    let mut ours = sent.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let arguments = [virtual_servers.to_string(), real_servers.to_string(), "--print".to_owned()];
    let mut theirs = Command::new(program::in_c("ipvs_batch")?).args(arguments).output()?.stdout;
    for bytes in [&mut ours, &mut theirs] {
        let mut at = 0;
        while let Some(length) = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()) {
            if let Some(sequence) = bytes.get_mut(at + 8..at + 12) {
                sequence.fill(0);
            }
            at += usize::try_from(u32::from_ne_bytes(length))?.next_multiple_of(4);
        }
    }
    program::same_bytes(&ours, &theirs)
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    same_bytes()?;
    let (virtual_servers, real_servers) = if options.smoke { ("50", "4") } else { ("1000", "10") };
    let (c, ours, single, ipvsadm) =
        ("C program, batches of 128", "ipvs crate, one batch", "ipvs crate, one call each", "ipvsadm --restore");
    let side = |way: &'static str| move || namespace::measure(&["ipvs-program", way, virtual_servers, real_servers]);
    let mut report = Report::new("ipvs-program", options);
    let group = ("Virtual servers with 10 real servers each, from nothing", Some(virtual_servers.parse()?));
    let sides = vec![
        Side::new(c, side("c")),
        Side::new(ours, side("ours")),
        Side::new(single, side("single")),
        Side::new(ipvsadm, side("ipvsadm")),
    ];
    compare(&mut report, options, group, sides)?;
    report.ratio("P1: ipvs crate / C program", group, ours, c, Goal::AtMost("<= 1.15", 1.15));
    report.ratio("P2: ipvsadm --restore / ipvs crate", group, ipvsadm, ours, Goal::AtLeast(">= 20", 20.0));
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<Duration, Failure> {
    let [way, virtual_servers, real_servers] = arguments else { return Err("WAY VIRTUAL_SERVERS REAL_SERVERS".into()) };
    let (virtual_count, real_count): (u32, u32) = (virtual_servers.parse()?, real_servers.parse()?);
    // Untimed: what a running kernel has loaded already.
    Client::open()?.add_virtual_server(&VirtualServer::new(key(60_000), Scheduler::RoundRobin))?;
    // Two passes, each in a fresh namespace, of which the second counts: under an emulator the first one also pays for the
    // translation of the program. The C program does the same by itself; ipvsadm's share of that is below one percent.
    let twice = |pass: &dyn Fn() -> Result<Duration, Failure>| {
        pass()?;
        namespace::enter_fresh()?;
        pass()
    };
    let took = match *way {
        "c" => {
            let output = Command::new(program::in_c("ipvs_batch")?)
                .args([virtual_servers, real_servers])
                .stderr(Stdio::inherit())
                .output()?;
            return Ok(Duration::from_nanos(String::from_utf8(output.stdout)?.trim().parse()?));
        }
        // Socket, family lookup and all: what a caller waits for.
        "ours" => twice(&|| {
            let start = Instant::now();
            Client::open()?.run(operations(virtual_count, real_count)).into_result()?;
            Ok(start.elapsed())
        })?,
        "single" => twice(&|| {
            let start = Instant::now();
            let mut client = Client::open()?;
            for operation in operations(virtual_count, real_count) {
                client.run([operation]).into_result()?;
            }
            Ok(start.elapsed())
        })?,
        "ipvsadm" => {
            let path = std::env::temp_dir().join(format!("ipvsadm-{}", std::process::id()));
            std::fs::write(&path, text(virtual_count, real_count))?;
            let start = Instant::now();
            let status = Command::new("ipvsadm").arg("--restore").stdin(File::open(&path)?).status()?;
            let took = start.elapsed();
            std::fs::remove_file(&path)?;
            if !status.success() {
                return Err(format!("ipvsadm ended with {status}").into());
            }
            took
        }
        other => return Err(format!("no such way: {other}").into()),
    };
    // The timed side must have done the whole work.
    let entries = Client::open()?.snapshot()?.entries;
    let reals: usize = entries.iter().map(|entry| entry.real_servers.len()).sum();
    let expected = usize::try_from(virtual_count * real_count)?;
    if reals != expected {
        return Err(format!("{way} left {reals} real servers instead of {expected}").into());
    }
    Ok(took)
}
