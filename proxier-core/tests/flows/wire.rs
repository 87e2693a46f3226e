//! The bytes of packets: headers and checksums, of which the kernel checks every one.

use std::net::{IpAddr, SocketAddr};

use testkit::witness::Transport;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMP_V6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

pub(crate) fn number(protocol: Transport) -> u8 {
    match protocol {
        Transport::Tcp => TCP,
        Transport::Udp => UDP,
        Transport::Sctp => SCTP,
    }
}

pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// An IP packet with a TCP segment.
pub(crate) fn tcp(from: SocketAddr, to: SocketAddr, flags: u8, numbers: (u32, u32), payload: &[u8]) -> Vec<u8> {
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let (number, acknowledged) = (numbers.0.to_be_bytes(), numbers.1.to_be_bytes());
    // A header of 20 bytes and a window.
    let rest = [0x50, flags, 0xfa, 0xf0, 0, 0, 0, 0];
    packet(Transport::Tcp, from, to, [&ports[..], &number, &acknowledged, &rest, payload].concat())
}

/// An IP packet that opens a connection: a TCP SYN with this sequence number, a UDP datagram with this payload, an SCTP INIT
/// with this tag.
pub(crate) fn opening(protocol: Transport, source: SocketAddr, to: SocketAddr, mark: u32) -> Vec<u8> {
    let ports = [source.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let mark = mark.to_be_bytes();
    let segment = match protocol {
        Transport::Tcp => return tcp(source, to, SYN, (u32::from_be_bytes(mark), 0), &[]),
        Transport::Udp => [&ports[..], &[0, 12], &[0; 2], &mark].concat(),
        // Verification tag 0, chunk INIT of 20 bytes: tag, window, one stream each way, first number.
        Transport::Sctp => [&ports[..], &[0; 8], &[1, 0, 0, 20], &mark, &[0, 1, 0, 0], &[0, 1, 0, 1], &mark].concat(),
    };
    packet(protocol, source, to, segment)
}

/// Completes a segment by its checksum and puts a header before it.
fn packet(protocol: Transport, source: SocketAddr, to: SocketAddr, mut segment: Vec<u8>) -> Vec<u8> {
    let header = ip_header(number(protocol), source.ip(), to.ip(), segment.len());
    match protocol {
        Transport::Tcp | Transport::Udp => {
            let at = if protocol == Transport::Tcp { 16 } else { 6 };
            let length = u16::try_from(segment.len()).unwrap().to_be_bytes();
            let pseudo = [&addresses(source.ip(), to.ip())[..], &[0, number(protocol)], &length].concat();
            let sum = checksum(&[&pseudo[..], &segment].concat());
            // A checksum of 0 means "no checksum" for UDP.
            let sum = if sum == 0 { 0xffff } else { sum };
            segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        Transport::Sctp => {
            let sum = crc32c(&segment);
            segment[8..12].copy_from_slice(&sum.to_le_bytes());
        }
    }
    [header, segment].concat()
}

fn addresses(source: IpAddr, to: IpAddr) -> Vec<u8> {
    match (source, to) {
        (IpAddr::V4(source), IpAddr::V4(to)) => [source.octets(), to.octets()].concat(),
        (IpAddr::V6(source), IpAddr::V6(to)) => [source.octets(), to.octets()].concat(),
        (source, to) => panic!("{source} and {to}"),
    }
}

fn ip_header(protocol: u8, source: IpAddr, to: IpAddr, payload: usize) -> Vec<u8> {
    let addresses = addresses(source, to);
    if source.is_ipv6() {
        let length = u16::try_from(payload).unwrap().to_be_bytes();
        return [&[0x60, 0, 0, 0], &length[..], &[protocol, 64], &addresses].concat();
    }
    let length = u16::try_from(20 + payload).unwrap().to_be_bytes();
    let mut header = [&[0x45, 0], &length[..], &[0, 0, 0, 0, 64, protocol, 0, 0], &addresses].concat();
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// The Internet checksum of an even or odd number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The parts of an IP packet that matter here. A packet quoted in an ICMP error may end early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ip<'a> {
    pub(crate) source: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) payload: &'a [u8],
}

impl<'a> Ip<'a> {
    /// Reads a packet; `None` for bytes that are no IP packet.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Some(Ip {
                source: <[u8; 4]>::try_from(bytes.get(12..16)?).ok()?.into(),
                to: <[u8; 4]>::try_from(bytes.get(16..20)?).ok()?.into(),
                protocol: *bytes.get(9)?,
                payload: bytes.get(usize::from(bytes[0] & 0xf) * 4..)?,
            }),
            6 => Some(Ip {
                source: <[u8; 16]>::try_from(bytes.get(8..24)?).ok()?.into(),
                to: <[u8; 16]>::try_from(bytes.get(24..40)?).ok()?.into(),
                protocol: *bytes.get(6)?,
                payload: bytes.get(40..)?,
            }),
            _ => None,
        }
    }
}

/// A number in network order.
pub(crate) fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A number in network order.
pub(crate) fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
