//! The commands that pages show are run, in the order of the page, with this build of the program.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::apiserver::ApiServer;
use testkit::documents::{Shown, pages, root, shown};
use testkit::{Need, NetnsGuard, kernel_test};

use crate::program::Folder;

/// Commands that do not run here, by how they begin, and why. All others do.
const NOT_RUN: [(&str, &[&str]); 9] = [
    (
        "needs a cluster",
        &[
            "kubectl ",
            "sed 's/type: RollingUpdate",
            "./take-over ",
            "for node in $(kubectl",
            "kind ",
            "k3s ",
            "tar xzf kubernetes-test",
            "ip tuntap add",
            "for n in 1 2",
            "containerd ",
            "for file in images",
            "mkdir -p vm/log",
        ],
    ),
    ("needs Helm and a cluster", &["helm "]),
    ("needs a registry or a container engine", &["docker ", "skopeo ", "podman ", "ctr "]),
    ("needs systemd", &["systemctl ", "journalctl "]),
    (
        "needs a control plane's programs, or makes its files",
        &[
            "openssl ",
            "printf 'admin,admin",
            "etcd ",
            "kube-apiserver ",
            "sleep 10; for user in admin",
            "kube-controller-manager ",
            "kube-scheduler ",
        ],
    ),
    ("installs packages or programs", &["apt-get ", "dpkg ", "cargo install "]),
    (
        "builds for minutes, measures, or boots a virtual machine; or reads what such a command wrote",
        &[
            "cargo build --release",
            "cargo xtask ",
            "CARGO_TARGET_DIR",
            ".ci/run",
            "fuzz/run",
            "cd target/dist",
            "minisign ",
            "sha256sum ",
        ],
    ),
    ("is run by monitoring.rs", &["promtool ", "(cd examples/deploy/monitoring"]),
    (
        "builds a program; examples/tests/kernel_cookbook.rs runs it",
        &[
            "cargo new ",
            "cargo build\n",
            "cargo doc ",
            "cargo run -p examples ",
            "ip netns exec try target/debug/agent",
            "ip netns exec try ipvsadm",
        ],
    ),
];

/// Words that stand for a value, and one.
const VALUES: [(&str, &str); 6] = [
    ("CONFIG", "--manifests examples/demo/manifests --hostname-override demo-node"),
    ("DIR", "examples/demo/manifests"),
    ("NAMESPACE/NAME", "shop/web"),
    ("CLUSTER-IP:PORT", "10.96.0.80:80"),
    ("NODE", "127.0.0.1"),
    ("--live=10", "--live=1"),
];

/// What the page says that a command prints.
const PRINTS: [(&str, &[&str]); 12] = [
    ("proxier-demo probe | tail", &["\nMODE ", "run serves in mode "]),
    ("proxier-demo plan --manifests examples", &["192.168.50.1:30080"]),
    ("proxier-demo plan CONFIG", &["nothing to do"]),
    ("curl -sI ", &["200 OK"]),
    ("kill %2; wait %2; curl -sI ", &["200 OK"]),
    ("curl -s http://NODE:10256/healthz", &["\"healthy\":true", "\"nodeEligible\":true"]),
    ("proxier-demo show ", &["shop/web"]),
    ("proxier-demo trace node CLUSTER-IP:PORT ", &["it gets to one of"]),
    ("proxier-demo trace node 192.168.50.1", &["it has all of this address and port"]),
    ("proxier-demo trace outside ", &["it gets to one of", "it has all of this address and port"]),
    ("proxier-demo explain ", &["Service shop/web", "gets traffic"]),
    ("proxier-demo diff --from ipvs --to nftables", &["Services differ, from ipvs to nftables"]),
];

/// What the commands of a page find.
const BEFORE: [(&str, &str); 4] = [
    ("docs/install.md", "mkdir -p /etc/proxier-demo/manifests"),
    ("docs/install.md", RUN),
    ("docs/operate.md", "proxier-demo run --once --proxy-mode iptables CONFIG && proxier-demo cleanup"),
    ("docs/troubleshooting.md", RUN),
];

const RUN: &str = "proxier-demo run CONFIG & until curl -sf http://127.0.0.1:10256/readyz; do sleep 0.05; done";

/// Begins the line after what a command printed, before its exit code.
const MARK: &str = "\n@@@ ";

/// What the commands write is in layers above these folders, which end with the session, like its processes.
const SESSION: &str = r#"
    set -e
    mount -t tmpfs -o mode=755 tmpfs /run
    for folder in /etc /usr/local /var/lib "$PWD"; do
        mkdir -p /run/layers$folder/upper /run/layers$folder/work
        mount -t overlay -o lowerdir=$folder,upperdir=/run/layers$folder/upper,workdir=/run/layers$folder/work overlay $folder
    done
    cd "$PWD"
    for address in 192.168.50.1 10.244.0.11 10.244.0.12 10.244.0.13; do ip address add $address/32 dev lo; done
    mkdir -p target/release /var/lib/kube-proxy
    mount -t tmpfs tmpfs target/release
    ln -s $PROGRAM target/release/
    ln -s $PROGRAM .
    cp examples/demo/manifests/web.yaml my-services.yaml
    echo $ACCESS > /var/lib/kube-proxy/kubeconfig.conf
    echo $SETTINGS | tee /var/lib/kube-proxy/config.conf > config.conf
    PATH=${PROGRAM%/*}:$PATH exec bash --norc"#;

fn runs(shown: &Shown) -> bool {
    let command = format!("{}\n", shown.without_comment());
    !NOT_RUN.iter().any(|(_, beginnings)| beginnings.iter().any(|words| command.starts_with(words)))
}

fn with_values(command: &str) -> String {
    VALUES.iter().fold(command.to_owned(), |command, (word, value)| command.replace(word, value))
}

/// Input of the shell for a command. One that does not end by itself is ended.
fn typed(shown: &Shown) -> String {
    let command = with_values(shown.without_comment());
    let line = if command.starts_with("proxier-demo run") && !command.ends_with('&') {
        format!("{command} & until curl -sf http://127.0.0.1:10256/readyz; do sleep 0.05; done; kill $!; wait $!")
    } else if command.contains(" --watch") {
        format!("timeout --preserve-status --signal=INT 1.5 {command}")
    } else {
        command
    };
    format!("{line}\nprintf '{MARK}%s\\n' $?\n")
}

#[test]
fn commands_that_pages_show_run() {
    let manifests = fs::read_dir(root().join("examples/demo/manifests")).unwrap();
    let manifests: Vec<String> = manifests.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let needs = [Need::Root, Need::Mounts, Need::Nftables, Need::Conntrack, Need::Tool("curl"), Need::Tool("python3")];
    kernel_test(&needs, || {
        let mut faults = Vec::new();
        for (page, text) in pages() {
            let shown: Vec<Shown> = shown(&text).into_iter().filter(runs).collect();
            if !shown.is_empty() {
                let _namespace = NetnsGuard::new().unwrap();
                let server = ApiServer::start();
                for object in manifests.iter().flat_map(|text| text.split("\n---\n")) {
                    server.put(&serde_saphyr::from_str::<Value>(object).unwrap());
                }
                faults.extend(faults_of(page.to_str().unwrap(), &shown, &server));
            }
        }
        assert!(faults.is_empty(), "{}\n(a command that cannot run here has a row in NOT_RUN)", faults.join("\n"));
    });
}

/// Runs these commands of a page in one shell.
fn faults_of(page: &str, shown: &[Shown], server: &ApiServer) -> Vec<String> {
    let before = BEFORE.iter().filter(|(of, _)| *of == page).map(|(_, command)| with_values(command) + "\n");
    let typed = before.chain([format!("printf '{MARK}0\\n'\n")]).chain(shown.iter().map(typed)).collect::<String>();
    let printed = session(server, &typed);
    let parts: Vec<&str> = printed.split(MARK).skip(1).collect();
    let (mut faults, mut codes) = (Vec::new(), Vec::new());
    for (shown, pair) in shown.iter().zip(parts.windows(2)) {
        let (command, output) = (&shown.command, pair[0].split_once('\n').unwrap_or_default().1);
        let code = pair[1].lines().next().unwrap_or_default();
        let promised = PRINTS.iter().filter(|(words, _)| command.starts_with(words)).flat_map(|(_, words)| *words);
        let promised = promised.copied().chain(shown.output.iter().map(String::as_str));
        let lacks: Vec<&str> = promised.filter(|words| !output.contains(words)).collect();
        if code != "0" || !lacks.is_empty() {
            faults.push(format!("{page}: {command}: exit code {code}, output without {lacks:?}: {output}"));
        }
        codes.push(code);
    }
    if codes.len() < shown.len() {
        faults.push(format!("{page}: {} of {} commands ended: {printed}", codes.len(), shown.len()));
    }
    faults
}

/// What a shell with this input prints, in namespaces of its own for mounts and processes, in a copy of the project.
fn session(server: &ApiServer, typed: &str) -> String {
    let folder = Folder::new("docs");
    let output = folder.put("output", "");
    let log = File::options().append(true).open(&output).unwrap();
    let settings = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "hostnameOverride": "demo-node", "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
    });
    let mut shell = Command::new("timeout")
        .args(
            "--kill-after=1 120 unshare --mount --pid --fork --kill-child --mount-proc --propagation private"
                .split(' '),
        )
        .args(["bash", "-c", SESSION])
        .current_dir(root())
        .env("PROGRAM", env!("CARGO_BIN_EXE_proxier-demo"))
        .env("ACCESS", server.kubeconfig(None))
        .env("SETTINGS", settings.to_string())
        .stdin(Stdio::piped())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    // If the shell ends early, its output has the reason.
    let _ends_early = shell.stdin.take().unwrap().write_all(typed.as_bytes());
    let ending = shell.wait().unwrap();
    format!("{}\n{ending}", fs::read_to_string(output).unwrap())
}

#[test]
fn the_tables_about_commands_name_those_that_pages_show() {
    let pages = pages();
    let shown: Vec<Shown> = pages.iter().flat_map(|(_, text)| shown(text)).collect();
    let beginnings = NOT_RUN.iter().flat_map(|(_, words)| *words).chain(PRINTS.iter().map(|(words, _)| words));
    for words in beginnings {
        assert!(shown.iter().any(|shown| format!("{}\n", shown.command).starts_with(words)), "no page shows {words}");
    }
    for (word, _) in VALUES {
        assert!(shown.iter().any(|shown| shown.command.contains(word)), "no page shows {word}");
    }
    let run = shown.iter().filter(|shown| runs(shown)).count();
    assert!(run > 40, "{run} of {} commands run", shown.len());
}
