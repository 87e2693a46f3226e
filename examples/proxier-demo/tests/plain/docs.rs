//! The documentation: links, paths and commands of all pages, and the reference of the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;

use proxier_core::config::MayAskFor;
use proxier_core::snapshot::Annotation;
use proxier_demo::exit;
use proxier_demo::settings::cli;
use proxier_demo::settings::kubeproxyconfig::{API_VERSION, KIND, KubeProxyConfiguration, Nftables, ROWS, Userspace};
use serde_json::Value;
use testkit::documents::{commands, is_current, lines, pages, root, shown};

/// Its links are those of the pages that it fills.
const TABLES: &str = "benches/tables.md";

/// Text of a page without code.
fn prose(text: &str) -> String {
    let outside = lines(text).filter(|(_, code)| !code).map(|(line, _)| line);
    let parts = outside.map(|line| line.split('`').step_by(2).collect::<String>());
    parts.collect::<Vec<_>>().join("\n")
}

/// Anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text).filter(|(line, code)| !code && line.starts_with('#')).map(|(line, _)| line);
    let mut anchors = BTreeSet::new();
    for heading in headings {
        let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let anchor: String =
            words.chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.clone()].into_iter().chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let (mut broken, mut found) = (Vec::new(), 0);
    for (page, text) in pages().iter().filter(|(page, _)| page != Path::new(TABLES)) {
        let folder = root().join(page.parent().unwrap());
        for link in prose(text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            found += 1;
            let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let target = if path.is_empty() { root().join(page) } else { folder.join(path) };
            let has_anchor =
                |anchor: &str| anchors(&std::fs::read_to_string(&target).unwrap_or_default()).contains(anchor);
            if !target.exists() || !anchor.is_none_or(has_anchor) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty() && found > 100, "{found} links, broken: {broken:#?}");
}

/// Paths from the repository's root, in backticks; those that begin otherwise are from elsewhere. What is built is not there yet.
#[test]
fn the_paths_that_pages_name_are_there() {
    let mut found = 0;
    for (page, text) in pages() {
        let outside: Vec<&str> = lines(&text).filter(|(_, code)| !code).map(|(line, _)| line).collect();
        for path in
            outside.join("\n").split('`').skip(1).step_by(2).filter(|word| !word.contains([' ', '*', '\n', '…', '<']))
        {
            let Some((first, _)) = path.split_once('/') else { continue };
            if first != "target" && !first.is_empty() && !first.contains('.') && root().join(first).is_dir() {
                let path = path.split(':').next().unwrap();
                assert!(root().join(path).exists(), "{}: {path}", page.display());
                found += 1;
            }
        }
    }
    assert!(found > 20, "{found}");
}

/// Words in capitals stand for a value.
fn value(word: &str) -> &str {
    match word {
        "MODE" => "nftables",
        "FROM" | "POD-IP" => "10.244.0.11",
        "TO" | "CLUSTER-IP:PORT" => "10.96.0.10:80",
        "NUMBER" => "5",
        other => other,
    }
}

#[test]
fn every_command_of_the_program_that_pages_show_is_one_that_it_takes() {
    let (mut refused, mut found) = (Vec::new(), 0);
    for (page, text) in pages() {
        for words in commands(&text) {
            let Some(program) = words.iter().position(|word| word == "proxier-demo" || word.ends_with("/proxier-demo"))
            else {
                continue;
            };
            // Not where the name is an argument of another program.
            if program > 0 && !words[..program].iter().any(|word| ["exec", "--", "="].contains(&word.as_str()))
                || words.len() == program + 1
            {
                continue;
            }
            let words = words[program..].iter().filter(|word| *word != "CONFIG").map(|word| value(word));
            let words: Vec<OsString> = words.map(OsString::from).collect();
            found += 1;
            if let Err(ending) = cli::parse(words.clone())
                && ending.code != 0
            {
                refused.push(format!("{}: {words:?}: {ending}", page.display()));
            }
        }
    }
    assert!(refused.is_empty() && found > 30, "{found} commands, refused: {refused:#?}");
}

/// Packages and examples that commands of cargo name.
#[test]
fn cargo_finds_what_pages_tell_it_to_build() {
    let mut found = 0;
    for (page, text) in pages() {
        for words in commands(&text).iter().filter(|words| words.first().is_some_and(|word| word == "cargo")) {
            let named = |option| words.iter().skip_while(move |word| *word != option).nth(1);
            let (package, example) = (named("-p"), named("--example"));
            if !["build", "run", "test"].contains(&words.get(1).map_or("", String::as_str)) || package.is_none() {
                continue;
            }
            let folders = ["", "examples/"].map(|folder| root().join(folder).join(package.unwrap()));
            let folder = folders.iter().find(|folder| folder.join("Cargo.toml").is_file());
            let folder = folder.unwrap_or_else(|| panic!("{}: {words:?}", page.display()));
            if let Some(example) = example {
                let places = ["examples", "cookbook"].map(|place| folder.join(place).join(format!("{example}.rs")));
                assert!(places.iter().any(|place| place.is_file()), "{}: {words:?}", page.display());
            }
            found += 1;
        }
    }
    assert!(found > 2, "{found}");
}

/// Those of a crate's README are its doctests; those of the cookbook are run by its own tests.
#[test]
fn programs_that_guides_show_are_those_of_the_cookbook() {
    let cookbook = std::fs::read_dir(root().join("examples/cookbook")).unwrap();
    let cookbook: Vec<String> = cookbook.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let mut found = 0;
    for (page, text) in pages().iter().filter(|(page, _)| page == Path::new("README.md") || page.starts_with("docs")) {
        for program in text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            assert!(cookbook.iter().any(|file| file.ends_with(program)), "{}: {program}", page.display());
            found += 1;
        }
    }
    assert!(found > 2, "{found}");
}

/// Whole ones in here-documents, parts in blocks of YAML.
#[test]
fn configurations_that_guides_show_are_ones_that_the_program_takes() {
    let head = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
    let mut found = 0;
    for (page, text) in pages().iter().filter(|(page, _)| page.starts_with("docs")) {
        let files = shown(text).into_iter().filter(|shown| shown.command.contains(&head));
        let files = files.map(|shown| {
            shown.command.lines().skip(1).take_while(|line| *line != "EOF").collect::<Vec<_>>().join("\n")
        });
        let parts = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        for configuration in files.chain(parts.map(|part| head.clone() + part)) {
            let read = KubeProxyConfiguration::parse(&configuration, "config.conf");
            let ignored = read.map(|(_, ignored)| ignored);
            assert!(ignored.as_ref().is_ok_and(Vec::is_empty), "{}: {configuration}: {ignored:?}", page.display());
            found += 1;
        }
    }
    assert!(found > 2, "{found}");
}

/// What `--help` prints.
fn help(words: &[&str]) -> String {
    let line = ["proxier-demo"].iter().chain(words).chain(&["--help"]).map(OsString::from);
    cli::parse(line).unwrap_err().text
}

#[test]
fn the_documentation_has_the_command_line() {
    let top = help(&[]);
    let names = top.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> =
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(names.contains(&"run") && names.contains(&"diff"), "{names:?}");
    let mut text = format!(
        "# Command line\n\nA line that starts with a flag means `run`, as with kube-proxy. [Configuration](#configuration) and logging \
         flags work with every command but `completion`.\n\n```text\n{}\n```\n\n## Exit codes\n\n| code | meaning |\n| ---: | --- |\n",
        top.trim_end()
    );
    for (code, meaning) in exit::MEANINGS {
        text += &format!("| {code} | {meaning} |\n");
    }
    let mut shared = String::new();
    for name in names {
        let help = help(&[name]);
        let (own, rest) = help.split_once("\n\nConfiguration (").unwrap_or((&help, ""));
        let (flags, examples) = rest.split_once("\n\nExamples:").unwrap_or((rest, ""));
        if shared.is_empty() {
            shared = format!("Configuration ({flags}");
        }
        let examples = if examples.is_empty() { String::new() } else { format!("\n\nExamples:{examples}") };
        text += &format!("\n## {name}\n\n```text\n{}{}\n```\n", own.trim_end(), examples.trim_end());
    }
    text += &format!("\n## Configuration\n\n```text\n{}\n```\n", shared.trim_end());
    is_current("docs/reference/cli.md", &text);
}

/// The name of a field in a configuration file.
fn name_of(field: &str, serde: &str) -> String {
    if let Some((_, rest)) = serde.split_once("rename = \"") {
        return rest.split('"').next().unwrap().to_owned();
    }
    let mut parts = field.split('_');
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |name, part| name + &part[..1].to_uppercase() + &part[1..])
}

#[test]
fn the_documentation_has_every_field_of_the_configuration() {
    let mut object = KubeProxyConfiguration {
        nftables: Some(Nftables::default()),
        userspace: Some(Userspace::default()),
        ..Default::default()
    };
    object.set_defaults();
    let defaults = serde_json::to_value(&object).unwrap();
    let sections: BTreeMap<String, &str> =
        ROWS.iter().map(|row| (row.0[..1].to_lowercase() + &row.0[1..], row.0)).collect();
    let mut text = format!("# Configuration file\n\n{ABOUT}\n");
    let mut current = "";
    for (section, field, serde, about, own) in ROWS {
        let name = name_of(field, serde);
        if sections.contains_key(&name) {
            continue;
        }
        let prefix = if *section == KIND { String::new() } else { section[..1].to_lowercase() + &section[1..] };
        if current != *section {
            let title = if prefix.is_empty() { "Top level" } else { &prefix };
            text += &format!("\n## {title}\n\n| field | default | flag | what |\n| --- | --- | --- | --- |\n");
            current = section;
        }
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let default = path.split('.').fold(&defaults, |object, part| &object[part]);
        let default = match default {
            Value::Null => String::new(),
            Value::String(text) if text.is_empty() => String::new(),
            Value::Array(list) if list.is_empty() => String::new(),
            Value::Object(fields) if fields.is_empty() => String::new(),
            other => format!("`{}`", other.as_str().map_or_else(|| other.to_string(), str::to_owned)),
        };
        let flag = cli::flag_of(&path).map(|flag| format!("`--{flag}`")).unwrap_or_default();
        let star = if *own { " *" } else { "" };
        text += &format!("| `{path}`{star} | {default} | {flag} | {} |\n", about.trim());
    }
    text += "\n## ipvs.defaults\n\nFor Services without the [annotation](annotations.md), in IPVS mode.\n\n| field | as |\n| --- | --- |\n";
    for Annotation { name, field, .. } in Annotation::ALL.iter().filter(|one| one.field.starts_with("ipvs.defaults")) {
        text += &format!("| `{field}` * | `{name}` |\n");
    }
    is_current("docs/reference/configuration.md", &text);
    let default = proxier_core::config::Config::default().ipvs.may_ask_for;
    let allowed = MayAskFor::NAMED.iter().filter(|(_, one)| default.contains(*one)).map(|(name, _)| *name);
    let list = format!("The default is `[{}]`", allowed.collect::<Vec<_>>().join(", "));
    let policy = std::fs::read_to_string(root().join("docs/policy.md")).unwrap();
    assert!(policy.replace('\n', " ").contains(&list), "{list}");
}

const ABOUT: &str = "`KubeProxyConfiguration`, `kubeproxy.config.k8s.io/v1alpha1`, for `--config`. Fields with a star are not in kube-proxy. \
    `fastPath` has [fields of its own](../modes.md#fast-path). Unknown fields are a warning; impossible values are exit code 2. \
    `proxier-demo run --write-config-to FILE` writes the effective configuration.";
