//! The cost of reading grows linearly with the input, not quadratically.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use proxier_core::config::Config;
use proxier_core::engine::Options;
use proxier_core::net::{FrontendKey, Protocol};
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::service::{Desired, Names, NodeFacts};
use proxier_core::sketch::Sketch;
use proxier_core::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey, ObjectKind, Store};
use proxier_demo::engine::Engine;
use proxier_demo::message::change::{Change, Snapshot};
use proxier_demo::sources::initial_list;
use proxier_demo::sources::manifests::Manifests;
use serde_json::json;
use testkit::cost::{compare, cost};

fn is_linear(what: &str, mut work: impl FnMut(usize)) {
    const SMALL: usize = 1000;
    work(SMALL);
    compare(what, SMALL, cost(3, || work(SMALL)), cost(3, || work(8 * SMALL)));
}

fn service(number: usize) -> ServiceObject {
    let mut object = ServiceObject::default();
    object.metadata.name = format!("s-{number}");
    "demo".clone_into(&mut object.metadata.namespace);
    object
}

#[test]
fn a_snapshot_takes_each_change_at_its_own_cost() {
    is_linear("changes", |count| {
        let mut snapshot = Snapshot::default();
        for number in 0..count {
            let metadata = service(number).metadata;
            let slice = EndpointSliceObject { metadata, ..EndpointSliceObject::default() };
            snapshot.apply(Change::UpsertService(Box::new(service(number))));
            snapshot.apply(Change::UpsertSlice(Box::new(slice)));
        }
        assert_eq!((snapshot.services.len(), snapshot.slices.len()), (count, count));
        let keys = snapshot.services.keys().cloned().collect();
        snapshot.apply(Change::Lost(ObjectKind::Service, keys));
        assert!(snapshot.services.is_empty());
    });
}

/// One change of a Service with 20,000 ports and 20 such slices held up all others for 7 s when it was quadratic.
#[test]
fn a_service_costs_what_its_ports_and_slices_are_long() {
    const FEW: usize = 1000;
    let facts = NodeFacts::new(&Config::default(), &Node::new("n1"), &HostAddresses::default());
    let ports = |count: usize, prefix: &str| -> Vec<_> {
        (1..=count).map(|number| json!({"name": format!("{prefix}-{number:05}"), "port": number})).collect()
    };
    let store = |count: usize| {
        let spec = json!({"clusterIP": "10.96.0.1", "ports": ports(count, "port")});
        let mut store = Store::new("n1");
        let metadata = json!({"namespace": "demo", "name": "web"});
        store.upsert_service(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
        for slice in 0..10 {
            let labels = json!({"kubernetes.io/service-name": "web"});
            let metadata = json!({"namespace": "demo", "name": format!("web-{slice}"), "labels": labels});
            let ports = ports(count, if slice == 0 { "port" } else { "else" });
            let endpoints = json!([{"addresses": [format!("10.244.0.{slice}")]}]);
            let object = json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
            store.upsert_slice(&serde_json::from_value(object).unwrap());
        }
        store
    };
    let [few, many] = [FEW, 8 * FEW].map(store);
    let work = |store: &Store| {
        let desired = Desired::build(store, &facts);
        assert!(desired.frontends().all(|frontend| frontend.cluster.len() == 1));
    };
    compare("ports of a Service", FEW, cost(3, || work(&few)), cost(1, || work(&many)));
}

/// An agent gives all Frontends of a name at once, with each change.
#[test]
fn frontends_of_agents_cost_what_their_list_is_long() {
    let spec = |number: u32| {
        let address = std::net::Ipv4Addr::from_bits((10 << 24) + 1 + number);
        FrontendSpec::new(FrontendKey::new(Protocol::Tcp, address.into(), 80), [])
    };
    is_linear("Frontends of a name", |count| {
        let mut store = Store::new("n1");
        let specs = (0..u32::try_from(4 * count).unwrap()).map(spec);
        assert_eq!(store.upsert_frontends(&ObjectKey::new("demo", "web"), specs).len(), 1);
    });
}

#[test]
fn files_are_read_at_the_cost_of_their_length() {
    let path = std::env::temp_dir().join(format!("proxier-demo-linear-{}.yaml", std::process::id()));
    is_linear("a file", |count| {
        let mut text = String::new();
        for number in 0..count {
            write!(text, "apiVersion: v1\nkind: Service\nmetadata: {{name: s-{number}, namespace: demo}}\n---\n")
                .unwrap();
        }
        fs::write(&path, text).unwrap();
        let (_, changes) = Manifests::open(vec![path.clone()], "n1").unwrap();
        assert_eq!(changes.len(), count);
    });
    fs::remove_file(path).unwrap();
}

/// Cost of `plan`: files, the initial list, the reconciler, the differences from an empty kernel as lines. Half of the objects are Services, each
/// with a slice. 20,000 objects took 21 s when it was quadratic. `PROXIER_PLAN_SERVICES` changes the number of Services.
#[test]
fn a_plan_costs_what_its_manifests_are_long() {
    let services = std::env::var("PROXIER_PLAN_SERVICES").map_or(10_000, |number| number.parse().unwrap());
    let few: usize = services / 8;
    let path = std::env::temp_dir().join(format!("proxier-demo-linear-plan-{}.yaml", std::process::id()));
    let work = |count: usize| {
        let mut text = String::new();
        for number in 0..count {
            let (high, low) = (number / 250, number % 250 + 1);
            write!(
                text,
                "apiVersion: v1\nkind: Service\nmetadata: {{name: s-{number}, namespace: demo}}\n\
                 spec: {{clusterIP: 10.96.{high}.{low}, ports: [{{name: p, port: 80}}]}}\n---\n\
                 apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {{name: s-{number}-1, namespace: demo, labels: {{kubernetes.io/service-name: s-{number}}}}}\n\
                 addressType: IPv4\nports: [{{name: p, port: 8080}}]\n\
                 endpoints: [{{addresses: [10.244.{high}.{low}]}}]\n---\n"
            )
            .unwrap();
        }
        fs::write(&path, text).unwrap();
        let (_, changes) = Manifests::open(vec![path.clone()], "n1").unwrap();
        let mut snapshot = Snapshot::default();
        for change in changes {
            snapshot.apply(change);
        }
        let mut engine = Engine::new("n1", Options::default(), Sketch::default());
        for change in initial_list::changes(snapshot) {
            engine.apply_change(change, Instant::now());
        }
        let (plan, report) = engine.preview();
        assert!(report.unread.is_empty());
        let names = Names::new(engine.proxier().store(), engine.proxier().desired());
        let lines: Vec<String> = plan.steps(&names).map(|step| step.to_string()).collect();
        assert_eq!(lines.iter().filter(|line| line.contains(":8080")).count(), count, "{:?}", lines.get(..5));
    };
    let (small, large) = (cost(2, || work(few)), cost(1, || work(8 * few)));
    println!("{few} Services: {small:?}, {}: {large:?}", 8 * few);
    compare("a plan", few, small, large);
    // 0.36 ms for each Service, not optimised.
    let bound = Duration::from_micros(1200) * u32::try_from(8 * few).unwrap();
    assert!(large < bound, "{} Services took {large:?}", 8 * few);
    fs::remove_file(path).unwrap();
}

/// Output of `explain` for a file, in a process with this much memory for data, in MiB, and 30 s on a processor.
fn explained_in(memory: u32, path: &Path, what: &[&str]) -> String {
    let script = format!("ulimit -d {} && ulimit -t 30 && exec \"$@\"", memory * 1024);
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_proxier-demo"), "explain"]).args(what);
    let output = command.args(["--hostname-override", "n1", "--manifests"]).arg(path).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// 200 ports at 51 addresses took 55 s in nftables mode, 185 s in IPVS mode, when each line was compared with each of
/// them; 1 s now.
#[test]
fn an_explanation_costs_what_its_ports_and_addresses_are_many() {
    let path = std::env::temp_dir().join(format!("proxier-demo-linear-explain-{}.json", std::process::id()));
    let ports: Vec<_> = (1..=200).map(|number| json!({"name": format!("p-{number}"), "port": number})).collect();
    let addresses: Vec<_> = (1..=50).map(|number| format!("192.0.2.{number}")).collect();
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "demo"},
        "spec": {"clusterIP": "10.96.0.1", "externalIPs": addresses, "ports": ports},
    });
    fs::write(&path, service.to_string()).unwrap();
    for mode in ["ipvs", "nftables"] {
        let explained = explained_in(256, &path, &["demo/web", "--proxy-mode", mode]);
        assert!(explained.matches("policy Cluster").count() == 200 * 51, "{mode}");
    }
    fs::remove_file(path).unwrap();
}

/// Objects are held one at a time: 100,000 Services of 81 MB took 1.4 GB, and 100 MB of document marks 1 GB.
#[test]
fn memory_is_that_of_the_objects_not_of_the_text() {
    const SERVICES: usize = 20_000;
    let folder = std::env::temp_dir().join(format!("proxier-demo-linear-memory-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (marks, list) = (folder.join("marks.yaml"), folder.join("list.json"));
    fs::write(&marks, "---\n".repeat(2_000_000)).unwrap();
    let explained = explained_in(16, &marks, &["demo/s-1"]);
    assert!(explained.contains("there is no Service demo/s-1"), "{explained}");
    let mut file = io::BufWriter::new(fs::File::create(&list).unwrap());
    write!(file, "{{\"apiVersion\":\"v1\",\"items\":[").unwrap();
    for number in 0..SERVICES {
        let (high, low) = (number / 250, number % 250 + 1);
        let comma = if number == 0 { "" } else { "," };
        let note = "x".repeat(400);
        write!(
            file,
            "{comma}{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"s-{number}\",\"namespace\":\"demo\",\
             \"annotations\":{{\"kubectl.kubernetes.io/last-applied-configuration\":\"{note}\"}},\
             \"labels\":{{\"app\":\"s-{number}\"}}}},\"spec\":{{\"type\":\"ClusterIP\",\"clusterIP\":\"10.96.{high}.{low}\",\
             \"clusterIPs\":[\"10.96.{high}.{low}\"],\"ports\":[{{\"name\":\"p\",\"port\":80,\"protocol\":\"TCP\"}}]}}}},\
             {{\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSlice\",\"metadata\":{{\"name\":\"s-{number}-1\",\
             \"namespace\":\"demo\",\"labels\":{{\"kubernetes.io/service-name\":\"s-{number}\"}}}},\"addressType\":\"IPv4\",\
             \"ports\":[{{\"name\":\"p\",\"port\":8080,\"protocol\":\"TCP\"}}],\"endpoints\":[{{\"addresses\":\
             [\"10.244.{high}.{low}\"],\"conditions\":{{\"ready\":true}},\"nodeName\":\"n1\",\"zone\":\"a\"}}]}}"
        )
        .unwrap();
    }
    write!(file, "],\"kind\":\"List\"}}").unwrap();
    drop(file);
    let explained = explained_in(64, &list, &["demo/s-777"]);
    assert!(explained.starts_with("Service demo/s-777;"), "{explained}");
    assert!(explained.contains("10.244.3.28:8080"), "{explained}");
    fs::remove_dir_all(&folder).unwrap();
}
