//! Spellings of rules, and what `iptables-save` makes of them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::HashSet;
use std::time::Instant;

use iptables::{Chain, ChainName, Dump, Edit, ProgramVersion, Rule, TableName, Token, Transaction};

fn rule(text: &str) -> Rule {
    Rule::parse(text).unwrap()
}

/// Arguments of `iptables -A` or `ip6tables -A`, and the line that iptables-save 1.8.9 of both back ends printed for them on Linux 6.18.
const SPELLINGS: &[(&str, &str)] = &[
    ("-p 132 --dport 80 -j RETURN", "-p sctp -m sctp --dport 80 -j RETURN"),
    ("-p sctp --dport 80 -j RETURN", "-p sctp -m sctp --dport 80 -j RETURN"),
    ("-p 33 --sport 5:6", "-p dccp -m dccp --sport 5:6"),
    ("-p udp ! --sport 5:9", "-p udp -m udp ! --sport 5:9"),
    ("-p tcp --tcp-flags ack,syn SYN", "-p tcp -m tcp --tcp-flags SYN,ACK SYN"),
    ("-p tcp --tcp-flags ALL NONE", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE"),
    ("-p tcp --syn", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN"),
    ("-m limit --limit 60/minute", "-m limit --limit 1/sec"),
    ("-m limit --limit 24/day --limit-burst 7", "-m limit --limit 1/hour --limit-burst 7"),
    ("-m limit --limit 1/h", "-m limit --limit 1/hour"),
    ("-m limit --limit 3/hour", "-m limit --limit 3/hour"),
    ("-m limit --limit 10/sec", "-m limit --limit 10/sec"),
    ("-m mark --mark 010", "-m mark --mark 0x8"),
    ("-m mark --mark 0", "-m mark --mark 0x0"),
    ("-s 10.1.2.3/255.255.0.0", "-s 10.1.0.0/16"),
    ("-s 10.1.2.3/8", "-s 10.0.0.0/8"),
    ("-s fd00::1/ffff::", "-s fd00::/16"),
    ("-p icmp --icmp-type ping", "-p icmp -m icmp --icmp-type 8"),
    ("-p icmpv6 --icmpv6-type echo-request", "-p ipv6-icmp -m icmp6 --icmpv6-type 128"),
    ("-p ipv6-icmp --icmpv6-type 128", "-p ipv6-icmp -m icmp6 --icmpv6-type 128"),
    ("-j LOG --log-level warning", "-j LOG"),
    ("-j LOG --log-level error", "-j LOG --log-level 3"),
    ("-j REJECT --reject-with port-unreach", "-j REJECT --reject-with icmp-port-unreachable"),
    ("-p tcp -j REJECT --reject-with tcp-rst", "-p tcp -j REJECT --reject-with tcp-reset"),
    ("-j MARK --set-mark 0x3/0x1", "-j MARK --set-xmark 0x3/0x3"),
    ("-j MARK --set-mark 5", "-j MARK --set-xmark 0x5/0xffffffff"),
    ("-j MARK --set-xmark 1/255", "-j MARK --set-xmark 0x1/0xff"),
    ("-j MARK --or-mark 4", "-j MARK --set-xmark 0x4/0x4"),
    ("-j MARK --xor-mark 4", "-j MARK --set-xmark 0x4/0x0"),
    ("-j MARK --and-mark 0xf0", "-j MARK --set-xmark 0x0/0xffffff0f"),
    ("-j CONNMARK --set-mark 7/8", "-j CONNMARK --set-xmark 0x7/0xf"),
    ("-j CONNMARK --save-mark", "-j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff"),
    ("-j CONNMARK --restore-mark --mask 0xff", "-j CONNMARK --restore-mark --nfmask 0xff --ctmask 0xff"),
    ("-j CONNMARK --save-mark --nfmask 0xf --ctmask 255", "-j CONNMARK --save-mark --nfmask 0xf --ctmask 0xff"),
    ("-p tcp --dport 80:80", "-p tcp -m tcp --dport 80"),
    ("-p tcp --dport :80", "-p tcp -m tcp --dport 0:80"),
    ("-p tcp --dport 80:", "-p tcp -m tcp --dport 80:65535"),
    ("-p udp -i + -s 0.0.0.0/0", "-p udp"),
    ("-o eth1 -d 10.0.0.1 -i eth0 -s 10.0.0.2", "-s 10.0.0.2/32 -d 10.0.0.1/32 -i eth0 -o eth1"),
    ("-p all -j RETURN", "-j RETURN"),
];

#[test]
fn what_is_printed_means_what_was_given_and_nothing_else() {
    for (given, printed) in SPELLINGS {
        assert!(
            rule(given).same_as(&rule(printed)),
            "{given}: {} {}",
            rule(given).canonical(),
            rule(printed).canonical()
        );
        for (other, printed_for_other) in SPELLINGS {
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
        let attempt = |()| {
            let (mut change, start) = (Transaction::new(), Instant::now());
            assert!(change.table(TableName::FILTER).lead_with(&name, Some(&chain), &wanted));
            start.elapsed()
        };
        [(), ()].map(attempt).into_iter().min().unwrap()
    };
    let (few, many) = (took(6_000), took(24_000));
    assert!(many < few * 8, "{few:?} and {many:?}");
}
