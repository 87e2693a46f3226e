//! Forwarding methods in the notation of annotations.

use std::fmt;
use std::num::NonZeroU16;

use ipvs::model::{ForwardingMethod, Tunnel, TunnelFlags, TunnelKind};

/// Name of a forwarding method in annotations: `direct-route`, `ipip`, `gre`, `gue:6080`.
pub(crate) struct MethodName(pub(crate) ForwardingMethod);

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ForwardingMethod::DirectRoute => f.write_str("direct-route"),
            ForwardingMethod::Tunnel(Tunnel { kind: TunnelKind::Ipip, .. }) => f.write_str("ipip"),
            ForwardingMethod::Tunnel(Tunnel { kind: TunnelKind::Gre, .. }) => f.write_str("gre"),
            ForwardingMethod::Tunnel(Tunnel { kind: TunnelKind::Gue { port }, .. }) => write!(f, "gue:{port}"),
            other => other.fmt(f),
        }
    }
}

/// Parses a method; the error says what is wrong. `tunnel` is kube-router's word for `ipip`.
pub(super) fn parse(text: &str) -> Result<ForwardingMethod, &'static str> {
    let tunnel = |kind| Ok(ForwardingMethod::Tunnel(Tunnel::new(kind, TunnelFlags::empty())));
    match text {
        "masquerade" => Ok(ForwardingMethod::Masquerade),
        "direct-route" => Ok(ForwardingMethod::DirectRoute),
        "ipip" | "tunnel" => tunnel(TunnelKind::Ipip),
        "gre" => tunnel(TunnelKind::Gre),
        _ => match text.strip_prefix("gue") {
            Some(rest) => {
                let port = rest.strip_prefix(':').and_then(|port| port.parse::<NonZeroU16>().ok());
                let needed = "not complete: gue needs the UDP port on which endpoints unwrap, 1 to 65535 (gue:6080); masquerade counts";
                port.map_or(Err(needed), |port| tunnel(TunnelKind::Gue { port }))
            }
            None => Err("not masquerade, direct-route, ipip, gre or gue:PORT; masquerade counts"),
        },
    }
}
