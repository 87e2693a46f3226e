//! The table that kube-proxy 1.36 writes in its nftables mode, for the Services of [`world`](crate::world). It has a
//! chain per Service, map elements that jump to it, and the chains that the first packet of every connection passes.

use std::fmt::Write as _;

use crate::world::{cluster_ip, endpoint_address, service_name};

/// The table without Services. kube-proxy's comments are omitted.
const BASE: &str = include_str!("../kube-proxy/table.nft");

/// Input of `nft -f` for all Services.
pub(crate) fn full(services: u32, endpoints: u32) -> String {
    let mut text = BASE.to_owned();
    let mut write = |line: std::fmt::Arguments<'_>| {
        let _infallible = writeln!(text, "{line}");
    };
    for number in 0..services {
        let chain = format!("service-{number:08}-demo/{}/tcp/http", service_name(number));
        let places: Vec<_> = (0..endpoints)
            .map(|endpoint| format!("{endpoint} : {} . 8080", endpoint_address(number, endpoint)))
            .collect();
        let places = places.join(", ");
        write(format_args!("add chain ip kube-proxy {chain}"));
        write(format_args!(
            "add rule ip kube-proxy {chain} meta l4proto tcp dnat ip to numgen random mod {endpoints} map {{ {places} }}"
        ));
    }
    for number in 0..services {
        let address = cluster_ip(number);
        let chain = format!("service-{number:08}-demo/{}/tcp/http", service_name(number));
        write(format_args!("add element ip kube-proxy cluster-ips {{ {address} }}"));
        write(format_args!("add element ip kube-proxy service-ips {{ {address} . tcp . 80 : goto {chain} }}"));
        for endpoint in 0..endpoints {
            let to = endpoint_address(number, endpoint);
            write(format_args!("add element ip kube-proxy hairpin-connections {{ {to} . {to} . tcp . 8080 }}"));
        }
    }
    text
}
