//! Functions shared by the programs of the cookbook.

mod support;

pub use support::{Failure, end, print, render};
