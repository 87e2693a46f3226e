//! The rules that kube-proxy 1.28 writes in its iptables mode, for the Services of [`world`](crate::world).
//!
//! A Service with a cluster IP has one rule in `KUBE-SERVICES`, and a chain `KUBE-SVC-…` that marks traffic from
//! outside the cluster and picks a random endpoint. Each endpoint has a chain `KUBE-SEP-…` that marks hairpin traffic
//! and translates the address.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};

use crate::world::{cluster_ip, endpoint_address, service_name};

/// The pod network, for the rule that masquerades traffic from elsewhere.
const POD_CIDR: &str = "10.128.0.0/9";

/// Sixteen characters derived from a name. kube-proxy uses SHA-256; here they only need to differ.
fn chain(prefix: &str, name: &str) -> String {
    let mut hash = DefaultHasher::new();
    hash.write(name.as_bytes());
    format!("{prefix}{:016X}", hash.finish())
}

fn service_chain(number: u32) -> String {
    chain("KUBE-SVC-", &format!("demo/{}:httptcp", service_name(number)))
}

fn endpoint_chain(number: u32, endpoint: u32) -> String {
    chain("KUBE-SEP-", &format!("demo/{}:httptcp{}:8080", service_name(number), endpoint_address(number, endpoint)))
}

const FILTER: &str = include_str!("../kube-proxy/filter.rules");

/// The jumps, which kube-proxy creates once, before its first restore.
pub(crate) const JUMPS: &str = include_str!("../kube-proxy/jumps.rules");

const NAT_HEAD: &str = include_str!("../kube-proxy/nat.rules");

/// Input of iptables-restore for a full sync.
pub(crate) fn full(services: u32, endpoints: u32) -> String {
    let mut chains = String::new();
    let mut rules = String::new();
    for number in 0..services {
        let (name, address, service) = (service_name(number), cluster_ip(number), service_chain(number));
        let _infallible = writeln!(
            rules,
            "-A KUBE-SERVICES -m comment --comment \"demo/{name}:http cluster IP\" -m tcp -p tcp -d {address} --dport 80 -j {service}"
        );
        write_chains(number, endpoints, &mut chains, &mut rules);
    }
    let tail = "-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n";
    let (head, first_rules) = NAT_HEAD.split_at(NAT_HEAD.find("-A").unwrap_or(NAT_HEAD.len()));
    format!("{FILTER}{head}{chains}{first_rules}{rules}{tail}COMMIT\n")
}

fn write_chains(number: u32, endpoints: u32, chains: &mut String, rules: &mut String) {
    let (name, address, service) = (service_name(number), cluster_ip(number), service_chain(number));
    let _infallible = writeln!(chains, ":{service} - [0:0]");
    let _infallible = writeln!(
        rules,
        "-A {service} -m comment --comment \"demo/{name}:http cluster IP\" -m tcp -p tcp -d {address} --dport 80 ! -s {POD_CIDR} -j KUBE-MARK-MASQ"
    );
    for endpoint in 0..endpoints {
        let (to, chain) = (endpoint_address(number, endpoint), endpoint_chain(number, endpoint));
        let _infallible = writeln!(chains, ":{chain} - [0:0]");
        let left = endpoints - endpoint;
        let chance = if left > 1 {
            format!(" -m statistic --mode random --probability {:.10}", 1.0 / f64::from(left))
        } else {
            String::new()
        };
        let _infallible = writeln!(
            rules,
            "-A {service} -m comment --comment \"demo/{name}:http -> {to}:8080\"{chance} -j {chain}\n\
             -A {chain} -m comment --comment demo/{name}:http -s {to} -j KUBE-MARK-MASQ\n\
             -A {chain} -m comment --comment demo/{name}:http -m tcp -p tcp -j DNAT --to-destination {to}:8080"
        );
    }
}
