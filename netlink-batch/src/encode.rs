//! The encoder: appends messages and patches their length fields.

use crate::error::WireError;
use crate::wire::Wire;

/// The payload is a list of attributes (`NLA_F_NESTED`, linux/netlink.h). We set it when writing and do not require it
/// when reading.
pub const NLA_F_NESTED: u16 = 0x8000;

/// Netlink aligns messages and attributes to four bytes (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
pub(crate) const ALIGN: usize = 4;
pub(crate) const ATTR_HEADER: usize = 4;

/// Capacity in bytes that a buffer keeps for the next request.
const KEPT: usize = 64 << 10;

pub(crate) const fn aligned(length: usize) -> usize {
    length.saturating_add(ALIGN - 1) & !(ALIGN - 1)
}

/// Appends netlink messages and attributes to one buffer.
///
/// If an attribute is longer than its 16-bit length field allows, the encoder remembers the error and reports it when
/// the message is finished. A malformed message never reaches the kernel.
#[derive(Debug, Default)]
pub struct Encoder {
    buffer: Vec<u8>,
    error: Option<WireError>,
}

impl Encoder {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer
    }

    /// Number of bytes written so far.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Appends bytes unchanged.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Appends one attribute: header, payload, padding. `kind` may carry `NLA_F_*` bits.
    #[inline]
    pub fn attr<'a, W: Wire<'a>>(&mut self, kind: u16, value: &W) {
        // A value of fixed length needs no length patch: most attributes take a few stores.
        if let Some(length) = W::LENGTH.and_then(|length| u16::try_from(length.saturating_add(ATTR_HEADER)).ok()) {
            let [a, b] = length.to_ne_bytes();
            let [c, d] = kind.to_ne_bytes();
            self.bytes(&[a, b, c, d]);
            value.put(self);
            self.pad();
        } else {
            self.framed(kind, |out| value.put(out));
        }
    }

    /// Appends an attribute whose payload `inside` writes, marked [`NLA_F_NESTED`].
    #[inline]
    pub fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Encoder)) {
        self.framed(kind | NLA_F_NESTED, inside);
    }

    #[inline]
    fn framed(&mut self, kind: u16, inside: impl FnOnce(&mut Encoder)) {
        let start = self.buffer.len();
        let [c, d] = kind.to_ne_bytes();
        self.bytes(&[0, 0, c, d]);
        inside(self);
        let length = self.buffer.len().saturating_sub(start);
        match u16::try_from(length) {
            Ok(length) => self.patch(start, &length.to_ne_bytes()),
            Err(_) => self.error = Some(WireError::AttributeTooLong { kind, length }),
        }
        self.pad();
    }

    /// Overwrites bytes that were written before.
    #[inline]
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = at.checked_add(bytes.len()).and_then(|end| self.buffer.get_mut(at..end)) {
            place.copy_from_slice(bytes);
        }
    }

    #[inline]
    pub(crate) fn pad(&mut self) {
        match self.buffer.len() % ALIGN {
            1 => self.bytes(&[0; 3]),
            2 => self.bytes(&[0; 2]),
            3 => self.bytes(&[0; 1]),
            _ => {}
        }
    }

    /// Truncates to an earlier length, for a message that could not be encoded.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.buffer.truncate(length);
    }

    pub(crate) fn clear(&mut self) {
        self.buffer.clear();
        // Free the memory of an unusually large group of requests.
        if self.buffer.capacity() > KEPT {
            self.buffer.shrink_to(KEPT);
        }
        self.error = None;
    }

    /// Returns the first encoding error and clears it.
    ///
    /// # Errors
    /// [`WireError::AttributeTooLong`] when a payload exceeded 65,531 bytes.
    pub fn finish(&mut self) -> Result<(), WireError> {
        self.error.take().map_or(Ok(()), Err)
    }
}
