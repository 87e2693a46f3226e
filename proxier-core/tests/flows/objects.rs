//! A scenario as this crate's inputs, for subjects that program the kernel through it.

use proxier_core::config::Config;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::snapshot::HostAddresses;
use serde_json::Value;

use super::corpus::Scenario;
use crate::corpus::{config, node, objects as read};
use crate::differences::Reference;

/// Inputs of a proxy on the scenario's node.
pub(crate) struct Objects {
    pub(crate) config: Config,
    pub(crate) services: Vec<ServiceObject>,
    pub(crate) slices: Vec<EndpointSliceObject>,
    /// Earlier inputs, one state after the other.
    pub(crate) before: Vec<(Vec<ServiceObject>, Vec<EndpointSliceObject>)>,
    pub(crate) node: NodeObject,
    /// The node's addresses; the node's namespace has the same.
    pub(crate) host: HostAddresses,
}

/// The inputs of a scenario, of both families where it is dual-stack.
pub(crate) fn objects(scenario: &Scenario) -> Objects {
    let input = &scenario.input;
    let of = |input: &Value| (read(&input["services"]), read(&input["endpointSlices"]));
    let (services, slices) = of(input);
    Objects {
        config: config(input, scenario.reference != Reference::Iptables28),
        services,
        slices,
        before: scenario.before.iter().map(of).collect(),
        node: node(input),
        host: HostAddresses { interfaces: scenario.interfaces.clone() },
    }
}
