//! Tables that become what is wanted: from each state to each other one.

use std::time::Duration;

use nftables::expr::{DynSetOp, LimitUnit};
use nftables::{
    BaseChain, Chain, ChainType, Client, DataType, Element, ElementKey, ErrorKind, Expression, Family, Hook,
    L4Protocol, Object, ObjectData, ObjectType, Operand, Policy, Priority, Rule, Set, SetFlags, Table, TableFlags,
    TableSpec, Transaction, Value, Verdict, rule,
};

use super::{ip, name, table, types};

fn commented(comments: &[&str]) -> Vec<Rule> {
    let rule =
        |comment: &&str| rule(Family::Inet).mark(7, u32::MAX).counter().accept().comment(*comment).build().unwrap();
    comments.iter().map(rule).collect()
}

fn input(priority: i32, policy: Policy) -> Chain {
    let base = BaseChain::new(ChainType::Filter, Hook::Input, Priority(priority));
    Chain::base(table().chain("input").unwrap(), base).policy(policy)
}

fn addresses(numbers: &[u8]) -> Vec<Element> {
    numbers.iter().map(|number| Element::value(ip(*number))).collect()
}

/// States of one table that differ in rules, hooks, types, elements, objects, and in what is there at all.
fn states() -> Vec<TableSpec> {
    let set = |name: &str| table().set(name).unwrap();
    let (address, port) = (types(&[DataType::IPV4_ADDR]), types(&[DataType::INET_SERVICE]));
    let empty = || TableSpec::new(Table::new(table()));
    let plain = |set: Set, elements: Vec<Element>| {
        let used = rule(Family::Inet).in_set(&[Operand::IP_SADDR], &set.key).drop_packet().build().unwrap();
        let web = Chain::regular(table().chain("web").unwrap());
        let jump = rule(Family::Inet).jump(web.key.name.clone()).build().unwrap();
        let rules = [&commented(&["a", "b"])[..], &[used, jump], &commented(&["c"])].concat();
        empty().set(set, elements).chain(web, commented(&["w"])).chain(input(0, Policy::Accept), rules)
    };
    let verdicts = |chain: &str, ports: &[u16]| {
        let chain = Chain::regular(table().chain(chain).unwrap());
        let map = Set::verdict_map(set("verdicts"), port.clone());
        let elements = ports.iter().map(|port| {
            Element::value(Value::port(*port)).verdict(Verdict::Goto(chain.key.name.clone())).comment("a port")
        });
        let rules = [rule(Family::Inet).verdict_map(&[Operand::DPORT], &map.key).build().unwrap()];
        empty().set(map.clone(), elements).chain(chain, commented(&["v"])).chain(input(0, Policy::Drop), rules)
    };
    // The kernel fills in a burst, and the time-outs of all other states.
    let limited = |rate| {
        let key = table().object(ObjectType::Limit, "slow").unwrap();
        let data = ObjectData::Limit { rate, unit: LimitUnit::Second, burst: 0, bytes: false, inverted: false };
        let hits = Object::counter(table().object(ObjectType::Counter, "hits").unwrap());
        let policy = [("established".to_owned(), Duration::from_secs(rate))].into();
        let timeouts = ObjectData::CtTimeout { family: Family::Ip, protocol: L4Protocol::TCP, policy };
        let timeouts = Object::new(table().object(ObjectType::CtTimeout, "fast").unwrap(), timeouts);
        let rules = [
            rule(Family::Inet).object(&key).accept().build().unwrap(),
            rule(Family::Inet).named_counter(name("hits")).build().unwrap(),
        ];
        empty().object(Object::new(key, data)).object(hits).object(timeouts).chain(input(5, Policy::Accept), rules)
    };
    let ranges = |prefixes: &[(u8, u8)]| {
        let network = |(last, prefix): &(u8, u8)| Element::network(ip(*last).into(), *prefix).unwrap();
        empty().set(Set::new(set("plain"), address.clone()).auto_merge(), prefixes.iter().map(network))
    };
    let map = |value| {
        let map = Set::map(set("plain"), address.clone(), types(&[DataType::MARK]));
        empty().set(map, addresses(&[1, 2]).into_iter().map(|element| element.maps_to(Value::mark(value))))
    };
    let limit = |rate| Expression::Limit { rate, unit: LimitUnit::Second, burst: 0, bytes: false, inverted: false };
    let each_limited = |rate| {
        let mut each = Set::new(set("plain"), address.clone()).flags(SetFlags::DYNAMIC);
        each.expressions = vec![limit(rate)];
        empty().set(each, [])
    };
    let one_limited = |own: &[u64]| {
        let mut each = Set::new(set("plain"), address.clone());
        each.expressions = vec![limit(1)];
        let mut elements = addresses(&[1, 2]);
        elements[0].extras_mut().expressions = own.iter().copied().map(limit).collect();
        empty().set(each, elements)
    };
    let rules = |comments: &[&str]| empty().chain(input(0, Policy::Accept), commented(comments));
    let mut dormant = rules(&["a", "c"]);
    dormant.table.flags = TableFlags::DORMANT;
    vec![
        empty(),
        plain(Set::new(set("plain"), address.clone()), addresses(&[1, 2, 3])),
        plain(Set::new(set("plain"), address.clone()).size(99), addresses(&[2, 4])),
        plain(Set::new(set("plain"), address.clone()).timeout(Duration::from_secs(600)), addresses(&[2])),
        verdicts("web", &[80, 443]),
        verdicts("other", &[80]),
        limited(5),
        limited(6),
        ranges(&[(0, 25), (128, 26)]),
        ranges(&[(0, 24), (7, 32)]),
        map(1),
        map(2),
        each_limited(1),
        each_limited(2),
        one_limited(&[]),
        one_limited(&[5]),
        one_limited(&[6]),
        rules(&["a", "b", "c", "d", "e"]),
        rules(&["x", "b", "d", "c", "y", "e", "e"]),
        rules(&["e", "d", "c", "b", "a"]),
        dormant,
    ]
}

/// Text of a table with its parts in the order of their names.
fn listed(client: &mut Client) -> Vec<String> {
    let text = client.snapshot(&table()).unwrap().to_string();
    let mut parts: Vec<String> = text.split("\n\t}\n").map(str::to_owned).collect();
    if let Some(first) = parts.first_mut() {
        *first = first.split_once("{\n").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    }
    parts.sort();
    parts
}

pub(crate) fn a_table_becomes_what_is_wanted(client: &mut Client) {
    let states = states();
    let fresh: Vec<Vec<String>> = states
        .iter()
        .map(|state| {
            let mut again = Transaction::new();
            again.remove_table(&table()).append(state.diff(None).unwrap());
            client.commit(&again).unwrap();
            listed(client)
        })
        .collect();
    for (number, from) in states.iter().enumerate() {
        for (other, to) in states.iter().enumerate() {
            client.sync(from).unwrap();
            let plan = client.sync(to).unwrap_or_else(|error| panic!("{number} to {other}: {error}"));
            assert_eq!(plan.is_empty(), number == other, "{number} to {other}:\n{plan}");
            assert_eq!(listed(client), fresh[other], "{number} to {other}:\n{plan}");
            let before = client.generation().unwrap();
            let again = client.sync(to).unwrap();
            assert!(again.is_empty(), "{number} to {other}, again:\n{again}");
            assert_eq!(client.generation().unwrap(), before);
        }
    }
}

pub(crate) fn rules_and_elements_that_stay_are_not_written(client: &mut Client) {
    let chain = input(0, Policy::Accept);
    let dynamic = Set::new(table().set("seen").unwrap(), types(&[DataType::IPV4_ADDR])).flags(SetFlags::DYNAMIC);
    let spec = |comments: &[&str]| {
        let spec = TableSpec::new(Table::new(table())).chain(chain.clone(), commented(comments));
        spec.set(dynamic.clone(), addresses(&[1]))
    };
    client.sync(&spec(&["a", "b", "c"])).unwrap();
    let before = client.list_rules(&chain.key).unwrap();
    // As if packets had been counted, and seen.
    let mut counted = before[1].rule.clone();
    for expression in &mut counted.expressions {
        if let Expression::Counter { packets, .. } = expression {
            *packets = 5;
        }
    }
    let mut transaction = Transaction::new();
    transaction.replace_rule(&chain.key, before[1].handle, counted).add_elements(&dynamic, addresses(&[9]));
    client.commit(&transaction).unwrap();
    assert!(client.sync(&spec(&["a", "b", "c"])).unwrap().is_empty());
    let plan = client.sync(&spec(&["x", "b", "y", "c"])).unwrap();
    assert_eq!(plan.len(), 3, "{plan}");
    let after = client.list_rules(&chain.key).unwrap();
    let comments: Vec<_> = after.iter().filter_map(|found| found.rule.comment.as_deref()).collect();
    assert_eq!(comments, ["x", "b", "y", "c"]);
    assert!(matches!(after[1].rule.expressions[2], Expression::Counter { packets: 5, .. }), "{:?}", after[1]);
    assert_eq!(client.list_elements(&dynamic).unwrap().len(), 2);
    // A long list with changes at both ends and in between.
    let numbers: Vec<String> = (0..1200).map(|number| number.to_string()).collect();
    let mut long: Vec<&str> = numbers.iter().map(String::as_str).collect();
    client.sync(&spec(&long)).unwrap();
    (long[0], long[1199]) = ("x", "y");
    long.remove(600);
    let plan = client.sync(&spec(&long)).unwrap();
    assert_eq!(plan.len(), 5, "{plan}");
}

pub(crate) fn elements_that_run_out_before_the_commit_do_not_refuse_it(client: &mut Client) {
    let (address, port) = (types(&[DataType::IPV4_ADDR]), types(&[DataType::IPV4_ADDR, DataType::INET_SERVICE]));
    let plain = |name: &str| Set::new(table().set(name).unwrap(), address.clone()).flags(SetFlags::TIMEOUT);
    let range = |first, last| Element::range(ip(first), ip(last));
    let pair = |last, port| Value::concat(&[ip(last).into(), Value::port(port)]).unwrap();
    let all = |element: fn(Element) -> Element| {
        let map = Set::map(table().set("map").unwrap(), address.clone(), types(&[DataType::MARK]));
        let ranges = plain("ranges").flags(SetFlags::INTERVAL);
        let pairs = Set::new(table().set("pairs").unwrap(), port.clone()).flags(SetFlags::TIMEOUT | SetFlags::INTERVAL);
        TableSpec::new(Table::new(table()))
            .set(plain("plain"), addresses(&[1, 2, 3]).into_iter().map(element))
            .set(plain("default").timeout(Duration::from_millis(200)), addresses(&[1, 2]))
            .set(ranges, [range(1, 9), range(20, 20), range(21, 255)].map(element))
            .set(pairs, [Element::range(pair(1, 80), pair(9, 90)), Element::value(pair(20, 80))].map(element))
            .set(map.flags(SetFlags::TIMEOUT), addresses(&[1, 2]).into_iter().map(|of| element(of.maps_to(ip(7)))))
    };
    let short = || all(|element| element.timeout(Duration::from_millis(200)));
    let mut longer = all(|element| element.timeout(Duration::from_secs(600)));
    longer.sets[1].1.clear();
    let mut other = all(|element| element.comment("kept"));
    other.sets[1].1 = vec![];
    other.sets[4].1.iter_mut().for_each(|element| *element = element.clone().maps_to(ip(8)));
    let mut none = short();
    none.sets.iter_mut().for_each(|(_, elements)| elements.clear());
    for wanted in [longer, other, none] {
        for pause in [Duration::ZERO, Duration::from_millis(400)] {
            client.sync(&short()).unwrap();
            let plan = |found: Option<&nftables::TableSnapshot>| {
                let plan = wanted.diff(found).unwrap();
                std::thread::sleep(pause);
                plan
            };
            client.change_table(&table(), plan).unwrap();
            assert!(client.sync(&wanted).unwrap().is_empty());
            for (set, elements) in &wanted.sets {
                let wanted = set.merge(elements.iter().cloned()).len();
                assert_eq!(client.list_elements(set).unwrap().len(), wanted, "{} after {pause:?}", set.key);
            }
        }
    }
}

/// A kernel whose clock ticks every 4 ms reports 1500 ms for 1501 ms.
pub(crate) fn timeouts_that_the_kernel_rounds_are_written_once(client: &mut Client) {
    let spec = |of_set: u64, of_element: u64, of_rule: u64| {
        let (millis, source) = (Duration::from_millis, [Operand::IP_SADDR]);
        let seen = Set::new(table().set("seen").unwrap(), types(&[DataType::IPV4_ADDR]));
        let seen = seen.flags(SetFlags::DYNAMIC).timeout(millis(of_set));
        let remember = rule(Family::Inet).change_set(DynSetOp::Update, &seen.key, &source, &[], Some(millis(of_rule)));
        let element = Element::value(ip(1)).timeout(millis(of_element));
        let chain = Chain::regular(table().chain("c").unwrap());
        TableSpec::new(Table::new(table())).chain(chain, [remember.build().unwrap()]).set(seen, [element])
    };
    client.sync(&spec(60_001, 70_009, 80_003)).unwrap();
    for same in [spec(60_001, 70_009, 80_003), spec(60_000, 70_000, 80_000)] {
        assert_eq!(client.sync(&same).unwrap().to_string(), "");
    }
    for other in [spec(60_020, 70_000, 80_000), spec(60_020, 70_020, 80_000), spec(60_020, 70_020, 80_020)] {
        assert!(!client.sync(&other).unwrap().is_empty());
    }
}

/// Kernels before Linux 6.12 report the timeout of such an element like the set's.
pub(crate) fn elements_that_never_run_out_are_written_once(client: &mut Client) {
    let set = Set::new(table().set("banned").unwrap(), types(&[DataType::IPV4_ADDR])).timeout(Duration::from_secs(600));
    let spec = |timeout| {
        let element = Element::value(ip(1)).timeout(timeout);
        TableSpec::new(Table::new(table())).set(set.clone(), [element, Element::value(ip(2))])
    };
    let wanted = spec(Duration::ZERO);
    client.sync(&wanted).unwrap();
    assert_eq!(client.sync(&wanted).unwrap().to_string(), "");
    let mut found = client.snapshot(&table()).unwrap();
    let element = found.sets[0].elements.iter_mut().find(|element| element.key == Element::value(ip(1)).key).unwrap();
    assert_eq!(element.extras().expiration, None);
    element.extras_mut().timeout = None;
    assert_eq!(wanted.diff(Some(&found)).unwrap().to_string(), "");
    assert!(!spec(Duration::from_secs(600)).diff(Some(&found)).unwrap().is_empty());
    // Put back, it does not run out either.
    client.commit(Transaction::new().remove_table(&table()).append(found.to_transaction().unwrap())).unwrap();
    assert_eq!(client.sync(&wanted).unwrap().to_string(), "");
}

pub(crate) fn parts_of_others_stay(client: &mut Client) {
    let foreign = Chain::regular(table().chain("foreign").unwrap());
    let all = TableSpec::new(Table::new(table())).chain(foreign, commented(&["theirs"]));
    client.sync(&all).unwrap();
    let own = || TableSpec::new(Table::new(table())).chain(input(0, Policy::Accept), commented(&["ours"]));
    client.sync(&own().keep_others()).unwrap();
    assert_eq!(client.list_chains(&table()).unwrap().len(), 2);
    assert!(client.sync(&own().keep_others()).unwrap().is_empty());
    assert_eq!(client.sync(&own()).unwrap().to_string(), "flush chain inet t foreign\ndelete chain inet t foreign\n");
    assert_eq!(client.list_chains(&table()).unwrap().len(), 1);
}

pub(crate) fn what_cannot_be_wanted_is_said(client: &mut Client) {
    let other = nftables::TableKey::new(Family::Ip, "t").unwrap();
    let table_only = || TableSpec::new(Table::new(table()));
    let chain = Chain::regular(table().chain("c").unwrap());
    let reference = Transaction::new().add_set(Set::new(table().set("s").unwrap(), types(&[DataType::IPV4_ADDR])));
    let of_transaction = rule(Family::Inet).in_set(&[Operand::IP_SADDR], reference).build().unwrap();
    for (spec, words) in [
        (
            table_only().chain(Chain::regular(other.chain("c").unwrap()), []),
            "chain ip t c: it is of another table than the wanted one",
        ),
        (table_only().chain(chain.clone(), []).chain(chain.clone(), []), "chain inet t c: it is wanted twice"),
        (
            table_only().chain(chain, [of_transaction]),
            "chain inet t c: a rule names a set of a transaction; name it by its key",
        ),
    ] {
        assert_eq!(spec.diff(None).unwrap_err().to_string(), words);
        let error = client.sync(&spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("comparing table inet t"), "{error}");
    }
    assert_eq!(client.list_tables(None).unwrap(), []);
    // The catch-all element is one as others are; older kernels have none.
    if testkit::missing(testkit::Need::Kernel(5, 13)).is_some() {
        return;
    }
    let map = Set::verdict_map(table().set("m").unwrap(), types(&[DataType::IPV4_ADDR]));
    let rest = Element::new(ElementKey::CatchAll).verdict(Verdict::Drop);
    let with = table_only().set(map.clone(), [rest]);
    assert_eq!(client.sync(&with).unwrap().len(), 3);
    assert!(client.sync(&with).unwrap().is_empty());
    let plan = client.sync(&table_only().set(map, [])).unwrap();
    assert_eq!(plan.to_string(), "delete element inet t m { * }\n");
}
