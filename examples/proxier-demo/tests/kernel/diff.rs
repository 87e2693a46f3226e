//! `diff --from kube-proxy`: what serves is found in the kernel, and endpoints there that the Services do not have.

use testkit::{Need, PROXY, kernel_test};

use crate::program::world::{World, web};
use crate::program::{demo, joined, ok, text, tool};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft];

/// Tables of kube-proxy 1.36.
const TABLES: &str = include_str!("../fixtures/kube-proxy/tables-1.36.nft");

fn diff(world: &World, to: &str) -> (i32, String) {
    let manifests = world.manifests.0.display().to_string();
    let output = demo(&["diff", "--manifests", &manifests, "--to", to, "--cluster-cidr", "10.244.0.0/16"]);
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
        world.manifests.put("tables.nft", TABLES);
        tool(&format!("nft -f {}", world.manifests.path("tables.nft").display()));
        std::fs::remove_file(world.manifests.path("tables.nft")).unwrap();
        // The tables have two Services more.
        let (code, said) = diff(&world, "iptables");
        assert!(code == 3 && said.contains("0 of 1 Services differ, from nftables to iptables"), "{said}");
        let gone = "no Service: TCP 10.96.0.40:80, TCP 198.51.100.5:80\n  everybody: gets 10.244.0.5:8080 → not served";
        assert!(said.contains(gone) && said.contains("no Service: TCP 0.0.0.0:30081, TCP 10.96.0.20:80"), "{said}");
        world.manifests.put("web.yaml", &web().replace("10.244.0.5", "10.244.0.6"));
        let (_, said) = diff(&world, "iptables");
        assert!(said.contains("as the Services say: 10.244.0.5:8080 → 10.244.0.6:8080"), "{said}");
    });
}

#[test]
fn virtual_servers_are_found() {
    kernel_test(&[PROXY, NEEDS].concat(), || finds("ipvs"));
}
