//! Contents of registers: keys, data, constants.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::InvalidValue;
use crate::uapi::NFT_DATA_VALUE_MAXLEN;

/// Bytes stored without an allocation: enough for an IPv6 address, a protocol, a port and a number.
const INLINE: usize = 30;

/// Up to 64 bytes, as in registers. Addresses and ports are in network byte order, marks and numbers in host byte
/// order.
///
/// ```
/// use nftables::{L4Protocol, Value};
/// use std::net::Ipv4Addr;
///
/// // The key of a concatenation: each field takes whole registers of four bytes.
/// let address = Value::from(Ipv4Addr::new(10, 96, 0, 10));
/// let service = Value::concat(&[address, Value::byte(L4Protocol::TCP.0), Value::port(80)])?;
/// assert_eq!(service.as_bytes(), [10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0]);
///
/// let device = Value::interface("eth0")?;
/// assert_eq!((device.len(), &device.as_bytes()[..5]), (16, b"eth0\0".as_slice()));
///
/// // Anything else as bytes, such as an Ethernet address.
/// let mac = Value::new(&[0x02, 0x42, 0xac, 0x11, 0, 0x02])?;
/// assert_eq!(format!("{mac:?}"), "0x0242ac110002");
///
/// // A mark lies in the machine's byte order. A range compares byte by byte: its ends need network byte order.
/// assert_eq!(Value::mark(0x4000).as_bytes(), 0x4000_u32.to_ne_bytes());
/// assert!(Value::be32(255) < Value::be32(256));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Inline(u8, [u8; INLINE]),
    Heap(Box<[u8]>),
}

impl Value {
    /// No bytes.
    pub const EMPTY: Value = Value(Repr::Inline(0, [0; INLINE]));

    /// A value of these bytes.
    ///
    /// # Errors
    /// There are more than 64 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidValue> {
        if bytes.len() > NFT_DATA_VALUE_MAXLEN {
            return Err(InvalidValue::new(format!("a value of {} bytes", bytes.len()), "registers hold at most 64"));
        }
        Ok(Value::of(bytes))
    }

    /// Like [`Value::new`], for bytes that are known to fit.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        match (inline.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(bytes);
                Value(Repr::Inline(length, inline))
            }
            _ => Value(Repr::Heap(bytes.into())),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Repr::Heap(bytes) => bytes,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A port or another 16-bit number in a packet.
    pub fn port(port: u16) -> Self {
        Value::of(&port.to_be_bytes())
    }

    /// A protocol number or another byte.
    pub fn byte(byte: u8) -> Self {
        Value::of(&[byte])
    }

    /// A packet mark or another 32-bit number of the kernel, in host byte order.
    pub fn mark(mark: u32) -> Self {
        Value::of(&mark.to_ne_bytes())
    }

    /// A 32-bit number in network byte order.
    pub fn be32(number: u32) -> Self {
        Value::of(&number.to_be_bytes())
    }

    /// The name of an interface, padded to 16 bytes.
    ///
    /// # Errors
    /// The name is longer than 15 bytes.
    pub fn interface(name: &str) -> Result<Self, InvalidValue> {
        let mut bytes = [0; 16];
        match bytes.get_mut(..name.len()) {
            Some(place) if name.len() < 16 => place.copy_from_slice(name.as_bytes()),
            _ => return Err(InvalidValue::new(format!("interface {name:?}"), "names have at most 15 bytes")),
        }
        Ok(Value::of(&bytes))
    }

    /// Concatenates values, each padded to a multiple of four bytes: the key of a concatenation.
    ///
    /// # Errors
    /// There are more than 64 bytes.
    pub fn concat(fields: &[Value]) -> Result<Self, InvalidValue> {
        let mut inline = [0; INLINE];
        if let Some(length) = fill(&mut inline, fields).and_then(|length| u8::try_from(length).ok()) {
            return Ok(Value(Repr::Inline(length, inline)));
        }
        let mut bytes = [0; NFT_DATA_VALUE_MAXLEN];
        let length = fill(&mut bytes, fields)
            .ok_or_else(|| InvalidValue::new("a concatenation", "registers hold at most 64 bytes"))?;
        Ok(Value::of(bytes.get(..length).unwrap_or_default()))
    }

    /// The next greater value of this length; `None` after the greatest.
    pub fn successor(&self) -> Option<Value> {
        self.step(u8::overflowing_add)
    }

    /// The next smaller value of this length; `None` before zero.
    pub fn predecessor(&self) -> Option<Value> {
        self.step(u8::overflowing_sub)
    }

    fn step(&self, by: fn(u8, u8) -> (u8, bool)) -> Option<Value> {
        let mut bytes = self.as_bytes().to_vec();
        for byte in bytes.iter_mut().rev() {
            let (next, overflow) = by(*byte, 1);
            *byte = next;
            if !overflow {
                return Some(Value::of(&bytes));
            }
        }
        None
    }
}

/// The first and the last address of a network. Bits behind the prefix are ignored.
pub(crate) fn network(address: IpAddr, prefix: u8) -> Result<(IpAddr, IpAddr), InvalidValue> {
    let invalid = || InvalidValue::new(format!("{address}/{prefix}"), "the prefix is longer than the address");
    let width: u8 = if address.is_ipv4() { 32 } else { 128 };
    let host = width.checked_sub(prefix).ok_or_else(invalid)?;
    let behind = u128::MAX.checked_shr(128_u32.saturating_sub(u32::from(host))).unwrap_or(0);
    Ok(match address {
        IpAddr::V4(address) => {
            let (bits, behind) = (u32::from(address), u32::try_from(behind).unwrap_or(u32::MAX));
            (Ipv4Addr::from(bits & !behind).into(), Ipv4Addr::from(bits | behind).into())
        }
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            (Ipv6Addr::from(bits & !behind).into(), Ipv6Addr::from(bits | behind).into())
        }
    })
}

/// Writes fields one after another. Returns the total length, or `None` if they do not fit.
fn fill(bytes: &mut [u8], fields: &[Value]) -> Option<usize> {
    let mut length = 0_usize;
    for field in fields {
        let field = field.as_bytes();
        bytes.get_mut(length..length.checked_add(field.len())?)?.copy_from_slice(field);
        length = length.checked_add(field.len().next_multiple_of(4))?;
    }
    (length <= bytes.len()).then_some(length)
}

impl From<Ipv4Addr> for Value {
    fn from(address: Ipv4Addr) -> Self {
        Value::of(&address.octets())
    }
}

impl From<Ipv6Addr> for Value {
    fn from(address: Ipv6Addr) -> Self {
        Value::of(&address.octets())
    }
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// Parses the text of `Debug`: `0x` and two hexadecimal digits per byte.
#[cfg(feature = "serde")]
fn from_hex(text: &str) -> Result<Value, InvalidValue> {
    let byte = |pair: &[u8]| {
        let digits =
            std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit))?;
        u8::from_str_radix(digits, 16).ok()
    };
    let digits = text.strip_prefix("0x").map(str::as_bytes);
    let bytes = digits.and_then(|digits| digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>());
    Value::new(
        &bytes.ok_or_else(|| InvalidValue::new(format!("value {text:?}"), "it is not 0x and two digits a byte"))?,
    )
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(Value, "bytes such as \"0x0a600001\"", |value: &Value| format!("{value:?}"), from_hex);

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
