//! P1 and P2: programming 1,000 virtual servers with 10 real servers each.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use ipvs::fake::FakeIpvs;
use ipvs::{Client, Operation, RealServer, Scheduler, VirtualServer, VirtualServerKey};

use crate::namespace::{collect, enter_fresh, tell};
use crate::program::timed;
use crate::report::{Goal, Report, ms};
use crate::tape::Tape;
use crate::world::cluster_ip;
use crate::{Failure, Options, program};

const WHAT: &str = "Virtual servers with 10 real servers each, from nothing";
const C: &str = "C program, batches of 128";
const OURS: &str = "ipvs crate, one batch";
const IPVSADM: &str = "ipvsadm --restore";
/// Real servers of each.
const REAL_SERVERS: u32 = 10;

/// The n-th virtual server's key.
pub(crate) fn key(number: u32) -> VirtualServerKey {
    VirtualServerKey::tcp(SocketAddr::from((cluster_ip(number), 80)))
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

/// The same in ipvsadm's syntax.
fn text(virtual_servers: u32, real_servers: u32) -> String {
    let mut text = String::new();
    for number in 0..virtual_servers {
        let vip = cluster_ip(number);
        let _infallible = writeln!(text, "-A -t {vip}:80 -s rr");
        for real in 0..real_servers {
            let addr = Ipv4Addr::from(0x7f10_0001 + number * real_servers + real);
            let _infallible = writeln!(text, "-a -t {vip}:80 -r {addr}:8080 -m -w 1");
        }
    }
    text
}

/// Checks that the C program and the crate send the same bytes. Sequence numbers differ, since the crate has looked up
/// the family first, and so does the family's number, which the C program prints as 0.
fn same_bytes() -> Result<(), Failure> {
    let (virtual_servers, real_servers) = (50, 3);
    let (kernel, tape) = (FakeIpvs::new(), Tape::default());
    let mut client = Client::with_transport(tape.record(kernel.transport()))?;
    client.run(operations(virtual_servers, real_servers)).into_result()?;
    // The first one looks up the family.
    let mut ours = tape.sent().get(1..).unwrap_or_default().concat();
    let (virtual_servers, real_servers) = (virtual_servers.to_string(), real_servers.to_string());
    let mut theirs = program::in_c("ipvs_batch", &[&virtual_servers, &real_servers, "--print"])?;
    for bytes in [&mut ours, &mut theirs] {
        let mut at = 0;
        while let Some(length) = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()) {
            for field in [4..6, 8..12] {
                bytes.get_mut(at + field.start..at + field.end).unwrap_or_default().fill(0);
            }
            at += usize::try_from(u32::from_ne_bytes(length))?.next_multiple_of(4);
        }
    }
    program::same_bytes(&ours, &theirs)
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    same_bytes()?;
    let virtual_servers = if options.smoke { "50" } else { "1000" };
    let mut report = Report::new("ipvs-program", options);
    for _ in 0..options.rounds {
        for way in ["c", "ours", "ipvsadm"] {
            collect(&mut report, &["ipvs-program", way, virtual_servers])?;
        }
    }
    let group = (WHAT, Some(virtual_servers.parse()?));
    report.ratio("P1: ipvs crate / C program", group, OURS, C, Goal::AtMost("<= 1.15", 1.15));
    report.ratio("P2: ipvsadm --restore / ipvs crate", group, IPVSADM, OURS, Goal::AtLeast(">= 20", 20.0));
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, virtual_servers] = arguments else { return Err("WAY VIRTUAL_SERVERS".into()) };
    let (virtual_count, real_count): (u32, u32) = (virtual_servers.parse()?, REAL_SERVERS);
    // Untimed: a running kernel has the modules loaded already.
    Client::open()?.add_virtual_server(&VirtualServer::new(key(60_000), Scheduler::RoundRobin))?;
    // Two passes, each in a fresh namespace, of which the second counts: in QEMU without KVM the first one also pays
    // for the translation of the program. The C program does the same itself; for ipvsadm this is below one percent.
    let twice = |pass: &dyn Fn() -> Result<(), Failure>| {
        pass()?;
        enter_fresh()?;
        timed(pass).map(|((), took)| took)
    };
    let (name, took) = match *way {
        "c" => {
            let took = program::timed_in_c("ipvs_batch", &[virtual_servers, &real_count.to_string()])?;
            tell(WHAT, virtual_count, "ms", C, ms(took));
            return Ok(());
        }
        // Including socket and family lookup: what a caller waits for.
        "ours" => {
            (OURS, twice(&|| Ok(Client::open()?.run(operations(virtual_count, real_count)).into_result().map(drop)?))?)
        }
        "ipvsadm" => (IPVSADM, program::feed("ipvsadm", &["--restore"], &text(virtual_count, real_count))?),
        other => return Err(format!("no such way: {other}").into()),
    };
    // The timed side must have done all the work.
    let entries = Client::open()?.snapshot()?.entries;
    let reals: usize = entries.iter().map(|entry| entry.real_servers.len()).sum();
    let expected = usize::try_from(virtual_count * real_count)?;
    if reals != expected {
        return Err(format!("{way} left {reals} real servers instead of {expected}").into());
    }
    tell(WHAT, virtual_count, "ms", name, ms(took));
    Ok(())
}
