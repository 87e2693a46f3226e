//! `route_localnet`, which node ports on 127.0.0.1 need, and the rules that it requires. With it packets from 127.0.0.1
//! may leave this node, and neighbours could reach programs that listen only there (CVE-2020-8558).
//!
//! Only iptables mode sets it, once its rule in the kubelet's chain guards those programs. It is unknown who has set it
//! before: this proxy, a kube-proxy or the administrator. So each full pass that does not need it, and each cleanup,
//! sets it back to the kernel's default unless that rule exists, in either back end of iptables. Programs that need it
//! for one device set it for that device, which is not changed.

use iptables::{Backend, Rule, Table, TableName};

use crate::compat;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::sysctls::{WantedValue, changes};
use crate::net::Family;
use crate::plan::operation::Operation;
use crate::plan::step::Names;
use crate::ports::{Ports, Result, SysctlChange, Sysctls};

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

/// The kubelet's chain in table filter that contains the rule with this comment. The kubelet, kube-proxy and iptables
/// mode create them, and none of them removes them.
pub(crate) const FIREWALL: &str = "KUBE-FIREWALL";
const INPUT: &str = "INPUT";
pub(crate) const FIREWALL_COMMENT: &str = "block incoming localnet connections";

/// Values to write once a rule guards loopback addresses ([`Plan::guarded`](crate::modes::Plan)), and those that cannot
/// be written from here.
pub(crate) fn open(sysctls: &mut dyn Sysctls) -> (Vec<SysctlChange>, Vec<SysctlChange>) {
    changes(sysctls, vec![WantedValue::optional(ROUTE_LOCALNET, 1)])
}

/// The kubelet's chain that [`cleanup`](crate::modes::cleanup::cleanup) leaves, in words, if it guards loopback addresses
/// here. A chain that cannot be read counts as missing. Only reads.
pub fn kept_for_the_kubelet(ports: &mut Ports<'_>) -> Option<String> {
    let setting = if is_open(ports) { ", and route_localnet with it" } else { "" };
    is_guarded(ports).then(|| {
        format!(
            "chain {FIREWALL} of table filter stays{setting}: the kubelet has it too, and it keeps other hosts off loopback addresses"
        )
    })
}

/// Values to write if no rules of ours need them, as [`open`] has them. None if the kubelet's chain keeps other hosts
/// off. A chain that cannot be read guards nothing.
pub(crate) fn close(ports: &mut Ports<'_>) -> (Vec<SysctlChange>, Vec<SysctlChange>) {
    if !is_open(ports) || is_guarded(ports) {
        return Default::default();
    }
    changes(ports.sysctls, vec![WantedValue::optional(ROUTE_LOCALNET, 0)])
}

pub(crate) fn cleanup(ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
    let (changes, unmet) = close(ports);
    cleaned.applied.carry_out(changes.iter().map(Operation::Sysctl), &Names::NONE, ports);
    cleaned.left.extend(unmet.iter().map(|SysctlChange { path, to, .. }| {
        format!("this process cannot write {path}: set it to {to}, or other hosts reach what listens on 127.0.0.1 only")
    }));
}

fn is_open(ports: &mut Ports<'_>) -> bool {
    ports.sysctls.get(ROUTE_LOCALNET).is_ok_and(|value| value == "1")
}

fn is_guarded(ports: &mut Ports<'_>) -> bool {
    in_nf_tables(ports).unwrap_or(false) || by_programs(ports)
}

/// Whether table filter has the rule, and packets to this node reach it.
fn guards(table: &Table) -> bool {
    let has = |chain: &str, is_it: &dyn Fn(&Rule) -> bool| {
        table.chain(chain).is_some_and(|chain| chain.rules.iter().any(is_it))
    };
    has(FIREWALL, &|rule| rule.comment() == Some(FIREWALL_COMMENT))
        && has(INPUT, &|rule| rule.target() == Some(FIREWALL))
}

fn in_nf_tables(ports: &mut Ports<'_>) -> Result<bool> {
    let key = compat::table_key(Family::V4, &TableName::FILTER)?;
    let read = compat::read(&key, &TableName::FILTER, &|chain| [FIREWALL, INPUT].contains(&chain), ports.tables)?;
    Ok(read.is_some_and(|table| guards(&table)))
}

fn by_programs(ports: &mut Ports<'_>) -> bool {
    // nf_tables last, because a kernel's was already read without its program.
    ports.rules.has_tables(Family::V4) != Some(false)
        && [Backend::Legacy, Backend::NfTables].into_iter().any(|backend| {
            let dump = ports.rules.dump_of(backend, Family::V4);
            dump.is_ok_and(|dump| dump.table(&TableName::FILTER).is_some_and(guards))
        })
}
