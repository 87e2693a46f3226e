//! Events, as the server gets them.

use proxier_core::snapshot::ObjectKey;
use proxier_demo::status::events::{Reason, Recorder, Regarding};

use super::*;

fn recorder(server: &ApiServer) -> Recorder {
    let connection = Connection { master: Some(server.url()), ..Connection::default() };
    Recorder::start(&tokio::runtime::Handle::current(), connection, "n1")
}

/// Waits until this many Events have arrived.
async fn until_there(server: &ApiServer, number: usize) {
    for _ in 0..1000 {
        if server.events().len() == number {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn each_event_arrives_once() {
    let server = ApiServer::start();
    let recorder = recorder(&server);
    server.put(&json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "demo", "name": "1web", "uid": "7ab3-9c"},
    }));
    let web = || Regarding::Service(ObjectKey::new("demo", "1web"));
    recorder.record(Regarding::Node, Reason::STARTING, "");
    for _ in 0..3 {
        recorder.record(web(), Reason::FAILED_SERVICE_HEALTH, "port 30000 is in use");
    }
    recorder.record(web(), Reason::INVALID_FIELD, "spec.ports[0].port 70000: not a port");
    until_there(&server, 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let events = server.events();
    assert_eq!(events.len(), 3, "{events:?}");
    assert_eq!(events[0]["regarding"], json!({"kind": "Node", "apiVersion": "v1", "name": "n1", "uid": "n1"}));
    assert_eq!((&events[0]["type"], &events[0]["action"]), (&json!("Normal"), &json!("StartKubeProxy")));
    assert_eq!((&events[1]["type"], &events[1]["action"]), (&json!("Warning"), &json!("Listen")));
    assert_eq!(events[1]["metadata"]["namespace"], "demo");
    // `kubectl describe service` searches for it.
    assert_eq!(events[1]["regarding"]["uid"], "7ab3-9c");
    assert_eq!(events[2]["reason"], "InvalidField");
    let posted = server.requests().into_iter().find(|request| request.path.contains("demo")).unwrap();
    assert_eq!(posted.path, "/apis/events.k8s.io/v1/namespaces/demo/events");
}

#[tokio::test]
async fn a_flood_is_cut_off() {
    let server = ApiServer::start();
    let recorder = recorder(&server);
    for number in 0..100 {
        recorder.record(Regarding::Node, Reason::FAILED_TO_PROGRAM, number.to_string());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.events().len(), 60);
}
