//! The commands: `run`, `run --once`, `plan`, `cleanup`, `probe`, `show`.

pub mod once;
pub mod probe;
pub mod render;
pub mod run;
pub mod show;
