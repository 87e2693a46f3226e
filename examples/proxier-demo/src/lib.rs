//! The parts of `proxier-demo`, a Kubernetes service proxy.

pub mod build;
pub mod commands;
pub mod engine;
pub mod exit;
pub mod histogram;
pub mod message;
pub mod output;
pub mod problem;
pub mod settings;
pub mod sources;
pub mod status;
pub mod yaml;
