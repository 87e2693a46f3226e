//! The health-check node ports of Services: a load balancer asks each node whether it has endpoints of its own.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::{HeaderName, HeaderValue, StatusCode};
use proxier_core::snapshot::ObjectKey;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::health::Health;
use super::server::{Answer, serve};

/// What one Service's server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Its health-check node port.
    pub port: u16,
    /// Addresses of ready endpoints on this node.
    pub local_endpoints: u64,
}

impl From<proxier_core::compile::HealthCheck> for HealthCheck {
    fn from(check: proxier_core::compile::HealthCheck) -> Self {
        HealthCheck { port: check.port, local_endpoints: u64::try_from(check.local_endpoints).unwrap_or(u64::MAX) }
    }
}

/// A server that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The Service.
    pub service: ObjectKey,
    /// Where it should have been.
    pub address: SocketAddr,
    /// Why not.
    pub reason: String,
}

/// The servers of all Services.
#[derive(Debug)]
pub struct ServiceHealth {
    health: Arc<Health>,
    services: BTreeMap<ObjectKey, Servers>,
}

#[derive(Debug)]
struct Servers {
    port: u16,
    local_endpoints: Arc<AtomicU64>,
    /// By address asked for. Dropped: closed.
    listeners: BTreeMap<IpAddr, JoinSet<()>>,
}

impl ServiceHealth {
    /// No servers yet.
    pub fn new(health: Arc<Health>) -> Self {
        ServiceHealth { health, services: BTreeMap::new() }
    }

    /// Opens, closes and updates servers so that they are these, on these addresses of the host; without any, on all
    /// addresses of both families. Returns those that could not be opened; the next call tries again. Must be called
    /// within a tokio runtime.
    pub fn update(&mut self, wanted: &BTreeMap<ObjectKey, HealthCheck>, addresses: &[IpAddr]) -> Vec<Failed> {
        let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let addresses = if addresses.is_empty() { &all[..] } else { addresses };
        self.services.retain(|key, servers| wanted.get(key).is_some_and(|check| check.port == servers.port));
        let mut failed = Vec::new();
        for (key, check) in wanted {
            let servers = self.services.entry(key.clone()).or_insert_with(|| Servers {
                port: check.port,
                local_endpoints: Arc::default(),
                listeners: BTreeMap::new(),
            });
            servers.local_endpoints.store(check.local_endpoints, Ordering::Relaxed);
            servers.listeners.retain(|address, _| addresses.contains(address));
            for address in addresses {
                if servers.listeners.contains_key(address) {
                    continue;
                }
                match bind(*address, check.port) {
                    Ok(listener) => {
                        let mut task = JoinSet::new();
                        let (key, count) = (key.clone(), servers.local_endpoints.clone());
                        let health = self.health.clone();
                        task.spawn(serve(listener, move |_any_path| answer(&key, &count, &health)));
                        servers.listeners.insert(*address, task);
                    }
                    Err(error) => failed.push(Failed {
                        service: key.clone(),
                        address: SocketAddr::new(*address, check.port),
                        reason: error.to_string(),
                    }),
                }
            }
        }
        failed
    }
}

fn answer(key: &ObjectKey, count: &AtomicU64, health: &Health) -> Answer {
    let count = count.load(Ordering::Relaxed);
    let healthy = health.is_healthy(Instant::now());
    // Names of objects have no character that JSON would escape, but a manifest can say anything.
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

/// Listens; on `[::]` for both families, or for IPv4 where the host has no IPv6.
fn bind(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let listener = match std::net::TcpListener::bind((address, port)) {
        Err(error) if address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && error.kind() != io::ErrorKind::AddrInUse => {
            std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?
        }
        other => other?,
    };
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
