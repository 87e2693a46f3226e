//! Which module may use which, read from the source. The lists of exceptions may only become shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modes: each has a folder of its own.
fn modes() -> BTreeSet<String> {
    let files = code("modes");
    let folders = files.keys().filter_map(|file| file.strip_prefix("modes/")?.split_once('/'));
    folders.map(|(folder, _)| folder.to_owned()).filter(|folder| folder != "shared").collect()
}

/// The lines of the source files below a path without comments, by file.
fn code(below: &str) -> BTreeMap<String, Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut open, mut found) = (vec![root.join(below)], BTreeMap::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| line.split("//").next().unwrap().trim().to_owned());
            let name: PathBuf = path.strip_prefix(&root).unwrap().to_owned();
            found.insert(name.to_str().unwrap().to_owned(), lines.collect());
        }
    }
    assert!(!found.is_empty(), "nothing is below {below}");
    found
}

/// The files in which a line is as asked for, with the first such line.
fn with(files: &BTreeMap<String, Vec<String>>, is_asked: impl Fn(&str) -> bool) -> BTreeMap<&str, &str> {
    let first = |lines: &'_ Vec<String>| lines.iter().position(|line| is_asked(line));
    files.iter().filter_map(|(name, lines)| Some((name.as_str(), lines[first(lines)?].as_str()))).collect()
}

#[track_caller]
fn only(found: &BTreeMap<&str, &str>, exceptions: &[(&str, &str)]) {
    let known: Vec<&str> = exceptions.iter().map(|(file, _)| *file).collect();
    let new: Vec<_> = found.iter().filter(|(file, _)| !known.contains(file)).collect();
    assert!(new.is_empty(), "a wall is broken: {new:#?}");
    let mended: Vec<_> = exceptions.iter().filter(|(file, _)| !found.contains_key(file)).collect();
    assert!(mended.is_empty(), "no exception any more, take it from the list: {mended:#?}");
}

fn names_path(line: &str, module: &str) -> bool {
    let before = |at: usize| line[..at].chars().next_back();
    let path = format!("{module}::");
    line.match_indices(&path).any(|(at, _)| !before(at).is_some_and(|c| c.is_alphanumeric() || c == '_'))
}

#[test]
fn what_services_mean_is_said_without_the_kernels_words() {
    let mut files = code("service");
    for below in ["snapshot", "net.rs", "objects"] {
        files.extend(code(below));
    }
    let crates = ["ipvs", "ipset", "iptables", "nftables"];
    let found = with(&files, |line| crates.iter().any(|name| names_path(line, name)) || line.contains("crate::modes"));
    only(
        &found,
        &[
            ("snapshot/annotation.rs", "how annotations are read, in its value types"),
            ("snapshot/balancing.rs", "what annotations ask of IPVS, in its value types"),
            ("snapshot/forwarding.rs", "the same for forwarding methods"),
        ],
    );
}

#[test]
fn modes_do_not_know_each_other() {
    let modes = modes();
    assert!(modes.contains("ipvs"), "{modes:?}");
    for mode in &modes {
        for other in modes.iter().filter(|other| *other != mode) {
            let path = format!("modes::{other}");
            only(&with(&code(&format!("modes/{mode}")), |line| line.contains(&path)), &[]);
        }
    }
    let names_one = |line: &str| modes.iter().any(|mode| line.contains(&format!("modes::{mode}")));
    only(&with(&code("modes/shared"), names_one), &[]);
}

#[test]
fn ports_are_called_where_modes_read_and_apply() {
    let calls = |line: &str| {
        let fields = ["ipvs", "sets", "rules", "links", "sysctls", "tables", "conntrack", "routes", "relays"];
        fields.iter().any(|field| line.contains(&format!("ports.{field}.")))
    };
    let files = code("modes");
    let found = with(&files, calls);
    let pure = ["plan", "diff", "lower", "wanted", "layout", "lines", "pick", "slots", "settings", "tables", "inputs"];
    let is_pure = |file: &str| {
        pure.iter().any(|name| file.contains(&format!("/{name}.rs")) || file.contains(&format!("/{name}/")))
    };
    let broken: Vec<_> = found.iter().filter(|(file, _)| is_pure(file)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    only(&with(&code("plan"), calls), &[("plan/execute.rs", "the executor of operations")]);
}

#[test]
fn ports_and_the_kernel_do_not_know_modes() {
    let mut files = code("ports");
    files.extend(code("kernel"));
    let found = with(&files, |line| line.contains("modes::"));
    only(&found, &[]);
}

#[test]
fn the_engine_knows_modes_by_their_trait() {
    let files = code("engine");
    let crates = ["ipvs", "ipset", "iptables", "nftables"];
    let names_one = |line: &str| crates.iter().chain(&["userspace"]).any(|name| names_path(line, name));
    only(
        &with(&files, names_one),
        &[
            ("engine/own_transactions.rs", "remembers what was committed to tables of nf_tables, whatever the mode"),
            ("engine/options.rs", "makes the modes from their options"),
            ("engine/view.rs", "lends what IPVS mode has to agents"),
        ],
    );
}

/// The modules of the crate that a module's code names, by module: files and folders directly below `src`.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, lines) in code("").into_iter().filter(|(file, _)| file != "lib.rs") {
        let module = file.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        let named = lines.iter().flat_map(|line| line.split("crate::").skip(1));
        let named = named.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>());
        arrows.entry(module.clone()).or_default().extend(named.filter(|other| *other != module));
    }
    arrows
}

/// Modules can be read from below, one after another: each names only those that were read before.
#[test]
fn no_module_leads_back_to_itself() {
    let mut arrows = arrows();
    assert!(arrows["engine"].contains("modes") && arrows["modes"].contains("ports"), "{arrows:#?}");
    let known: BTreeSet<String> = arrows.keys().cloned().collect();
    let unknown: BTreeSet<&String> = arrows.values().flatten().filter(|named| !known.contains(*named)).collect();
    assert!(unknown.is_empty(), "named, and no module: {unknown:?}");
    loop {
        let free: Vec<String> =
            arrows.iter().filter(|(_, named)| named.is_empty()).map(|(module, _)| module.clone()).collect();
        if free.is_empty() {
            break;
        }
        arrows.retain(|module, _| !free.contains(module));
        for named in arrows.values_mut() {
            named.retain(|module| !free.contains(module));
        }
    }
    assert!(arrows.is_empty(), "in a circle: {arrows:#?}");
}
