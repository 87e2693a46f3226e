//! Output of `show --watch`, as text or as JSON: a [`View`] of IPVS, and the [`table`] of all modes. Pure.

use ipvs::VirtualServerKey;
use ipvs::model::{ForwardingMethod, ObservedRealServer};
use serde_json::{Value, json};

use super::rates::{PerSecond, RatedServer, ServerRates, View};
use super::terminal::Size;
use super::{NameOf, Picture, details, forwarding};

/// Columns of virtual servers and real servers.
const HEADS: [&str; 8] = ["VIRTUAL SERVER", "WEIGHT", "CONN/S", "PKT/S", "BYTE/S", "ACTIVE", "INACTIVE", "SERVICE"];
/// Columns that terminals with fewer columns than [`NARROW`] omit, to have room for the names of Services.
const LEFT_OUT: [&str; 2] = ["PKT/S", "BYTE/S"];
const NARROW: usize = 100;

/// Whether a real server accepts no new connections and still has some.
fn drains(real: &ObservedRealServer) -> bool {
    real.server.config.weight.get() == 0 && real.active_connections.saturating_add(real.inactive_connections) > 0
}

impl Picture for View {
    fn keys(&self) -> Vec<VirtualServerKey> {
        self.servers.iter().map(ServerRates::key).collect()
    }

    fn lines(&self, name: NameOf<'_>, size: Option<Size>) -> Vec<String> {
        // Two lines precede the rows, and the last one counts those that do not fit.
        let room = size.map_or(usize::MAX, |size| size.rows.saturating_sub(3));
        let (mut rows, mut hidden_servers, mut hidden) = (Vec::new(), 0, Vec::new());
        for server in &self.servers {
            let left = room.saturating_sub(rows.len());
            if left == 0 {
                hidden_servers += 1;
                hidden.extend(&server.real_servers);
                continue;
            }
            rows.push(of_server(server, name(&server.key())));
            // One virtual server takes a third of the rows at most, so that others are shown too.
            let most = (room / 3).max(1).min(left - 1);
            rows.extend(server.real_servers.iter().take(most).map(|(real, rates)| of_real(real, rates.as_ref())));
            hidden.extend(server.real_servers.iter().skip(most));
        }
        let is_narrow = size.is_some_and(|size| size.columns < NARROW);
        let is_shown = |head: &str| !is_narrow || !LEFT_OUT.contains(&head);
        let heads: Vec<&str> = HEADS.into_iter().filter(|head| is_shown(head)).collect();
        let shown = |row: [String; 8]| {
            row.into_iter().zip(HEADS).filter(|(_, head)| is_shown(head)).map(|(cell, _)| cell).collect()
        };
        let mut lines = vec![summary(self)];
        lines.extend(table(&heads, rows.into_iter().map(shown).collect(), size));
        lines.extend(not_shown(hidden_servers, &hidden));
        fit(lines, size)
    }

    fn json(&self, name: NameOf<'_>) -> Value {
        let servers = self.servers.iter().map(|server| {
            let (active, inactive) = server.connections();
            let own = &server.server.server;
            json!({
                "key": own.key.to_string(),
                "scheduler": own.config.scheduler.to_string(),
                "service": name(&own.key),
                "connections": server.server.stats.connections,
                "perSecond": server.rates,
                "activeConnections": active,
                "inactiveConnections": inactive,
                "realServers": server.real_servers.iter().map(|(real, rates)| json!({
                    "address": real.server.key.to_string(),
                    "weight": real.server.config.weight.get(),
                    "forwarding": forwarding(real.server.config.forwarding_method),
                    "draining": drains(real),
                    "perSecond": rates,
                    "activeConnections": real.active_connections,
                    "inactiveConnections": real.inactive_connections,
                })).collect::<Vec<_>>(),
            })
        });
        json!({
            "perSecond": self.total,
            "added": self.compared.came,
            "deleted": self.compared.went,
            "virtualServers": servers.collect::<Vec<_>>(),
        })
    }
}

fn not_shown(servers: usize, real: &[&RatedServer]) -> Option<String> {
    let draining = match real.iter().filter(|(real, _)| drains(real)).count() {
        0 => String::new(),
        draining => format!(", {draining} of them drain"),
    };
    let real = real.len();
    (servers + real > 0)
        .then(|| format!("not shown: {servers} virtual servers with less traffic, {real} real servers{draining}"))
}

fn summary(view: &View) -> String {
    let real: usize = view.servers.iter().map(|server| server.real_servers.len()).sum();
    let draining = view.servers.iter().flat_map(|server| &server.real_servers).filter(|(real, _)| drains(real)).count();
    let rates = match &view.total {
        Some(total) => format!(
            "{} connections/s, {} packets/s, {} bytes/s",
            short(total.connections),
            short(total.packets()),
            short(total.bytes())
        ),
        None => "rates follow".to_owned(),
    };
    let changed = view.compared.changed();
    format!("{} virtual servers{changed}, {real} real servers, {draining} drain; {rates}", view.servers.len())
}

fn of_server(server: &ServerRates, service: Option<String>) -> [String; 8] {
    let (active, inactive) = server.connections();
    let [connections, packets, bytes] = of_rates(server.rates.as_ref());
    let weight = if server.real_servers.is_empty() { "none".to_owned() } else { String::new() };
    let service = service.unwrap_or_else(|| "-".to_owned());
    let own = &server.server.server;
    let first = format!("{} {}", own.key, details(own));
    [first, weight, connections, packets, bytes, active.to_string(), inactive.to_string(), service]
}

pub(super) fn first_of_real(real: &ObservedRealServer) -> String {
    let method = match real.server.config.forwarding_method {
        // The usual method is omitted.
        ForwardingMethod::Masquerade => String::new(),
        other => format!(" ({other})"),
    };
    format!("  -> {}{method}", real.server.key)
}

fn of_real(real: &ObservedRealServer, rates: Option<&PerSecond>) -> [String; 8] {
    let [connections, packets, bytes] = of_rates(rates);
    let (active, inactive) = (real.active_connections.to_string(), real.inactive_connections.to_string());
    let (weight, drains) = (real.server.config.weight.to_string(), if drains(real) { "drains" } else { "" });
    [first_of_real(real), weight, connections, packets, bytes, active, inactive, drains.to_owned()]
}

fn of_rates(rates: Option<&PerSecond>) -> [String; 3] {
    match rates {
        Some(rates) => [short(rates.connections), short(rates.packets()), short(rates.bytes())],
        None => ["-", "-", "-"].map(str::to_owned),
    }
}

/// A number in at most six characters: `0`, `2.5`, `1234`, `98.7k`, `12.3M`.
pub(super) fn short(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    if number < 99.95 {
        return format!("{number:.1}");
    }
    if number < 9999.5 {
        return format!("{number:.0}");
    }
    let mut number = number / 1000.0;
    for unit in ["k", "M", "G", "T"] {
        if number < 999.95 {
            return format!("{number:.1}{unit}");
        }
        number /= 1000.0;
    }
    format!("{number:.1}P")
}

/// A table with heads. The first and the last column are text, and the others numbers. The widest columns share a
/// terminal's width.
pub(super) fn table(heads: &[&str], rows: Vec<Vec<String>>, size: Option<Size>) -> Vec<String> {
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let (mut widths, last) = (vec![0; heads.len()], heads.len().saturating_sub(1));
    let all: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    for row in &all {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let room = size.map_or(usize::MAX, |size| size.columns.saturating_sub(2 * last));
    while widths.iter().sum::<usize>() > room {
        match widths.iter_mut().max() {
            Some(widest) if *widest > 1 => *widest -= 1,
            _ => break,
        }
    }
    let line = |row: Vec<String>| {
        let cells = row.into_iter().zip(&widths).enumerate().map(|(at, (mut cell, &width))| {
            cut(&mut cell, width);
            if at == 0 || at == last { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all.into_iter().map(line).collect()
}

pub(super) fn fit(mut lines: Vec<String>, size: Option<Size>) -> Vec<String> {
    if let Some(size) = size {
        lines.truncate(size.rows);
        for line in &mut lines {
            cut(line, size.columns);
        }
    }
    lines
}

fn cut(line: &mut String, columns: usize) {
    if line.chars().count() > columns {
        *line = line.chars().take(columns.saturating_sub(1)).chain(['…']).collect();
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "all numbers here are exact")]
mod tests {
    use std::time::Duration;

    use ipvs::model::{RealServer, Stats, Weight};

    use super::*;
    use crate::commands::show::rates::tests::one;
    use crate::commands::show::rates::{History, Reading};

    /// A read of this many virtual servers with two real servers each, the second of which drains; the last is the
    /// busiest.
    fn reading(servers: u8, connections: u64) -> Vec<Reading> {
        let of_last = |last: u8| {
            let real = |(number, weight)| {
                let real = RealServer::new(([10, 244, last, number], 8080).into());
                let mut real = ObservedRealServer::from(real.with_weight(Weight::new(weight).unwrap()));
                real.active_connections = 3;
                real
            };
            let mut stats = Stats::default();
            stats.connections = connections * u64::from(last);
            (one(last, stats, &[]).0, [(1, 1), (2, 0)].map(real).into())
        };
        (1..=servers).map(of_last).collect()
    }

    fn view(servers: u8) -> View {
        let mut history = History::default();
        history.compare(reading(servers, 0), Duration::from_secs(1));
        history.compare(reading(servers, 10), Duration::from_secs(3))
    }

    fn service(key: &VirtualServerKey) -> Option<String> {
        key.to_string().contains("10.96.0.2:").then(|| "shop/web:http".to_owned())
    }

    #[test]
    fn a_stream_gets_everything() {
        let lines = view(2).lines(&service, None);
        let expected = [
            "2 virtual servers, 4 real servers, 2 drain; 15.0 connections/s, 0 packets/s, 0 bytes/s",
            "VIRTUAL SERVER        WEIGHT  CONN/S  PKT/S  BYTE/S  ACTIVE  INACTIVE  SERVICE",
            "TCP 10.96.0.2:80 rr             10.0      0       0       6         0  shop/web:http",
            "  -> 10.244.2.1:8080       1       0      0       0       3         0",
            "  -> 10.244.2.2:8080       0       0      0       0       3         0  drains",
            "TCP 10.96.0.1:80 rr              5.0      0       0       6         0  -",
            "  -> 10.244.1.1:8080       1       0      0       0       3         0",
            "  -> 10.244.1.2:8080       0       0      0       0       3         0  drains",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_terminal_gets_what_fits_and_the_number_of_the_rest() {
        for rows in 3..40 {
            let lines = view(9).lines(&service, Some(Size { rows, columns: 60 }));
            assert!(lines.len() <= rows, "{rows}: {lines:#?}");
            assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:#?}");
            let shown = |word: &str| lines.iter().filter(|line| line.starts_with(word)).count();
            let hidden = (9 - shown("TCP"), 18 - shown("  ->"));
            let said = lines.last().unwrap().strip_prefix("not shown: ");
            match said {
                Some(said) => assert!(said.starts_with(&format!("{} virtual", hidden.0)), "{rows} {hidden:?} {said}"),
                None => assert_eq!(hidden, (0, 0), "{rows}"),
            }
        }
        let lines = view(9).lines(&service, Some(Size { rows: 7, columns: 100 }));
        assert_eq!(
            lines[2..5].iter().map(|line| &line[..18]).collect::<Vec<_>>(),
            ["TCP 10.96.0.9:80 r", "  -> 10.244.9.1:80", "TCP 10.96.0.8:80 r"]
        );
        assert_eq!(lines[6], "not shown: 7 virtual servers with less traffic, 16 real servers, 9 of them drain");
    }

    /// One long name does not take space from the others.
    #[test]
    fn names_of_services_are_shown_on_a_terminal_of_80_columns() {
        let size = Some(Size { rows: 24, columns: 80 });
        let long = "demo/payments-reconciliation-worker-internal-headless-v2:http";
        let name = |key: &VirtualServerKey| {
            Some(if key.to_string().contains("10.96.0.1:") { long } else { "demo/web:http" }.to_owned())
        };
        let of_ipvs = view(2).lines(&name, size);
        assert_eq!(of_ipvs[1], "VIRTUAL SERVER        WEIGHT  CONN/S  ACTIVE  INACTIVE  SERVICE");
        let heads = ["FRONTEND", "ENDPOINTS", "CONN/S", "CONNECTIONS", "SERVICE"];
        let row = |of: &str, name: &str| [of, "3", "2.5", "100", name].map(str::to_owned).to_vec();
        for address in ["TCP 10.96.0.1:80", "TCP [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535"] {
            let rows = vec![row(address, "demo/web:http"), row("TCP 10.96.0.3:80", long)];
            let of_others = table(&heads, rows, size);
            for (lines, shown) in [(&of_ipvs, "demo/web:http"), (&of_others, "demo/web:")] {
                assert!(lines.iter().any(|line| line.contains(shown)), "{lines:#?}");
                assert!(lines.iter().any(|line| line.contains("demo/payments")), "{lines:#?}");
                assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
            }
        }
    }

    #[test]
    fn numbers_are_shortened() {
        let all = [0.0, 0.04, 2.5, 99.96, 9999.4, 9999.6, 999_949.0, 999_951.0, 1.2e9, 1e18].map(short);
        assert_eq!(all, ["0", "0.0", "2.5", "100", "9999", "10.0k", "999.9k", "1.0M", "1.2G", "1000.0P"]);
    }

    #[test]
    fn text_and_json_agree() {
        let value = view(2).json(&service);
        assert_eq!(value["perSecond"]["connections"], 15.0);
        let first = &value["virtualServers"][0];
        assert_eq!((&first["key"], &first["service"]), (&json!("TCP 10.96.0.2:80"), &json!("shop/web:http")));
        assert_eq!((&first["perSecond"]["connections"], &first["activeConnections"]), (&json!(10.0), &json!(6)));
        assert_eq!(first["realServers"][1]["draining"], true);
        let mut history = History::default();
        let view = history.compare(reading(1, 1), Duration::ZERO);
        assert_eq!(view.json(&service)["virtualServers"][0]["perSecond"], Value::Null);
    }
}
