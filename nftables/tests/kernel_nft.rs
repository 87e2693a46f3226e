//! Against the program `nft`, both ways: what it writes we read and write again, what we write it prints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

#[allow(dead_code, unused_imports, unused_macros, reason = "the cases run in another test program")]
mod suite;

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nftables::expr::CtKey;
use nftables::{
    BaseChain, Chain, ChainType, Change, Client, DataType, Element, Event, Events, Family, Flowtable, FlowtableFlags,
    Hook, Operand, Priority, Set, SetFlags, Table, TableFlags, TableKey, TableSpec, Transaction, Value, rule,
};
use serde_json::Value as Json;
use testkit::{Need, Netns, kernel_test, oracle, veth_pair};

const NEEDS: &[Need] = &[Need::Root, Need::Nftables];

fn nft(arguments: &[&str], input: Option<&str>) -> Result<String, String> {
    oracle::run("nft", arguments, input).map(|output| output.stdout).map_err(|error| error.to_string())
}

fn load(text: &str) {
    nft(&["-f", "-"], Some(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
}

/// The rule set as nft lists it, without handles, the numbers of anonymous sets and the order of elements.
fn listed() -> Json {
    let mut json: Json = serde_json::from_str(&nft(&["-j", "list", "ruleset"], None).unwrap()).unwrap();
    steady(&mut json);
    json
}

fn steady(json: &mut Json) {
    match json {
        Json::Object(map) => {
            map.remove("handle");
            map.remove("expires");
            map.remove("metainfo");
            map.values_mut().for_each(steady);
            for name in ["elem", "set"] {
                if let Some(Json::Array(elements)) = map.get_mut(name) {
                    elements.sort_by_key(Json::to_string);
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(steady),
        _ => {}
    }
}

fn keys(client: &mut Client) -> Vec<TableKey> {
    client.list_tables(None).unwrap().into_iter().map(|found| found.table.key).collect()
}

fn flush() {
    nft(&["flush", "ruleset"], None).unwrap();
}

/// Reads everything, deletes it, writes it again.
fn write_again(client: &mut Client) {
    let mut transaction = Transaction::new();
    for key in keys(client) {
        transaction.append(client.snapshot(&key).unwrap().to_transaction().unwrap());
    }
    flush();
    client.commit(&transaction).unwrap();
}

/// What nft lists is the same after it was written again as messages, and as our text, which is returned.
fn comes_back(client: &mut Client) -> String {
    let (before, text) = (listed(), snapshots(client));
    assert!(!text.contains('#'), "{text}");
    write_again(client);
    assert_eq!(listed(), before, "{text}");
    flush();
    load(&text);
    assert_eq!(listed(), before, "{text}");
    text
}

/// Checks that nft lists the same rule set after this crate has read and written it.
fn survives(text: &str) {
    kernel_test(NEEDS, || {
        load(text);
        let before = listed();
        let mut client = Client::open().unwrap();
        write_again(&mut client);
        assert_eq!(listed(), before);
    });
}

/// What nft lists, after what it listed was written again as messages, and as text where that has words for all.
fn survives_word_for_word(client: &mut Client, text: Option<&str>) {
    let before = nft(&["list", "ruleset"], None).unwrap();
    let ours = snapshots(client);
    write_again(client);
    assert_eq!(nft(&["list", "ruleset"], None).unwrap(), before);
    if let Some(words) = text {
        assert!(ours.contains(words) && !ours.contains('#'), "{ours}");
        flush();
        load(&ours);
        assert_eq!(nft(&["list", "ruleset"], None).unwrap(), before, "{ours}");
        assert_eq!(snapshots(client), ours);
    }
}

#[test]
fn sets_and_maps_of_nft_survive() {
    survives(include_str!("fixtures/tables/sets-and-maps.nft"));
}

/// Rules come back in `come_back`.
#[test]
fn base_chains_of_nft_survive() {
    survives(include_str!("fixtures/tables/base-chains.nft"));
}

/// As messages, and as text that has these words.
fn survives_as_text(text: &str, words: &str) {
    kernel_test(NEEDS, || {
        load(text);
        survives_word_for_word(&mut Client::open().unwrap(), Some(words));
    });
}

#[test]
fn what_sets_are_made_of_survives() {
    let text = include_str!("fixtures/tables/typeof-sets.nft");
    survives_as_text(text, "typeof vlan id . ip saddr . meta mark");
}

#[test]
fn translations_to_ranges_survive() {
    let text = include_str!("fixtures/tables/translations-to-ranges.nft");
    survives_as_text(text, "dnat to [dead::1]-[dead::9]:80-90");
}

#[test]
fn parts_of_a_rule_survive_a_restore() {
    kernel_test(NEEDS, || {
        load(include_str!("fixtures/tables/parts-of-rules.nft"));
        let mut client = Client::open().unwrap();
        survives_word_for_word(&mut client, Some("counter accept; drop; }"));
        // In a transaction of its own: else nft makes the set a dynamic one.
        load("add rule ip t c add @written { ip saddr }\n");
        survives_word_for_word(&mut client, None);
        // Chains of rules go with them.
        let key = TableKey::new(Family::Ip, "t").unwrap();
        let plan = client.sync(&TableSpec::new(Table::new(key.clone()))).unwrap();
        assert!(!plan.to_string().contains("__chain"), "{plan}");
        assert_eq!(client.list_chains(&key).unwrap(), []);
    });
}

/// nft's notes about operands for which this crate has none are written as they were read.
#[test]
fn sets_of_hashes_sockets_and_routes_survive() {
    kernel_test(NEEDS, || {
        load(include_str!("fixtures/tables/hashes-sockets-routes.nft"));
        let mut client = Client::open().unwrap();
        survives_word_for_word(&mut client, None);
        flush();
        load("table inet t { set hashed { typeof jhash ip saddr mod 4; elements = { 1 }; }\n}\n");
        // nft 1.0.6 ends with a signal when it lists a set of `jhash`, its own too.
        let key = TableKey::new(Family::Inet, "t").unwrap().set("hashed").unwrap();
        let before = client.get_set(&key).unwrap().set;
        assert!(!before.userdata.is_empty());
        write_again(&mut client);
        assert_eq!(client.get_set(&key).unwrap().set, before);
    });
}

/// Our text says to nft what our messages say to the kernel.
fn text_says_the_same(build: impl FnOnce(&mut Transaction)) {
    kernel_test(NEEDS, || {
        let mut client = Client::open().unwrap();
        let mut transaction = Transaction::new();
        build(&mut transaction);
        client.commit(&transaction).unwrap();
        let wanted = listed();
        let (commands, tables) = (transaction.to_string(), snapshots(&mut client));
        nft(&["-c", "-f", "-"], Some(&commands)).unwrap_or_else(|error| panic!("{error}\n{commands}"));
        for text in [commands, tables] {
            assert!(!text.contains('#'), "{text}");
            flush();
            load(&text);
            assert_eq!(listed(), wanted, "{text}");
        }
    });
}

/// What rules of the lists refer to.
const REFERRED: &str = include_str!("fixtures/tables/referred.nft");

/// The devices of the rules' network namespace besides `lo`.
const DEVICES: [&str; 2] = ["pair0", "pair1"];

/// Names of numbers as the host's own files and programs have them.
fn host_name(of: DataType, number: u64) -> Option<String> {
    let from_file = |path: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find_map(|row| matches!(row[..], [of, _] if of == number.to_string()).then(|| row[1].to_owned()))
    };
    let date = |seconds: u64, format: &str| {
        let output = oracle::run("date", &["-d", &format!("@{seconds}"), format], None).unwrap();
        output.stdout.trim().to_owned()
    };
    match of {
        DataType::IFACE_INDEX => {
            let text = oracle::run("ip", &["-o", "link"], None).unwrap().stdout;
            let rest = text.lines().find_map(|line| line.strip_prefix(&format!("{number}: ")))?;
            Some(rest.split([':', '@']).next()?.to_owned())
        }
        DataType::DEVICE_GROUP => from_file("/etc/iproute2/group"),
        DataType::REALM => from_file("/etc/iproute2/rt_realms"),
        DataType::MARK => from_file("/etc/iproute2/rt_marks"),
        // Of today: the time zone may have summer time.
        DataType::HOUR => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            let time = date(now - now % 86_400 + number, "+%T");
            Some(time.strip_suffix(":00").map_or(time.clone(), str::to_owned))
        }
        DataType::TIME_DATE => Some(date(number / 1_000_000_000, "+%F %T")),
        other => panic!("{other:?} has no names of the host"),
    }
}

/// Rules of which nft lists something else than it reads, or than the kernel has.
const OTHERWISE: &[&str] = &[
    // By another key of the kernel's, of one family (`ct original ip saddr`); the network as `0.0.0.10`.
    "ct original saddr 10.0.0.1",
    "ct original saddr 2001:db8::1",
    "ct reply daddr 10.0.0.0/8",
    // In the order of the kernel's hash: it does not sort what is several bits.
    "tcp flags vmap { syn : accept, syn | ack : drop }",
    // A rule without text: its type has no length.
    "ct label { 5, 6 }",
    // With a window scale or a segment size of 0, which the rule does not offer.
    "synproxy mss 1460",
    "synproxy wscale 7 timestamp",
    // With a name, which it does not read.
    "ip protocol set 17",
    "ip6 nexthdr set 6",
    // Without the match on the type of the device, which it does not add for bridges.
    "tcp dport 22 iiftype ether ether saddr 00:0f:54:0c:11:04 accept",
    // As `th sport set th sport & 65281 | 1`.
    "icmp code set 1",
    // Without the match on the protocol, which it wants of text.
    "dnat ip to tcp dport map { 80 : 10.0.0.1, 443 : 10.0.0.2 }",
    "dnat ip to ip daddr . tcp dport map { 10.0.0.9 . 80 : 10.0.0.1 . 8080 }",
];

/// Rules by the number of their chain.
type Numbered = BTreeMap<usize, String>;

/// Moves rules that nft or the kernel refuses to another list, with the error.
fn split_refused(ruleset: &dyn Fn(&Numbered) -> String, mut rules: Numbered, refused: &mut Numbered) -> Numbered {
    let Err(error) = nft(&["-c", "-f", "-"], Some(&ruleset(&rules))) else { return rules };
    if rules.len() <= 1 {
        refused.extend(rules.keys().map(|number| (*number, error.clone())));
        return Numbered::new();
    }
    let middle = *rules.keys().nth(rules.len() / 2).unwrap();
    let second = rules.split_off(&middle);
    let mut taken = split_refused(ruleset, rules, refused);
    taken.extend(split_refused(ruleset, second, refused));
    taken
}

/// What nft lists of this kind, or of all others.
fn listed_parts(kind: &str, is_of_it: bool) -> Vec<Json> {
    let Json::Array(mut parts) = listed()["nftables"].take() else { panic!("no list") };
    parts.retain(|part| part.get(kind).is_some() == is_of_it);
    parts
}

/// The rule of each chain, as nft lists it.
fn listed_rules() -> BTreeMap<String, Json> {
    let rules = listed_parts("rule", true).into_iter().map(|mut part| part["rule"].take());
    rules.map(|rule| (rule["chain"].as_str().unwrap().to_owned(), rule)).collect()
}

/// Rules as nft writes them, one a line, each in a chain of this table and hook: `nft` lists the same again when it gets our text
/// of what it wrote, and when what was read is written by netlink.
fn come_back(table: &str, hook: &str, list: &str) {
    kernel_test(NEEDS, || {
        let pair = ["link", "add", DEVICES[0], "type", "veth", "peer", "name", DEVICES[1]];
        oracle::run("ip", &pair, None).unwrap();
        let ruleset = |rules: &Numbered| {
            let chains = rules.iter().map(|(number, rule)| format!("chain c{number} {{\n{hook}\n{rule}\n}}\n"));
            format!("{table} {{\n{REFERRED}\n{}}}\n", chains.collect::<String>())
        };
        let rules: Vec<&str> = list.lines().collect();
        let mut missing = Numbered::new();
        let all =
            split_refused(&ruleset, rules.iter().map(|rule| (*rule).to_owned()).enumerate().collect(), &mut missing);
        for (number, error) in &missing {
            // The module of an expression (nft_meta_bridge, nft_queue …).
            let is_missing = ["Operation not supported", "No such file"].iter().any(|why| error.contains(why));
            assert!(is_missing, "{}: {error}", rules[*number]);
        }
        let names: Vec<&str> = missing.keys().map(|number| rules[*number]).collect();
        eprintln!("{table}: {} rules; not on this kernel: {names:?}", all.len());
        load(&ruleset(&all));
        let (wanted, parts) = (listed_rules(), listed_parts("rule", false));
        assert_eq!(wanted.len(), all.len());
        // nft lists no set behind one whose type has no length for it.
        load(&format!(
            "flush ruleset\n{}",
            ruleset(
                &all.iter()
                    .filter(|(_, rule)| !rule.starts_with("ct label {"))
                    .map(|(number, rule)| (*number, rule.clone()))
                    .collect()
            )
        ));
        let plain = in_one_line(&nft(&["list", "ruleset"], None).unwrap());
        load(&format!("flush ruleset\n{}", ruleset(&all)));
        let mut client = Client::open().unwrap();
        let key = keys(&mut client).remove(0);
        let snapshot = client.snapshot(&key).unwrap();
        let (text, named) = (snapshot.to_string(), snapshot.to_nft_named(&host_name));
        let line = |number: &usize| {
            let mut lines = named.split(&format!("chain c{number} {{")).nth(1).unwrap().lines().skip(1);
            lines.find(|line| !line.contains("hook")).unwrap().trim().to_owned()
        };
        let lines: Numbered = all.keys().map(|number| (*number, line(number))).collect();
        let is_said_otherwise = |number: &&usize| {
            let line = &lines[*number];
            !plain.contains(&format!("\tchain c{number} {{\n{}\t\t{line}\n\t}}\n", hook_line(&plain)))
        };
        let otherwise: Vec<&str> = all.keys().filter(is_said_otherwise).map(|number| rules[*number]).collect();
        eprintln!("{table}: {} of {} rules word for word", all.len() - otherwise.len(), all.len());
        let unexpected: Vec<_> = otherwise.iter().filter(|rule| !OTHERWISE.contains(rule)).collect();
        assert!(unexpected.is_empty(), "{unexpected:?}\n{named}");
        let mut failures = Vec::new();
        let mut compare = |how: &str| {
            let found = listed_rules();
            for (number, line) in &lines {
                let chain = format!("c{number}");
                if found.get(&chain) != wanted.get(&chain) {
                    failures.push(format!("{how}: {}: {line:?}", rules[*number]));
                }
            }
        };
        flush();
        let mut refused = Numbered::new();
        load(&ruleset(&split_refused(&ruleset, lines.clone(), &mut refused)));
        compare("names");
        flush();
        load(&text);
        compare("table");
        assert_eq!(listed_parts("rule", false), parts);
        flush();
        client.commit(&snapshot.to_transaction().unwrap()).unwrap();
        compare("netlink");
        assert!(failures.is_empty(), "{} of {table}:\n{}\n{refused:?}", failures.len(), failures.join("\n"));
    });
}

/// The text of nft with each set in one line, and counters at zero as nft also reads them.
fn in_one_line(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut().filter(|last| last.ends_with(',')) {
            Some(last) => *last = format!("{last} {}", line.trim_start()),
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n").replace("counter packets 0 bytes 0", "counter") + "\n"
}

/// The line of the chains' hook, if they have one.
fn hook_line(text: &str) -> String {
    text.lines().find(|line| line.contains(" hook ")).map_or_else(String::new, |line| format!("{line}\n"))
}

#[test]
fn sets_of_link_layer_fields_are_those_of_nft() {
    survives(
        r"table bridge b {
            set macs { typeof ether saddr; elements = { 02:00:00:00:00:01, 02:03:04:05:06:07 } }
            set kinds { typeof ether daddr . ether type; elements = { 02:00:00:00:00:01 . arp } }
            chain c { type filter hook forward priority 0; ether saddr @macs accept; ether daddr . ether type @kinds drop; }
        }",
    );
    text_says_the_same(|t| {
        let table = TableKey::new(Family::Bridge, "b").unwrap();
        let kinds = [Operand::ETHER_DADDR, Operand::ETHER_TYPE];
        let macs = Set::typeof_set(table.set("macs").unwrap(), &[Operand::ETHER_SADDR]).unwrap();
        let kinds = Set::typeof_set(table.set("kinds").unwrap(), &kinds).unwrap();
        let chain = table.chain("c").unwrap();
        t.add_table(Table::new(table)).add_chain(Chain::regular(chain.clone()));
        t.add_set(macs.clone());
        t.add_set(kinds.clone());
        t.add_elements(&macs, [Element::value(Value::new(&[2, 3, 4, 5, 6, 7]).unwrap())]);
        let rule = rule(Family::Bridge).in_set(&[Operand::ETHER_SADDR], &macs.key).drop_packet();
        t.add_rule(&chain, rule.build().unwrap());
        assert!(t.to_string().contains("add set bridge b macs { typeof ether saddr; }"), "{t}");
        assert!(t.to_string().contains("{ typeof ether daddr . ether type; }"), "{t}");
    });
}

/// nft lists the same when objects are written again, as messages and as text; its own words for them are ours.
#[test]
fn text_of_objects_is_that_of_nft() {
    kernel_test(NEEDS, || {
        load(include_str!("fixtures/tables/objects.nft"));
        let theirs = nft(&["list", "ruleset"], None).unwrap();
        let text = comes_back(&mut Client::open().unwrap());
        let words = |text: &str| {
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let (ours, theirs) = (words(&text), words(&theirs));
        for name in
            ["ct helper ftp-standard {", "ct helper ftp4 {", "ct expectation e {", "synproxy sp {", "synproxy bare {"]
        {
            let block = |lines: &[String]| {
                let lines = lines.iter().skip_while(|line| *line != name).take_while(|line| *line != "}");
                lines.cloned().collect::<Vec<_>>()
            };
            assert!(block(&ours).len() > 2, "{text}");
            assert_eq!(block(&ours), block(&theirs));
        }
        for rule in ["ct timeout set \"agg\"", "ct expectation set \"e\"", "synproxy name \"sp\""] {
            assert!(
                ours.iter().any(|line| line == rule) && theirs.iter().any(|line| line == rule),
                "{rule} in\n{text}"
            );
        }
    });
}

#[test]
fn text_of_new_objects_says_the_same() {
    text_says_the_same(|t| {
        suite::every_kind_of_object()
            .into_iter()
            .fold(t.add_table(Table::new(suite::table())), Transaction::add_object);
    });
}

#[test]
fn flow_tables_of_nft_survive() {
    kernel_test(&[Need::Root, Need::Nftables, Need::FlowTables, Need::Veth], || {
        let here = Netns::current().unwrap();
        veth_pair((&here, "one"), (&here, "two")).unwrap();
        let text = "table inet t {
            flowtable f { hook ingress priority -10; devices = { one, two }; counter; }
            chain forward { type filter hook forward priority 0; meta l4proto { tcp, udp } flow add @f; }
        }
        table ip other {
            flowtable empty { hook ingress priority 7; }
        }\n";
        load(text);
        let before = listed();
        let mut client = Client::open().unwrap();
        let text = comes_back(&mut client);
        let plain = nft(&["list", "ruleset"], None).unwrap();
        assert!(plain.contains("flow add @f") && text.contains("flow add @f"), "{plain}{text}");
        // No device of a network namespace's own has hardware for it.
        let table = TableKey::new(Family::Inet, "t").unwrap();
        let offloaded = Flowtable::new(table.flowtable("hard").unwrap(), ["lo"]).flags(FlowtableFlags::HW_OFFLOAD);
        let mut transaction = Transaction::new();
        transaction.delete_table(&table).add_table(Table::new(table)).add_flowtable(offloaded);
        assert!(transaction.to_string().contains("devices = { \"lo\" }; flags offload; }"), "{transaction}");
        let error = client.commit(&transaction).unwrap_err();
        assert_eq!(error.kind(), nftables::ErrorKind::Unsupported, "{error}");
        assert_eq!(listed(), before);
    });
}

/// A node has a device for each pod.
#[test]
fn a_flow_table_takes_more_devices_than_a_message() {
    kernel_test(&[Need::Root, Need::Nftables, Need::FlowTables, Need::Veth], || {
        let pairs = (0..130).map(|number| ["a", "b"].map(|end| format!("long-name-{end}-{number}")));
        let devices: Vec<String> = pairs.flatten().collect();
        let pair = |pair: &[String]| format!("link add {} type veth peer name {}\n", pair[0], pair[1]);
        let lines: String = devices.chunks(2).map(pair).collect();
        oracle::run("ip", &["-batch", "-"], Some(&lines)).unwrap();
        let table = TableKey::new(Family::Inet, "t").unwrap();
        let key = table.flowtable("f").unwrap();
        let mut client = Client::open().unwrap();
        let mut has = |devices: &[String]| {
            let flowtable = Flowtable::new(key.clone(), devices.iter().map(String::as_str));
            client.sync(&TableSpec::new(Table::new(table.clone())).flowtable(flowtable)).unwrap();
            let listed = client.list_flowtables(&table).unwrap().remove(0);
            assert_eq!(client.get_flowtable(&key).unwrap(), listed);
            let mut found = listed.flowtable.devices;
            let mut expected = devices.to_vec();
            found.sort();
            expected.sort();
            assert_eq!(found, expected);
        };
        for count in [260, 0, 260, 3] {
            has(&devices[..count]);
        }
    });
}

#[test]
fn types_are_those_of_nft() {
    kernel_test(NEEDS, || {
        let mut client = Client::open().unwrap();
        load("table inet t { }");
        let table = TableKey::new(Family::Inet, "t").unwrap();
        let mut tried = 0;
        // In the type of a set, "time" is a duration.
        for data_type in (0..64).map(DataType).filter(|other| *other != DataType::TIME_DATE) {
            let Some(name) = data_type.name() else { continue };
            if nft(&["add", "set", "inet", "t", "s", "{", "type", name, ";", "}"], None).is_err() {
                // Without a name in nft's syntax, or without a length.
                continue;
            }
            let set = client.get_set(&table.set("s").unwrap()).unwrap().set;
            assert_eq!((set.key_type.number(), set.key_type.length()), (data_type.0, data_type.length()), "{name}");
            // Notes of nft are kept where they are not the same as this crate's, which have the byte order in them. One byte has none.
            assert!(set.userdata.is_empty() || data_type.length() == 1, "{name}: {:?}", set.userdata);
            nft(&["delete", "set", "inet", "t", "s"], None).unwrap();
            tried += 1;
        }
        assert!(tried >= 25, "{tried}");
    });
}

macro_rules! lists {
    ($($name:ident: $table:literal, $hook:literal, $list:literal;)*) => { $(
        #[test]
        fn $name() {
            come_back($table, $hook, include_str!(concat!("fixtures/rules/", $list)));
        }
    )* };
}

lists! {
    rules_of_inet_come_back: "table inet t", "", "inet.txt";
    rules_of_ip_come_back: "table ip t", "", "ip.txt";
    rules_of_ip6_come_back: "table ip6 t", "", "ip6.txt";
    rules_of_arp_come_back: "table arp t", "", "arp.txt";
    rules_of_bridge_come_back: "table bridge t", "", "bridge.txt";
    rules_of_netdev_come_back: "table netdev t", "", "netdev.txt";
    translations_of_sources_come_back: "table inet t", "type nat hook postrouting priority 0;", "postrouting.txt";
    translations_of_destinations_come_back: "table inet t", "type nat hook prerouting priority 0;", "prerouting.txt";
}

fn snapshots(client: &mut Client) -> String {
    keys(client).iter().map(|key| client.snapshot(key).unwrap().to_string()).collect()
}

#[test]
fn a_proxy_reads_the_same_as_text() {
    text_says_the_same(|transaction| {
        suite::proxy(transaction);
    });
}

#[test]
fn rules_read_the_same_as_text() {
    text_says_the_same(|transaction| {
        let table = suite::table();
        suite::what_rules_need(transaction);
        let chain = table.chain("c").unwrap();
        suite::with_rules(transaction.add_chain(Chain::regular(chain.clone())), &chain, suite::every_kind_of_rule());
        let nat = table.chain("nat").unwrap();
        transaction
            .add_chain(Chain::base(nat.clone(), BaseChain::new(ChainType::Nat, Hook::Prerouting, Priority(-99))));
        let ports = Set::new(table.set("any").unwrap(), suite::types(&[DataType::INET_SERVICE]));
        let elements = [80, 443].map(|port| Element::value(Value::port(port))).to_vec();
        let ports = transaction.add_anonymous_set(ports, elements).unwrap();
        let inet = || rule(Family::Inet).meta_l4proto(nftables::L4Protocol::TCP);
        let builders = [
            inet().in_set(&[Operand::DPORT], ports).accept(),
            inet().dnat_to("10.1.0.1:8080".parse().unwrap()),
            inet().dnat_to("[2001:db8::1]:8080".parse().unwrap()),
            inet().dnat_to_address("10.1.0.1".parse().unwrap()),
            inet().redirect_to(0x1234),
        ];
        suite::with_rules(transaction, &nat, builders.map(|builder| builder.build().unwrap()));
    });
}

#[test]
fn tables_and_flushes_read_the_same_as_text() {
    text_says_the_same(|transaction| {
        let key = suite::table();
        let mut table = Table::new(key.clone());
        table.flags = TableFlags::DORMANT;
        table.comment = Some("sleeps for now".to_owned());
        transaction.add_table(table);
        let ports = Set::new(key.set("ports").unwrap(), suite::types(&[DataType::INET_SERVICE]));
        let (ports_type, marks) = (suite::types(&[DataType::INET_SERVICE]), suite::types(&[DataType::MARK]));
        let names = Set::map(key.set("names").unwrap(), ports_type, marks);
        [&ports, &names].into_iter().cloned().fold(&mut *transaction, suite::with_set);
        transaction.add_elements(&ports, [Element::value(Value::port(80))]);
        transaction.flush_set(&ports.key).flush_map(&names.key);
    });
}

#[test]
fn changes_of_nft_are_heard() {
    kernel_test(NEEDS, || {
        let mut events = Events::open().unwrap();
        load(
            "table ip t { set s { type ipv4_addr; elements = { 10.0.0.1 } }\n chain c { accept; }
 }",
        );
        let mut heard = Vec::new();
        while !heard.iter().any(|event| matches!(event, Event::Generation(_))) {
            heard.extend(events.wait(Duration::from_secs(60)).unwrap().unwrap());
        }
        let generation = Client::open().unwrap().generation().unwrap();
        assert_eq!(heard.last(), Some(&Event::Generation(generation)));
        let count = |test: fn(&Event) -> bool| heard.iter().filter(|event| test(event)).count();
        assert_eq!(count(|event| matches!(event, Event::Table(Change::Added, _))), 1);
        assert_eq!(count(|event| matches!(event, Event::Chain(Change::Added, _))), 1);
        assert_eq!(count(|event| matches!(event, Event::Rule(Change::Added, _))), 1);
        assert_eq!(count(|event| matches!(event, Event::Set(Change::Added, _))), 1);
        assert_eq!(count(|event| matches!(event, Event::Elements(Change::Added, _, found) if found.len() == 1)), 1);
        flush();
        let gone = events.wait(Duration::from_secs(60)).unwrap().unwrap();
        assert!(
            gone.iter()
                .any(|event| matches!(event, Event::Rule(Change::Deleted, _) | Event::Table(Change::Deleted, _)))
        );
    });
}

#[test]
fn a_table_of_another_owner_is_left_alone() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Kernel(5, 12)], || {
        let mut owner = Client::open().unwrap();
        let table = TableKey::new(Family::Inet, "t").unwrap();
        let mut owned = Table::new(table.clone());
        owned.flags = TableFlags::OWNER;
        let mut transaction = Transaction::new();
        transaction.add_table(owned);
        owner.commit(&transaction).unwrap();
        let mut other = Client::open().unwrap();
        assert!(other.get_table(&table).unwrap().owner.is_some());
        let mut transaction = Transaction::new();
        transaction.add_chain(Chain::regular(table.chain("c").unwrap()));
        assert!(other.commit(&transaction).unwrap_err().is_permission());
        let mut transaction = Transaction::new();
        transaction.create_table(Table::new(table.clone()));
        let error = other.commit(&transaction).unwrap_err();
        assert!(error.is_permission() || error.is_already_exists(), "{error}");
        // The table goes with its owner, once a program that another test is starting has closed its copy of the socket, too.
        drop(owner);
        let end = Instant::now() + Duration::from_secs(20);
        let is_gone = |other: &mut Client| other.get_table(&table).is_err_and(|error| error.is_not_found());
        while !is_gone(&mut other) {
            assert!(Instant::now() < end, "{:?}", other.get_table(&table));
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// Right after many additions the kernel enlarges its table, and a dump leaves elements out. Kernels that say how many there are show it.
#[test]
fn a_set_that_grows_is_read_in_full() {
    const COUNT: u32 = 60_000;
    kernel_test(&[Need::Root, Need::Nftables], || {
        let mut client = Client::open().unwrap();
        let addresses = |range: std::ops::Range<u32>| {
            let all: Vec<String> = range.map(|of| Ipv4Addr::from(10 << 24 | of).to_string()).collect();
            all.join(", ")
        };
        load("table ip grows {\n set s {\n type ipv4_addr\n }\n }\n");
        let table = TableKey::new(Family::Ip, "grows").unwrap();
        for part in 0..6 {
            let (first, last) = (part * COUNT / 6, (part + 1) * COUNT / 6);
            load(&format!("add element ip grows s {{ {} }}\n", addresses(first..last)));
            let snapshot = client.snapshot(&table).unwrap();
            let set = &snapshot.sets[0];
            let different: std::collections::BTreeSet<_> = set.elements.iter().map(|of| &of.key).collect();
            assert_eq!(set.elements.len(), different.len());
            if set.set.count.is_some() {
                assert_eq!(different.len(), last as usize);
            }
        }
    });
}

/// A chain at the devices whose names begin so gets their packets. (nft 1.0.6 never ends listing it.)
#[test]
fn devices_are_named_by_how_they_begin() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Kernel(6, 16)], || {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let connects = || TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_ok();
        assert!(connects());
        let table = TableKey::new(Family::Netdev, "early").unwrap();
        let mut base = BaseChain::new(ChainType::Filter, Hook::Ingress, Priority::FILTER);
        base.devices = vec!["l*".to_owned()];
        let drops = table.chain("drops").unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(Table::new(table.clone())).add_chain(Chain::base(drops.clone(), base.clone()));
        transaction.add_rule(&drops, rule(Family::Netdev).drop_packet().build().unwrap());
        let mut client = Client::open().unwrap();
        client.commit(&transaction).unwrap();
        assert_eq!(client.get_chain(&drops).unwrap().chain.base, Some(base.clone()));
        assert!(!connects());
        // A snapshot puts it back.
        let again = client.snapshot(&table).unwrap().to_transaction().unwrap();
        client.commit(Transaction::new().delete_table(&table)).unwrap();
        assert!(connects());
        client.commit(&again).unwrap();
        assert_eq!(client.get_chain(&drops).unwrap().chain.base, Some(base));
        assert!(!connects());
    });
}

/// Each network namespace has its changes, and events opened in another one are heard here.
#[test]
fn events_of_another_namespace_by_its_file() {
    kernel_test(NEEDS, || {
        let other = testkit::Netns::new().unwrap();
        let file = other.run_in(|| std::fs::File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        let mut there = Events::open_in(std::os::fd::AsFd::as_fd(&file)).unwrap();
        load("table ip here {}");
        assert_eq!(there.wait(Duration::ZERO).unwrap(), None);
        other.run_in(|| load("table ip there {}")).unwrap();
        let heard = there.wait(Duration::from_secs(5)).unwrap().unwrap();
        let table: TableKey = "ip there".parse().unwrap();
        assert!(matches!(&heard[0], Event::Table(Change::Added, found) if found.table.key == table), "{heard:?}");
        assert_eq!(keys(&mut Client::open().unwrap()), ["ip here".parse().unwrap()]);
    });
}

/// A rule, the hook of its chain, and its text by nft's manual.
type Written = (nftables::RuleBuilder, Option<(ChainType, Hook)>, &'static str);

fn statements() -> Vec<(nftables::RuleBuilder, &'static str)> {
    use nftables::expr::{DynSetOp, LimitUnit, MetaKey, QueueFlags};
    use nftables::{CtState, Expression, L4Protocol, Name, TcpFlags};
    let inet = || rule(Family::Inet);
    let tcp = || inet().meta_l4proto(L4Protocol::TCP);
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let clients = suite::table().set("clients").unwrap();
    let count = Expression::ConnectionLimit { count: 20, inverted: true };
    let syn = || inet().tcp_flags(TcpFlags::SYN, TcpFlags::SYN | TcpFlags::RST);
    vec![
        (tcp().dport_in(30_000..=32_767).accept(), "tcp dport 30000-32767 accept"),
        (tcp().sport_in(1..=1023).negated(), "tcp sport != 1-1023"),
        (tcp().dport(22).negated().drop_packet(), "tcp dport != 22 drop"),
        (inet().in_range(&Operand::MARK, Value::be32(5), Value::be32(0x0102)), "meta mark 0x00000005-0x00000102"),
        (inet().in_range(&Operand::IP_SADDR, ip("10.0.0.1"), ip("10.0.0.9")), "ip saddr 10.0.0.1-10.0.0.9"),
        (inet().iifname("veth*").negated().accept(), "iifname != \"veth*\" accept"),
        (inet().oifname("wg\\*"), "oifname \"wg\\*\""),
        (inet().daddr_not_in(ip("10.96.0.0"), 12).accept(), "ip daddr != 10.96.0.0/12 accept"),
        (inet().saddr_in(ip("2001:db8::"), 33).accept(), "ip6 saddr 2001:db8::/33 accept"),
        (inet().ct_state(CtState::NEW).negated().accept(), "ct state ! new accept"),
        (syn().clamp_mss(), "tcp flags syn / syn,rst tcp option maxseg size set rt mtu"),
        (syn().set_mss(1360), "tcp flags syn / syn,rst tcp option maxseg size set 1360"),
        (inet().tcp_flags(TcpFlags::SYN | TcpFlags::ACK, TcpFlags::all()), "tcp flags == 0x12"),
        (inet().save_mark(), "ct mark set meta mark"),
        (inet().ct_mark(0, u32::MAX).negated().restore_mark(), "ct mark != 0x00000000 meta mark set ct mark"),
        (inet().ct_mark(0x100, 0x100).set_ct_mark(7), "ct mark & 0x00000100 == 0x00000100 ct mark set 0x00000007"),
        (
            inet().mark(0x1_0000, 0xffff_0000).set_mark_bits(1, 3),
            "meta mark 0x00010000/16 meta mark set meta mark & 0xfffffffd | 0x00000001",
        ),
        (inet().set_ct_zone(0x0102), "ct zone set 258"),
        (inet().ct_label(5).set_ct_label(6), "ct label 5 ct label set 6"),
        (inet().set_ct(CtKey::Mark, Operand::random(4)), "ct mark set numgen random mod 4"),
        (inet().set_meta(MetaKey::Priority, Value::mark(0x1_0002)), "meta priority set 1:2"),
        (inet().trace(), "meta nftrace set 1"),
        (inet().ct_count(20).negated().drop_packet(), "ct count over 20 drop"),
        (inet().quota(25 << 20).negated().drop_packet(), "quota over 25 mbytes drop"),
        (inet().limit_bytes(10 << 20, LimitUnit::Second, 0), "limit rate 10 mbytes/second"),
        (inet().limit_bytes(3 << 10, LimitUnit::Hour, 100).negated(), "limit rate over 3 kbytes/hour burst 100 bytes"),
        (inet().limit(7, LimitUnit::Day, 5).accept(), "limit rate 7/day accept"),
        (
            inet().meter(DynSetOp::Add, &clients, &[Operand::IP_SADDR], None, [count]).drop_packet(),
            "add @clients { ip saddr ct count over 20 } drop",
        ),
        (inet().queue(0x0102..=0x0103, QueueFlags::BYPASS), "queue flags bypass to 258-259"),
        (inet().queue(5..=5, QueueFlags::empty()), "queue to 5"),
        (tcp().dport(80).reject(nftables::expr::Reject::TcpReset), "tcp dport 80 reject with tcp reset"),
        (inet().goto(Name::new("other").unwrap()), "goto other"),
    ]
}

/// Rules of base chains.
fn hooked() -> Vec<Written> {
    use nftables::L4Protocol;
    use nftables::expr::{CmpOp, NatFlags, NatKind, RtKey, SocketKey};
    let inet = || rule(Family::Inet);
    let web = || inet().meta_l4proto(L4Protocol::TCP).dport(80);
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let owners = suite::table().set("owners").unwrap();
    let base = |kind: ChainType, hook: Hook| Some((kind, hook));
    let (pre, post) = (|| base(ChainType::Nat, Hook::Prerouting), || base(ChainType::Nat, Hook::Postrouting));
    let mangle = || base(ChainType::Filter, Hook::Prerouting);
    let system = Operand::Osf { ttl: 0, version: false };
    let some_value = |operand, value| inet().matches(&operand, CmpOp::Eq, value);
    vec![
        (some_value(Operand::Socket(SocketKey::Transparent), Value::byte(1)), mangle(), "socket transparent 1"),
        (some_value(Operand::Rt(RtKey::Xfrm), Value::byte(0)), mangle(), "rt ipsec missing"),
        (some_value(system, Value::interface("Linux").unwrap()).accept(), mangle(), "osf name \"Linux\" accept"),
        (web().tproxy_to_port(50_080), mangle(), "tcp dport 80 tproxy to :50080"),
        (
            web().tproxy_to("[::1]:50080".parse().unwrap()),
            mangle(),
            "tcp dport 80 meta nfproto ipv6 tproxy ip6 to [::1]:50080",
        ),
        (
            inet().saddr_in(ip("10.0.0.0"), 24).nat_to_network(NatKind::Source, ip("192.0.2.0"), 24),
            post(),
            "ip saddr 10.0.0.0/24 snat ip prefix to 192.0.2.0/24",
        ),
        (
            web().nat_to(NatKind::Source, ip("192.0.2.1")..=ip("192.0.2.9"), Some(1024..=2047), NatFlags::RANDOM),
            post(),
            "tcp dport 80 meta nfproto ipv4 snat ip to 192.0.2.1-192.0.2.9:1024-2047 random",
        ),
        (
            inet().nat_to(NatKind::Destination, ip("2001:db8::1")..=ip("2001:db8::1"), None, NatFlags::empty()),
            pre(),
            "meta nfproto ipv6 dnat ip6 to 2001:db8::1",
        ),
        (inet().daddr(ip("10.0.0.1")).dnat_to_address(ip("10.0.0.2")), pre(), "ip daddr 10.0.0.1 dnat ip to 10.0.0.2"),
        (
            inet().saddr(ip("10.0.0.1")).snat_to(ip("10.0.0.2"), NatFlags::empty()),
            post(),
            "ip saddr 10.0.0.1 snat ip to 10.0.0.2",
        ),
        (
            inet().dnat_to_address_map(Family::Ip, &[Operand::IP_DADDR], &owners),
            pre(),
            "dnat ip to ip daddr map @owners",
        ),
        (
            inet().snat_to_address_map(Family::Ip, &[Operand::IP_SADDR], &owners),
            post(),
            "snat ip to ip saddr map @owners",
        ),
        (
            inet().mark(0x200, 0xf00).dnat_to_operand(Family::Ip, &Operand::IP_DADDR),
            pre(),
            "meta mark & 0x00000f00 == 0x00000200 dnat ip to ip daddr",
        ),
    ]
}

/// Rules of other families.
fn elsewhere() -> Vec<(Family, nftables::RuleBuilder, &'static str)> {
    let (ip, netdev) = (|| rule(Family::Ip), || rule(Family::Netdev));
    let address = "10.0.0.1".parse().unwrap();
    vec![
        (Family::Ip, ip().dup_to(address, Some(1)), "dup to 10.0.0.1 device \"lo\""),
        (Family::Ip, ip().dup_to(address, None), "dup to 10.0.0.1"),
        (Family::Ip, ip().reject(nftables::expr::Reject::TcpReset), "reject with tcp reset"),
        (Family::Ip, ip().meta_l4proto(nftables::L4Protocol::TCP).dport(22), "tcp dport 22"),
        (Family::Netdev, netdev().dup_to_device(1), "dup to \"lo\""),
        (Family::Netdev, netdev().fwd_to(1), "fwd to \"lo\""),
        (Family::Netdev, netdev().saddr(address).drop_packet(), "ip saddr 10.0.0.1 drop"),
        (
            Family::Netdev,
            netdev().saddr(address).fwd_to_neighbour("10.0.0.2".parse().unwrap(), 1),
            "ip saddr 10.0.0.1 fwd ip to 10.0.0.2 device \"lo\"",
        ),
    ]
}

/// nft lists each rule of the builder with the words of its manual. The crate writes the same words, and nft reads them
/// as the same rule.
#[test]
fn rules_have_the_words_of_nft() {
    kernel_test(NEEDS, || {
        let mut client = Client::open().unwrap();
        for family in [Family::Inet, Family::Ip, Family::Netdev] {
            let table = TableKey::new(family, "t").unwrap();
            let mut transaction = Transaction::new();
            transaction.add_table(Table::new(table.clone())).add_chain(Chain::regular(table.chain("other").unwrap()));
            let clients = Set::new(table.set("clients").unwrap(), suite::types(&[DataType::IPV4_ADDR]));
            transaction.add_set(clients.flags(SetFlags::DYNAMIC).size(100));
            let address = || suite::types(&[DataType::IPV4_ADDR]);
            transaction.add_set(Set::map(table.set("owners").unwrap(), address(), address()));
            client.commit(&transaction).unwrap();
        }
        let (mut missing, mut rewritten) = (Vec::new(), Vec::new());
        let regular =
            statements().into_iter().map(|(builder, words)| (Family::Inet, builder, words)).chain(elsewhere());
        let regular = regular.map(|(family, builder, words)| (family, builder, None, words));
        let hooked = hooked().into_iter().map(|(builder, hook, words)| (Family::Inet, builder, hook, words));
        for (number, (family, builder, hook, words)) in regular.chain(hooked).enumerate() {
            let table = TableKey::new(family, "t").unwrap();
            let chain = table.chain(&format!("c{number}")).unwrap();
            let rule = builder.build().unwrap_or_else(|error| panic!("{words}: {error}"));
            assert_eq!(rule.to_nft(family).as_deref(), Some(words));
            let is_base = hook.is_some();
            let added = match hook {
                None => Chain::regular(chain.clone()),
                Some((kind, hook)) => Chain::base(chain.clone(), BaseChain::new(kind, hook, Priority(0))),
            };
            let mut transaction = Transaction::new();
            transaction.add_chain(added.clone()).add_rule(&chain, rule.clone());
            match client.commit(&transaction) {
                Ok(()) => {}
                // The module of the expression.
                Err(error) if error.is_not_found() || error.kind() == nftables::ErrorKind::Unsupported => {
                    missing.push(words);
                    continue;
                }
                Err(error) => panic!("{words}: {error}"),
            }
            let listed = || {
                let text = nft(&["list", "chain", &family.to_string(), "t", &format!("c{number}")], None).unwrap();
                text.lines().nth(if is_base { 3 } else { 2 }).unwrap_or_default().trim().to_owned()
            };
            assert_eq!(listed(), words);
            let written = client.list_rules(&chain).unwrap().remove(0).rule;
            nft(&["flush", "chain", &family.to_string(), "t", &format!("c{number}")], None).unwrap();
            load(&format!("add rule {family} t c{number} {words}\n"));
            assert_eq!(listed(), words);
            let read = client.list_rules(&chain).unwrap().remove(0).rule;
            assert_eq!(read.to_nft(family), written.to_nft(family));
            let wanted = TableSpec::new(Table::new(table.clone())).chain(added, [rule]).keep_others();
            let plan = wanted.diff(Some(&client.snapshot(&table).unwrap())).unwrap();
            rewritten.extend((!plan.is_empty()).then(|| format!("{plan}{read:?}")));
        }
        assert!(rewritten.is_empty(), "{}", rewritten.join("\n"));
        eprintln!("not on this kernel: {missing:?}");
        assert!(missing.len() < 8, "{missing:?}");
    });
}

#[test]
fn sets_have_the_words_of_nft() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Kernel(5, 13)], || {
        let table = TableKey::new(Family::Ip, "t").unwrap();
        let types = suite::types(&[DataType::IPV4_ADDR]);
        let network = |address: &str, prefix| Element::network(address.parse().unwrap(), prefix).unwrap();
        let blocked = Set::new(table.set("blocked").unwrap(), types.clone()).auto_merge();
        let zones = Set::map(table.set("zones").unwrap(), types.clone(), suite::types(&[DataType::MARK]));
        let zones = zones.flags(SetFlags::INTERVAL);
        let plain = Set::verdict_map(table.set("plain").unwrap(), types);
        let mut transaction = Transaction::new();
        transaction.add_table(Table::new(table.clone()));
        [&blocked, &zones, &plain].into_iter().cloned().fold(&mut transaction, suite::with_set);
        let elements = [network("10.0.0.0", 9), network("10.128.0.0", 9), network("192.0.2.4", 30)];
        transaction.add_elements(&blocked, blocked.merge(elements));
        let rest = || Element::new(nftables::ElementKey::CatchAll);
        let marked = [network("10.0.0.0", 12).maps_to(Value::mark(1)), rest().maps_to(Value::mark(2))];
        transaction.add_elements(&zones, marked.clone());
        let verdicts = [network("192.0.2.1", 32), rest()].map(|element| element.verdict(nftables::Verdict::Drop));
        transaction.add_elements(&plain, verdicts.clone());
        let mut client = Client::open().unwrap();
        client.commit(&transaction).unwrap();
        let words =
            |name: &str| nft(&["list", "set", "ip", "t", name], None).or(nft(&["list", "map", "ip", "t", name], None));
        assert!(words("blocked").unwrap().contains("\t\tauto-merge\n\t\telements = { 10.0.0.0/8, 192.0.2.4/30 }"));
        let zoned = words("zones").unwrap();
        assert!(zoned.contains("10.0.0.0/12 : 0x00000001") && zoned.contains("* : 0x00000002"), "{zoned}");
        let verdict = words("plain").unwrap();
        assert!(verdict.contains("192.0.2.1 : drop") && verdict.contains("* : drop"), "{verdict}");
        // nft's own addition joins what was written here, and is read here.
        load("add element ip t blocked { 192.0.2.0/30 }\n");
        assert_eq!(client.list_elements(&blocked).unwrap(), [network("10.0.0.0", 8), network("192.0.2.0", 29)]);
        assert!(client.get_set(&blocked.key).unwrap().set.auto_merge);
        assert_eq!(client.list_elements(&zones).unwrap(), marked);
        let text = client.snapshot(&table).unwrap().to_string();
        flush();
        load(&text);
        assert_eq!(client.list_elements(&plain).unwrap().len(), 2);
        assert_eq!(client.snapshot(&table).unwrap().to_string(), text);
        // The catch-all element goes as it came.
        let mut transaction = Transaction::new();
        transaction.delete_elements(&zones, [rest()]).delete_elements(&plain, [rest()]);
        client.commit(&transaction).unwrap();
        assert!(!words("zones").unwrap().contains('*') && !words("plain").unwrap().contains('*'));
    });
}

/// `nft monitor trace` says the same of the same packets.
#[test]
fn traced_packets_are_told_as_nft_tells_them() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        use nftables::{Trace, TraceStep, Verdict};
        load(
            "table ip t {
                chain other { udp dport 4660 return; }
                chain in { type filter hook input priority 0; policy drop;
                    ip daddr 127.0.0.9 udp dport 4660 meta nftrace set 1
                    ip saddr 127.0.0.1 meta mark set 7
                    jump other
                    udp sport 22136 accept
                }
            }\n",
        );
        let mut traces = Events::open_traces().unwrap();
        let mut monitor = std::process::Command::new("stdbuf")
            .args(["-oL", "nft", "monitor", "trace"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, heard) = std::sync::mpsc::channel();
        let output = std::io::BufReader::new(monitor.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        // nft listens once its socket is in the group of traces (NFNLGRP_NFTRACE), too.
        testkit::oracle::until_they_listen(9, 2).unwrap();
        for port in [22136_u16, 22137] {
            let socket = std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
            for to in [4660, 4661] {
                socket.send_to(b"x", ("127.0.0.9", to)).unwrap();
            }
        }
        let mut steps: Vec<Trace> = Vec::new();
        while let Some(heard) =
            traces
                .wait(Duration::from_secs(
                    if steps.last().is_none_or(|step| !matches!(step.step, TraceStep::Policy(_))) { 20 } else { 0 },
                ))
                .unwrap()
        {
            steps.extend(heard.into_iter().map(|event| match event {
                Event::Trace(step) => *step,
                other => panic!("{other:?}"),
            }));
        }
        steps.retain(|step| step.step != TraceStep::Return(Verdict::Continue));
        let mut told: Vec<String> = Vec::new();
        // After the last that is expected, there may be more for a moment.
        while let Ok(line) = heard.recv_timeout(Duration::from_secs(if told.len() < steps.len() { 20 } else { 1 })) {
            if !line.contains(" packet: ") && !line.contains(" in verdict continue") {
                told.push(line.trim().to_owned());
            }
        }
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        let said: Vec<String> = steps.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), steps.len(), "{told:#?}\n{said:#?}");
        // Each rule by its handle, as `nft -a` lists them.
        let listed = nft(&["-a", "list", "table", "ip", "t"], None).unwrap();
        for (step, line) in steps.iter().zip(&told) {
            assert!(line.starts_with(&format!("trace id {:08x} ip t {} ", step.id, step.chain.name)), "{line}: {step}");
            match &step.step {
                TraceStep::Rule { handle, verdict } => {
                    let rule = line.split_once(" rule ").unwrap().1.split_once(" (verdict ").unwrap();
                    assert!(listed.contains(&format!("{} # handle {handle}\n", rule.0)), "{line}: {step}");
                    assert_eq!(rule.1, format!("{verdict})"));
                    assert_eq!(step.to_string(), line.replacen(rule.0, &format!("handle {handle}"), 1));
                }
                _ => assert_eq!(step.to_string(), line.split(" meta mark ").next().unwrap()),
            }
        }
        let first = &steps[0];
        assert_eq!(first.addresses(), Some(("127.0.0.1".parse().unwrap(), "127.0.0.9".parse().unwrap())));
        assert_eq!((first.protocol().map(|of| of.0), first.ports()), (Some(17), Some((22136, 4660))));
        assert_eq!((first.iif, first.iif_type, first.oif, first.mark), (Some(1), Some(772), None, None));
        assert_eq!(steps[2].mark, Some(7));
        let ids: std::collections::BTreeSet<u32> = steps.iter().map(|step| step.id).collect();
        assert_eq!(ids.len(), 2);
        let ends: Vec<&TraceStep> = steps.iter().map(|step| &step.step).collect();
        assert!(ends.contains(&&TraceStep::Policy(Verdict::Drop)), "{ends:?}");
        assert_eq!(
            ends.iter().filter(|end| matches!(end, TraceStep::Rule { verdict: Verdict::Accept, .. })).count(),
            1
        );
    });
}

#[test]
fn nft_lists_what_was_reset_as_zero() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Kernel(6, 5)], || {
        load(
            "table ip t {
                counter hits { packets 5 bytes 60 }
                counter misses { packets 7 bytes 80 }
                quota much { 10 mbytes used 5 bytes }
                set s { type ipv4_addr; counter; elements = { 10.0.0.1 counter packets 3 bytes 4, 10.0.0.2 counter packets 5 bytes 6 } }
                chain c {
                    counter packets 11 bytes 12 comment \"one\"
                    counter packets 13 bytes 14 comment \"two\"
                }
            }\n",
        );
        let mut client = Client::open().unwrap();
        let table = TableKey::new(Family::Ip, "t").unwrap();
        let chain = table.chain("c").unwrap();
        let object = |kind, name: &str| table.object(kind, name).unwrap();
        let hits = client.reset_object(&object(nftables::ObjectType::Counter, "hits")).unwrap();
        assert_eq!(hits.object.data, nftables::ObjectData::Counter { packets: 5, bytes: 60 });
        client.reset_object(&object(nftables::ObjectType::Quota, "much")).unwrap();
        let rules = client.list_rules(&chain).unwrap();
        assert_eq!(client.reset_rule(&chain, rules[0].handle).unwrap(), rules[0]);
        let set = client.get_set(&table.set("s").unwrap()).unwrap().set;
        let key = nftables::ElementKey::Value(std::net::Ipv4Addr::new(10, 0, 0, 1).into());
        let element = client.reset_element(&set, &key).unwrap().unwrap();
        assert_eq!(element.extras().expressions, [nftables::Expression::Counter { packets: 3, bytes: 4 }]);
        let text = nft(&["list", "ruleset"], None).unwrap();
        for words in [
            "counter hits {\n\t\tpackets 0 bytes 0",
            "counter misses {\n\t\tpackets 7 bytes 80",
            "quota much {\n\t\t10 mbytes\n",
            "10.0.0.1 counter packets 0 bytes 0",
            "10.0.0.2 counter packets 5 bytes 6",
            "counter packets 0 bytes 0 comment \"one\"",
            "counter packets 13 bytes 14 comment \"two\"",
        ] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        let missing = object(nftables::ObjectType::Counter, "none");
        let error = client.reset_object(&missing).unwrap_err();
        assert!(error.is_not_found() && error.to_string().contains("resetting object"), "{error}");
        assert!(client.reset_rule(&chain, 9999).unwrap_err().is_not_found());
        assert_eq!(
            client.reset_element(&set, &nftables::ElementKey::Value(std::net::Ipv4Addr::LOCALHOST.into())).unwrap(),
            None
        );
    });
}
