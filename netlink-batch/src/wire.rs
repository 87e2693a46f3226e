//! Encoding of single values. Byte order is part of the type: plain integers are in host order, `Be*` in network order.

use crate::attr::AttrTable;
use crate::encode::Encoder;

/// A value with a fixed encoding as an attribute's payload.
///
/// Implementations must not panic and must only read the slice that they are given. `put` followed by `get` returns the
/// same value. Implement it for your own type to use that type in a row of [`attrs!`](crate::attrs).
pub trait Wire<'a>: Sized {
    /// What `get` accepts, for error messages: `"4 bytes"`.
    const EXPECTED: &'static str;
    /// The table of the nested attributes, if the payload is a list of attributes.
    const TABLE: Option<&'static AttrTable> = None;

    /// The payload's length in bytes, if it is fixed.
    const LENGTH: Option<usize> = None;

    /// Decodes the whole payload; `None` if the length or form is wrong.
    fn get(payload: &'a [u8]) -> Option<Self>;

    /// Appends the payload, without attribute header or padding.
    fn put(&self, out: &mut Encoder);
}

macro_rules! native {
    ($($int:ty, $text:literal;)*) => { $(
        impl Wire<'_> for $int {
            const EXPECTED: &'static str = $text;
            const LENGTH: Option<usize> = Some(size_of::<$int>());
            #[inline]
            fn get(payload: &[u8]) -> Option<Self> {
                payload.try_into().ok().map(<$int>::from_ne_bytes)
            }
            #[inline]
            fn put(&self, out: &mut Encoder) {
                out.bytes(&self.to_ne_bytes());
            }
        }
    )* };
}
native! { u8, "1 byte"; u16, "2 bytes"; u32, "4 bytes"; u64, "8 bytes"; i32, "4 bytes"; }

macro_rules! big_endian {
    ($($(#[$doc:meta])* $name:ident($int:ty), $text:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);
        impl Wire<'_> for $name {
            const EXPECTED: &'static str = $text;
            const LENGTH: Option<usize> = Some(size_of::<$int>());
            #[inline]
            fn get(payload: &[u8]) -> Option<Self> {
                payload.try_into().ok().map(|raw| $name(<$int>::from_be_bytes(raw)))
            }
            #[inline]
            fn put(&self, out: &mut Encoder) {
                out.bytes(&self.0.to_be_bytes());
            }
        }
    )* };
}
big_endian! {
    /// A 16-bit number in network byte order; the field holds it in host order.
    Be16(u16), "2 bytes";
    /// A 32-bit number in network byte order; the field holds it in host order.
    Be32(u32), "4 bytes";
    /// A 64-bit number in network byte order; the field holds it in host order.
    Be64(u64), "8 bytes";
}

impl<const N: usize> Wire<'_> for [u8; N] {
    const EXPECTED: &'static str = "an array of fixed length";
    const LENGTH: Option<usize> = Some(N);
    #[inline]
    fn get(payload: &[u8]) -> Option<Self> {
        payload.try_into().ok()
    }
    #[inline]
    fn put(&self, out: &mut Encoder) {
        out.bytes(self);
    }
}

/// Any bytes.
impl<'a> Wire<'a> for &'a [u8] {
    const EXPECTED: &'static str = "any bytes";
    fn get(payload: &'a [u8]) -> Option<Self> {
        Some(payload)
    }
    fn put(&self, out: &mut Encoder) {
        out.bytes(self);
    }
}

/// A flag: present or absent, without payload.
impl Wire<'_> for () {
    const EXPECTED: &'static str = "no payload";
    const LENGTH: Option<usize> = Some(0);
    fn get(payload: &[u8]) -> Option<Self> {
        payload.is_empty().then_some(())
    }
    fn put(&self, _out: &mut Encoder) {}
}

/// A NUL-terminated string. The NUL is always written and may be missing when read.
///
/// The bytes are kept unchanged: names in the kernel need not be UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NulStr<'a>(&'a [u8]);

impl<'a> NulStr<'a> {
    /// Takes the bytes up to the first NUL.
    pub fn new(bytes: &'a [u8]) -> Self {
        NulStr(bytes.split(|&byte| byte == 0).next().unwrap_or_default())
    }

    /// The bytes without the NUL.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The text; `None` if it is not UTF-8.
    pub fn to_str(&self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }
}

impl<'a> From<&'a str> for NulStr<'a> {
    fn from(text: &'a str) -> Self {
        NulStr::new(text.as_bytes())
    }
}

impl std::fmt::Debug for NulStr<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<'a> Wire<'a> for NulStr<'a> {
    const EXPECTED: &'static str = "a string";
    fn get(payload: &'a [u8]) -> Option<Self> {
        Some(NulStr::new(payload))
    }
    #[inline]
    fn put(&self, out: &mut Encoder) {
        out.bytes(self.0);
        out.bytes(&[0]);
    }
}
