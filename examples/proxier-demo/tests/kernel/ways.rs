//! Ways to connect and to start `proxier-demo`, on a real kernel: a pod's account, another user than root, and what comes late.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use testkit::apiserver::ApiServer;
use testkit::apiserver::tls::{Authority, Relay};
use testkit::{Executable, Need, PROXY, kernel_test};

use crate::live::{Service, World};
use crate::program::{Folder, Running, changed, in_mounts, ipvsadm, lone, ok, set_up, status_of, text, tool};

fn web() -> Service {
    Service::new("web", "10.96.0.10", &["10.244.1.5", "10.244.2.6"])
}

const RUN: [&str; 3] = ["run", "--proxy-mode", "nftables"];
const TABLE: &[Need] = &[Need::Root, Need::Nftables];

/// Whether the kernel has the Service with these endpoints.
fn serves(endpoints: &[String]) -> bool {
    let held = tool("nft list ruleset");
    held.contains("10.96.0.10") && endpoints.iter().all(|endpoint| held.contains(endpoint))
}

/// The account of a pod: files whose token a kubelet replaces.
#[test]
fn the_account_of_a_pod() {
    kernel_test(&[TABLE, &[Need::Mounts]].concat(), || {
        set_up();
        let (mut web, folder) = (web(), Folder::new("pod"));
        let World { server, .. } = &World::new(vec![web.clone()]);
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
            let script = format!("mount --bind {} /run && exec \"$0\" \"$@\"", folder.0.display());
            let mut pod = in_mounts(&script, arguments);
            pod.env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
            pod.env("KUBERNETES_SERVICE_PORT", address.port().to_string());
            pod
        };
        let running = Running::spawn(pod(&RUN));
        running.until("in a pod", || serves(&web.endpoints));
        running.until_logged("full pass: ");
        let plan = ok(&pod(&["plan", "--proxy-mode", "nftables"]).output().unwrap());
        assert!(plan.starts_with("nothing to do: the kernel has the desired state\n"), "{plan}");
        server.demand_token("second");
        fs::write(account.join("token"), "second").unwrap();
        // The server has another authority now; the old one's certificate does not count any more.
        drop(relay);
        let later = Authority::new("later");
        let _relay = Relay::start_on(address, &later, server.address(), None);
        running.until_logged("not signed by the certificate-authority that is configured");
        fs::write(account.join("ca.crt"), later.certificate()).unwrap();
        web.endpoints.push("10.244.3.7".to_owned());
        server.put(&web.slice());
        running.until("a token and an authority that were replaced", || serves(&web.endpoints));
        assert!(running.end().success());

        fs::remove_file(account.join("token")).unwrap();
        let (status, log) = Running::spawn(pod(&RUN)).wait();
        assert_eq!(status.code(), Some(2), "{log}");
        assert!(
            log.contains("the token cannot be read from /var/run/secrets/kubernetes.io/serviceaccount/token: No such"),
            "{log}"
        );
    });
}

/// Temporary problems are retried: a server that is not there yet, a port in use.
#[test]
fn temporary_problems_are_retried() {
    kernel_test(TABLE, || {
        set_up();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let taken = TcpListener::bind("127.0.0.1:10256").unwrap();
        let source = ["--proxy-mode", "nftables", "--master", &format!("http://{address}")];
        let running = Running::start(&source);
        running.until_logged(&format!("no answer from http://{address}/ (tcp connect error: Connection refused"));
        running.until_logged(
            "healthz server: cannot listen on 127.0.0.1:10256 (Address already in use (os error 98)); another kube-proxy, \
             or a second proxier-demo?; trying again in 5 s",
        );
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(running.log().matches("healthz server: cannot listen").count(), 1, "at most once a minute");
        assert_eq!(tool("nft list tables"), "");
        drop(taken);
        let before = Timestamp::now().to_string();
        let world = World::on(ApiServer::start_on(address), vec![web()]);
        running.until("the server is there", || serves(&web().endpoints));
        running.until("the port is free", || status_of("10256/healthz") == 200);
        // Events that could not be sent then are sent now, with the time when they were recorded.
        running.until("events", || {
            let events = world.server.events();
            let early = events.iter().filter(|event| event["eventTime"].as_str().unwrap() < before.as_str());
            let told: BTreeSet<&str> = early.map(|event| event["reason"].as_str().unwrap()).collect();
            told.contains("Starting") && told.contains("FailedToStartProxierHealthcheck")
        });
        assert!(running.end().success());

        // Unless configured to fail at once.
        let _taken = TcpListener::bind("127.0.0.1:10256").unwrap();
        let (status, log) = Running::start(&[&source[..], &["--bind-address-hard-fail"]].concat()).wait();
        assert_eq!(status.code(), Some(2), "{log}");
        assert!(log.contains("cannot listen on 127.0.0.1:10256 (Address already in use"), "{log}");
    });
}

/// Each Service with a health-check port takes a descriptor for each family.
#[test]
fn many_health_checks_get_the_descriptors_that_they_need() {
    kernel_test(&[TABLE, &[Need::Tool("prlimit")]].concat(), || {
        set_up();
        let folder = Folder::new("health");
        let port = |number: usize| 32_000 + number;
        for number in 1..100 {
            let address = format!("10.96.1.{number}");
            let spec = format!(
                "type: LoadBalancer, ipFamilies: [IPv4], clusterIP: {address}, clusterIPs: [{address}], externalTrafficPolicy: Local, \
                 healthCheckNodePort: {}, ports: [{{name: http, port: 80, protocol: TCP}}]",
                port(number)
            );
            folder.put(&format!("web-{number}.yaml"), &lone(&format!("web-{number}"), &spec, ""));
        }
        let mut limited = Command::new("prlimit");
        limited.args(["--nofile=64:1024", env!("CARGO_BIN_EXE_proxier-demo"), "run", "--proxy-mode", "nftables"]);
        limited.args(["--hostname-override", "n1", "--healthz-bind-address", "127.0.0.1:10256", "--manifests"]);
        limited.arg(&folder.0);
        let running = Running::spawn(limited);
        // There is no endpoint.
        running.until("all answer", || (1..100).all(|number| status_of(&format!("{}/", port(number))) == 503));
        assert!(running.end().success());
    });
}

/// A process of another user than root needs three capabilities where iptables-legacy may have tables, and so do the programs it starts;
/// missing ones are named.
#[test]
fn another_user_than_root() {
    // The file that lists tables of iptables-legacy is there once its module is loaded, which this need does.
    let needs = [PROXY, &[Need::Mounts, Need::Tool("setpriv"), Need::IptablesLegacy]].concat();
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
        let unread = nobody(&both, &["cleanup"]);
        let said = text(&unread.stderr);
        assert_eq!(unread.status.code(), Some(1), "{said}");
        assert!(said.contains("only root may read that file: another user needs CAP_DAC_READ_SEARCH"), "{said}");

        let all = "+net_admin,+net_raw,+dac_read_search";
        let all = [&*format!("--inh-caps={all}"), &format!("--ambient-caps={all}")];
        let once = ok(&nobody(&all, &["run", "--once"]));
        assert!(once.starts_with("1 virtual servers, "), "{once}");
        assert_eq!(ipvsadm(), web.lines().into_iter().collect());
        assert!(tool("iptables-save -t nat").contains("-A KUBE-SERVICES "));
        let plan = ok(&nobody(&all, &["plan"]));
        assert!(plan.starts_with("nothing to do"), "{plan}");
        ok(&nobody(&all, &["cleanup"]));
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
