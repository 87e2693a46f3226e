//! Operations of a plan, and their outcomes.

pub mod report;
pub mod step;
