//! What the log says of passes, and settings that are written from a pod.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::{Need, Netns, kernel_test};

use crate::program::world::web;
use crate::program::{Folder, Running, command, in_mounts, set_up, status_of, tool, with_node_port};

/// The milliseconds at the end of a line.
fn took(line: &str) -> f64 {
    line.trim_end().strip_suffix(" ms").unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// By default only the first pass gets a line: a busy cluster has many changes a second.
#[test]
fn changes_get_no_line_in_the_log() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        set_up();
        let folder = Folder::new("quiet");
        let put = |number: u16| {
            let (name, address) = (format!("web-{number}"), format!("10.97.0.{number}"));
            folder.put(&format!("{name}.yaml"), &with_node_port(&name, &address, 30100 + number, &["10.244.0.5"]));
            address
        };
        put(30);
        let running = Running::start(&["--proxy-mode", "nftables", "--manifests", folder.name()]);
        running.until_logged("full pass: ");
        for number in 1..=20 {
            let address = put(number);
            running.until("the change", || tool("nft list table ip proxier").contains(&format!("{address} . ")));
        }
        let log = running.log();
        assert_eq!(log.matches("full pass: ").count(), 1, "{log}");
        // A pass that took a second gets a line too, on a machine that is busy.
        let of_changes = log.lines().filter(|line| line.contains(" pass: ") && !line.contains("full pass: "));
        assert_eq!(of_changes.filter(|line| took(line) < 1000.0).count(), 0, "{log}");
        assert!(log.lines().count() < 20, "fewer lines than changes: {log}");
        assert!(running.end().success());
    });
}

/// A pod sees its own `/proc/sys` read-only. If the node's `net` is mounted too, the proxy writes the settings itself,
/// including those of another mode after its configuration has changed.
#[test]
fn settings_are_written_where_a_pod_has_them_mounted() {
    const MOUNT: &str = "mkdir -p /host/proc/sys/net && mount --bind /proc/sys/net /host/proc/sys/net && mount --bind /proc/sys /proc/sys && \
                         mount -o remount,ro,bind /proc/sys && exec \"$0\" \"$@\"";
    const SETTINGS: [(&str, &str); 3] = [
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/all/route_localnet", "1"),
    ];
    kernel_test(&[Need::Root, Need::Mounts, Need::Nftables, Need::IptablesNft], || {
        let folder = Folder::with("web.yaml", &web());
        let here = Netns::current().unwrap();
        here.write_sysctl("net/ipv4/ip_forward", "0").unwrap();
        let words = "run --proxy-mode iptables --conntrack-tcp-timeout-close-wait 1h --manifests";
        let running = Running::spawn(in_mounts(MOUNT, &words.split(' ').chain([folder.name()]).collect::<Vec<_>>()));
        for (path, value) in SETTINGS {
            let is_set = || std::fs::read_to_string(format!("/proc/sys/{path}")).is_ok_and(|text| text.trim() == value);
            running.until(path, is_set);
        }
        assert!(!running.log().contains("cannot be written"), "{}", running.log());
        assert!(running.end().success());
        let _others_may_use_it = Command::new("rmdir").args(["-p", "/host/proc/sys/net"]).output();
    });
}

/// At most as long as nothing is waited for.
fn ends_at_once(running: Running, when: &str) {
    let begun = Instant::now();
    let status = running.end();
    let took = begun.elapsed();
    assert!(status.code() == Some(0) && took < Duration::from_secs(3), "{when}: {status} after {took:?}");
}

#[test]
fn a_signal_ends_a_start_that_waits_for_its_input() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        tool("ip link set lo up");
        let mut waiting = command(&["run", "--manifests", "-", "--proxy-mode", "nftables"]);
        waiting.stdin(Stdio::piped());
        let running = Running::spawn(waiting);
        running.until_logged("proxier-demo ");
        std::thread::sleep(Duration::from_millis(300));
        ends_at_once(running, "standard input stays open");
    });
}

/// Somebody holds the lock of iptables-legacy, for which each trial rule waits.
#[test]
fn a_signal_ends_a_start_that_waits_for_the_lock_of_iptables() {
    kernel_test(&[Need::Root, Need::Mounts, Need::Veth, Need::IptablesLegacy], || {
        set_up();
        // A rule of the legacy programs: the host uses these, and these have a lock.
        tool("iptables-legacy -A INPUT -s 203.0.113.99 -j DROP");
        let folder = Folder::with("web.yaml", &web());
        let run = format!(
            "mount -t tmpfs -o mode=755 tmpfs /run && exec 9>/run/xtables.lock && flock 9 && exec {} run --manifests {} --hostname-override n1 \
             --proxy-mode iptables --healthz-bind-address 127.0.0.1:10256",
            env!("CARGO_BIN_EXE_proxier-demo"),
            folder.0.display()
        );
        let mut waiting = Command::new("unshare");
        waiting.args(["--mount", "--propagation", "private", "sh", "-c", &run]);
        let running = Running::spawn(waiting);
        running.until("it is live", || status_of("10256/livez") == 200);
        std::thread::sleep(Duration::from_secs(1));
        assert!(!running.log().contains("serving in"), "it waits: {}", running.log());
        ends_at_once(running, "the lock is held");
    });
}
