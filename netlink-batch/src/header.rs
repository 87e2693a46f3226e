//! The fixed headers: nlmsghdr, genlmsghdr, nfgenmsg (linux/netlink.h, genetlink.h, netfilter/nfnetlink.h).

use crate::encode::Encoder;

/// Length of [`MessageHeader`] on the wire.
pub const MESSAGE_HEADER: usize = 16;

/// The request asks for an answer: set on every request.
pub const NLM_F_REQUEST: u16 = 0x1;
/// The message is one of several; [`NLMSG_DONE`] follows the last.
pub const NLM_F_MULTI: u16 = 0x2;
/// The kernel must acknowledge success too.
pub const NLM_F_ACK: u16 = 0x4;
/// The table changed while it was dumped, so the result is not consistent.
pub const NLM_F_DUMP_INTR: u16 = 0x10;
/// NEW: replace what exists.
pub const NLM_F_REPLACE: u16 = 0x100;
/// NEW: fail if it exists.
pub const NLM_F_EXCL: u16 = 0x200;
/// NEW: create if it does not exist.
pub const NLM_F_CREATE: u16 = 0x400;
/// GET: all entries (`NLM_F_ROOT | NLM_F_MATCH`).
pub const NLM_F_DUMP: u16 = 0x300;
/// Error reply: the rest of the request is not repeated (`NETLINK_CAP_ACK`).
pub const NLM_F_CAPPED: u16 = 0x100;
/// Error reply: extended error attributes follow (`NETLINK_EXT_ACK`).
pub const NLM_F_ACK_TLVS: u16 = 0x200;

/// No operation; ignored.
pub const NLMSG_NOOP: u16 = 1;
/// An error, or with error 0 an acknowledgement.
pub const NLMSG_ERROR: u16 = 2;
/// The end of a dump.
pub const NLMSG_DONE: u16 = 3;
/// Data was lost.
pub const NLMSG_OVERRUN: u16 = 4;

/// `struct nlmsghdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageHeader {
    /// Length of the message with this header, without padding.
    pub length: u32,
    /// Message type: below 16 a control message, otherwise defined by the family.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Sequence number. An answer has the same number as its request.
    pub sequence: u32,
    /// Port id of the requesting socket.
    pub port: u32,
}

impl MessageHeader {
    /// Reads the header at the start of `bytes`; `None` if there are fewer than 16 bytes.
    pub fn get(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let (flags, rest) = rest.split_first_chunk::<2>()?;
        let (sequence, rest) = rest.split_first_chunk::<4>()?;
        let port = rest.first_chunk::<4>()?;
        Some(MessageHeader {
            length: u32::from_ne_bytes(*length),
            kind: u16::from_ne_bytes(*kind),
            flags: u16::from_ne_bytes(*flags),
            sequence: u32::from_ne_bytes(*sequence),
            port: u32::from_ne_bytes(*port),
        })
    }

    /// Appends the header.
    #[inline]
    pub fn put(self, out: &mut Encoder) {
        // One array, so that it is appended in one call.
        let mut bytes = [0; MESSAGE_HEADER];
        bytes[0..4].copy_from_slice(&self.length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.port.to_ne_bytes());
        out.bytes(&bytes);
    }
}

/// `struct genlmsghdr`: the header of generic netlink, behind [`MessageHeader`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenlHeader {
    /// The family's command.
    pub command: u8,
    /// The family's version.
    pub version: u8,
}

impl GenlHeader {
    /// Length on the wire.
    pub const LENGTH: usize = 4;

    /// Splits a payload into this header and the attributes.
    pub fn split(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (&[command, version, _, _], rest) = payload.split_first_chunk::<4>()?;
        Some((GenlHeader { command, version }, rest))
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; 4] {
        [self.command, self.version, 0, 0]
    }
}

/// `struct nfgenmsg`: the header of nfnetlink (ipset, conntrack, nftables), behind [`MessageHeader`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NfGenHeader {
    /// `AF_*` or `NFPROTO_*`.
    pub family: u8,
    /// `NFNETLINK_V0`: 0.
    pub version: u8,
    /// Meaning depends on the subsystem; network byte order on the wire.
    pub resource: u16,
}

impl NfGenHeader {
    /// Length on the wire.
    pub const LENGTH: usize = 4;

    /// Splits a payload into this header and the attributes.
    pub fn split(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (&[family, version, a, b], rest) = payload.split_first_chunk::<4>()?;
        Some((NfGenHeader { family, version, resource: u16::from_be_bytes([a, b]) }, rest))
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; 4] {
        let [a, b] = self.resource.to_be_bytes();
        [self.family, self.version, a, b]
    }
}
