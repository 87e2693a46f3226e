//! The tables of a family in memory: what `iptables-restore --noflush` makes of them, and where packets go.

pub(crate) mod tables;
pub(crate) mod walk;
