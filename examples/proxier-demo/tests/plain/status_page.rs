//! The status page as its readers see it: by HTTP, and in a browser.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::apiserver::ApiServer;
use testkit::{Need, kernel_test};

use crate::program::{self, Folder, Running, text, tool};

/// A Service for each of these numbers: its name, the last number of its cluster IP, and its endpoints on this node.
fn service(name: &str, number: u8, endpoints: &[&str]) -> String {
    let list: Vec<String> =
        endpoints.iter().map(|address| format!("{{addresses: [{address}], nodeName: n1}}")).collect();
    program::service("shop", name, &format!("10.96.1.{number}"), &list.join(", "))
}

const HOSTILE: &str = "a<script>document.title='owned'</script>\"'&amp;";

/// Sixty plain Services, one without endpoints, one whose name would be code, and one with an impossible field.
fn manifests() -> Folder {
    let folder = Folder::new("status");
    let mut all: String =
        (1..=60).map(|number| service(&format!("web-{number:02}"), number, &["10.244.0.5"])).collect();
    all += &service("empty", 61, &[]);
    all += &service(HOSTILE, 62, &["10.244.0.5", "10.244.0.6"]);
    all += &service("odd", 63, &["10.244.0.5"]).replace("port: 80,", "port: 80, nodePort: 70000,");
    folder.put("all.yaml", &all);
    folder
}

/// Gives the node one address.
fn set_up() {
    tool("ip address add 192.0.2.1/32 dev lo");
}

fn start(folder: &Folder, status_page: &str, mode: &str) -> Running {
    let arguments = ["--manifests", folder.name(), "--status-page", status_page, "--proxy-mode", mode];
    let bind = ["--metrics-bind-address", "0.0.0.0:10249"];
    Running::start(&[&arguments[..], &bind].concat())
}

/// Status, head and body of an answer.
fn get(address: &str, path: &str, host: &str) -> (u16, String, String) {
    let address: SocketAddr = address.parse().unwrap();
    let Ok(mut stream) = TcpStream::connect(address) else { return (0, String::new(), String::new()) };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
}

const HERE: &str = "127.0.0.1:10249";

/// The data with Services: while a machine is busy, there are answers without.
fn data(query: &str) -> Value {
    let begun = Instant::now();
    loop {
        let (status, head, body) = get(HERE, &format!("/status.json{query}"), HERE);
        assert_eq!(status, 200, "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let data: Value = serde_json::from_str(&body).unwrap();
        if data["services"].is_object() {
            return data;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{data}");
    }
}

/// Waits until everything is served.
fn until_served(running: &Running) {
    running.until("it answers", || get(HERE, "/healthz", HERE).0 == 200);
    let is_done = |data: &Value| data["passes"] != json!([]) && data["totals"]["services"] == 63;
    running.until("a first pass", || is_done(&data("")));
}

#[test]
fn the_data_says_what_is_served_and_what_is_not() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        set_up();
        let folder = manifests();
        let running = start(&folder, "on", "nftables");
        until_served(&running);
        let all = data("");
        assert_eq!((&all["mode"], &all["node"]), (&json!("nftables"), &json!("n1")));
        assert_eq!(all["health"]["healthy"], true);
        assert_eq!(all["totals"], json!({"services": 63, "frontends": 63, "endpoints": 63}));
        assert_eq!(all["services"]["list"].as_array().unwrap().len(), 50);
        assert_eq!((&all["passes"][0]["failed"], &all["failures"]["count"]), (&json!(false), &json!(0)));
        assert!(all["passes"].as_array().unwrap().iter().any(|pass| pass["changes"].as_u64() > Some(0)), "{all}");
        assert!(all["age"].is_f64(), "{all}");
        assert_eq!((&all["apiServer"], &all["lastError"]), (&Value::Null, &Value::Null), "manifests");
        let rejected = all["rejected"]["list"].as_array().unwrap();
        assert!(rejected.len() == 1 && rejected[0].as_str().unwrap().contains("shop/odd"), "{rejected:?}");

        let last = &data("?offset=60&limit=50")["services"];
        assert_eq!((&last["matching"], &last["offset"]), (&json!(63), &json!(60)));
        assert_eq!(last["list"].as_array().unwrap().len(), 3);
        assert_eq!(data("?filter=no-such")["services"]["matching"], 0);
        let expected = json!([{
            "name": "shop/web-07",
            "frontends": [{
                "key": "TCP 10.96.1.7:80", "port": "http", "kinds": ["clusterIP"], "policy": "Cluster",
                "affinitySeconds": null, "sourceRanges": null, "endpoints": [{"address": "10.244.0.5:8080"}],
                "leftOut": 0, "counters": null,
            }],
            "leftOut": 0,
        }]);
        for query in ["?filter=WEB-07", "?filter=10.96.1.7%3A80"] {
            let found = data(query);
            assert_eq!((&found["services"]["matching"], &found["services"]["list"]), (&json!(1), &expected), "{query}");
        }
        assert_eq!(data("?filter=script")["services"]["list"][0]["name"], format!("shop/{HOSTILE}"));

        // A change shows.
        folder.put("more.yaml", &service("late", 99, &["10.244.0.7"]));
        running.until("the new Service shows", || data("?filter=late")["services"]["matching"] == 1);
        assert!(running.end().success());
    });
}

#[test]
fn the_data_lists_objects_that_cannot_be_read() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        set_up();
        let (server, folder) = (ApiServer::start(), Folder::new("unreadable"));
        server.serve_only_json();
        let put = |ports: Value| {
            let (metadata, spec) =
                (json!({"name": "odd", "namespace": "shop"}), json!({"clusterIP": "10.96.2.1", "ports": ports}));
            server.put(&json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": spec}));
        };
        server.put(&json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}));
        put(json!("none"));
        let kubeconfig = folder.put("kubeconfig", &server.kubeconfig(None)).display().to_string();
        let running = Running::start(&["--kubeconfig", &kubeconfig, "--status-page", "on", "--proxy-mode", "nftables"]);
        running.until("it answers", || get(HERE, "/healthz", HERE).0 == 200);
        running.until("it is listed", || data("")["unreadable"]["count"] == 1);
        let listed = data("")["unreadable"]["list"].clone();
        let text = listed[0]["text"].as_str().unwrap();
        assert!(text.starts_with("Service shop/odd: spec.ports: "), "{listed}");
        assert!(listed[0]["seconds"].as_u64() < Some(120), "{listed}");
        put(json!([{"port": 80}]));
        running.until("it can be read", || data("")["unreadable"] == json!({"count": 0, "list": []}));
        assert!(running.end().success());
    });
}

#[test]
fn the_page_is_for_whom_the_settings_say() {
    kernel_test(&[Need::Root], || {
        set_up();
        let folder = manifests();
        let running = start(&folder, "localhost", "userspace");
        until_served(&running);
        let (status, head, body) = get(HERE, "/status", "localhost:10249");
        assert_eq!(status, 200, "{head}");
        for header in ["content-type: text/html; charset=utf-8", "cache-control: no-store", "nosniff"] {
            assert!(head.contains(header), "{header}: {head}");
        }
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'nonce-"), "{head}");
        assert!(body.starts_with("<!doctype html>") && !body.contains("10.96."), "no data in the page itself");
        for host in ["LocalHost:8080", "", "[::1]:1"] {
            assert_eq!(get(HERE, "/status", host).0, 200, "{host}");
        }
        let elsewhere = "192.0.2.1:10249";
        for (address, host) in
            [(elsewhere, "192.0.2.1"), (elsewhere, HERE), (HERE, "evil.example"), (HERE, "localhost.evil.example")]
        {
            for path in ["/status", "/status.json"] {
                assert_eq!(get(address, path, host).0, 404, "{address} {host} {path}");
            }
            assert_eq!(get(address, "/proxyMode", host).2, "userspace");
        }
        assert!(running.end().success());

        let running = start(&folder, "on", "userspace");
        until_served(&running);
        assert_eq!(get("192.0.2.1:10249", "/status", "proxy.example").0, 200);
        assert!(running.end().success());
        let running = start(&folder, "off", "userspace");
        running.until("it answers", || get(HERE, "/healthz", HERE).0 == 200);
        assert_eq!((get(HERE, "/status", HERE).0, get(HERE, "/status.json", HERE).0), (404, 404));
        assert!(running.end().success());
    });
}

/// Runs the browser; returns its output.
fn browse(profile: &Path, arguments: &[&str]) -> String {
    let _none_yet = fs::remove_dir_all(profile);
    let mut command = Command::new("timeout");
    let line = "--kill-after=5 120 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
                --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage \
                --hide-scrollbars --virtual-time-budget=5000";
    command.args(line.split(' '));
    let output = command.arg(format!("--user-data-dir={}", profile.display())).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// Width and the first pixel of a PNG with 8 bits per channel, which no filter changes.
fn look(file: &Path) -> (u32, [u8; 3]) {
    let bytes = fs::read(file).unwrap();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let (mut at, mut packed) = (8, Vec::new());
    while at < bytes.len() {
        let length = word(at) as usize;
        if &bytes[at + 4..at + 8] == b"IDAT" {
            packed.extend_from_slice(&bytes[at + 8..at + 8 + length]);
        }
        at += 12 + length;
    }
    let mut start = [0; 4];
    flate2::read::ZlibDecoder::new(&*packed).read_exact(&mut start).unwrap();
    (word(16), [start[1], start[2], start[3]])
}

#[test]
fn a_browser_shows_it_in_light_and_dark_at_any_width() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Tool("chromium")], || {
        set_up();
        let (folder, pictures) = (manifests(), Folder::new("pictures"));
        let running = start(&folder, "localhost", "nftables");
        until_served(&running);
        let profile = pictures.0.join("profile");
        let url = "http://127.0.0.1:10249/status";
        let page = browse(&profile, &["--dump-dom", url]);
        for shown in [
            "<title>n1 – proxier-demo</title>",
            "⚠ healthy, but parts of objects are left out",
            "<button id=\"last\" type=\"button\">",
            concat!("proxier-demo ", env!("CARGO_PKG_VERSION"), " (commit "),
            "<dt>Services</dt><dd>63</dd>",
            "<dt>Mode</dt><dd>nftables</dd>",
            "<dt>API server</dt><dd>not used</dd>",
            "1 to 50 of 63 Services",
            "<summary><h3>shop/web-07</h3>",
            "⚠ no endpoints",
            "Left out of objects (1)",
            "<b>TCP 10.96.1.7:80</b>",
            "<li>10.244.0.5:8080</li>",
            "a&lt;script&gt;document.title='owned'&lt;/script&gt;\"'&amp;amp;</h3>",
        ] {
            assert!(page.contains(shown), "{shown}\n{page}\n{}", running.log());
        }
        assert_eq!(page.matches("<details").count(), 50);
        assert!(page.contains("<th scope=\"col\"") && page.contains("<th scope=\"row\""), "tables have heads");
        assert!(page.contains("role=\"img\" aria-label=\"Milliseconds of the last passes"), "curves have words");

        let kept = std::env::var_os("STATUS_PAGE_PICTURES");
        let schemes = [("light", "1", [0xf6, 0xf7, 0xf9]), ("dark", "0", [0x11, 0x14, 0x18])];
        let sizes = [(1280, 480), (390, 800)].into_iter().flat_map(|size| schemes.map(|scheme| (size, scheme)));
        for ((width, height), (name, scheme, ground)) in sizes {
            let file = pictures.0.join(format!("status-{name}-{width}.png"));
            let (size, shot) = (format!("--window-size={width},{height}"), format!("--screenshot={}", file.display()));
            let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
            browse(&profile, &[&size, &shot, &scheme, url]);
            assert_eq!(look(&file), (width, ground), "{name} {width}");
            if let Some(folder) = &kept {
                fs::copy(&file, Path::new(folder).join(file.file_name().unwrap())).unwrap();
            }
        }

        // All Services are gone at once.
        folder.put("all.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n");
        running.until("it waits", || data("")["heldBack"]["count"].as_u64() > Some(50));
        let held = data("");
        let left = held["heldBack"]["list"][0]["secondsLeft"].as_u64().unwrap();
        assert!((200..=300).contains(&left), "{held}");
        let page = browse(&profile, &["--dump-dom", url]);
        let confirm = format!("kill -USR1 {}", held["process"]);
        for shown in
            ["⚠ healthy, but deletions are held back", ": goes in 5 min</li>", &format!("<code>{confirm}</code>")]
        {
            assert!(page.contains(shown), "{shown}\n{page}\n{}", running.log());
        }
        tool(&confirm);
        running.until("they go", || data("")["totals"]["services"] == 0 && data("")["heldBack"]["count"] == 0);
        assert!(browse(&profile, &["--dump-dom", url]).contains("✓ healthy"));
        assert!(running.end().success());
    });
}
