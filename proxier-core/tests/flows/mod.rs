//! Checks a proxy mode against the flows of the corpora (`oracle`, `oracle36`). Sends each flow's packets through a
//! real kernel that the mode has programmed, and compares what happens to them with the reference.
//!
//! A mode takes part as a [`Subject`]. [`check`] runs it for one scenario, [`hold`] for many, with the differences that the
//! subject explains counted by name.
//!
//! A packet is observed at three points (`ground`). Behind the node is every address that is not the node's own.
//! Through the node's loopback device pass refusals for its own packets. Raw sockets on the node get a copy of each
//! packet that reaches the local stack. The last distinguishes a packet that was left alone and has no listener (`none`
//! to a local address) from REJECT, although the stack answers both alike. The first packet of a connection shows
//! everything, except in modes that end connections on the node (`talk`).

pub(crate) mod affinity;
pub(crate) mod broken;
pub(crate) mod corpus;
pub(crate) mod difference;
pub(crate) mod flow;
pub(crate) mod ground;
pub(crate) mod objects;
pub(crate) mod packet;
pub(crate) mod probe;
pub(crate) mod programmed;
pub(crate) mod report;
pub(crate) mod restored;
pub(crate) mod talk;
pub(crate) mod traced;
pub(crate) mod wire;

use std::error::Error;

pub(crate) use crate::differences::{Mode, Reference};
pub(crate) use corpus::{Scenario, scenarios, scenarios_of};
pub(crate) use difference::Difference;
pub(crate) use flow::Flow;
pub(crate) use report::hold;
use testkit::{Need, Netns};

use ground::Ground;
use probe::Probe;

/// Needs of the ground; a subject has needs of its own besides.
pub(crate) const NEEDS: &[Need] = &[Need::Root, Need::Veth];

/// Subject of the checks: a proxy mode that programs the node.
pub(crate) trait Subject {
    /// Programs the node's kernel for a scenario, once, from nothing. The current thread is in the node's namespace, which is this scenario's own,
    /// with the interfaces and addresses of the scenario, a default route, forwarding and `route_localnet` on. Servers and threads that have to go on
    /// while packets are sent stay in `self`.
    fn program(&mut self, node: &Netns, scenario: &Scenario) -> Result<(), Box<dyn Error>>;

    /// Ends the work of [`Self::program`], before the namespace goes.
    fn end(&mut self) {}

    /// Whether TCP connections end on the node and other ones go on to endpoints, so that connections must be made and carry data for a flow to be
    /// seen. The first packet is enough in all other modes.
    fn ends_connections(&self) -> bool {
        false
    }

    /// References to which the mode is held.
    fn references(&self) -> &[Reference] {
        &[Reference::Iptables28]
    }

    /// The mode whose differences are to be in the list, if it is one.
    fn mode(&self) -> Option<Mode> {
        None
    }

    /// Name of the known difference between this mode and the reference to which this difference belongs.
    fn explain(&self, _scenario: &Scenario, _difference: &Difference) -> Option<&'static str> {
        None
    }
}

/// Sends the packets of these flows of the scenario through the subject's programming.
///
/// # Panics
/// The ground cannot be made, or the subject cannot program it.
pub(crate) fn check(scenario: &Scenario, flows: &[Flow], subject: &mut dyn Subject) -> Vec<Difference> {
    let ground = Ground::new(scenario, subject.ends_connections());
    let programmed = ground.node().run_in(|| subject.program(ground.node(), scenario)).unwrap();
    programmed.unwrap_or_else(|error| panic!("{} cannot be programmed: {error}", scenario.name()));
    let mut probe = Probe::new(&ground, scenario, flows);
    probe.send_all();
    affinity::send_all(&mut probe);
    let differences = probe.differences();
    subject.end();
    differences
}
