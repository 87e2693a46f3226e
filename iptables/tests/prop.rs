//! Properties that hold for every rule: no kernel, no programs. Arbitrary and mutilated text: `corpus.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may stop at the first surprise, in its helper functions as well"
)]

use std::fmt::Write as _;

use iptables::{ChainName, Counters, Dump, Edit, ErrorKind, Rule, TableName, Token, Transaction};
use proptest::prelude::*;

/// Arguments of every kind that restore text can carry.
fn argument() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "-{0,2}[a-z]{1,8}",
        2 => "[0-9./:,]{1,20}",
        2 => "[^\n\0]{0,40}",
        1 => prop::sample::select(vec!["!", "\"", "\\", "\\\"", "'", "", " ", "\t", "COMMIT", "*nat", "-j", "--comment"])
            .prop_map(str::to_owned),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    (prop::collection::vec(argument(), 0..12), prop::option::of((any::<u64>(), any::<u64>()))).prop_map(
        |(args, counters)| {
            let rule = Rule::from_args(args).unwrap();
            match counters {
                Some((packets, bytes)) => rule.with_counters(Counters { packets, bytes }),
                None => rule,
            }
        },
    )
}

fn chain_name() -> impl Strategy<Value = ChainName> {
    "[A-Za-z_.:*#\\[\\]'\\\\][A-Za-z0-9_.:!-]{0,27}".prop_map(|n| ChainName::new(n).unwrap())
}

proptest! {
    #[test]
    fn quoting_is_undone_by_reading(args in prop::collection::vec(argument(), 0..12)) {
        let rule = Rule::from_args(args.clone()).unwrap();
        let read = Rule::parse(&rule.to_string()).unwrap();
        let seen: Vec<&str> = read.tokens().iter().map(Token::as_str).collect();
        prop_assert_eq!(seen, args);
    }

    #[test]
    fn a_table_is_printed_and_read_again(
        chains in prop::collection::btree_map(chain_name(), prop::collection::vec(rule(), 0..6), 0..6)
    ) {
        let mut text = "*filter\n".to_owned();
        for name in chains.keys() {
            writeln!(text, ":{name} - [0:0]").unwrap();
        }
        for (name, rules) in &chains {
            for rule in rules {
                writeln!(text, "{}", Edit::Append(name.clone(), rule.clone())).unwrap();
            }
        }
        text.push_str("COMMIT\n");
        let dump = Dump::parse(&text).unwrap();
        prop_assert_eq!(dump.to_string(), text);
        let table = dump.table(&TableName::FILTER).unwrap();
        prop_assert_eq!(table.chains().len(), chains.len());
        for (name, rules) in &chains {
            let seen = &table.chain(name.as_str()).unwrap().rules;
            prop_assert_eq!(seen, rules);
            let counters = |rules: &[Rule]| rules.iter().map(|r| r.counters).collect::<Vec<_>>();
            prop_assert_eq!(counters(seen), counters(rules));
        }
    }

    /// However an argument looks, a transaction has one line for each thing it was told to do.
    #[test]
    fn no_argument_adds_a_line(rules in prop::collection::vec(rule(), 1..8)) {
        let count = rules.len();
        let mut change = Transaction::new();
        change.table(TableName::NAT).replace_chain(&ChainName::new("X").unwrap(), rules);
        let text = change.to_restore_text().unwrap();
        let lines: Vec<&str> = text.split_terminator('\n').collect();
        prop_assert_eq!(lines.len(), count + 3);
        prop_assert_eq!((lines[0], lines[1], lines[count + 2]), ("*nat", ":X - [0:0]", "COMMIT"));
        for line in &lines[2..count + 2] {
            prop_assert!(line.contains("-A X"), "{}", line);
        }
    }

    #[test]
    fn arguments_that_cannot_be_carried_are_refused(before in "[ -~]{0,20}", bad in "[\n\0]", after in "[ -~]{0,20}") {
        let text = format!("{before}{bad}{after}");
        prop_assert_eq!(Token::new(text.clone()).unwrap_err().kind(), ErrorKind::InvalidToken);
        prop_assert_eq!(Rule::from_args(["-m", &text]).unwrap_err().kind(), ErrorKind::InvalidToken);
        prop_assert_eq!(Rule::builder().comment(&text).build().unwrap_err().kind(), ErrorKind::InvalidToken);
        prop_assert_eq!(ChainName::new(text.clone()).unwrap_err().kind(), ErrorKind::InvalidName);
        prop_assert_eq!(TableName::new(text).unwrap_err().kind(), ErrorKind::InvalidName);
    }
}

/// Six programs, one rule set.
const CAPTURED: [&str; 6] = [
    include_str!("fixtures/iptables-1.8.7-legacy.save"),
    include_str!("fixtures/iptables-1.8.7-nft.save"),
    include_str!("fixtures/iptables-1.8.9-legacy.save"),
    include_str!("fixtures/iptables-1.8.9-nft.save"),
    include_str!("fixtures/iptables-1.8.11-legacy.save"),
    include_str!("fixtures/iptables-1.8.11-nft.save"),
];

#[test]
fn captured_dumps_are_printed_byte_for_byte() {
    for text in CAPTURED {
        assert_eq!(Dump::parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn captured_dumps_mean_the_same() {
    let first = Dump::parse(CAPTURED[0]).unwrap();
    assert_eq!(first.rule_count(), CAPTURED[0].matches("] -A ").count());
    for text in &CAPTURED[1..] {
        let dump = Dump::parse(text).unwrap();
        for table in &first.tables {
            let other = dump.table(table.name()).unwrap();
            assert_eq!(table.chains().len(), other.chains().len());
            for chain in table.chains() {
                let other = other.chain(chain.name.as_str()).unwrap();
                assert!(chain.same_rules(&other.rules), "{chain:?} {other:?}");
                assert_eq!(chain.policy, other.policy);
            }
        }
    }
}

/// A dump with a byte missing anywhere, or with another one in its place, is read or refused.
#[test]
fn damaged_dumps_are_read_or_refused() {
    let text = CAPTURED[1].as_bytes();
    for at in 0..text.len() {
        let mut damaged = text.to_vec();
        damaged.remove(at);
        let mut changed = text.to_vec();
        changed[at] = b'"';
        for bytes in [damaged, changed, text[..at].to_vec()] {
            match Dump::parse(&bytes) {
                Ok(dump) => assert!(dump.tables.len() <= 3),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Parse),
            }
        }
    }
}

#[track_caller]
fn refused(text: &str, words: &[&str]) {
    let error = Dump::parse(text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Parse, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn texts_that_are_not_dumps() {
    refused("garbage\n", &["line 1", "garbage"]);
    refused("-A INPUT -j ACCEPT\n", &["line 1"]);
    refused("*filter\n:INPUT ACCEPT [0:0]\n", &["line 2", "COMMIT"]);
    refused("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j", &["COMMIT is missing"]);
    refused("*filter\n-A INPUT -j ACCEPT\nCOMMIT\n", &["line 2", ":CHAIN"]);
    refused("*filter\n:A - [0:0]\n-I A -j ACCEPT\nCOMMIT\n", &["line 3"]);
    refused("*filter\n:A - [0:0]\n:A - [0:0]\nCOMMIT\n", &["line 3", "twice"]);
    refused("*filter\nCOMMIT\n*filter\nCOMMIT\n", &["line 3", "twice"]);
    refused("*filter\n:A - [0:x]\nCOMMIT\n", &["line 2", "counters"]);
    refused("*filter\n:A - [0:0]\n[1:99999999999999999999] -A A\nCOMMIT\n", &["line 3", "counters"]);
    refused("*filter\n:A\nCOMMIT\n", &["line 2"]);
    refused("*filter\n: - [0:0]\nCOMMIT\n", &["line 2"]);
    refused("*\nCOMMIT\n", &["line 1"]);
    refused(&format!("*{}\nCOMMIT\n", "x".repeat(32)), &["line 1", "table name"]);
    refused("*filter\r\n:INPUT ACCEPT [0:0]\r\nCOMMIT\r\n", &["line 2", "Windows line ends"]);
    refused("*filter\n\u{0}\nCOMMIT\n", &["line 2"]);
    let long = "x".repeat(100_000);
    assert!(Dump::parse(&long).unwrap_err().to_string().len() < 600, "a message is not as long as its cause");
}

#[test]
fn binary_rules_are_read_and_not_written() {
    let mut bytes = b"*filter\n:A - [0:0]\n-A A -m comment --comment \"".to_vec();
    bytes.extend([0xff, 0xfe]);
    bytes.extend(b"\" -j DROP\n-A A -j ACCEPT\nCOMMIT\n");
    let dump = Dump::parse(&bytes).unwrap();
    let rules = dump.table(&TableName::FILTER).unwrap().chain("A").unwrap().rules.clone();
    assert_eq!((rules[0].target(), rules[1].target()), (Some("DROP"), Some("ACCEPT")));
    let mut change = Transaction::new();
    change.table(TableName::FILTER).replace_chain(&ChainName::new("B").unwrap(), rules);
    assert_eq!(change.to_restore_text().unwrap_err().kind(), ErrorKind::InvalidToken);
}

#[test]
fn tables_that_only_nft_can_show_are_named() {
    let text = "# Table `nat' is incompatible, use 'nft' tool.\n*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n# Table `raw' is incompatible, use 'nft' tool.\n";
    let dump = Dump::parse(text).unwrap();
    assert_eq!(dump.incompatible_tables(), ["nat", "raw"]);
    assert_eq!(dump.to_string(), text);
}

/// The restore program would read on for the closing quote, wherever in an argument the quotation was opened.
#[test]
fn an_open_quotation_is_refused() {
    for text in ["\"open", "-m x\"open", "-\"\"\"\"--log-level\" m"] {
        assert_eq!(Rule::parse(text).unwrap_err().kind(), ErrorKind::InvalidToken, "{text}");
    }
}

#[test]
fn a_rule_to_delete_is_not_a_number() {
    let mut change = Transaction::new();
    change.table(TableName::NAT).edit(Edit::Delete(ChainName::new("X").unwrap(), Rule::parse("1").unwrap()));
    assert_eq!(change.to_restore_text().unwrap_err().kind(), ErrorKind::InvalidToken);
}

#[test]
fn chains_that_others_made_can_be_read_and_not_written() {
    let wild = format!("*nat\n:{0} - [0:0]\n:a\"b - [0:0]\n-A {0} -j a\"b\nCOMMIT\n", "L".repeat(60));
    let dump = Dump::parse(&wild).unwrap();
    assert_eq!(dump.to_string(), wild);
    let table = dump.table(&TableName::NAT).unwrap();
    let name = table.chains()[0].name.clone();
    assert_eq!(table.references("a\"b").count(), 1);
    let mut change = Transaction::new();
    change.table(TableName::NAT).edit(Edit::Flush(name));
    assert_eq!(change.to_restore_text().unwrap_err().kind(), ErrorKind::InvalidName);
}

#[test]
fn fifty_thousand_lines_are_read_and_printed() {
    let mut text = "*nat\n".to_owned();
    for chain in 0..10_000 {
        writeln!(text, ":KUBE-SVC-{chain:016} - [0:0]").unwrap();
    }
    for chain in 0..10_000 {
        for endpoint in 0..4 {
            writeln!(text, "-A KUBE-SVC-{chain:016} -m comment --comment \"ns/name:{endpoint}\" -j KUBE-MARK-MASQ")
                .unwrap();
        }
    }
    text.push_str("COMMIT\n");
    let dump = Dump::parse(&text).unwrap();
    assert_eq!(dump.rule_count(), 40_000);
    assert_eq!(dump.to_string(), text);
}

#[cfg(feature = "serde")]
#[test]
fn values_survive_json() {
    let text =
        "*nat\n:PREROUTING ACCEPT [1:2]\n:A - [0:0]\n[3:4] -A A -m comment --comment \"a b\" -j RETURN\nCOMMIT\n";
    let dump = Dump::parse(text).unwrap();
    let json = serde_json::to_string(&dump).unwrap();
    let back: Dump = serde_json::from_str(&json).unwrap();
    assert_eq!(back, dump);
    assert_eq!(back.to_string(), text);
    let mut change = Transaction::new();
    change.table(TableName::NAT).chain(ChainName::new("A").unwrap());
    assert_eq!(serde_json::to_string(&change).unwrap(), "\"*nat\\n:A - [0:0]\\nCOMMIT\\n\"");
    let chain: iptables::Chain = serde_json::from_str("{\"name\": \"A\"}").unwrap();
    assert_eq!(chain, iptables::Chain::new(ChainName::new("A").unwrap()));
    assert!(serde_json::from_str::<ChainName>("\"-bad\"").is_err());
    assert!(serde_json::from_str::<Token>("\"a\\nb\"").is_err());
}
