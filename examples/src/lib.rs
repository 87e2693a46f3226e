//! Functions that the examples share, and the parts of `proxier-demo`.

mod support;

pub use support::{Failure, end, print, render};

#[cfg(feature = "proxier-demo")]
pub mod proxier_demo;
