//! `show` in nftables, iptables and userspace mode: Frontends with their endpoints, once or with rates of new
//! connections.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use iptables::{BackendChoice, Iptables, System};
use ipvs::VirtualServerKey;
use ipvs::model::Stats;
use proxier_core::inspect::{ServedFrontend, list_frontends};
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::select::RequestedMode;
use proxier_core::modes::{Kind, iptables as iptables_mode};
use proxier_core::net::{Family, FrontendKey};
use proxier_core::service::{Desired, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node};
use serde_json::{Value, json};

use super::board::{fit, short, table};
use super::rates::{Comparison, History};
use super::terminal::Size;
use super::{NameOf, Picture, Services};
use crate::engine::userspace::read_running_sockets;
use crate::output::lines;
use crate::problem::Problem;
use crate::settings::cli::Configured;
use crate::status::metrics::USERSPACE_CONNECTIONS;

pub(super) struct Frontends {
    pub(super) mode: Kind,
    all: BTreeMap<FrontendKey, ServedFrontend>,
}

fn failed(error: impl fmt::Display) -> Problem {
    Problem::new("", error.to_string())
}

impl Frontends {
    /// Reads those of the requested mode; with `auto`, of the first mode that serves any. `None`: IPVS mode is
    /// requested, or no other mode serves anything.
    pub(super) fn read(
        configured: &Configured,
        kernel: &mut KernelPorts,
        input: (&Desired, &HostAddresses),
    ) -> Result<Option<Self>, Problem> {
        match configured.settings.asked {
            RequestedMode::Mode(mode) if mode.facts().has_virtual_servers => Ok(None),
            RequestedMode::Mode(mode) => Self::of_mode(mode, configured, kernel, input).map(Some),
            RequestedMode::Auto => {
                let others = Kind::ALL.into_iter().filter(|mode| !mode.facts().has_virtual_servers);
                let mut serving = others.filter_map(|mode| Self::of_mode(mode, configured, kernel, input).ok());
                Ok(serving.find(|found| !found.all.is_empty()))
            }
        }
    }

    /// Reads those of a mode other than IPVS mode.
    pub(super) fn of_mode(
        mode: Kind,
        configured: &Configured,
        kernel: &mut KernelPorts,
        (desired, host): (&Desired, &HostAddresses),
    ) -> Result<Self, Problem> {
        let settings = &configured.settings;
        if mode.facts().counts_by_rule {
            return Ok(Frontends { mode, all: counted()? });
        }
        if mode.facts().is_process {
            read_running_sockets(kernel)?;
        }
        let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), host);
        let mut all = list_frontends(mode, &facts, desired, &mut kernel.ports()).map_err(failed)?;
        if mode.facts().is_process && !all.is_empty() {
            for (key, begun) in settings.metrics.map(begun).unwrap_or_default() {
                all.entry(key).and_modify(|served| served.connections = Some(begun));
            }
        }
        Ok(Frontends { mode, all })
    }

    pub(super) fn text(&self, services: &Services) -> String {
        let counts = self.all.values().any(|served| served.connections.is_some());
        let row = |first: String, connections: Option<u64>, service: String| {
            let connections = connections.map_or_else(String::new, |count| count.to_string());
            if counts { vec![first, connections, service] } else { vec![first, service] }
        };
        let (mut rows, mut endpoints) = (Vec::new(), 0_usize);
        for (key, served) in &self.all {
            let service = services.name(&(*key).into()).unwrap_or_else(|| "-".to_owned());
            rows.push(row(key.to_string(), served.connections, service));
            let Some(of) = &served.endpoints else { continue };
            endpoints = endpoints.saturating_add(of.len());
            rows.extend(of.iter().map(|endpoint| row(format!("  -> {endpoint}"), None, String::new())));
            if of.is_empty() {
                rows.push(row("  no endpoint".to_owned(), None, String::new()));
            }
        }
        let is_unknown = self.all.values().any(|served| served.endpoints.is_none());
        let endpoints = if is_unknown {
            "endpoints: see /status of the process that serves".to_owned()
        } else {
            format!("{endpoints} endpoints")
        };
        let heads: &[&str] = if counts { &["FRONTEND", "CONNECTIONS", "SERVICE"] } else { &["FRONTEND", "SERVICE"] };
        let sum = format!("{} mode: {} Frontends, {endpoints}", self.mode, self.all.len());
        lines(table(heads, rows, None).into_iter().chain([sum]))
    }

    pub(super) fn json(&self, services: &Services) -> Value {
        let name = &|key: &VirtualServerKey| services.name(key);
        let frontend = |(key, served): (&FrontendKey, &ServedFrontend)| frontend_json(key, served, name);
        json!({"mode": self.mode.name(), "frontends": self.all.iter().map(frontend).collect::<Vec<_>>()})
    }
}

fn frontend_json(key: &FrontendKey, served: &ServedFrontend, name: NameOf<'_>) -> Value {
    let endpoints = served.endpoints.as_ref();
    json!({
        "key": key.to_string(),
        "service": name(&(*key).into()),
        "endpoints": endpoints.map(|of| of.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "connections": served.connections,
    })
}

fn counted() -> Result<BTreeMap<FrontendKey, ServedFrontend>, Problem> {
    let mut all = BTreeMap::new();
    for family in Family::ALL {
        let programs = Iptables::detect(System::new(), family.into(), BackendChoice::Detect).map_err(failed)?;
        all.extend(iptables_mode::list_frontends(&programs.dump_with_counters().map_err(failed)?, family));
    }
    Ok(all)
}

/// Connections that the running proxy of this configuration has started in userspace mode, from its metrics, since the
/// kernel does not count them. Empty if the metrics server does not answer within a second.
fn begun(metrics: SocketAddr) -> Vec<(FrontendKey, u64)> {
    const PATIENCE: Duration = Duration::from_secs(1);
    const MOST: u64 = 64 << 20;
    let (ip, localhost) = (metrics.ip(), Family::of(metrics.ip()).localhost());
    let address = if ip.is_unspecified() { localhost } else { ip };
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, metrics.port()), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.take(MOST).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let text = ask().unwrap_or_default();
    text.lines().filter_map(begun_of).collect()
}

fn begun_of(line: &str) -> Option<(FrontendKey, u64)> {
    let labels = line.strip_prefix("kubeproxy_")?.strip_prefix(USERSPACE_CONNECTIONS)?;
    let (key, _) = labels.strip_prefix("{frontend=\"")?.split_once('"')?;
    Some((key.parse().ok()?, line.rsplit_once(' ')?.1.parse().ok()?))
}

pub(super) struct FrontendView {
    mode: Kind,
    /// Busiest first. No rate: this read is the first with it, or connections are not counted.
    frontends: Vec<(FrontendKey, ServedFrontend, Option<f64>)>,
    compared: Comparison,
}

impl FrontendView {
    /// Compares a read with the previous one, and stores its counters. `at`: time of the read, by a monotonic clock.
    pub(super) fn new(read: Frontends, history: &mut History, at: Duration) -> Self {
        let stats = |served: &ServedFrontend| {
            let mut stats = Stats::default();
            stats.connections = served.connections?;
            Some(stats)
        };
        let of = |key: &FrontendKey| (VirtualServerKey::from(*key), None);
        let compared = history.next(read.all.iter().map(|(key, served)| (of(key), stats(served))).collect(), at);
        let rated = |(key, served): (FrontendKey, ServedFrontend)| {
            let rate = compared.rates(of(&key), stats(&served).as_ref()).map(|rates| rates.connections);
            (key, served, rate)
        };
        let mut frontends: Vec<_> = read.all.into_iter().map(rated).collect();
        frontends.sort_by(|(_, _, a), (_, _, b)| b.unwrap_or_default().total_cmp(&a.unwrap_or_default()));
        FrontendView { mode: read.mode, frontends, compared }
    }

    /// Connections per second to all Frontends; `None`: the first read, or nothing is counted.
    fn total(&self) -> Option<f64> {
        self.frontends.iter().filter_map(|(.., rate)| *rate).reduce(|sum, rate| sum + rate)
    }
}

impl Picture for FrontendView {
    fn keys(&self) -> Vec<VirtualServerKey> {
        self.frontends.iter().map(|(key, ..)| (*key).into()).collect()
    }

    fn lines(&self, name: NameOf<'_>, size: Option<Size>) -> Vec<String> {
        let none = || "-".to_owned();
        let row = |(key, served, rate): &(FrontendKey, ServedFrontend, Option<f64>)| {
            vec![
                key.to_string(),
                served.endpoints.as_ref().map_or_else(none, |of| of.len().to_string()),
                rate.map_or_else(none, short),
                served.connections.map_or_else(none, |count| count.to_string()),
                name(&(*key).into()).unwrap_or_else(none),
            ]
        };
        // Two lines precede the rows, and the last one counts those that do not fit.
        let (all, room) = (self.frontends.len(), size.map_or(usize::MAX, |size| size.rows.saturating_sub(2)));
        let shown = if all > room { room.saturating_sub(1) } else { all };
        let counts = self.frontends.iter().any(|(_, served, _)| served.connections.is_some());
        let rates = match self.total() {
            Some(total) => format!("{} connections/s", short(total)),
            None if self.frontends.is_empty() => "nothing is served".to_owned(),
            None if self.compared.is_first() && counts => "rates follow".to_owned(),
            None => format!("connections are not counted{}", self.mode.facts().how_to_count),
        };
        let summary = format!("{} mode: {all} Frontends{}; {rates}", self.mode, self.compared.changed());
        let heads = ["FRONTEND", "ENDPOINTS", "CONN/S", "CONNECTIONS", "SERVICE"];
        let mut lines = vec![summary];
        lines.extend(table(&heads, self.frontends.iter().take(shown).map(row).collect(), size));
        lines.extend((shown < all).then(|| format!("not shown: {} Frontends with less traffic", all - shown)));
        fit(lines, size)
    }

    fn json(&self, name: NameOf<'_>) -> Value {
        let per_second = |rate: Option<f64>| rate.map(|rate| json!({"connections": rate}));
        let frontends = self.frontends.iter().map(|(key, served, rate)| {
            let mut frontend = frontend_json(key, served, name);
            frontend["perSecond"] = json!(per_second(*rate));
            frontend
        });
        json!({
            "mode": self.mode.name(),
            "perSecond": per_second(self.total()),
            "added": self.compared.came,
            "deleted": self.compared.went,
            "frontends": frontends.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "all numbers here are exact")]
mod tests {
    use super::*;

    /// Frontends at these last octets, with their connections.
    fn reading(of: &[(u8, Option<u64>)]) -> Frontends {
        let one = |(last, connections): &(u8, Option<u64>)| {
            let mut served = ServedFrontend::default();
            served.connections = *connections;
            (format!("TCP 10.96.0.{last}:80").parse().unwrap(), served)
        };
        Frontends { mode: Kind::Nftables, all: of.iter().map(one).collect() }
    }

    fn rates(view: &FrontendView) -> Vec<(u8, Option<f64>)> {
        let last = |key: &FrontendKey| key.to_string().split(['.', ':']).nth(3).unwrap().parse().unwrap();
        view.frontends.iter().map(|(key, _, rate)| (last(key), *rate)).collect()
    }

    #[test]
    fn rates_are_differences_and_the_busiest_is_first() {
        let mut history = History::default();
        let view =
            FrontendView::new(reading(&[(1, Some(5)), (2, Some(7)), (3, None)]), &mut history, Duration::from_secs(1));
        assert_eq!((rates(&view), view.total()), (vec![(1, None), (2, None), (3, None)], None));
        let text = view.lines(&|_| None, None).join("\n");
        assert!(text.starts_with("nftables mode: 3 Frontends; rates follow\n"), "{text}");
        // The second was created again and counts from zero, the fourth is new, the third is not counted.
        let read = reading(&[(1, Some(9)), (2, Some(6)), (3, None), (4, Some(2))]);
        let view = FrontendView::new(read, &mut history, Duration::from_secs(3));
        assert_eq!(rates(&view), [(2, Some(3.0)), (1, Some(2.0)), (4, Some(1.0)), (3, None)]);
        assert_eq!((view.total(), view.compared.came, view.compared.went), (Some(6.0), 1, 0));
        let view = FrontendView::new(reading(&[]), &mut history, Duration::from_secs(4));
        assert_eq!((view.compared.came, view.compared.went, view.total()), (0, 4, None));
    }

    #[test]
    fn a_terminal_shows_what_fits() {
        let all: Vec<_> = (1..=9).map(|last| (last, Some(1))).collect();
        let view = FrontendView::new(reading(&all), &mut History::default(), Duration::ZERO);
        let lines = view.lines(&|_| None, Some(Size { rows: 6, columns: 24 }));
        assert_eq!(lines.len(), 6);
        assert!(lines.iter().all(|line| line.chars().count() <= 24), "{lines:?}");
        assert_eq!(lines[5], "not shown: 6 Frontends …");
    }

    #[test]
    fn only_samples_of_the_metric_are_read() {
        let sample =
            "kubeproxy_userspace_connections_total{frontend=\"TCP 10.96.0.10:80\",service=\"shop/web:http\"} 12";
        assert_eq!(begun_of(sample), Some(("TCP 10.96.0.10:80".parse().unwrap(), 12)));
        for bad in [
            "",
            "# HELP kubeproxy_userspace_connections_total x",
            &sample.replace("12", "x"),
            &sample.replace("TCP", "?"),
        ] {
            assert_eq!(begun_of(bad), None, "{bad}");
        }
    }
}
