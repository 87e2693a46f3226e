//! Lists of real servers that take little memory if all have the usual configuration.

use std::sync::Arc;

use ipvs::model::{RealServerConfig, VirtualServerConfig, Weight};
use ipvs::{RealServer, RealServerKey};

use crate::net::EndpointKey;

/// The real servers of one virtual server, sorted by address and port.
///
/// Nearly all have the usual configuration: masquerading with weight 1, without limits. A list of these takes only the
/// memory of its addresses and ports, and none if it is shared with the desired endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealServers {
    keys: Arc<[EndpointKey]>,
    /// Endpoints with another configuration, sorted.
    unusual: Box<[(EndpointKey, RealServerConfig)]>,
}

/// A virtual server without its key: as it is desired, or as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    pub config: VirtualServerConfig,
    /// Its real servers. In the kernel they share their list with the desired ones if both are equal.
    pub real_servers: RealServers,
}

impl RealServers {
    /// Creates real servers for these endpoints, sorted, all with the usual configuration.
    pub fn usual(keys: Arc<[EndpointKey]>) -> Self {
        RealServers { keys, unusual: Box::default() }
    }

    /// Creates real servers for these endpoints, sorted, each with this configuration and its weight in `weights`,
    /// which is sorted.
    pub fn weighted(keys: Arc<[EndpointKey]>, config: RealServerConfig, weights: &[(EndpointKey, u16)]) -> Self {
        if weights.is_empty() && config == RealServerConfig::default() {
            return RealServers::usual(keys);
        }
        let weight_of = |key: &EndpointKey| {
            let place = weights.binary_search_by_key(key, |(endpoint, _)| *endpoint).ok()?;
            Weight::new(weights.get(place)?.1.into()).ok()
        };
        let configured =
            keys.iter().map(|key| (*key, weight_of(key).map_or(config, |weight| config.with_weight(weight))));
        let unusual = configured.filter(|(_, config)| *config != RealServerConfig::default()).collect();
        RealServers { keys, unusual }
    }

    /// Creates the list of these sorted real servers. Shares the list of `wanted` if both are equal.
    pub(crate) fn sorted(real_servers: &[RealServer], wanted: Option<&Arc<[EndpointKey]>>) -> Self {
        let keys = || real_servers.iter().map(|real| EndpointKey::from(real.key));
        let keys = match wanted {
            Some(wanted) if wanted.iter().copied().eq(keys()) => wanted.clone(),
            _ => keys().collect(),
        };
        let unusual = real_servers.iter().filter(|real| real.config != RealServerConfig::default());
        RealServers { keys, unusual: unusual.map(|real| (real.key.into(), real.config)).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = RealServer> {
        self.keys.iter().map(|key| self.real_server(*key))
    }

    pub fn keys(&self) -> &Arc<[EndpointKey]> {
        &self.keys
    }

    pub fn get(&self, key: &RealServerKey) -> Option<RealServer> {
        let place = self.keys.binary_search(&(*key).into()).ok()?;
        self.keys.get(place).map(|key| self.real_server(*key))
    }

    pub(crate) fn are_usual(&self) -> bool {
        self.unusual.is_empty()
    }

    /// The real server with this key, which must be in the list.
    pub(crate) fn real_server(&self, key: EndpointKey) -> RealServer {
        if self.unusual.is_empty() {
            return RealServer { key: key.into(), config: RealServerConfig::default() };
        }
        let unusual = self.unusual.binary_search_by_key(&key, |(key, _)| *key).ok();
        let config = unusual.and_then(|place| self.unusual.get(place)).map(|(_, config)| *config);
        RealServer { key: key.into(), config: config.unwrap_or_default() }
    }

    /// Whether both are equal; immediate if they share their list.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.unusual == other.unusual && (Arc::ptr_eq(&self.keys, &other.keys) || self.keys == other.keys)
    }
}
