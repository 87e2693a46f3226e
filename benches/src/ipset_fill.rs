//! P3: 20,000 entries into a set.

use std::net::Ipv4Addr;

use ipset::{Client, Element, Entry, IfPresent, IpSpan, SetName, SetSpec, SetType};

use crate::namespace::{compare, tell};
use crate::program::timed;
use crate::report::{Goal, Report, ms};
use crate::{Failure, Options, program};

const SET: &str = "filled";
const WHAT: &str = "Filling a set";
const OURS: &str = "ipset crate";
const RESTORE: &str = "ipset restore";
const EACH: &str = "ipset crate, one call each";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let entries = if options.smoke { "500" } else { "20000" };
    let mut report = Report::new("ipset-fill", options);
    compare(&mut report, options, ("ipset-fill", entries), &[("ours", OURS), ("restore", RESTORE), ("each", EACH)])?;
    let group = (WHAT, Some(entries.parse()?));
    report.ratio("P3: ipset restore / ipset crate", group, RESTORE, OURS, Goal::AtLeast(">= 25", 25.0));
    report.finish()
}

fn address(number: u32) -> Ipv4Addr {
    // Spread over the range, as pod addresses are.
    Ipv4Addr::from(0x0a00_0001 + number * 7)
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, count] = arguments else { return Err("WAY ENTRIES".into()) };
    let count: u32 = count.parse()?;
    let set_name: SetName = SET.parse()?;
    let mut set = SetSpec::new(set_name.clone(), SetType::HashIp);
    // Large enough from the start for everybody: growing the table is the kernel's work, and the same for all.
    set.options.hashsize = Some(32_768);
    Client::open()?.create_set(&set)?;
    let entries: Vec<Entry> =
        (0..count).map(|number| Entry::new(Element::Ip(IpSpan::host(address(number).into())))).collect();
    let (name, took) = match *way {
        "ours" => {
            let add = || Client::open()?.add_entries(&set_name, &entries, IfPresent::Refuse).into_result();
            (OURS, timed(add)?.1)
        }
        "each" => {
            let add = || {
                let mut client = Client::open()?;
                entries.iter().try_for_each(|entry| client.add_entry(&set_name, entry))
            };
            (EACH, timed(add)?.1)
        }
        "restore" => {
            let lines: Vec<_> = (0..count).map(|number| format!("add {SET} {}\n", address(number))).collect();
            (RESTORE, program::feed("ipset", &["restore"], &lines.concat())?)
        }
        other => return Err(format!("no such way: {other}").into()),
    };
    // The timed side must have done the whole work.
    let found = Client::open()?.get_set(&set_name)?.entries.len();
    if found != usize::try_from(count)? {
        return Err(format!("{way} left {found} entries instead of {count}").into());
    }
    tell(WHAT, count, "ms", name, ms(took));
    Ok(())
}
