//! Attribute tables: numbers with names and types, and readers for lists of attributes.

use std::fmt;
use std::marker::PhantomData;

use crate::encode::{ATTR_HEADER, Encoder, NLA_F_NESTED, aligned};
use crate::error::WireError;
use crate::wire::Wire;

/// Mask of the attribute number in the type field. The other bits are `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
pub const NLA_TYPE_MASK: u16 = 0x3fff;

/// One attribute as received, still untyped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawAttr<'a> {
    /// The type field with its flag bits.
    pub type_field: u16,
    /// The payload without header and padding.
    pub payload: &'a [u8],
    /// Offset of the attribute's header in the list it was read from, in bytes.
    pub offset: usize,
}

impl RawAttr<'_> {
    /// The attribute's number without flag bits.
    pub fn kind(&self) -> u16 {
        self.type_field & NLA_TYPE_MASK
    }
}

impl fmt::Debug for RawAttr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attribute {:#x} [{}]", self.type_field, hex(self.payload))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// Reads a list of attributes without a table. It stops after the first error, since nothing behind a broken length can
/// be trusted.
///
/// [`Attrs`] is the typed reader.
#[derive(Clone, Debug)]
pub struct RawAttrs<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> RawAttrs<'a> {
    /// Starts at the first attribute of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        RawAttrs { bytes, offset: 0 }
    }

    /// `None` when the length is broken.
    #[inline]
    fn take(&mut self) -> Option<RawAttr<'a>> {
        let rest = self.bytes.get(self.offset..)?;
        let &[a, b, c, d] = rest.first_chunk::<ATTR_HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let payload = rest.get(ATTR_HEADER..length)?;
        let attr = RawAttr { type_field: u16::from_ne_bytes([c, d]), payload, offset: self.offset };
        self.offset = self.offset.saturating_add(aligned(length));
        Some(attr)
    }

    #[cold]
    fn end_broken(&mut self) -> WireError {
        let available = self.bytes.len().saturating_sub(self.offset);
        let broken = WireError::AttributeLength { offset: self.offset, available };
        self.offset = self.bytes.len();
        broken
    }
}

impl<'a> Iterator for RawAttrs<'a> {
    type Item = Result<RawAttr<'a>, WireError>;

    // A large dump has millions of attributes. Inlining this, and building errors in another function, saves 37 % of
    // the instructions that reading an IPVS snapshot takes.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        match self.take() {
            Some(attr) => Some(Ok(attr)),
            None => Some(Err(self.end_broken())),
        }
    }
}

/// One row of an attribute table.
#[derive(Clone, Copy, Debug)]
pub struct AttrRow {
    /// The attribute's number.
    pub kind: u16,
    /// Name without the table's prefix.
    pub name: &'static str,
    /// The table of the attributes nested inside, if any.
    pub nested: Option<&'static AttrTable>,
}

/// The attribute names of one list; made by [`attrs!`](crate::attrs).
#[derive(Clone, Copy, Debug)]
pub struct AttrTable {
    /// The prefix of the C names: `"IPVS_SVC_ATTR_"`.
    pub prefix: &'static str,
    /// The rows, in the order of the C header.
    pub rows: &'static [AttrRow],
}

impl AttrTable {
    /// The row with this number.
    pub fn row(&self, kind: u16) -> Option<&'static AttrRow> {
        self.rows.iter().find(|row| row.kind == kind)
    }

    /// The C name of an attribute: `"IPVS_SVC_ATTR_PORT"`, or the prefix and the number when it has none.
    pub fn name(&self, kind: u16) -> String {
        match self.row(kind) {
            Some(row) => format!("{}{}", self.prefix, row.name),
            None => format!("{}{kind}", self.prefix),
        }
    }

    /// The names along a path of numbers, outermost first: `"IPVS_CMD_ATTR_SERVICE > IPVS_SVC_ATTR_PORT"`.
    pub fn path(&'static self, kinds: &[u16]) -> String {
        let mut table = Some(self);
        let mut names = Vec::with_capacity(kinds.len());
        for &kind in kinds {
            names.push(table.map_or_else(|| kind.to_string(), |table| table.name(kind)));
            table = table.and_then(|table| table.row(kind)).and_then(|row| row.nested);
        }
        names.join(" > ")
    }
}

/// Returns the numbers of the attributes that enclose byte `offset` of a list, outermost first. Empty when no attribute
/// encloses it.
///
/// The kernel reports the offset of the attribute it refused (`NLMSGERR_ATTR_OFFS`).
pub fn locate(list: &[u8], offset: usize) -> Vec<u16> {
    let mut path = Vec::new();
    let mut list = list;
    let mut offset = offset;
    loop {
        let found = RawAttrs::new(list).map_while(Result::ok).find(|attr| {
            let start = attr.offset;
            (start..start.saturating_add(aligned(ATTR_HEADER.saturating_add(attr.payload.len())))).contains(&offset)
        });
        let Some(attr) = found else { return path };
        path.push(attr.kind());
        let inside = attr.offset.saturating_add(ATTR_HEADER);
        if offset < inside {
            return path;
        }
        offset = offset.saturating_sub(inside);
        list = attr.payload;
    }
}

/// A typed attribute. [`attrs!`](crate::attrs) implements it.
pub trait Attribute<'a>: Sized + Copy {
    /// Names and numbers.
    const TABLE: &'static AttrTable;

    /// Reads one attribute. A number that is not in the table becomes the `Unknown` variant.
    ///
    /// # Errors
    /// [`WireError::Payload`] when a known attribute has a payload of the wrong length.
    fn decode(raw: RawAttr<'a>) -> Result<Self, WireError>;

    /// Appends the attribute.
    fn encode(&self, out: &mut Encoder);
}

/// A list of typed attributes that is decoded only when it is read. Writing it copies the bytes unchanged.
pub struct Attrs<'a, A> {
    bytes: &'a [u8],
    attribute: PhantomData<fn() -> A>,
}

impl<'a, A: Attribute<'a>> Attrs<'a, A> {
    /// Wraps the bytes of a list of attributes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Attrs { bytes, attribute: PhantomData }
    }

    /// The list's bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Reads the attributes one by one.
    pub fn iter(&self) -> impl Iterator<Item = Result<A, WireError>> + use<'a, A> {
        RawAttrs::new(self.bytes).map(|raw| A::decode(raw?))
    }

    /// Reads all attributes.
    ///
    /// # Errors
    /// The first attribute that cannot be read.
    pub fn to_vec(&self) -> Result<Vec<A>, WireError> {
        self.iter().collect()
    }
}

impl<A> Clone for Attrs<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for Attrs<'_, A> {}
impl<A> PartialEq for Attrs<'_, A> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}
impl<A> Eq for Attrs<'_, A> {}
impl<'a, A: Attribute<'a> + fmt::Debug> fmt::Debug for Attrs<'a, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, A: Attribute<'a>> Wire<'a> for Attrs<'a, A> {
    const EXPECTED: &'static str = "nested attributes";
    const TABLE: Option<&'static AttrTable> = Some(A::TABLE);
    #[inline]
    fn get(payload: &'a [u8]) -> Option<Self> {
        Some(Attrs::new(payload))
    }
    fn put(&self, out: &mut Encoder) {
        out.bytes(self.bytes);
    }
}

/// Writes one row of a table; used by [`attrs!`](crate::attrs). Nested lists get `NLA_F_NESTED`.
#[doc(hidden)]
#[inline]
pub fn encode_row<'a, W: Wire<'a>>(out: &mut Encoder, kind: u16, value: &W) {
    let flags = if W::TABLE.is_some() { NLA_F_NESTED } else { 0 };
    out.attr(kind | flags, value);
}

/// Reads one row of a table; used by [`attrs!`](crate::attrs).
#[doc(hidden)]
#[inline]
pub fn decode_row<'a, W: Wire<'a>>(table: &'static AttrTable, raw: RawAttr<'a>) -> Result<W, WireError> {
    match W::get(raw.payload) {
        Some(value) => Ok(value),
        None => Err(unfit(table, raw, W::EXPECTED)),
    }
}

#[cold]
fn unfit(table: &'static AttrTable, raw: RawAttr<'_>, expected: &'static str) -> WireError {
    WireError::Payload { attribute: table.name(raw.kind()), offset: raw.offset, expected, got: raw.payload.len() }
}

/// Declares tables of attributes. Each row gives a number, a name, a type and the byte order. The macro makes the
/// constants, the names, the decoder and the encoder from it.
///
/// ```
/// use netlink_batch::{Attrs, Be16, Encoder, attrs};
///
/// attrs! {
///     /// A socket's name.
///     "EXAMPLE_ATTR_", pub enum ExampleAttr<'a> {
///         /// Port, in network byte order.
///         PORT = 1 => Port(Be16),
///         /// Weight, in host byte order.
///         WEIGHT = 2 => Weight(u32),
///     }
/// }
///
/// let mut out = Encoder::new();
/// ExampleAttr::Port(Be16(80)).encode(&mut out);
/// assert_eq!(out.as_slice(), [6, 0, 1, 0, 0, 80, 0, 0]);
/// assert_eq!(Attrs::<ExampleAttr>::new(out.as_slice()).to_vec()?, [ExampleAttr::Port(Be16(80))]);
/// # use netlink_batch::Attribute;
/// # Ok::<(), netlink_batch::WireError>(())
/// ```
#[macro_export]
macro_rules! attrs {
    ($(
        $(#[$meta:meta])*
        $prefix:literal, pub enum $name:ident<$life:lifetime> {
            $( $(#[$row_meta:meta])* $constant:ident = $kind:literal => $variant:ident($type:ty), )*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name<$life> {
            $( $(#[$row_meta])* $variant($type), )*
            /// An attribute that is not in this table. It is kept and written back unchanged.
            Unknown($crate::RawAttr<$life>),
        }

        impl<$life> $name<$life> {
            $( #[doc = concat!("`", $prefix, stringify!($constant), "`.")] pub const $constant: u16 = $kind; )*
        }

        impl<$life> $crate::Attribute<$life> for $name<$life> {
            const TABLE: &'static $crate::AttrTable = &$crate::AttrTable {
                prefix: $prefix,
                rows: &[ $( $crate::AttrRow {
                    kind: $kind,
                    name: stringify!($constant),
                    nested: <$type as $crate::Wire>::TABLE,
                }, )* ],
            };

            #[inline]
            fn decode(raw: $crate::RawAttr<$life>) -> Result<Self, $crate::WireError> {
                match raw.kind() {
                    $( $kind => $crate::decode_row::<$type>(<Self as $crate::Attribute<$life>>::TABLE, raw).map(Self::$variant), )*
                    _ => Ok(Self::Unknown(raw)),
                }
            }

            #[inline(always)]
            fn encode(&self, out: &mut $crate::Encoder) {
                match self {
                    $( Self::$variant(value) => $crate::encode_row(out, $kind, value), )*
                    Self::Unknown(raw) => out.attr(raw.type_field, &raw.payload),
                }
            }
        }
    )*};
}
