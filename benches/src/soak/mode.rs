//! The modes of the proxy, and which interruptions are allowed while it changes mode.

use std::time::Duration;

pub(super) use proxier_core::modes::Kind as Mode;

use super::watchers::{Scope, Use};

/// A mode by its name, for clap.
pub(super) fn named(name: &str) -> Result<Mode, &'static str> {
    Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or("ipvs, nftables, iptables or userspace")
}

/// Name of a change to this mode, as a fault.
pub(super) fn changed(mode: Mode) -> &'static str {
    match mode {
        Mode::Ipvs => "changed to ipvs mode",
        Mode::Nftables => "changed to nftables mode",
        Mode::Iptables => "changed to iptables mode",
        Mode::Userspace => "changed to userspace mode",
    }
}

/// How long the proxy stays in a mode before it changes to another: most of the time in the main one.
pub(super) fn stays(mode: Mode, main: Mode, every: Duration) -> Duration {
    if mode == main { every } else { every / 2 }
}

/// Interruptions that `docs/modes.md` allows while the proxy changes from a mode to another.
pub(super) fn breaks(from: Mode, to: Mode) -> Vec<Breaks> {
    let mut breaks = Vec::new();
    let mut add = |scope, since, until| breaks.push(Breaks { scope, since, until });
    let nodes = || Scope::Uses(&[Use::Node]);
    if from == Mode::Userspace {
        // Connections relayed by the process end with it, and nothing serves before the next one's first pass.
        add(Scope::Everybody, Moment::End, Moment::Served);
        // Addresses are the node's own until the routes are removed.
        add(nodes(), Moment::Served, Moment::Gone);
    }
    if from == Mode::Ipvs {
        // Connections through virtual servers end with these, and so do new ones of the node until then.
        add(Scope::Uses(&[Use::Long, Use::Flapping]), Moment::Served, Moment::Gone);
        add(nodes(), Moment::End, Moment::Gone);
    }
    if matches!(from, Mode::Nftables | Mode::Iptables) && to == Mode::Userspace {
        // The node has no other rules that track and translate IPv6 packets, without which the kernel does neither.
        add(Scope::Uses(&[Use::Long, Use::Flapping]), Moment::Served, Moment::Gone);
        add(Scope::OneEach, Moment::Served, Moment::Gone);
    }
    if from == Mode::Ipvs || to == Mode::Ipvs {
        add(Scope::OneEach, Moment::End, Moment::Gone);
    }
    breaks
}

/// A moment of a change of mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    /// The old process is told to end.
    End,
    /// The new one has made its first pass.
    Served,
    /// Nothing is left of the old mode.
    Gone,
}

/// Users that a change of mode may affect, and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breaks {
    pub(super) scope: Scope,
    pub(super) since: Moment,
    pub(super) until: Moment,
}
