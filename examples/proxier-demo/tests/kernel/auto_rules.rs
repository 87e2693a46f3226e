//! `ipvs.rules: auto`: one table of nf_tables on a fresh node, without a program; rules of iptables where kube-proxy's chains and sets are,
//! and where iptables drops by default.

use std::process::Command;

use serde_json::Value;
use testkit::{Need, PROXY, kernel_test};

use crate::program::{Folder, changed, command, demo, ipvsadm, ok, service, set_up, text, tool};

const AUTO: [&str; 5] = ["--proxy-mode", "ipvs", "--no-fallback", "--ipvs-rules", "auto"];

fn manifests() -> Folder {
    Folder::with("web.yaml", &service("demo", "web", "10.96.0.10", "{addresses: [10.244.0.5]}"))
}

/// Runs `run --once`; returns its standard error.
#[track_caller]
fn once(manifests: &Folder) -> String {
    let output = demo(&[&["run", "--once", "--manifests", manifests.name()][..], &AUTO].concat());
    ok(&output);
    assert!(ipvsadm().contains("-a -t 10.96.0.10:80 -r 10.244.0.5:8080 -m -w 1"), "{:?}", ipvsadm());
    text(&output.stderr)
}

/// Rules that `probe` names, and the reason.
fn probed() -> (String, String) {
    let output = demo(&[&["probe", "-o", "json"][..], &AUTO].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = text(&demo(&[&["probe"][..], &AUTO].concat()).stdout);
    let (rules, reason) = (report["rules"].as_str().unwrap(), report["rules_reason"].as_str().unwrap());
    assert!(text.contains(&format!("rules by {rules}: {reason}\n")), "{text}");
    (rules.to_owned(), reason.to_owned())
}

/// Tables of nf_tables, without those of the iptables programs.
fn tables() -> Vec<String> {
    let theirs = |line: &str| ["filter", "nat", "mangle"].iter().any(|name| line.ends_with(&format!(" {name}")));
    tool("nft list tables").lines().filter(|line| !theirs(line)).map(str::to_owned).collect()
}

fn needs() -> Vec<Need> {
    [PROXY, &[Need::Nftables, Need::Tool("strace")]].concat()
}

#[test]
fn auto_is_a_table_on_a_fresh_node_and_starts_no_program() {
    kernel_test(&needs(), || {
        set_up();
        let folder = manifests();
        assert_eq!(probed().0, "nftables");
        let trace = folder.0.join(".trace");
        let inner = command(&[&["run", "--once", "--manifests", folder.name()][..], &AUTO].concat());
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "trace=execve", "-o"]).arg(&trace).arg(inner.get_program());
        let output = strace.args(inner.get_args()).output().unwrap();
        ok(&output);
        let said = text(&output.stderr);
        assert!(said.contains("rules by nftables: iptables has no table filter that drops by default"), "{said}");
        let trace = std::fs::read_to_string(&trace).unwrap();
        let others: Vec<&str> = trace.lines().filter(|line| line.contains("execve(")).skip(1).collect();
        assert!(others.iter().all(|line| line.contains("modprobe")), "{others:#?}");

        assert!(ipvsadm().contains("-a -t 10.96.0.10:80 -r 10.244.0.5:8080 -m -w 1"), "{:?}", ipvsadm());
        assert!(tool("nft list table ip proxier-ipvs").contains("10.96.0.10 . tcp . 80"));
        assert_eq!(tool("nft list tables"), "table ip proxier-ipvs\ntable ip6 proxier-ipvs\n");
        assert_eq!(tool("ipset list -n"), "");
        assert!(["iptables-save", "iptables-legacy-save"].iter().all(|save| !tool(save).contains("KUBE-")));

        // A successor takes the table that it finds, also once iptables has tables that drop nothing.
        tool("iptables -A INPUT -s 203.0.113.0/24 -j DROP");
        let said = once(&folder);
        assert!(said.contains("rules by nftables: the table of an earlier process exists"), "{said}");
        assert_eq!(tool("ipset list -n"), "");
        ok(&demo(&["cleanup"]));
        assert_eq!((changed(), tables()), (vec![], vec![]));
    });
}

#[test]
fn auto_is_iptables_where_kube_proxys_chains_are_or_a_filter_drops() {
    for (lines, reason) in [
        (&["ip link add kube-ipvs0 type dummy", "iptables -t nat -N KUBE-SERVICES"][..], "chain KUBE-SERVICES"),
        (&["ip link add kube-ipvs0 type dummy", "ipset create KUBE-CLUSTER-IP hash:ip,port"], "set KUBE-CLUSTER-IP"),
        (&["iptables -P FORWARD DROP"], "chain FORWARD"),
        (&["ip6tables -P FORWARD DROP"], "chain FORWARD"),
    ] {
        kernel_test(&needs(), || {
            set_up();
            let folder = manifests();
            // An earlier table goes once the chains serve.
            if reason == "chain FORWARD" {
                once(&folder);
            }
            for line in lines {
                tool(line);
            }
            let (rules, why) = probed();
            assert!(rules == "iptables" && why.contains(reason), "{rules}: {why}");
            let said = once(&folder);
            assert!(said.contains(&format!("rules by iptables: {reason}")), "{said}");
            assert!(tool("ipset save KUBE-CLUSTER-IP").contains("10.96.0.10,tcp:80"));
            assert!(tool("iptables-save").contains("-j KUBE-SERVICES"));
            assert_eq!(tables(), [""; 0], "{reason}");
            ok(&demo(&["cleanup"]));
            assert_eq!((changed(), tables()), (vec![], vec![]), "{reason}");
        });
    }
}

/// Chains that drop input are named, since no other table can accept those packets again; iptables rules have their own
/// chain and are not affected.
#[test]
fn chains_that_drop_what_comes_in_are_named() {
    kernel_test(&needs(), || {
        set_up();
        let named = |rules: &str| {
            let probe = ["probe", "-o", "json", "--proxy-mode", "ipvs", "--no-fallback", "--ipvs-rules", rules];
            let report: Value = serde_json::from_slice(&demo(&probe).stdout).unwrap();
            report["input"].as_array().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        tool("iptables -A INPUT -j REJECT --reject-with icmp-host-prohibited");
        assert_eq!(named("auto"), [""; 0]);
        assert!(named("nftables")[0].contains("chain ip filter INPUT drops by default"), "{:?}", named("nftables"));
        tool("iptables -F INPUT");
        assert_eq!(named("nftables"), [""; 0]);
        // firewalld has such chains: the last rule rejects in a chain to which all packets go.
        tool("nft add table inet firewall");
        tool("nft add chain inet firewall in { type filter hook input priority 10 ; policy accept ; }");
        tool("nft add chain inet firewall rest");
        tool("nft add rule inet firewall in jump rest");
        assert_eq!(named("auto"), [""; 0]);
        tool("nft add rule inet firewall rest counter reject with icmpx admin-prohibited");
        assert!(named("auto")[0].contains("chain inet firewall in drops by default"), "{:?}", named("auto"));
        assert!(once(&manifests()).contains("chain inet firewall in drops by default"));
        ok(&demo(&["cleanup"]));
    });
}
