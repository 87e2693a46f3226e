//! Operations of a plan: the steps that show them, the calls that carry them out, and their outcomes.

pub(crate) mod execute;
pub(crate) mod operation;
pub mod report;
pub mod step;
