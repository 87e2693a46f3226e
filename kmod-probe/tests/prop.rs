//! Values in a list's form are read back. Arbitrary bytes, and trees of them: `corpus.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]
#![allow(clippy::format_collect, reason = "short texts in tests; the plain form reads best")]

use kmod_probe::{
    BuiltinModules, Kconfig, KernelRelease, LoadableModules, LoadedModules, ModuleName, ModuleState, Setting,
};
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;

fn module() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9][a-zA-Z0-9_-]{0,40}"
}

proptest! {
    #[test]
    fn lists_are_read_back(names in btree_set(module(), 1..40), packed in prop_oneof![Just(""), Just(".gz"), Just(".xz"), Just(".zst")]) {
        let normal: std::collections::BTreeSet<_> = names.iter().map(|name| name.replace('-', "_")).collect();
        let read_back = |names: Vec<&ModuleName>| names.into_iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
        let expected: Vec<_> = normal.iter().cloned().collect();

        let text: String = names.iter().map(|name| format!("{name} 16384 0 - Live 0x0\n")).collect();
        let list = LoadedModules::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(read_back(list.names().collect()), expected.clone());
        prop_assert!(list.complete());
        for (index, name) in names.iter().enumerate() {
            let (line, state) = list.get(&ModuleName::new(name).unwrap()).unwrap();
            prop_assert!(line <= index + 1, "the first line that names it");
            prop_assert_eq!(state, ModuleState::Live);
        }

        let text: String = names.iter().map(|name| format!("kernel/a/{name}.ko{packed}\n")).collect();
        prop_assert_eq!(read_back(BuiltinModules::parse(text.as_bytes()).unwrap().names().collect()), expected.clone());

        let text: String = names.iter().map(|name| format!("kernel/a/{name}.ko{packed}: kernel/b/x.ko\n")).collect();
        let list = LoadableModules::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(read_back(list.names().collect()), expected);
    }

    #[test]
    fn configurations_are_read_back(symbols in btree_map("[A-Z0-9_]{1,30}", 0..4_u8, 1..40)) {
        let line = |(symbol, value): (&String, &u8)| match value {
            0 => format!("# CONFIG_{symbol} is not set\n"),
            1 => format!("CONFIG_{symbol}=y\n"),
            2 => format!("CONFIG_{symbol}=m\n"),
            _ => format!("CONFIG_{symbol}=12\n"),
        };
        let text: String = symbols.iter().map(line).collect();
        let config = Kconfig::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(config.symbols().count(), symbols.len());
        for (index, (symbol, value)) in symbols.iter().enumerate() {
            let expected = match value { 0 => Setting::NotSet, 1 => Setting::BuiltIn, 2 => Setting::Module, _ => Setting::Value("12".into()) };
            prop_assert_eq!(config.get(symbol), Some((index + 1, &expected)));
        }
    }

    #[test]
    fn releases_are_read_back(major in 0..1000_u64, minor in 0..1000_u64, patch in 0..100_000_u64, suffix in "([-+.~][a-zA-Z0-9._~+-]{0,20})?") {
        let raw = format!("{major}.{minor}.{patch}{suffix}");
        let release: KernelRelease = raw.parse().unwrap();
        prop_assert_eq!(release.version(), &semver::Version::new(major, minor, patch));
        prop_assert_eq!(release.to_string(), raw);
        prop_assert!(release.at_least(major, minor));
        prop_assert!(!release.at_least(major, minor + 1) && !release.at_least(major + 1, 0));
    }
}
