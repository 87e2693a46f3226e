//! Frontends of all Services, and the owner of each by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Compiled, Frontend, HealthCheck, Indexed, NoLocalEndpoints, NodeFacts, Rejected, Roles, compile_from};
use crate::net::{EndpointKey, FrontendKey, Protocol};
use crate::pack::{pack, put};
use crate::parallel;
use crate::snapshot::{CreationTime, ObjectKey, Rejection, Store};

/// Every Frontend with its owner, updated in O(changed Services).
///
/// A protocol, address and port has one owner. If several Services claim it, the Service whose cluster IP it is gets
/// it. The API server gives a cluster IP to one Service, but anyone who may write Services can set any external IP,
/// even another Service's address (CVE-2020-8554). Node ports, load-balancer addresses and external IPs follow in this
/// order. Between equals the older Service wins, then the first by name. Frontends of agents come after equal Services;
/// among them, the first to ask wins. See [`Desired::conflicts`].
///
/// `Desired` is independent of the kernel. A mode follows its changes as a [`FrontendObserver`].
///
/// Two values with the same Services are equal, however they were built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Boxed, since a map allocates room for more values than it has.
    services: BTreeMap<ObjectKey, Box<Compiled>>,
    claims: BTreeMap<FrontendKey, Claims>,
    /// Services with requests that cannot be met, or Frontends that are rejected.
    refusing: BTreeSet<ObjectKey>,
    /// Frontends that several Services claim.
    contested: BTreeSet<FrontendKey>,
    /// Frontends without session affinity, since the mode has no room for it.
    pub(crate) without_affinity: BTreeSet<FrontendKey>,
}

/// Observes the changes of [`Desired`] to maintain its own view. Called for every change, in order, and not for a
/// Service that was compiled again without a change.
pub trait FrontendObserver {
    /// Whether Services are compiled with their ports, which takes time and memory. Default no. The answer must never
    /// change.
    fn needs_ports(&self) -> bool {
        false
    }

    /// A Service is new (`before` is `None`), removed (`after` is `None`), or compiled differently.
    fn service(&mut self, _before: Option<&Compiled>, _after: Option<&Compiled>) {}

    /// A Frontend is new, removed, or different, possibly because another Service owns it now.
    fn frontend(&mut self, _before: Option<&Arc<Frontend>>, _after: Option<&Arc<Frontend>>) {}
}

impl FrontendObserver for () {}

/// Calls both for each change, the first one first.
impl<A: FrontendObserver, B: FrontendObserver> FrontendObserver for (A, B) {
    fn needs_ports(&self) -> bool {
        self.0.needs_ports() || self.1.needs_ports()
    }

    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        self.0.service(before, after);
        self.1.service(before, after);
    }

    fn frontend(&mut self, before: Option<&Arc<Frontend>>, after: Option<&Arc<Frontend>>) {
        self.0.frontend(before, after);
        self.1.frontend(before, after);
    }
}

/// A Service's claim to a Frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    created: CreationTime,
    service: ObjectKey,
    frontend: Arc<Frontend>,
}

impl Claim {
    /// Sort key; the owner sorts first.
    fn rank(&self) -> (u8, CreationTime, &ObjectKey) {
        let weaker = BY_STRENGTH.iter().take_while(|(role, _)| !self.frontend.roles.contains(*role)).count();
        (u8::try_from(weaker).unwrap_or(u8::MAX), self.created, &self.service)
    }

    fn why_before(&self, other: &Claim) -> &'static str {
        let (ours, theirs) = (self.rank(), other.rank());
        if ours.0 < theirs.0 {
            let kind = BY_STRENGTH.get(usize::from(ours.0)).map(|(_, kind)| *kind);
            return kind.unwrap_or("by an external IP");
        }
        match (self.created, other.created) {
            (first, second) if first == second => "and is of the same age, but first by name",
            (first, _) if first > CreationTime::UNKNOWN => "and asked for it first",
            (_, second) if second > CreationTime::UNKNOWN => "and is a Service, which goes before agents' Frontends",
            _ => "and is older",
        }
    }
}

/// Roles that a claim may have, the strongest first, and how a Service has the address then; an external IP is the weakest.
const BY_STRENGTH: [(Roles, &str); 3] = [
    (Roles::CLUSTER_IP, "as its cluster IP"),
    (Roles::NODE_PORT, "as its node port"),
    (Roles::LOAD_BALANCER, "as its load balancer's address"),
];

/// The Services that claim a Frontend, the owner first. Nearly always one.
type Claims = SmallVec<[Claim; 1]>;

/// A Frontend that a Service claims but does not get. Prints as a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict<'a> {
    /// Protocol, address and port.
    pub key: FrontendKey,
    /// The Service that owns it.
    pub owner: &'a ObjectKey,
    /// The Service that is refused.
    pub refused: &'a ObjectKey,
    why: &'static str,
}

impl Conflict<'_> {
    pub(crate) fn reason(&self) -> String {
        format!("{} has it {}", self.owner, self.why)
    }
}

impl fmt::Display for Conflict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} is not served: {}", self.key, self.refused, self.reason())
    }
}

/// With fewer Services a separate thread is not faster.
const WORTH_A_THREAD: usize = 1_024;

/// Number of Services to compile before their old values are replaced. With all at once, both would be in memory.
const AT_ONCE: usize = 4_096;

impl Desired {
    /// Creates an empty value.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compiles all Services of a store.
    pub fn build(store: &Store, facts: &NodeFacts) -> Self {
        Indexed::build(store, facts, ()).desired
    }

    /// Compiles these Services again. Those that are no longer in the store are removed.
    #[doc(hidden)]
    pub fn refresh<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
        observer: &mut dyn FrontendObserver,
    ) {
        let needs_ports = observer.needs_ports();
        let compile = |key: &&ObjectKey| compile_from(store, key, facts, needs_ports);
        let keys: Vec<&ObjectKey> = services.into_iter().collect();
        for keys in keys.chunks(AT_ONCE) {
            let compiled =
                parallel::map_parts(keys, WORTH_A_THREAD, |part| part.iter().map(compile).collect::<Vec<_>>());
            for (key, compiled) in keys.iter().zip(compiled.into_iter().flatten()) {
                self.update(key, compiled, observer);
            }
        }
    }

    /// The Services known here or in the store, and the names under which agents provide Frontends.
    pub(crate) fn services_with<'a>(&'a self, store: &'a Store) -> BTreeSet<ObjectKey> {
        let stored = store.services().map(|service| &service.key);
        self.services.keys().chain(stored).chain(store.frontend_keys()).cloned().collect()
    }

    /// Replaces the compiled form of a Service; `None` removes it.
    pub(crate) fn update(&mut self, key: &ObjectKey, compiled: Option<Compiled>, observer: &mut dyn FrontendObserver) {
        let old = self.services.remove(key);
        let compiled = compiled.map(Box::new);
        if old == compiled {
            self.services.extend(old.map(|old| (key.clone(), old)));
            return;
        }
        let refuses = |of: &Option<Box<Compiled>>| {
            let extras = of.as_ref().map(|of| of.extras());
            extras.is_some_and(|of| !of.refused.is_empty() || !of.rejected.is_empty())
        };
        if refuses(&old) != refuses(&compiled) {
            put(&mut self.refusing, key.clone(), refuses(&compiled));
        }
        observer.service(old.as_deref(), compiled.as_deref());
        let claim_of = |of: &Option<Box<Compiled>>, frontend: &FrontendKey| {
            let compiled = of.as_ref()?;
            let frontend = compiled.frontend(frontend)?.clone();
            Some(Claim { created: compiled.created(&frontend.key), service: key.clone(), frontend })
        };
        for frontend in old.iter().flat_map(|old| &old.frontends) {
            let (before, after) = (claim_of(&old, &frontend.key), claim_of(&compiled, &frontend.key));
            if before != after {
                self.claim(frontend.key, key, after, observer);
            }
        }
        for frontend in compiled.iter().flat_map(|new| &new.frontends) {
            if old.as_ref().is_none_or(|old| old.frontend(&frontend.key).is_none()) {
                self.claim(frontend.key, key, claim_of(&compiled, &frontend.key), observer);
            }
        }
        self.services.extend(compiled.map(|new| (key.clone(), new)));
    }

    /// Changes a Service's claim to a Frontend, and notifies the observer if the owner's Frontend changes.
    fn claim(
        &mut self,
        key: FrontendKey,
        service: &ObjectKey,
        new: Option<Claim>,
        observer: &mut dyn FrontendObserver,
    ) {
        let claims = self.claims.entry(key).or_default();
        let owned = |claims: &Claims| claims.first().map(|claim| claim.frontend.clone());
        let (before, was_contested) = (owned(claims), claims.len() > 1);
        claims.retain(|claim| claim.service != *service);
        if let Some(new) = new {
            let place = claims.partition_point(|claim| claim.rank() < new.rank());
            claims.insert(place, new);
        }
        let after = owned(claims);
        let is_contested = claims.len() > 1;
        if is_contested != was_contested {
            put(&mut self.contested, key, is_contested);
        }
        if claims.is_empty() {
            self.claims.remove(&key);
        }
        if before != after {
            observer.frontend(before.as_ref(), after.as_ref());
        }
    }

    /// Rebuilds everything to save memory; call it after a large change.
    #[doc(hidden)]
    pub fn compact(&mut self) {
        pack(&mut self.services);
        pack(&mut self.claims);
    }

    /// All Frontends in their owners' version, sorted by key.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.claims.values().filter_map(|claims| claims.first()).map(|claim| &*claim.frontend)
    }

    /// A Frontend in its owner's version.
    pub fn frontend(&self, key: &FrontendKey) -> Option<&Frontend> {
        self.shared(key).map(|frontend| &**frontend)
    }

    pub(crate) fn frontend_at(&self, protocol: Protocol, endpoint: &EndpointKey) -> Option<&Frontend> {
        self.frontend(&FrontendKey::new(protocol, endpoint.address.to_canonical(), endpoint.port))
    }

    pub(crate) fn shared(&self, key: &FrontendKey) -> Option<&Arc<Frontend>> {
        Some(&self.claims.get(key)?.first()?.frontend)
    }

    /// The Service that owns a Frontend.
    pub fn owner(&self, key: &FrontendKey) -> Option<&ObjectKey> {
        self.claims.get(key)?.first().map(|claim| &claim.service)
    }

    /// The Services that claim a Frontend, each with the roles for which it claims it; the owner first.
    pub(crate) fn claimants(&self, key: &FrontendKey) -> impl Iterator<Item = (&ObjectKey, Roles)> {
        self.claims.get(key).into_iter().flatten().map(|claim| (&claim.service, claim.frontend.roles))
    }

    /// Health checks by Service.
    pub fn health_checks(&self) -> impl Iterator<Item = (&ObjectKey, HealthCheck)> {
        self.services.iter().filter_map(|(key, compiled)| Some((key, compiled.health_check()?)))
    }

    /// The health check of a Service.
    #[doc(hidden)]
    pub fn health_check(&self, service: &ObjectKey) -> Option<HealthCheck> {
        self.services.get(service)?.health_check()
    }

    /// Services with ports whose endpoints are all on other nodes although a policy is `Local`.
    pub fn no_local_endpoints(&self) -> impl Iterator<Item = (&ObjectKey, NoLocalEndpoints)> {
        let missing = self.services.iter().map(|(key, compiled)| (key, compiled.no_local_endpoints));
        missing.filter(|(_, missing)| *missing != NoLocalEndpoints::default())
    }

    /// Frontends that are not served because their address or port is reserved, with the Services that claim them.
    /// O(such Services).
    pub fn rejected(&self) -> impl Iterator<Item = (&ObjectKey, &Rejected)> {
        let refusing = self.refusing.iter().filter_map(|key| self.services.get_key_value(key));
        refusing.flat_map(|(key, compiled)| compiled.extras().rejected.iter().map(move |refusal| (key, refusal)))
    }

    /// The Services with a Frontend, served or rejected, at such an address. O(Frontends).
    pub(crate) fn services_at(&self, is_one: impl Fn(&IpAddr) -> bool) -> impl Iterator<Item = &ObjectKey> {
        let asks = move |compiled: &Compiled| {
            let served = compiled.frontends.iter().map(|frontend| &frontend.key);
            served
                .chain(compiled.extras().rejected.iter().map(|rejected| &rejected.key))
                .any(|key| is_one(&key.address))
        };
        self.services.iter().filter(move |(_, compiled)| asks(compiled)).map(|(key, _)| key)
    }

    /// Annotations that are impossible with the current endpoints, and other parts of Services that are not served.
    /// O(such Services).
    pub fn refused(&self) -> impl Iterator<Item = &Rejection> {
        self.refusing.iter().filter_map(|key| self.services.get(key)).flat_map(|compiled| &compiled.extras().refused)
    }

    /// Claims of Services that do not own the Frontend. Costs O(such claims).
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict<'_>> {
        let contested = self.contested.iter().filter_map(|key| Some((*key, self.claims.get(key)?.split_first()?)));
        contested.flat_map(|(key, (owner, others))| {
            others.iter().map(move |other| Conflict {
                key,
                owner: &owner.service,
                refused: &other.service,
                why: owner.why_before(other),
            })
        })
    }

    /// Compiled Services, sorted by name.
    pub fn all_compiled(&self) -> impl Iterator<Item = &Compiled> {
        self.services.values().map(Box::as_ref)
    }

    /// The compiled form of one Service, or `None` if the store did not have it at the last refresh.
    pub fn compiled(&self, service: &ObjectKey) -> Option<&Compiled> {
        self.services.get(service).map(Box::as_ref)
    }
}

/// Looks up names of Services.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    of: Option<(&'a Store, &'a Desired)>,
}

impl<'a> Names<'a> {
    /// No names: for operations on objects that belong to no Service.
    pub(crate) const NONE: Names<'static> = Names { of: None };

    /// Looks up names of desired objects.
    pub fn new(store: &'a Store, desired: &'a Desired) -> Self {
        Names { of: Some((store, desired)) }
    }

    /// The Service and port that a Frontend is for: `namespace/name:port`, without `:port` if the port has no name.
    /// `None` if it belongs to no Service. At address 0 it is a node port's, which costs O(Frontends) to find.
    pub fn service_of(&self, key: &FrontendKey) -> Option<String> {
        let (store, desired) = self.of?;
        if key.address.is_unspecified() {
            let at = |address| FrontendKey { address, ..*key };
            let is_it = |of: &&Frontend| of.roles.contains(Roles::NODE_PORT) && of.key == at(of.key.address);
            let mut frontends = desired.frontends().filter(|of| of.key.family() == key.family());
            return frontends.find(is_it).and_then(|of| self.service_of(&of.key));
        }
        let owner = desired.owner(key)?;
        let frontend = desired.frontend(key)?;
        let ports = store.service(owner).map_or(&[][..], |service| &service.ports);
        let number = Some(frontend.key.port);
        let of = |node_port: bool| {
            ports.iter().find(|port| {
                let its = if node_port { port.node_port } else { Some(port.port) };
                port.protocol == frontend.key.protocol && its == number
            })
        };
        let port = of(frontend.roles.contains(Roles::NODE_PORT)).or_else(|| of(false));
        Some(match port.map(|port| &*port.name) {
            None | Some("") => owner.to_string(),
            Some(name) => format!("{owner}:{name}"),
        })
    }

    /// Whether a desired endpoint has weight 0 on purpose, so that it gets no new connections.
    pub(crate) fn rests(&self, key: &FrontendKey, endpoint: &EndpointKey) -> bool {
        self.of.and_then(|(_, desired)| desired.frontend(key)).is_some_and(|frontend| !frontend.takes(&[*endpoint]))
    }
}
