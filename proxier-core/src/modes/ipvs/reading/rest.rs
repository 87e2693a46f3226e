//! Reads the parts besides the tables that the differences ask for, before anything is planned.

use std::collections::BTreeSet;

use iptables::TableName;
use ipvs::VirtualServerKey;
use ipvs::model::{ObservedRealServer, TimeoutsUpdate};

use crate::modes::Pass;
use crate::modes::ipvs::guards::Guards;
use crate::modes::ipvs::guards::programs::Programs;
use crate::modes::ipvs::mode::{Differences, Mode};
use crate::modes::ipvs::rules;
use crate::modes::shared::by_default;
use crate::net::Family;
use crate::plan::report::{Report, Unread};
use crate::ports::{PortError, Ports, Rules};

/// State that was read besides the tables, once the differences were known.
#[derive(Default)]
pub(crate) struct PassInputs {
    pub(crate) timeouts: Option<TimeoutsUpdate>,
    /// Draining real servers that were due.
    pub(crate) draining: Vec<(VirtualServerKey, Result<Vec<ObservedRealServer>, PortError>)>,
    /// Families whose rules may have to change, with the kernel's rules.
    pub(crate) rules: Vec<(Family, rules::Inputs, iptables::Dump)>,
    /// Families whose rules do not have to change.
    pub(crate) rules_stay: Vec<Family>,
    /// Families whose rules could not be read, or are not tried now.
    pub(crate) rules_put_off: BTreeSet<Family>,
}

/// Reads the parts besides the tables that the plan needs. Parts that cannot be read are reported and put off.
pub(crate) fn read_rest(
    mode: &Mode,
    pass: Pass<'_>,
    differences: &Differences,
    report: &mut Report,
    ports: &mut Ports<'_>,
) -> PassInputs {
    let due = mode.drains.due(pass.now).into_iter();
    let draining = due.map(|key| (key, ports.ipvs.real_servers(&key))).collect();
    let mut readings = PassInputs { draining, ..PassInputs::default() };
    if pass.full {
        match super::timeout_changes(ports.ipvs, &mode.timeouts) {
            Ok(timeouts) => readings.timeouts = timeouts,
            Err(error) => report.unread.push(error),
        }
    }
    let Guards::Programs(programs) = &mode.guards else { return readings };
    for family in pass.families() {
        if !pass.full && has_same_rules(mode, programs, family) {
            continue;
        }
        if programs.retry.get(&family).is_some_and(|retry| retry.at > pass.now) {
            readings.rules_put_off.insert(family);
            report.rules_put_off.insert(family);
            continue;
        }
        match read_rules(mode, programs, pass, family, &differences.kept, ports.rules) {
            Ok(None) => readings.rules_stay.push(family),
            Ok(Some((inputs, dump))) => readings.rules.push((family, inputs, dump)),
            Err(error) => {
                readings.rules_put_off.insert(family);
                report.unread.push(error);
            }
        }
    }
    readings
}

/// Whether there are Frontends, and whether any is masqueraded: of all in a full pass, else of those that changed. `None`: no changed one is
/// there.
pub(crate) fn needs_sysctls(mode: &Mode, pass: &Pass<'_>) -> Option<(bool, bool)> {
    let wanted = mode.wanted(pass.desired);
    let (serves, is_masqueraded) = if pass.full {
        let mut all = pass.desired.frontends().peekable();
        (all.peek().is_some(), all.any(|frontend| !frontend.returns_directly))
    } else {
        let changed = mode.changed().virtual_servers.iter().filter_map(|key| wanted.frontend(key));
        let mut changed = changed.peekable();
        (changed.peek().is_some(), changed.any(|frontend| !frontend.returns_directly))
    };
    (pass.full || serves).then_some((serves, is_masqueraded))
}

/// Reads a family's rules, with the inputs of those that it has to have; `None` when the kernel is known to have them.
fn read_rules(
    mode: &Mode,
    programs: &Programs,
    pass: Pass<'_>,
    family: Family,
    kept: &rules::Kept,
    port: &mut dyn Rules,
) -> Result<Option<(rules::Inputs, iptables::Dump)>, Unread> {
    let unread = |error| Unread::new(format_args!("rules of {}", family.name()), error);
    let mut capabilities = programs.capabilities;
    let written = programs.rules.get(&family);
    if let (false, Some(written)) = (pass.full, written) {
        capabilities = written.capabilities;
    } else {
        capabilities.random_fully &= port.has_random_fully(family).map_err(unread)?;
    }
    let mut inputs = programs.inputs(family, (&mode.wanted(pass.desired), pass.facts), capabilities, kept);
    if !pass.full && written == Some(&inputs) {
        return Ok(None);
    }
    let dump = port.dump(family).map_err(unread)?;
    inputs.input_drops = dump.table(&TableName::FILTER).is_some_and(|filter| by_default::drops(filter, "INPUT"));
    Ok(Some((inputs, dump)))
}

/// Whether the rules of a family cannot have changed. Costs O(changed entries); building `Inputs` costs O(guarded load
/// balancers). Rules depend only on node facts and on entries in sets.
fn has_same_rules(mode: &Mode, programs: &Programs, family: Family) -> bool {
    let changed = mode.changed().entries.iter().any(|(set, _)| set.family == family);
    let is_known = programs.rules.contains_key(&family) && !programs.retry.contains_key(&family);
    !changed && !mode.new_facts && is_known
}
