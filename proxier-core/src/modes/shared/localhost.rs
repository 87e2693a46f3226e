//! `route_localnet`, which node ports on 127.0.0.1 need, and the rules that have to be there with it: packets from 127.0.0.1 may leave this node
//! then, and neighbours could reach programs that listen there only (CVE-2020-8558).
//!
//! Who has set it is not known: this proxy, `prepare-node`, a kube-proxy or the administrator. So it goes by what guards it, not by who set it: it
//! is set once a rule guards those programs, and set back to the kernel's default before the last such rule goes, or in the next full pass after it
//! has gone without us.

use iptables::{Rule, TableName};

use crate::compat;
use crate::modes::shared::sysctls::{WantedValue, changes};
use crate::net::Family;
use crate::ports::{PortError, PortErrorKind, Ports, SysctlChange, Sysctls};

/// Own guard of programs that listen on loopback addresses, after a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The guard is as before, or there is none.
    #[default]
    Unchanged,
    /// The guard is there.
    There,
    /// The plan removes it.
    Going,
}

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

/// The kubelet's chain in table filter, with the rule of this comment: the kubelet, kube-proxy and iptables mode make them, and none of them
/// removes them.
pub(crate) const FIREWALL: &str = "KUBE-FIREWALL";
/// Comment of the rule that guards.
pub(crate) const FIREWALL_COMMENT: &str = "block incoming localnet connections";

/// Values to write once a rule guards loopback addresses ([`Plan::guarded`](crate::modes::Plan)), and those that may not be written from here.
pub(crate) fn open(sysctls: &mut dyn Sysctls) -> (Vec<SysctlChange>, Vec<SysctlChange>) {
    changes(sysctls, vec![WantedValue::optional(ROUTE_LOCALNET, 1)])
}

/// The kubelet's chain, in words, if it guards loopback addresses here. A chain that cannot be read is none.
pub(crate) fn kept(ports: &mut Ports<'_>) -> Option<String> {
    let is_there = in_nf_tables(ports).unwrap_or(false) || by_programs(ports).unwrap_or(false);
    is_there.then(|| {
        format!(
            "chain {FIREWALL} of table filter stays, and route_localnet with it: the kubelet has it too, and it keeps other hosts off \
             loopback addresses"
        )
    })
}

/// Values to write before a mode's own guard goes, as [`open`] has them: none if the kubelet's chain guards it too. A chain that cannot be read is
/// none.
pub(crate) fn close(ports: &mut Ports<'_>) -> (Vec<SysctlChange>, Vec<SysctlChange>) {
    if kept(ports).is_some() {
        return Default::default();
    }
    changes(ports.sysctls, vec![WantedValue::optional(ROUTE_LOCALNET, 0)])
}

/// Values to write where no rule of the mode's own guards loopback addresses, and the kubelet's chain, which did, has gone: somebody flushed the rule
/// set. `relied`: whether it did when this was last asked. What cannot be read changes nothing.
pub(crate) fn follow(relied: &mut bool, ports: &mut Ports<'_>) -> (Vec<SysctlChange>, Vec<SysctlChange>) {
    if !ports.sysctls.get(ROUTE_LOCALNET).is_ok_and(|value| value == "1") {
        *relied = false;
        return Default::default();
    }
    let in_nf_tables = match in_nf_tables(ports) {
        Err(error) if error.kind() == PortErrorKind::Unavailable => Ok(false),
        answer => answer,
    };
    match in_nf_tables.and_then(|is_there| if is_there { Ok(true) } else { by_programs(ports) }) {
        Ok(true) => *relied = true,
        Ok(false) if *relied => return changes(ports.sysctls, vec![WantedValue::optional(ROUTE_LOCALNET, 0)]),
        _ => {}
    }
    Default::default()
}

fn is_guard(rule: &Rule) -> bool {
    rule.comment() == Some(FIREWALL_COMMENT)
}

/// Whether iptables-nft has the rule, which takes no program.
fn in_nf_tables(ports: &mut Ports<'_>) -> Result<bool, PortError> {
    let key = compat::table_key(Family::V4, &TableName::FILTER)?;
    let read = compat::read(&key, &TableName::FILTER, &|chain| chain == FIREWALL, ports.tables)?;
    Ok(read.is_some_and(|table| table.chain(FIREWALL).is_some_and(|chain| chain.rules.iter().any(is_guard))))
}

fn by_programs(ports: &mut Ports<'_>) -> Result<bool, PortError> {
    if ports.rules.has_tables(Family::V4) == Some(false) {
        return Ok(false);
    }
    let dump = ports.rules.dump(Family::V4)?;
    let chain = dump.table(&TableName::FILTER).and_then(|table| table.chain(FIREWALL));
    Ok(chain.is_some_and(|chain| chain.rules.iter().any(is_guard)))
}
