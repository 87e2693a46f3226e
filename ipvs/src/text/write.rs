//! Writes the model as ipvsadm's text.

use std::fmt::{self, Display, Formatter, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Ruleset, Statement};
use crate::batch::{Batch, Operation};
use crate::model::{
    Family, ForwardingMethod, Granularity, Protocol, RealServer, RealServerKey, Tunnel, TunnelFlags, TunnelKind,
    VirtualServer, VirtualServerConfig, VirtualServerKey,
};

/// An address and port as ipvsadm prints them, in the notation of C's `inet_ntop`.
struct At(IpAddr, u16);

impl Display for At {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(addr) => write!(f, "{addr}:{}", self.1),
            IpAddr::V6(addr) => match compatible(addr) {
                Some(low) => write!(f, "[::{low}]:{}", self.1),
                None => write!(f, "[{addr}]:{}", self.1),
            },
        }
    }
}

/// `inet_ntop` writes the last 32 bits of ::/96 as an IPv4 address, unless only the last 16 are set. The standard
/// library does not.
fn compatible(addr: Ipv6Addr) -> Option<Ipv4Addr> {
    match addr.segments() {
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => {
            let [.., a, b, c, d] = addr.octets();
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => None,
    }
}

/// `-t 10.0.0.1:80`, `-f 7 -6`.
struct Service<'a>(&'a VirtualServerKey);

impl Display for Service<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self.0 {
            VirtualServerKey::Address { protocol, addr, port } => {
                let at = At(addr, port);
                match protocol {
                    Protocol::Tcp => write!(f, "-t {at}"),
                    Protocol::Udp => write!(f, "-u {at}"),
                    Protocol::Sctp => write!(f, "--sctp-service {at}"),
                    Protocol::Other(number) => write!(f, "--other-service {number}/{at}"),
                }
            }
            VirtualServerKey::Fwmark { family: Family::V4, mark } => write!(f, "-f {mark}"),
            VirtualServerKey::Fwmark { family: Family::V6, mark } => write!(f, "-f {mark} -6"),
        }
    }
}

/// Options behind the service in `-A` and `-E`.
struct Config<'a>(Family, &'a VirtualServerConfig);

impl Display for Config<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Config(family, config) = self;
        write!(f, "-s {}", config.scheduler)?;
        if let Some(persistence) = &config.persistence {
            write!(f, " -p {}", persistence.timeout_secs)?;
            match (family, persistence.granularity) {
                (_, Granularity::Client) => {}
                (Family::V4, Granularity::Prefix(prefix)) => {
                    let host_bits = 32_u32.saturating_sub(prefix.into());
                    let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                    write!(f, " -M {}", Ipv4Addr::from_bits(mask))?;
                }
                (Family::V6, Granularity::Prefix(prefix)) => write!(f, " -M {prefix}")?,
                (_, Granularity::Mask(mask)) => write!(f, " -M {mask}")?,
            }
            if let Some(engine) = persistence.engine {
                write!(f, " --pe {engine}")?;
            }
        }
        if config.one_packet {
            f.write_str(" -o")?;
        }
        let mut separator = " -b ";
        for name in config.scheduler_flags.names(config.scheduler) {
            write!(f, "{separator}{name}")?;
            separator = ",";
        }
        Ok(())
    }
}

/// Options behind the service in `-a` and `-e`.
struct Real<'a>(&'a VirtualServerKey, &'a RealServer);

impl Display for Real<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Real(service, RealServer { key, config }) = self;
        write!(
            f,
            "-r {} {} -w {}",
            At(key.addr, key.port),
            Forward(service, key, config.forwarding_method),
            config.weight
        )?;
        if config.thresholds.upper() != 0 {
            write!(f, " -x {}", config.thresholds.upper())?;
        }
        if config.thresholds.lower() != 0 {
            write!(f, " -y {}", config.thresholds.lower())?;
        }
        match config.forwarding_method {
            ForwardingMethod::Tunnel(tunnel) => write!(f, " {}", Encapsulation(tunnel)),
            _ => Ok(()),
        }
    }
}

struct Forward<'a>(&'a VirtualServerKey, &'a RealServerKey, ForwardingMethod);

impl Display for Forward<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        // ipvsadm reads `-g` and `-i` with the virtual server's port.
        let exact = self.0.port().is_some_and(|port| port != self.1.port);
        match self.2 {
            ForwardingMethod::Masquerade => f.write_str("-m"),
            ForwardingMethod::Tunnel(_) if exact => f.write_str("--forward tunnel"),
            ForwardingMethod::Tunnel(_) => f.write_str("-i"),
            ForwardingMethod::DirectRoute if exact => f.write_str("--forward route"),
            ForwardingMethod::DirectRoute => f.write_str("-g"),
            ForwardingMethod::Local => f.write_str("--forward local"),
            ForwardingMethod::Bypass => f.write_str("--forward bypass"),
            ForwardingMethod::Other(number) => write!(f, "--forward {number}"),
        }
    }
}

/// `--tun-type gue --tun-port 6080 --tun-nocsum`.
struct Encapsulation(Tunnel);

impl Display for Encapsulation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Tunnel { kind, flags } = self.0;
        match kind {
            TunnelKind::Ipip => f.write_str("--tun-type ipip")?,
            TunnelKind::Gre => f.write_str("--tun-type gre")?,
            TunnelKind::Gue { port } => write!(f, "--tun-type gue --tun-port {port}")?,
            TunnelKind::Other { kind, port } => write!(f, "--tun-type {kind} --tun-port {port}")?,
        }
        let known = TunnelFlags::CHECKSUM | TunnelFlags::REMOTE_CHECKSUM;
        if flags.bits() & !known.bits() != 0 {
            return write!(f, " --tun-flags {}", flags.bits());
        }
        if flags.is_empty() && matches!(kind, TunnelKind::Gue { .. } | TunnelKind::Gre) {
            f.write_str(" --tun-nocsum")?;
        }
        if flags.contains(TunnelFlags::CHECKSUM) {
            f.write_str(" --tun-csum")?;
        }
        if flags.contains(TunnelFlags::REMOTE_CHECKSUM) {
            f.write_str(" --tun-remcsum")?;
        }
        Ok(())
    }
}

/// One line of ipvsadm's syntax, without the newline.
impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Statement::Clear => f.write_str("-C"),
            Statement::ZeroAll => f.write_str("-Z"),
            Statement::Operation(operation) => match operation {
                Operation::AddVirtualServer(VirtualServer { key, config }) => {
                    write!(f, "-A {} {}", Service(key), Config(key.family(), config))
                }
                Operation::UpdateVirtualServer(VirtualServer { key, config }) => {
                    write!(f, "-E {} {}", Service(key), Config(key.family(), config))
                }
                Operation::DeleteVirtualServer(key) => write!(f, "-D {}", Service(key)),
                Operation::ZeroVirtualServer(key) => write!(f, "-Z {}", Service(key)),
                Operation::AddRealServer(key, real) => write!(f, "-a {} {}", Service(key), Real(key, real)),
                Operation::UpdateRealServer(key, real) => write!(f, "-e {} {}", Service(key), Real(key, real)),
                Operation::DeleteRealServer(key, real) => {
                    write!(f, "-d {} -r {}", Service(key), At(real.addr, real.port))
                }
            },
        }
    }
}

/// The text that [`parse_batch`](super::parse_batch) reads: one operation per line in ipvsadm's syntax.
impl Display for Batch {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for operation in self {
            Statement::Operation(*operation).fmt(f)?;
            f.write_char('\n')?;
        }
        Ok(())
    }
}

/// The text of `ipvsadm -S -n`: each virtual server, followed by its real servers, one per line.
impl Display for Ruleset {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for operation in self.operations() {
            Statement::Operation(operation).fmt(f)?;
            f.write_char('\n')?;
        }
        Ok(())
    }
}
