//! The parts of `proxier-demo`, a Kubernetes service proxy, that do not touch the kernel.

pub mod change;
pub mod cli;
pub mod cluster;
pub mod duration;
pub mod engine;
pub mod events;
pub mod files;
pub mod health;
pub mod kubeproxyconfig;
pub mod lock;
pub mod logging;
pub mod manifests;
pub mod metrics;
pub mod once;
pub mod picture;
pub mod privileges;
pub mod probe;
pub mod problem;
pub mod progress;
pub mod run;
mod server;
pub mod service_health;
pub mod settings;
pub mod show;
pub mod yaml;
