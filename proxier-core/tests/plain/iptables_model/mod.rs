//! Tables of a family in memory: the effect of `iptables-restore --noflush` on them, and the way of packets through them.

pub(crate) mod tables;
pub(crate) mod walk;
