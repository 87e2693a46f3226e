//! Forwarding methods as text: `masquerade`, `local`, `route`, `bypass`, `tunnel gue:6080 csum`.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use crate::model::{ForwardingMethod, OutOfRange, Tunnel, TunnelFlags, TunnelKind};

/// `masquerade`, `local`, `route`, `bypass`, a number, or a [`Tunnel`].
impl fmt::Display for ForwardingMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForwardingMethod::Masquerade => f.pad("masquerade"),
            ForwardingMethod::Local => f.pad("local"),
            ForwardingMethod::DirectRoute => f.pad("route"),
            ForwardingMethod::Bypass => f.pad("bypass"),
            ForwardingMethod::Tunnel(tunnel) => tunnel.fmt(f),
            ForwardingMethod::Other(number) => number.fmt(f),
        }
    }
}

/// `tunnel` (IP in IP), `tunnel gre csum`, `tunnel gue:6080 csum remcsum`; `tunnel 7:80 flags:4` for values without a
/// name.
impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tunnel")?;
        match self.kind {
            TunnelKind::Ipip => {}
            TunnelKind::Gre => f.write_str(" gre")?,
            TunnelKind::Gue { port } => write!(f, " gue:{port}")?,
            TunnelKind::Other { kind, port } => write!(f, " {kind}:{port}")?,
        }
        let known = TunnelFlags::CHECKSUM | TunnelFlags::REMOTE_CHECKSUM;
        if self.flags.bits() & !known.bits() != 0 {
            return write!(f, " flags:{}", self.flags.bits());
        }
        if self.flags.contains(TunnelFlags::CHECKSUM) {
            f.write_str(" csum")?;
        }
        if self.flags.contains(TunnelFlags::REMOTE_CHECKSUM) {
            f.write_str(" remcsum")?;
        }
        Ok(())
    }
}

/// Parses the text that [`ForwardingMethod`]'s `Display` writes.
impl FromStr for ForwardingMethod {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        const ALLOWED: &str =
            "masquerade, local, route, bypass, tunnel [gre|gue:PORT] [csum] [remcsum], or a number up to 7";
        let refuse = || OutOfRange::new("forwarding method", text, ALLOWED);
        let number = || text.parse::<u8>().ok().filter(|number| *number <= 7).map(ForwardingMethod::Other);
        match text {
            "masquerade" => Ok(ForwardingMethod::Masquerade),
            "local" => Ok(ForwardingMethod::Local),
            "route" => Ok(ForwardingMethod::DirectRoute),
            "bypass" => Ok(ForwardingMethod::Bypass),
            _ => match text.strip_prefix("tunnel") {
                Some(rest) => tunnel(rest).map(ForwardingMethod::Tunnel).ok_or_else(refuse),
                None => number().ok_or_else(refuse),
            },
        }
    }
}

/// Parses the text that `Display` writes: `tunnel gue:6080 csum`.
impl FromStr for Tunnel {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        let found = text.strip_prefix("tunnel").and_then(tunnel);
        found.ok_or_else(|| OutOfRange::new("tunnel", text, "tunnel [gre|gue:PORT] [csum] [remcsum]"))
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(ForwardingMethod, "a forwarding method");

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(Tunnel, "a tunnel");

/// Parses the text behind the word `tunnel`.
fn tunnel(text: &str) -> Option<Tunnel> {
    if !(text.is_empty() || text.starts_with(' ')) {
        return None;
    }
    let mut tunnel = Tunnel::IPIP;
    for (place, word) in text.split_ascii_whitespace().enumerate() {
        match (word, word.split_once(':')) {
            ("csum", _) => tunnel.flags |= TunnelFlags::CHECKSUM,
            ("remcsum", _) => tunnel.flags |= TunnelFlags::REMOTE_CHECKSUM,
            (_, Some(("flags", bits))) => tunnel.flags |= TunnelFlags::from_bits_retain(bits.parse().ok()?),
            ("gre", _) if place == 0 => tunnel.kind = TunnelKind::Gre,
            (_, Some(("gue", port))) if place == 0 => {
                tunnel.kind = TunnelKind::Gue { port: port.parse::<NonZeroU16>().ok()? };
            }
            (_, Some((kind, port))) if place == 0 => {
                tunnel.kind = TunnelKind::Other { kind: kind.parse().ok()?, port: port.parse().ok()? };
            }
            _ => return None,
        }
    }
    Some(tunnel)
}
