//! The commands: `run`, `run --once`, `plan`, `render`, `cleanup`, `probe`, `show`, `explain`, `trace`.

pub mod diff;
pub mod explain;
mod live;
mod mentions;
pub mod once;
mod policies;
pub mod probe;
pub mod render;
pub mod run;
pub mod show;
pub mod trace;
