//! Every way to connect `proxier-demo`, on a real kernel: TLS, credentials of each kind, a pod's account, answers of real servers, and the messages
//! when something is wrong.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::apiserver::tls::{Authority, Relay};
use testkit::apiserver::{ApiServer, recorded};
use testkit::{Executable, Need, PROXY, kernel_test, missing};

use crate::live::{Service, node};
use crate::program::{
    self, Folder, Running, changed, command, demo, fetched, ipvsadm, ok, page, set_up, status_of, text, tool,
};

/// A server with one Service and a Node.
fn server(web: &Service) -> ApiServer {
    let server = ApiServer::start();
    server.put(&node());
    server.put(&web.object());
    server.put(&web.slice());
    server
}

fn web() -> Service {
    Service::new("web", "10.96.0.10", &["10.244.1.5", "10.244.2.6"])
}

fn lines(services: &[&Service]) -> BTreeSet<String> {
    services.iter().flat_map(|service| service.lines()).collect()
}

/// A kubeconfig for a server behind a relay.
fn kubeconfig(url: &str, mut cluster: Value, user: &Value) -> String {
    cluster["server"] = url.into();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    })
    .to_string()
}

/// `run` with this kubeconfig.
fn run(folder: &Folder, kubeconfig: &str) -> Running {
    Running::start(&["--kubeconfig", &folder.put("kubeconfig", kubeconfig).display().to_string()])
}

/// Checks that it serves, and follows a new endpoint.
fn serves(running: Running, server: &ApiServer, web: &Service, what: &str) {
    running.until(what, || ipvsadm() == lines(&[web]));
    let mut more = web.clone();
    more.endpoints.push("10.244.3.7".to_owned());
    server.put(&more.slice());
    running.until(&format!("{what}: and it follows"), || ipvsadm() == lines(&[&more]));
    assert!(running.end().success(), "{what}");
    server.put(&web.slice());
}

#[test]
fn tls_with_an_authority_of_ones_own() {
    kernel_test(PROXY, || {
        set_up();
        let (web, folder) = (web(), Folder::new("tls"));
        let server = server(&web);
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let relay = Relay::start(&ours, server.address(), None);
        let (right, wrong) =
            (folder.put("ca.crt", &ours.certificate()), folder.put("other.crt", &theirs.certificate()));

        // A wrong authority's certificate: reported with the fix, nothing is changed, and it continues once the certificate is trusted.
        let running = run(&folder, &kubeconfig(&relay.url(), json!({"certificate-authority": wrong}), &json!({})));
        running.until_logged("not signed by the certificate-authority that is configured");
        assert!(running.log().contains(&format!("no answer from {}", relay.url())), "{}", running.log());
        assert!(changed().is_empty(), "{:?}", changed());
        assert!(server.requests().is_empty());
        assert!(running.end().success());

        let running = run(&folder, &kubeconfig(&relay.url(), json!({"certificate-authority": right}), &json!({})));
        serves(running, &server, &web, "TLS");
        let named = kubeconfig(
            &relay.url().replace("127.0.0.1", "localhost"),
            json!({"certificate-authority-data": base64(&ours.certificate())}),
            &json!({}),
        );
        serves(run(&folder, &named), &server, &web, "TLS, by name, the authority within");
    });
}

#[test]
fn client_certificates() {
    kernel_test(PROXY, || {
        set_up();
        let (web, folder) = (web(), Folder::new("certificates"));
        let server = server(&web);
        let (authority, clients) = (Authority::new("cluster"), Authority::new("clients"));
        let relay = Relay::start(&authority, server.address(), Some(&clients));
        let cluster = json!({"certificate-authority": folder.put("ca.crt", &authority.certificate())});

        let running = run(&folder, &kubeconfig(&relay.url(), cluster.clone(), &json!({})));
        running.until_logged("it wants a client certificate");
        assert!(changed().is_empty(), "{:?}", changed());
        assert!(running.end().success());

        let identity = clients.client("system:kube-proxy");
        let user = json!({
            "client-certificate": folder.put("client.crt", &identity.certificate),
            "client-key": folder.put("client.key", &identity.key),
        });
        serves(run(&folder, &kubeconfig(&relay.url(), cluster, &user)), &server, &web, "a client certificate");
    });
}

/// The account of a pod: files whose token a kubelet replaces.
#[test]
fn the_account_of_a_pod() {
    kernel_test(&[PROXY, &[Need::Mounts]].concat(), || {
        set_up();
        let (web, folder) = (web(), Folder::new("pod"));
        let server = server(&web);
        server.demand_token("first");
        let authority = Authority::new("cluster");
        let relay = Relay::start(&authority, server.address(), None);
        let address = relay.address();
        let account = folder.0.join("secrets/kubernetes.io/serviceaccount");
        fs::create_dir_all(&account).unwrap();
        fs::write(account.join("token"), "first").unwrap();
        fs::write(account.join("ca.crt"), authority.certificate()).unwrap();
        fs::write(account.join("namespace"), "kube-system").unwrap();
        // The folder is /run for this process alone.
        let pod = |arguments: &[&str]| {
            let inner = command(arguments);
            let script = format!("mount --bind {} /run && exec \"$0\" \"$@\"", folder.0.display());
            let mut pod = Command::new("unshare");
            pod.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
            pod.arg(inner.get_program()).args(inner.get_args());
            pod.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env_remove("KUBECONFIG");
            pod.env("KUBERNETES_SERVICE_PORT", address.port().to_string());
            pod
        };
        let running = Running::spawn(pod(&["run"]));
        running.until("in a pod", || ipvsadm() == lines(&[&web]));
        running.until("the first pass is over", || running.log().contains("full pass: "));
        let plan = ok(&pod(&["plan"]).output().unwrap());
        assert!(plan.starts_with("nothing to do: the kernel has the desired state\n"), "{plan}");
        server.demand_token("second");
        fs::write(account.join("token"), "second").unwrap();
        // The server has another authority now; the old one's certificate does not count any more.
        drop(relay);
        let later = Authority::new("later");
        let _relay = Relay::start_on(address, &later, server.address(), None);
        running.until_logged("not signed by the certificate-authority that is configured");
        fs::write(account.join("ca.crt"), later.certificate()).unwrap();
        serves(running, &server, &web, "a token and an authority that were replaced");
        let shown: Value = serde_json::from_str(&ok(&pod(&["show", "-o", "json"]).output().unwrap())).unwrap();
        assert_eq!(shown["virtualServers"][0]["service"], "demo/web:p", "{shown}");

        fs::remove_file(account.join("token")).unwrap();
        let (status, log) = Running::spawn(pod(&["run"])).wait();
        assert_eq!(status.code(), Some(2), "{log}");
        assert!(
            log.contains("the token cannot be read from /var/run/secrets/kubernetes.io/serviceaccount/token: No such"),
            "{log}"
        );
    });
}

/// Checks the kernel's state with the objects of this list.
fn serves_recorded(services: &str, slices: &str, node: &str, expected: &[&str], sets: &[(&str, &str)]) {
    let folder = Folder::new("recorded");
    let server = ApiServer::start();
    assert!(services.contains("\"managedFields\"") && slices.contains("\"managedFields\""));
    for list in [services, slices, node] {
        server.put_list(list);
    }
    let running = run(&folder, &server.kubeconfig(None));
    let expected: BTreeSet<String> = expected.iter().map(|&line| line.to_owned()).collect();
    running.until("a recorded cluster", || ipvsadm() == expected);
    running.until("rules", || tool("iptables-save -t nat").contains("KUBE-LOAD-BALANCER"));
    for (set, entry) in sets {
        let saved = tool(&format!("ipset save {set}"));
        assert!(saved.contains(&format!("add {set} {entry}\n")), "{entry}: {saved}");
    }
    let plan = ok(&demo(&["plan", "--kubeconfig", &folder.0.join("kubeconfig").display().to_string()]));
    assert!(plan.starts_with("nothing to do"), "{plan}");
    // Only the first network namespace has that setting.
    let log = running.log();
    let quiet =
        |line: &str| line.contains("nf_conntrack_max") || !(line.contains(" WARN ") || line.contains(" ERROR "));
    assert!(log.lines().all(quiet), "{log}");
    // A load balancer asks the Service that keeps its traffic on the node.
    let weight =
        || testkit::get("http://192.0.2.1:30930/").map_or_else(|_| String::new(), |page| page.head.to_lowercase());
    running.until("the health check", || weight().contains("x-load-balancing-endpoint-weight: 1\r\n"));
    assert!(running.end().success());
}

/// The shop that was recorded from a server of version 1.23.
#[test]
fn what_an_old_server_sends() {
    kernel_test(PROXY, || {
        set_up();
        let expected = [
            "-A -t 10.104.65.78:80 -s rr",
            "-a -t 10.104.65.78:80 -r 10.244.1.5:8080 -m -w 1",
            "-A -t 10.104.65.78:443 -s rr",
            "-a -t 10.104.65.78:443 -r 10.244.1.5:8443 -m -w 1",
            "-A -u 10.108.0.109:53 -s rr",
            "-A -t 10.108.0.109:53 -s rr",
            "-A -t 10.96.160.92:443 -s rr",
            "-a -t 10.96.160.92:443 -r 10.244.1.9:8443 -m -w 1",
            "-A -t 198.51.100.7:443 -s rr",
            "-a -t 198.51.100.7:443 -r 10.244.1.9:8443 -m -w 1",
            "-A -t 203.0.113.50:443 -s rr",
            "-a -t 203.0.113.50:443 -r 10.244.1.9:8443 -m -w 1",
            "-A -t 192.0.2.1:32700 -s rr",
            "-a -t 192.0.2.1:32700 -r 10.244.1.9:8443 -m -w 1",
            "-A -t 10.110.164.58:8080 -s rr -p 10800",
            "-a -t 10.110.164.58:8080 -r 10.244.1.10:8080 -m -w 1",
            "-a -t 10.110.164.58:8080 -r 10.244.3.11:8080 -m -w 1",
            "-A -t 192.0.2.1:31080 -s rr -p 10800",
            "-a -t 192.0.2.1:31080 -r 10.244.1.10:8080 -m -w 1",
        ];
        let sets = [
            ("KUBE-CLUSTER-IP", "10.108.0.109,udp:53"),
            ("KUBE-EXTERNAL-IP-LOCAL", "198.51.100.7,tcp:443"),
            ("KUBE-LOAD-BALANCER-LOCAL", "203.0.113.50,tcp:443"),
            ("KUBE-LOAD-BALANCER-FW", "203.0.113.50,tcp:443"),
            ("KUBE-LOAD-BALANCER-SOURCE-CIDR", "203.0.113.50,tcp:443,203.0.113.0/24"),
            ("KUBE-NODE-PORT-LOCAL-TCP", "31080"),
            ("KUBE-HEALTH-CHECK-NODE-PORT", "30930"),
        ];
        serves_recorded(recorded::SERVICES, recorded::ENDPOINT_SLICES, recorded::NODE, &expected, &sets);
        let filter = tool("iptables-save -t filter");
        assert!(filter.contains("-A KUBE-SOURCE-RANGES-FIREWALL -j DROP"), "{filter}");
    });
}

/// The later fields: address modes, hints for zones and nodes, traffic distribution, dual stack.
#[test]
fn what_a_recent_server_sends() {
    kernel_test(PROXY, || {
        set_up();
        let expected = [
            // The Service prefers its zone, and the controller has written hints.
            "-A -t 10.96.40.1:80 -s rr",
            "-a -t 10.96.40.1:80 -r 10.244.1.5:8080 -m -w 1",
            "-A -t [fd00:96::1]:80 -s rr",
            "-a -t [fd00:96::1]:80 -r [fd00:244:1::5]:8080 -m -w 1",
            // One of its two addresses is a proxy's own.
            "-A -t 10.96.40.2:443 -s rr",
            "-a -t 10.96.40.2:443 -r 10.244.1.9:8443 -m -w 1",
            "-a -t 10.96.40.2:443 -r 10.244.2.9:8443 -m -w 1",
            "-A -t 203.0.113.61:443 -s rr",
            "-a -t 203.0.113.61:443 -r 10.244.1.9:8443 -m -w 1",
        ];
        let sets = [
            ("KUBE-CLUSTER-IP", "10.96.40.1,tcp:80"),
            ("KUBE-6-CLUSTER-IP", "fd00:96::1,tcp:80"),
            ("KUBE-LOAD-BALANCER-LOCAL", "203.0.113.61,tcp:443"),
            ("KUBE-HEALTH-CHECK-NODE-PORT", "30930"),
        ];
        let [services, slices, node] = [
            include_str!("../fixtures/recent-services.json"),
            include_str!("../fixtures/recent-endpointslices.json"),
            include_str!("../fixtures/recent-node.json"),
        ];
        serves_recorded(services, slices, node, &expected, &sets);
    });
}

/// Temporary problems are retried: a server that is not there yet, a port in use.
#[test]
fn temporary_problems_are_retried() {
    kernel_test(PROXY, || {
        set_up();
        let (web, folder) = (web(), Folder::new("later"));
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let taken = TcpListener::bind("127.0.0.1:10256").unwrap();
        let kubeconfig = kubeconfig(&format!("http://{address}"), json!({}), &json!({}));
        let running = run(&folder, &kubeconfig);
        running.until_logged(&format!("no answer from http://{address}/ (tcp connect error: Connection refused"));
        running.until_logged(
            "healthz server: cannot listen on 127.0.0.1:10256 (Address already in use (os error 98)); another kube-proxy, \
             or a second proxier-demo?; trying again in 5 s",
        );
        assert!(changed().is_empty(), "{:?}", changed());
        drop(taken);
        let server = ApiServer::start_on(address);
        server.put(&node());
        server.put(&web.object());
        server.put(&web.slice());
        running.until("the server is there", || ipvsadm() == lines(&[&web]));
        running.until("the port is free", || status_of("10256/healthz") == 200);
        // Events that could not be sent then are sent now.
        running.until("events", || {
            let told: BTreeSet<String> =
                server.events().iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
            told.contains("Starting") && told.contains("FailedToStartProxierHealthcheck")
        });
        assert!(running.end().success());

        // Unless configured to fail at once.
        let taken = TcpListener::bind("127.0.0.1:10256").unwrap();
        let path = folder.0.join("kubeconfig").display().to_string();
        let (status, log) = Running::start(&["--kubeconfig", &path, "--bind-address-hard-fail"]).wait();
        assert_eq!(status.code(), Some(2), "{log}");
        assert!(log.contains("cannot listen on 127.0.0.1:10256 (Address already in use"), "{log}");
        drop(taken);
    });
}

/// `/metrics` as Prometheus reads it, with correct counts.
#[test]
fn metrics() {
    kernel_test(PROXY, || {
        set_up();
        let (web, folder) = (web(), Folder::new("metrics"));
        let local = {
            let mut object = Service::new("local", "10.96.0.20", &[]).object();
            object["spec"]["internalTrafficPolicy"] = "Local".into();
            object
        };
        let server = server(&web);
        server.put(&local);
        let mut elsewhere = Service::new("local", "10.96.0.20", &["10.244.2.20"]).slice();
        elsewhere["endpoints"][0]["nodeName"] = "n2".into();
        server.put(&elsewhere);
        let dns = Service { protocol: "UDP", ..Service::new("dns", "10.96.0.53", &["10.244.1.53"]) };
        server.put(&dns.object());
        server.put(&dns.slice());
        // A foreign virtual server.
        tool("ipvsadm -A -t 198.51.100.9:443 -s rr");
        tool("ipvsadm -a -t 198.51.100.9:443 -r 10.0.0.1:443 -m");
        let running = run(&folder, &server.kubeconfig(None));
        running.until("Services", || ipvsadm().is_superset(&lines(&[&web, &dns])));
        let scrape = || fetched("10249/metrics");
        running.until("a pass is counted", || {
            page::read(&scrape())["kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"] >= 1.0
        });
        fetched("10256/healthz");
        fetched("10256/livez");
        // A flow to an endpoint that goes away is forgotten, and counted.
        tool(
            "conntrack -I -p udp -t 60 --src 192.0.2.9 --dst 10.96.0.53 --sport 4000 --dport 80 \
             --reply-src 10.244.1.53 --reply-dst 192.0.2.9 --reply-port-src 8080 --reply-port-dst 4000",
        );
        let mut gone = dns.clone();
        gone.endpoints = vec!["10.244.1.54".to_owned()];
        let mut slice = gone.slice();
        let now = tool("date -u +%Y-%m-%dT%H:%M:%S.%NZ");
        slice["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": now.trim()});
        server.put(&slice);
        running.until("the flow is forgotten", || !tool("conntrack -L -p udp").contains("10.96.0.53"));
        server.forbid("services", true);
        server.end_watches();
        running.until_logged("allow list and watch of services");
        let text = scrape();
        let samples = page::read(&text);
        let of = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("{name} is missing: {text}"));
        for counted in [
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
            "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"}",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total",
            "kubeproxy_sync_proxy_rules_service_changes_total",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"}",
            "kubeproxy_proxy_healthz_total{code=\"200\"}",
            "kubeproxy_proxy_livez_total{code=\"200\"}",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}",
            "kubeproxy_api_request_failures_total",
            "process_resident_memory_bytes",
        ] {
            assert!(of(counted) > 0.0, "{counted}: {text}");
        }
        let counted = ["virtual_servers", "real_servers", "virtual_servers_foreign"];
        assert_eq!(counted.map(|name| of(&format!("kubeproxy_{name}")).to_string()), ["3", "3", "1"], "{text}");
        let measured = of("kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}");
        assert!((measured - 1.0).abs() < f64::EPSILON, "only what had a time: {text}");
        for nothing in [
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
            "kubeproxy_sync_proxy_rules_service_changes_pending",
            "kubeproxy_sync_failures_total",
        ] {
            assert!(of(nothing).abs() < f64::EPSILON, "{nothing}: {text}");
        }
        assert!(running.end().success());

        if let Some(reason) = missing(Need::Tool("promtool")) {
            // Not through the macro, whose output is hidden when a test passes.
            let reason =
                format!("SKIPPED promtool check metrics (package prometheus): {reason}; read by this test alone\n");
            std::io::stderr().write_all(reason.as_bytes()).unwrap();
            return;
        }
        let file = folder.put("metrics", &text);
        let check = Command::new("promtool").args(["check", "metrics"]).stdin(fs::File::open(file).unwrap()).output();
        let check = check.unwrap();
        let said = format!("{}{}", program::text(&check.stdout), program::text(&check.stderr));
        assert!(check.status.success() && said.is_empty(), "{}: {said}", check.status);
    });
}

/// `NodeCIDR` means nothing without the network of this node's pods: logged, and nothing is changed before it is there.
#[test]
fn a_node_whose_pods_have_no_network_yet() {
    kernel_test(PROXY, || {
        set_up();
        let (web, folder) = (web(), Folder::new("node"));
        let server = server(&web);
        let mut bare = node();
        bare["spec"] = json!({});
        server.put(&bare);
        let path = folder.put("kubeconfig", &server.kubeconfig(None)).display().to_string();
        let arguments = ["--kubeconfig", &path, "--detect-local-mode", "NodeCIDR"];
        let running = Running::start(&arguments);
        running.until_logged("waiting for spec.podCIDR of Node n1, for detectLocalMode NodeCIDR");
        assert!(changed().is_empty(), "{:?}", changed());
        server.put(&node());
        running.until("the network is there", || ipvsadm() == lines(&[&web]));
        running.until("rules", || tool("iptables-save -t nat").contains("! -s 10.244.1.0/24 "));
        assert!(running.end().success());
        let plan = ok(&demo(&[&["plan"][..], &arguments].concat()));
        assert!(plan.starts_with("nothing to do"), "{plan}");
    });
}

/// A process of another user than root: two capabilities are enough, if the programs it starts have them too; missing ones are named.
#[test]
fn another_user_than_root() {
    let needs = [PROXY, &[Need::Mounts, Need::Tool("setpriv")]].concat();
    kernel_test(&needs, || {
        set_up();
        let (web, folder) = (web(), Folder::new("user"));
        folder.put("web.yaml", &format!("{}\n---\n{}\n", web.object(), web.slice()));
        let program = Executable::of(Path::new(env!("CARGO_BIN_EXE_proxier-demo"))).unwrap();
        // root makes such a folder for a service with its own user.
        let of_user = Folder::new("run");
        let lock = of_user.0.join("proxier-demo");
        fs::create_dir(&lock).unwrap();
        chown(&lock, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&of_user.0, fs::Permissions::from_mode(0o755)).unwrap();
        let nobody = |capabilities: &[&str], words: &[&str]| {
            let script = format!("mount --bind {} /run && exec \"$@\"", of_user.0.display());
            let mut nobody = Command::new("unshare");
            nobody.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
            nobody
                .args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
                .args(capabilities)
                .arg(program.path());
            nobody.args(words).args(["--hostname-override", "n1", "--ipvs-rules", "iptables", "--manifests"]);
            nobody.arg(&folder.0);
            nobody.output().unwrap()
        };
        let none = nobody(&["--inh-caps=-all", "--bounding-set=-all"], &["run", "--once"]);
        let said = text(&none.stderr);
        assert_eq!(none.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with("proxier-demo: CAP_NET_ADMIN is missing, which IPVS, sets, rules and addresses need; "),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(changed().is_empty(), "{:?}", changed());

        let both = ["--inh-caps=+net_admin,+net_raw", "--ambient-caps=+net_admin,+net_raw"];
        let once = ok(&nobody(&both, &["run", "--once"]));
        assert!(once.starts_with("1 virtual servers, "), "{once}");
        assert_eq!(ipvsadm(), lines(&[&web]));
        assert!(tool("iptables-save -t nat").contains("-A KUBE-SERVICES "));
        let plan = ok(&nobody(&both, &["plan"]));
        assert!(plan.starts_with("nothing to do"), "{plan}");
        ok(&nobody(&both, &["cleanup"]));
        assert!(changed().is_empty(), "{:?}", changed());

        // iptables asks the kernel about sets through a raw socket.
        let admin = ["--inh-caps=+net_admin", "--ambient-caps=+net_admin"];
        for words in [&["run", "--once"][..], &["cleanup"]] {
            let without = nobody(&admin, words);
            let said = text(&without.stderr);
            assert_eq!(without.status.code(), Some(1), "{words:?}: {said}");
            assert!(
                said.starts_with("proxier-demo: CAP_NET_RAW is missing, which iptables needs"),
                "{words:?}: {said}"
            );
        }
        assert!(ipvsadm().is_empty());
    });
}

/// Files that become unreadable while it runs: their last readable content is kept, and the log reports it.
#[test]
fn manifests_that_cannot_be_read() {
    kernel_test(PROXY, || {
        set_up();
        let folder = Folder::new("manifests");
        let web = web();
        let both = format!("{}\n---\n{}\n", web.object(), web.slice());
        let path = folder.put("web.yaml", &both);
        let running = Running::start(&["--manifests", &folder.0.display().to_string()]);
        running.until("files", || ipvsadm() == lines(&[&web]));
        // Never a moment without the file: that would end the Service.
        fs::create_dir(folder.0.join("no-file")).unwrap();
        symlink("no-file", folder.0.join(".next")).unwrap();
        fs::rename(folder.0.join(".next"), &path).unwrap();
        folder.put("more.yaml", "kind: [");
        running.until_logged("more.yaml: document 1: ");
        assert_eq!(ipvsadm(), lines(&[&web]));
        folder.put("web.yaml", &both);
        fs::remove_file(folder.0.join("more.yaml")).unwrap();
        assert_eq!(ipvsadm(), lines(&[&web]));
        assert!(running.end().success());
    });
}

/// RFC 4648.
fn base64(text: &str) -> String {
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = chunk.iter().chain([&0; 2]).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for place in 0..4 {
            let letter = char::from(
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                    [(bits >> (18 - 6 * place) & 63) as usize],
            );
            out.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    out
}
