//! Measurements that this machine's own kernel can make natively: sets, rules, and parsing.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use ipset::{Client, Entry, IfPresent, SetName, SetSpec, SetType};
use iptables::{Backend, Dump, Family, Iptables, System, Transaction};

use crate::namespace::{collect, tell};
use crate::program::feed;
use crate::report::{Report, float, ms};
use crate::{Failure, Options, cases, conn_list, kube_rules};

const CRATE: &str = "ipset crate";
const RESTORE: &str = "ipset restore";
const PROCESS: &str = "one process an entry";
const PER: &str = "µs an entry";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("host-library", options);
    report.note("Sets of type hash:ip,port. One process an entry is measured with the first 300 entries.");
    report.note("Sync: one entry of a hundred differs; ipset restore fills a second set and swaps it in, which is how it has to be done there.");
    report.note("Rules: those of kube-proxy's iptables mode, eight a Service; the size is the number of rules.");
    let sizes: &[&str] = match (options.smoke, options.quick) {
        (true, _) => &["200"],
        (_, true) => &["1000", "10000"],
        _ => &["1000", "10000", "100000"],
    };
    let services: &[&str] = if options.smoke { &["10"] } else { &["1250"] };
    for _ in 0..options.rounds {
        for size in sizes {
            collect(&mut report, &["sets", "entries", size])?;
        }
        for services in services {
            for backend in ["legacy", "nft"] {
                collect(&mut report, &["sets", "rules", backend, services])?;
            }
        }
        collect(&mut report, &["sets", "connections", if options.smoke { "1000" } else { "100000" }])?;
    }
    report.curve("add", "Adding entries", "Entries");
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        ["entries", number] => entries(number.parse()?),
        ["rules", backend, services] => rules(backend, services.parse()?),
        ["connections", number] => connections(number.parse()?),
        other => Err(format!("no such side: {other:?}").into()),
    }
}

fn program(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let output = Command::new(program).args(arguments).stdout(Stdio::null()).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments:?}: {}", told.trim()).into()) }
}

/// Runs something and tells what it took of each entry.
fn each(
    what: &str,
    size: u32,
    side: &str,
    number: usize,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let start = Instant::now();
    work()?;
    let micros = start.elapsed().as_secs_f64() * 1e6;
    tell(what, size, PER, side, micros / float(u64::try_from(number)?));
    Ok(())
}

fn whole(what: &str, size: u32, side: &str, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let start = Instant::now();
    work()?;
    tell(what, size, "ms", side, ms(start.elapsed()));
    Ok(())
}

fn new_set(client: &mut Client, name: &str, size: u32) -> Result<SetSpec, Failure> {
    let mut set = SetSpec::new(name.parse::<SetName>()?, SetType::HashIpPort);
    // Room from the start for everybody: growing the table is the kernel's work, and the same for all.
    set.options.hashsize = Some(size.next_power_of_two());
    set.options.maxelem = Some(size.saturating_mul(2).max(65_536));
    client.create_set(&set)?;
    Ok(set)
}

/// Lines of `ipset restore` that add entries.
fn additions(set: &str, entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let _infallible = writeln!(text, "add {set} {entry}");
    }
    text
}

fn entries(size: u32) -> Result<(), Failure> {
    let all = cases::entries(size);
    let mut client = Client::open()?;
    let full = |client: &mut Client, name: &SetName, number: usize| -> Result<(), Failure> {
        let found = client.get_set(name)?.entries.len();
        if found == number { Ok(()) } else { Err(format!("{found} entries in {name} instead of {number}").into()) }
    };
    let ours = new_set(&mut client, "ours", size)?;
    each("Adding entries", size, CRATE, all.len(), || {
        client.add_entries(&ours.name, &all, IfPresent::Refuse).into_result()?;
        Ok(())
    })?;
    full(&mut client, &ours.name, all.len())?;

    let theirs = new_set(&mut client, "theirs", size)?;
    let text = additions("theirs", &all);
    each("Adding entries", size, RESTORE, all.len(), || feed("ipset", &["restore"], &text).map(drop))?;
    full(&mut client, &theirs.name, all.len())?;

    let few = all.get(..300).unwrap_or(&all);
    let words: Vec<String> = few.iter().map(ToString::to_string).collect();
    let single = new_set(&mut client, "single", size)?;
    each("Adding entries", size, PROCESS, few.len(), || {
        words.iter().try_for_each(|entry| program("ipset", &["add", "single", entry]))
    })?;
    full(&mut client, &single.name, few.len())?;

    each("Testing entries", size, CRATE, all.len(), || {
        for entry in &all {
            if !client.test_entry(&ours.name, entry)? {
                return Err("an entry is missing".into());
            }
        }
        Ok(())
    })?;
    each("Testing entries", size, PROCESS, few.len(), || {
        words.iter().try_for_each(|entry| program("ipset", &["test", "ours", entry]))
    })?;

    whole("Reading a set", size, CRATE, || full(&mut client, &ours.name, all.len()))?;
    whole("Reading a set", size, "ipset save", || program("ipset", &["save", "ours"]))?;

    // The first hundredth goes, as many others come.
    let hundredth = usize::try_from(size / 100)?;
    let more = cases::entries(size.saturating_add(size / 100));
    let changed = more.get(hundredth..).unwrap_or(&more);
    whole("Bringing a set to other entries", size, CRATE, || {
        let report = client.sync(&ours, changed)?;
        if report.added == hundredth { Ok(()) } else { Err(format!("{report:?}").into()) }
    })?;
    full(&mut client, &ours.name, changed.len())?;
    let room = size.saturating_mul(2).max(65_536);
    let text = format!(
        "create other hash:ip,port hashsize {} maxelem {room}\n{}swap other theirs\ndestroy other\n",
        size.next_power_of_two(),
        additions("other", changed)
    );
    whole("Bringing a set to other entries", size, RESTORE, || feed("ipset", &["restore"], &text).map(drop))?;
    full(&mut client, &theirs.name, changed.len())?;

    whole("Swapping two sets", size, CRATE, || Ok(client.swap_sets(&ours.name, &theirs.name)?))?;
    whole("Swapping two sets", size, "ipset swap", || program("ipset", &["swap", "ours", "theirs"]))
}

fn rules(backend: &str, services: u32) -> Result<(), Failure> {
    let (backend, save, restore, side) = match backend {
        "legacy" => (Backend::Legacy, "iptables-legacy-save", "iptables-legacy-restore", "iptables-legacy"),
        _ => (Backend::NfTables, "iptables-nft-save", "iptables-nft-restore", "iptables-nft"),
    };
    let text = kube_rules::full(services, 2);
    let dump = Dump::parse(&text)?;
    let size = u32::try_from(dump.rule_count())?;
    let mut transaction = Transaction::new();
    for table in &dump.tables {
        let edit = transaction.table(table.name().clone());
        for chain in table.chains() {
            edit.chain(chain.name.clone());
        }
        for chain in table.chains() {
            edit.replace_chain(&chain.name, chain.rules.iter().cloned());
        }
    }
    let iptables = Iptables::open(System::new(), Family::Ipv4, backend)?;
    let what = format!("Rules with {side}: restore");
    whole(&what, size, "iptables crate", || Ok(iptables.restore(&transaction)?))?;
    let found = iptables.dump()?.rule_count();
    if found < dump.rule_count() {
        return Err(format!("{found} rules after a restore of {size}").into());
    }
    whole(&what, size, restore, || feed(restore, &["--noflush"], &text).map(drop))?;
    let what = format!("Rules with {side}: read");
    whole(&what, size, "iptables crate", || {
        let found = iptables.dump()?.rule_count();
        if found < dump.rule_count() { Err(format!("{found} rules").into()) } else { Ok(()) }
    })?;
    whole(&what, size, save, || program(save, &[]))?;
    if backend == Backend::Legacy {
        whole("Rules: parsing text only", size, "Dump::parse", || {
            Dump::parse(&text)?;
            Ok(())
        })?;
    }
    Ok(())
}

fn connections(number: u32) -> Result<(), Failure> {
    let text = conn_list::text(number);
    let expected = usize::try_from(number)?;
    each("Reading a made-up connection list", number, "ipvs crate", expected, || {
        let found = conn_list::parse(&text);
        if found == expected { Ok(()) } else { Err(format!("{found} connections").into()) }
    })?;
    each("Reading a made-up connection list", number, "splitting lines at blanks", expected, || {
        let words: usize = text.lines().map(|line| line.split_whitespace().count()).sum();
        if words > expected { Ok(()) } else { Err("no words".into()) }
    })
}
