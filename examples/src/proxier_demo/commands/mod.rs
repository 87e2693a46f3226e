//! The commands: `run`, `run --once`, `plan`, `render`, `cleanup`, `probe`, `show`.

pub(crate) mod modes;
pub mod once;
pub mod probe;
pub mod render;
pub mod run;
pub mod show;
