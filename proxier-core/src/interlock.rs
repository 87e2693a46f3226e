//! What is not done although the input says so: deleting much at once, and taking an address and port that the node
//! itself cannot do without.

mod mass;
mod reserved;

pub use mass::{Guard, MassRemoval, Stopped};
pub use reserved::{Place, Refusal, Reserved, User};
