//! Checks whether the programs and the kernel support what this mode needs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use iptables::{ChainName, Dump, Rule, TableName, Transaction};

use super::diff::changes;
use super::names;
use super::settings::{INVALID_COUNTER, IptablesOptions, RandomFully};
use super::wanted::Index;
use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};
use crate::ports::{PortError, PortErrorKind, Result, Rules};
use crate::service::{Indexed, NodeFacts};
use crate::snapshot::{FrontendSpec, ObjectKey, Roles, Store, TrafficPolicy};

/// A kind of rules, and whether they are supported.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tried {
    /// What uses these rules: `every Service`, `session affinity`, `SCTP`.
    pub what: &'static str,
    /// Whether Services that do not use it need them too.
    pub is_needed_by_all: bool,
    /// The refusal and its reason, if any.
    pub outcome: Result<()>,
}

/// Lets `iptables-restore` check every kind of rule that this mode may write in a family, without writing any
/// ([`Rules::check`]).
pub fn trial(family: Family, facts: &NodeFacts, rules: &mut dyn Rules) -> Vec<Tried> {
    let random_fully = RandomFully::Auto.on(rules.has_random_fully(family).unwrap_or(true));
    let options = IptablesOptions { random_fully, ..IptablesOptions::default() };
    let mut check = |specs: Vec<FrontendSpec>| {
        let mut store = Store::new("");
        store.upsert_frontends(&ObjectKey::new("trial", "trial"), specs);
        let all = Indexed::build(&store, facts, Index::new(facts, options));
        rules.check(family, &changes(&all.wanted(), &Dump::default(), family)?)
    };
    let usual = vec![internal(family, Protocol::Tcp), internal(family, Protocol::Udp), external(family), empty(family)];
    let mut sticky = FrontendSpec { affinity_secs: Some(10), ..internal(family, Protocol::Tcp) };
    sticky.key.port = 83;
    let kinds = [
        ("every Service", true, usual),
        ("session affinity", false, vec![sticky]),
        ("SCTP", false, vec![internal(family, Protocol::Sctp)]),
    ];
    // One run of the program if all pass.
    let all_pass = check(kinds.iter().flat_map(|(_, _, specs)| specs).cloned().collect()).is_ok();
    let tried = kinds.into_iter().map(|(what, is_needed_by_all, specs)| {
        let outcome = if all_pass { Ok(()) } else { check(specs) };
        Tried { what, is_needed_by_all, outcome }
    });
    tried.collect()
}

/// Why the programs or the kernel do not support rules with counters; `None` if they do, or do not support other rules
/// either.
pub(super) fn refusal_of_counters(family: Family, rules: &mut dyn Rules) -> Option<PortError> {
    let mut check = |counters| {
        let mut transaction = Transaction::new();
        let options = IptablesOptions { counters, ..IptablesOptions::default() };
        let rule = Rule::builder().args(options.counting(INVALID_COUNTER)).target("RETURN").build();
        transaction.table(TableName::FILTER).replace_chain(&ChainName::new(names::FORWARD)?, [rule?]);
        rules.check(family, &transaction)
    };
    let refused = check(true).err().filter(|error| error.kind() == PortErrorKind::Unavailable)?;
    check(false).is_ok().then_some(refused)
}

/// Documentation addresses: RFC 5737, RFC 3849.
fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, last).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

fn internal(family: Family, protocol: Protocol) -> FrontendSpec {
    let endpoints = [2, 3].map(|last| EndpointKey::new(address(family, last), 80));
    FrontendSpec::new(FrontendKey::new(protocol, address(family, 1), 80), endpoints)
}

/// A Frontend with all settings that an external address can have.
fn external(family: Family) -> FrontendSpec {
    let mut spec = internal(family, Protocol::Tcp);
    spec.key.port = 81;
    spec.roles = Roles::EXTERNAL_IP | Roles::LOAD_BALANCER;
    spec.policy = TrafficPolicy::Local;
    spec.local.clone_from(&spec.cluster);
    spec.source_ranges = Some(vec![Network::from(address(family, 9))]);
    spec
}

fn empty(family: Family) -> FrontendSpec {
    FrontendSpec::new(FrontendKey::new(Protocol::Tcp, address(family, 1), 82), [])
}
