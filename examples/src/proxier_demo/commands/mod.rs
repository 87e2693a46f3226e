//! What each command does.

pub mod once;
pub mod probe;
pub mod run;
pub mod show;
