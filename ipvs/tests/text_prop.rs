//! Properties of ipvsadm's text. Arbitrary text: `corpus.rs`.

mod text_tables;

use ipvs::text::{Ruleset, Statement, parse_batch};
use ipvs::{Batch, ForwardingMethod, Scheduler, Weight};
use proptest::prelude::*;
use text_tables::{ipv6, real_server, ruleset, ruleset_of_ipvsadm, statement};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_statement_comes_back(statement in statement()) {
        let text = statement.to_string();
        prop_assert!(!text.contains('\n'));
        prop_assert_eq!(text.parse::<Statement>().map_err(|error| TestCaseError::fail(format!("{text}\n{error}")))?, statement);
    }

    #[test]
    fn a_forwarding_method_comes_back(real in real_server()) {
        let method = real.config.forwarding_method;
        prop_assert_eq!(method.to_string().parse::<ForwardingMethod>().unwrap(), method);
        prop_assert_eq!(real.config.weight.to_string().parse::<Weight>().unwrap(), real.config.weight);
    }

    #[test]
    fn a_table_comes_back(rules in ruleset()) {
        let text = rules.to_string();
        let back: Ruleset = text.parse().map_err(|error| TestCaseError::fail(format!("{text}\n{error}")))?;
        prop_assert_eq!(&back, &rules);
        prop_assert_eq!(back.to_string(), text.clone());
        prop_assert_eq!(parse_batch(&text).unwrap(), Batch::from(&rules));
    }

    #[test]
    fn order_of_options_does_not_matter(rules in ruleset(), seed in any::<u64>()) {
        for operation in rules.operations() {
            let statement = Statement::from(operation);
            let text = statement.to_string();
            // Options with their values, turned around by the seed.
            let mut options: Vec<Vec<&str>> = Vec::new();
            let mut words = text.split(' ').peekable();
            while let Some(word) = words.next() {
                let takes_value = !matches!(
                    word,
                    "-A" | "-a" | "-6" | "-o" | "-m" | "-i" | "-g" | "--tun-nocsum" | "--tun-csum" | "--tun-remcsum"
                );
                let mut option = vec![word];
                option.extend(takes_value.then(|| words.next().unwrap()));
                options.push(option);
            }
            let turn = usize::try_from(seed % 1000).unwrap() % options.len();
            options.rotate_left(turn);
            let turned = options.concat().join(" ");
            prop_assert_eq!(turned.parse::<Statement>().unwrap(), statement, "{}", turned);
        }
    }

    #[test]
    fn what_ipvsadm_reads_is_known(rules in ruleset_of_ipvsadm(Scheduler::KNOWN.to_vec())) {
        for operation in rules.operations() {
            let statement = Statement::from(operation);
            prop_assert!(statement.is_readable_by_ipvsadm(), "{}", statement);
        }
    }

    #[test]
    fn ipv6_addresses_are_written_as_the_c_library_does(addr in ipv6()) {
        let text = format!("-D -t [{}]:80", c_library(addr));
        prop_assert_eq!(text.parse::<Statement>().unwrap().to_string(), text);
    }
}

/// The rules of the C library's `inet_ntop`, written a second time; the live tests compare with what ipvsadm prints by it.
fn c_library(addr: std::net::Ipv6Addr) -> String {
    let groups = addr.segments();
    // The longest run of at least two zero groups, the first of equals.
    let mut best = 0..0;
    let mut start = 0;
    while start < 8 {
        let end = (start..8).find(|index| groups[*index] != 0).unwrap_or(8);
        if end - start > best.len() && end - start >= 2 {
            best = start..end;
        }
        start = end + 1;
    }
    let mapped = best == (0..5) && groups[5] == 0xffff;
    let with_ipv4 = best == (0..6) || mapped;
    let [.., a, b, c, d] = addr.octets();
    let last = if with_ipv4 { 6 } else { 8 };
    let hex = |range: std::ops::Range<usize>| {
        let mut parts: Vec<String> = groups[range].iter().map(|group| format!("{group:x}")).collect();
        if with_ipv4 {
            parts.push(format!("{a}.{b}.{c}.{d}"));
        }
        parts.join(":")
    };
    if best.is_empty() {
        return hex(0..8);
    }
    let before: Vec<String> = groups[..best.start].iter().map(|group| format!("{group:x}")).collect();
    format!("{}::{}", before.join(":"), hex(best.end..last))
}
