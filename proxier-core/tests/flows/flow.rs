//! A flow: the first packet of a fresh connection, and its fate under the reference's rules.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use testkit::witness::Transport;

/// A flow of the corpus; `oracle/README.md` describes the fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Flow {
    pub(crate) service: String,
    pub(crate) port: String,
    #[serde(deserialize_with = "transport")]
    pub(crate) protocol: Transport,
    /// The kind of source.
    pub(crate) from: String,
    pub(crate) source: IpAddr,
    /// The kind of destination.
    pub(crate) via: String,
    pub(crate) to: SocketAddr,
    pub(crate) dest: Destination,
    pub(crate) masquerade: bool,
    pub(crate) masquerade_to: Option<BTreeSet<SocketAddr>>,
    /// The sources that the packets have on the wire.
    #[serde(default)]
    #[allow(dead_code, reason = "traces are compared with it, packets are not")]
    pub(crate) wire: Vec<IpAddr>,
    /// Seconds of `ClientIP` affinity.
    pub(crate) affinity: Option<u32>,
}

/// Destination of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Destination {
    Verdict(Verdict),
    /// One of these endpoints, each of which is possible.
    Endpoints(BTreeSet<SocketAddr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Verdict {
    #[serde(rename = "DROP")]
    Drop,
    #[serde(rename = "REJECT")]
    Reject,
    /// The packet goes on to where it was sent.
    #[serde(rename = "none")]
    LeftAlone,
}

impl Flow {
    /// Possible endpoints; none if the flow is not served.
    pub(crate) fn endpoints(&self) -> &BTreeSet<SocketAddr> {
        static NONE: BTreeSet<SocketAddr> = BTreeSet::new();
        match &self.dest {
            Destination::Endpoints(endpoints) => endpoints,
            Destination::Verdict(_) => &NONE,
        }
    }

    /// Whether an endpoint is reached with the source rewritten.
    pub(crate) fn masquerades(&self, endpoint: &SocketAddr) -> bool {
        self.masquerade || self.masquerade_to.as_ref().is_some_and(|these| these.contains(endpoint))
    }

    /// Whether a second connection of a source must reach the endpoint of the first.
    pub(crate) fn is_sticky(&self) -> bool {
        self.affinity.is_some() && !self.endpoints().is_empty()
    }

    /// Whether the node sends it, not a host or pod behind the node.
    pub(crate) fn is_nodes(&self) -> bool {
        self.from == "node"
    }

    /// Whether any other address near `source` stands for the same kind of source.
    pub(crate) fn has_relatives(&self) -> bool {
        ["pod-local", "pod-remote", "outside"].contains(&&*self.from)
    }

    /// The reference's destination, for reports.
    pub(crate) fn wanted(&self) -> String {
        match &self.dest {
            Destination::Verdict(Verdict::Drop) => "dropped".to_owned(),
            Destination::Verdict(Verdict::Reject) => "rejected".to_owned(),
            Destination::Verdict(Verdict::LeftAlone) => "left alone".to_owned(),
            Destination::Endpoints(endpoints) => {
                let of = |endpoint| format!("{endpoint} ({})", source_is(self.masquerades(endpoint)));
                endpoints.iter().map(of).collect::<Vec<_>>().join(" or ")
            }
        }
    }
}

pub(crate) fn source_is(rewritten: bool) -> &'static str {
    if rewritten { "masqueraded" } else { "source kept" }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flow { service, port, from, source, via, to, .. } = self;
        let protocol = format!("{:?}", self.protocol).to_uppercase();
        write!(f, "{service}:{port} {protocol} from {from} {source} to {via} {to}")?;
        if let Some(seconds) = self.affinity {
            write!(f, " with affinity of {seconds} s")?;
        }
        Ok(())
    }
}

fn transport<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Transport, D::Error> {
    match &*String::deserialize(deserializer)? {
        "TCP" => Ok(Transport::Tcp),
        "UDP" => Ok(Transport::Udp),
        "SCTP" => Ok(Transport::Sctp),
        other => Err(serde::de::Error::custom(other)),
    }
}
