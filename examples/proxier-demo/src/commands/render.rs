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
use crate::commands::once::{exit_code, feed, input, print_report};
use crate::engine::{Engine, rules_in_memory};
use crate::message::change::Snapshot;
use crate::output::{Output, say};
use crate::problem::{Problem, Stopped};
use crate::settings::cli::Configured;

/// The device that has the node's addresses.
const DEVICE: &str = "node0";

/// Renders the input for a node with these addresses or, if there are none, those of its Node object.
///
/// Exit code 0: rendered. 1: no input, or a part could not be programmed. 2: some of the input could not be read.
pub async fn render(configured: &Configured, output: Output, node_addresses: &[IpAddr]) -> Result<ExitCode, Stopped> {
    let (snapshot, unreadable) = input(configured).await?;
    let Simulated { mut engine, addresses, before, report } = simulate(configured, snapshot, node_addresses)?;
    engine.proxier().rejections().for_each(say);
    print_report(&report);
    rules_in_memory(&configured.settings).iter().for_each(say);
    warn_of_no_address(configured, &addresses);
    let mut rendered = Rendering::new(&before, engine.kernel().state(), configured.settings.mode);
    rendered.listeners = engine.kernel().listeners().clone();
    // The relay opens no other sockets, so the node's own stack refuses connections.
    rendered.listeners.retain(|key, listener| match key.protocol {
        Protocol::Udp => listener.has_endpoints,
        _ => listener.serves_anybody(),
    });
    let is_printed = output.print(|| rendered.text(), || rendered.json());
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

/// Programs a simulated node with these addresses or, if there are none, those of its Node object.
pub(crate) fn simulate(
    configured: &Configured,
    snapshot: Snapshot,
    node_addresses: &[IpAddr],
) -> Result<Simulated, Stopped> {
    let addresses = if node_addresses.is_empty() { of_the_node(&snapshot) } else { node_addresses.to_vec() };
    let mut kernel = Sketch::default();
    kernel.set_interface(DEVICE, &addresses);
    let before = kernel.state();
    let mut engine = Engine::in_memory(configured, kernel);
    feed(&mut engine, snapshot);
    let report = engine.pass().ok_or_else(|| Problem::new("", "nothing was done"))?;
    Ok(Simulated { engine, addresses, before, report })
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

/// The addresses of the Node object, without names.
fn of_the_node(snapshot: &Snapshot) -> Vec<IpAddr> {
    let node = snapshot.node.iter();
    let addresses = node.flat_map(|node| &node.object.status.addresses);
    addresses.filter_map(|address| address.address.parse().ok()).collect()
}

/// Objects of a node, in the formats of the tools.
#[derive(Debug, Default)]
struct Rendering {
    mode: Kind,
    /// `ipvsadm --save --numeric`.
    ipvsadm: String,
    /// `ipset save`.
    ipset: String,
    iptables: BTreeMap<Family, String>,
    /// `nft list ruleset`.
    nft: String,
    /// Addresses by the device to which they are bound.
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Local routes, as arguments of `ip route add`.
    routes: Vec<String>,
    /// Sockets of the process itself, in userspace mode.
    listeners: BTreeMap<FrontendKey, Listener>,
    /// Values below `/proc/sys` that are not the kernel's own.
    sysctls: BTreeMap<String, String>,
}

impl Rendering {
    fn new(before: &KernelState, after: KernelState, mode: Kind) -> Self {
        let mut rendered = Rendering { mode, ipvsadm: after.ipvs, ..Rendering::default() };
        rendered.ipset.extend(after.sets.values().flat_map(|(create, _)| [create, "\n"]));
        for (name, (_, entries)) in &after.sets {
            rendered.ipset.extend(entries.iter().flat_map(|entry| ["add ", name, " ", entry, "\n"]));
        }
        for ((family, _), rules) in after.rules {
            let text = rendered.iptables.entry(family).or_default();
            // Rules come with their counters, as `iptables-save --counters` prints them.
            text.extend(rules.lines().flat_map(|line| [line.strip_prefix("[0:0] ").unwrap_or(line), "\n"]));
        }
        rendered.nft = after.tables.into_values().collect();
        rendered.addresses = after.devices.into_iter().filter(|(device, _)| device != DEVICE).collect();
        rendered.addresses.retain(|device, addresses| before.devices.get(device) != Some(&*addresses));
        rendered.routes = after.routes.iter().map(mentions::route).collect();
        rendered.sysctls =
            after.sysctls.into_iter().filter(|(path, value)| before.sysctls.get(path) != Some(value)).collect();
        rendered
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut part = |tool: &str, content: &str| {
            if !content.is_empty() {
                let line_end = if content.ends_with('\n') { "" } else { "\n" };
                let between = if text.is_empty() { "" } else { "\n" };
                text.extend([between, "# ", tool, "\n", content, line_end]);
            }
        };
        let sysctls: Vec<String> =
            self.sysctls.iter().map(|(path, value)| format!("{} = {value}\n", path.replace('/', "."))).collect();
        part("sysctl", &sysctls.concat());
        let addresses: Vec<String> = self
            .addresses
            .iter()
            .flat_map(|(device, addresses)| addresses.iter().map(move |address| format!("{address} dev {device}\n")))
            .collect();
        part("ip address", &addresses.concat());
        part("ip route", &self.routes.join("\n"));
        let listeners: Vec<String> = self.listeners.values().map(line_of).collect();
        part("listeners of the process", &listeners.concat());
        part("ipvsadm --restore", &self.ipvsadm);
        part("ipset restore", &self.ipset);
        for (family, rules) in &self.iptables {
            part(if *family == Family::Ipv4 { "iptables-restore" } else { "ip6tables-restore" }, rules);
        }
        part("nft --file", &self.nft);
        text
    }

    fn json(&self) -> Value {
        let rules = |family| self.iptables.get(&family).map(String::as_str).unwrap_or_default();
        json!({
            "mode": self.mode.name(),
            "sysctl": self.sysctls,
            "addresses": self.addresses,
            "routes": self.routes,
            "listeners": self.listeners.values().map(json_of).collect::<Vec<_>>(),
            "ipvsadm": self.ipvsadm,
            "ipset": self.ipset,
            "iptables": rules(Family::Ipv4),
            "ip6tables": rules(Family::Ipv6),
            "nft": self.nft,
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
    format!("{key} {} ({})\n", places.join(" "), service_of(listener))
}

fn json_of(listener: &Listener) -> Value {
    json!({
        "listener": listener.key.to_string(),
        "service": service_of(listener),
        "inside": endpoints(&listener.inside),
        "outside": endpoints(&listener.outside),
    })
}
