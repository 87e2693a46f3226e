//! What the program says, read from the sources: `cargo test -p proxier-demo --test plain messages -- --nocapture` lists it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proxier_demo::output::Visible;
use proxier_demo::problem::Problem;
use proxier_demo::status::logging::Limiter;
use proxier_demo::yaml::parse;
use serde_saphyr::options::DuplicateKeyPolicy;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.file_stem().unwrap() != "tests" {
            found.push(path);
        }
    }
}

/// The text from a quotation mark on, and what is behind it. Lines that are broken for the source's sake are put together.
fn read(rest: &str) -> (String, &str) {
    let (mut text, mut left) = (String::new(), rest);
    loop {
        let end = left.find(['"', '\\']).unwrap();
        text.push_str(&left[..end]);
        let escaped = left[end..].strip_prefix('\\');
        let Some(escaped) = escaped else { return (text, &left[end + 1..]) };
        let (sign, behind) = escaped.split_at(1);
        match sign {
            "\n" => left = behind.trim_start(),
            "n" => (text, left) = (text + "\n", behind),
            _ => (text, left) = (text + sign, behind),
        }
    }
}

/// The texts of a source, each with the code before it; without those of comments, attributes and tests.
fn texts(source: &str) -> Vec<(&str, String)> {
    let (mut found, mut left, mut code) = (Vec::new(), source.split("#[cfg(test)]\nmod tests {").next().unwrap(), 0);
    let whole = left;
    while let Some(at) = left.find(['"', '/', '\'']) {
        let place = whole.len() - left.len() + at;
        let rest = &left[at + 1..];
        left = match &left[at..=at] {
            "/" if rest.starts_with('/') => rest.find('\n').map_or("", |end| &rest[end..]),
            // A character; otherwise a lifetime.
            "'" if rest.starts_with("\\'") || rest.starts_with("\"'") || rest.starts_with("/'") => &rest[2..],
            "/" | "'" => rest,
            _ if whole[..place].ends_with("r#") => rest.split_once("\"#").unwrap().1,
            _ => {
                let (text, behind) = read(rest);
                found.push((&whole[code..place], text));
                code = whole.len() - behind.len();
                behind
            }
        };
    }
    found
}

/// One line each, and no word that only readers of some library's sources know.
#[test]
fn messages_are_of_one_line_and_without_words_of_libraries() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut files, mut number, mut logged, mut odd) = (Vec::new(), 0, 0, Vec::new());
    let libraries = "proxier-core nftables ipvs ipvs-sys ipset iptables kmod-probe netlink-batch".split(' ');
    for of in libraries.chain(["examples/proxier-demo"]) {
        sources(&top.join(of).join("src"), &mut files);
    }
    files.sort();
    for file in files {
        let place = file.strip_prefix(&top).unwrap().display();
        for (code, text) in texts(&fs::read_to_string(&file).unwrap()) {
            let is_of_attribute = code.ends_with("reason = ") || code.ends_with("doc = ");
            // Not the names of fields, sets and programs.
            if is_of_attribute || !text.contains(' ') || !text.contains(char::is_lowercase) {
                continue;
            }
            println!("{place}: {text:?}");
            let is_logged = code.rsplit([';', '}']).next().unwrap().contains("tracing::");
            (number, logged) = (number + 1, logged + usize::from(is_logged));
            let of_a_library = [
                "ServiceError",
                "HyperError",
                "deserializ",
                "unwrap()",
                "panicked",
                "DuplicateKeyPolicy",
                "this library",
                " neli",
            ];
            // Those that are taken out of a library's text.
            let is_taken_out = text.ends_with("Error: ") || text.starts_with(", set DuplicateKeyPolicy");
            if is_logged && text.contains('\n') || !is_taken_out && of_a_library.iter().any(|word| text.contains(word))
            {
                odd.push(format!("{place}: {text:?}"));
            }
        }
    }
    assert!(logged > 50 && number > 500, "{logged} of {number}");
    assert!(odd.is_empty(), "{odd:#?}");
}

#[test]
fn control_characters_are_visible() {
    let text = "a\u{1b}[2J\n\tb\0\u{9b}c\r\n";
    assert_eq!(Visible(text).to_string(), "a\\u{1b}[2J\n\tb\\u{0}\\u{9b}c\\r\n");
    assert_eq!(Visible("äöü").to_string(), "äöü");
}

#[test]
fn any_text_becomes_one_line() {
    let problem = Problem::new("a\nb.yaml", "x\u{1b}[2J\n\n  y").about("Service demo/web").at("spec");
    let problem = Problem { document: Some(2), ..problem };
    assert_eq!(problem.to_string(), "a b.yaml: document 2: Service demo/web: spec: x\\u{1b}[2J y");
    assert_eq!(Problem::new("", "a\u{202e}b\u{2028}c\u{feff}").to_string(), "a\\u{202e}b\\u{2028}c\\u{feff}");
    let of_url = |url: &str| Problem::new("", format!("no answer from {url} (\"{url}\")")).to_string();
    for url in ["https://u:p@h:1/x@y", "https://u:p@q@h:1/x@y", "https://h:1/x@y"] {
        assert_eq!(of_url(url), "no answer from https://h:1/x@y (\"https://h:1/x@y\")");
    }
    assert!(Problem::new("", "é".repeat(10_000)).to_string().chars().count() <= 401);
}

#[test]
fn limits_are_said_in_words() {
    let mut aliases = "a: &a [0,0,0,0,0,0,0,0,0,0]\n".to_owned();
    for (name, of) in "bcdefgh".chars().zip("abcdefg".chars()) {
        aliases += &format!("{name}: &{name} [*{of},*{of},*{of},*{of},*{of},*{of},*{of},*{of},*{of},*{of}]\n");
    }
    for (text, expected) in [
        ("[".repeat(80) + &"]".repeat(80), "nested deeper than 64 levels at line 1, column 65"),
        (aliases, "its aliases stand for too much at line 1,"),
        ("a: 1\n---\nb: 2\n".to_owned(), "more than one document at line 2, column 1"),
    ] {
        let said = parse(&text, DuplicateKeyPolicy::Error).unwrap_err();
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn each_object_has_one_message_a_minute() {
    let mut limiter = Limiter::default();
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    for (object, secs, passes) in
        [("a", 0, true), ("b", 1, true), ("a", 1, false), ("a", 59, false), ("a", 60, true), ("a", 61, false)]
    {
        assert_eq!(limiter.pass(object, at(secs)), passes, "{object} at {secs} s");
    }
}

#[test]
fn memory_of_a_limiter_is_bounded_and_a_full_one_costs_little() {
    const ROOM: usize = 4096;
    let (mut limiter, start) = (Limiter::default(), Instant::now());
    // Two Services that both claimed 200,000 addresses and ports delayed every change by 4 s.
    let passed = (0..200_000).filter(|number| limiter.pass(&number.to_string(), start)).count();
    assert_eq!(passed, ROOM);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(limiter.pass("new", start + Limiter::INTERVAL), "the old ones are forgotten");
}
