//! The parts of `proxier-demo`, a Kubernetes service proxy.
#![expect(
    missing_docs,
    reason = "only the program and its tests use this library: names that say everything need no sentence"
)]

pub mod build;
pub mod commands;
pub mod engine;
pub mod exit;
mod gather;
pub mod histogram;
pub mod message;
pub mod output;
pub mod problem;
pub mod settings;
pub mod sources;
pub mod status;
pub mod yaml;
