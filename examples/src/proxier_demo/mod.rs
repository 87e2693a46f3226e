//! The parts of `proxier-demo`, a Kubernetes service proxy, that do not touch the kernel.

pub mod change;
pub mod cli;
pub mod cluster;
pub mod duration;
pub mod kubeproxyconfig;
pub mod problem;
pub mod settings;
pub mod yaml;
