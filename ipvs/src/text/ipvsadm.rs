//! Limits of ipvsadm 1.31: which statements it can read.

use super::Statement;
use crate::batch::Operation;
use crate::model::{
    ForwardingMethod, Protocol, RealServer, RealServerKey, Tunnel, TunnelFlags, TunnelKind, VirtualServer,
    VirtualServerKey,
};

/// The longest `-p` it takes, in seconds: 31 days.
const LONGEST_PERSISTENCE_SECS: u32 = 31 * 24 * 60 * 60;

/// The largest threshold it takes.
const LARGEST_THRESHOLD: u32 = 0x7fff_ffff;

/// Whether ipvsadm changes the real server's port when it reads `-g` or `-i`.
pub(super) fn changes_port(service: &VirtualServerKey, real: &RealServerKey) -> bool {
    match service {
        VirtualServerKey::Address { port, .. } => *port != real.port,
        VirtualServerKey::Fwmark { .. } => false,
    }
}

impl Statement {
    /// Whether ipvsadm 1.31 reads this statement's text with the same meaning.
    ///
    /// It does not read this crate's own options, `-p 0` or more than 31 days, port 0 without `-p`, or `-o` except for
    /// UDP and firewall marks. Nor does it read thresholds above 2147483647, or another address family without a
    /// tunnel. Unless a distribution patched it, ipvsadm also stops at weight 65535; this is not considered here.
    pub fn is_readable_by_ipvsadm(&self) -> bool {
        let Statement::Operation(operation) = self else { return true };
        match operation {
            Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server) => reads_server(server),
            Operation::DeleteVirtualServer(key)
            | Operation::ZeroVirtualServer(key)
            | Operation::DeleteRealServer(key, _) => reads_key(key),
            Operation::AddRealServer(key, real) | Operation::UpdateRealServer(key, real) => {
                reads_key(key) && reads_real(key, real)
            }
        }
    }
}

fn reads_key(key: &VirtualServerKey) -> bool {
    !matches!(key, VirtualServerKey::Address { protocol: Protocol::Other(_), .. })
}

fn reads_server(VirtualServer { key, config }: &VirtualServer) -> bool {
    let one_packet_fits = match key {
        VirtualServerKey::Address { protocol, .. } => *protocol == Protocol::Udp,
        VirtualServerKey::Fwmark { .. } => true,
    };
    let persistence_fits = match (&config.persistence, key) {
        (Some(persistence), _) => (1..=LONGEST_PERSISTENCE_SECS).contains(&persistence.timeout_secs),
        (None, VirtualServerKey::Address { port, .. }) => *port != 0,
        (None, VirtualServerKey::Fwmark { .. }) => true,
    };
    reads_key(key) && persistence_fits && (one_packet_fits || !config.one_packet)
}

fn reads_real(service: &VirtualServerKey, RealServer { key, config }: &RealServer) -> bool {
    let port_stays = !changes_port(service, key);
    let same_family = service.family() == key.family();
    let method_fits = match config.forwarding_method {
        ForwardingMethod::Masquerade => same_family,
        ForwardingMethod::DirectRoute => same_family && port_stays,
        ForwardingMethod::Tunnel(tunnel) => port_stays && reads_tunnel(tunnel),
        ForwardingMethod::Local | ForwardingMethod::Bypass | ForwardingMethod::Other(_) => false,
    };
    method_fits && config.thresholds.upper() <= LARGEST_THRESHOLD
}

fn reads_tunnel(Tunnel { kind, flags }: Tunnel) -> bool {
    match kind {
        TunnelKind::Ipip => flags.is_empty(),
        TunnelKind::Gre => flags.is_empty() || flags == TunnelFlags::CHECKSUM,
        TunnelKind::Gue { .. } => {
            flags.is_empty() || flags == TunnelFlags::CHECKSUM || flags == TunnelFlags::REMOTE_CHECKSUM
        }
        TunnelKind::Other { .. } => false,
    }
}
