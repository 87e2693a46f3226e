//! A page of metrics, read as strictly as Prometheus and its `promtool check metrics` do.

use std::collections::BTreeMap;

/// The samples of a page by name and labels.
///
/// # Panics
///
/// The page is not well formed. A family has no help or type, or is in two parts. A name, label or value is invalid. A
/// counter or another type has the wrong suffix. A histogram is inconsistent.
pub(crate) fn read(page: &str) -> BTreeMap<String, f64> {
    assert!(page.ends_with('\n'), "the last line has no end");
    let mut samples = BTreeMap::new();
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut family, mut help) = ("", "");
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, text) = rest.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
            assert!(!text.trim().is_empty(), "{line}");
            help = name;
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "counter" | "gauge" | "histogram" | "untyped"), "{line}");
            assert_eq!(help, name, "help comes first");
            assert!(families.insert(name, kind).is_none(), "{name} is in two places");
            let is_total = name.ends_with("_total");
            assert!(is_total == (kind == "counter") || kind == "untyped", "{name} is a {kind}");
            for word in ["counter", "gauge", "histogram"] {
                assert!(!name.contains(word), "{name} says what it is");
            }
            family = name;
            continue;
        }
        assert!(!line.starts_with('#') && !line.is_empty(), "{line:?}");
        let (key, value) = line.rsplit_once(' ').unwrap();
        let name = key.split('{').next().unwrap();
        let kind = families[family];
        let is_histogram = kind == "histogram";
        let suffixes: &[&str] = if is_histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.iter().any(|suffix| name == format!("{family}{suffix}")), "{line} is not of {family}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
        labels(&key[name.len()..]);
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(samples.insert(key.to_owned(), value).is_none(), "{key} is there twice");
    }
    for (family, kind) in &families {
        assert!(page.lines().any(|line| line.starts_with(family)), "{family} has no sample");
        if *kind == "histogram" {
            let buckets = page.lines().filter(|line| line.starts_with(&format!("{family}_bucket{{")));
            let buckets: Vec<(&str, f64)> = buckets.map(bucket).collect();
            for rows in buckets.chunk_by(|one, next| one.0 == next.0) {
                let (of, all) = *rows.last().unwrap();
                assert!(rows.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{family}: {rows:?}");
                let labels = if of.is_empty() { String::new() } else { format!("{{{of}}}") };
                assert_eq!(Some(&all), samples.get(&format!("{family}_count{labels}")), "{family} {of}");
                let infinite =
                    format!("{family}_bucket{{{of}{}le=\"+Inf\"}} {all}\n", if of.is_empty() { "" } else { "," });
                assert!(page.contains(&infinite), "{infinite}");
            }
        }
    }
    samples
}

/// The labels of a bucket without its bound, which is the last, and its number.
fn bucket(line: &str) -> (&str, f64) {
    let (key, number) = line.rsplit_once(' ').unwrap();
    let labels = key.split_once('{').unwrap().1;
    let others = labels.split("le=\"").next().unwrap().trim_end_matches(',');
    (others, number.parse().unwrap())
}

/// Checks `{name="value",…}` or nothing.
fn labels(text: &str) {
    if text.is_empty() {
        return;
    }
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or_else(|| panic!("{text}"));
    for label in inner.split(',') {
        let (name, value) = label.split_once('=').unwrap_or_else(|| panic!("{text}"));
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{text}");
        let value =
            value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or_else(|| panic!("{text}"));
        assert!(!value.contains(['"', '\\', '\n']), "{text}");
    }
}
