//! `proxier-demo` on real kernels, as a user starts it: the output of `ipvsadm`, `ipset`, `iptables-save` and `ip`
//! afterwards, and its exit codes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testkit::{Need, PROXY, kernel_test};

use crate::program::{Folder, Running, command, ipvsadm, ok, set_up, status_of, text, tool, with_node_port};

/// `--manifests` and their folder.
fn from(manifests: &Folder) -> [String; 2] {
    ["--manifests".to_owned(), manifests.0.display().to_string()]
}

fn demo(arguments: &[&str], manifests: &Folder) -> Output {
    command(arguments).args(from(manifests)).output().unwrap()
}

fn start(manifests: &Folder) -> Running {
    let [flag, folder] = from(manifests);
    Running::start(&[&flag, &folder])
}

fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|&line| line.to_owned()).collect()
}

const TWO: [&str; 2] = ["10.244.0.5", "10.244.0.6"];

fn served() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for place in ["10.96.0.10:80", "192.0.2.1:30080"] {
        lines.insert(format!("-A -t {place} -s rr"));
        lines.extend(TWO.map(|real| format!("-a -t {place} -r {real}:8080 -m -w 1")));
    }
    lines
}

#[test]
fn once_serves_plan_agrees_and_cleanup_removes_what_is_ours() {
    kernel_test(PROXY, || {
        set_up();
        tool("ipvsadm -A -t 198.51.100.1:443 -s rr");
        tool("iptables -A INPUT -s 203.0.113.0/24 -j DROP");
        tool("ipset create MINE hash:ip");
        let foreign_rules = tool("iptables-save -t filter");
        let manifests = Folder::with("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &TWO));
        let plan = ok(&demo(&["plan"], &manifests));
        assert!(plan.contains("+ virtual server TCP 10.96.0.10:80 rr  (demo/web:http)\n"), "{plan}");
        assert_eq!(ipvsadm(), set(&["-A -t 198.51.100.1:443 -s rr"]), "a plan writes nothing");

        ok(&demo(&["run", "--once"], &manifests));
        let mut expected = served();
        expected.insert("-A -t 198.51.100.1:443 -s rr".to_owned());
        assert_eq!(ipvsadm(), expected);
        assert!(tool("ip -br addr show kube-ipvs0").contains("10.96.0.10/32"));
        assert!(tool("ipset save KUBE-CLUSTER-IP").contains("add KUBE-CLUSTER-IP 10.96.0.10,tcp:80\n"));
        assert!(tool("iptables-save -t nat").contains("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000"));
        let again = ok(&demo(&["plan"], &manifests));
        assert!(again.starts_with("nothing to do: the kernel has the desired state\n"), "{again}");
        assert!(again.contains("198.51.100.1:443 was not created by proxier-demo"), "{again}");
        let second = ok(&demo(&["run", "--once"], &manifests));
        assert!(second.contains(", 0 changes made"), "{second}");
        let json: serde_json::Value = serde_json::from_str(&ok(&demo(&["show", "-o", "json"], &manifests))).unwrap();
        assert_eq!(json["virtualServers"][0]["service"], "demo/web:http", "{json}");

        ok(&command(&["cleanup"]).output().unwrap());
        assert_eq!(ipvsadm(), set(&["-A -t 198.51.100.1:443 -s rr"]));
        assert_eq!(tool("ipset list -n"), "MINE\n");
        let drop_rule = |text: &str| text.lines().filter(|line| line.contains("203.0.113.0/24")).count();
        assert_eq!(drop_rule(&tool("iptables-save -t filter")), drop_rule(&foreign_rules));
        assert!(!tool("iptables-save").contains("KUBE-") && !tool("ip6tables-save").contains("KUBE-"));
        assert!(!tool("ip link").contains("kube-ipvs0"));
        ok(&command(&["cleanup"]).output().unwrap());
    });
}

#[test]
fn run_follows_files_survives_a_kill_and_leaves_the_data_path() {
    kernel_test(PROXY, || {
        set_up();
        let manifests = Folder::with("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &TWO));
        let running = start(&manifests);
        running.until("the Service is served", || ipvsadm() == served());
        running.until("its address is bound", || tool("ip -br addr show kube-ipvs0").contains("10.96.0.10/32"));

        let second = demo(&["run"], &manifests);
        assert_eq!(second.status.code(), Some(1));
        assert!(text(&second.stderr).contains(&format!("process {} (", running.pid())), "{}", text(&second.stderr));

        manifests.put("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &["10.244.0.5", "10.244.0.7"]));
        let now = |address: &str| ipvsadm().contains(&format!("-a -t 10.96.0.10:80 -r {address}:8080 -m -w 1"));
        running.until("the new endpoint is served", || now("10.244.0.7"));
        running.until("the old one has gone", || !ipvsadm().iter().any(|line| line.contains("10.244.0.6")));

        // A half-written or invalid file changes nothing; a broken object keeps its last readable content.
        fs::write(manifests.0.join("web.yaml"), "apiVersion: v1\nkind: Serv").unwrap();
        manifests.put("other.yaml", &with_node_port("other", "10.96.0.11", 30081, &["10.244.0.9"]));
        running.until("another file is read", || ipvsadm().contains("-A -t 10.96.0.11:80 -s rr"));
        assert!(now("10.244.0.5") && now("10.244.0.7"));

        // The device is deleted by hand: noticed and repaired without waiting for the sync period.
        tool("ip link del kube-ipvs0");
        running.until("the device is back", || {
            let shown = Command::new("ip").args(["-br", "addr", "show", "kube-ipvs0"]).output().unwrap();
            text(&shown.stdout).contains("10.96.0.10/32") && text(&shown.stdout).contains("10.96.0.11/32")
        });
        // A new address of the node serves node ports.
        tool("ip addr add 192.0.2.77/24 dev eth9");
        running.until("node ports on a new address", || ipvsadm().contains("-A -t 192.0.2.77:30080 -s rr"));

        running.end_with("KILL");
        manifests.put("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &["10.244.0.5", "10.244.0.7"]));
        let before = ipvsadm();
        let once = ok(&demo(&["run", "--once"], &manifests));
        assert!(once.contains(", 0 changes made"), "{once}");
        assert_eq!(ipvsadm(), before);

        let running = start(&manifests);
        running.until("it is healthy", || status_of("10256/healthz") == 200);
        let start = Instant::now();
        assert!(running.end().success());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(ipvsadm(), before, "the data path stays");
    });
}

/// Another user of the machine cannot keep a proxy from starting. The lock ends with its holder.
#[test]
fn only_root_can_hold_the_lock() {
    let needs = [PROXY, &[Need::Tool("python3")]].concat();
    kernel_test(&needs, || {
        set_up();
        let manifests = Folder::with("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &TWO));
        let running = start(&manifests);
        running.until("the Service is served", || ipvsadm() == served());
        let second = demo(&["cleanup"], &manifests);
        let said = text(&second.stderr);
        assert_eq!(second.status.code(), Some(1), "{said}");
        let expected = format!("proxier-demo: another one runs on this node: process {} (", running.pid());
        assert!(said.starts_with(&expected) && said.ends_with("; stop it first\n"), "{said}");
        running.end_with("KILL");

        // Takes a name that anybody can take, the lock's file and folder if possible, and many connections to the first
        // proxy.
        let script = "import fcntl,glob,os,socket,sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n\
            name = socket.socket(socket.AF_UNIX); name.bind('\\0proxier-demo'); name.listen(1)\n\
            clients = [socket.socket(socket.AF_UNIX) for _ in range(50)]\n\
            for client in clients:\n    client.setblocking(False)\n    client.connect_ex('\\0proxier-demo')\n\
            held = []\nfor path in ['/run/proxier-demo'] + glob.glob('/run/proxier-demo/*'):\n    \
            try:\n        held.append(open(path)); fcntl.flock(held[-1], fcntl.LOCK_EX)\n    except OSError: pass\n\
            print(len(held), flush=True); sys.stdin.read()\n";
        let mut other = Command::new("python3");
        let mut other = other.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut held = [0; 2];
        other.stdout.as_mut().unwrap().read_exact(&mut held).unwrap();
        let once = demo(&["run", "--once"], &manifests);
        let running = start(&manifests);
        running.until("it serves", || status_of("10256/healthz") == 200);
        assert!(running.end().success());
        let cleanup = demo(&["cleanup"], &manifests);
        drop(other.stdin.take());
        other.wait().unwrap();
        assert_eq!(text(&held), "0\n", "what others could open of the lock");
        ok(&once);
        ok(&cleanup);
        assert!(ipvsadm().is_empty());
    });
}

#[test]
fn bad_input_is_named_and_the_rest_is_served() {
    kernel_test(PROXY, || {
        set_up();
        let manifests = Folder::with("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &TWO));
        manifests.put(
            "bad.yaml",
            "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: demo}\nspec:\n  clusterIP: 10.96.0.12\n  \
             ports: [{port: 70000}, {port: 81}]\n",
        );
        manifests.put("typed.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: typed}\nspec: {ports: 7}\n");
        let output = demo(&["run", "--once"], &manifests);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("demo/bad: spec.ports[0].port 70000: not a port"), "{errors}");
        assert!(errors.contains("typed.yaml: document 1: ") && errors.contains("spec.ports"), "{errors}");
        let served = ipvsadm();
        assert!(served.contains("-A -t 10.96.0.10:80 -s rr"), "{served:?}");
        assert!(served.contains("-A -t 10.96.0.12:81 -s rr"), "{served:?}");

        let missing = command(&["run", "--once", "--manifests", "/nonexistent/x.yaml"]).output().unwrap();
        assert_eq!(missing.status.code(), Some(2));
        assert!(text(&missing.stderr).contains("/nonexistent/x.yaml"), "{}", text(&missing.stderr));
        let unknown = demo(&["run", "--no-such-flag"], &manifests);
        assert_eq!((unknown.status.code(), text(&unknown.stderr).lines().count()), (Some(2), 1));
    });
}

/// A directory that is suddenly empty is not believed; single files may go.
#[test]
fn an_empty_directory_does_not_empty_the_node() {
    kernel_test(PROXY, || {
        set_up();
        let manifests = Folder::new("empty");
        for number in 1..=12 {
            let name = format!("web-{number}");
            let text = with_node_port(&name, &format!("10.96.1.{number}"), 30100 + number, &["10.244.0.5"]);
            manifests.put(&format!("{name}.yaml"), &text);
        }
        ok(&demo(&["run", "--once"], &manifests));
        let full = ipvsadm();
        assert_eq!(full.iter().filter(|line| line.starts_with("-A")).count(), 24);
        for file in fs::read_dir(&manifests.0).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        let output = demo(&["run", "--once"], &manifests);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("24 of 24 virtual servers would go or lose their last endpoint"),
            "{}",
            text(&output.stderr)
        );
        assert_eq!(ipvsadm(), full);
        manifests.put("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &TWO));
        ok(&demo(&["run", "--once"], &manifests));
        assert_eq!(ipvsadm(), served());
    });
}

/// `deploy/prepare-node` where the kernel has the modules, by the machine's own modprobe.
#[test]
fn prepare_node_prepares_for_ipvs() {
    kernel_test(PROXY, || {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prepare-node");
        let mut prepare = Command::new(program);
        let output = prepare.arg("ipvs").env("PROXIER_DEMO", env!("CARGO_BIN_EXE_proxier-demo")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        for (name, value) in [("vs/conntrack", "1"), ("vs/expire_nodest_conn", "1"), ("ip_forward", "1")] {
            assert_eq!(fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap().trim(), value, "{name}");
        }
    });
}
