//! Messages that are well framed and mean nothing, or nearly something: what the fuzz targets do, with bytes that reach further than
//! random ones. None of them may make anything panic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

mod fuzzed;

/// Names that the library knows and that the fuzz targets ask for.
const WORDS: [&str; 36] = [
    "t",
    "eps",
    "pick",
    "hits",
    "__set%d",
    "__map0",
    "filter",
    "nat",
    "lo",
    "payload",
    "meta",
    "ct",
    "fib",
    "cmp",
    "bitwise",
    "range",
    "lookup",
    "immediate",
    "masq",
    "redir",
    "reject",
    "numgen",
    "hash",
    "dynset",
    "counter",
    "limit",
    "log",
    "notrack",
    "objref",
    "quota",
    "byteorder",
    "flow_offload",
    "synproxy",
    "\u{7f}\n",
    "",
    "\"",
];

fn attribute(kind: u16, nested: bool, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 4).unwrap();
    let kind = if nested { kind | 0x8000 } else { kind };
    let mut out = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => select(&WORDS[..]).prop_map(|word| [word.as_bytes(), &[0]].concat()),
        4 => prop_oneof![0..40_u32, Just(u32::MAX), Just(0xffff_ff00), any::<u32>()].prop_map(|number| number.to_be_bytes().to_vec()),
        1 => any::<u64>().prop_map(|number| number.to_be_bytes().to_vec()),
        2 => vec(any::<u8>(), 0..70),
    ]
}

/// Attributes one behind the other, some of them with attributes inside.
fn attributes() -> impl Strategy<Value = Vec<u8>> {
    let leaf = vec((1..12_u16, payload()), 0..6)
        .prop_map(|list| list.iter().flat_map(|(kind, bytes)| attribute(*kind, false, bytes)).collect::<Vec<u8>>());
    leaf.prop_recursive(6, 60, 5, |inner| {
        vec(
            (1..21_u16, prop_oneof![payload().prop_map(|bytes| (false, bytes)), inner.prop_map(|bytes| (true, bytes))]),
            0..8,
        )
        .prop_map(|list| list.iter().flat_map(|(kind, (nested, bytes))| attribute(*kind, *nested, bytes)).collect())
    })
}

/// The table `inet t` and the name of something in it, then anything.
fn messages(commands: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let one = (select(commands), select(&[1_u8, 1, 1, 2, 5, 10][..]), select(&WORDS[..]), attributes());
    vec(one, 1..5).prop_map(|list| {
        let messages = list.into_iter().map(|(command, family, name, rest)| {
            let name = [name.as_bytes(), &[0]].concat();
            [vec![command, family, 0, 0, 0], attribute(1, false, b"t\0"), attribute(2, false, &name), rest].concat()
        });
        messages.collect::<Vec<Vec<u8>>>().join(&0xf5)
    })
}

proptest! {
    #[test]
    fn any_answers_are_read(data in messages(&[0, 3, 6, 9, 12, 15, 18, 22])) {
        fuzzed::replies(&data);
    }

    #[test]
    fn any_events_are_read(data in messages(&[0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 18, 20, 22, 24])) {
        fuzzed::events(&data);
    }

    #[test]
    fn any_bytes_are_no_events(data in vec(any::<u8>(), 0..200)) {
        fuzzed::events(&data);
    }

    #[test]
    fn any_requests_are_taken(data in messages(&[0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 18, 20, 22, 24])) {
        // Most need a table.
        fuzzed::requests(&[[vec![0, 1, 0, 0, 0], attribute(1, false, b"t\0"), vec![0xf5]].concat(), data].concat());
    }
}
