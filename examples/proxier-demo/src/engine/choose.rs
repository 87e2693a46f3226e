//! Chooses the mode: the requested one, or the best that this machine supports. Each is tried completely: it serves if
//! its engine opens.

use std::fmt;

use iptables::Backend;
use proxier_core::config::RulesBy;
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::forward::dropping_forward;
use proxier_core::modes::select::{RequestedMode, candidates};
use proxier_core::modes::{Kind, ipvs};
use proxier_core::net::Family;

use crate::engine::needs::{self, Tried};
use crate::engine::{self, Engine, kernel, modules, privileges};
use crate::problem::Problem;
use crate::settings::cli::Configured;

/// A mode that this machine does not support, and why.
#[derive(Clone, Debug)]
pub(crate) struct PassedOver {
    pub(crate) mode: Kind,
    pub(crate) problems: Vec<Problem>,
}

/// Prints `ipvs: IPVS cannot be used: …; …`.
impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        write!(f, "{}: {}", self.mode, problems.join("; "))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparing {
    LoadModules,
    /// Loads no modules itself; the kernel may.
    Nothing,
}

#[derive(Debug)]
pub(crate) struct ChosenMode {
    pub(crate) configured: Configured,
    pub(crate) engine: Engine,
    /// Features that this mode lacks here, for the log.
    pub(crate) notes: Vec<String>,
    /// Better modes, or the configured one, that this machine does not support.
    pub(crate) passed_over: Vec<PassedOver>,
    /// Rule back end of IPVS mode, and why; `None` if it was configured.
    pub(crate) rules: Option<ipvs::Choice>,
}

impl ChosenMode {
    /// Why this mode serves, unless it is simply the requested one.
    pub(crate) fn reason(&self) -> Option<String> {
        let mode = self.configured.settings.mode;
        let others: Vec<String> = self.passed_over.iter().map(ToString::to_string).collect();
        match (self.configured.settings.asked, others.is_empty()) {
            (RequestedMode::Mode(_), true) => None,
            (RequestedMode::Auto, true) => Some(format!("mode {mode}: the best that this machine can do")),
            (RequestedMode::Auto, false) => {
                Some(format!("mode {mode}: the best that this machine can do; not {}", others.join("; not ")))
            }
            (RequestedMode::Mode(asked), false) => {
                Some(format!("falling back from {asked} to {mode}: {}", others.join("; ")))
            }
        }
    }

    pub(crate) fn fell_back(&self) -> bool {
        matches!(self.configured.settings.asked, RequestedMode::Mode(asked) if asked != self.configured.settings.mode)
    }
}

/// Opens the engine of the first mode that this machine supports, among the modes that `serves` allows.
/// Errors: no mode can serve: everything that is missing, by mode if several were tried.
pub(crate) async fn choose(
    configured: &Configured,
    preparing: Preparing,
    serves: impl Fn(Kind) -> bool,
) -> Result<ChosenMode, Vec<Problem>> {
    privileges::NET_ADMIN.require()?;
    let asked = configured.settings.asked;
    let is_asked = asked == RequestedMode::Mode(Kind::Ipvs);
    let is_configured = configured.settings.core.ipvs.rules != RulesBy::Auto;
    // The rule back end is selected once for all modes, because it decides whether programs are needed.
    let mut configured = configured.clone();
    let mut first = kernel::open()?;
    let (settings, mut rules) = engine::with_rules(&configured.settings, &mut first.ports(), preparing);
    configured.settings = settings;
    let configured = &configured;
    // A missing capability does not justify serving in another way.
    let by_nft = is_asked && configured.settings.core.ipvs.rules == RulesBy::Nftables;
    let needs_no_rules =
        matches!(asked, RequestedMode::Mode(mode) if !mode.needs_rule_programs(&configured.settings.core));
    if !needs_no_rules {
        privileges::NET_RAW.require()?;
    }
    let may_fall_back = !configured.no_fallback;
    // What it knows by now, such as the programs of iptables and their rules, need not be found out again.
    let mut first = Some(first);
    let mut passed_over: Vec<PassedOver> = Vec::new();
    let mut modes = candidates(asked, may_fall_back, None);
    if asked == RequestedMode::Auto
        && let Some(dropping) = prefer_iptables(&mut modes, configured)
    {
        passed_over.push(dropping);
    }
    for place in 0.. {
        // The first candidate does not depend on the iptables programs. They are started only if it cannot serve, and
        // never if the configuration does not use them.
        if place == 1 && asked != RequestedMode::Auto && !(by_nft && is_configured) {
            modes = candidates(asked, may_fall_back, programs());
        }
        let Some(mode) = modes.get(place).copied() else { break };
        if !serves(mode) {
            continue;
        }
        // A bad value does not justify serving in another way; `Invocation::configure` has checked all these modes'
        // sections.
        let configured = configured.in_mode(mode)?;
        let kernel = first.take().map_or_else(kernel::open, Ok)?;
        let asked = rules.as_mut().filter(|_| mode.facts().has_virtual_servers);
        let tried = asked.map(|choice| std::mem::take(&mut choice.tried)).unwrap_or_default();
        match Box::pin(open(&configured, preparing, kernel, tried)).await {
            Ok((engine, notes)) => {
                passed_over.retain(|passed_over| passed_over.mode != mode);
                let rules = rules.clone().filter(|choice| mode.facts().has_virtual_servers && choice.reason.is_some());
                return Ok(ChosenMode { configured, engine, notes, passed_over, rules });
            }
            Err(problems) => passed_over.push(PassedOver { mode, problems }),
        }
    }
    match <[PassedOver; 1]>::try_from(passed_over) {
        Ok([only]) => Err(only.problems),
        Err(all) => Err(all.iter().map(|of| Problem::new("", format!("mode {of}"))).collect()),
    }
}

/// Puts iptables mode before nftables mode if the iptables chain `FORWARD`, and nothing else, drops what nftables mode
/// forwards. Rules of iptables mode accept masqueraded packets there, such as those to node ports. Returns the reason
/// in that case.
pub(crate) fn prefer_iptables(modes: &mut [Kind], configured: &Configured) -> Option<PassedOver> {
    let nftables = modes.iter().position(|mode| *mode == Kind::Nftables)?;
    let iptables = modes.iter().position(|mode| *mode == Kind::Iptables).filter(|iptables| *iptables > nftables)?;
    let mut kernel = kernel::open_to_look().ok()?;
    let mut ports = kernel.ports();
    let host = ports.links.addresses().unwrap_or_default();
    let dropping = dropping_forward(Kind::Nftables, &configured.settings.core, &host, &mut ports);
    let first = dropping.first()?.note.clone();
    let used = ports.rules.used_backend()?;
    dropping.iter().all(|of| of.of_iptables == Some(used)).then(|| {
        modes.get_mut(nftables..=iptables).into_iter().for_each(|between| between.rotate_right(1));
        PassedOver { mode: Kind::Nftables, problems: vec![Problem::new("", first)] }
    })
}

async fn open(
    configured: &Configured,
    preparing: Preparing,
    mut kernel: KernelPorts,
    tried: Tried,
) -> Result<(Engine, Vec<String>), Vec<Problem>> {
    if preparing == Preparing::LoadModules {
        modules::preload(&configured.settings);
    }
    if preparing == Preparing::LoadModules || !configured.settings.mode.facts().has_virtual_servers {
        needs::require(&configured.settings, &mut kernel)?;
    }
    Engine::open(configured, kernel, tried).await
}

/// The back end that this machine's iptables programs write to.
pub(crate) fn programs() -> Option<Backend> {
    let mut kernel = kernel::open_to_look().ok()?;
    for family in Family::ALL {
        let _known_by_the_back_end = kernel.ports().rules.has_random_fully(family);
    }
    kernel.iptables_backend()
}
