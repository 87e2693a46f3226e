//! Functions that the programs of the cookbook share.

mod support;

pub use support::{Failure, end, print, render};
