//! What the program reports: servers, metrics, Events, logs, and what it prints.

mod board;
pub mod events;
pub mod health;
pub(crate) mod json;
pub mod logging;
pub mod metrics;
pub mod page;
pub mod progress;
pub mod serve;
pub(crate) mod server;
pub mod service_health;
pub mod table;
