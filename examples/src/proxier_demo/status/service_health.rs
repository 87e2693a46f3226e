//! The health-check node ports of Services: load balancers ask each node whether it has local endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::{HeaderName, HeaderValue, StatusCode};
use proxier_core::net::Family;
use proxier_core::service::{NodeFacts, OpenOn};
use proxier_core::snapshot::ObjectKey;

use crate::proxier_demo::status::health::Health;
use crate::proxier_demo::status::server::{Answer, CONNECTIONS, Families, Places, Server, bind, by_path};

/// The answer of one Service's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Its health-check node port.
    pub port: u16,
    /// Addresses of ready endpoints on this node.
    pub local_endpoints: u64,
}

impl From<proxier_core::service::HealthCheck> for HealthCheck {
    fn from(check: proxier_core::service::HealthCheck) -> Self {
        HealthCheck { port: check.port, local_endpoints: u64::try_from(check.local_endpoints).unwrap_or(u64::MAX) }
    }
}

/// Where the servers listen, by family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// On which IPv4 addresses.
    pub v4: OpenOn,
    /// On which IPv6 addresses.
    pub v6: OpenOn,
}

impl Listening {
    /// Where node ports are served.
    pub fn of(facts: &NodeFacts) -> Self {
        Listening { v4: facts.health_checks_open_on(Family::V4), v6: facts.health_checks_open_on(Family::V6) }
    }

    /// The addresses to bind; an unspecified one stands for all of its family.
    fn addresses(&self) -> BTreeSet<IpAddr> {
        let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let mut addresses = BTreeSet::new();
        for (open, all) in [&self.v4, &self.v6].into_iter().zip(all) {
            match open {
                OpenOn::All => drop(addresses.insert(all)),
                OpenOn::These(these) => addresses.extend(these),
            }
        }
        addresses
    }
}

/// A server that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The Service.
    pub service: ObjectKey,
    /// The address it should have had.
    pub address: SocketAddr,
    /// Why not.
    pub reason: String,
}

/// The servers of all Services. They share one limit on connections.
#[derive(Debug)]
pub struct ServiceHealth {
    health: Arc<Health>,
    places: Places,
    services: BTreeMap<ObjectKey, Servers>,
}

#[derive(Debug)]
struct Servers {
    port: u16,
    local_endpoints: Arc<AtomicU64>,
    /// By requested address.
    listening: BTreeMap<IpAddr, Server>,
}

impl ServiceHealth {
    /// No servers yet.
    pub fn new(health: Arc<Health>) -> Self {
        ServiceHealth { health, places: Places::new(CONNECTIONS), services: BTreeMap::new() }
    }

    /// Opens, closes and updates servers to match these, on these addresses. Returns those that could not be opened; the
    /// next call retries them. Must be called within a tokio runtime.
    ///
    /// Unwanted servers are closed, listener and connections, before any is opened: a port can move between Services, or
    /// from single addresses to all of them, within one call.
    pub async fn update(&mut self, wanted: &BTreeMap<ObjectKey, HealthCheck>, listening: &Listening) -> Vec<Failed> {
        let addresses = listening.addresses();
        self.close_others(wanted, &addresses).await;
        let mut failed = Vec::new();
        for (key, check) in wanted {
            let servers = self.services.entry(key.clone()).or_insert_with(|| Servers {
                port: check.port,
                local_endpoints: Arc::default(),
                listening: BTreeMap::new(),
            });
            servers.local_endpoints.store(check.local_endpoints, Ordering::Relaxed);
            for address in &addresses {
                if servers.listening.contains_key(address) {
                    continue;
                }
                let address_and_port = SocketAddr::new(*address, check.port);
                match bind(address_and_port, Families::Own) {
                    Ok(listener) => {
                        let (key, count) = (key.clone(), servers.local_endpoints.clone());
                        let health = self.health.clone();
                        let answers = by_path(move |_any_path| answer(&key, &count, &health));
                        servers.listening.insert(*address, Server::start(listener, self.places.clone(), answers));
                    }
                    Err(error) => failed.push(Failed {
                        service: key.clone(),
                        address: address_and_port,
                        reason: error.to_string(),
                    }),
                }
            }
        }
        failed
    }

    /// Closes servers that are not wanted on these addresses.
    async fn close_others(&mut self, wanted: &BTreeMap<ObjectKey, HealthCheck>, addresses: &BTreeSet<IpAddr>) {
        let mut closing = Vec::new();
        self.services.retain(|key, servers| {
            let stays = wanted.get(key).is_some_and(|check| check.port == servers.port);
            let all = std::mem::take(&mut servers.listening);
            let (keep, close) = all.into_iter().partition(|(address, _)| stays && addresses.contains(address));
            servers.listening = keep;
            closing.extend(BTreeMap::into_values(close));
            stays
        });
        for server in closing {
            server.end().await;
        }
    }
}

fn answer(key: &ObjectKey, count: &AtomicU64, health: &Health) -> Answer {
    let count = count.load(Ordering::Relaxed);
    let healthy = health.is_healthy(Instant::now());
    // Names of objects need no JSON escapes, but a manifest can contain anything.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": {count},\n\t\
         \"serviceProxyHealthy\": {healthy}\n}}",
        quoted(&key.namespace),
        quoted(&key.name),
    );
    let status = if count > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let weight = (HeaderName::from_static("x-load-balancing-endpoint-weight"), HeaderValue::from(count));
    Answer { headers: vec![weight], ..Answer::json(status, body) }
}
