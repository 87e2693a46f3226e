//! P3: 20,000 entries into a set.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ipset::{Client, Element, Entry, IfPresent, IpSpan, SetName, SetSpec, SetType};

use crate::compare::{Side, compare};
use crate::report::{Goal, Report};
use crate::{Failure, Options, namespace, program};

const SET: &str = "filled";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let entries = if options.smoke { "500" } else { "20000" };
    let (ours, restore, each) = ("ipset crate", "ipset restore", "ipset crate, one call each");
    let side = |way: &'static str| move || namespace::measure(&["ipset-fill", way, entries]);
    let mut report = Report::new("ipset-fill", options);
    let group = ("Filling a set", Some(entries.parse()?));
    let sides = vec![Side::new(ours, side("ours")), Side::new(restore, side("restore")), Side::new(each, side("each"))];
    compare(&mut report, options, group, sides)?;
    report.ratio("P3: ipset restore / ipset crate", group, restore, ours, Goal::AtLeast(">= 25", 25.0));
    report.finish()
}

fn address(number: u32) -> Ipv4Addr {
    // Spread over the range, as pod addresses are.
    Ipv4Addr::from(0x0a00_0001 + number * 7)
}

pub(crate) fn side(arguments: &[&str]) -> Result<Duration, Failure> {
    let [way, count] = arguments else { return Err("WAY ENTRIES".into()) };
    let count: u32 = count.parse()?;
    let name: SetName = SET.parse()?;
    let mut set = SetSpec::new(name.clone(), SetType::HashIp);
    // Large enough from the start for everybody: growing the table is the kernel's work, and the same for all.
    set.options.hashsize = Some(32_768);
    Client::open()?.create_set(&set)?;
    let entries: Vec<Entry> =
        (0..count).map(|number| Entry::new(Element::Ip(IpSpan::host(address(number).into())))).collect();
    let took = match *way {
        "ours" => {
            let start = Instant::now();
            let report = Client::open()?.add_entries(&name, &entries, IfPresent::Refuse);
            let took = start.elapsed();
            report.into_result()?;
            took
        }
        "each" => {
            let start = Instant::now();
            let mut client = Client::open()?;
            for entry in &entries {
                client.add_entry(&name, entry)?;
            }
            start.elapsed()
        }
        "restore" => {
            let mut text = String::new();
            for number in 0..count {
                let _infallible = writeln!(text, "add {SET} {}", address(number));
            }
            program::feed("ipset", &["restore"], &text)?
        }
        other => return Err(format!("no such way: {other}").into()),
    };
    // The timed side must have done the whole work.
    let found = Client::open()?.get_set(&name)?.entries.len();
    if found != usize::try_from(count)? {
        return Err(format!("{way} left {found} entries instead of {count}").into());
    }
    Ok(took)
}
