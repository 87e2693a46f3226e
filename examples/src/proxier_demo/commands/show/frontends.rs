//! `show` in nftables, iptables and userspace mode: Frontends with their endpoints.

use std::collections::BTreeMap;
use std::fmt;

use iptables::{BackendChoice, Iptables, System};
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::select::RequestedMode;
use proxier_core::modes::{Kind, Names, ServedFrontend, iptables as iptables_mode, list_frontends};
use proxier_core::net::{Family, FrontendKey};
use proxier_core::service::{Desired, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node};
use serde_json::{Value, json};

use crate::proxier_demo::engine::userspace::read_running_sockets;
use crate::proxier_demo::output::lines;
use crate::proxier_demo::problem::Problem;
use crate::proxier_demo::settings::cli::Configured;

/// All Frontends that a mode serves.
pub(super) struct Frontends {
    pub(super) mode: Kind,
    all: BTreeMap<FrontendKey, ServedFrontend>,
}

fn failed(error: impl fmt::Display) -> Problem {
    Problem::new("", error.to_string())
}

impl Frontends {
    /// Reads those of the mode that is asked for; with `auto`, of the first that serves any. `None`: IPVS mode is asked for, or no other serves
    /// anything.
    ///
    /// # Errors
    ///
    /// The kernel could not be read.
    pub(super) fn read(
        configured: &Configured,
        kernel: &mut KernelPorts,
        (desired, host): (&Desired, &HostAddresses),
    ) -> Result<Option<Self>, Problem> {
        let settings = &configured.settings;
        let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), host);
        let read = |mode, kernel: &mut KernelPorts| {
            if mode == Kind::Iptables {
                return counted();
            }
            if mode == Kind::Userspace {
                read_running_sockets(kernel)?;
            }
            list_frontends(mode, &facts, desired, &mut kernel.ports()).map_err(failed)
        };
        match settings.asked {
            RequestedMode::Mode(Kind::Ipvs) => Ok(None),
            RequestedMode::Mode(mode) => Ok(Some(Frontends { mode, all: read(mode, kernel)? })),
            RequestedMode::Auto => {
                let others = Kind::ALL.into_iter().filter(|mode| *mode != Kind::Ipvs);
                let mut serving = others.filter_map(|mode| Some(Frontends { mode, all: read(mode, kernel).ok()? }));
                Ok(serving.find(|found| !found.all.is_empty()))
            }
        }
    }

    pub(super) fn text(&self, names: &Names<'_>) -> String {
        let counts = self.all.values().any(|served| served.connections.is_some());
        let connections =
            |served: &ServedFrontend| served.connections.map_or_else(String::new, |count| count.to_string());
        let rows = self.all.iter().map(|(key, served)| (key.to_string(), connections(served)));
        let heads = ("FRONTEND".to_owned(), if counts { "CONNECTIONS".to_owned() } else { String::new() });
        let (mut place, mut count) = (0, 0);
        for (key, connections) in std::iter::once(heads.clone()).chain(rows) {
            (place, count) = (place.max(key.chars().count()), count.max(connections.chars().count()));
        }
        let line = |(key, connections): (String, String), service: &str| {
            let connections = if counts { format!("  {connections:>count$}") } else { connections };
            format!("{key:<place$}{connections}  {service}")
        };
        let mut out = vec![line(heads, "SERVICE")];
        let mut endpoints = 0_usize;
        for (key, served) in &self.all {
            let service = names.service_of(key).unwrap_or_else(|| "-".to_owned());
            out.push(line((key.to_string(), connections(served)), &service));
            let Some(of) = &served.endpoints else { continue };
            endpoints = endpoints.saturating_add(of.len());
            out.extend(of.iter().map(|endpoint| format!("  -> {endpoint}")));
            if of.is_empty() {
                out.push("  no endpoint: refused".to_owned());
            }
        }
        let is_unknown = self.all.values().any(|served| served.endpoints.is_none());
        let endpoints = if is_unknown {
            "endpoints: see /status of the process that serves".to_owned()
        } else {
            format!("{endpoints} endpoints")
        };
        lines(out.into_iter().chain([format!("{} mode: {} Frontends, {endpoints}", self.mode, self.all.len())]))
    }

    pub(super) fn json(&self, names: &Names<'_>) -> Value {
        let frontend = |(key, served): (&FrontendKey, &ServedFrontend)| {
            let endpoints = served.endpoints.as_ref();
            json!({
                "key": key.to_string(),
                "service": names.service_of(key),
                "endpoints": endpoints.map(|of| of.iter().map(ToString::to_string).collect::<Vec<_>>()),
                "connections": served.connections,
            })
        };
        json!({"mode": self.mode.name(), "frontends": self.all.iter().map(frontend).collect::<Vec<_>>()})
    }
}

/// The rules of both families, with their counters.
fn counted() -> Result<BTreeMap<FrontendKey, ServedFrontend>, Problem> {
    let mut all = BTreeMap::new();
    for family in Family::ALL {
        let programs = Iptables::detect(System::new(), family.into(), BackendChoice::Detect).map_err(failed)?;
        all.extend(iptables_mode::list_frontends(&programs.dump_with_counters().map_err(failed)?, family));
    }
    Ok(all)
}
