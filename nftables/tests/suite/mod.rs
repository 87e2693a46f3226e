//! Cases that hold for the kernel and for the fake one. Each starts in an empty namespace.

mod sync;

pub(crate) use sync::{
    a_table_becomes_what_is_wanted, elements_that_never_run_out_are_written_once,
    elements_that_run_out_before_the_commit_do_not_refuse_it, parts_of_others_stay,
    rules_and_elements_that_stay_are_not_written, timeouts_that_the_kernel_rounds_are_written_once,
    what_cannot_be_wanted_is_said,
};

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nftables::expr::{CmpOp, DynSetOp, LimitUnit, NatFlags, Reject, SynproxyFlags};
use nftables::{
    BaseChain, Chain, ChainKey, ChainType, Client, CtState, DataType, Element, ElementData, ElementKey, ErrorKind,
    Expression, Family, FieldTypes, Flowtable, FlowtableFlags, Hook, L4Protocol, Name, Object, ObjectData, ObjectType,
    Operand, Part, Policy, Priority, Register, Rule, RulePlace, Set, SetFlags, Table, TableKey, TableSpec, Transaction,
    Value, Verdict, rule,
};
use testkit::Need;

pub(crate) fn table() -> TableKey {
    TableKey::new(Family::Inet, "t").unwrap()
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn types(types: &[DataType]) -> FieldTypes {
    FieldTypes::of(types).unwrap()
}

pub(crate) fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

/// Address, protocol, port.
pub(crate) fn service(address: Ipv4Addr, port: u16) -> Value {
    Value::concat(&[address.into(), Value::byte(6), Value::port(port)]).unwrap()
}

pub(crate) fn target(address: Ipv4Addr, port: u16) -> Value {
    Value::concat(&[address.into(), Value::port(port)]).unwrap()
}

/// A table with nothing but a chain `c`.
pub(crate) fn with_chain(client: &mut Client) -> ChainKey {
    let chain = table().chain("c").unwrap();
    let mut transaction = Transaction::new();
    transaction.add_table(Table::new(table())).add_chain(Chain::regular(chain.clone()));
    client.commit(&transaction).unwrap();
    chain
}

fn refused(client: &mut Client, change: impl FnOnce(&mut Transaction) -> &mut Transaction) -> nftables::Error {
    let mut transaction = Transaction::new();
    change(&mut transaction);
    let checked = client.check(&transaction).unwrap_err();
    let before = client.generation().unwrap();
    let error = client.commit(&transaction).unwrap_err();
    assert_eq!(checked.kind(), error.kind(), "a check says what the commit says: {checked}; {error}");
    assert_eq!(client.generation().unwrap(), before, "a refused transaction changes nothing");
    error
}

fn done(client: &mut Client, change: impl FnOnce(&mut Transaction) -> &mut Transaction) {
    let mut transaction = Transaction::new();
    change(&mut transaction);
    let before = client.generation().unwrap();
    client.check(&transaction).unwrap();
    assert_eq!(client.generation().unwrap(), before, "a check changes nothing");
    client.commit(&transaction).unwrap();
}

/// Adds a set, in a chain of calls.
pub(crate) fn with_set(t: &mut Transaction, set: Set) -> &mut Transaction {
    t.add_set(set);
    t
}

/// Adds rules to a chain.
pub(crate) fn with_rules<'t>(
    t: &'t mut Transaction,
    chain: &ChainKey,
    rules: impl IntoIterator<Item = Rule>,
) -> &'t mut Transaction {
    rules.into_iter().fold(t, |t, rule| t.add_rule(chain, rule))
}

/// The tables that a service proxy needs: services by address, endpoints by slot, one chain for each number of endpoints.
pub(crate) fn proxy(transaction: &mut Transaction) -> (Set, Set) {
    let table = table();
    let key = [Operand::IP_DADDR, Operand::L4PROTO, Operand::DPORT];
    let slots = [key.as_slice(), &[Operand::random(2)]].concat();
    let endpoints = Set::typeof_map(table.set("eps2").unwrap(), &slots, &[Operand::IP_DADDR, Operand::DPORT])
        .unwrap()
        .comment("endpoints of Services that have two");
    let services = Set::typeof_verdict_map(table.set("services").unwrap(), &key).unwrap();
    let pick = table.chain("pick2").unwrap();
    let pre = table.chain("pre").unwrap();
    let post = table.chain("post").unwrap();
    transaction.add_table(Table::new(table.clone()).comment("a proxy"));
    transaction.add_chain(Chain::regular(pick.clone()).comment("two endpoints"));
    transaction.add_chain(Chain::base(pre.clone(), BaseChain::new(ChainType::Nat, Hook::Prerouting, Priority::DSTNAT)));
    transaction
        .add_chain(Chain::base(post.clone(), BaseChain::new(ChainType::Nat, Hook::Postrouting, Priority::SRCNAT)));
    transaction.add_set(endpoints.clone());
    transaction.add_set(services.clone());
    transaction.add_rule(
        &pick,
        rule(Family::Inet)
            .meta_l4proto(L4Protocol::TCP)
            .dnat_to_map(Family::Ip, &slots, &endpoints.key)
            .build()
            .unwrap(),
    );
    transaction.add_rule(&pre, rule(Family::Inet).verdict_map(&key, &services.key).build().unwrap());
    transaction
        .add_rule(&post, rule(Family::Inet).mark(0x4000, 0x4000).masquerade(NatFlags::FULLY_RANDOM).build().unwrap());
    let mut elements = Vec::new();
    for slot in 0..2 {
        let key = Value::concat(&[ip(1).into(), Value::byte(6), Value::port(80), Value::mark(slot)]).unwrap();
        elements.push(Element::value(key).maps_to(target(ip(100), 8080)));
    }
    transaction.add_elements(&endpoints, elements);
    transaction.add_elements(&services, [Element::value(service(ip(1), 80)).verdict(Verdict::Goto(pick.name))]);
    (endpoints, services)
}

macro_rules! suite {
    ($($case:ident),* $(,)?) => {
        /// Makes a test of each case; `$run` gets its name and the case.
        macro_rules! suite_tests {
            ($run:path) => { $( #[test] fn $case() { $run(suite::$case); } )* };
        }
    };
}
suite! {
    an_empty_namespace_has_no_tables, a_table_is_made_listed_and_deleted, chains_come_back_as_they_were_written,
    rules_keep_their_order_and_places, expressions_come_back_as_they_were_written, sets_come_back_as_they_were_written,
    elements_come_back_as_they_were_written, ranges_come_back_as_ranges, counters_are_objects, a_proxy_fits_in_one_transaction,
    a_transaction_is_made_whole_or_not_at_all, what_is_missing_is_named, what_exists_is_refused_or_kept,
    what_is_in_use_is_refused, the_refused_expression_is_named, the_refused_element_is_named, a_full_set_is_told,
    a_generation_that_is_gone_is_refused, a_snapshot_makes_an_equal_table, anonymous_sets_go_with_their_rule,
    fifty_thousand_elements_are_one_transaction, other_tables_are_not_read, what_cannot_be_is_not_sent,
    a_table_is_changed_as_it_was_read, ranges_that_overlap_are_refused, a_circle_is_refused_as_a_whole,
    objects_of_every_kind_come_back, a_table_becomes_what_is_wanted, rules_and_elements_that_stay_are_not_written,
    parts_of_others_stay, what_cannot_be_wanted_is_said, counters_start_again,
    elements_that_run_out_before_the_commit_do_not_refuse_it, timeouts_that_the_kernel_rounds_are_written_once,
    elements_that_never_run_out_are_written_once,
}

pub(crate) fn an_empty_namespace_has_no_tables(client: &mut Client) {
    assert_eq!(client.list_tables(None).unwrap(), []);
    assert_eq!(client.list_chains(&table()).unwrap(), []);
    assert_eq!(client.list_rules(&table().chain("c").unwrap()).unwrap(), []);
    assert_eq!(client.get_table(&table()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.snapshot(&table()).unwrap_err().kind(), ErrorKind::NotFound);
    client.commit(&Transaction::new()).unwrap();
    assert_eq!(client.generation().unwrap(), client.generation().unwrap());
}

pub(crate) fn a_table_is_made_listed_and_deleted(client: &mut Client) {
    let table = Table::new(table()).comment("what it is for");
    done(client, |t| t.add_table(table.clone()));
    let found = client.get_table(&table.key).unwrap();
    assert!(found.table == table && found.handle != 0, "{found:?}");
    let other = TableKey::new(Family::Ip6, "t").unwrap();
    done(client, |t| t.create_table(Table::new(other.clone())));
    let keys = |found: Vec<nftables::ObservedTable>| found.into_iter().map(|found| found.table.key).collect::<Vec<_>>();
    assert_eq!(keys(client.list_tables(Some(Family::Ip6)).unwrap()), [other]);
    assert_eq!(client.list_tables(None).unwrap().len(), 2);
    done(client, |t| t.delete_table(&table.key));
    assert!(client.get_table(&table.key).unwrap_err().is_not_found());
    for _ in 0..2 {
        done(client, |t| t.remove_table(&table.key));
    }
}

pub(crate) fn chains_come_back_as_they_were_written(client: &mut Client) {
    let key = |name| table().chain(name).unwrap();
    let base = |kind, hook, priority| BaseChain::new(kind, hook, Priority(priority));
    let chains = [
        Chain::regular(key("regular")).comment("why it is there"),
        Chain::base(key("pre"), base(ChainType::Nat, Hook::Prerouting, -99)),
        Chain::base(key("post"), base(ChainType::Nat, Hook::Postrouting, 100)),
        Chain::base(key("in"), base(ChainType::Filter, Hook::Input, 0x0102)).policy(Policy::Drop),
        Chain::base(key("fwd"), base(ChainType::Filter, Hook::Forward, -5)),
        Chain::base(key("out"), base(ChainType::Route, Hook::Output, i32::MIN + 1)),
    ];
    done(client, |t| chains.iter().cloned().fold(t.add_table(Table::new(table())), Transaction::add_chain));
    let found: Vec<Chain> = client.list_chains(&table()).unwrap().into_iter().map(|found| found.chain).collect();
    assert_eq!(found, chains);
    assert_eq!(client.get_chain(&key("in")).unwrap().chain, chains[3]);
    // A policy is changed in place, and nothing else.
    done(client, |t| t.add_chain(chains[3].clone().policy(Policy::Accept)));
    assert_eq!(client.get_chain(&key("in")).unwrap().chain, chains[3].clone().policy(Policy::Accept));
}

fn comments(client: &mut Client, chain: &ChainKey) -> Vec<String> {
    client.list_rules(chain).unwrap().into_iter().map(|found| found.rule.comment.unwrap()).collect()
}

pub(crate) fn rules_keep_their_order_and_places(client: &mut Client) {
    let chain = with_chain(client);
    let named = |comment: &str| rule(Family::Inet).counter().comment(comment).build().unwrap();
    done(client, |t| {
        t.add_rule(&chain, named("b")).add_rule(&chain, named("d"));
        t.add_rule_at(&chain, named("a"), RulePlace::First)
    });
    let handle = client.list_rules(&chain).unwrap()[1].handle;
    done(client, |t| {
        t.add_rule_at(&chain, named("c"), RulePlace::After(handle));
        t.add_rule_at(&chain, named("a2"), RulePlace::Before(handle))
    });
    assert_eq!(comments(client, &chain), ["a", "a2", "b", "c", "d"]);
    done(client, |t| t.replace_rule(&chain, handle, named("B")));
    assert_eq!(comments(client, &chain), ["a", "a2", "B", "c", "d"]);
    let last = client.list_rules(&chain).unwrap()[4].handle;
    done(client, |t| t.delete_rule(&chain, last));
    assert_eq!(comments(client, &chain), ["a", "a2", "B", "c"]);
    done(client, |t| t.flush_chain(&chain));
    assert_eq!(client.list_rules(&chain).unwrap(), []);
}

/// One rule for each kind of expression; what they need is made by [`what_rules_need`].
pub(crate) fn every_kind_of_rule() -> Vec<Rule> {
    let table = table();
    let inet = || rule(Family::Inet);
    let key = [Operand::IP_DADDR, Operand::L4PROTO, Operand::DPORT];
    let hashed =
        Operand::Hash { of: vec![Operand::IP_SADDR, Operand::SPORT], modulus: 5, seed: Some(0x0102_0304), offset: 7 };
    let builders = [
        inet().meta_l4proto(L4Protocol::TCP).saddr(ip(1).into()).sport(0x1234).accept(),
        inet().daddr("2001:db8::1".parse().unwrap()).drop_packet(),
        inet().saddr_in(IpAddr::V4(ip(0)), 31).counter(),
        inet().saddr_not_in(IpAddr::V4(ip(0)), 9).daddr_in(IpAddr::V4(ip(128)), 25).counter(),
        inet().daddr_in("2001:db8::".parse().unwrap(), 33).counter(),
        inet().iifname("eth0").oifname("a-long-name-15c").counter().comment("names"),
        inet().mark(0x0102_0304, u32::MAX).set_mark_bits(0x4000, 0xc000),
        inet().mark(0x4000, 0x4000).set_mark(0x0102_0304),
        inet().ct_state(CtState::ESTABLISHED | CtState::RELATED).counter(),
        inet().matches(&Operand::CT_MARK, CmpOp::Ne, Value::mark(5)).notrack(),
        inet().daddr_is_local().counter(),
        inet().in_set(&[Operand::IP_SADDR], &table.set("addresses").unwrap()).counter(),
        inet().not_in_set(&[Operand::IP_SADDR], &table.set("addresses").unwrap()).counter(),
        inet().verdict_map(&key, &table.set("verdicts").unwrap()),
        inet().set_mark_to(&Operand::map(
            [Operand::IP_DADDR, Operand::DPORT],
            &table.set("marks").unwrap(),
            types(&[DataType::MARK]),
        )),
        inet().set_mark_to(&hashed),
        inet().set_mark_to(&Operand::random(0x0102)),
        inet().change_set(
            DynSetOp::Update,
            &table.set("recent").unwrap(),
            &[Operand::IP_SADDR],
            &[],
            Some(Duration::from_secs(61)),
        ),
        inet().change_set(
            DynSetOp::Add,
            &table.set("numbers").unwrap(),
            &[Operand::IP_SADDR],
            &[Operand::random(3)],
            None,
        ),
        inet().limit(0x0102, LimitUnit::Minute, 0x0304).log("about to say: "),
        inet().named_counter(name("hits")).jump(name("other")),
        inet().meta_l4proto(L4Protocol::TCP).reject(Reject::TcpReset),
        inet().reject(Reject::Unreachable(nftables::expr::IcmpCode::AdminProhibited)),
        inet().verdict(Verdict::Return),
        inet()
            .expression(Expression::Payload {
                base: nftables::expr::HeaderBase::Transport,
                offset: 4,
                length: 4,
                register: Register::slot(5).unwrap(),
            })
            .expression(Expression::Range {
                register: Register::slot(5).unwrap(),
                inverted: true,
                from: Value::be32(0x0102),
                to: Value::be32(0x0102_0304),
            }),
        inet()
            .expression(Expression::SymmetricHash { modulus: 9, offset: 3, register: Register::FIRST })
            .expression(Expression::MetaSet { key: nftables::expr::MetaKey::Mark, source: Register::FIRST }),
    ];
    builders.into_iter().map(|builder| builder.build().unwrap()).collect()
}

pub(crate) fn what_rules_need(t: &mut Transaction) {
    let table = table();
    let set = |name: &str| table.set(name).unwrap();
    t.add_table(Table::new(table.clone()));
    t.add_chain(Chain::regular(table.chain("other").unwrap()));
    t.add_object(Object::counter(table.object(ObjectType::Counter, "hits").unwrap()).comment("all of them"));
    t.add_set(Set::new(set("addresses"), types(&[DataType::IPV4_ADDR])));
    let key = types(&[DataType::IPV4_ADDR, DataType::INET_PROTO, DataType::INET_SERVICE]);
    t.add_set(Set::verdict_map(set("verdicts"), key));
    let key = types(&[DataType::IPV4_ADDR, DataType::INET_SERVICE]);
    t.add_set(Set::map(set("marks"), key, types(&[DataType::MARK])));
    let recent = Set::new(set("recent"), types(&[DataType::IPV4_ADDR])).flags(SetFlags::DYNAMIC);
    t.add_set(recent.timeout(Duration::from_secs(120)).size(0x0102));
    let numbers = Set::map(set("numbers"), types(&[DataType::IPV4_ADDR]), types(&[DataType::MARK]));
    t.add_set(numbers.flags(SetFlags::DYNAMIC).timeout(Duration::from_secs(5)).size(100));
}

pub(crate) fn expressions_come_back_as_they_were_written(client: &mut Client) {
    let chain = table().chain("c").unwrap();
    let rules = every_kind_of_rule();
    done(client, |t| {
        what_rules_need(t);
        with_rules(t.add_chain(Chain::regular(chain.clone())), &chain, rules.clone())
    });
    let found = client.list_rules(&chain).unwrap();
    assert_eq!(found.len(), rules.len());
    for (found, wanted) in found.iter().zip(&rules) {
        let known = found.rule.expressions.iter().all(|expression| !matches!(expression, Expression::Other(_)));
        assert!(known, "{:?}", found.rule);
        assert_eq!(found.rule, written(wanted));
    }
    // Every rule that was read is written again, and reads the same.
    done(client, |t| with_rules(t.flush_chain(&chain), &chain, found.iter().map(|found| found.rule.clone())));
    let again = client.list_rules(&chain).unwrap();
    assert!(again.iter().map(|found| &found.rule).eq(found.iter().map(|found| &found.rule)));
}

/// The rule as the kernel returns it: a log without a level gets one.
fn written(rule: &Rule) -> Rule {
    let mut rule = rule.clone();
    for expression in &mut rule.expressions {
        if let Expression::Log { level, group: None, .. } = expression {
            level.get_or_insert(4);
        }
    }
    rule
}

fn every_kind_of_set() -> Vec<Set> {
    let set = |name: &str| table().set(name).unwrap();
    let (ip, port, mark) = (DataType::IPV4_ADDR, DataType::INET_SERVICE, DataType::MARK);
    vec![
        Set::new(set("plain"), types(&[ip])).comment("addresses"),
        Set::new(set("six"), types(&[DataType::IPV6_ADDR, DataType::INET_PROTO, port, mark])),
        Set::new(set("ranges"), types(&[ip])).flags(SetFlags::INTERVAL),
        Set::new(set("many"), types(&[ip, port])).flags(SetFlags::INTERVAL),
        Set::new(set("named"), types(&[DataType::IFNAME])).size(0x0102),
        Set::new(set("short"), types(&[ip])).timeout(Duration::from_millis(0x0102_0304)),
        Set::map(set("values"), types(&[ip, DataType::INET_PROTO, port, mark]), types(&[ip, port])),
        Set::verdict_map(set("verdicts"), types(&[ip, port])),
        Set::object_map(set("objects"), types(&[port]), ObjectType::Counter),
        Set::typeof_map(
            set("typeof"),
            &[Operand::IP_DADDR, Operand::L4PROTO, Operand::DPORT, Operand::random(3)],
            &[Operand::IP_DADDR, Operand::DPORT],
        )
        .unwrap(),
        Set::typeof_verdict_map(set("typeof-verdicts"), &[Operand::IP6_DADDR, Operand::MARK]).unwrap().comment("both"),
    ]
}

pub(crate) fn sets_come_back_as_they_were_written(client: &mut Client) {
    let sets = every_kind_of_set();
    done(client, |t| sets.iter().cloned().fold(t.add_table(Table::new(table())), with_set));
    let found = client.list_sets(&table()).unwrap();
    assert_eq!(found.len(), sets.len());
    for (found, wanted) in found.iter().zip(&sets) {
        assert_eq!(&found.set, wanted);
        assert_eq!(&client.get_set(&wanted.key).unwrap().set, wanted);
    }
    done(client, |t| sets.iter().fold(t, |t, set| t.delete_set(&set.key)));
    assert_eq!(client.list_sets(&table()).unwrap(), []);
}

fn sorted(client: &mut Client, set: &Set) -> Vec<Element> {
    let mut found = client.list_elements(set).unwrap();
    found.sort_by(|one, other| one.key.cmp(&other.key));
    found
}

pub(crate) fn elements_come_back_as_they_were_written(client: &mut Client) {
    let sets = every_kind_of_set();
    done(client, |t| {
        t.add_table(Table::new(table()));
        t.add_chain(Chain::regular(table().chain("c").unwrap()));
        t.add_object(Object::counter(table().object(ObjectType::Counter, "hits").unwrap()));
        sets.iter().cloned().fold(t, with_set)
    });
    let key = |last, slot| {
        Value::concat(&[ip(last).into(), Value::byte(17), Value::port(0x1234), Value::mark(slot)]).unwrap()
    };
    let verdict = |last, verdict| Element::value(target(ip(last), 80)).verdict(verdict);
    let elements: [(&str, Vec<Element>); 6] = [
        ("plain", vec![Element::value(ip(1)).comment("the first"), Element::value(ip(2))]),
        ("named", vec![Element::value(Value::interface("eth0").unwrap())]),
        (
            "values",
            vec![
                Element::value(key(1, 0x0102_0304)).maps_to(target(ip(3), 0x1234)),
                Element::value(key(2, 1)).maps_to(target(ip(4), 1)).comment("two words"),
            ],
        ),
        (
            "verdicts",
            vec![
                verdict(1, Verdict::Accept),
                verdict(2, Verdict::Drop),
                verdict(3, Verdict::Jump(name("c"))),
                verdict(4, Verdict::Goto(name("c"))),
                verdict(5, Verdict::Return),
            ],
        ),
        ("objects", vec![Element::value(Value::port(80)).object(name("hits"))]),
        ("many", vec![Element::value(target(ip(1), 80)), Element::range(target(ip(16), 1), target(ip(31), 0x1234))]),
    ];
    for (set, elements) in &elements {
        let set = sets.iter().find(|found| found.key.name.as_str() == *set).unwrap();
        done(client, |t| t.add_elements(set, elements.clone()));
        assert_eq!(&sorted(client, set), elements);
        let first = client.get_element(set, &elements[0].key).unwrap().unwrap();
        assert_eq!(first.key, elements[0].key);
        let mut streamed = 0;
        client.for_each_element(&set.key, |_| streamed += 1).unwrap();
        assert_eq!(streamed, elements.len());
        done(client, |t| t.delete_elements(set, elements[..1].to_vec()));
        assert_eq!(sorted(client, set), elements[1..]);
        assert_eq!(client.get_element(set, &elements[0].key).unwrap(), None);
        done(client, |t| t.flush_set(&set.key));
        assert_eq!(sorted(client, set), []);
    }
    let short = sets.iter().find(|set| set.key.name.as_str() == "short").unwrap();
    done(client, |t| t.add_elements(short, [Element::value(ip(9)).timeout(Duration::from_secs(1000))]));
    let found = sorted(client, short).remove(0);
    assert_eq!(found.extras().timeout, Some(Duration::from_secs(1000)));
    assert!(found.extras().expiration.is_some_and(|left| left <= Duration::from_secs(1000)));
}

pub(crate) fn ranges_come_back_as_ranges(client: &mut Client) {
    let set = Set::new(table().set("ranges").unwrap(), types(&[DataType::IPV4_ADDR])).flags(SetFlags::INTERVAL);
    let top = Ipv4Addr::new(255, 255, 255, 0);
    let elements = [
        Element::value(Ipv4Addr::UNSPECIFIED),
        Element::value(ip(1)),
        Element::range(ip(16), ip(31)).comment("sixteen"),
        Element::range(ip(32), ip(40)),
        Element::range(top, Ipv4Addr::BROADCAST),
    ];
    done(client, |t| {
        t.add_table(Table::new(table()));
        t.add_set(set.clone());
        t.add_elements(&set, elements.clone())
    });
    assert_eq!(sorted(client, &set), elements);
    // A value finds the range that holds it, by its start.
    let find = |client: &mut Client, key| client.get_element(&set, &key).unwrap().map(|found| found.key);
    let start = Some(ElementKey::Value(ip(16).into()));
    assert_eq!(find(client, ElementKey::Value(ip(20).into())), start);
    assert_eq!(find(client, elements[2].key.clone()), start);
    assert_eq!(find(client, ElementKey::Value(ip(41).into())), None);
    done(client, |t| t.delete_elements(&set, elements[2..].to_vec()));
    assert_eq!(sorted(client, &set), elements[..2]);
}

pub(crate) fn counters_are_objects(client: &mut Client) {
    let key = table().object(ObjectType::Counter, "hits").unwrap();
    let mut counter = Object::counter(key.clone()).comment("hits of the cache");
    counter.data = ObjectData::Counter { packets: 0x0102_0304, bytes: 0x0102_0304_0506_0708 };
    done(client, |t| {
        t.add_table(Table::new(table()));
        t.add_object(counter.clone())
    });
    assert_eq!(client.get_object(&key).unwrap().object, counter);
    assert_eq!(client.list_objects(&table()).unwrap().len(), 1);
    let chain = with_chain(client);
    done(client, |t| t.add_rule(&chain, rule(Family::Inet).named_counter(key.name.clone()).build().unwrap()));
    assert_eq!(client.get_object(&key).unwrap().references, 1);
    assert_eq!(refused(client, |t| t.delete_object(&key)).kind(), ErrorKind::InUse);
    done(client, |t| t.flush_chain(&chain).delete_object(&key));
    assert_eq!(client.list_objects(&table()).unwrap(), []);
}

/// Objects of the kinds that every kernel takes.
pub(crate) fn every_kind_of_object() -> Vec<Object> {
    let seconds = |state: &str, seconds: u64| (state.to_owned(), Duration::from_secs(seconds));
    let (family, protocol) = (Family::Ip, L4Protocol::TCP);
    let options = SynproxyFlags::MSS | SynproxyFlags::WSCALE | SynproxyFlags::TIMESTAMP | SynproxyFlags::SACK_PERM;
    let object = |kind, name: &str, data| Object::new(table().object(kind, name).unwrap(), data);
    vec![
        object(
            ObjectType::Quota,
            "much",
            ObjectData::Quota { bytes: 0x0102_0304_0506, consumed: 0x0708, inverted: true },
        ),
        object(
            ObjectType::Limit,
            "slow",
            ObjectData::Limit { rate: 0x0102, unit: LimitUnit::Minute, burst: 0x0304, bytes: true, inverted: true },
        ),
        object(
            ObjectType::CtHelper,
            "ftp-help",
            ObjectData::CtHelper { helper: "ftp".to_owned(), family: Family::Inet, protocol },
        )
        .comment("of FTP"),
        object(
            ObjectType::CtTimeout,
            "fast-udp",
            ObjectData::CtTimeout {
                family,
                protocol: L4Protocol::UDP,
                policy: [seconds("unreplied", 0x0102), seconds("replied", 0x0103)].into(),
            },
        ),
        object(
            ObjectType::CtExpectation,
            "data",
            ObjectData::CtExpectation { family, protocol, port: 0x1234, timeout: 0x0102_0304, size: 12 },
        ),
        object(ObjectType::Synproxy, "answers", ObjectData::Synproxy { mss: 0x0506, window_scale: 7, flags: options }),
    ]
}

pub(crate) fn objects_of_every_kind_come_back(client: &mut Client) {
    let chain = with_chain(client);
    let objects = every_kind_of_object();
    done(client, |t| objects.iter().cloned().fold(t, Transaction::add_object));
    for wanted in &objects {
        let found = client.get_object(&wanted.key).unwrap();
        assert_eq!((&found.object, found.references), (wanted, 0));
    }
    // Only states that differ from the namespace's are given, and all are read.
    let policy = [("established".to_owned(), Duration::from_secs(0x0102))].into();
    let data = ObjectData::CtTimeout { family: Family::Ip, protocol: L4Protocol::TCP, policy };
    let tcp = table().object(ObjectType::CtTimeout, "fast-tcp").unwrap();
    done(client, |t| t.add_object(Object::new(tcp.clone(), data)));
    let ObjectData::CtTimeout { policy, .. } = client.get_object(&tcp).unwrap().object.data else {
        panic!("no time-outs")
    };
    assert_eq!((policy.len(), policy["established"].as_secs(), policy["close"].as_secs()), (11, 0x0102, 10));
    // Rules use them.
    let used = [ObjectType::CtHelper, ObjectType::CtTimeout, ObjectType::CtExpectation];
    let used: Vec<&Object> = objects.iter().filter(|object| used.contains(&object.key.kind)).collect();
    let rules = used.iter().map(|object| rule(Family::Inet).object(&object.key).build().unwrap());
    done(client, |t| with_rules(t, &chain, rules));
    for object in &used {
        assert_eq!(client.get_object(&object.key).unwrap().references, 1, "{}", object.key);
        let error = refused(client, |t| t.delete_object(&object.key));
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    }
    // All come back with the table.
    let first = client.snapshot(&table()).unwrap();
    assert_eq!((first.objects.len(), first.left_out), (objects.len() + 1, 0));
    done(client, |t| {
        t.delete_table(&table());
        t.append(first.to_transaction().unwrap())
    });
    let second = client.snapshot(&table()).unwrap();
    assert_eq!(first.to_string(), second.to_string());
    for (one, other) in first.objects.iter().zip(&second.objects) {
        assert_eq!(one.object, other.object);
    }
    done(client, |t| objects.iter().fold(t.flush_chain(&chain), |t, object| t.delete_object(&object.key)));
    assert_eq!(client.list_objects(&table()).unwrap().len(), 1);
    // Without a security module that knows it, the kernel refuses a label.
    let secmark = table().object(ObjectType::Secmark, "ssh").unwrap();
    let context = "system_u:object_r:ssh_server_packet_t:s0".to_owned();
    let secmark = Object::new(secmark, ObjectData::Secmark { context });
    let mut transaction = Transaction::new();
    transaction.add_object(secmark.clone());
    match client.commit(&transaction) {
        Ok(()) => assert_eq!(client.get_object(&secmark.key).unwrap().object, secmark),
        Err(error) => {
            assert!(error.is_not_found() && error.to_string().contains("adding object inet t ssh"), "{error}");
        }
    }
}

pub(crate) fn flow_tables_come_back_as_they_were_written(client: &mut Client) {
    let key = |name: &str| table().flowtable(name).unwrap();
    let fast = Flowtable::new(key("fast"), ["lo"]).priority(Priority(-0x0102)).flags(FlowtableFlags::COUNTER);
    let forward = table().chain("forward").unwrap();
    let base = BaseChain::new(ChainType::Filter, Hook::Forward, Priority::FILTER);
    let add = rule(Family::Inet).meta_l4proto(L4Protocol::TCP).flow_add(name("fast")).build().unwrap();
    done(client, |t| {
        t.add_table(Table::new(table()));
        t.add_flowtable(fast.clone());
        t.add_chain(Chain::base(forward.clone(), base));
        t.add_rule(&forward, add.clone())
    });
    let found = client.get_flowtable(&fast.key).unwrap();
    assert_eq!((&found.flowtable, found.references), (&fast, 1));
    assert_eq!(client.list_flowtables(&table()).unwrap(), [found]);
    assert_eq!(client.list_rules(&forward).unwrap()[0].rule, add);
    assert_eq!(client.get_table(&table()).unwrap().references, 2);
    // What is there is kept, or refused.
    done(client, |t| t.add_flowtable(fast.clone()));
    let exists = refused(client, |t| t.create_flowtable(fast.clone()));
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists, "{exists}");
    let taken = refused(client, |t| t.add_flowtable(Flowtable::new(key("other"), ["lo"]).priority(Priority(-0x0102))));
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists, "a device has one flow table: {taken}");
    let elsewhere = TableKey::new(Family::Inet, "elsewhere").unwrap();
    done(client, |t| {
        t.add_table(Table::new(elsewhere.clone()));
        t.add_flowtable(Flowtable::new(elsewhere.flowtable("other").unwrap(), ["lo"]))
    });
    done(client, |t| t.delete_table(&elsewhere));
    // Without it the rule cannot be, nor can it go while the rule is there.
    let used = refused(client, |t| t.delete_flowtable(&fast.key));
    assert_eq!(used.kind(), ErrorKind::InUse, "{used}");
    let missing =
        refused(client, |t| t.add_rule(&forward, rule(Family::Inet).counter().flow_add(name("none")).build().unwrap()));
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert!(client.get_flowtable(&key("none")).unwrap_err().is_not_found());
    // It comes back with the table.
    let first = client.snapshot(&table()).unwrap();
    assert_eq!((first.flowtables.len(), first.left_out), (1, 0));
    done(client, |t| {
        t.delete_table(&table());
        t.append(first.to_transaction().unwrap())
    });
    let second = client.snapshot(&table()).unwrap();
    assert_eq!(first.to_string(), second.to_string());
    assert_eq!(second.flowtables[0].flowtable, fast);
    // Devices go, then the whole.
    done(client, |t| t.delete_flowtable_devices(fast.clone()));
    assert_eq!(client.get_flowtable(&fast.key).unwrap().flowtable.devices, [""; 0]);
    // They come back without the rule having to go.
    let spec = TableSpec::new(Table::new(table())).flowtable(fast.clone()).keep_others();
    let handle = client.list_rules(&forward).unwrap()[0].handle;
    client.sync(&spec).unwrap();
    assert_eq!(client.get_flowtable(&fast.key).unwrap().flowtable, fast);
    assert_eq!(client.list_rules(&forward).unwrap()[0].handle, handle);
    assert!(client.sync(&spec).unwrap().is_empty());
    let without = Flowtable::new(fast.key.clone(), [""; 0]).priority(fast.priority).flags(fast.flags);
    client.sync(&TableSpec::new(Table::new(table())).flowtable(without).keep_others()).unwrap();
    assert_eq!(client.get_flowtable(&fast.key).unwrap().flowtable.devices, [""; 0]);
    done(client, |t| t.flush_chain(&forward).delete_flowtable(&fast.key));
    assert_eq!(client.list_flowtables(&table()).unwrap(), []);
}

pub(crate) fn a_proxy_fits_in_one_transaction(client: &mut Client) {
    let mut transaction = Transaction::new();
    let (endpoints, services) = proxy(&mut transaction);
    client.check(&transaction).unwrap();
    assert_eq!(client.list_tables(None).unwrap(), []);
    client.commit(&transaction).unwrap();
    assert_eq!(client.list_elements(&endpoints).unwrap().len(), 2);
    let verdict = client.get_element(&services, &ElementKey::Value(service(ip(1), 80))).unwrap().unwrap();
    assert_eq!(verdict.data, Some(ElementData::Verdict(Verdict::Goto(name("pick2")))));
    let snapshot = client.snapshot(&table()).unwrap();
    assert_eq!((snapshot.chains.len(), snapshot.rules.len(), snapshot.sets.len()), (3, 3, 2));
    // An element that no other part uses can be deleted; the chain it led to is then free.
    done(client, |t| t.flush_set(&services.key).delete_chain(&table().chain("pick2").unwrap()));
}

pub(crate) fn a_transaction_is_made_whole_or_not_at_all(client: &mut Client) {
    let error = refused(client, |t| {
        t.add_table(Table::new(table()));
        t.delete_chain(&table().chain("missing").unwrap());
        t.delete_set(&table().set("gone").unwrap())
    });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let operations: Vec<_> = error.refusals().iter().map(|refusal| refusal.operation).collect();
    assert_eq!(operations, [Some(1), Some(2)], "the kernel checks what follows, too");
    assert!(error.to_string().contains("deleting chain inet t missing (operation 2"), "{error}");
    assert_eq!(client.list_tables(None).unwrap(), []);
}

pub(crate) fn what_is_missing_is_named(client: &mut Client) {
    let chain = table().chain("c").unwrap();
    assert_eq!(refused(client, |t| t.add_chain(Chain::regular(chain.clone()))).kind(), ErrorKind::NotFound);
    let chain = with_chain(client);
    let accept = || rule(Family::Inet).accept().build().unwrap();
    assert!(refused(client, |t| t.add_rule(&table().chain("x").unwrap(), accept())).is_not_found());
    assert!(refused(client, |t| t.delete_rule(&chain, 0x0102)).is_not_found());
    assert!(refused(client, |t| t.add_rule_at(&chain, accept(), RulePlace::After(0x0102))).is_not_found());
    assert!(refused(client, |t| t.flush_set(&table().set("x").unwrap())).is_not_found());
    let missing = Set::new(table().set("x").unwrap(), types(&[DataType::IPV4_ADDR]));
    assert!(refused(client, |t| t.add_elements(&missing, [Element::value(ip(1))])).is_not_found());
    done(client, |t| {
        t.add_set(missing.clone());
        t
    });
    assert!(refused(client, |t| t.delete_elements(&missing, [Element::value(ip(1))])).is_not_found());
    assert!(
        client
            .list_elements(&Set::new(table().set("y").unwrap(), types(&[DataType::MARK])))
            .unwrap_err()
            .is_not_found()
    );
}

pub(crate) fn what_exists_is_refused_or_kept(client: &mut Client) {
    let chain = with_chain(client);
    let map = Set::map(table().set("m").unwrap(), types(&[DataType::INET_SERVICE]), types(&[DataType::MARK]));
    let element = |mark| Element::value(Value::port(80)).maps_to(Value::mark(mark));
    for _ in 0..2 {
        done(client, |t| {
            t.add_table(Table::new(table())).add_chain(Chain::regular(chain.clone()));
            t.add_set(map.clone());
            t.add_elements(&map, [element(1)])
        });
    }
    assert!(refused(client, |t| t.create_table(Table::new(table()))).is_already_exists());
    assert!(refused(client, |t| t.create_chain(Chain::regular(chain.clone()))).is_already_exists());
    let created = refused(client, |t| {
        t.create_set(map.clone());
        t
    });
    assert!(created.is_already_exists());
    assert!(refused(client, |t| t.create_elements(&map, [element(1)])).is_already_exists());
    let other = refused(client, |t| t.add_elements(&map, [element(2)]));
    assert!(matches!(other.kind(), ErrorKind::AlreadyExists | ErrorKind::InUse), "{other}");
}

pub(crate) fn what_is_in_use_is_refused(client: &mut Client) {
    let chain = with_chain(client);
    let target = table().chain("target").unwrap();
    let set = Set::new(table().set("s").unwrap(), types(&[DataType::IPV4_ADDR]));
    done(client, |t| {
        t.add_chain(Chain::regular(target.clone()));
        t.add_set(set.clone());
        t.add_rule(
            &chain,
            rule(Family::Inet).in_set(&[Operand::IP_SADDR], &set.key).jump(target.name.clone()).build().unwrap(),
        )
    });
    assert_eq!(refused(client, |t| t.delete_chain(&target)).kind(), ErrorKind::InUse);
    assert_eq!(refused(client, |t| t.delete_set(&set.key)).kind(), ErrorKind::InUse);
    done(client, |t| t.flush_chain(&chain).delete_chain(&target).delete_set(&set.key));
    // Rules go with their chain, and everything with its table.
    done(client, |t| t.add_rule(&chain, rule(Family::Inet).counter().build().unwrap()));
    done(client, |t| t.delete_chain(&chain));
}

pub(crate) fn the_refused_expression_is_named(client: &mut Client) {
    let chain = with_chain(client);
    let error = refused(client, |t| {
        t.add_rule(&chain, rule(Family::Inet).accept().build().unwrap());
        let missing = table().set("missing").unwrap();
        t.add_rule(&chain, rule(Family::Inet).counter().in_set(&[Operand::L4PROTO], &missing).accept().build().unwrap())
    });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let refusal = &error.refusals()[0];
    assert_eq!(refusal.operation, Some(1));
    assert_eq!(refusal.part, Part::Expression { index: 2, name: "lookup".to_owned() });
    assert!(
        error.to_string().contains("adding a rule to chain inet t c (operation 2, expression 3 (lookup))"),
        "{error}"
    );
    let error = refused(client, |t| t.add_rule(&chain, rule(Family::Inet).jump(name("nowhere")).build().unwrap()));
    assert_eq!(error.refusals()[0].part, Part::Expression { index: 0, name: "immediate".to_owned() });
}

/// Linux 5.10 says only which message was refused.
fn assert_names_element(error: &nftables::Error, index: usize) {
    match &error.refusals()[0].part {
        Part::Element { index: named } => assert_eq!(*named, index),
        Part::AmongElements { first, last } => {
            assert!((*first..=*last).contains(&index) && testkit::missing(Need::Kernel(5, 15)).is_some(), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn the_refused_element_is_named(client: &mut Client) {
    with_chain(client);
    let set = Set::new(table().set("s").unwrap(), types(&[DataType::IPV4_ADDR]));
    done(client, |t| {
        t.add_set(set.clone());
        t.add_elements(&set, [Element::value(ip(3))])
    });
    let error = refused(client, |t| t.create_elements(&set, (0..10).map(|last| Element::value(ip(last)))));
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_names_element(&error, 3);
    // `Debug` of an error, as a `main` that returns it prints.
    let shown = format!("{error:?}");
    assert!(shown.starts_with(&format!("{error}: ")) && shown.len() < 300 && !shown.contains('\n'), "{shown}");
    let shown = format!("{:?}", error.refusals());
    assert!(shown.len() < 500, "{shown}");
    let ranges = Set::new(table().set("r").unwrap(), types(&[DataType::IPV4_ADDR])).flags(SetFlags::INTERVAL);
    done(client, |t| {
        t.add_set(ranges.clone());
        t.add_elements(&ranges, [Element::range(ip(30), ip(39))])
    });
    let error = refused(client, |t| {
        t.create_elements(&ranges, (0..5_u8).map(|ten| Element::range(ip(ten * 10), ip(ten * 10 + 5))))
    });
    assert_names_element(&error, 3);
}

pub(crate) fn a_full_set_is_told(client: &mut Client) {
    let set = Set::new(table().set("s").unwrap(), types(&[DataType::IPV4_ADDR])).size(2);
    done(client, |t| {
        t.add_table(Table::new(table()));
        t.add_set(set.clone());
        t.add_elements(&set, [1, 2].map(|last| Element::value(ip(last))))
    });
    let error = refused(client, |t| t.add_elements(&set, [Element::value(ip(3))]));
    assert_eq!(error.kind(), ErrorKind::SetFull);
}

pub(crate) fn a_generation_that_is_gone_is_refused(client: &mut Client) {
    let before = client.generation().unwrap();
    with_chain(client);
    let mut transaction = Transaction::new();
    transaction.expect_generation(before).remove_table(&table());
    let error = client.commit(&transaction).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::GenerationChanged);
    assert_eq!(error.refusals()[0].operation, None);
    let now = client.generation().unwrap();
    transaction.expect_generation(now);
    client.commit(&transaction).unwrap();
    assert_eq!(client.list_tables(None).unwrap(), []);
}

pub(crate) fn a_snapshot_makes_an_equal_table(client: &mut Client) {
    let chain = table().chain("c").unwrap();
    done(client, |t| {
        what_rules_need(t);
        with_rules(t.add_chain(Chain::regular(chain.clone())), &chain, every_kind_of_rule());
        let ports = Set::new(table().set("any").unwrap(), types(&[DataType::INET_SERVICE]));
        let ports =
            t.add_anonymous_set(ports, [80, 443].map(|port| Element::value(Value::port(port))).to_vec()).unwrap();
        t.add_rule(&chain, rule(Family::Inet).in_set(&[Operand::DPORT], ports).accept().build().unwrap())
    });
    let first = client.snapshot(&table()).unwrap();
    done(client, |t| {
        t.delete_table(&table());
        t.append(first.to_transaction().unwrap())
    });
    let second = client.snapshot(&table()).unwrap();
    assert_eq!(first.to_string(), second.to_string());
    assert!(first.rules.iter().zip(&second.rules).filter(|(one, other)| one.rule == other.rule).count() >= 24);
}

pub(crate) fn anonymous_sets_go_with_their_rule(client: &mut Client) {
    let chain = with_chain(client);
    done(client, |t| {
        for ports in [[80, 443], [53, 5353]] {
            let set = Set::new(table().set("any").unwrap(), types(&[DataType::INET_SERVICE]));
            let set = t.add_anonymous_set(set, ports.map(|port| Element::value(Value::port(port))).to_vec()).unwrap();
            t.add_rule(&chain, rule(Family::Inet).in_set(&[Operand::DPORT], set).accept().build().unwrap());
        }
        t
    });
    let sets = client.list_sets(&table()).unwrap();
    assert_eq!(sets.len(), 2);
    assert!(sets.iter().all(|set| set.set.flags.contains(SetFlags::ANONYMOUS | SetFlags::CONSTANT)));
    assert_eq!(sorted(client, &sets[1].set).len(), 2);
    done(client, |t| t.flush_chain(&chain));
    assert_eq!(client.list_sets(&table()).unwrap(), []);
}

pub(crate) fn fifty_thousand_elements_are_one_transaction(client: &mut Client) {
    const COUNT: u32 = 50_000;
    let set = Set::map(
        table().set("big").unwrap(),
        types(&[DataType::IPV4_ADDR, DataType::INET_PROTO, DataType::INET_SERVICE]),
        types(&[DataType::IPV4_ADDR, DataType::INET_SERVICE]),
    );
    let element = |number: u32| {
        let address = Ipv4Addr::from(0x0a00_0000 + number);
        Element::value(service(address, 80)).maps_to(target(address, 8080))
    };
    done(client, |t| {
        t.add_table(Table::new(table()));
        t.add_set(set.clone());
        t.add_elements(&set, (0..COUNT).map(element))
    });
    assert_eq!(client.list_elements(&set).unwrap().len(), 50_000);
    // The last one of many is the one that exists.
    let error =
        refused(client, |t| t.create_elements(&set, (1..COUNT).rev().map(|number| element(number + COUNT - 2))));
    assert_names_element(&error, 49_998);
    done(client, |t| t.delete_elements(&set, (0..COUNT).map(element)));
    assert_eq!(client.list_elements(&set).unwrap(), []);
}

pub(crate) fn other_tables_are_not_read(client: &mut Client) {
    with_chain(client);
    let other = TableKey::new(Family::Inet, "other").unwrap();
    done(client, |t| {
        t.add_table(Table::new(other.clone()));
        let chain = other.chain("c").unwrap();
        t.add_chain(Chain::regular(chain.clone()));
        t.add_rule(&chain, rule(Family::Inet).accept().build().unwrap());
        t.add_set(Set::new(other.set("s").unwrap(), types(&[DataType::MARK])));
        t.add_object(Object::counter(other.object(ObjectType::Counter, "k").unwrap()))
    });
    let snapshot = client.snapshot(&table()).unwrap();
    assert_eq!(
        (snapshot.chains.len(), snapshot.rules.len(), snapshot.sets.len(), snapshot.objects.len()),
        (1, 0, 0, 0)
    );
    assert_eq!(client.list_rules(&table().chain("c").unwrap()).unwrap(), []);
}

pub(crate) fn what_cannot_be_is_not_sent(client: &mut Client) {
    let chain = with_chain(client);
    let set = |name: &str| Set::new(table().set(name).unwrap(), types(&[DataType::IPV4_ADDR]));
    let ranges = set("ranges").flags(SetFlags::INTERVAL);
    done(client, |t| with_set(with_set(t, set("plain")), ranges.clone()));
    let mut invalid = |change: &dyn Fn(&mut Transaction) -> &mut Transaction, words: &str| {
        let error = refused(client, |t| {
            change(t);
            t
        });
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let backwards = Element::range(ip(9), ip(8));
    invalid(&|t| t.add_elements(&ranges, [backwards.clone()]), "it ends before it starts");
    invalid(&|t| t.add_elements(&set("plain"), [Element::range(ip(1), ip(2))]), "the set is not one of ranges");
    let long = "x".repeat(254);
    let commented = |length: usize| Rule::new(vec![Expression::COUNTER]).comment(&long[..length]);
    let error = rule(Family::Inet).accept().comment(&long[..254]).build().unwrap_err().to_string();
    assert!(error.contains("256 bytes"), "{error}");
    let error = rule(Family::Inet).saddr_in(IpAddr::V4(ip(0)), 33).accept().build().unwrap_err().to_string();
    assert!(error.contains("10.0.0.0/33: the prefix is longer than the address"), "{error}");
    invalid(&|t| t.add_rule(&chain, commented(254)), "256 bytes");
    invalid(&|t| t.add_elements(&ranges, [Element::value(ip(1)).comment("a\0b")]), "NUL");
    let ip4 = TableKey::new(Family::Ip, "four").unwrap();
    let ingress = BaseChain::new(ChainType::Filter, Hook::Ingress, Priority::FILTER);
    let ingress = Chain::base(ip4.chain("c").unwrap(), ingress);
    invalid(&|t| t.add_table(Table::new(ip4.clone())).add_chain(ingress.clone()), "hook ingress in family ip");
    let fast = |device: &str| Flowtable::new(table().flowtable("fast").unwrap(), [device]);
    for device in ["", "a device", "sixteen-letters-", "a/b", "..", "a\nb"] {
        invalid(&|t| t.add_flowtable(fast(device)), "no device has such a name");
    }
    let mut none = fast("lo");
    none.devices.clear();
    invalid(&|t| t.delete_flowtable_devices(none.clone()), "no devices to delete from flow table inet t fast");
    let object = |kind, data| Object::new(table().object(kind, "o").unwrap(), data);
    let helper = |helper: &str| {
        let (helper, family, protocol) = (helper.to_owned(), Family::Ip, L4Protocol::TCP);
        object(ObjectType::CtHelper, ObjectData::CtHelper { helper, family, protocol })
    };
    let timeout = |state: &str, time| {
        let policy = [(state.to_owned(), time)].into();
        let (family, protocol) = (Family::Ip, L4Protocol::UDP);
        object(ObjectType::CtTimeout, ObjectData::CtTimeout { family, protocol, policy })
    };
    let context = "x".repeat(4096);
    let secmark = object(ObjectType::Secmark, ObjectData::Secmark { context });
    let seconds = Duration::from_secs;
    for (object, words) in [
        (helper(""), "helper \"\""),
        (helper("sixteen-letters-"), "longer than the kernel takes"),
        (timeout("established", seconds(1)), "state \"established\" of protocol 17"),
        (timeout("replied", Duration::from_millis(1500)), "whole seconds"),
        (timeout("replied", seconds(u64::from(u32::MAX) + 1)), "4,294,967,295"),
        (secmark, "security context"),
    ] {
        invalid(&|t| t.add_object(object.clone()), words);
    }
    // A comment of the greatest length comes back whole.
    done(client, |t| t.add_rule(&chain, commented(253)));
    assert_eq!(client.list_rules(&chain).unwrap()[0].rule, commented(253));
}

pub(crate) fn a_table_is_changed_as_it_was_read(client: &mut Client) {
    let chain = table().chain("c").unwrap();
    for wanted in [None, Some(1), Some(2)] {
        client
            .change_table(&table(), |found| {
                assert_eq!(found.map(|found| found.rules.len()), wanted);
                let mut transaction = Transaction::new();
                if found.is_none() {
                    transaction.add_table(Table::new(table())).add_chain(Chain::regular(chain.clone()));
                }
                transaction.add_rule(&chain, rule(Family::Inet).counter().build().unwrap());
                transaction
            })
            .unwrap();
    }
    assert_eq!(client.list_rules(&chain).unwrap().len(), 3);
}

/// An equal range is kept, and an adjacent range is another one. Other ranges with common values are refused, but for a range of several
/// fields whose ends lie outside of all others.
pub(crate) fn ranges_that_overlap_are_refused(client: &mut Client) {
    let addresses =
        Set::new(table().set("addresses").unwrap(), types(&[DataType::IPV4_ADDR])).flags(SetFlags::INTERVAL);
    let places = types(&[DataType::IPV4_ADDR, DataType::INET_SERVICE]);
    let places = Set::new(table().set("places").unwrap(), places).flags(SetFlags::INTERVAL);
    let range = |first, last| Element::range(ip(first), ip(last));
    let place =
        |first: (u8, u16), last: (u8, u16)| Element::range(target(ip(first.0), first.1), target(ip(last.0), last.1));
    let (of_addresses, of_places) = (range(16, 31), place((16, 80), (31, 89)));
    done(client, |t| {
        t.add_table(Table::new(table()));
        t.add_set(addresses.clone());
        t.add_set(places.clone());
        t.add_elements(&addresses, [of_addresses.clone()]);
        t.add_elements(&places, [of_places.clone()])
    });
    let overlapping = [
        (&addresses, range(20, 24)),
        (&addresses, range(20, 31)),
        (&addresses, range(16, 24)),
        (&addresses, range(8, 63)),
        (&addresses, range(8, 16)),
        (&addresses, range(31, 40)),
        (&addresses, Element::value(ip(20))),
        (&places, place((20, 81), (24, 88))),
        (&places, place((8, 81), (24, 88))),
        (&places, place((16, 80), (63, 89))),
        (&places, place((31, 89), (40, 100))),
    ];
    for (set, element) in overlapping {
        let error = refused(client, |t| t.add_elements(set, [element.clone()]));
        assert_eq!(error.kind(), ErrorKind::Overlap, "{} {element:?}: {error}", set.key);
    }
    // Equal ones, and neighbours.
    done(client, |t| {
        t.add_elements(&addresses, [of_addresses.clone(), range(32, 40), range(8, 15), Element::value(ip(7))]);
        t.add_elements(&places, [of_places.clone(), place((16, 90), (31, 99)), place((8, 80), (15, 89))]);
        // The kernel compares only both ends of a range of several fields (`nft_pipapo_insert`).
        t.add_elements(&places, [place((4, 70), (63, 100))])
    });
    assert_eq!((sorted(client, &addresses).len(), sorted(client, &places).len()), (4, 4));
    let created = refused(client, |t| t.create_elements(&addresses, [of_addresses.clone()]));
    assert_eq!(created.kind(), ErrorKind::AlreadyExists, "{created}");
}

pub(crate) fn a_circle_is_refused_as_a_whole(client: &mut Client) {
    let [a, b, base] = ["a", "b", "base"].map(|name| table().chain(name).unwrap());
    let jump = |to: &ChainKey| rule(Family::Inet).jump(to.name.clone()).build().unwrap();
    let mut transaction = Transaction::new();
    transaction.add_table(Table::new(table()));
    transaction.add_chain(Chain::regular(a.clone())).add_chain(Chain::regular(b.clone()));
    transaction.add_chain(Chain::base(base.clone(), BaseChain::new(ChainType::Filter, Hook::Input, Priority(0))));
    transaction.add_rule(&base, jump(&a)).add_rule(&a, jump(&b)).add_rule(&b, jump(&a));
    // Found when all of it is there: a check does not show it.
    let error = client.commit(&transaction).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Loop, "{error}");
    assert_eq!(client.list_tables(None).unwrap(), []);
}

pub(crate) fn counters_start_again(client: &mut Client) {
    let chain = with_chain(client);
    let hits = table().object(ObjectType::Counter, "hits").unwrap();
    let counted = |packets| Expression::Counter { packets, bytes: 60 };
    done(client, |t| {
        let data = ObjectData::Counter { packets: 5, bytes: 60 };
        t.add_object(Object::new(hits.clone(), data));
        t.add_rule(&chain, Rule::new(vec![counted(7)])).add_rule(&chain, Rule::new(vec![counted(9)]))
    });
    let before = client.get_object(&hits).unwrap();
    assert_eq!(client.reset_object(&hits).unwrap(), before);
    assert_eq!(client.get_object(&hits).unwrap().object.data, ObjectData::Counter { packets: 0, bytes: 0 });
    let rules = client.list_rules(&chain).unwrap();
    match client.reset_rule(&chain, rules[0].handle) {
        Ok(before) => {
            assert_eq!(before, rules[0]);
            let after = client.list_rules(&chain).unwrap();
            assert_eq!(after[0].rule.expressions, [Expression::COUNTER]);
            assert_eq!(after[1], rules[1]);
        }
        // Before Linux 6.2.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    }
    let none = table().object(ObjectType::Counter, "none").unwrap();
    assert!(client.reset_object(&none).unwrap_err().is_not_found());
}
