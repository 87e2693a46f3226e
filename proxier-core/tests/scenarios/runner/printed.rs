//! The tools' output in one order.

use std::collections::BTreeSet;

use iptables::Rule;
use proxier_core::modes::ipvs::wanted::Wanted;
use proxier_core::net::{ByFamily, Family};
use proxier_core::snapshot::Rejection;

/// The tools' output and the reports, each part sorted.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    pub(crate) ipvsadm: Vec<String>,
    pub(crate) ipset: Vec<String>,
    pub(crate) addresses: Vec<String>,
    /// Rules in the form of [`rules`].
    pub(crate) iptables: Vec<String>,
    pub(crate) ip6tables: Vec<String>,
    pub(crate) rejected: Vec<String>,
    pub(crate) conflicts: Vec<String>,
    pub(crate) health_checks: Vec<String>,
    pub(crate) no_local_endpoints: Vec<String>,
    pub(crate) refused: Vec<String>,
    /// Faults that must never happen.
    pub(crate) trouble: Vec<String>,
    pub(crate) wrote: bool,
}

impl Printed {
    /// Adds the reports about the objects.
    pub(crate) fn report<'a>(&mut self, wanted: &Wanted<'_>, rejections: impl Iterator<Item = &'a Rejection>) {
        self.rejected = sorted(rejections.map(|rejection| {
            assert!(!rejection.reason.is_empty() && rejection.to_string().lines().count() == 1);
            format!("{} {}: {} {}", rejection.kind, rejection.key, rejection.field, rejection.value)
        }));
        self.conflicts = sorted(
            wanted
                .desired()
                .conflicts()
                .map(|conflict| format!("{}: {} has it, {} does not", conflict.key, conflict.owner, conflict.refused)),
        );
        self.refused = sorted(
            wanted
                .desired()
                .rejected()
                .map(|(service, refusal)| format!("{service}: {} is for {}", refusal.key, refusal.user)),
        );
        self.health_checks = sorted(wanted.desired().health_checks().flat_map(|(service, check)| {
            let families =
                Family::ALL.into_iter().filter_map(move |family| Some((family, (*check.local_endpoints.of(family))?)));
            families.map(move |(family, number)| {
                let s = if number == 1 { "" } else { "s" };
                let of = if family == Family::V6 { " IPv6" } else { "" };
                format!("{service}: port {}, {number} local{of} endpoint{s}", check.port)
            })
        }));
        self.no_local_endpoints = sorted(wanted.desired().no_local_endpoints().map(|(service, missing)| {
            let any = |of: ByFamily<u16>| of.v4 > 0 || of.v6 > 0;
            let internal = if any(missing.internal) { " internal" } else { "" };
            let external = if any(missing.external) { " external" } else { "" };
            format!("{service}:{internal}{external}")
        }));
    }
}

pub(crate) fn sorted(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.into_iter().collect();
    lines.sort();
    lines
}

/// Lines of a text; none for `none`.
pub(crate) fn lines(text: &str) -> Vec<String> {
    if text.trim() == "none" {
        return Vec::new();
    }
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Entries that were found, without those of the set that kube-proxy does not have (`KUBE-NODE-PORT-SERVED`), unless
/// the scenario names it. Its entries follow from the virtual servers, and scenarios compare the sets of kube-proxy.
pub(crate) fn sets_that_are_meant(expected: &[String], found: &[String]) -> Vec<String> {
    let is_own = |line: &&String| {
        ["add KUBE-NODE-PORT-SERVED ", "add KUBE-6-NODE-PORT-SERVED "].iter().any(|own| line.starts_with(own))
    };
    let is_meant = expected.iter().any(|line| is_own(&line));
    found.iter().filter(|line| is_meant || !is_own(line)).cloned().collect()
}

/// Lines of `ipvsadm -Sn`: virtual servers in the order of their texts, each before its real servers.
pub(crate) fn virtual_servers(text: &str) -> Vec<String> {
    let mut lines = lines(text);
    lines.sort_by_cached_key(|line| {
        let mut words = line.splitn(4, ' ');
        let command = words.next().map(str::to_owned);
        let service: Vec<String> = words.by_ref().take(2).map(str::to_owned).collect();
        (service, command.as_deref() != Some("-A"), line.clone())
    });
    lines
}

/// `table CHAIN` for each chain of a text of `iptables-save`, and `table -A CHAIN …` for each of its rules: chains sorted,
/// rules in their order.
pub(crate) fn rules(text: &str) -> Vec<String> {
    let mut table = String::new();
    let mut found: Vec<(String, String, Vec<String>)> = Vec::new();
    for line in text.lines().map(str::trim) {
        // Counters, where they are shown.
        let line = if line.starts_with('[') { line.split_once(' ').map_or("", |(_, rest)| rest) } else { line };
        if let Some(name) = line.strip_prefix('*') {
            name.clone_into(&mut table);
        }
        let rule = line.strip_prefix("-A ");
        let Some(chain) = line.strip_prefix(':').or(rule).and_then(|rest| rest.split(' ').next()) else { continue };
        assert!(!table.is_empty(), "rules begin with their table: {line}");
        let place = found.iter().position(|(of, name, _)| *of == table && name == chain).unwrap_or_else(|| {
            found.push((table.clone(), chain.to_owned(), Vec::new()));
            found.len() - 1
        });
        if let Some(rule) = rule {
            let arguments = rule.split_once(' ').map_or("", |(_, arguments)| arguments);
            // iptables prints some arguments differently than they were written.
            let canonical = Rule::parse(arguments).unwrap().canonical();
            found[place].2.push(format!("{table} -A {chain} {canonical}"));
        }
    }
    found.sort();
    found.into_iter().flat_map(|(table, chain, rules)| [vec![format!("{table} {chain}")], rules].concat()).collect()
}

/// The chains found that are expected too.
pub(crate) fn same_chains(expected: &[String], found: &[String]) -> Vec<String> {
    let is_chain = |line: &&String| line.split(' ').count() == 2;
    let chains: BTreeSet<&String> = expected.iter().filter(is_chain).collect();
    let mut wanted = false;
    let mut kept = Vec::new();
    for line in found {
        if is_chain(&line) {
            wanted = chains.contains(line);
        }
        if wanted {
            kept.push(line.clone());
        }
    }
    kept
}
