//! The reconciler: receives objects, and brings the kernel to serve them.

mod cold_start;
mod drains;
mod input;
mod options;
mod others;
mod own_transactions;
mod pass;
mod schedule;
mod state;
mod steps;
mod surroundings;
mod view;

pub use options::Options;
pub use others::Removal;
pub use schedule::Limits;
pub use state::Reconciler;
pub use view::ServerCounts;
