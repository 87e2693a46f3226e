//! What each mode makes of what Services mean.
//!
//! A mode lowers the Frontends to its kernel's words, reads what the kernel holds, compares the two, and carries out the
//! difference. Modes do not know each other; what several need is in [`shared`].

pub mod ipvs;
pub mod shared;
