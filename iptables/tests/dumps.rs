//! Dumps as programs print them, and texts that are none. Arbitrary and mutilated text: `corpus.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may stop at the first surprise, in its helper functions as well"
)]

use iptables::{ChainName, Dump, Edit, ErrorKind, Rule, TableName, Transaction};

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
    assert!(serde_json::from_str::<iptables::Token>("\"a\\nb\"").is_err());
}
