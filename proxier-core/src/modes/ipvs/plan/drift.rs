//! Foreign changes in the kernel.

use ipvs::Operation as ServerOperation;

use super::Plan;
use crate::modes::ipvs::guards::Guards;
use crate::modes::ipvs::mode::Mode;
use crate::modes::{Pass, Work};
use crate::plan::operation::Operation;
use crate::plan::step::Step;

/// Foreign changes: operations on objects that the input did not change.
pub(super) fn drift(mode: &Mode, pass: Pass<'_>, plan: &Plan) -> Vec<Step> {
    let foreign = plan.operations().filter(|operation| is_foreign(operation, mode, plan));
    foreign.map(|operation| operation.step(&pass.names)).collect()
}

fn is_foreign(operation: &Operation<'_>, mode: &Mode, plan: &Plan) -> bool {
    let changed = mode.changed();
    let is_input = |address| changed.addresses.contains(address) || changed.elsewhere.contains(address);
    match *operation {
        Operation::Entry(_, set, element) => !changed.entries.contains(&(set.0.key, element.clone())),
        Operation::Whole(change) => change.step().family().is_some_and(|family| match &mode.guards {
            Guards::Programs(known) => known.rules.get(&family) == plan.inputs.get(&family),
            Guards::Nft(known) => known.written.get(&family) == plan.layouts.get(&family),
        }),
        Operation::Address(_, address, _) => !is_input(&address),
        // The node's own addresses decide on whole networks.
        Operation::Route(_, _, route) => !mode.new_facts && !is_input(&route.network.addr()),
        Operation::Server(operation, _) => {
            let key = operation.virtual_server();
            let is_over =
                matches!(operation, ServerOperation::DeleteRealServer(key, real) if mode.drains.is_draining(key, real));
            !is_over && !changed.virtual_servers.contains(&key)
        }
        _ => true,
    }
}
