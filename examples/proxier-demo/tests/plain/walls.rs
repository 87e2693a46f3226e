//! Rules about which part of `proxier-demo` may name which, read from the source. There are no exceptions. And paths that guides name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The parts, the lowest first: each names only those before it.
const ORDER: [&str; 13] = [
    "build",
    "exit",
    "gather",
    "output",
    "problem",
    "histogram",
    "yaml",
    "settings",
    "message",
    "sources",
    "status",
    "engine",
    "commands",
];

/// A module by the names in its path; the parts' common root has none.
type Module = Vec<String>;

/// The modules that have files, without tests and comments.
fn code() -> BTreeMap<Module, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut open, mut found) = (vec![root.clone()], BTreeMap::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let (folder, stem) = (path.parent().unwrap(), path.file_stem().unwrap());
        // The program names any part.
        let is_program = folder == root && stem == "main";
        if path.extension().is_none_or(|extension| extension != "rs") || stem == "tests" || is_program {
            continue;
        }
        let of_file = if stem == "mod" || stem == "lib" { folder.to_owned() } else { folder.join(stem) };
        let names = of_file.strip_prefix(&root).unwrap().iter().map(|name| name.to_str().unwrap().to_owned());
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
        found.insert(names.collect(), lines.join("\n"));
    }
    found
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads a path, or paths in braces as `use` has them. Returns the text behind them.
fn read<'a>(mut text: &'a str, before: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let mut path = before.to_vec();
    loop {
        if let Some(inner) = text.strip_prefix('{') {
            text = inner;
            loop {
                text = read(text.trim_start(), &path, found).trim_start();
                // `as` and the other name.
                text = text.trim_start_matches(|c: char| is_of_name(c) || c == ' ');
                match text.strip_prefix(',') {
                    Some(more) => text = more,
                    None => return text.strip_prefix('}').unwrap_or(text),
                }
            }
        }
        let (name, rest) = text.split_at(text.find(|c| !is_of_name(c)).unwrap_or(text.len()));
        if name.is_empty() {
            // `*`, or the end after a last comma.
            if let Some(rest) = text.strip_prefix('*') {
                found.push(path);
                return rest;
            }
            return text;
        }
        path.push(name);
        let Some(below) = rest.strip_prefix("::") else {
            found.push(path);
            return rest;
        };
        text = below;
    }
}

/// The modules that a module names, itself aside.
fn named(module: &Module, text: &str, all: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(start) {
            if !text[..at].ends_with(|c| is_of_name(c) || c == ':') {
                read(&text[at..], &[], &mut paths);
            }
        }
    }
    let mut found = BTreeSet::new();
    for path in paths {
        let mut place = module.clone();
        for name in path {
            match name {
                "crate" => place.clear(),
                "super" => drop(place.pop()),
                "self" => {}
                name => place.push(name.to_owned()),
            }
        }
        while !all.contains_key(&place) {
            place.pop();
        }
        found.insert(place);
    }
    found.remove(module);
    found
}

/// Which module uses which.
fn edges() -> BTreeMap<Module, BTreeSet<Module>> {
    let all = code();
    all.iter().map(|(module, text)| (module.clone(), named(module, text, &all))).collect()
}

fn module(path: &str) -> Module {
    path.split('/').map(str::to_owned).collect()
}

/// Names are seen: otherwise the other tests could pass because they see nothing.
#[test]
fn names_are_seen_however_they_are_written() {
    let edges = edges();
    for (from, to) in [
        ("status/serve", "status/zpages"),
        ("status/page/body", "status/page/counters"),
        ("commands/show/board", "commands/show"),
        ("commands/probe", "engine/userspace"),
        ("commands/probe", "engine/choose"),
        ("sources/cluster", "sources/cluster/watch"),
    ] {
        assert!(edges[&module(from)].contains(&module(to)), "{from} names {to}: {:?}", edges[&module(from)]);
    }
    let mut found = Vec::new();
    let rest = read("a::{self, b as x, c::{\n    d,\n    *,\n}};", &[], &mut found);
    assert_eq!(rest, ";");
    assert_eq!(found, [vec!["a", "self"], vec!["a", "b"], vec!["a", "c", "d"], vec!["a", "c"]]);
}

#[test]
fn parts_name_only_lower_parts() {
    let rank = |module: &Module| {
        // The root has all parts: to name it is to name the highest.
        let Some(part) = module.first() else { return ORDER.len() };
        let place = ORDER.iter().position(|known| known == part);
        place.unwrap_or_else(|| panic!("{part} has no place in the order"))
    };
    let mut broken = Vec::new();
    for (from, to) in edges().iter().filter(|(from, _)| !from.is_empty()) {
        let higher = to.iter().filter(|to| rank(to) > rank(from));
        broken.extend(higher.map(|to| format!("{} names {}", from.join("/"), to.join("/"))));
    }
    assert!(broken.is_empty(), "a wall is broken: {broken:#?}");
}

/// A module and its own parts may name each other.
#[test]
fn files_do_not_name_each_other_in_a_circle() {
    let mut left = edges();
    for (from, to) in &mut left {
        to.retain(|to| !to.starts_with(from) && !from.starts_with(to));
    }
    // A module is in no circle if it names no module that is left, or none that is left names it.
    loop {
        let before = left.clone();
        let is_named = |module: &Module| before.values().any(|to| to.contains(module));
        left.retain(|from, to| {
            to.retain(|to| before.contains_key(to));
            !to.is_empty() && is_named(from)
        });
        if left == before {
            break;
        }
    }
    let names = |(from, to): (&Module, &BTreeSet<Module>)| {
        format!("{} names {}", from.join("/"), to.iter().map(|to| to.join("/")).collect::<Vec<_>>().join(", "))
    };
    assert!(left.is_empty(), "circles: {:#?}", left.iter().map(names).collect::<Vec<_>>());
}
