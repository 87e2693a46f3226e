#![no_main]

#[path = "../../nftables/tests/fuzzed/mod.rs"]
#[allow(dead_code, reason = "each target uses one of the functions")]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::events(data));
