//! `show --services`: counters and rates of all addresses and ports of each Service, added up. Pure.

use std::collections::BTreeMap;

use proxier_core::modes::Kind;
use serde_json::{Value, json};

use super::board::{fitted, short};
use super::rates::{PerSecond, View};
use super::terminal::Size;

/// Sums of one Service.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sum {
    frontends: usize,
    /// Connections so far; `None`: not counted.
    connections: Option<u64>,
    /// Bytes in both directions so far; `None`: not counted.
    bytes: Option<u64>,
    /// Active connections; `None`: unknown.
    active: Option<u64>,
    /// `None`: the first read, or not counted.
    rates: Option<PerSecond>,
}

/// Counters of one virtual server or Frontend.
pub(super) struct Counted {
    pub(super) service: Option<String>,
    pub(super) connections: Option<u64>,
    pub(super) bytes: Option<u64>,
    pub(super) active: Option<u64>,
    pub(super) rates: Option<PerSecond>,
}

/// Sums of all Services. The one without a name has all virtual servers without a Service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sums {
    mode: Kind,
    services: BTreeMap<Option<String>, Sum>,
}

fn add(sum: &mut Option<u64>, number: Option<u64>) {
    if let Some(number) = number {
        *sum = Some(sum.unwrap_or_default().saturating_add(number));
    }
}

impl Sums {
    pub(super) fn new(mode: Kind, counted: impl Iterator<Item = Counted>) -> Self {
        let mut services: BTreeMap<Option<String>, Sum> = BTreeMap::new();
        for of in counted {
            // All ports of the Service together.
            let service = of.service.map(|name| name.split_once(':').map_or(name.clone(), |(of, _)| of.to_owned()));
            let sum = services.entry(service).or_default();
            sum.frontends += 1;
            add(&mut sum.connections, of.connections);
            add(&mut sum.bytes, of.bytes);
            add(&mut sum.active, of.active);
            if let Some(rates) = &of.rates {
                sum.rates.get_or_insert_default().add(rates);
            }
        }
        Sums { mode, services }
    }

    /// Services, busiest first, then by name.
    fn sorted(&self) -> Vec<(&Option<String>, &Sum)> {
        let rate = |sum: &Sum| sum.rates.map(|rates| (rates.connections, rates.bytes())).unwrap_or_default();
        let mut all: Vec<_> = self.services.iter().collect();
        all.sort_by(|(_, a), (_, b)| {
            let ((fast, much), (faster, more)) = (rate(a), rate(b));
            faster.total_cmp(&fast).then(more.total_cmp(&much))
        });
        all
    }

    /// Whether bytes are counted: in IPVS mode.
    fn counts_bytes(&self) -> bool {
        self.mode.facts().has_virtual_servers
    }

    /// Lines of text: as many as fit.
    pub(super) fn lines(&self, size: Option<Size>) -> Vec<String> {
        let sorted = self.sorted();
        let text = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let rows = sorted.iter().map(|(service, sum)| {
            let bytes = sum.rates.filter(|_| self.counts_bytes());
            [
                service.as_deref().unwrap_or("-").to_owned(),
                sum.frontends.to_string(),
                text(sum.connections),
                text(sum.bytes),
                text(sum.active),
                sum.rates.map_or_else(|| "-".to_owned(), |rates| short(rates.connections)),
                bytes.map_or_else(|| "-".to_owned(), |rates| short(rates.bytes())),
            ]
        });
        let heads = ["SERVICE", "FRONTENDS", "CONNECTIONS", "BYTES", "ACTIVE", "CONN/S", "BYTE/S"];
        let named = self.services.keys().flatten().count();
        fitted(
            &format!("{} mode: {named} Services", self.mode),
            &heads,
            rows.collect(),
            size,
            "Services with less traffic",
        )
    }

    pub(super) fn json(&self) -> Value {
        let services = self.sorted().into_iter().map(|(service, sum)| {
            json!({
                "service": service,
                "frontends": sum.frontends,
                "connections": sum.connections,
                "bytes": sum.bytes,
                "activeConnections": sum.active,
                "perSecond": sum.rates.map(|rates| json!({
                    "connections": rates.connections,
                    "bytes": self.counts_bytes().then(|| rates.bytes()),
                })),
            })
        });
        json!({"mode": self.mode.name(), "services": services.collect::<Vec<_>>()})
    }
}

impl View {
    pub(super) fn sums(&self, service: &dyn Fn(&ipvs::VirtualServerKey) -> Option<String>) -> Sums {
        let counted = self.servers.iter().map(|server| {
            let stats = &server.server.stats;
            Counted {
                service: service(&server.key()),
                connections: Some(stats.connections),
                bytes: Some(stats.bytes_in.saturating_add(stats.bytes_out)),
                active: Some(server.connections().0),
                rates: server.rates,
            }
        });
        Sums::new(Kind::Ipvs, counted)
    }
}
