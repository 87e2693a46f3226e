//! The kernel's thread on a simulated kernel.

use ipvs::Operation;
use k8s_openapi::jiff::Timestamp;
use nftables::{ChainType, Hook, Policy, Priority};
use proxier_core::config::{NodePortAddresses, RulesBy};
use proxier_core::engine::Options;
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::ports::PortErrorKind;
use serde_json::{Value, json};
use testkit::apiserver::ApiServer;

use super::*;
use crate::sources::cluster::Connection;

struct Play {
    kernel: FakeKernel,
    /// Gets the Events, through the runtime.
    server: ApiServer,
    _runtime: Runtime,
    health: Arc<Health>,
    messages: mpsc::Sender<Message>,
    passed: mpsc::UnboundedReceiver<PassSummary>,
    sync_period: Duration,
}

impl Play {
    fn on(kernel: FakeKernel, sync_period: Duration, change: impl FnOnce(&mut Options)) -> Self {
        let (server, runtime) = (ApiServer::start(), Runtime::new().unwrap());
        let connection = Connection { master: Some(server.url()), ..Connection::default() };
        let recorder = Recorder::start(runtime.handle(), connection, "n1");
        let mut options = Options::default();
        options.limits.max_interval = sync_period;
        change(&mut options);
        let health = Health::new(sync_period, options.config.families);
        let engine = Engine::new("n1", options, kernel.clone());
        let (messages, inbox) = mpsc::channel(1024);
        let started = SystemTime::now() - Duration::from_secs(100);
        let passed = Worker::start(engine, started, inbox, (health.clone(), recorder), None).unwrap();
        Play { kernel, server, _runtime: runtime, health, messages, passed, sync_period }
    }

    fn send(&self, change: Change) {
        self.send_of(Instant::now(), change);
    }

    fn send_of(&self, at: Instant, change: Change) {
        self.messages.blocking_send(Message::Event(Event { at, change })).unwrap();
    }

    fn service(&self, name: &str, address: &str) {
        self.put(json!({
            "metadata": {"namespace": "demo", "name": name},
            "spec": {"clusterIP": address, "ports": [{"name": "p", "port": 80, "protocol": "TCP"}]},
        }));
    }

    fn put(&self, service: Value) {
        self.send(Change::UpsertService(Box::new(serde_json::from_value(service).unwrap())));
    }

    fn slice(&self, service: &str, endpoint: &str, annotations: &Value) {
        let object = json!({
            "addressType": "IPv4",
            "metadata": {
                "namespace": "demo", "name": format!("{service}-1"), "annotations": annotations,
                "labels": {"kubernetes.io/service-name": service},
            },
            "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": [endpoint]}],
        });
        self.send(Change::UpsertSlice(Box::new(serde_json::from_value(object).unwrap())));
    }

    /// The next report of the thread.
    fn told(&mut self) -> PassSummary {
        self.passed.blocking_recv().unwrap()
    }

    /// Waits for this number of Events.
    #[track_caller]
    fn events(&self, count: usize) -> Vec<Value> {
        self.until(&format!("{count} Events"), |play| play.server.events().len() >= count);
        self.server.events()
    }

    fn failed_passes(&self) -> u64 {
        self.metric(|metrics| metrics.totals.failed_passes)
    }

    fn is_healthy(&self) -> bool {
        self.health.is_healthy(Instant::now())
    }

    fn full_passes(&self) -> u64 {
        self.metric(|metrics| metrics.took.sync_full.count())
    }

    fn metric<T>(&self, of: impl Fn(&Metrics) -> T) -> T {
        self.health.metrics(|metrics| of(metrics))
    }

    #[track_caller]
    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited for: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Reasons and notes of Events, sorted.
fn notes(events: &[Value]) -> Vec<String> {
    let note = |event: &Value| [&event["reason"], &event["note"]].map(|of| of.as_str().unwrap()).join(": ");
    let mut notes: Vec<String> = events.iter().map(note).collect();
    notes.sort();
    notes
}

/// Full passes always fail, while passes for changes succeed: never ready, and unhealthy after two sync periods, at every
/// check.
#[test]
fn passes_for_changes_do_not_hide_that_full_ones_fail() {
    let kernel = FakeKernel::new();
    // Only full passes read timeouts.
    kernel.fail(Fault::new(Call::IpvsSetTimeouts, PortErrorKind::Busy).every());
    let play = Play::on(kernel, Duration::from_millis(300), |options| options.ipvs.timeouts.tcp_secs = Some(1234));
    play.service("web", "10.96.0.10");
    std::thread::sleep(Duration::from_millis(100));
    assert!(!play.health.is_ready(), "lists are not complete");
    play.send(Change::Synced);
    play.until("it is found out", |play| !play.is_healthy());
    let partial = |play: &Play| play.metric(|metrics| metrics.took.sync_partial.count());
    let (full_before, partial_before) = (play.full_passes(), partial(&play));
    let (mut sent, mut number) = (Instant::now(), 0);
    play.until("many passes of both kinds", |play| {
        assert!(!play.is_healthy(), "after {} passes for changes", partial(play) - partial_before);
        if sent.elapsed() > Duration::from_millis(20) {
            (sent, number) = (Instant::now(), number + 1);
            play.slice("web", &format!("10.244.{}.{}", number / 250 % 250, number % 250 + 1), &json!({}));
        }
        partial(play) > partial_before + 20 && play.full_passes() > full_before + 5
    });
    assert!(!play.health.is_ready());
    play.kernel.clear_faults();
    play.until("it is well again", |play| play.is_healthy() && play.health.is_ready());
    assert!(play.failed_passes() > 5);
}

/// A kubelet restarted the process during the pass for what had arrived while the first one took minutes.
#[test]
fn waiting_for_a_long_pass_is_healthy() {
    let play = Play::on(FakeKernel::new(), Duration::from_secs(1), |_options| {});
    play.send(Change::Synced);
    play.until("the first pass", |play| play.health.is_ready());
    let arrived = Instant::now();
    std::thread::sleep(Duration::from_millis(2_100));
    let passes = play.full_passes();
    play.until("a pass that it waits for", |play| play.full_passes() > passes);
    play.kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).every());
    let service = json!({
        "metadata": {"namespace": "demo", "name": "web"}, "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]},
    });
    play.send_of(arrived, Change::UpsertService(Box::new(serde_json::from_value(service).unwrap())));
    play.until("it fails", |play| play.failed_passes() > 0);
    assert!(play.is_healthy());
    play.until("it has failed for long", |play| !play.is_healthy());
}

/// Annotations and configuration that are not applied to a Service become Events of the Service.
#[test]
fn refused_policies_are_reported_with_the_reason() {
    let play = Play::on(FakeKernel::new(), Duration::from_secs(30), |options| {
        (options.config.ipvs.rules, options.config.ipvs.mark_split) = (RulesBy::Nftables, true);
    });
    play.put(json!({
        "metadata": {"namespace": "demo", "name": "web", "annotations": {"proxier/scheduler": "fast"}},
        "spec": {"clusterIP": "10.96.0.10", "externalIPs": ["203.0.113.5"], "externalTrafficPolicy": "Local",
            "sessionAffinity": "ClientIP", "ports": [{"name": "p", "port": 80}]},
    }));
    play.send(Change::Synced);
    let events = play.events(2);
    assert!(events.iter().all(|event| event["regarding"]["name"] == "web" && event["type"] == "Warning"), "{events:?}");
    let [invalid, not_as_configured] = &notes(&events)[..] else { panic!("{events:?}") };
    assert_eq!(
        invalid,
        "InvalidField: Service demo/web: metadata.annotations[proxier/scheduler] fast: not a scheduler of IPVS; the configured one counts"
    );
    let expected = "NotAsConfigured: Service demo/web: ipvs.markSplit not for TCP 203.0.113.5:80: clients stay with their endpoints, ";
    assert!(not_as_configured.starts_with(expected), "{events:?}");
    assert!(play.is_healthy() && play.health.is_ready());
    play.until("it is counted", |play| {
        play.metric(|metrics| (metrics.unmarked, metrics.totals.failed_passes)) == (1, 0)
    });
    assert!(play.metric(Metrics::render).contains("unmarked_services 1\n"));
}

/// Objects that look like a kube-proxy's and stay become an Event of the node.
#[test]
fn what_cannot_be_removed_is_reported() {
    let kernel = FakeKernel::new();
    let theirs = nftables::TableKey::new(nftables::Family::Ip, "kube-proxy").unwrap();
    let mut transaction = nftables::Transaction::new();
    transaction.add_table(nftables::Table::new(theirs));
    kernel.nftables().commit(&transaction).unwrap();
    let play = Play::on(kernel, Duration::from_secs(30), |_| {});
    play.service("web", "10.96.0.10");
    play.send(Change::Synced);
    let events = play.events(1);
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&event["reason"], &event["type"]), (&json!("Leftovers"), &json!("Warning")));
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Node"), &json!("n1")));
    assert!(event["note"].as_str().unwrap().starts_with("table ip kube-proxy stays: it lacks "), "{event}");
    play.until("it is counted", |play| play.metric(|metrics| metrics.leftovers) == 1);
}

/// A firewall that starts later, such as Docker's, is found too.
#[test]
fn a_chain_that_drops_later_is_counted() {
    let kernel = FakeKernel::new();
    kernel.set_interface("eth0", &["192.0.2.1".parse().unwrap()]);
    let play = Play::on(kernel.clone(), Duration::from_secs(600), |_| {});
    play.service("web", "10.96.0.10");
    play.send(Change::Synced);
    play.until("the first pass", |play| play.full_passes() > 0);
    // By then the objects of other modes have been removed.
    std::thread::sleep(OVERLAP * 2);
    assert_eq!(play.metric(|metrics| metrics.leftovers), 0);
    let firewall = nftables::TableKey::new(nftables::Family::Inet, "firewall").unwrap();
    let hook = nftables::BaseChain::new(ChainType::Filter, Hook::Forward, Priority::FILTER);
    let chain = nftables::Chain::base(firewall.chain("forward").unwrap(), hook).policy(Policy::Drop);
    let mut transaction = nftables::Transaction::new();
    transaction.add_table(nftables::Table::new(firewall.clone())).add_chain(chain);
    kernel.nftables().commit(&transaction).unwrap();
    let is_counted = |count| {
        play.messages.blocking_send(Message::Resync).unwrap();
        play.until(&format!("{count} are counted"), |play| play.metric(|metrics| metrics.leftovers) == count);
    };
    is_counted(1);
    let mut transaction = nftables::Transaction::new();
    kernel.nftables().commit(transaction.delete_table(&firewall)).unwrap();
    is_counted(0);
}

/// An endpoint that the kernel refuses is a number and an Event of its Service; the node stays healthy.
#[test]
fn an_object_that_the_kernel_refuses_is_reported() {
    let kernel = FakeKernel::new();
    let is_odd = |operation: &Operation| matches!(operation, Operation::AddRealServer(_, server) if server.key.to_string() == "10.244.0.255:8080");
    kernel.refuse(is_odd, PortErrorKind::Invalid);
    let play = Play::on(kernel, Duration::from_millis(200), |_| {});
    play.service("odd", "10.96.0.10");
    play.slice("odd", "10.244.0.255", &json!({}));
    play.send(Change::Synced);
    let event = &play.events(1)[0];
    assert_eq!((&event["reason"], &event["regarding"]["name"]), (&json!("FailedToProgram"), &json!("odd")));
    assert!(event["note"].as_str().unwrap().contains("10.244.0.255:8080"), "{event}");
    play.until("full passes", |play| play.full_passes() > 3);
    assert_eq!((play.is_healthy(), play.metric(|metrics| metrics.refused_objects)), (true, 1));
    play.kernel.clear_faults();
    play.until("it is counted no more", |play| play.metric(|metrics| metrics.refused_objects) == 0);
}

/// A Service that is open to everyone, although the other family is restricted, is an Event of the Service and of the
/// node.
#[test]
fn ports_open_in_the_other_family_are_reported() {
    let kernel = FakeKernel::new();
    kernel.set_interface("eth0", &["192.0.2.10", "2001:db8::10"].map(|text| text.parse::<std::net::IpAddr>().unwrap()));
    let mut play = Play::on(kernel, Duration::from_millis(100), |options| {
        options.config.node_port_addresses = NodePortAddresses::Within(vec!["2001:db8::/64".parse().unwrap()]);
    });
    for (name, ip, ranges) in [
        ("open", "203.0.113.5", json!(["2001:db8:1::/48"])),
        ("closed", "203.0.113.6", json!(["2001:db8:1::/48", "198.51.100.0/24"])),
        ("all", "203.0.113.7", json!([])),
        ("elsewhere", "", json!(["2001:db8:1::/48"])),
    ] {
        let ingress = if ip.is_empty() { json!([]) } else { json!([{"ip": ip}]) };
        play.put(json!({
            "metadata": {"namespace": "demo", "name": name},
            "spec": {"type": "LoadBalancer", "clusterIP": format!("10.96.0.{}", name.len()), "loadBalancerSourceRanges": ranges,
                "ports": [{"name": "p", "port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}},
        }));
    }
    play.send(Change::Synced);
    play.until("several full passes", |play| play.full_passes() > 3);
    let events = play.events(2);
    let expected = [
        "InvalidField: Service demo/open: spec.loadBalancerSourceRanges 2001:db8:1::/48: no network of IPv4, so everybody may use the \
         IPv4 addresses; add those who may, or 0.0.0.0/0",
        "NotAsConfigured: nodePortAddresses has no network of IPv4: node ports and health-check ports are open on all IPv4 addresses \
         of this node; add one, or 127.0.0.1/32 for none",
    ];
    assert_eq!(notes(&events), expected);
    let listening = play.told().listening;
    assert_eq!(listening.v4, proxier_core::service::OpenOn::These(vec!["192.0.2.10".parse().unwrap()]));
}

/// A node that waits for lists is healthy, even after some objects have arrived, and however long it takes.
#[test]
fn waiting_for_lists_is_healthy() {
    let play = Play::on(FakeKernel::new(), Duration::from_millis(20), |_| {});
    play.service("web", "10.96.0.10");
    play.until("it has come", |play| play.metric(|metrics| metrics.service_changes_pending) == 1);
    std::thread::sleep(play.sync_period * 10);
    assert!(play.is_healthy());
    // The wait does not count once they are complete either: the sync period is now long enough for the first pass.
    let play = Play::on(FakeKernel::new(), Duration::from_secs(2), |_| {});
    play.service("web", "10.96.0.10");
    std::thread::sleep(play.sync_period * 3);
    play.send(Change::Synced);
    play.until("the first pass", |play| {
        assert!(play.is_healthy());
        play.full_passes() > 0
    });
}

/// An object that is written again unchanged asks for no pass, so it is not waiting for one.
#[test]
fn unchanged_objects_are_not_pending() {
    let play = Play::on(FakeKernel::new(), Duration::from_secs(600), |_| {});
    let send = || {
        play.service("web", "10.96.0.10");
        play.slice("web", "10.244.0.1", &json!({}));
    };
    send();
    play.send(Change::Synced);
    play.until("the first pass", |play| play.full_passes() > 0);
    let queued = |play: &Play| play.metric(|metrics| metrics.sync_last_queued_timestamp);
    let before = queued(&play);
    send();
    let (answer, answered) = tokio::sync::oneshot::channel();
    play.messages.blocking_send(Message::View(answer)).unwrap();
    answered.blocking_recv().unwrap();
    let pending = |metrics: &Metrics| (metrics.service_changes_pending, metrics.endpoint_changes_pending);
    assert_eq!((play.metric(pending), queued(&play)), ((0, 0), before));
}

#[test]
fn gauges_keep_the_last_reading() {
    let kernel = FakeKernel::new();
    // A setting that cannot be written here.
    kernel.set_sysctl("net/netfilter/nf_conntrack_udp_timeout", None);
    let play = Play::on(kernel.clone(), Duration::from_millis(50), |options| options.host.udp_secs = Some(77));
    play.service("web", "10.96.0.10");
    play.service("dns", "10.96.0.11");
    play.slice("web", "10.244.0.1", &json!({}));
    play.send(Change::Synced);
    let gauges = |metrics: &Metrics| {
        [metrics.virtual_servers, metrics.real_servers, metrics.foreign_virtual_servers, metrics.unmet]
    };
    play.until("all is there", |play| play.metric(gauges) == [2, 1, 0, 1]);
    // Another program's virtual server, with two real servers.
    let foreign = "-A -t 198.51.100.9:443 -s rr\n-a -t 198.51.100.9:443 -r 10.0.0.1:443 -m -w 1\n\
                   -a -t 198.51.100.9:443 -r 10.0.0.2:443 -m -w 1\n";
    kernel.ipvs().load(foreign).unwrap();
    play.until("another's is seen", |play| play.metric(gauges) == [2, 1, 1, 1]);
    kernel.fail(Fault::new(Call::IpvsSnapshot, PortErrorKind::Busy).every());
    play.until("passes that cannot read", |play| {
        assert_eq!(play.metric(gauges), [2, 1, 1, 1]);
        play.failed_passes() > 3
    });
    kernel.clear_faults();
}

/// The times come from the slices and are observed once each, when the kernel has the change.
#[test]
fn the_time_from_the_cause_is_measured() {
    let play = Play::on(FakeKernel::new(), Duration::from_millis(100), |_| {});
    let caused = |ago: u64| {
        let time = Timestamp::try_from(SystemTime::now() - Duration::from_secs(ago)).unwrap();
        json!({ "endpoints.kubernetes.io/last-change-trigger-time": time.to_string() })
    };
    let count = |play: &Play| play.metric(|metrics| metrics.took.network_programming.v4.count());
    play.service("web", "10.96.0.10");
    // A cause from before the start, which was a hundred seconds ago here.
    play.slice("web", "10.244.0.1", &caused(200));
    play.send(Change::Synced);
    play.until("the first pass", |play| play.full_passes() > 0);
    assert_eq!(count(&play), 0);
    let kernel = &play.kernel;
    // Changes of a failed pass are measured once the kernel has them, with the whole time.
    kernel.fail(Fault::new(Call::IpvsSnapshot, PortErrorKind::Busy).every());
    let failures = play.failed_passes();
    play.until("passes that fail", |play| play.failed_passes() > failures + 1);
    play.slice("web", "10.244.0.2", &caused(50));
    let failures = play.failed_passes();
    play.until("passes that fail with it", |play| play.failed_passes() > failures + 1);
    assert_eq!(count(&play), 0);
    kernel.clear_faults();
    play.until("it is programmed", |play| count(play) == 1);
    // The same once more, and a Service: the endpoints did not change.
    play.slice("web", "10.244.0.2", &caused(40));
    play.service("other", "10.96.0.12");
    let full = play.full_passes();
    play.until("full passes", |play| play.full_passes() > full + 1);
    assert_eq!(count(&play), 1);
    let page = play.metric(Metrics::render);
    let sum = page
        .lines()
        .find_map(|line| line.strip_prefix("kubeproxy_network_programming_duration_seconds_sum{ip_family=\"IPv4\"} "));
    let sum: f64 = sum.unwrap().parse().unwrap();
    assert!((50.0..110.0).contains(&sum), "{sum}");
}

/// The health check servers of Services follow the host's addresses and the Services at once.
#[test]
fn health_checks_follow_the_host_and_the_services() {
    let kernel = FakeKernel::new();
    kernel.set_interface("eth0", &[]);
    let mut play = Play::on(kernel.clone(), Duration::from_secs(3600), |_| {});
    play.service("web", "10.96.0.10");
    play.send(Change::Synced);
    assert!(play.told().listening.v4.is_nowhere());
    kernel.set_interface("eth0", &["192.0.2.1".parse().unwrap()]);
    play.messages.blocking_send(Message::HostChanged(Vec::new())).unwrap();
    assert!(!play.told().listening.v4.is_nowhere());
    play.put(json!({
        "metadata": {"namespace": "demo", "name": "balanced"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.11", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000, "ports": [{"name": "p", "port": 80}]},
    }));
    let checks = play.told().health_checks;
    assert_eq!(checks.values().map(|check| check.port).collect::<Vec<_>>(), [32_000]);
}

/// An unreadable object is not deleted: neither what is served for it, nor the Node.
#[test]
fn unreadable_objects_are_reported_and_remove_nothing() {
    let unreadable = |kind: ObjectKind, key: ObjectKey, service: Option<ObjectKey>| {
        let problem = Problem::new("API server", "damaged").about(format!("{kind} {key}")).at("spec");
        Change::Unreadable(Box::new(Unreadable { object: Some((kind, key)), service, problem }))
    };
    let kernel = FakeKernel::new();
    let first = Play::on(kernel.clone(), Duration::from_secs(3600), |_| {});
    first.service("web", "10.96.0.10");
    first.service("other", "10.96.0.11");
    for service in ["web", "other"] {
        first.slice(service, "10.244.0.1", &json!({}));
    }
    first.send(Change::Synced);
    first.until("both are served", |play| play.kernel.state().ipvs.matches("-a ").count() == 2);
    let before = kernel.state().ipvs;
    drop(first);

    let play = Play::on(kernel, Duration::from_millis(200), |_| {});
    play.health.set_node_eligible(false);
    let (web, other) = (ObjectKey::new("demo", "web"), ObjectKey::new("demo", "other"));
    play.send(unreadable(ObjectKind::Node, ObjectKey::new("", "n2"), None));
    play.send(unreadable(ObjectKind::Service, web.clone(), None));
    play.send(unreadable(ObjectKind::EndpointSlice, ObjectKey::new("demo", "other-1"), Some(other)));
    play.service("other", "10.96.0.11");
    play.send(Change::Synced);
    play.until("full passes", |play| play.full_passes() > 2);
    assert_eq!(play.kernel.state().ipvs, before);
    let eligible = |play: &Play| play.health.summary(Instant::now())["nodeEligible"].clone();
    assert_eq!(eligible(&play), json!(false), "another Node");
    play.send(unreadable(ObjectKind::Node, ObjectKey::new("", "n1"), None));
    play.until("the Node is there", |play| eligible(play) == json!(true));
    play.until("they are counted", |play| play.metric(|metrics| metrics.unreadable_now) == 4);
    assert_eq!(play.metric(|metrics| (metrics.unreadable, metrics.held_back)), (4, 2));
    let events = play.events(4);
    let told = |name: &str| events.iter().filter(|of| of["regarding"]["name"] == name).count();
    assert!(events.iter().all(|event| event["reason"] == "Unreadable"), "{events:?}");
    assert_eq!((told("web"), told("other"), told("n1")), (1, 1, 2));

    std::thread::sleep(Duration::from_secs(1));
    let (answer, view) = tokio::sync::oneshot::channel();
    play.messages.blocking_send(Message::View(answer)).unwrap();
    let view = view.blocking_recv().unwrap();
    let list = |name: &str| view.lists[name]["list"].as_array().unwrap();
    let of_web = list("unreadable").iter().find(|of| of["text"] == "Service demo/web: spec: damaged");
    // Full passes have run since.
    assert!(of_web.is_some_and(|of| of["seconds"].as_u64() >= Some(1)), "{}", view.lists);
    assert!(list("heldBack").iter().all(|held| held["secondsLeft"].is_null()), "{}", view.lists);
    assert_eq!(view.lists["heldBack"]["count"], 2);

    // Its deletion is believed, and then it can be read again.
    play.send(Change::DeleteService(web));
    play.slice("other", "10.244.0.1", &json!({}));
    play.until("it is gone", |play| !play.kernel.state().ipvs.contains("10.96.0.10"));
    play.until("nothing is held back", |play| {
        play.metric(|metrics| (metrics.unreadable_now, metrics.held_back)) == (2, 0)
    });
    assert!(play.kernel.state().ipvs.contains("-a -t 10.96.0.11:80 -r 10.244.0.1:8080"));
}
