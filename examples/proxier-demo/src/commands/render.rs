//! `render`: the objects that a node would have for these Services. Needs no kernel and no privilege, and changes
//! nothing.
//!
//! The reconciler programs a simulated node, which is then printed in the formats of the usual tools.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::ExitCode;

use iptables::Family;
use proxier_core::modes::Kind;
use proxier_core::net::{EndpointKey, FrontendKey, Protocol};
use proxier_core::plan::report::Report;
use proxier_core::ports::Listener;
use proxier_core::sketch::{KernelState, Sketch};
use serde_json::{Value, json};

use crate::commands::mentions;
use crate::commands::once::{exit_code, input, print_report};
use crate::engine::{Engine, rules_in_memory};
use crate::message::change::Snapshot;
use crate::output::{lines, say};
use crate::problem::{Problem, Stopped};
use crate::settings::cli::Configured;

/// The device that has the node's addresses.
const DEVICE: &str = "node0";

/// Renders the input for a simulated node.
///
/// Exit code 0: rendered. 1: no input, or a part could not be programmed. 2: some of the input could not be read.
pub async fn render(configured: &Configured) -> Result<ExitCode, Stopped> {
    let (snapshot, unreadable) = input(configured).await?;
    let Simulated { mut engine, addresses, before, report } = simulate(configured, snapshot)?;
    engine.proxier().rejections().for_each(say);
    print_report(&report);
    rules_in_memory(&configured.settings).iter().for_each(say);
    warn_of_no_address(configured, &addresses);
    let mut state = engine.kernel().state();
    state.devices.retain(|device, addresses| device != DEVICE && before.devices.get(device) != Some(addresses));
    state.sysctls.retain(|path, value| before.sysctls.get(path) != Some(value));
    let mut listeners = engine.kernel().listeners().clone();
    // The relay opens no other sockets, so the node's own stack refuses connections.
    listeners.retain(|key, listener| match key.protocol {
        Protocol::Udp => listener.has_endpoints,
        _ => listener.serves_anybody(),
    });
    let rendered = Rendering { mode: configured.settings.mode, state, listeners };
    let is_printed = configured.output.print(|| rendered.text(), || rendered.json());
    Ok(exit_code(is_printed && report.is_done(), &unreadable))
}

pub(crate) struct Simulated {
    pub(crate) engine: Engine<Sketch>,
    /// Its addresses: the given ones or, without them, those of its Node object.
    pub(crate) addresses: Vec<IpAddr>,
    /// What it held before.
    before: KernelState,
    report: Report,
}

/// Programs a simulated node.
pub(crate) fn simulate(configured: &Configured, snapshot: Snapshot) -> Result<Simulated, Stopped> {
    let addresses = addresses_of_node(configured, &snapshot);
    let mut kernel = Sketch::default();
    kernel.set_interface(DEVICE, &addresses);
    let before = kernel.state();
    let mut engine = Engine::in_memory(configured, kernel);
    engine.feed(snapshot);
    let report = engine.pass().ok_or_else(|| Problem::new("", "nothing was done"))?;
    Ok(Simulated { engine, addresses, before, report })
}

/// The given addresses or, if there are none, those of the Node object, without names.
pub(crate) fn addresses_of_node(configured: &Configured, snapshot: &Snapshot) -> Vec<IpAddr> {
    let of_node = snapshot.node.iter().flat_map(|node| &node.object.status.addresses);
    let of_node = of_node.filter_map(|address| address.address.parse().ok());
    if configured.node_addresses.is_empty() { of_node.collect() } else { configured.node_addresses.clone() }
}

/// Warns that a node without addresses serves no node ports.
pub(crate) fn warn_of_no_address(configured: &Configured, addresses: &[IpAddr]) {
    if addresses.is_empty() {
        say(format_args!(
            "no address of node {} is known, so it serves no node ports here: give --node-address, or its Node object",
            configured.settings.node_name
        ));
    }
}

/// Objects of a node, which are printed in the formats of the tools.
struct Rendering {
    mode: Kind,
    /// What the node did not hold before.
    state: KernelState,
    /// Sockets of the process itself, in userspace mode.
    listeners: BTreeMap<FrontendKey, Listener>,
}

impl Rendering {
    /// `ipset save`.
    fn ipset(&self) -> String {
        let sets = &self.state.sets;
        let entries =
            sets.iter().flat_map(|(name, (_, entries))| entries.iter().map(move |of| format!("add {name} {of}")));
        lines(sets.values().map(|(create, _)| create.clone()).chain(entries))
    }

    /// Rules of a family, without the counters of `iptables-save --counters`.
    fn iptables(&self, family: Family) -> String {
        let of_family = self.state.rules.iter().filter(|((of, _), _)| *of == family);
        lines(of_family.flat_map(|(_, rules)| rules.lines()).map(|line| line.strip_prefix("[0:0] ").unwrap_or(line)))
    }

    /// `nft list ruleset`.
    fn nft(&self) -> String {
        self.state.tables.values().map(String::as_str).collect()
    }

    fn text(&self) -> String {
        let state = &self.state;
        let sysctls = state.sysctls.iter().map(|(path, value)| format!("{} = {value}", path.replace('/', ".")));
        let addresses = state
            .devices
            .iter()
            .flat_map(|(device, addresses)| addresses.iter().map(move |address| format!("{address} dev {device}")));
        let parts = [
            ("sysctl", lines(sysctls)),
            ("ip address", lines(addresses)),
            ("ip route", lines(state.routes.iter().map(mentions::route))),
            ("listeners of the process", lines(self.listeners.values().map(line_of))),
            ("ipvsadm --restore", state.ipvs.clone()),
            ("ipset restore", self.ipset()),
            ("iptables-restore", self.iptables(Family::Ipv4)),
            ("ip6tables-restore", self.iptables(Family::Ipv6)),
            ("nft --file", self.nft()),
        ];
        let parts = parts.into_iter().filter(|(_, content)| !content.is_empty());
        parts.map(|(tool, content)| format!("# {tool}\n{content}")).collect::<Vec<_>>().join("\n")
    }

    fn json(&self) -> Value {
        json!({
            "mode": self.mode.name(),
            "sysctl": self.state.sysctls,
            "addresses": self.state.devices,
            "routes": self.state.routes.iter().map(mentions::route).collect::<Vec<_>>(),
            "listeners": self.listeners.values().map(json_of).collect::<Vec<_>>(),
            "ipvsadm": self.state.ipvs,
            "ipset": self.ipset(),
            "iptables": self.iptables(Family::Ipv4),
            "ip6tables": self.iptables(Family::Ipv6),
            "nft": self.nft(),
        })
    }
}

fn endpoints(of: &[EndpointKey]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

/// The port of a Service, of `demo/web:http TCP IPv4`.
fn service_of(listener: &Listener) -> &str {
    listener.group.split(' ').next().unwrap_or_default()
}

/// A listener as `TCP 10.96.0.10:80 10.244.0.5:8080 10.244.1.6:8080 (demo/web:http)`.
fn line_of(listener: &Listener) -> String {
    let Listener { key, inside, outside, .. } = listener;
    let mut places = endpoints(inside);
    if inside != outside {
        places.push("outside:".to_owned());
        places.extend(endpoints(outside));
    }
    format!("{key} {} ({})", places.join(" "), service_of(listener))
}

fn json_of(listener: &Listener) -> Value {
    json!({
        "listener": listener.key.to_string(),
        "service": service_of(listener),
        "inside": endpoints(&listener.inside),
        "outside": endpoints(&listener.outside),
    })
}
