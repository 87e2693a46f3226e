//! Properties of ipvsadm's text. Arbitrary text: `corpus.rs`.

mod text_tables;

use ipvs::text::{Ruleset, Statement, parse_batch};
use ipvs::{Batch, ForwardingMethod, Weight};
use proptest::prelude::*;
use text_tables::{real_server, ruleset, statement};

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
}
