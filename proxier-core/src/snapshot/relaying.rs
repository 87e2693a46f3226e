//! Annotations of a Service about relaying, for a process that relays its connections.

use std::collections::BTreeSet;

use super::{Reporter, ServicePort};
use crate::net::Protocol;
use crate::objects::StringMap;

/// `v2`: endpoints get the client's address in front of each TCP connection's data.
const HEADER: &str = "proxier/proxy-protocol";
/// Numbers or names of ports, with commas: only these. Default: every port of TCP.
const PORTS: &str = "proxier/proxy-protocol-ports";

/// All annotations that are read here.
pub(super) const ANNOTATIONS: [&str; 2] = [HEADER, PORTS];

/// Marks the ports whose endpoints get the client's address ([`ServicePort::proxy_protocol`]), and reports what cannot be:
/// an endpoint that expects no header would take it for data.
pub(super) fn mark(annotations: &StringMap, ports: &mut [ServicePort], is_relayed: bool, report: &mut Reporter<'_>) {
    let header = annotations.get(HEADER).map(str::trim);
    let asked = annotations.get(PORTS).map(str::trim);
    let mut reject = |name: &str, value: &str, reason| {
        report.reject(format!("metadata.annotations[{name}]"), value, reason);
    };
    match header {
        None => {
            if let Some(asked) = asked {
                reject(PORTS, asked, "needs proxier/proxy-protocol; ignored");
            }
            return;
        }
        Some("v2") => {}
        Some(other) => return reject(HEADER, other, "not v2, the only version; endpoints are not told the client"),
    }
    if !is_relayed {
        return reject(HEADER, "v2", "without effect: only userspace mode relays connections; ignored");
    }
    let Some(asked) = asked else {
        let mut of_tcp = ports.iter_mut().filter(|port| port.protocol == Protocol::Tcp).peekable();
        if of_tcp.peek().is_none() {
            reject(HEADER, "v2", "needs a port of TCP; ignored");
        }
        of_tcp.for_each(|port| port.proxy_protocol = true);
        return;
    };
    // A name that is listed twice is one name.
    let names: BTreeSet<&str> = asked.split(',').map(str::trim).collect();
    for name in names {
        // The name of a port has a letter: a number is none.
        let number = name.parse::<u16>().ok();
        let mut found = ports
            .iter_mut()
            .filter(|port| number == Some(port.port) || (!name.is_empty() && *port.name == *name))
            .peekable();
        if found.peek().is_none() {
            reject(PORTS, name, "neither number nor name of a port of this Service; left out");
            continue;
        }
        let mut of_tcp = found.filter(|port| port.protocol == Protocol::Tcp).peekable();
        if of_tcp.peek().is_none() {
            reject(PORTS, name, "not a port of TCP: datagrams carry no header; left out");
        }
        of_tcp.for_each(|port| port.proxy_protocol = true);
    }
}
