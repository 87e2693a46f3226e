//! A Service without endpoints refuses at once, however many clients ask: a reset, where the kernel sends few ICMP errors to each client.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use testkit::{Need, PROXY, kernel_test};

use crate::program::world::World;
use crate::program::{Folder, HTTP, Running, lone, slice};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft];

/// A Service without endpoints, with a node port and a load balancer that this client may not use; and one that has one.
fn empty() -> String {
    let of = |address: &str, port: &str, more: &str| {
        let port = format!("{{name: http, port: 80, protocol: TCP, targetPort: 8080{port}}}");
        format!("clusterIP: {address}, clusterIPs: [{address}], ipFamilies: [IPv4], ports: [{port}], {more}")
    };
    let closed = of("10.96.0.51", "", "type: LoadBalancer, loadBalancerSourceRanges: [203.0.113.0/24]");
    lone("empty", &of("10.96.0.50", ", nodePort: 30050", "type: NodePort"), "")
        + &lone("closed", &closed, "{ip: 198.51.100.51}")
}

const PLACES: [&str; 2] = ["10.96.0.50:80", "192.0.2.1:30050"];

/// Connections are refused a thousand times in a row, each in this time.
fn refuses(world: &World, proxy: &Running, mode: &str) {
    for place in PLACES {
        let to: SocketAddr = place.parse().unwrap();
        let ask = || TcpStream::connect_timeout(&to, Duration::from_secs(10)).map(drop).map_err(|error| error.kind());
        let refused = |answer: &Result<(), ErrorKind>| *answer == Err(ErrorKind::ConnectionRefused);
        proxy.until("it refuses", || world.client.run_in(|| refused(&ask())).unwrap());
        let mut times: Vec<Duration> = world
            .client
            .run_in(|| {
                let timed = |_| {
                    let begin = Instant::now();
                    let answer = ask();
                    assert!(refused(&answer), "{mode}, {place}: {answer:?}");
                    begin.elapsed()
                };
                (0..1_000).map(timed).collect()
            })
            .unwrap();
        times.sort_unstable();
        println!("{mode}, {place}: half in {:?}, 99 of 100 in {:?}, all in {:?}", times[499], times[989], times[999]);
        // A packet that is not answered is sent again after a second.
        assert!(times[999] < Duration::from_millis(900), "{mode}, {place}: {:?}", times[999]);
    }
}

fn serve_and_refuse(mode: &str) {
    let world = World::new();
    world.manifests.put("empty.yaml", &empty());
    let settings = Folder::new("refusals-settings");
    let proxy = match mode {
        "iptables" => {
            let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
            let body = "mode: iptables\nclusterCIDR: 10.244.0.0/16\niptables: {rejectWithReset: true}\n";
            let config = settings.put("config.yaml", &format!("{head}{body}"));
            let paths = [&world.manifests.0, &config].map(|path| path.display().to_string());
            Running::start(&["--manifests", &paths[0], "--config", &paths[1]])
        }
        _ => world.start(mode),
    };
    proxy.until("it serves", || world.asks("10.96.0.10:80"));
    refuses(&world, &proxy, mode);
    // A client that may not connect learns nothing from IPVS mode; other modes report that the endpoints are missing.
    if mode.starts_with("ipvs") {
        assert!(!world.connects("198.51.100.51:80"));
    }
    world.manifests.put("slice.yaml", &slice("empty", "IPv4", HTTP, "{addresses: [10.244.0.5]}"));
    for place in PLACES {
        proxy.until("the endpoint answers", || world.asks(place));
    }
    std::fs::remove_file(world.manifests.path("slice.yaml")).unwrap();
    refuses(&world, &proxy, mode);
    assert!(proxy.end().success());
}

#[test]
fn services_without_endpoints_refuse_at_once_in_modes_without_ipvs() {
    for mode in ["nftables", "iptables", "userspace"] {
        kernel_test(NEEDS, || serve_and_refuse(mode));
    }
}

#[test]
fn services_without_endpoints_refuse_at_once_in_ipvs_mode_with_a_table() {
    kernel_test(&[PROXY, NEEDS].concat(), || serve_and_refuse("ipvs:nftables"));
}
