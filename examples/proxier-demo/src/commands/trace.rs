//! `trace`: the path of a packet. Needs no kernel and no privilege: it follows from the Services' meaning.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use proxier_core::engine::Reconciler;
use proxier_core::net::Family;
use proxier_core::service::{Packet, Reached, Trace, Verdict};
use serde_json::{Value, json};

use crate::commands::live::{Live, LiveState};
use crate::commands::once::{exit_code, input};
use crate::commands::render::{Simulated, simulate, warn_of_no_address};
use crate::output::lines;
use crate::problem::{Problem, Stopped};
use crate::settings::cli::Configured;
use crate::settings::cli::packet::{Sender, TraceRequest};

/// Prints the path of the first packet of a connection; with `--live`, also the running kernel's entries for it. Exit
/// code 0: traced, even if the packet is dropped or refused. 1: no input, or the kernel has other entries. 2: bad
/// input, or some of it could not be read.
pub async fn trace_packet(configured: &Configured, asked: &TraceRequest) -> Result<ExitCode, Stopped> {
    let (snapshot, unreadable) = input(configured).await?;
    let mut live = asked.live.map(|during| Live::open(configured, during)).transpose()?;
    let mut configured = match &mut live {
        Some(live) => live.of_serving_mode(configured).map_err(Stopped::bad_input)?,
        None => configured.clone(),
    };
    if let Some(live) = live.as_ref().filter(|_| configured.node_addresses.is_empty()) {
        // The running kernel serves node ports on this host's addresses.
        configured.node_addresses.clone_from(&live.addresses);
    }
    let Simulated { mut engine, addresses, .. } = simulate(&configured, snapshot)?;
    warn_of_no_address(&configured, &addresses);
    let mut kernel = engine.kernel().clone();
    let proxier = engine.proxier();
    let mode = proxier.mode();
    let packet = packet(asked, &addresses, proxier).map_err(|reason| Stopped::bad_input(Problem::new("", reason)))?;
    let traced = engine.trace(&packet, &configured.settings);
    let found = match &mut live {
        Some(live) => Some(live.inspect(mode, &packet, proxier.facts(), &mut kernel.ports()).await?),
        None => None,
    };
    let text = || text(&packet, &traced, mode.name()) + &found.as_ref().map(LiveState::text).unwrap_or_default();
    let json = || {
        let mut value = value(&packet, &traced, mode.name());
        value["live"] = found.as_ref().map(LiveState::json).into();
        value
    };
    let is_printed = configured.output.print(text, json);
    Ok(exit_code(is_printed && found.is_none_or(|found| found.agrees()), &unreadable))
}

pub(super) fn packet(asked: &TraceRequest, node: &[IpAddr], proxier: &Reconciler) -> Result<Packet, String> {
    let (to, mode) = (asked.to.0, proxier.mode());
    let of_family = |address: &&IpAddr| Family::of(**address) == to.family();
    let own = node.iter().find(of_family).copied();
    let packet = match asked.from {
        Sender::Address(source) => {
            let source = source.to_canonical();
            if Family::of(source) != to.family() {
                return Err(format!("{source} and {} are not of one family", to.address));
            }
            let is_own = source.is_loopback() || node.contains(&source);
            if is_own { Packet::from_node(source, to) } else { Packet::new(source, to) }
        }
        Sender::Outside => Packet::new(
            match to.family() {
                Family::V4 => Ipv4Addr::new(192, 0, 2, 50).into(),
                Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x50).into(),
            },
            to,
        ),
        Sender::Node => {
            let is_own = to.address.is_loopback() || node.contains(&to.address);
            let is_services = proxier.desired().frontend(&to).is_some() && mode.facts().makes_addresses_local;
            // Packets to an address of this host also have it as their source, unless its route sets another.
            let by_routes = mode.makes_addresses_local_by_routes(proxier.facts().config());
            let is_route_silent = !by_routes || own.is_none();
            let source = if is_own || is_services && is_route_silent { Some(to.address) } else { own };
            let source = source.ok_or_else(|| {
                format!("no {} address of this node is known: give --node-address, or its Node object", to.family())
            })?;
            Packet::from_node(source, to)
        }
    };
    Ok(match &asked.device {
        Some(device) if !packet.from_node => packet.by(device),
        _ => packet,
    })
}

fn text(packet: &Packet, traced: &Trace, mode: &str) -> String {
    let sender = if packet.from_node { " (this node)" } else { "" };
    let mut said = vec![format!("{}{sender} → {}, first packet, {mode} mode", packet.source, packet.to)];
    said.extend((1..).zip(&traced.steps).map(|(number, step)| format!("  {number}. {step}")));
    match &traced.verdict {
        Verdict::Endpoints(reached) => {
            said.push(format!("it gets to{}", if reached.len() == 1 { "" } else { " one of" }));
            for one in reached {
                let source = if one.masqueraded { "which sees this node's address" } else { "which sees the source" };
                let weight = if one.weight == 1 { String::new() } else { format!(", weight {}", one.weight) };
                said.push(format!("  {}  {source}{weight}", one.endpoint));
            }
        }
        verdict => said.push(format!("it is {verdict}")),
    }
    lines(said)
}

fn value(packet: &Packet, traced: &Trace, mode: &str) -> Value {
    let (verdict, endpoints) = match &traced.verdict {
        Verdict::LeftAlone => ("leftAlone", Vec::new()),
        Verdict::Dropped => ("dropped", Vec::new()),
        Verdict::Rejected => ("rejected", Vec::new()),
        Verdict::Endpoints(reached) => {
            let one = |one: &Reached| json!({"address": one.endpoint.to_string(), "masqueraded": one.masqueraded, "weight": one.weight});
            ("endpoints", reached.iter().map(one).collect())
        }
        _ => ("unknown", Vec::new()),
    };
    json!({
        "mode": mode,
        "source": packet.source.to_string(),
        "fromNode": packet.from_node,
        "to": packet.to.to_string(),
        "service": traced.service.as_ref().map(ToString::to_string),
        "steps": traced.steps,
        "verdict": verdict,
        "endpoints": endpoints,
        "affinitySeconds": traced.affinity_secs,
        "forwarding": traced.forwarding,
    })
}
