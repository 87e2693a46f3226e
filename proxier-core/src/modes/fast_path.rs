//! Fast path of established connections to Services: an nf_tables table with a flow table ([`FastPath`]). Connections
//! enter it once the chains of every other program have let one of their packets through.
//!
//! Connections are recognised by their translated destination (`ct status dnat`). So the modes whose kernel part
//! translates them have a fast path: nftables and iptables mode. IPVS forwards packets itself, and its connections
//! would time out without them.

use nftables::expr::{ByteOrderOp, CmpOp, CtKey};
use nftables::{
    BaseChain, Chain, ChainType, CtState, Expression, Family, Flowtable, FlowtableFlags, FlowtableKey, Hook,
    L4Protocol, Operand, Priority, Register, Rule, Table, TableKey, TableSnapshot, TableSpec, Transaction, Value, rule,
};

use super::Kind;
use crate::config::{Config, FastPath};
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::nft::{
    COMMENT_OF_FAST_PATH, OWNED, built, is_marked, is_ours, made_by_others, name, remove_table,
};
use crate::net::Protocol;
use crate::plan::operation::Whole;
use crate::plan::report::{Applied, Lack, Report};
use crate::plan::step::{Action, Part, Step};
use crate::ports::{PortError, PortErrorKind, Result, Tables};
use crate::service::Packet;
use crate::snapshot::HostAddresses;

const FLOWS: &str = "services";
const FORWARD: &str = "forward";
/// After every other chain: `security`, the last named priority, is 50.
const LAST: Priority = Priority(200);
/// `IPS_DST_NAT` (linux/netfilter/nf_conntrack_common.h).
const DST_NAT: u32 = 1 << 5;

#[derive(Clone, Debug)]
pub(crate) struct FlowtableChange {
    step: Step,
    transaction: Transaction,
    table: Option<TableSpec>,
}

impl Whole for FlowtableChange {
    fn step(&self) -> Step {
        self.step.clone()
    }
}

/// The fast path table, tracked from pass to pass.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// Whether the kernel was asked. It is not asked again before a full pass or a device change.
    is_known: bool,
    /// The kernel's table, if it is as desired.
    written: Option<TableSpec>,
    /// Whether devices of the host may have changed.
    is_stale: bool,
    /// Whether a device has refused flows.
    is_software: bool,
}

impl Tracker {
    /// Records that the host's devices were read.
    pub(crate) fn host_changed(&mut self) {
        self.is_stale = true;
    }

    /// Whether nothing remains to do: no fast path is configured, and none exists.
    pub(crate) fn is_done(&self, mode: Kind, config: &Config) -> bool {
        self.is_known && (config.fast_path.is_none() || !mode.facts().translates_packets)
    }

    /// Plans the change to the desired table, if any. Reads the table in a full pass, and if devices differ.
    pub(crate) fn plan(
        &mut self,
        (mode, config, host): (Kind, &Config, &HostAddresses),
        report: &mut Report,
        tables: &mut dyn Tables,
    ) -> Option<FlowtableChange> {
        let asked = config.fast_path.as_ref().filter(|_| mode.facts().translates_packets);
        if self.is_done(mode, config) || (self.is_known && !self.is_stale && !report.full) {
            return None;
        }
        if asked.is_none() && config.fast_path.is_some() {
            report.limited.push(format!(
                "fastPath: not in {mode} mode, which needs to see each packet; all packets to Services take the usual way"
            ));
        }
        self.is_stale = false;
        let in_hardware = asked.is_some_and(|fast| fast.hardware) && !self.is_software;
        let wanted = asked.and_then(|fast| spec(config, fast, in_hardware, devices(config, fast, host)));
        if self.is_known && !report.full && wanted == self.written {
            return None;
        }
        let change = compare(config, wanted.clone(), tables).and_then(|change| {
            // This kernel may not support a new table, in which case there is nothing to plan. Devices that do not
            // support flows are detected when it is written.
            let new = change.as_ref().filter(|change| change.step.action == Action::Add && !in_hardware);
            new.map_or(Ok(()), |new| tables.check(&new.transaction).map_err(|refused| refused.error))?;
            Ok(change)
        });
        match change {
            Ok(Some(change)) => Some(change),
            Ok(None) => {
                (self.is_known, self.written) = (true, wanted);
                None
            }
            // Without nf_tables nothing has to be removed.
            Err(_) if asked.is_none() => {
                self.is_known = true;
                None
            }
            Err(error) => {
                (self.is_known, self.written) = (true, None);
                report.applied.lacks.push(Lack::new(NONE, error));
                None
            }
        }
    }

    /// Commits a change. If devices do not support flows, this host forwards them. Anything else is retried in the next
    /// full pass, and when devices change.
    pub(crate) fn apply(
        &mut self,
        config: &Config,
        change: FlowtableChange,
        applied: &mut Applied,
        tables: &mut dyn Tables,
    ) {
        let FlowtableChange { step, transaction, table: mut wanted } = change;
        let mut outcome = tables.commit(&transaction).map_err(|refused| refused.error);
        let flows = wanted.iter_mut().flat_map(|wanted| &mut wanted.flowtables);
        let in_hardware = flows.filter(|flows| flows.flags.contains(FlowtableFlags::HW_OFFLOAD)).last();
        if let (Err(error), Some(flows)) = (&outcome, in_hardware) {
            flows.flags.remove(FlowtableFlags::HW_OFFLOAD);
            applied
                .lacks
                .push(Lack::new("fastPath.hardware: not all devices take flows, so this host forwards", error.clone()));
            self.is_software = true;
            outcome = compare(config, wanted.clone(), tables).and_then(|change| {
                let change = change.map(|change| tables.commit(&change.transaction));
                change.unwrap_or(Ok(())).map_err(|refused| refused.error)
            });
        }
        // A table that could not be deleted is searched for again.
        self.is_known = outcome.is_ok() || wanted.is_some();
        self.written = wanted.filter(|_| outcome.is_ok());
        match outcome {
            Ok(()) => applied.count(step.part, step.action, 1),
            Err(error) => applied.lacks.push(Lack::new(NONE, error)),
        }
    }
}

/// Checks whether this kernel supports the fast path, if it is configured and there are devices. Creates nothing.
///
/// # Errors
/// The kernel lacks something, which the message names, or the table cannot be read.
pub fn trial(config: &Config, host: &HostAddresses, tables: &mut dyn Tables) -> Option<Result<()>> {
    let fast = config.fast_path.as_ref()?;
    let wanted = spec(config, fast, false, devices(config, fast, host))?;
    Some(compare(config, Some(wanted), tables).and_then(|change| {
        change.map_or(Ok(()), |change| tables.check(&change.transaction).map_err(|refused| refused.error))
    }))
}

const NONE: &str = "no fast path: all packets to Services take the usual way";

pub(crate) fn table(config: &Config) -> TableKey {
    TableKey { family: Family::Inet, name: name(config.names.fast_path_table()) }
}

/// The host's devices that take part. Devices of proxies hold only Services' addresses and receive no packets.
fn devices(config: &Config, fast: &FastPath, host: &HostAddresses) -> Vec<String> {
    let all = host.interfaces.keys().filter(|device| !config.names.is_of_a_proxy(device));
    all.filter(|device| fast.takes(device)).cloned().collect()
}

fn spec(config: &Config, fast: &FastPath, in_hardware: bool, devices: Vec<String>) -> Option<TableSpec> {
    if devices.is_empty() {
        return None;
    }
    let table = table(config);
    let mut flags = FlowtableFlags::COUNTER;
    flags.set(FlowtableFlags::HW_OFFLOAD, in_hardware);
    let flows = Flowtable::new(FlowtableKey { table: table.clone(), name: name(FLOWS) }, devices).flags(flags);
    let chain = |of: &str| nftables::ChainKey { table: table.clone(), name: name(of) };
    let hook = BaseChain::new(ChainType::Filter, Hook::Forward, LAST);
    let rules = [L4Protocol::TCP, L4Protocol::UDP].map(|protocol| enter(protocol, fast));
    let spec = TableSpec::new(Table::new(table.clone()).comment(COMMENT_OF_FAST_PATH))
        .chain(Chain::regular(chain(OWNED)), [])
        .flowtable(flows);
    Some(spec.chain(Chain::base(chain(FORWARD), hook), rules))
}

/// The rule with which connections of a protocol enter the flow table. The counter after it counts those that did
/// (`nft_flow_offload_eval`).
fn enter(protocol: L4Protocol, fast: &FastPath) -> Rule {
    let translated = Operand::CT_STATUS.masked(Value::mark(DST_NAT));
    let mut enter = rule(Family::Inet).meta_l4proto(protocol).matches(&translated, CmpOp::Ne, Value::mark(0));
    enter = enter.ct_state(CtState::ESTABLISHED);
    if fast.min_packets > 0 {
        let register = Register::FIRST;
        let op = ByteOrderOp::HostToNetwork;
        enter = enter.expression(Expression::Ct { key: CtKey::Packets, direction: None, register });
        enter = enter.expression(Expression::ByteOrder { source: register, register, op, length: 8, size: 8 });
        let fewest = Value::new(&u64::from(fast.min_packets).to_be_bytes());
        let compared = fewest.map(|value| Expression::Cmp { register, op: CmpOp::Ge, value });
        enter = compared.into_iter().fold(enter, nftables::RuleBuilder::expression);
    }
    built(enter.flow_add(name(FLOWS)).counter())
}

/// `None`: the table is as desired.
fn compare(config: &Config, wanted: Option<TableSpec>, tables: &mut dyn Tables) -> Result<Option<FlowtableChange>> {
    let key = table(config);
    // Usually none exists and none is needed: one small request.
    if wanted.is_none() && tables.table(&key)?.is_none() {
        return Ok(None);
    }
    let observed = tables.read(&key)?;
    let has_chain = |of: &TableSnapshot| of.chains.iter().any(|chain| chain.chain.key.name.as_str() == OWNED);
    if observed.as_ref().is_some_and(|observed| !is_marked(&observed.table.table, has_chain(observed))) {
        if wanted.is_none() {
            return Ok(None);
        }
        return Err(PortError::new(PortErrorKind::AlreadyExists, made_by_others(&key)));
    }
    let (action, transaction) = if let Some(wanted) = &wanted {
        let difference = wanted.diff(observed.as_ref());
        let difference = difference.map_err(|error| PortError::from_error(PortErrorKind::Invalid, &error))?;
        (if observed.is_some() { Action::Change } else { Action::Add }, difference)
    } else {
        let mut transaction = Transaction::new();
        if observed.is_some() {
            transaction.delete_table(&key);
        }
        (Action::Delete, transaction)
    };
    if transaction.is_empty() {
        return Ok(None);
    }
    let devices = wanted.iter().flat_map(|wanted| &wanted.flowtables).flat_map(|flows| &flows.devices);
    let devices = devices.map(String::as_str).collect::<Vec<_>>().join(", ");
    let step = Step::new(action, Part::Table, &key);
    let step = if devices.is_empty() { step } else { step.with(format_args!("fast path by {devices}")) };
    Ok(Some(FlowtableChange { step, transaction, table: wanted }))
}

/// The step of a packet's trace about whether its connection takes the fast path, if there is one.
pub(crate) fn step(config: &Config, mode: Kind, packet: &Packet) -> Option<String> {
    let fast = config.fast_path.as_ref().filter(|_| mode.facts().translates_packets)?;
    if packet.from_node || !matches!(packet.to.protocol, Protocol::Tcp | Protocol::Udp) {
        return None;
    }
    let after = match fast.min_packets {
        0 => "From the first answer on".to_owned(),
        packets => format!("After {packets} packets"),
    };
    let of_chains = "its packets pass no more chains where the node forwards them (fastPath)";
    Some(match packet.device.as_deref() {
        Some(device) if !fast.takes(device) => {
            format!("Packets by {device} take the usual way: fastPath.interfaces lacks it.")
        }
        Some(_) => format!("{after} {of_chains}."),
        None => {
            let devices = fast.interfaces.join(", ").replace('*', "…");
            format!("{after} {of_chains}, if they come in by {}.", if devices == "…" { "any device" } else { &devices })
        }
    })
}

pub(super) fn cleanup(config: &Config, tables: &mut dyn Tables, cleaned: &mut Cleaned) {
    remove_table(&table(config), is_ours, tables, cleaned);
}

/// Number of connections that have taken the fast path since its table was created; `None` without the table.
///
/// # Errors
/// The kernel could not be asked.
pub fn connections(config: &Config, tables: &mut dyn Tables) -> Result<Option<u64>> {
    let table = table(config);
    if !is_ours(&table, tables)? {
        return Ok(None);
    }
    let rules = tables.rules(&nftables::ChainKey { table, name: name(FORWARD) })?;
    let counted =
        rules.iter().flat_map(|observed| &observed.rule.expressions).filter_map(|expression| match expression {
            Expression::Counter { packets, .. } => Some(*packets),
            _ => None,
        });
    Ok(Some(counted.fold(0, u64::saturating_add)))
}
