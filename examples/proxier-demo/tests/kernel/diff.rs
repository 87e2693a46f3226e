//! `diff --from kube-proxy`: what serves is found in the kernel, and endpoints there that the Services do not have.

use testkit::{Need, PROXY, kernel_test};

use crate::program::world::{World, web};
use crate::program::{demo, joined, ok, text, tool};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft];

/// Tables of kube-proxy 1.36.
const TABLES: &str = include_str!("../fixtures/kube-proxy/tables-1.36.nft");

/// What kube-proxy 1.36 adds for a Service with affinity, with the names that it gives in IPv6.
const AFFINITY: &str = "
table ip6 kube-proxy {
    set affinity-SM2GLRKF-demo/s1/udp/p1__fd00.244.1..12/9090 {
        type ipv6_addr; size 65535; flags dynamic,timeout; timeout 3h
    }
    chain endpoint-SM2GLRKF-demo/s1/udp/p1__fd00.244.1..12/9090 {
        update @affinity-SM2GLRKF-demo/s1/udp/p1__fd00.244.1..12/9090 { ip6 saddr }
        meta l4proto udp dnat to [fd00:244:1::12]:9090
    }
    chain service-XGQOVKRW-demo/s1/udp/p1 {
        ip6 saddr @affinity-SM2GLRKF-demo/s1/udp/p1__fd00.244.1..12/9090 \
            goto endpoint-SM2GLRKF-demo/s1/udp/p1__fd00.244.1..12/9090
        numgen random mod 1 vmap { 0 : goto endpoint-SM2GLRKF-demo/s1/udp/p1__fd00.244.1..12/9090 }
    }
    map service-ips {
        type ipv6_addr . inet_proto . inet_service : verdict
        elements = { fd00:96::50 . udp . 80 : goto service-XGQOVKRW-demo/s1/udp/p1 }
    }
}";

fn diff(world: &World, to: &str) -> (i32, String) {
    let output = demo(&["diff", "--manifests", world.manifests.name(), "--to", to, "--cluster-cidr", "10.244.0.0/16"]);
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

/// Chains or virtual servers as a kube-proxy leaves them; then an endpoint changes.
fn finds(mode: &str) {
    let world = World::new();
    let (code, said) = diff(&world, "nftables");
    assert!(code == 1 && said.contains("no kube-proxy has left anything here"), "{said}");
    ok(&demo(&joined(&["run", "--once"], &world.arguments(mode))));
    let (code, said) = diff(&world, mode);
    assert!(code == 0 && said.contains(&format!("from {mode} to {mode}")), "{said}");
    world.manifests.put("web.yaml", &web().replace("10.244.0.5", "10.244.0.6"));
    let (code, said) = diff(&world, mode);
    let stale = "endpoints in the kernel, and as the Services say: 10.244.0.5:8080 → 10.244.0.6:8080";
    assert!(code == 3 && said.contains(stale) && said.contains("demo/web TCP 10.96.0.10:80, "), "{said}");
    let (_, said) = diff(&world, "userspace");
    assert!(said.contains(&format!("from {mode} to userspace")), "{said}");
}

#[test]
fn chains_and_tables_of_kube_proxy_are_found() {
    kernel_test(NEEDS, || finds("iptables"));
    kernel_test(NEEDS, || {
        let world = World::new();
        world.manifests.put("tables.nft", &[TABLES, AFFINITY].concat());
        tool(&format!("nft -f {}", world.manifests.path("tables.nft").display()));
        std::fs::remove_file(world.manifests.path("tables.nft")).unwrap();
        // The tables have two Services more.
        let (code, said) = diff(&world, "iptables");
        assert!(code == 3 && said.contains("0 of 1 Services differ, from nftables to iptables"), "{said}");
        let gone = "no Service: TCP 10.96.0.40:80, TCP 198.51.100.5:80\n  everybody: gets 10.244.0.5:8080 → not served";
        assert!(said.contains(gone) && said.contains("no Service: TCP 0.0.0.0:30081, TCP 10.96.0.20:80"), "{said}");
        let with_affinity = "UDP [fd00:96::50]:80\n  everybody: gets [fd00:244:1::12]:9090 → not served";
        assert!(said.contains(with_affinity), "{said}");
        world.manifests.put("web.yaml", &web().replace("10.244.0.5", "10.244.0.6"));
        let (_, said) = diff(&world, "iptables");
        assert!(said.contains("as the Services say: 10.244.0.5:8080 → 10.244.0.6:8080"), "{said}");
    });
}

#[test]
fn virtual_servers_are_found() {
    kernel_test(&[PROXY, NEEDS].concat(), || finds("ipvs"));
}
