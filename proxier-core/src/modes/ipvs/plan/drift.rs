//! Foreign changes in the kernel.

use ipvs::Operation as ServerOperation;

use super::{Operation, PassPlan, Plan};
use crate::modes::Pass;
use crate::modes::ipvs::guards::Guards;
use crate::modes::ipvs::mode::Mode;
use crate::modes::shared::names::Names;
use crate::plan::step::Step;

/// Foreign changes: operations on objects that the input did not change.
pub(super) fn drift(mode: &Mode, pass: Pass<'_>, plan: &Plan, planned: &PassPlan) -> Vec<Step> {
    let names = Names::new(pass.store, pass.desired);
    let foreign = plan.operations().filter(|operation| is_foreign(*operation, mode, planned));
    foreign.map(|operation| plan.step(operation, &names)).collect()
}

fn is_foreign(operation: Operation<'_>, mode: &Mode, planned: &PassPlan) -> bool {
    let changed = mode.changed();
    let is_input = |address| changed.addresses.contains(address) || changed.elsewhere.contains(address);
    match operation {
        Operation::Device(_) | Operation::Timeouts(_) | Operation::Set(_) => true,
        Operation::Entry(_, set, element) => !changed.entries.contains(&(set, element.clone())),
        Operation::Rules(change) => match &mode.guards {
            Guards::Programs(known) => known.rules.get(&change.family) == planned.inputs.get(&change.family),
            Guards::Nft(_) => false,
        },
        Operation::Table(change) => match &mode.guards {
            Guards::Nft(known) => known.written.get(&change.layout.family) == Some(&change.layout),
            Guards::Programs(_) => false,
        },
        Operation::Address(_, address) => !is_input(&address),
        // The node's own addresses decide on whole networks.
        Operation::Route(_, route) => !mode.new_facts && !is_input(&route.network.addr()),
        Operation::Server(operation) => {
            let key = operation.virtual_server();
            let is_over =
                matches!(operation, ServerOperation::DeleteRealServer(key, real) if mode.drains.is_draining(key, real));
            !is_over && !changed.virtual_servers.contains(&key)
        }
    }
}
