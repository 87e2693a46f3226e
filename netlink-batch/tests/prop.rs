//! Decoders against arbitrary and mutilated bytes.
#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use netlink_batch::{
    Attribute, Attrs, Be16, Be32, ControllerAttr, Encoder, ExtAckAttr, Messages, NulStr, RawAttrs, attrs, locate,
};
use proptest::prelude::*;

attrs! {
    /// Everything an attribute can be.
    "TEST_ATTR_",
    pub enum TestAttr<'a> {
        /// .
        BYTE = 1 => Byte(u8),
        /// .
        PORT = 2 => Port(Be16),
        /// .
        ADDRESS = 3 => Address(Be32),
        /// .
        WIDE = 4 => Wide(u64),
        /// .
        NAME = 5 => Name(NulStr<'a>),
        /// .
        FLAG = 6 => Flag(()),
        /// .
        ARRAY = 7 => Array([u8; 16]),
        /// .
        INNER = 8 => Inner(Attrs<'a, ControllerAttr<'a>>),
    }
}

/// Owned values, from which attributes are made.
fn build(out: &mut Encoder, values: &[(u8, u64, Vec<u8>)]) {
    for (which, number, bytes) in values {
        let name: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
        let mut inner = Encoder::new();
        ControllerAttr::FamilyName(NulStr::new(&name)).encode(&mut inner);
        match which % 9 {
            0 => TestAttr::Byte(number.to_ne_bytes()[0]).encode(out),
            1 => TestAttr::Port(Be16(u16::try_from(number & 0xffff).unwrap())).encode(out),
            2 => TestAttr::Address(Be32(u32::try_from(number & 0xffff_ffff).unwrap())).encode(out),
            3 => TestAttr::Wide(*number).encode(out),
            4 => TestAttr::Name(NulStr::new(&name)).encode(out),
            5 => TestAttr::Flag(()).encode(out),
            6 => TestAttr::Array([number.to_ne_bytes()[1]; 16]).encode(out),
            7 => TestAttr::Inner(Attrs::new(inner.as_slice())).encode(out),
            _ => out.attr(0x384 | (u16::from(*which) << 14 & 0x8000), &&bytes[..]),
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), offset in 0_usize..400) {
        for message in Messages::new(&bytes).flatten() {
            let _content = message.content();
            let _attributes = message.attributes(4).count();
        }
        let _path = locate(&bytes, offset);
        let _typed = Attrs::<TestAttr<'_>>::new(&bytes).to_vec();
        let _extended = Attrs::<ExtAckAttr<'_>>::new(&bytes).to_vec();
    }

    #[test]
    fn decoding_what_was_encoded_gives_it_back_and_every_prefix_is_safe(
        values in proptest::collection::vec((any::<u8>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..12)
    ) {
        let mut out = Encoder::new();
        build(&mut out, &values);
        let bytes = out.as_slice();
        let decoded = Attrs::<TestAttr<'_>>::new(bytes).to_vec().unwrap();
        prop_assert_eq!(decoded.len(), values.len());
        let mut again = Encoder::new();
        for attribute in &decoded {
            attribute.encode(&mut again);
        }
        prop_assert_eq!(again.as_slice(), bytes, "unknown attributes included");
        for end in 0..bytes.len() {
            let part: Vec<_> = RawAttrs::new(&bytes[..end]).collect();
            prop_assert!(part.len() <= values.len());
        }
    }
}

#[test]
fn a_wrong_length_names_attribute_and_place() {
    let mut out = Encoder::new();
    out.attr(1, &7_u8);
    out.attr(2, &7_u32);
    let error = Attrs::<TestAttr<'_>>::new(out.as_slice()).to_vec().unwrap_err();
    assert_eq!(error.to_string(), "TEST_ATTR_PORT at byte 8: 4 bytes where 2 bytes is expected");
}

#[test]
fn an_offset_becomes_a_path_of_names() {
    let mut out = Encoder::new();
    out.attr(1, &7_u8);
    out.nest(8, |inside| {
        inside.attr(1, &3_u16);
        inside.attr(2, &NulStr::from("x"));
    });
    let path = locate(out.as_slice(), 8 + 4 + 8);
    assert_eq!(TestAttr::TABLE.path(&path), "TEST_ATTR_INNER > CTRL_ATTR_FAMILY_NAME");
    assert_eq!(TestAttr::TABLE.path(&locate(out.as_slice(), 8)), "TEST_ATTR_INNER");
}
