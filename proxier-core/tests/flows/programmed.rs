//! Subjects that program the node through this crate, from a scenario's objects.

use std::error::Error;

use testkit::Netns;

use super::objects::{Objects, objects};
use super::{Difference, Scenario, Subject};

/// Why a difference between a mode and the reference is as it should be, if it is.
pub(crate) type Explain = fn(&Scenario, &Difference) -> Option<&'static str>;

/// Calls a function on the node for each scenario, and keeps what it returns (a reconciler, threads) until the scenario ends.
pub(crate) struct Programmed<P, K> {
    program: P,
    explain: Explain,
    kept: Option<K>,
    ends_connections: bool,
}

impl<P, K> Programmed<P, K>
where
    P: FnMut(&Netns, &Objects) -> Result<K, Box<dyn Error>>,
{
    pub(crate) fn new(program: P, explain: Explain) -> Self {
        Programmed { program, explain, kept: None, ends_connections: false }
    }

    /// TCP connections end on the node, and others go on to endpoints.
    pub(crate) fn ending_connections(self) -> Self {
        Programmed { ends_connections: true, ..self }
    }
}

impl<P, K> Subject for Programmed<P, K>
where
    P: FnMut(&Netns, &Objects) -> Result<K, Box<dyn Error>>,
{
    fn program(&mut self, node: &Netns, scenario: &Scenario) -> Result<(), Box<dyn Error>> {
        self.kept = Some((self.program)(node, &objects(scenario))?);
        Ok(())
    }

    fn ends_connections(&self) -> bool {
        self.ends_connections
    }

    fn end(&mut self) {
        self.kept = None;
    }

    fn explain(&self, scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
        (self.explain)(scenario, difference)
    }
}
