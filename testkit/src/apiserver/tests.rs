//! The simulated server answers like a real one.

use std::io::{Read, Write};

use super::*;

const SELECTOR: &str =
    "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name%2C%21service.kubernetes.io%2Fheadless";

/// Status and body of a GET.
fn get(server: &ApiServer, target: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

/// The object without fields that differ from server to server.
fn plain(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    object
}

fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().unwrap().iter().cloned().map(plain).collect()
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn pages_are_those_of_a_real_server() {
    let server = ApiServer::start();
    server.put_list(recorded::SERVICES_PAGE_2);
    server.put_list(recorded::SERVICES_PAGE_1);
    let (status, first) = get(&server, &format!("/api/v1/services?limit=3&{SELECTOR}"));
    let expected = parse(recorded::SERVICES_PAGE_1);
    assert_eq!(status, 200);
    assert_eq!(items(&first), items(&expected));
    for field in ["kind", "apiVersion"] {
        assert_eq!(first[field], expected[field]);
    }
    let keys = |list: &Value| list["metadata"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&first), keys(&expected));

    let token = first["metadata"]["continue"].as_str().unwrap();
    server.delete("services", "default", "svc-00003");
    let (_, second) = get(&server, &format!("/api/v1/services?limit=100&continue={token}&{SELECTOR}"));
    assert_eq!(items(&second), items(&parse(recorded::SERVICES_PAGE_2)), "a list is of one moment");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
}

#[test]
fn failures_are_those_of_a_real_server() {
    let server = ApiServer::start();
    let expected = |text: &str| {
        let (body, status) = text.trim_end().rsplit_once('\n').unwrap();
        (status.trim().parse().unwrap(), parse(body))
    };
    assert_eq!(get(&server, "/api/v1/nothing"), expected(recorded::NOT_FOUND));
    server.demand_token("right");
    assert_eq!(get(&server, "/api/v1/services"), expected(recorded::UNAUTHORIZED));
}

/// Repeats the recorded changes of Services: the watch sends the recorded events.
#[test]
fn watches_are_those_of_a_real_server() {
    let recorded: Vec<Value> = recorded::WATCH_SERVICES.lines().map(parse).collect();
    let server = ApiServer::start();
    server.put_list(recorded::SERVICES);
    let version = server.version();

    let mut web = recorded[0]["object"].clone();
    server.put(&web);
    web["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "other".into();
    server.put(&web);
    server.put(&recorded[2]["object"]);
    server.delete("services", "shop", "dns");
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(
        stream,
        "GET /api/v1/services?watch=1&resourceVersion={version}&allowWatchBookmarks=true&{SELECTOR} HTTP/1.1\r\n\r\n"
    )
    .unwrap();
    while server.watches("services") == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    server.bookmark();
    server.end_watches();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let events: Vec<Value> = text.lines().filter(|line| line.starts_with('{')).map(parse).collect();

    let summary = |events: &[Value]| -> Vec<(Value, Value)> {
        events.iter().map(|event| (event["type"].clone(), plain(event["object"].clone()))).collect()
    };
    let mut expected = summary(&recorded);
    // The recorded DELETED has other managed fields than the Service before it.
    for (event, expected) in summary(&events).iter_mut().zip(&mut expected) {
        for object in [&mut event.1, &mut expected.1] {
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
        }
        assert_eq!(event, expected);
    }
    assert_eq!(events.len(), expected.len());
}

#[test]
fn compacted_changes_are_gone() {
    let server = ApiServer::start();
    server.put_list(recorded::SERVICES);
    let (_, first) = get(&server, "/api/v1/services?limit=1");
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    server.put_list(recorded::NODE);
    server.compact();
    assert_eq!(get(&server, &format!("/api/v1/services?limit=1&continue={token}")).0, 410);
    let events = watch(&server, &format!("&resourceVersion={version}"), "ERROR");
    assert_eq!((&events[0]["type"], &events[0]["object"]["code"]), (&json!("ERROR"), &json!(410)));
}

#[test]
fn a_stopped_server_does_not_answer_until_it_is_back() {
    let server = ApiServer::start();
    server.put_list(recorded::SERVICES);
    let mut watch = TcpStream::connect(server.address).unwrap();
    write!(watch, "GET /api/v1/services?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut first = [0; 16];
    watch.read_exact(&mut first).unwrap();
    server.outage(true);
    let mut rest = Vec::new();
    // The watch may end properly or not.
    drop(watch.read_to_end(&mut rest));
    let mut stream = TcpStream::connect(server.address).unwrap();
    // The server may have closed it already.
    drop(write!(stream, "GET /api/v1/services HTTP/1.1\r\nHost: x\r\n\r\n"));
    let mut text = Vec::new();
    drop(stream.read_to_end(&mut text));
    assert_eq!(text, <[u8; 0]>::default());
    server.fail_next("services", Verb::List, Fault::Status(500, None));
    server.clear_faults();
    server.outage(false);
    assert_eq!(get(&server, "/api/v1/services").0, 200);
}

/// The text of a watch. After the first line with `until` the server is asked to end it.
fn watch(server: &ApiServer, query: &str, until: &str) -> Vec<Value> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "GET /api/v1/services?watch=1&allowWatchBookmarks=true{query} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut piece).unwrap();
        text.extend_from_slice(&piece[..length]);
        if String::from_utf8_lossy(&text).contains(until) {
            server.end_watches();
        }
        if length == 0 {
            break;
        }
    }
    let text = String::from_utf8(text).unwrap();
    text.lines().filter(|line| line.starts_with('{')).map(parse).collect()
}

/// Form and message are those of kube-apiserver (`storage/errors.go`).
#[test]
fn a_list_of_a_later_version_is_refused() {
    let server = ApiServer::start();
    let later = server.version() + 7;
    let (status, body) = get(&server, &format!("/api/v1/services?resourceVersion={later}"));
    assert_eq!((status, body), (504, too_large(later, server.version())));
}

#[test]
fn a_watch_without_a_version_begins_with_all_objects() {
    let server = ApiServer::start();
    server.put_list(recorded::SERVICES);
    let (_, list) = get(&server, "/api/v1/services");
    let list = list["items"].as_array().unwrap().clone();
    let last = list.last().unwrap()["metadata"]["name"].as_str().unwrap();
    let events = watch(&server, "", &format!("\"name\":\"{last}\""));
    assert_eq!(events.len(), list.len());
    for (event, item) in events.iter().zip(&list) {
        let mut object = item.clone();
        (object["kind"], object["apiVersion"]) = ("Service".into(), "v1".into());
        assert_eq!(*event, json!({"type": "ADDED", "object": object}));
    }
}
