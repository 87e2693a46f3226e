//! Reading the whole table: ways compared.

use std::time::{Duration, Instant};

use ipvs::{Client, VirtualServerKey};

use crate::compare::{Side, compare};
use crate::report::Report;
use crate::{Failure, Options, ipvs_program, namespace};

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (virtual_servers, real_servers) = match (options.smoke, options.quick) {
        (true, _) => ("50", "4"),
        (_, true) => ("1000", "10"),
        _ => ("2000", "10"),
    };
    let side = |way: &'static str| move || namespace::measure(&["ipvs-snapshot", way, virtual_servers, real_servers]);
    let mut report = Report::new("ipvs-snapshot", options);
    let group = ("Reading virtual servers with 10 real servers each", Some(virtual_servers.parse()?));
    let sides = vec![
        Side::new("snapshot(): one dump a virtual server", side("snapshot")),
        Side::new("the same, two sockets in two threads", side("two")),
        Side::new("virtual servers only", side("virtual")),
        Side::new("/proc/net/ip_vs, read and dropped", side("proc")),
        Side::new("ipvsadm --save -n", side("ipvsadm")),
    ];
    compare(&mut report, options, group, sides)?;
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<Duration, Failure> {
    let [way, virtual_servers, real_servers] = arguments else { return Err("WAY VIRTUAL_SERVERS REAL_SERVERS".into()) };
    let mut client = Client::open()?;
    client.run(ipvs_program::operations(virtual_servers.parse()?, real_servers.parse()?)).into_result()?;
    let start = Instant::now();
    let found = match *way {
        "snapshot" => client.snapshot()?.entries.len(),
        "two" => {
            // Each thread reads the real servers of every second virtual server over a socket of its own.
            let keys: Vec<VirtualServerKey> =
                client.list_virtual_servers()?.iter().map(|observed| observed.server.key).collect();
            let read = |first: usize| -> Result<usize, ipvs::Error> {
                let mut client = Client::open()?;
                let mut read = 0;
                for key in keys.iter().skip(first).step_by(2) {
                    client.list_real_servers(key)?;
                    read += 1;
                }
                Ok(read)
            };
            let (one, other) = std::thread::scope(|scope| {
                let other = scope.spawn(|| read(1));
                (read(0), other.join())
            });
            one? + other.map_err(|_panic| "the second thread panicked")??
        }
        "virtual" => client.list_virtual_servers()?.len(),
        "proc" => {
            let text = std::fs::read("/proc/thread-self/net/ip_vs")?;
            text.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"TCP")).count()
        }
        "ipvsadm" => {
            let output = std::process::Command::new("ipvsadm").args(["--save", "-n"]).output()?;
            output.stdout.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"-A")).count()
        }
        other => return Err(format!("no such way: {other}").into()),
    };
    let took = start.elapsed();
    if found != virtual_servers.parse::<usize>()? {
        return Err(format!("{way} found {found} virtual servers instead of {virtual_servers}").into());
    }
    Ok(took)
}
