//! The flows of the corpus (`oracle/iptables-corpus.jsonl.gz`) as packets through real kernels that a proxy mode has programmed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(clippy::disallowed_macros, reason = "a run says what it has seen")]
#![allow(clippy::disallowed_methods, reason = "packets are waited for in real time")]

mod flows;

use std::error::Error;

use flows::difference::Kind;
use flows::restored::Restored;
use flows::{Difference, NEEDS, Sampled, Scenario, Subject, broken, hold};
use testkit::oracle::Backend;
use testkit::{Need, Netns, kernel_test};

#[test]
fn the_references_rules_do_as_it_says() {
    kernel_test(&[NEEDS, &[Need::IptablesNft]].concat(), || {
        hold(&mut Restored::new(Backend::Nft), Sampled::AsAsked);
    });
}

#[test]
fn the_references_rules_do_as_it_says_in_the_legacy_back_end() {
    kernel_test(&[NEEDS, &[Need::IptablesLegacy]].concat(), || {
        hold(&mut Restored::new(Backend::Legacy), Sampled::AsAsked);
    });
}

#[test]
fn each_mistake_in_the_rules_is_noticed() {
    kernel_test(&[NEEDS, &[Need::IptablesNft]].concat(), || broken::are_all_noticed(Backend::Nft));
}

/// A mode that masquerades nothing, and says so.
struct WithoutMasquerading(Restored);

impl Subject for WithoutMasquerading {
    fn program(&mut self, node: &Netns, scenario: &Scenario) -> Result<(), Box<dyn Error>> {
        self.0.change = broken::masquerades_nothing;
        self.0.program(node, scenario)
    }

    fn explain(&self, _scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
        (difference.kind == Kind::Source).then_some("nothing is masqueraded")
    }
}

#[test]
fn what_a_subject_explains_is_counted() {
    kernel_test(&[NEEDS, &[Need::IptablesNft]].concat(), || {
        let tally = hold(&mut WithoutMasquerading(Restored::new(Backend::Nft)), Sampled::OneIn(150));
        assert!(tally.explained["nothing is masqueraded"] > 5, "{tally:?}");
    });
}
