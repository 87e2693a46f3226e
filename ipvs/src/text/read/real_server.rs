//! Parses the real server in `-a`, `-e` and `-d`.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use super::{Options, PORT, is_method};
use crate::model::{
    ForwardingMethod, RealServer, RealServerConfig, RealServerKey, Thresholds, Tunnel, TunnelFlags, TunnelKind,
    VirtualServerKey, Weight,
};
use crate::text::error::Error;
use crate::text::options::{Given, Opt};

impl<'a> Options<'a> {
    /// The key as written. Without a port, it gets the virtual server's.
    pub(super) fn real_server_key(&self, service: &VirtualServerKey) -> Result<RealServerKey, Error> {
        let given = self.find(Opt::Real).ok_or_else(|| self.line.missing("a real server: -r ADDRESS[:PORT]"))?;
        let (addr, port) = self.address(given.value.unwrap_or_default(), given.value_at)?;
        Ok(RealServerKey { addr, port: port.unwrap_or(service_port(service)) })
    }

    pub(super) fn real_server(&self, service: &VirtualServerKey) -> Result<RealServer, Error> {
        let mut key = self.real_server_key(service)?;
        let forwarding_method = self.forwarding_method()?;
        let by_letter = self.find(Opt::Forward).is_none();
        if by_letter
            && matches!(forwarding_method, ForwardingMethod::DirectRoute | ForwardingMethod::Tunnel(_))
            && matches!(service, VirtualServerKey::Address { .. })
        {
            // As in ipvsadm, -g and -i silently replace the port with the virtual server's.
            key.port = service_port(service);
        }
        let weight = match self.find(Opt::Weight) {
            Some(given) => {
                let expected = "a weight from 0 to 2147483647";
                self.ranged(given, Weight::new(self.number(given, expected)?), expected)?
            }
            None => Weight::ONE,
        };
        let config = RealServerConfig { weight, forwarding_method, thresholds: self.thresholds()? };
        Ok(RealServer { config, ..RealServer::new(SocketAddr::new(key.addr, key.port)) })
    }

    fn thresholds(&self) -> Result<Thresholds, Error> {
        let threshold = |opt| match self.find(opt) {
            Some(given) => self.number::<u32>(given, "a number of connections from 0 to 4294967295"),
            None => Ok(0),
        };
        let (upper, lower) = (threshold(Opt::Upper)?, threshold(Opt::Lower)?);
        match self.find(Opt::Lower) {
            Some(given) => self.ranged(given, Thresholds::new(upper, lower), "at most the upper threshold (-x)"),
            None => Ok(Thresholds::new(upper, 0).unwrap_or_default()),
        }
    }

    fn forwarding_method(&self) -> Result<ForwardingMethod, Error> {
        let method = match self.given.iter().find(|given| is_method(given.opt)) {
            None => ForwardingMethod::DirectRoute,
            Some(given) => match given.opt {
                Opt::Masquerade => ForwardingMethod::Masquerade,
                Opt::Route => ForwardingMethod::DirectRoute,
                Opt::Tunnel => ForwardingMethod::Tunnel(self.tunnel()?),
                _ => match given.value.unwrap_or_default() {
                    "masquerade" => ForwardingMethod::Masquerade,
                    "route" => ForwardingMethod::DirectRoute,
                    "tunnel" => ForwardingMethod::Tunnel(self.tunnel()?),
                    "local" => ForwardingMethod::Local,
                    "bypass" => ForwardingMethod::Bypass,
                    number => match number.parse() {
                        Ok(number @ 5..=7) => ForwardingMethod::Other(number),
                        _ => return Err(self.bad(given, "masquerade, route, tunnel, local, bypass, 5, 6 or 7")),
                    },
                },
            },
        };
        let tunnel_options = [
            Opt::TunnelType,
            Opt::TunnelPort,
            Opt::TunnelNoChecksum,
            Opt::TunnelChecksum,
            Opt::TunnelRemoteChecksum,
            Opt::TunnelFlags,
        ];
        match self.given.iter().find(|given| tunnel_options.contains(&given.opt)) {
            Some(given) if !matches!(method, ForwardingMethod::Tunnel(_)) => Err(self.conflict(given, "-i beside it")),
            _ => Ok(method),
        }
    }

    fn tunnel(&self) -> Result<Tunnel, Error> {
        let kind = match self.find(Opt::TunnelType) {
            None => TunnelKind::Ipip,
            Some(given) => match given.value.unwrap_or_default() {
                "ipip" => TunnelKind::Ipip,
                "gre" => TunnelKind::Gre,
                "gue" => TunnelKind::Gue { port: self.gue_port()? },
                _ => TunnelKind::Other {
                    kind: self.number(given, "ipip, gue, gre or a number from 0 to 255")?,
                    port: self.find(Opt::TunnelPort).map_or(Ok(0), |given| self.number(given, PORT))?,
                },
            },
        };
        if let (TunnelKind::Ipip | TunnelKind::Gre, Some(given)) = (kind, self.find(Opt::TunnelPort)) {
            return Err(self.conflict(given, "a port only with --tun-type gue"));
        }
        Ok(Tunnel { kind, flags: self.tunnel_flags()? })
    }

    fn gue_port(&self) -> Result<NonZeroU16, Error> {
        let given =
            self.find(Opt::TunnelPort).ok_or_else(|| self.line.missing("--tun-port PORT for --tun-type gue"))?;
        self.number(given, "a port from 1 to 65535")
    }

    fn tunnel_flags(&self) -> Result<TunnelFlags, Error> {
        let named: Vec<&Given<'a>> = [Opt::TunnelChecksum, Opt::TunnelRemoteChecksum, Opt::TunnelNoChecksum]
            .iter()
            .filter_map(|opt| self.find(*opt))
            .collect();
        if let Some(given) = self.find(Opt::TunnelFlags) {
            return match named.first() {
                Some(other) => Err(self.conflict(other, "either --tun-flags or the names of flags")),
                None => Ok(TunnelFlags::from_bits_retain(self.number(given, "flags as a number from 0 to 65535")?)),
            };
        }
        match named.as_slice() {
            [_, .., no] if no.opt == Opt::TunnelNoChecksum => {
                return Err(self.conflict(no, "no --tun-nocsum beside another checksum"));
            }
            _ => {}
        }
        let mut flags = TunnelFlags::empty();
        flags.set(TunnelFlags::CHECKSUM, self.has(Opt::TunnelChecksum));
        flags.set(TunnelFlags::REMOTE_CHECKSUM, self.has(Opt::TunnelRemoteChecksum));
        Ok(flags)
    }
}

fn service_port(service: &VirtualServerKey) -> u16 {
    match service {
        VirtualServerKey::Address { port, .. } => *port,
        VirtualServerKey::Fwmark { .. } => 0,
    }
}
