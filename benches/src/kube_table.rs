//! The table that kube-proxy 1.36 writes in its nftables mode, for the Services of [`world`](crate::world): a chain for each Service, elements of a
//! map that lead to them, and the chains that every packet of a new connection passes.

use std::fmt::Write as _;

use crate::world::{cluster_ip, endpoint_address, service_name};

/// What is there without any Service. kube-proxy's comments are left out.
const BASE: &str = "table ip kube-proxy {
	set hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service; }
	set cluster-ips { type ipv4_addr; }
	set nodeport-ips { type ipv4_addr; elements = { 192.168.1.1 }; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
	chain filter-output-pre-dnat { type filter hook output priority -110; ct state new jump firewall-check; }
	chain filter-input {
		type filter hook input priority filter;
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}
	chain filter-forward {
		type filter hook forward priority filter;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain filter-output {
		type filter hook output priority filter;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain services {
		ip daddr @cluster-ips ip saddr != 10.128.0.0/9 meta mark set meta mark | 0x00004000
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain masquerading {
		meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
		ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
	}
	chain cluster-ips-check {
		ip daddr @cluster-ips reject
		ip daddr 10.96.0.0/12 drop
	}
}
";

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
