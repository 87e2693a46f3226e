//! The operations of a plan, and what became of them.

pub mod report;
pub mod step;
