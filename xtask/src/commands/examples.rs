//! `cargo xtask examples`: which functions of the libraries no example in the docs shows.
//!
//! Text only: the list `public-api.txt` of a library says what there is, the code blocks of its documentation what is shown. A name
//! that two types have counts for both, so the figure is an upper bound.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::api::{CRATES, LIST};
use crate::error::{Context as _, Error, Result};

pub(crate) const HELP: &str = "\
Usage: cargo xtask examples [--missing] [CRATE]...

Prints how many public functions and methods of each library stand in a Rust example of its documentation, and with --missing those
that do not. Fakes, errors, what traits and bitflags bring, are left out. All libraries unless told.
";

/// A public function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    /// The type or trait that it belongs to, without its path; empty for a free function.
    owner: String,
    name: String,
    has_receiver: bool,
}

impl Function {
    /// Whether code calls it, or something that is called the same.
    fn is_in(&self, code: &str) -> bool {
        if self.owner.is_empty() {
            return has_word(code, &self.name);
        }
        has_word(code, &format!("{}::{}", self.owner, self.name))
            || self.has_receiver && has_word(code, &format!(".{}", self.name))
    }
}

/// Whether a text has this word, and not only as a part of another one.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (text.get(..at), at.checked_add(word.len()).and_then(|end| text.get(end..)));
        let begins = word.starts_with('.') || !before.is_some_and(|text| text.ends_with(is_part));
        begins && !after.is_some_and(|text| text.starts_with(is_part))
    })
}

/// Functions that a user calls, in a list of the public API.
fn functions(list: &str) -> BTreeSet<Function> {
    let mut found = BTreeSet::new();
    let mut flags = BTreeSet::new();
    // The type of the trait's implementation whose functions follow.
    let mut implementor = None;
    for line in list.lines() {
        if line.starts_with("impl") {
            implementor = line.split_once(" for ").map(|(_, of)| last(of));
            flags.extend(implementor.filter(|_| line.starts_with("impl bitflags::traits::Flags ")).map(str::to_owned));
            continue;
        }
        let words =
            line.strip_prefix("pub ").map(|rest| rest.trim_start_matches("const ").trim_start_matches("unsafe "));
        let Some(function) = words.and_then(|words| parse(words.strip_prefix("fn ")?)) else { continue };
        if implementor != Some(function.owner.as_str()) {
            found.insert(function);
        }
    }
    found.retain(|function| !(flags.contains(&function.owner) && OF_BITFLAGS.contains(&function.name.as_str())));
    found
}

/// Functions that the macro `bitflags!` makes for a type.
const OF_BITFLAGS: &[&str] = &[
    "all",
    "all_named",
    "bits",
    "complement",
    "contains",
    "difference",
    "empty",
    "from_bits",
    "from_bits_retain",
    "from_bits_truncate",
    "from_name",
    "insert",
    "intersection",
    "intersects",
    "is_all",
    "is_empty",
    "iter",
    "iter_names",
    "remove",
    "set",
    "symmetric_difference",
    "toggle",
    "union",
];

/// The last part of a path, without parameters: `Table` of `ipvs::fake::Table<'_>`.
fn last(path: &str) -> &str {
    let path = path.split_once('<').map_or(path, |(path, _)| path);
    path.rsplit("::").next().unwrap_or(path)
}

/// `ipvs::Client::open_in(…) -> …`. `None` for what no user calls.
fn parse(line: &str) -> Option<Function> {
    let mut path = String::new();
    let mut depth = 0_u32;
    let mut rest = line.chars();
    for c in rest.by_ref() {
        match c {
            '<' => depth = depth.saturating_add(1),
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            _ if depth == 0 => path.push(c),
            _ => {}
        }
    }
    let arguments: String = rest.collect();
    let receiver = arguments.split([',', ')']).next().unwrap_or_default();
    let parts: Vec<&str> = path.split("::").collect();
    let (name, owners) = parts.split_last()?;
    let owner = owners.last().copied().unwrap_or_default();
    let is_type = owner.starts_with(|c: char| c.is_ascii_uppercase());
    let is_double = owners.iter().any(|part| matches!(*part, "fake" | "testing"));
    let is_error = owners.contains(&"error") || owner.ends_with("Error") || owner == "ErrorKind";
    (!is_double && !is_error).then(|| Function {
        owner: if is_type { owner.to_owned() } else { String::new() },
        name: (*name).to_owned(),
        has_receiver: receiver.split([' ', ':']).any(|word| word.trim_start_matches('&') == "self"),
    })
}

/// The Rust code of the documentation in a source or in Markdown.
fn code(text: &str, is_markdown: bool) -> String {
    let mut code = String::new();
    // Whether a block is open, and whether it is Rust.
    let mut open: Option<bool> = None;
    for line in text.lines() {
        let line = match line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!")) {
            Some(comment) => comment.trim_start(),
            None if is_markdown => line,
            None => {
                open = None;
                continue;
            }
        };
        if let Some(language) = line.strip_prefix("```") {
            let is_rust = |part: &str| matches!(part.trim(), "" | "rust" | "no_run" | "should_panic");
            open = if open.is_some() { None } else { Some(language.split(',').all(is_rust)) };
        } else if open == Some(true) {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The sources below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let failed = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).context(failed)? {
        let path = entry.context(failed)?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Number of functions of a library, and those that no example shows.
fn missing(folder: &Path) -> Result<(usize, Vec<Function>)> {
    let read = |path: &Path| fs::read_to_string(path).context(|| format!("cannot read {}", path.display()));
    let mut files = Vec::new();
    sources(&folder.join("src"), &mut files)?;
    let mut shown = code(&read(&folder.join("README.md"))?, true);
    for file in files {
        shown.push_str(&code(&read(&file)?, false));
    }
    let all = functions(&read(&folder.join(LIST))?);
    let count = all.len();
    Ok((count, all.into_iter().filter(|function| !function.is_in(&shown)).collect()))
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let (mut list, mut crates) = (false, Vec::new());
    for argument in arguments {
        match argument.to_str() {
            Some("--missing") => list = true,
            Some(name) if CRATES.contains(&name) => crates.push(name),
            _ => {
                return Err(Error::usage(format!(
                    "examples: {}: no option, and no library\n\n{HELP}",
                    argument.display()
                )));
            }
        }
    }
    if crates.is_empty() {
        crates.extend(CRATES);
    }
    let root = super::test::repository()?;
    for name in crates {
        let (count, missing) = missing(&root.join(name))?;
        println!("{name}: {} of {count} functions stand in an example", count.saturating_sub(missing.len()));
        for Function { owner, name, .. } in missing.iter().filter(|_| list) {
            println!("  {owner}{}{name}", if owner.is_empty() { "" } else { "::" });
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(owner: &str, name: &str, has_receiver: bool) -> Function {
        Function { owner: owner.to_owned(), name: name.to_owned(), has_receiver }
    }

    #[test]
    fn traits_flags_fakes_and_errors_are_left_out() {
        let list = "# Public API\npub mod a\npub struct a::Flags(_)\nimpl a::Flags\npub const a::Flags::X: Self\n\
                    pub const fn a::Flags::bits(&self) -> u8\npub fn a::Flags::named(&self) -> u8\n\
                    impl bitflags::traits::Flags for a::Flags\npub type a::Flags::Bits = u8\npub fn a::Flags::bits(&self) -> u8\n\
                    pub struct a::m::Set<T>\nimpl<T> a::m::Set<T>\npub fn a::m::Set<T>::new() -> Self\n\
                    pub const fn a::m::Set<T>::len(self) -> usize\npub a::m::Set::field: u8\n\
                    impl<T> core::clone::Clone for a::m::Set<T>\npub fn a::m::Set<T>::clone(&self) -> Self\n\
                    pub fn a::fake::Fake::new() -> Self\npub fn a::error::Error::kind(&self) -> u8\n\
                    pub trait a::Port\npub fn a::Port::list(&mut self, &str)\npub fn a::rule(a::Family) -> a::Rule\n";
        let found: Vec<Function> = functions(list).into_iter().collect();
        let wanted = [
            function("", "rule", false),
            function("Flags", "named", true),
            function("Port", "list", true),
            function("Set", "len", true),
            function("Set", "new", false),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn code_is_what_stands_in_rust_blocks() {
        let source = "/// Text with list().\n///\n/// ```\n/// a.list();\n/// ```\n/// ```text\n/// b.other();\n/// ```\n\
                      fn list() {}\n//! ```no_run\n//! # hidden();\n//! ```\n    /// ```rust,no_run\n    /// Set::new();\n    /// ```\n";
        assert_eq!(code(source, false), "a.list();\n# hidden();\nSet::new();\n");
        assert_eq!(code("x();\n```rust\ny();\n```\n```console\n$ z()\n```\n", true), "y();\n");
    }

    #[test]
    fn a_function_is_shown_where_its_whole_name_stands() {
        let (method, new) = (function("Set", "len", true), function("Set", "new", false));
        assert!(method.is_in("set.len()") && method.is_in("all.map(Set::len)"));
        assert!(!method.is_in("set.length()") && !method.is_in("len()"));
        assert!(new.is_in("Set::new()") && new.is_in("ipset::Set::new(1)"));
        assert!(!new.is_in("BitSet::new()") && !new.is_in("set.new()") && !new.is_in("Set::newer()"));
        assert!(function("", "rule", false).is_in("rule(Family::Ip)"));
    }

    /// CONTRIBUTING asks for it.
    #[test]
    fn at_least_three_of_five_functions_stand_in_an_example() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in CRATES {
            let (count, missing) = missing(&root.join(name)).unwrap();
            assert!(count > 0 && missing.len() * 5 <= count * 2, "{name}: {} of {count} are missing", missing.len());
        }
    }
}
