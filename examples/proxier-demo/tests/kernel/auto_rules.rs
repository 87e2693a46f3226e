//! `ipvs.rules: auto`: one table of nf_tables on a fresh node, without a program; rules of iptables where kube-proxy's chains and sets are,
//! and where iptables drops by default.

use std::process::Command;

use serde_json::Value;
use testkit::{Need, PROXY, kernel_test};

use crate::program::{Folder, changed, command, demo, ipvsadm, ok, service, set_up, text, tool};

const AUTO: [&str; 5] = ["--proxy-mode", "ipvs", "--no-fallback", "--ipvs-rules", "auto"];

fn manifests() -> Folder {
    let folder = Folder::new("auto-rules");
    folder.put("web.yaml", &service("demo", "web", "10.96.0.10", "{addresses: [10.244.0.5]}"));
    folder
}

/// Runs `run --once`; returns its standard error.
#[track_caller]
fn once(manifests: &Folder) -> String {
    let path = manifests.0.display().to_string();
    let output = demo(&[&["run", "--once", "--manifests", &path][..], &AUTO].concat());
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
        let path = folder.0.display().to_string();
        let inner = command(&[&["run", "--once", "--manifests", &path][..], &AUTO].concat());
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
fn auto_is_iptables_where_chains_and_sets_of_kube_proxy_are() {
    kernel_test(&needs(), || {
        set_up();
        let folder = manifests();
        // Chains alone are of kube-proxy's iptables mode, too.
        tool("iptables -t nat -N KUBE-SERVICES");
        assert_eq!(probed().0, "nftables");
        tool("ip link add kube-ipvs0 type dummy");
        let (rules, reason) = probed();
        assert!(rules == "iptables" && reason.contains("chain KUBE-SERVICES"), "{rules}: {reason}");
        // Sets are enough, while the device is there.
        tool("iptables -t nat -X KUBE-SERVICES");
        assert_eq!(probed().0, "nftables");
        tool("ipset create KUBE-CLUSTER-IP hash:ip,port");
        let (rules, reason) = probed();
        assert!(rules == "iptables" && reason.contains("set KUBE-CLUSTER-IP"), "{rules}: {reason}");

        let said = once(&folder);
        assert!(said.contains("rules by iptables: set KUBE-CLUSTER-IP"), "{said}");
        assert!(tool("ipset save KUBE-CLUSTER-IP").contains("10.96.0.10,tcp:80"));
        assert!(tool("iptables-save").contains("-j KUBE-SERVICES"));
        assert_eq!(tables(), [""; 0]);
        let said = once(&folder);
        assert!(said.contains("rules by iptables: chain KUBE-SERVICES and device kube-ipvs0"), "{said}");
        ok(&demo(&["cleanup"]));
        assert_eq!(changed(), [""; 0]);
    });
}

#[test]
fn auto_is_iptables_where_a_filter_drops_by_default() {
    for program in ["iptables", "ip6tables"] {
        kernel_test(&needs(), || {
            set_up();
            let folder = manifests();
            let said = once(&folder);
            assert!(said.contains("rules by nftables: "), "{said}");
            tool(&format!("{program} -P FORWARD DROP"));
            let (rules, reason) = probed();
            assert!(rules == "iptables" && reason.contains("chain FORWARD"), "{program}: {rules}: {reason}");
            // The earlier table goes once the chains serve.
            let said = once(&folder);
            assert!(said.contains("rules by iptables: chain FORWARD"), "{program}: {said}");
            assert!(tool("ipset save KUBE-CLUSTER-IP").contains("10.96.0.10,tcp:80"));
            assert_eq!(tables(), [""; 0], "{program}");
            ok(&demo(&["cleanup"]));
            tool(&format!("{program} -P FORWARD ACCEPT"));
            assert_eq!((changed(), tables()), (vec![], vec![]), "{program}");
        });
    }
}

/// Chains that drop input are named, since no other table can accept those packets again; iptables rules have their own
/// chain and are not affected.
#[test]
fn chains_that_drop_what_comes_in_are_named() {
    kernel_test(&needs(), || {
        set_up();
        let folder = manifests();
        let named = || {
            let report: Value =
                serde_json::from_slice(&demo(&[&["probe", "-o", "json"][..], &AUTO].concat()).stdout).unwrap();
            let named = report["input"].as_array().unwrap().iter();
            named.map(|line| line.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(named(), [""; 0]);
        tool("iptables -P INPUT DROP");
        assert_eq!(named(), [""; 0]);
        once(&folder);
        assert!(tool("iptables -S KUBE-NODE-PORT").contains("--match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT"));
        tool("iptables -P INPUT ACCEPT");
        once(&folder);
        assert!(!tool("iptables -S KUBE-NODE-PORT").contains("KUBE-CLUSTER-IP"));
        tool("nft add table inet firewall");
        tool("nft add chain inet firewall in { type filter hook input priority 0 ; policy drop ; }");
        assert!(named()[0].starts_with("chain inet firewall in drops by default"), "{:?}", named());
        assert!(once(&folder).contains("chain inet firewall in drops by default"));
        tool("nft delete table inet firewall");
        // firewalld has such chains: the last rule rejects, here or in a chain to which all packets go.
        tool("nft add table inet firewall");
        tool("nft add chain inet firewall in { type filter hook input priority 10 ; policy accept ; }");
        tool("nft add chain inet firewall rest");
        tool("nft add rule inet firewall in ct state established accept");
        tool("nft add rule inet firewall rest tcp dport 22 accept");
        tool("nft add rule inet firewall in jump rest");
        assert_eq!(named(), [""; 0]);
        tool("nft add rule inet firewall rest counter reject with icmpx admin-prohibited");
        assert!(named()[0].starts_with("chain inet firewall in drops by default"), "{:?}", named());
        tool("nft delete table inet firewall");
        // A rule drops packets that every new connection has.
        tool("nft add table inet firewall");
        tool("nft add chain inet firewall in { type filter hook input priority 10 ; policy accept ; }");
        for (rule, drops) in [
            ("ct state invalid drop", false),
            ("tcp dport 22 drop", false),
            ("ct state new drop", true),
            ("meta l4proto udp reject", true),
            ("meta nfproto ipv6 tcp flags syn / fin,syn,rst,ack drop", true),
            ("ip protocol tcp ct state ! established,related drop", true),
        ] {
            tool(&format!("nft add rule inet firewall in {rule}"));
            assert_eq!(named().len(), usize::from(drops), "{rule}: {:?}", named());
            tool("nft flush chain inet firewall in");
        }
        tool("nft delete table inet firewall");
        tool("iptables -A INPUT -m conntrack --ctstate NEW -j DROP");
        once(&folder);
        assert!(tool("iptables -S KUBE-NODE-PORT").contains("--match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT"));
        tool("iptables -F INPUT");
        tool("iptables -A INPUT -p tcp --dport 22 -j ACCEPT");
        tool("iptables -A INPUT -j REJECT --reject-with icmp-host-prohibited");
        once(&folder);
        assert!(tool("iptables -S KUBE-NODE-PORT").contains("--match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT"));
        assert!(tool("iptables -S INPUT").trim_end().ends_with("-j REJECT --reject-with icmp-host-prohibited"));
        let by_nft = ["probe", "-o", "json", "--proxy-mode", "ipvs", "--no-fallback", "--ipvs-rules", "nftables"];
        let report = text(&demo(&by_nft).stdout);
        assert!(report.contains("chain ip filter INPUT drops by default"), "{report}");
        tool("iptables -F INPUT");
        tool("iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        assert!(!text(&demo(&by_nft).stdout).contains("INPUT drops by default"));
        tool("iptables -A INPUT -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP");
        let report = text(&demo(&by_nft).stdout);
        assert!(report.contains("chain ip filter INPUT drops by default"), "{report}");
        tool("iptables -F INPUT");
        ok(&demo(&["cleanup"]));
    });
}
