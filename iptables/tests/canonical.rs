//! Spellings of rules, and what `iptables-save` makes of them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::HashSet;
use std::time::Instant;

use iptables::{Chain, ChainName, Dump, Edit, ProgramVersion, Rule, TableName, Token, Transaction};

fn rule(text: &str) -> Rule {
    Rule::parse(text).unwrap()
}

/// Arguments of `iptables -A` or `ip6tables -A`, and the line that `iptables-save` printed for them.
fn spellings() -> impl Iterator<Item = (&'static str, &'static str)> {
    include_str!("fixtures/spellings.txt").lines().map(|line| line.split_once(" => ").unwrap())
}

#[test]
fn what_is_printed_means_what_was_given_and_nothing_else() {
    for (given, printed) in spellings() {
        assert!(
            rule(given).same_as(&rule(printed)),
            "{given}: {} {}",
            rule(given).canonical(),
            rule(printed).canonical()
        );
        for (other, printed_for_other) in spellings() {
            assert_eq!(rule(given).same_as(&rule(other)), printed == printed_for_other, "{given} and {other}");
        }
    }
    // nf_tables alone turns these round; the legacy back end prints them as they were given.
    let turned = [
        ("-p tcp ! --dport :1023", "-p tcp -m tcp --dport 1024:65535"),
        ("-p udp ! --sport 1024:", "-p udp -m udp --sport 0:1023"),
    ];
    for (given, printed) in turned {
        assert!(rule(given).same_as(&rule(printed)), "{given}");
        assert!(!rule(given).same_as(&rule(&given.replace("! ", ""))), "{given}");
    }
    // The options of families say nothing within a family's own table.
    assert!(rule("-4 -j RETURN").same_as(&rule("-j RETURN")));
    assert!(!rule("-s 10.1.2.3/255.0.255.0").same_as(&rule("-s 10.1.2.3/16")));
    // All ports of UDP, which is printed as no ports.
    assert!(rule("-p udp --sport 0: -j RETURN").same_as(&rule("-p udp -m udp -j RETURN")));
    assert!(!rule("-p udp ! --sport 0: -j RETURN").same_as(&rule("-p udp -m udp -j RETURN")));
    // TCP's is 8, UDP's is 10.
    for port in ["8", "10"] {
        assert!(!rule("-p tcp --dport 010").same_as(&rule(&format!("-p tcp --dport {port}"))), "{port}");
    }
    // A misspelled unit is not a unit.
    for unit in ["second", "minute", "hour", "day"] {
        assert!(
            rule(&format!("-m limit --limit 2/{unit}")).same_as(&rule(&format!("-m limit --limit 2/{}", &unit[..1])))
        );
        assert!(!rule(&format!("-m limit --limit 2/{unit}")).same_as(&rule(&format!("-m limit --limit 2/{unit}x"))));
    }
}

#[test]
fn a_comment_of_several_lines_is_one_rule() {
    let text = "*filter\n:X - [0:0]\n-A X -m comment --comment \"one \\\" two\nthree \\\" four\nfive\" -j RETURN\n-A X -j DROP\nCOMMIT\n";
    let dump = Dump::parse(text).unwrap();
    let rules = &dump.table(&TableName::FILTER).unwrap().chain("X").unwrap().rules;
    let targets: Vec<_> = rules.iter().map(Rule::target).collect();
    assert_eq!(targets, [Some("RETURN"), Some("DROP")]);
    assert!(rules[0].tokens().iter().any(|token| token.as_str() == "one \" two\nthree \" four\nfive"));
    // A quotation that nothing closes ends with its line.
    let open = "*filter\n:X - [0:0]\n-A X -m comment --comment \"one\n-A X -j DROP\nCOMMIT\n";
    assert!(Dump::parse(open).is_err() || Dump::parse(open).unwrap().rule_count() == 2);
}

#[test]
fn names_and_rules_are_compared_and_printed_as_text() {
    let chain = ChainName::new("KUBE-X").unwrap();
    assert!(chain == *"KUBE-X" && chain == "KUBE-X" && chain != *"KUBE-Y" && chain != "KUBE-Y");
    assert_eq!(String::from(chain.clone()), "KUBE-X");
    assert_eq!(String::from(TableName::NAT), "nat");
    assert_eq!(TableName::new("raw").unwrap().builtin_chains(), ["PREROUTING", "OUTPUT"]);
    assert!(TableName::new("mine").unwrap().builtin_chains().is_empty());
    assert_eq!(Token::new("two words").unwrap().to_string(), "\"two words\"");
    assert_eq!(ProgramVersion::parse("iptables v1.8.9 (nf_tables)").unwrap().to_string(), "1.8.9 (nf_tables)");
    let (same, other) = (rule("-j RETURN"), rule("-j DROP"));
    assert!(same == rule("-j RETURN") && same != other);
    let distinct: HashSet<Rule> = [same.clone(), rule("-j RETURN"), other.clone()].into();
    assert_eq!(distinct.len(), 2);
    let mut change = Transaction::new();
    change.table(TableName::NAT).chain(chain.clone()).edit(Edit::Append(chain.clone(), same));
    change.table(TableName::FILTER);
    let [nat, filter] = change.tables() else { unreachable!("two tables were named") };
    assert_eq!((nat.name(), nat.edits().len()), (&TableName::NAT, 2));
    assert!(nat.chains().eq([&chain]));
    assert_eq!((filter.name(), filter.edits().len()), (&TableName::FILTER, 0));
}

#[test]
fn tables_are_the_same_when_names_and_chains_are() {
    let read = |text: &str| Dump::parse(text).unwrap().tables.remove(0);
    let table = read("*filter\n:X - [0:0]\nCOMMIT\n");
    assert_eq!(table, read("# a comment\n*filter\n:X - [0:0]\nCOMMIT\n"));
    assert_ne!(table, read("*nat\n:X - [0:0]\nCOMMIT\n"));
    assert_ne!(table, read("*filter\n:Y - [0:0]\nCOMMIT\n"));
}

#[test]
fn four_times_as_many_leading_rules_take_about_four_times_as_long() {
    let name = ChainName::new("FORWARD").unwrap();
    let took = |count: usize| {
        let text = |n: usize| format!("-s 10.{}.{}.{} -j RETURN", n >> 16, n >> 8 & 255, n & 255);
        let wanted: Vec<Rule> = (0..count).map(|n| rule(&text(n))).collect();
        let chain = Chain::new(name.clone()).with_rules(wanted.iter().rev().cloned());
        let attempt = |_| {
            let (mut change, start) = (Transaction::new(), Instant::now());
            assert!(change.table(TableName::FILTER).lead_with(&name, Some(&chain), &wanted));
            start.elapsed()
        };
        // Others have the processor, too.
        (0..8).map(attempt).min().unwrap()
    };
    let (few, many) = (took(6_000), took(24_000));
    assert!(many < few * 8, "{few:?} and {many:?}");
}
