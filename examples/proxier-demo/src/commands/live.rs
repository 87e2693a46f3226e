//! `trace --live`: the running kernel's entries for an address and port, compared with those of a simulated node that
//! has everything. Sends and changes nothing.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use iptables::{BackendChoice, Iptables, System};
use proxier_core::config::KernelNames;
use proxier_core::inspect::{Difference, Inspection, TrafficCounters, differences, inspect_packet};
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::{Kind, iptables as iptables_mode, other_addresses};
use proxier_core::ports::Ports;
use proxier_core::service::{NodeFacts, Packet};
use proxier_core::snapshot::HostAddresses;
use serde_json::{Value, json};

use crate::commands::show::serving;
use crate::engine::beside::obstacles;
use crate::engine::kernel;
use crate::gather::Gather as _;
use crate::output;
use crate::problem::Problem;
use crate::settings::cli::Configured;

pub(super) struct Live {
    kernel: KernelPorts,
    pub(super) addresses: Vec<IpAddr>,
    /// How long to count packets; zero: one read.
    during: Duration,
}

impl Live {
    pub(super) fn open(configured: &Configured, during: Duration) -> Result<Self, Problem> {
        let mut kernel = kernel::open()?;
        let host = kernel.ports().links.addresses().map_err(unread)?;
        let addresses = addresses_of_host(&host, &configured.settings.core.names);
        Ok(Live { kernel, addresses, during })
    }

    /// The same configuration, in the mode that serves where it leaves that open.
    pub(super) fn of_serving_mode(&mut self, configured: &Configured) -> Result<Configured, Vec<Problem>> {
        serving(configured, &mut self.kernel).map_or_else(|| Ok(configured.clone()), |mode| configured.in_mode(mode))
    }

    /// Reads once, and again after the time to count. `complete`: a kernel that has everything.
    /// Errors: a part of the kernel could not be read; or the mode has no entries in the kernel.
    pub(super) async fn inspect(
        &mut self,
        mode: Kind,
        packet: &Packet,
        facts: &NodeFacts,
        complete: &mut Ports<'_>,
    ) -> Result<LiveState, Problem> {
        let obstacles = obstacles(mode, facts, &mut self.kernel.ports());
        let expected = inspect_packet(mode, packet, facts, complete).map_err(unread)?;
        let mut inspection = self.inspection(mode, packet, facts)?;
        let mut counted = None;
        if !self.during.is_zero() {
            let before = inspection.counters;
            tokio::time::sleep(self.during).await;
            inspection = self.inspection(mode, packet, facts)?;
            counted = inspection.counters.map(|now| since(before.as_ref(), &now));
        }
        Ok(LiveState {
            mode,
            during: self.during,
            differences: differences(&expected, &inspection),
            inspection,
            counted,
            obstacles,
        })
    }

    fn inspection(&mut self, mode: Kind, packet: &Packet, facts: &NodeFacts) -> Result<Inspection, Problem> {
        if !mode.facts().counts_by_rule {
            return inspect_packet(mode, packet, facts, &mut self.kernel.ports()).map_err(unread);
        }
        let key = &packet.to;
        let programs = Iptables::detect(System::new(), key.family().into(), BackendChoice::Detect).map_err(unread)?;
        let dump = programs.dump_with_counters().map_err(unread)?;
        Ok(iptables_mode::inspect(&dump, key, facts.is_on_interface(key.address)))
    }
}

/// The addresses of this host, without Services'.
pub(super) fn addresses_of_host(host: &HostAddresses, names: &KernelNames) -> Vec<IpAddr> {
    other_addresses(host, names).filter(|address| !address.is_loopback()).collect()
}

fn unread(error: impl Display) -> Problem {
    Problem::new("trace --live", error.to_string())
}

/// Difference between two counts. A counter that decreased was reset: its new value counts.
fn since(before: Option<&TrafficCounters>, now: &TrafficCounters) -> TrafficCounters {
    let before = before.copied().unwrap_or_default();
    let difference = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    let mut since = *now;
    since.connections = difference(before.connections, now.connections);
    let earlier = before.packets.unwrap_or_default();
    since.packets = now.packets.map(|(from, to)| (difference(earlier.0, from), difference(earlier.1, to)));
    since
}

/// The kernel's entries, and how they differ from the right ones.
pub(super) struct LiveState {
    mode: Kind,
    during: Duration,
    inspection: Inspection,
    differences: Vec<Difference>,
    /// Counts within the time to count.
    counted: Option<TrafficCounters>,
    /// What keeps packets from endpoints although the entries are right.
    obstacles: Vec<String>,
}

impl LiveState {
    pub(super) fn agrees(&self) -> bool {
        self.differences.is_empty()
    }

    fn right(&self) -> impl Iterator<Item = (&String, &String)> {
        let wrong: BTreeSet<&String> = self.differences.iter().map(|difference| &difference.what).gather();
        self.inspection.parts.iter().filter(move |(what, _)| !wrong.contains(what))
    }

    pub(super) fn text(&self) -> String {
        let mut lines = vec!["in this kernel:".to_owned()];
        lines.extend(self.right().map(|(what, value)| {
            let value = if value.is_empty() { String::new() } else { format!(" ({value})") };
            format!("  there: {what}{value}")
        }));
        lines.extend(self.differences.iter().map(|difference| format!("  {difference}")));
        match (&self.inspection.counters, &self.counted) {
            (Some(total), Some(counted)) => {
                let seconds = self.during.as_secs_f64();
                lines.push(format!("  counted: {} in {seconds} s, {} in all", words(counted), words(total)));
            }
            (Some(total), None) => lines.push(format!("  counted: {}", words(total))),
            (None, _) if self.mode == Kind::Nftables && !self.inspection.parts.is_empty() => {
                lines.push(
                    "  counted: nothing without nftables.countConnections; conntrack -L lists connections".to_owned(),
                );
            }
            (None, _) => lines.push("  counted: nothing, no such object exists".to_owned()),
        }
        lines.push(match self.differences.len() {
            0 if self.inspection.parts.is_empty() => "it has nothing for that, as expected".to_owned(),
            0 => "it has all of this address and port; plan compares what Services share".to_owned(),
            1 => "1 difference".to_owned(),
            count => format!("{count} differences"),
        });
        lines.extend(self.obstacles.iter().map(|obstacle| format!("  {obstacle}")));
        output::lines(lines)
    }

    pub(super) fn json(&self) -> Value {
        let part = |(what, value): (&String, &String)| json!({"what": what, "value": value});
        let difference = |of: &Difference| json!({"what": of.what, "expected": of.expected, "found": of.found});
        let counted = |of: &TrafficCounters| {
            json!({
                "connections": of.connections,
                "packetsIn": of.packets.map(|(from, _)| from),
                "packetsOut": of.packets.map(|(_, to)| to),
            })
        };
        json!({
            "agrees": self.agrees(),
            "there": self.right().map(part).collect::<Vec<_>>(),
            "obstacles": self.obstacles,
            "differences": self.differences.iter().map(difference).collect::<Vec<_>>(),
            "counted": self.inspection.counters.as_ref().map(counted),
            "seconds": self.during.as_secs_f64(),
            "countedInTime": self.counted.as_ref().map(counted),
        })
    }
}

fn words(counted: &TrafficCounters) -> String {
    match counted.packets {
        Some((from, to)) => {
            format!("{} connections, {from} packets from clients, {to} packets to them", counted.connections)
        }
        None => format!("{} connections (first packets)", counted.connections),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(connections: u64, packets: Option<(u64, u64)>) -> TrafficCounters {
        let mut counted = TrafficCounters::default();
        (counted.connections, counted.packets) = (connections, packets);
        counted
    }

    #[test]
    fn counters_that_were_reset_count_from_zero() {
        let before = counted(10, Some((100, 5)));
        assert_eq!(since(Some(&before), &counted(12, Some((110, 5)))), counted(2, Some((10, 0))));
        assert_eq!(since(Some(&before), &counted(3, Some((4, 4)))), counted(3, Some((4, 4))));
        assert_eq!(since(None, &counted(3, None)), counted(3, None));
    }
}
