//! The health-check node ports of Services, with which load balancers ask each node whether it has local endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use http::{HeaderValue, StatusCode};
use proxier_core::net::{ByFamily, Family};
use proxier_core::service::{HealthCheck, NodeFacts, OpenOn};
use proxier_core::snapshot::ObjectKey;
use tokio::task::JoinSet;

use crate::status::health::Health;
use crate::status::server::{self, Answer, CONNECTIONS, Families, Slots, bind, serve};

/// Addresses of the servers.
pub type ListenAddresses = ByFamily<OpenOn>;

/// The addresses that serve node ports.
pub fn listen_addresses(facts: &NodeFacts) -> ListenAddresses {
    ByFamily { v4: facts.health_checks_open_on(Family::V4), v6: facts.health_checks_open_on(Family::V6) }
}

/// The addresses to bind; an unspecified one stands for its whole family.
fn addresses(listening: &ListenAddresses) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::new();
    for family in Family::ALL {
        match listening.of(family) {
            OpenOn::All => drop(addresses.insert(family.unspecified())),
            OpenOn::These(these) => addresses.extend(these),
        }
    }
    addresses
}

/// The servers of all Services. They share one limit on connections.
#[derive(Debug)]
pub struct ServiceHealth {
    health: Arc<Health>,
    slots: Slots,
    services: BTreeMap<ObjectKey, Servers>,
}

#[derive(Debug)]
struct Servers {
    port: u16,
    /// Servers by requested address, with the number that each reports.
    listening: BTreeMap<IpAddr, (JoinSet<()>, Arc<AtomicUsize>)>,
}

impl ServiceHealth {
    pub fn new(health: Arc<Health>) -> Self {
        ServiceHealth { health, slots: Slots::new(CONNECTIONS), services: BTreeMap::new() }
    }

    /// Opens, closes and updates servers to match these Services on these addresses. Returns what could not be
    /// opened, by Service; the next call retries it. Must be called within a tokio runtime.
    ///
    /// Servers that are no longer needed are closed, listener and connections, before any is opened. So a port can move
    /// between Services, or from single addresses to all of them, within one call.
    pub async fn update(
        &mut self,
        wanted: &BTreeMap<ObjectKey, HealthCheck>,
        listening: &ListenAddresses,
    ) -> Vec<(ObjectKey, String)> {
        let addresses = addresses(listening);
        self.close_others(wanted, &addresses).await;
        let mut failed = Vec::new();
        for (key, check) in wanted {
            let opened = || Servers { port: check.port, listening: BTreeMap::new() };
            let servers = self.services.entry(key.clone()).or_insert_with(opened);
            for address in &addresses {
                let Some(local_endpoints) = *check.local_endpoints.of(Family::of(*address)) else { continue };
                if let Some((_, count)) = servers.listening.get(address) {
                    count.store(local_endpoints, Ordering::Relaxed);
                    continue;
                }
                let address_and_port = SocketAddr::new(*address, check.port);
                match bind(address_and_port, Families::Own) {
                    Ok(listener) => {
                        let count = Arc::new(AtomicUsize::new(local_endpoints));
                        let (key, answered, health) = (key.clone(), count.clone(), self.health.clone());
                        let answers = move |_any_path: &str| answer(&key, &answered, &health);
                        let mut server = JoinSet::new();
                        server.spawn(serve(listener, self.slots.clone(), answers));
                        servers.listening.insert(*address, (server, count));
                    }
                    Err(error) => failed.push((key.clone(), format!("cannot listen on {address_and_port}: {error}"))),
                }
            }
        }
        failed
    }

    /// Closes servers that are not needed on these addresses.
    async fn close_others(&mut self, wanted: &BTreeMap<ObjectKey, HealthCheck>, addresses: &BTreeSet<IpAddr>) {
        let mut closing = Vec::new();
        self.services.retain(|key, servers| {
            let check = wanted.get(key).filter(|check| check.port == servers.port);
            let stays = |address: &IpAddr| {
                addresses.contains(address)
                    && check.is_some_and(|check| check.local_endpoints.of(Family::of(*address)).is_some())
            };
            let all = std::mem::take(&mut servers.listening);
            let (keep, close) = all.into_iter().partition(|(address, _)| stays(address));
            servers.listening = keep;
            closing.extend(BTreeMap::into_values(close));
            check.is_some()
        });
        for (mut server, _) in closing {
            server.shutdown().await;
        }
    }
}

fn answer(key: &ObjectKey, count: &AtomicUsize, health: &Health) -> Answer {
    let count = count.load(Ordering::Relaxed);
    let healthy = health.is_healthy(Instant::now());
    // Object names need no JSON escapes, but a manifest can contain anything.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": {count},\n\t\
         \"serviceProxyHealthy\": {healthy}\n}}",
        quoted(key.namespace()),
        quoted(key.name()),
    );
    let status = if count > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut answer = server::json(status, body);
    answer.headers_mut().insert("x-load-balancing-endpoint-weight", HeaderValue::from(count));
    answer
}
