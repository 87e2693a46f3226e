//! Checks that the fuzz targets run on their bytes; `tests/corpus.rs` runs the same on the inputs that fuzzing has found.
//!
//! Each function panics when the library breaks a promise; any other outcome is fine.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use kmod_probe::{
    Answer, BuiltinModules, Kconfig, KernelRelease, LoadableModules, LoadedModules, ModuleName, Probe, Profile, Setting,
};

/// The text of a line, counted from 1.
fn record(bytes: &[u8], number: usize) -> String {
    let record = bytes.split(|byte| *byte == b'\n').nth(number.saturating_sub(1)).unwrap_or_default();
    String::from_utf8_lossy(record.trim_ascii()).into_owned()
}

/// Whether a word, in either spelling, is this name and nothing else.
fn is_name(word: &str, name: &ModuleName) -> bool {
    word.replace(['-', ','], "_") == name.as_str()
}

fn is_file_of(path: &str, name: &ModuleName) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split_once(".ko").is_some() && file.rsplit_once(".ko").is_some_and(|(stem, _)| is_name(stem, name))
}

/// Every parser: what a list names stands in the line it is said to stand in, whole.
pub(crate) fn lists(data: &[u8]) {
    if let Ok(list) = LoadedModules::parse(data) {
        for name in list.names() {
            let Some((line, _)) = list.get(name) else { panic!("{name} is named and not there") };
            let line = record(data, line);
            assert!(is_name(line.split_ascii_whitespace().next().unwrap_or_default(), name), "{name} in {line}");
        }
        assert!(!list.complete() || data.is_empty() || data.ends_with(b"\n"));
    }
    if let Ok(list) = BuiltinModules::parse(data) {
        for name in list.names() {
            let line = record(data, list.get(name).unwrap_or_default());
            assert!(is_file_of(&line, name), "{name} in {line}");
        }
        assert!(!list.complete() || data.is_empty() || data.ends_with(b"\n"));
    }
    if let Ok(list) = LoadableModules::parse(data) {
        for name in list.names() {
            let Some((line, file)) = list.get(name) else { panic!("{name} is named and not there") };
            assert!(is_file_of(file, name) && !file.chars().any(char::is_control), "{name} in {file:?}");
            let line = record(data, line);
            assert!(line.split(':').next() == Some(file), "{name} in {line}");
        }
        assert!(!list.complete() || data.is_empty() || data.ends_with(b"\n"));
    }
    config(data);
    versions(data);
}

fn config(data: &[u8]) {
    let Ok(config) = Kconfig::parse(data) else { return };
    if data.starts_with(&[0x1f, 0x8b]) {
        return; // its lines are not those of the bytes
    }
    for (symbol, line, setting) in config.symbols() {
        let line = record(data, line);
        let expected = match setting {
            Setting::BuiltIn => line == format!("CONFIG_{symbol}=y"),
            Setting::Module => line == format!("CONFIG_{symbol}=m"),
            Setting::NotSet => line == format!("# CONFIG_{symbol} is not set") || line == format!("CONFIG_{symbol}=n"),
            Setting::Value(value) => line == format!("CONFIG_{symbol}={value}"),
        };
        assert!(expected, "{symbol} is {setting:?} in {line}");
        assert_eq!(config.get(symbol).map(|(_, setting)| setting), Some(setting));
    }
    assert!(!config.complete() || data.ends_with(b"\n"));
}

fn versions(data: &[u8]) {
    if let Ok(release) = KernelRelease::parse(data) {
        let text = release.to_string();
        assert_eq!(text.parse::<KernelRelease>().ok().as_ref(), Some(&release));
        assert!(text.len() <= 64);
        // The release becomes a part of file names.
        assert!(!text.contains('/') && !text.starts_with('.') && text.is_ascii());
        assert!(release.at_least(release.version().major, release.version().minor));
    }
    let text = String::from_utf8_lossy(data);
    for name in [ModuleName::new(&text).ok(), ModuleName::of_file(&text)].into_iter().flatten() {
        assert_eq!(ModuleName::new(name.as_str()).ok(), Some(name.clone()));
        assert_eq!(ModuleName::of_file(&format!("kernel/{name}.ko.zst")), Some(name));
    }
    let _any = Profile::default().scheduler(&text);
}

const PATHS: [&str; 16] = [
    "proc/sys/kernel/osrelease",
    "proc/modules",
    "proc/config.gz",
    "boot/config-6.1.0",
    "lib/modules/6.1.0/modules.dep",
    "lib/modules/6.1.0/modules.builtin",
    "lib/modules/6.1.0/modules.builtin.modinfo",
    "lib/modules/6.1.0/config",
    "proc/sys/net/ipv4/vs/conntrack",
    "proc/net/ip_tables_matches",
    "proc/sys/kernel/modules_disabled",
    "proc/sys/kernel/modprobe",
    "sys/module/ip_vs/initstate",
    "sys/module/ip_set",
    "usr/lib/modules/6.1.0/modules.dep",
    "proc/net/ip_vs",
];

/// A directory of its own for each run, removed afterwards.
struct Root(PathBuf);

impl Root {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("kmod-probe-fuzz-{}-{number}", std::process::id())))
    }

    /// A file, a directory or a symbolic link; what stands in the way stays.
    fn put(&self, path: &str, how: u8, content: &[u8]) {
        let path = self.0.join(path);
        let Some(parent) = path.parent() else { return };
        let link = || std::os::unix::fs::symlink(Path::new(std::ffi::OsStr::from_bytes(content)), &path);
        let _in_the_way = fs::create_dir_all(parent).and_then(|()| match how {
            0..=1 => fs::write(&path, content),
            2 => link(),
            _ => fs::create_dir(&path),
        });
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _left_over = fs::remove_dir_all(&self.0);
    }
}

/// A whole machine whose files may hold any bytes: the probe still gives a report, fit to be printed, and the same one
/// each time.
pub(crate) fn tree(data: &[u8]) {
    let root = Root::new();
    for part in data.split(|byte| *byte == 0xf5).take(24) {
        let Some((how, content)) = part.split_first() else { continue };
        root.put(PATHS[usize::from(how & 15)], how >> 4 & 3, content);
    }
    root.put(PATHS[0], 0, b"6.1.0\n");
    let probe = Probe::new().root(&root.0);
    let report = probe.run();
    let table = report.to_string();
    assert!(!report.findings.is_empty());
    assert!(table.chars().all(|c| c == '\n' || !c.is_control()), "{table:?}");
    assert_eq!(report.verdict.answer == Answer::Yes, report.verdict.reasons.is_empty(), "{table}");
    assert_eq!(probe.run().to_string(), table);
}
