//! The changes of the cluster, from a seed: the initial Services, and one change after another.
//!
//! The next change depends on the seed and on earlier changes, never on time, so a seed repeats the sequence.

use serde_json::{Value, json};

use super::random::Random;
use super::world::{
    BOTH, Endpoint, Family, Host, Kind, NAMESPACE, PODS, Protocol, Ranges, SLOTS, Service, State, V4, V6, Way,
};

/// Services that clients use. Their endpoints change, but never all at once.
const STABLE: u16 = 20;
/// Services that clients use and that never change, so that damage by other programs and its repair can be seen.
const STEADY: u16 = 6;
/// Services that measure the time from a change to the kernel.
pub(super) const CANARIES: u16 = 4;
/// Unreadable objects at a time.
const BAD: usize = 30;
/// Endpoints of Services without clients are taken from these.
const NOBODIES: u32 = 4_000;

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    Put(Value),
    Delete(&'static str, String),
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) kind: &'static str,
    pub(super) writes: Vec<Write>,
    /// The index of the Service among the used ones, if it is one.
    pub(super) used: Option<usize>,
}

/// All Services, and the next changes.
#[derive(Clone, Debug)]
pub(super) struct Script {
    random: Random,
    /// Services that clients use: stable ones first, then steady ones.
    pub(super) used: Vec<Service>,
    pub(super) canaries: Vec<Service>,
    crowd: Vec<Service>,
    /// The intended size of the crowd.
    target: usize,
    free: Vec<u16>,
    made: u32,
    bad: Vec<(String, bool)>,
}

fn used(number: u16) -> Service {
    let mut service = Service::new(format!("used-{number}"), 1 + number);
    service.families = match number % 3 {
        0 => BOTH,
        1 => V4,
        _ => V6,
    };
    service.protocol = if number % 4 == 3 { Protocol::Udp } else { Protocol::Tcp };
    service.kind = if number.is_multiple_of(2) { Kind::LoadBalancer } else { Kind::NodePort };
    if number.is_multiple_of(4) {
        service.ranges = if number.is_multiple_of(8) { Ranges::Clients } else { Ranges::Node };
    }
    service.affinity_secs = number.is_multiple_of(5).then_some(600);
    service.external = number % 6 == 1;
    service.local = number % 7 == 1 && service.kind == Kind::NodePort;
    service.endpoints = (0..4).map(|pod| ready(Host::Pod((number + pod * 3) % PODS))).collect();
    service
}

fn ready(host: Host) -> Endpoint {
    Endpoint { host, state: State::Ready }
}

impl Script {
    /// The initial cluster, with this many Services in total.
    pub(super) fn new(seed: u64, services: usize) -> Self {
        let random = Random::new(seed, 1);
        let fixed = STABLE + STEADY;
        let canaries = (0..CANARIES).map(|number| {
            let mut service = Service::new(format!("canary-{number}"), 1 + fixed + number);
            service.families = if number.is_multiple_of(2) { V4 } else { V6 };
            service.endpoints = vec![ready(Host::Pod(PODS - 1))];
            service
        });
        let mut script = Script {
            random,
            used: (0..fixed).map(used).collect(),
            canaries: canaries.collect(),
            crowd: Vec::new(),
            target: services.saturating_sub((fixed + CANARIES).into()).clamp(10, usize::from(SLOTS) * 9 / 10),
            free: (1 + fixed + CANARIES..SLOTS).collect(),
            made: 0,
            bad: Vec::new(),
        };
        while script.crowd.len() < script.target {
            let service = script.random_service();
            script.crowd.push(service);
        }
        script
    }

    /// Every Service in its current state, except canaries.
    pub(super) fn services(&self) -> impl Iterator<Item = &Service> {
        self.used.iter().chain(&self.crowd)
    }

    /// Whether a Service that clients use never changes.
    pub(super) fn is_steady(number: usize) -> bool {
        number >= usize::from(STABLE)
    }

    fn random_service(&mut self) -> Service {
        let at = self.random.below(self.free.len());
        // There are more slots than Services.
        let slot = if self.free.is_empty() { 0 } else { self.free.swap_remove(at) };
        self.made += 1;
        let mut service = Service::new(format!("crowd-{:05}", self.made), slot);
        let random = &mut self.random;
        service.families = match random.below(10) {
            0..6 => V4,
            6..8 => BOTH,
            _ => V6,
        };
        service.protocol = if random.percent(20) { Protocol::Udp } else { Protocol::Tcp };
        service.kind = match random.below(20) {
            0..12 => Kind::ClusterIp,
            12..15 => Kind::NodePort,
            _ => Kind::LoadBalancer,
        };
        service.external = random.percent(4);
        service.balanced = random.percent(90);
        service.local = service.kind == Kind::NodePort && random.percent(30);
        if service.kind == Kind::LoadBalancer && random.percent(40) {
            service.ranges = *random.pick(&[Ranges::Clients, Ranges::Node, Ranges::Others]).unwrap_or(&Ranges::None);
        }
        service.affinity_secs = random.percent(15).then(|| 60 * random.between(1, 180));
        for _ in 0..random.between(0, 4) {
            add_endpoint(random, &mut service);
        }
        service
    }

    /// The next change.
    pub(super) fn step(&mut self) -> Event {
        match self.random.below(100) {
            0..8 => self.change_used(),
            8..74 => self.change_endpoints(),
            74..84 => {
                // As many are added as deleted, and missing ones first.
                let comes = self.crowd.len() < self.target * 95 / 100
                    || (self.crowd.len() < self.target * 105 / 100 && self.random.percent(50));
                if comes && !self.free.is_empty() { self.create() } else { self.delete() }
            }
            84..94 => self.change_service(),
            94..97 => self.take_slices_away(),
            _ => self.bad_object(),
        }
    }

    /// Changes the endpoints of a used Service, but keeps at least one of them.
    fn change_used(&mut self) -> Event {
        let number = self.random.below(STABLE.into());
        let random = &mut self.random;
        let Some(service) = self.used.get_mut(number) else { return nothing() };
        let there: Vec<Host> = service.endpoints.iter().map(|endpoint| endpoint.host).collect();
        let fresh: Vec<Host> = (0..PODS).map(Host::Pod).filter(|host| !there.contains(host)).collect();
        let at = random.below(service.endpoints.len());
        let kind = match random.below(5) {
            0 | 1 if service.endpoints.len() < 6 => {
                service.endpoints.extend(random.pick(&fresh).copied().map(ready));
                "used: an endpoint comes"
            }
            2 if service.endpoints.len() > 2 => {
                service.endpoints.remove(at);
                "used: an endpoint goes"
            }
            3 => {
                // One ready endpoint must stay.
                let all_ready = service.endpoints.iter().filter(|endpoint| endpoint.state == State::Ready).count() > 1;
                if let Some(endpoint) = service.endpoints.get_mut(at) {
                    let stops = endpoint.state == State::Ready && all_ready;
                    endpoint.state = if stops { State::Stopping } else { State::Ready };
                }
                "used: an endpoint stops, or comes back"
            }
            _ => {
                if let (Some(endpoint), Some(host)) = (service.endpoints.get_mut(at), random.pick(&fresh)) {
                    *endpoint = ready(*host);
                }
                "used: an endpoint is replaced"
            }
        };
        if !service.endpoints.iter().any(|endpoint| endpoint.state == State::Ready) {
            for endpoint in &mut service.endpoints {
                endpoint.state = State::Ready;
            }
        }
        // With the policy Local, only IPVS mode serves outside clients from other nodes' endpoints.
        let serves_here = |endpoint: &Endpoint| endpoint.state == State::Ready && endpoint.host.is_local();
        if service.local && !service.endpoints.iter().any(serves_here) {
            let has = |host: &Host| service.endpoints.iter().any(|endpoint| endpoint.host == *host);
            let here = (0..PODS).map(Host::Pod).find(|host| host.is_local() && !has(host));
            service.endpoints.extend(here.map(ready));
        }
        Event { kind, writes: slices(service), used: Some(number) }
    }

    fn change_endpoints(&mut self) -> Event {
        let at = self.random.below(self.crowd.len());
        let random = &mut self.random;
        let Some(service) = self.crowd.get_mut(at) else { return nothing() };
        if !service.sliced {
            service.sliced = true;
            return Event { kind: "slices come back", writes: slices(service), used: None };
        }
        let place = random.below(service.endpoints.len());
        let kind = match random.below(33) {
            0..10 => {
                add_endpoint(random, service);
                "endpoint comes"
            }
            10..18 if place < service.endpoints.len() => {
                service.endpoints.remove(place);
                "endpoint goes"
            }
            18..25 if place < service.endpoints.len() => {
                service.endpoints.remove(place);
                add_endpoint(random, service);
                "endpoint is replaced"
            }
            25..29 => {
                if let Some(endpoint) = service.endpoints.get_mut(place) {
                    endpoint.state = State::Stopping;
                }
                "endpoint stops"
            }
            29..32 => {
                if let Some(endpoint) = service.endpoints.get_mut(place) {
                    endpoint.state = if endpoint.state == State::Ready { State::Unready } else { State::Ready };
                }
                "endpoint is ready, or not"
            }
            32 if random.percent(50) => {
                service.endpoints.clear();
                "no endpoint stays"
            }
            _ => {
                for _ in 0..3 {
                    add_endpoint(random, service);
                }
                "three endpoints come"
            }
        };
        // More would only make the tables long.
        service.endpoints.truncate(6);
        Event { kind, writes: slices(service), used: None }
    }

    fn create(&mut self) -> Event {
        let mut service = self.random_service();
        if self.random.percent(8) {
            // The claimed address is that of a used TCP Service with the same port.
            service.protocol = Protocol::Tcp;
            service.claims = self.used.first().and_then(|victim| victim.address(Way::ClusterIp, Family::V4));
        }
        let kind = if service.claims.is_some() { "Service that claims another's address" } else { "Service comes" };
        let writes = service.objects().into_iter().map(Write::Put).collect();
        self.crowd.push(service);
        Event { kind, writes, used: None }
    }

    fn delete(&mut self) -> Event {
        if self.crowd.is_empty() {
            return nothing();
        }
        let service = self.crowd.swap_remove(self.random.below(self.crowd.len()));
        self.free.push(service.slot);
        let mut writes = vec![Write::Delete("services", service.name.clone())];
        if service.sliced {
            writes.extend(
                service.families.iter().map(|family| Write::Delete("endpointslices", service.slice_name(*family))),
            );
        }
        // Controllers delete the slices before or after the Service.
        if self.random.percent(50) {
            writes.reverse();
        }
        Event { kind: "Service goes", writes, used: None }
    }

    fn change_service(&mut self) -> Event {
        let at = self.random.below(self.crowd.len());
        let random = &mut self.random;
        let Some(service) = self.crowd.get_mut(at) else { return nothing() };
        let mut writes = Vec::new();
        let kind = match random.below(9) {
            0 => {
                service.affinity_secs = service.affinity_secs.is_none().then_some(600);
                "session affinity is switched"
            }
            1 if service.claims.is_none() => {
                service.port = 80 + u16::try_from(random.below(10)).unwrap_or(0);
                "port changes"
            }
            2 => {
                service.target = if service.target == 8080 { 9090 } else { 8080 };
                if service.sliced {
                    writes = slices(service);
                }
                "target port changes"
            }
            3 => {
                service.external = !service.external;
                "external address comes, or goes"
            }
            4 if service.kind == Kind::LoadBalancer => {
                service.balanced = !service.balanced;
                "load balancer gets its address, or loses it"
            }
            5 if service.kind == Kind::LoadBalancer => {
                let all = [Ranges::None, Ranges::Clients, Ranges::Node, Ranges::Others];
                service.ranges = *random.pick(&all).unwrap_or(&Ranges::None);
                "source ranges change"
            }
            6 => {
                service.hidden = !service.hidden;
                "Service goes to another proxy, or comes back"
            }
            7 if service.kind == Kind::NodePort => {
                service.local = !service.local;
                "traffic policy changes"
            }
            _ => {
                service.kind = match service.kind {
                    Kind::ClusterIp => Kind::NodePort,
                    Kind::NodePort => Kind::LoadBalancer,
                    Kind::LoadBalancer => Kind::ClusterIp,
                };
                service.local = false;
                service.ranges = Ranges::None;
                "type changes"
            }
        };
        writes.push(Write::Put(service.object()));
        Event { kind, writes, used: None }
    }

    fn take_slices_away(&mut self) -> Event {
        let at = self.random.below(self.crowd.len());
        let Some(service) = self.crowd.get_mut(at) else { return nothing() };
        service.sliced = !service.sliced;
        if service.sliced {
            return Event { kind: "slices come back", writes: slices(service), used: None };
        }
        let gone = service.families.iter().map(|family| Write::Delete("endpointslices", service.slice_name(*family)));
        Event { kind: "slices go", writes: gone.collect(), used: None }
    }

    /// Adds or deletes an unusable object.
    fn bad_object(&mut self) -> Event {
        if self.bad.len() >= BAD {
            let (name, is_slice) = self.bad.swap_remove(self.random.below(self.bad.len()));
            let resource = if is_slice { "endpointslices" } else { "services" };
            return Event { kind: "unreadable object goes", writes: vec![Write::Delete(resource, name)], used: None };
        }
        self.made += 1;
        let name = format!("bad-{:05}", self.made);
        let mut bad = Service::new(name.clone(), 0);
        bad.endpoints.push(ready(Host::Nobody(1)));
        let mut object = bad.object();
        let which = self.random.below(6);
        match which {
            0 => {
                object["spec"]["clusterIP"] = "10.96.0.999".into();
                object["spec"]["clusterIPs"] = json!(["10.96.0.999"]);
            }
            1 => object["spec"]["ports"][0]["port"] = 70_000.into(),
            2 => object["spec"]["ports"][0]["protocol"] = "ICMP".into(),
            3 => object["spec"]["ports"] = json!({"port": 80}),
            4 => object["spec"]["clusterIPs"] = 17.into(),
            _ => {
                // For a used Service: its valid slices must still count.
                object = bad.slice(Family::V4);
                let owner = self.used.get(self.random.below(self.used.len())).map_or("", |service| &service.name);
                object["metadata"]["labels"]["kubernetes.io/service-name"] = owner.into();
                object["endpoints"][0]["addresses"] = json!(["10.244.1.x"]);
                self.bad.push((bad.slice_name(Family::V4), true));
                return Event { kind: "unreadable endpoint comes", writes: vec![Write::Put(object)], used: None };
            }
        }
        self.bad.push((name, false));
        Event { kind: "unreadable Service comes", writes: vec![Write::Put(object)], used: None }
    }
}

fn nothing() -> Event {
    Event { kind: "nothing", writes: Vec::new(), used: None }
}

fn add_endpoint(random: &mut Random, service: &mut Service) {
    let host = Host::Nobody(u16::try_from(random.between(1, NOBODIES)).unwrap_or(1));
    if !service.endpoints.iter().any(|endpoint| endpoint.host == host) {
        service.endpoints.push(ready(host));
    }
}

/// The slices of a Service as they are now.
pub(super) fn slices(service: &Service) -> Vec<Write> {
    service.families.iter().map(|family| Write::Put(service.slice(*family))).collect()
}

/// Writes to the server. The object's namespace is always the same.
pub(super) fn apply(server: &testkit::apiserver::ApiServer, write: &Write) {
    match write {
        Write::Put(object) => {
            server.put(object);
        }
        Write::Delete(resource, name) => server.delete(resource, NAMESPACE, name),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::world::State;
    use super::*;

    #[test]
    fn a_seed_repeats_the_sequence() {
        let run = |seed| {
            let mut script = Script::new(seed, 300);
            (0..500).map(|_| script.step()).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    /// Objects that a watcher assembles from the events equal those of the model.
    #[test]
    fn events_and_model_agree() {
        let mut script = Script::new(11, 200);
        let mut objects: BTreeMap<(String, String), Value> = BTreeMap::new();
        let key = |object: &Value| {
            let resource = if object["kind"] == "Service" { "services" } else { "endpointslices" };
            (resource.to_owned(), object["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        };
        for object in script.services().flat_map(Service::objects) {
            objects.insert(key(&object), object);
        }
        let mut kinds = BTreeSet::new();
        for _ in 0..5_000 {
            let event = script.step();
            kinds.insert(event.kind);
            for write in event.writes {
                match write {
                    Write::Put(object) => drop(objects.insert(key(&object), object)),
                    Write::Delete(resource, name) => drop(objects.remove(&(resource.to_owned(), name))),
                }
            }
        }
        objects.retain(|(_, name), _| !name.starts_with("bad-"));
        let model: BTreeMap<_, _> =
            script.services().flat_map(Service::objects).map(|object| (key(&object), object)).collect();
        assert_eq!(objects, model);
        assert!(kinds.len() > 20, "{kinds:?}");
        let slots: BTreeSet<u16> = script.services().map(|service| service.slot).collect();
        assert_eq!(slots.len(), script.services().count(), "no two Services share a slot");
    }

    #[test]
    fn services_in_use_always_have_a_steady_endpoint() {
        let mut script = Script::new(5, 100);
        for _ in 0..20_000 {
            let before = script.used.clone();
            if let Some(number) = script.step().used {
                let ready = |services: &[Service]| -> BTreeSet<Host> {
                    let endpoints = services[number].endpoints.iter();
                    endpoints.filter(|endpoint| endpoint.state == State::Ready).map(|endpoint| endpoint.host).collect()
                };
                let ready = ready(&script.used);
                assert!(ready.iter().any(|host| host.is_local() || !script.used[number].local));
                assert!(!Script::is_steady(number));
                assert!(
                    before[number].endpoints.iter().any(|endpoint| {
                        script.used[number].endpoints.iter().any(|other| other.host == endpoint.host)
                    })
                );
            }
        }
    }
}
