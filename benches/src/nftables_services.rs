//! P10 to P12: nftables mode by number of Services: all from nothing, one change, a connection.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use nftables::{Client, ElementData, Family, TableKey};
use proxier_core::modes;

use crate::machine::unreclaimable;
use crate::modes::{LATENCY, connect, restore};
use crate::namespace::{collect, tell, warm_up};
use crate::network::Network;
use crate::node::Node;
use crate::program::feed;
use crate::report::{Goal, Report, ms};
use crate::world::{cluster_ip, endpoint_address};
use crate::{Failure, Options, kube_rules};

const PROGRAM: &str = "All Services from nothing";
const CHANGE: &str = "One changed endpoint";
const GROWTH: &str = "One endpoint more or less";
const NEW: &str = "A new Service";
const LAST: &str = "A Service's last endpoint goes";
const FIRST: &str = "A Service's first endpoint comes";
const OURS: &str = "nftables mode (Proxier)";
const NFT: &str = "nft -f";
const ENDPOINTS: u32 = 2;
/// The Services of a cluster for which kube-proxy's nftables mode is known to take 16 minutes.
const MANY: u32 = 44_125;
/// Changes in a run; the first one of a process is the slowest.
const CHANGES: u32 = 5;
/// With more Services, restoring kube-proxy's rules takes minutes.
const LEGACY_LIMIT: u32 = 10_000;
const NFT_LIMIT: u32 = 5_000;
/// Time limit for the kernel to destroy what the previous side left.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("nftables-services", options);
    report.note(format!("Services with {ENDPOINTS} endpoints each, in a fresh set of network namespaces every time."));
    report.note(
        "nftables mode: a whole pass of the reconciler, from checked objects to both families' tables. nft -f: the same IPv4 \
         table as text, and for a change the deletion and addition of its elements; the text is ready. iptables: kube-proxy's \
         rules, restored before.",
    );
    report.note("Each side waits until the kernel has given back the memory of the side before.");
    let (many, changed, connected): (u32, &[u32], &[u32]) = options.choose(
        (50, &[10, 50], &[10, 50]),
        (MANY, &[100, 10_000], &[10, 1_000]),
        (MANY, &[100, 1_000, 10_000, 50_000], &[10, 100, 1_000, 10_000, 50_000]),
    );
    let text = tempfile::NamedTempFile::new()?;
    let path = text.path().to_str().ok_or("the folder for temporary files has no name in UTF-8")?;
    warm_up(&["nftables-services", "write-text", &many.to_string(), path])?;
    let connections = if options.smoke { "20" } else { "1000" };
    for round in 0..options.rounds {
        let mut collect = |way, services: u32, rest| {
            settle();
            collect(&mut report, &["nftables-services", way, &services.to_string(), rest])
        };
        ["program", "program-nft"].into_iter().try_for_each(|way| collect(way, many, path))?;
        for services in changed {
            ["change", "change-nft"].into_iter().try_for_each(|way| collect(way, *services, path))?;
        }
        for services in connected {
            for (way, limit) in [("connect", u32::MAX), ("connect-legacy", LEGACY_LIMIT), ("connect-nft", NFT_LIMIT)] {
                if *services <= limit {
                    collect(way, *services, connections)?;
                }
            }
        }
        eprintln!("round {round}: done");
    }
    if !options.smoke {
        goals(&mut report, many, changed, connected);
    }
    report.finish()
}

fn goals(report: &mut Report, many: u32, changed: &[u32], connected: &[u32]) {
    let program = (PROGRAM, Some(many));
    report.ratio("P10: nftables mode / nft -f", program, OURS, NFT, Goal::AtMost("<= 0.5", 0.5));
    let took = report.median(PROGRAM, Some(many), OURS);
    report.goal(format!("P10: nftables mode, {many} Services"), took, Goal::AtMost("<= 3,000 ms", 3_000.0));
    if let Some(most) = changed.last() {
        let name = format!("P11: nftables mode / nft -f, {most} Services");
        report.ratio(&name, (CHANGE, Some(*most)), OURS, NFT, Goal::AtMost("<= 0.5", 0.5));
    }
    for (most, ms, text) in [(1_000, 1.0, "<= 1 ms"), (10_000, 3.0, "<= 3 ms"), (50_000, 10.0, "<= 10 ms")] {
        for what in [NEW, LAST, FIRST].into_iter().filter(|_| changed.contains(&most)) {
            let took = report.median(what, Some(most), OURS);
            report.goal(format!("P11: {what}, {most} Services"), took, Goal::AtMost(text, ms));
        }
    }
    if let (Some(least), Some(most)) = (changed.first(), changed.last()) {
        for (what, name) in [(CHANGE, "one change"), (GROWTH, "one endpoint more or less")] {
            let growth = report.median(what, Some(*most), OURS) / report.median(what, Some(*least), OURS);
            let name = format!("P11: {name}, {most} / {least} Services");
            report.goal(name, growth, Goal::Within("flat: 0.8 to 1.2", 0.8, 1.2));
        }
    }
    if let (Some(least), Some(most)) = (connected.first(), connected.last()) {
        // The machine's speed of connecting varies, so each is compared with connections past the Services at the same
        // time.
        let of = |size: u32, side: &str| report.median(LATENCY, Some(size), side);
        let relative = |size: u32| of(size, &format!("{OURS}, last")) / of(size, "directly, no Service");
        let growth = relative(*most) / relative(*least);
        let name = format!("P12: connecting, {most} / {least} Services");
        report.goal(name, growth, Goal::Within("flat: 0.9 to 1.1", 0.9, 1.1));
    }
}

/// Waits until the kernel frees no more memory: it destroys tables of removed namespaces in the background, for
/// seconds.
fn settle() {
    let end = Instant::now() + PATIENCE;
    let mut before = unreclaimable();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let after = unreclaimable();
        // KiB; other load on the machine is less.
        if before.zip(after).is_none_or(|(before, after)| before - after < 2_048.0) || Instant::now() >= end {
            return;
        }
        before = after;
    }
}

fn node(services: u32) -> Result<Node, Failure> {
    Node::in_mode(modes::Kind::Nftables, services, ENDPOINTS)
}

fn table() -> Result<TableKey, Failure> {
    Ok(TableKey::new(Family::Ip, "proxier")?)
}

/// Checks that the timed side did all the work.
///
/// While the kernel enlarges a hash table, in the background after many additions, its dump may omit or repeat elements
/// (net/netfilter/nft_set_hash.c, `nft_rhash_walk`, goes by a count). So this reads several times.
fn check(services: u32) -> Result<(), Failure> {
    has(&[("internal-4", services), ("endpoints", services * ENDPOINTS), ("cluster-ips", services)])
}

/// Checks that sets have as many elements.
fn has(sets: &[(&str, u32)]) -> Result<(), Failure> {
    let mut client = Client::open()?;
    let end = Instant::now() + PATIENCE;
    for &(set, wanted) in sets {
        loop {
            let mut found = BTreeSet::new();
            let mut all = 0_u32;
            client.for_each_element(&table()?.set(set)?, |element| {
                all += 1;
                found.insert(format!("{:?}", element.key));
            })?;
            if found.len() == wanted as usize && all == wanted {
                break;
            }
            if Instant::now() >= end {
                return Err(format!("{all} elements, {} different, instead of {wanted} in {set}", found.len()).into());
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    Ok(())
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, services, rest] = arguments else { return Err("WAY SERVICES TEXT|CONNECTIONS".into()) };
    let services: u32 = services.parse()?;
    match *way {
        "write-text" => {
            node(services)?.pass()?;
            let text = Client::open()?.snapshot(&table()?)?.to_string();
            if text.contains('#') {
                return Err("nft has no words for something in the table".into());
            }
            std::fs::write(rest, text)?;
        }
        "program" => {
            let mut node = node(services)?;
            let start = Instant::now();
            node.pass()?;
            tell(PROGRAM, services, "ms", OURS, ms(start.elapsed()));
            check(services)?;
        }
        "program-nft" => {
            let text = std::fs::read_to_string(rest)?;
            tell(PROGRAM, services, "ms", NFT, ms(feed("nft", &["-f", "-"], &text)?));
            check(services)?;
        }
        "change" => change(services)?,
        "change-nft" => change_nft(services)?,
        "connect" => {
            let network = Network::new(drop)?;
            node(services)?.pass()?;
            connect(&network, services, rest.parse()?, OURS)?;
        }
        "connect-legacy" | "connect-nft" => {
            let network = Network::new(drop)?;
            let (back_end, name) =
                if *way == "connect-legacy" { ("legacy", "iptables-legacy") } else { ("nft", "iptables-nft") };
            restore(back_end, kube_rules::JUMPS)?;
            restore(back_end, &kube_rules::full(services, ENDPOINTS))?;
            connect(&network, services, rest.parse()?, name)?;
        }
        other => return Err(format!("no such way: {other}").into()),
    }
    Ok(())
}

/// The endpoints of the changed Service after this many changes: the second one differs.
fn endpoints(change: u32) -> [u32; 2] {
    [0, 1 + change % 2]
}

fn change(services: u32) -> Result<(), Failure> {
    let mut node = node(services)?;
    node.pass()?;
    let mut timed = |what: &str, endpoints: &[u32]| {
        tell(what, services, "ms", OURS, node.timed_change(services / 2, endpoints)?);
        Ok::<(), Failure>(())
    };
    for change in 1..=CHANGES {
        timed(CHANGE, &endpoints(change))?;
    }
    for change in 1..=CHANGES {
        timed(GROWTH, if change.is_multiple_of(2) { &[0, 1] } else { &[0, 1, 2] })?;
    }
    for _ in 1..=CHANGES {
        timed(LAST, &[])?;
        timed(FIRST, &[0])?;
    }
    for new in (services..).take(CHANGES as usize) {
        tell(NEW, services, "ms", OURS, node.timed(|node| node.add(new, ENDPOINTS))?);
    }
    // One endpoint of the changed Service is left.
    let all = services + CHANGES;
    has(&[("cluster-ips", all), ("endpoints", all * ENDPOINTS - 1)])
}

fn change_nft(services: u32) -> Result<(), Failure> {
    node(services)?.pass()?;
    let service = services / 2;
    let element = |slot: u32, endpoint: u32| {
        let (address, to) = (cluster_ip(service), endpoint_address(service, endpoint));
        format!("{address} . tcp . 80 . {slot} : {to} . 8080")
    };
    for change in 1..=CHANGES {
        let ([_, old], [_, new]) = (endpoints(change - 1), endpoints(change));
        let mut text = String::new();
        for (verb, endpoint) in [("delete", old), ("add", new)] {
            let _infallible = writeln!(text, "{verb} element ip proxier endpoints {{ {} }}", element(1, endpoint));
        }
        tell(CHANGE, services, "ms", NFT, ms(feed("nft", &["-f", "-"], &text)?));
    }
    let [_, last] = endpoints(CHANGES);
    let last = endpoint_address(service, last);
    let mut is_there = false;
    Client::open()?.for_each_element(&table()?.set("endpoints")?, |element| {
        let Some(ElementData::Value(endpoint)) = element.data else { return };
        is_there |= endpoint.as_bytes().starts_with(&last.octets());
    })?;
    if is_there { Ok(()) } else { Err("nft has changed nothing".into()) }
}
