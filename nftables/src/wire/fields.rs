//! Tables of attributes: a value's fields, each with its attribute, are listed once for writing and reading.

use netlink_batch::{Attrs, Be16, Be32, Be64, Encoder, NulStr, WireError};

use crate::attrs::DataAttr;
use crate::builder::L4Protocol;
use crate::expr::{
    ByteOrderOp, CmpOp, CtKey, Direction, ExthdrOp, FibFlags, FibResult, HeaderBase, LimitUnit, LogFlags, MetaKey,
    NumgenKind, QueueFlags, Register, RtKey, ShiftOp, SocketKey, SynproxyFlags, XfrmKey,
};
use crate::model::{Family, Name, Value};
use crate::wire::parts::{get_name, get_value, put_data, put_name};

/// A field that an attribute with payload `W` carries.
pub(crate) trait Field<W>: Sized {
    fn put(&self, out: &mut Encoder, kind: u16);

    /// The field; `None` if the attribute is missing, or has a value that would not be written back unchanged.
    fn get(payload: Option<W>) -> Result<Option<Self>, WireError>;
}

/// A field without an attribute is `None`.
impl<W, T: Field<W>> Field<W> for Option<T> {
    fn put(&self, out: &mut Encoder, kind: u16) {
        if let Some(field) = self {
            field.put(out, kind);
        }
    }

    fn get(payload: Option<W>) -> Result<Option<Self>, WireError> {
        match payload {
            None => Ok(Some(None)),
            found => Ok(T::get(found)?.map(Some)),
        }
    }
}

macro_rules! numbers {
    ($($field:ty: $payload:ty = |$value:ident| $put:expr, |$found:ident| $get:expr;)*) => { $(
        impl Field<$payload> for $field {
            #[inline]
            fn put(&self, out: &mut Encoder, kind: u16) {
                let $value = *self;
                out.attr(kind, &$put);
            }

            #[inline]
            fn get(payload: Option<$payload>) -> Result<Option<Self>, WireError> {
                Ok(payload.and_then(|$found| $get))
            }
        }
    )* };
}

numbers! {
    u8: u8 = |number| number, |found| Some(found);
    u16: Be16 = |number| Be16(number), |found| Some(found.0);
    u32: Be32 = |number| Be32(number), |found| Some(found.0);
    u32: u32 = |number| number, |found| Some(found);
    u64: Be64 = |number| Be64(number), |found| Some(found.0);
    // Each flag of these attributes is the first bit.
    bool: u8 = |flag| u8::from(flag), |found| (found < 2).then_some(found == 1);
    bool: Be32 = |flag| Be32(flag.into()), |found| (found.0 < 2).then_some(found.0 == 1);
    Register: Be32 = |register| Be32(register.to_wire()), |found| Register::from_wire(found.0);
    Family: Be16 = |family| Be16(family.number().into()), |found| u8::try_from(found.0).ok().map(Family::from_number);
    Family: Be32 = |family| Be32(family.number().into()), |found| u8::try_from(found.0).ok().map(Family::from_number);
    L4Protocol: u8 = |protocol| protocol.0, |found| Some(L4Protocol(found));
    Direction: u8 = |direction| direction.number(), |found| Direction::from_number(found);
    LimitUnit: Be64 = |unit| Be64(unit.seconds()), |found| Some(LimitUnit::from_seconds(found.0));
    FibFlags: Be32 = |flags| Be32(flags.bits()), |found| Some(FibFlags::from_bits_retain(found.0));
    LogFlags: Be32 = |flags| Be32(flags.bits()), |found| Some(LogFlags::from_bits_retain(found.0));
    SynproxyFlags: Be32 = |flags| Be32(flags.bits()), |found| Some(SynproxyFlags::from_bits_retain(found.0));
    // Only two of sixteen bits are defined.
    QueueFlags: Be16 = |flags| Be16(u16::try_from(flags.bits()).unwrap_or(u16::MAX)),
        |found| Some(QueueFlags::from_bits_retain(found.0.into()));
    HeaderBase: Be32 = |base| Be32(base.number()), |found| Some(HeaderBase::from_number(found.0));
    MetaKey: Be32 = |key| Be32(key.number()), |found| Some(MetaKey::from_number(found.0));
    CtKey: Be32 = |key| Be32(key.number()), |found| Some(CtKey::from_number(found.0));
    FibResult: Be32 = |result| Be32(result.number()), |found| Some(FibResult::from_number(found.0));
    CmpOp: Be32 = |op| Be32(op.number()), |found| Some(CmpOp::from_number(found.0));
    ByteOrderOp: Be32 = |op| Be32(op.number()), |found| Some(ByteOrderOp::from_number(found.0));
    ExthdrOp: Be32 = |op| Be32(op.number()), |found| Some(ExthdrOp::from_number(found.0));
    RtKey: Be32 = |key| Be32(key.number()), |found| Some(RtKey::from_number(found.0));
    SocketKey: Be32 = |key| Be32(key.number()), |found| Some(SocketKey::from_number(found.0));
    XfrmKey: Be32 = |key| Be32(key.number()), |found| Some(XfrmKey::from_number(found.0));
    // Its number 0 is an operation with constants.
    ShiftOp: Be32 = |op| Be32(op.number()),
        |found| Some(ShiftOp::from_number(found.0)).filter(|op| !matches!(op, ShiftOp::Other(_)));
    NumgenKind: Be32 = |kind| Be32(kind.number()), |found| Some(NumgenKind::from_number(found.0));
}

impl<'a> Field<Attrs<'a, DataAttr<'a>>> for Value {
    fn put(&self, out: &mut Encoder, kind: u16) {
        put_data(out, kind, self);
    }

    fn get(payload: Option<Attrs<'a, DataAttr<'a>>>) -> Result<Option<Self>, WireError> {
        Ok(payload.map(get_value).transpose()?.flatten())
    }
}

/// A constant in host byte order.
impl<'a> Field<Attrs<'a, DataAttr<'a>>> for u32 {
    fn put(&self, out: &mut Encoder, kind: u16) {
        put_data(out, kind, &Value::mark(*self));
    }

    fn get(payload: Option<Attrs<'a, DataAttr<'a>>>) -> Result<Option<Self>, WireError> {
        let value = Value::get(payload)?;
        Ok(value.and_then(|value| value.as_bytes().try_into().ok()).map(u32::from_ne_bytes))
    }
}

impl<'a> Field<NulStr<'a>> for Name {
    fn put(&self, out: &mut Encoder, kind: u16) {
        put_name(out, kind, self);
    }

    fn get(payload: Option<NulStr<'a>>) -> Result<Option<Self>, WireError> {
        Ok(payload.map(get_name))
    }
}

impl<'a> Field<NulStr<'a>> for String {
    fn put(&self, out: &mut Encoder, kind: u16) {
        out.attr(kind, &NulStr::from(self.as_str()));
    }

    fn get(payload: Option<NulStr<'a>>) -> Result<Option<Self>, WireError> {
        Ok(payload.and_then(|text| Some(text.to_str()?.to_owned())))
    }
}

/// Writes a field, unless its value is `omitted`. `_attribute` gives the type of the payload.
#[inline]
pub(crate) fn put_field<W, A, T: Field<W> + PartialEq>(
    out: &mut Encoder,
    kind: u16,
    _attribute: fn(W) -> A,
    field: &T,
    omitted: Option<W>,
) {
    let is_omitted = omitted.is_some() && T::get(omitted).is_ok_and(|omitted| omitted.as_ref() == Some(field));
    if !is_omitted {
        field.put(out, kind);
    }
}

/// Writes two functions for an enum: one that puts a variant's fields as attributes, and one that gets the variant of a
/// kind from them; both leave what is not listed to another function. Of several variants of one kind, the first counts
/// that has all attributes that are there.
///
/// For each field: the constant and the variant of its attribute, in the order in which they are written. `or`: the
/// payload of a missing attribute. `unless`: the same, and with this payload the attribute is not written. Behind the
/// fields: an attribute with a constant by which the variant is told from others (`=`), and attributes that are read and
/// have no meaning.
macro_rules! listed {
    (
        $enum:ident, $put:ident else $put_other:ident, $get:ident else $get_other:ident;
        $($kind:literal $attrs:ident { $(
            $variant:ident { $(
                $field:ident: $constant:ident $attr:ident $(or($missing:expr))? $(unless($omitted:expr))?
            ),* $(= $fixed:ident $fixed_attr:ident($number:expr))? $(; $($ignored:pat),*)? }
        )* })*
    ) => {
        pub(crate) fn $put(out: &mut netlink_batch::Encoder, value: &$enum) {
            match value {
                $($( $enum::$variant { $($field),* } => { $(
                    let omitted = None $(.or(Some($omitted)))?;
                    $crate::wire::put_field(out, $attrs::$constant, $attrs::$attr, $field, omitted);
                )* $( out.attr($attrs::$fixed, &$number); )? } )*)*
                other => $put_other(out, other),
            }
        }

        /// The variant of this kind with these attributes; `None` if it would not be written back unchanged.
        pub(crate) fn $get(kind: &[u8], data: &[u8]) -> Result<Option<$enum>, netlink_batch::WireError> {
            $( if kind == $kind.as_bytes() {
                $({
                    fn get(data: &[u8]) -> Result<Option<$enum>, netlink_batch::WireError> {
                        $(
                            let is_fixed = |attr| matches!(attr, Ok($attrs::$fixed_attr(found)) if found == $number);
                            if !netlink_batch::Attrs::<$attrs<'_>>::new(data).iter().any(is_fixed) {
                                return Ok(None);
                            }
                        )?
                        $( let mut $field = None; )*
                        for attr in netlink_batch::Attrs::<$attrs<'_>>::new(data).iter() {
                            match attr? {
                                $( $($ignored => {})* )?
                                $( $attrs::$attr(found) => $field = Some(found), )*
                                $( $attrs::$fixed_attr(found) if found == $number => {} )?
                                _ => return Ok(None),
                            }
                        }
                        $(
                            let payload = $field $(.or(Some($missing)))? $(.or(Some($omitted)))?;
                            let Some($field) = $crate::wire::Field::get(payload)? else { return Ok(None) };
                        )*
                        Ok(Some($enum::$variant { $($field),* }))
                    }
                    if let Some(found) = get(data)? {
                        return Ok(Some(found));
                    }
                })*
                return Ok(None);
            } )*
            $get_other(kind, data)
        }
    };
}
pub(crate) use listed;
