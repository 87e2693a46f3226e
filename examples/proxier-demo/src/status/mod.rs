//! What the program reports: servers, metrics, Events and logs.

mod board;
pub mod events;
pub mod health;
pub mod logging;
pub mod metrics;
pub mod page;
mod process;
pub mod serve;
pub(crate) mod server;
pub mod service_health;
mod text;
mod zpages;
