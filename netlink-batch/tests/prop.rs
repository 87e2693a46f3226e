//! Decoders against arbitrary and mutilated bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

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
    let mut out = Encoder::new();
    out.attr(6, &7_u8);
    let error = Attrs::<TestAttr<'_>>::new(out.as_slice()).to_vec().unwrap_err();
    assert_eq!(error.to_string(), "TEST_ATTR_FLAG at byte 0: 1 bytes where no payload is expected");
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
    assert_eq!(TestAttr::TABLE.path(&locate(out.as_slice(), 8 + 4)), "TEST_ATTR_INNER > CTRL_ATTR_FAMILY_ID");
    assert_eq!(TestAttr::TABLE.path(&[8, 99, 1]), "TEST_ATTR_INNER > CTRL_ATTR_99 > 1");
    assert!(locate(out.as_slice(), out.len()).is_empty());
}

/// The kernel's validation wants `NLA_F_NESTED` (0x8000) on nests, and on nothing else.
#[test]
fn a_list_inside_a_list_is_marked_and_kept_as_it_is() {
    let mut inner = Encoder::new();
    assert!(inner.is_empty());
    ControllerAttr::FamilyId(3).encode(&mut inner);
    assert!(!inner.is_empty());
    let mut out = Encoder::new();
    TestAttr::Byte(7).encode(&mut out);
    TestAttr::Inner(Attrs::new(inner.as_slice())).encode(&mut out);
    let fields: Vec<u16> = RawAttrs::new(out.as_slice()).map(|attribute| attribute.unwrap().type_field).collect();
    assert_eq!(fields, [1, 0x8008]);
    let read = Attrs::<TestAttr<'_>>::new(out.as_slice()).to_vec().unwrap();
    let [_, TestAttr::Inner(nested)] = read[..] else { panic!("{read:?}") };
    assert_eq!(nested.as_bytes(), inner.as_slice());
    assert_eq!(nested, Attrs::new(inner.as_slice()));
    assert_ne!(nested, Attrs::new(&[]));
    // Saying it twice does not take it back.
    let mut nest = Encoder::new();
    nest.nest(0x8008, |out| out.bytes(inner.as_slice()));
    assert_eq!(nest.as_slice(), &out.as_slice()[8..]);
    let raw = RawAttrs::new(out.as_slice()).next().unwrap().unwrap();
    assert_eq!(format!("{raw:?}"), "attribute 0x1 [07]");
}
