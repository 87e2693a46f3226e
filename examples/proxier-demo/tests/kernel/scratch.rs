//! A root directory that holds the program and no other one that it could start: IPVS mode with guards in nf_tables, and nftables mode; and rules
//! that another mode has left, which go or are reported.
//!
//! `PROXIER_STATIC` names a static program to take, as images `FROM scratch` have it; the default is the program of this build, with the libraries
//! that it is linked to. `PROXIER_ROOT` names the unpacked root directory of an image, to take instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Need, PROXY, kernel_test, oracle};

use crate::program::world::{NODE_PORT, RULES, SERVICE, World, web};
use crate::program::{self, Folder, Running, changed, ok, tool};

/// A root directory with the program, manifests, and the empty directories that a container has.
struct Scratch(Folder);

/// The program in there.
const PROGRAM: &str = "usr/local/bin/proxier-demo";

impl Scratch {
    fn new() -> Self {
        let root = Folder::new("scratch");
        if let Some(image) = std::env::var_os("PROXIER_ROOT") {
            ok(&Command::new("cp").arg("-a").arg(PathBuf::from(image).join(".")).arg(&root.0).output().unwrap());
        } else {
            let program = std::env::var_os("PROXIER_STATIC")
                .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_proxier-demo")), PathBuf::from);
            for (file, inside) in libraries(&program)
                .iter()
                .map(|library| (library, library.strip_prefix("/").unwrap()))
                .chain([(&program, Path::new(PROGRAM))])
            {
                let inside = root.0.join(inside);
                fs::create_dir_all(inside.parent().unwrap()).unwrap();
                fs::copy(file, inside).unwrap();
            }
        }
        for empty in ["proc", "sys", "run", "manifests"] {
            fs::create_dir_all(root.0.join(empty)).unwrap();
        }
        fs::write(root.0.join("manifests/web.yaml"), web()).unwrap();
        Scratch(root)
    }

    /// The program in there, with `/proc` and `/sys` as containers have them. It keeps the process' number.
    fn command(&self, arguments: &[&str]) -> Command {
        let inside = "mount -t proc proc \"$0/proc\" && mount -t sysfs -o ro sysfs \"$0/sys\" && exec chroot \"$0\" /usr/local/bin/proxier-demo \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", inside])
            .arg(&self.0.0)
            .args(arguments)
            .args(["--hostname-override", "n1"]);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found
    }
}

/// Libraries of the program; none for a static one.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let printed = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    text.split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .filter(|path| path.is_file())
        .collect()
}

fn serves(mode: &str, more: &[&str], holds: fn() -> bool) {
    let (world, scratch) = (World::new(), Scratch::new());
    if std::env::var_os("PROXIER_ROOT").is_none() {
        let programs = scratch.files().into_iter().filter(|file| !file.to_string_lossy().contains(".so"));
        assert_eq!(programs.count(), 2, "the program and the manifest: {:#?}", scratch.files());
    }

    let common =
        ["--manifests", "/manifests", "--proxy-mode", mode, "--no-fallback", "--cluster-cidr", "10.244.0.0/16"];
    let arguments: Vec<&str> = common.iter().chain(more).copied().collect();
    let words = |first: &[&'static str]| first.iter().copied().chain(arguments.iter().copied()).collect::<Vec<_>>();
    let run = words(&["run", "--healthz-bind-address", "127.0.0.1:10256"]);
    let running = Running::spawn(scratch.command(&run));
    running.until_logged(&format!("serving in {mode} mode"));
    running.until("it serves", || holds() && world.asks(SERVICE) && world.asks(NODE_PORT));

    // A change, then a kill, then a new process: none of them needs another program.
    let more =
        web().replace("10.96.0.10", "10.96.0.11").replace("web", "more").replace("nodePort: 30080", "nodePort: 30081");
    fs::write(scratch.0.0.join("manifests/more.yaml"), more).unwrap();
    running.until("the second Service", || world.asks("10.96.0.11:80") && world.asks("192.0.2.1:30081"));
    running.end_with("KILL");
    assert!(world.asks(SERVICE) && world.asks("10.96.0.11:80"));
    fs::remove_file(scratch.0.0.join("manifests/more.yaml")).unwrap();
    let running = Running::spawn(scratch.command(&run));
    running.until("the second Service has gone", || !world.asks("10.96.0.11:80"));
    assert!(world.asks(SERVICE) && world.asks(NODE_PORT), "{}", running.log());
    assert!(running.end().success());

    let planned = ok(&scratch.command(&words(&["plan"])).output().unwrap());
    assert!(planned.starts_with("nothing to do"), "{planned}");
    ok(&scratch.command(&["cleanup"]).output().unwrap());
    assert!(!holds());
    assert_eq!(tool("nft list tables"), "");
}

#[test]
fn nftables_mode() {
    kernel_test(&[Need::Root, Need::Mounts, Need::Veth, Need::Nftables], || {
        serves("nftables", &[], || tool("nft list tables").contains("table ip proxier"));
    });
}

#[test]
fn ipvs_mode() {
    kernel_test(&[PROXY, &[Need::Mounts, Need::Veth, Need::Nftables]].concat(), || {
        serves("ipvs", &["--ipvs-rules", "nftables"], || changed().iter().any(|line| line.contains("10.96.0.10:80")));
        assert_eq!(changed(), [""; 0]);
    });
}

/// Remaining own lines that decide about packets, and foreign ones.
fn left() -> (Vec<String>, Vec<String>) {
    let of_kubelet = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY"];
    let saved = RULES.map(|(family, _)| tool(&format!("{family}-nft-save")));
    let lines = saved.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    let lines = lines.filter(|line| line.starts_with("-A") || line.starts_with(":KUBE") || line.starts_with(":MINE"));
    let is_its = |line: &&str| line.contains("KUBE-") && !of_kubelet.iter().any(|of| line.contains(of));
    let is_canary = |line: &&str| line.contains("KUBE-PROXY-CANARY");
    let (its, others): (Vec<&str>, Vec<&str>) = lines.filter(|line| !is_canary(line)).partition(is_its);
    let own = |lines: Vec<&str>| lines.into_iter().map(str::to_owned).collect();
    (own(its), own(others))
}

fn run_in(scratch: &Scratch, mode: &str) -> Running {
    let arguments = ["run", "--manifests", "/manifests", "--proxy-mode", mode, "--no-fallback", "--cluster-cidr"];
    let rules = ["--ipvs-rules", "nftables"].into_iter().filter(|_| mode == "ipvs");
    let arguments: Vec<&str> = arguments.into_iter().chain(["10.244.0.0/16"]).chain(rules).collect();
    let running = Running::spawn(scratch.command(&arguments));
    running.until_logged(&format!("serving in {mode} mode"));
    running
}

/// Chains that iptables mode has left in nf_tables go without any program of iptables, and foreign ones stay.
fn left_rules_go(mode: &str) {
    let (world, scratch) = (World::new(), Scratch::new());
    for (family, rules) in RULES {
        oracle::run(&format!("{family}-nft-restore"), &[], Some(rules)).unwrap();
        for theirs in [
            "-N MINE",
            "-A MINE -s 203.0.113.9 -j RETURN",
            "-A FORWARD -m conntrack --ctstate NEW -m comment --comment mine -j MINE",
            "-t nat -A PREROUTING -p udp --dport 9 -j ACCEPT",
        ] {
            let theirs =
                if family == "iptables" { theirs.to_owned() } else { theirs.replace("203.0.113.9", "2001:db8::9") };
            tool(&format!("{family}-nft {theirs}"));
        }
    }
    let (its, others) = left();
    assert!(its.len() > 20 && others.len() >= 8, "{its:#?} {others:#?}");
    assert!(world.asks(SERVICE) && world.asks(NODE_PORT));
    let running = run_in(&scratch, mode);
    running.until("its rules are gone", || left().0.is_empty());
    assert_eq!(left().1, others);
    assert!(world.asks(SERVICE) && world.asks(NODE_PORT), "{}", running.log());
    fs::remove_file(scratch.0.0.join("manifests/web.yaml")).unwrap();
    running.until("the Service has gone", || !world.asks(SERVICE) && !world.asks(NODE_PORT));
    assert!(!running.log().contains("ERROR"), "{}", running.log());
    assert!(running.end().success());
    // `cleanup` removes them too.
    for (family, rules) in RULES {
        oracle::run(&format!("{family}-nft-restore"), &["--noflush"], Some(rules)).unwrap();
    }
    assert_ne!(left().0, [""; 0]);
    ok(&scratch.command(&["cleanup"]).output().unwrap());
    assert_eq!(left().0, [""; 0]);
}

const LEFT: &[Need] = &[Need::Mounts, Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft];

#[test]
fn left_rules_go_without_programs() {
    for mode in ["nftables", "userspace"] {
        kernel_test(LEFT, || left_rules_go(mode));
    }
    kernel_test(&[PROXY, LEFT].concat(), || left_rules_go("ipvs"));
}

/// Tables of iptables-legacy can only be read by its programs: that they are there is said.
#[test]
fn left_tables_that_no_program_reads_are_reported() {
    kernel_test(&[LEFT, &[Need::IptablesLegacy]].concat(), || {
        let (_world, scratch) = (World::new(), Scratch::new());
        oracle::run("iptables-legacy-restore", &[], Some(RULES[0].1)).unwrap();
        let says = "/proc/net/ip_tables_names may be another mode's";
        let running = run_in(&scratch, "nftables");
        running.until_logged(says);
        running.until("the metric", || program::metrics().get("kubeproxy_leftovers") == Some(&1.0));
        assert!(running.end().success());
        let probed = scratch.command(&["probe", "--proxy-mode", "nftables", "-o", "json"]).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&probed.stdout).unwrap();
        let planned =
            ["plan", "--manifests", "/manifests", "--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16"];
        let planned = scratch.command(&planned).output().unwrap();
        assert!(ok(&planned).starts_with("nothing to do"), "{planned:?}");
        assert!(program::text(&planned.stderr).contains(says), "{planned:?}");
        assert!(json["leftovers"][0].as_str().unwrap().contains(says), "{json:#}");
        let cleaned = scratch.command(&["cleanup"]).output().unwrap();
        ok(&cleaned);
        assert!(program::text(&cleaned.stderr).contains(says), "{cleaned:?}");
    });
}
