//! Firewall chains and settings of other programs that keep clients from endpoints. The log, `probe`, `plan`, `trace`
//! and the metric name them. Nothing is reported where they do not matter.

use std::path::Path;

use testkit::{Need, kernel_test};

use crate::program::world::{NODE_PORT, World};
use crate::program::{self, Running, command, demo, joined, ok, text, tool};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft, Need::IptablesLegacy];

/// What one command says about obstacles, standard error included.
fn said(world: &World, mode: &str, command: &str) -> String {
    let packet = ["trace", "--live", "192.0.2.2", NODE_PORT];
    let command: &[&str] = if command == "trace" { &packet } else { &[command] };
    let output = demo(&joined(command, &world.arguments(mode)));
    let said = text(&output.stdout) + &text(&output.stderr);
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Each place names `what` in this mode, or none does.
fn is_named(world: &World, mode: &str, what: &str, expected: bool) {
    for command in ["probe", "plan"] {
        let said = said(world, mode, command);
        assert_eq!(said.contains(what), expected, "{mode}, {command}: {said}");
    }
    let running = world.start(mode);
    if expected {
        running.until_logged(what);
    }
    running
        .until("the metric", || program::metrics().get("kubeproxy_leftovers") == Some(&f64::from(u8::from(expected))));
    let traced = if mode == "userspace" { String::new() } else { said(world, mode, "trace") };
    assert_eq!(traced.contains(what), expected && mode != "userspace", "{mode}: {traced}");
    assert_eq!(running.log().contains(what), expected, "{mode}: {}", running.log());
    assert!(running.end().success());
    ok(&command(&["cleanup"]).output().unwrap());
}

#[test]
fn a_chain_that_drops_what_is_forwarded_is_named() {
    const NFT: &str = "nft add table inet firewall; nft 'add chain inet firewall forward \
        {type filter hook forward priority 0; policy drop;}'; nft add rule inet firewall forward ct state established,related accept";
    let iptables = |program: &str| {
        format!(
            "{program} -P FORWARD DROP; {program} -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; \
             {program} -A FORWARD -i docker0 ! -o docker0 -j ACCEPT"
        )
    };
    // A family without addresses does not count.
    let ip6tables = |program: &str| format!("ip addr add 2001:db8::1/64 dev eth9 nodad; {}", iptables(program));
    let (nft, legacy) = (iptables("iptables-nft"), iptables("iptables-legacy"));
    let (nft_6, legacy_6) = (ip6tables("ip6tables-nft"), ip6tables("ip6tables-legacy"));
    for (drop, chain, accept) in [
        (NFT, "chain inet firewall forward drops", "nft add rule inet firewall forward ip daddr 10.244.0.0/16 accept"),
        (nft.as_str(), "chain ip filter FORWARD drops", "iptables-nft -A FORWARD -d 10.244.0.0/16 -j ACCEPT"),
        (
            legacy.as_str(),
            "chain FORWARD of the legacy table filter of IPv4",
            "iptables-legacy -A FORWARD -d 10.244.0.0/16 -j ACCEPT",
        ),
        (nft_6.as_str(), "chain ip6 filter FORWARD drops", "ip6tables-nft -A FORWARD -d fd00:244::/48 -j ACCEPT"),
        (
            legacy_6.as_str(),
            "chain FORWARD of the legacy table filter of IPv6",
            "ip6tables-legacy -A FORWARD -d fd00:244::/48 -j ACCEPT",
        ),
    ] {
        for mode in ["nftables", "iptables", "userspace"] {
            kernel_test(NEEDS, || {
                println!("{chain}, {mode}");
                let world = World::new();
                shell(drop);
                is_named(&world, mode, chain, mode != "userspace");
                shell(accept);
                is_named(&world, mode, chain, false);
            });
        }
    }
}

fn shell(script: &str) {
    let output = std::process::Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
}

/// Rules of iptables mode accept masqueraded packets in that chain; no rule of another table could.
#[test]
fn auto_prefers_the_mode_whose_packets_pass_chain_forward() {
    let auto = |world: &World| {
        let manifests = world.manifests.name();
        let running =
            Running::start(&["--manifests", manifests, "--proxy-mode", "auto", "--cluster-cidr", "10.244.0.0/16"]);
        running.until_logged(" mode, ");
        running.until("a client gets an answer", || world.asks(NODE_PORT));
        let log = running.log();
        assert!(running.end().success());
        log
    };
    kernel_test(NEEDS, || {
        let world = World::new();
        shell("iptables -P FORWARD DROP");
        let log = auto(&world);
        assert!(log.contains("serving in iptables mode") || log.contains("serving in ipvs mode"), "{log}");
        if !Path::new("/proc/net/ip_vs").exists() {
            assert!(log.contains("not nftables: chain ip filter FORWARD drops by default"), "{log}");
        }
    });
    kernel_test(NEEDS, || {
        let log = auto(&World::new());
        assert!(!log.contains("serving in iptables mode"), "{log}");
    });
}

/// Without a mode, a check before a takeover must not fail where another mode than IPVS serves.
#[test]
fn probe_succeeds_without_a_mode_where_any_mode_serves() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        for mode in [&[][..], &["--proxy-mode", "auto"], &["--proxy-mode", ""]] {
            let probed = demo(&[&["probe"], mode].concat());
            assert!(probed.status.success(), "{mode:?}: {}", text(&probed.stdout));
        }
    });
}

#[test]
fn a_bridge_that_forwards_past_all_rules_is_named() {
    const SETTINGS: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
    let set = |value: &str| {
        for setting in SETTINGS.map(|setting| Path::new("/proc/sys/net/bridge").join(setting)) {
            if setting.exists() {
                std::fs::write(setting, value).unwrap();
            }
        }
    };
    let cases = [("10.244.9.1/24", SETTINGS[0]), ("fd00:244:9::1/64 nodad", SETTINGS[1])];
    for (mode, (address, setting)) in
        ["nftables", "iptables", "userspace"].into_iter().flat_map(|mode| cases.map(|case| (mode, case)))
    {
        kernel_test(NEEDS, || {
            let world = World::new();
            shell(
                "ip link add cni9 type bridge; ip link add of9 type veth peer name pod8; ip link set of9 master cni9; \
                 for link in cni9 of9 pod8; do ip link set $link up; done",
            );
            // The link-local address of a bridge is not one of pods.
            shell("until ip -6 addr show dev cni9 scope link | grep -q fe80; do sleep 0.1; done");
            tool(&format!("ip addr add {address} dev cni9"));
            let what = format!("net.bridge.{setting} ");
            set("0");
            is_named(&world, mode, &what, mode != "userspace");
            if Path::new("/proc/sys/net/bridge").exists() {
                set("1");
                is_named(&world, mode, &what, false);
            }
            // A bridge of others has no pods.
            set("0");
            tool("ip addr flush dev cni9");
            tool("ip addr add 172.17.0.1/16 dev cni9");
            is_named(&world, mode, &what, false);
        });
    }
}
