//! Parsers of module lists: `/proc/modules`, `modules.builtin` and `modules.dep`.
//!
//! Every parser takes the bytes of one file. Invalid lines are skipped and counted. A file that is binary or consists
//! mostly of invalid lines is an error. A list that is cut off in a line or has skipped lines is not
//! [`complete`](LoadedModules::complete): a module that it does not list may still exist.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, ErrorKind, shown};

/// Longest module name: `MODULE_NAME_LEN` is 56 on 64-bit machines, including the NUL (`include/linux/module.h`).
const LONGEST_NAME: usize = 55;

/// A module's name as the kernel writes it. `-` and `,` in file names become `_`, so different spellings are equal.
/// Case is significant (`xt_MARK` is not `xt_mark`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct ModuleName(String);

impl ModuleName {
    /// Checks a name in either spelling.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModuleName`] unless it is 1 to 55 ASCII letters, digits or `_-,.+`.
    pub fn new(name: &str) -> Result<Self, Error> {
        let invalid = |why: &str| Error::new(ErrorKind::InvalidModuleName, format!("\"{}\" {why}", shown(name)));
        if name.is_empty() {
            return Err(invalid("is empty"));
        }
        if name.len() > LONGEST_NAME {
            return Err(invalid("is longer than the 55 characters the kernel takes"));
        }
        if let Some(odd) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !"_-,.+".contains(*c)) {
            return Err(invalid(&format!("has the character {odd:?}, which no module name has")));
        }
        Ok(Self(name.replace(['-', ','], "_")))
    }

    /// The name of the module in a file such as `kernel/net/ipv4/netfilter/iptable_nat.ko.zst`.
    ///
    /// `None` if the file is not a module: it must end in `.ko`, `.ko.gz`, `.ko.xz` or `.ko.zst`.
    #[must_use]
    pub fn of_file(path: &str) -> Option<Self> {
        let file = path.rsplit('/').next()?;
        let plain = [".gz", ".xz", ".zst"].iter().find_map(|packed| file.strip_suffix(packed)).unwrap_or(file);
        Self::new(plain.strip_suffix(".ko")?).ok()
    }

    /// The name with `_`, as in `lsmod` and `/sys/module`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ModuleName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(&name)
    }
}

impl From<ModuleName> for String {
    fn from(name: ModuleName) -> Self {
        name.0
    }
}

/// State of a module in `/proc/modules` (`kernel/module/procfs.c`, `m_show`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleState {
    /// In use.
    Live,
    /// Being initialised.
    Loading,
    /// Being removed.
    Unloading,
}

/// A list while it is read: entries by module, skipped lines, and whether the end was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
struct List<T> {
    modules: BTreeMap<ModuleName, T>,
    complete: bool,
}

impl<T> Default for List<T> {
    /// An empty, complete list.
    fn default() -> Self {
        Self { modules: BTreeMap::new(), complete: true }
    }
}

impl<T> List<T> {
    /// Reads lines ended by LF or CRLF, numbered from 1. An unfinished last line may hold half a name and is ignored.
    /// If a module has two entries, the first counts. Binary data is refused.
    fn read(bytes: &[u8], what: &str, entry: impl Fn(usize, &str) -> Option<(ModuleName, T)>) -> Result<Self, Error> {
        let invalid = |why: String| Error::new(ErrorKind::InvalidList, format!("this is no {what}: {why}"));
        if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
            return Err(invalid(format!("binary data at byte {at}")));
        }
        let cut_off = bytes.last().is_some_and(|byte| *byte != b'\n');
        let whole =
            bytes.iter().rposition(|byte| *byte == b'\n').and_then(|last| bytes.get(..last)).unwrap_or_default();
        if cut_off && whole.is_empty() {
            return Err(invalid(format!("not one whole line in {} bytes", bytes.len())));
        }
        let mut modules = BTreeMap::new();
        let (mut taken, mut skipped) = (0_usize, Vec::new());
        for (number, line) in (1..).zip(whole.split(|byte| *byte == b'\n')) {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            if let Some((name, value)) = std::str::from_utf8(line).ok().and_then(|line| entry(number, line)) {
                modules.entry(name).or_insert(value);
                taken = taken.saturating_add(1);
            } else {
                skipped.push(number);
            }
        }
        match skipped.first() {
            Some(first) if skipped.len() > taken => {
                Err(invalid(format!("{} lines make no sense, the first is line {first}", skipped.len())))
            }
            first => Ok(Self { modules, complete: !cut_off && first.is_none() }),
        }
    }
}

macro_rules! list {
    ($($list:ident)*) => { $(
        impl $list {
            /// All names, sorted.
            pub fn names(&self) -> impl Iterator<Item = &ModuleName> {
                self.0.modules.keys()
            }

            /// Whether every line was valid and the end was not cut off.
            #[must_use]
            pub fn complete(&self) -> bool {
                self.0.complete
            }
        }
    )* };
}
list! { LoadedModules BuiltinModules LoadableModules }

/// The loaded modules: `/proc/modules`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedModules(List<(usize, ModuleState)>);

impl LoadedModules {
    /// Parses the text of `/proc/modules`: name, size, use count, users, state, address.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidList`] for binary data, or if most lines are invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        List::read(bytes, "list of loaded modules", |number, line| {
            let mut fields = line.split_ascii_whitespace();
            let name = ModuleName::new(fields.next()?).ok()?;
            fields.next()?.parse::<u64>().ok()?;
            let state = match fields.nth(2) {
                None | Some("Live") => ModuleState::Live,
                Some("Loading") => ModuleState::Loading,
                Some("Unloading") => ModuleState::Unloading,
                Some(_) => return None,
            };
            Some((name, (number, state)))
        })
        .map(Self)
    }

    /// The line of a module, and its state.
    #[must_use]
    pub fn get(&self, name: &ModuleName) -> Option<(usize, ModuleState)> {
        self.0.modules.get(name).copied()
    }
}

/// Built-in modules: `modules.builtin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuiltinModules(List<usize>);

impl BuiltinModules {
    /// Parses `modules.builtin`: one path such as `kernel/net/ipv4/tunnel4.ko` per line.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidList`] for binary data, or if most lines are invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        List::read(bytes, "modules.builtin", |number, line| Some((ModuleName::of_file(line)?, number))).map(Self)
    }

    /// The line of a module.
    #[must_use]
    pub fn get(&self, name: &ModuleName) -> Option<usize> {
        self.0.modules.get(name).copied()
    }
}

/// Modules that `modprobe` can find: `modules.dep`, which `depmod` writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadableModules(List<Loadable>);

/// A line of `modules.dep`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loadable {
    line: usize,
    file: String,
    /// File names separated by blanks, as in the line.
    depends: String,
}

impl LoadableModules {
    /// Parses `modules.dep`: `path: path path …`, a module's file and, after the colon, its dependencies.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidList`] for binary data, or if most lines are invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        List::read(bytes, "modules.dep", |number, line| {
            let (file, depends) = line.split_once(':')?;
            // The path is used in messages.
            if file.chars().any(char::is_control) {
                return None;
            }
            let loadable = Loadable { line: number, file: file.to_owned(), depends: depends.to_owned() };
            Some((ModuleName::of_file(file)?, loadable))
        })
        .map(Self)
    }

    /// The line of a module, and its file: relative to the directory of `modules.dep`, or absolute.
    #[must_use]
    pub fn get(&self, name: &ModuleName) -> Option<(usize, &str)> {
        self.0.modules.get(name).map(|loadable| (loadable.line, loadable.file.as_str()))
    }

    /// The modules that must be loaded before this one, including indirect dependencies; none if it is not listed.
    pub fn dependencies(&self, name: &ModuleName) -> impl Iterator<Item = ModuleName> {
        let depends = self.0.modules.get(name).map_or("", |loadable| &loadable.depends);
        depends.split_ascii_whitespace().filter_map(ModuleName::of_file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ModuleName {
        ModuleName::new(text).unwrap()
    }

    #[test]
    fn names_are_compared_whole_and_with_dash_equal_to_underscore() {
        assert_eq!(name("nf-conntrack"), name("nf_conntrack"));
        assert_ne!(name("xt_MARK"), name("xt_mark"));
        let builtin =
            BuiltinModules::parse(b"kernel/net/netfilter/ipvs/ip_vs_rr.ko\nkernel/net/ip-set.ko.xz\n").unwrap();
        assert_eq!(builtin.get(&name("ip_vs_rr")), Some(1));
        assert_eq!(builtin.get(&name("ip_set")), Some(2));
        assert_eq!(builtin.get(&name("ip_vs")), None, "a name inside another name is not that module");
        assert_eq!(builtin.get(&name("vs_rr")), None);
    }

    #[test]
    fn odd_names_are_refused() {
        for odd in ["", "a b", "a\nb", "../x", "a/b", "caf\u{e9}", &"m".repeat(56)] {
            assert_eq!(ModuleName::new(odd).unwrap_err().kind(), ErrorKind::InvalidModuleName, "{odd:?}");
        }
        assert!(ModuleName::new(&"m".repeat(55)).is_ok());
        assert_eq!(ModuleName::of_file("kernel/net/ip_vs.o"), None);
        assert_eq!(ModuleName::of_file("kernel/net/.ko"), None);
        assert_eq!(ModuleName::of_file("ip_vs.ko.zst"), Some(name("ip_vs")));
    }

    #[test]
    fn loaded_modules_have_lines_and_states() {
        let text = b"ip_vs_rr 16384 1 - Live 0x0000000000000000\r\n\
            ip_vs 180224 3 ip_vs_rr, Loading 0x0000000000000000 (E)\r\n\
            dummy 16384 0 - Unloading 0xffffffffc0a5d000\r\n";
        let loaded = LoadedModules::parse(text).unwrap();
        assert_eq!(loaded.get(&name("ip_vs_rr")), Some((1, ModuleState::Live)));
        assert_eq!(loaded.get(&name("ip_vs")), Some((2, ModuleState::Loading)));
        assert_eq!(loaded.get(&name("dummy")), Some((3, ModuleState::Unloading)));
        assert!(loaded.complete());
    }

    #[test]
    fn a_cut_off_list_is_used_but_not_complete() {
        let whole = b"kernel/a.ko:\nkernel/ip_vs.ko: kernel/a.ko\nkernel/ip_vs_rr.ko: kern";
        let list = LoadableModules::parse(whole).unwrap();
        assert_eq!(list.get(&name("ip_vs")), Some((2, "kernel/ip_vs.ko")));
        assert_eq!(list.get(&name("ip_vs_rr")), None, "half a line proves nothing");
        assert!(!list.complete());
    }

    #[test]
    fn a_path_with_control_characters_is_refused() {
        let list = LoadableModules::parse(b"kernel/a.ko:\nker\x1b[2Jnel/ip_vs.ko:\n").unwrap();
        assert_eq!(list.get(&name("ip_vs")), None);
        assert!(!list.complete());
    }

    #[test]
    fn a_few_bad_lines_are_skipped_and_many_are_an_error() {
        let list = BuiltinModules::parse(b"kernel/a.ko\n<html>\nkernel/b.ko\n").unwrap();
        assert_eq!(list.names().count(), 2);
        assert!(!list.complete());
        let error = BuiltinModules::parse(b"<html>\n<body>\nkernel/b.ko\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidList);
        assert!(error.to_string().contains("line 1"), "{error}");
        assert_eq!(LoadedModules::parse(b"\x7fELF\0\0").unwrap_err().kind(), ErrorKind::InvalidList);
        assert!(LoadedModules::parse(b"").unwrap().complete(), "no module loaded");
    }
}
