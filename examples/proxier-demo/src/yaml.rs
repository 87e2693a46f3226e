//! Parses YAML and JSON to values, and values to typed objects, with errors that name the field.

use std::io::{self, BufRead};

use serde::de::{DeserializeOwned, DeserializeSeed};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::Options;
use serde_saphyr::options::DuplicateKeyPolicy;

/// Splits YAML into its documents. Calls `each` for those with more than blanks and comments, with the number of lines
/// before it. Returns whether the text is blank.
///
/// A line that begins with `---` or `...` ends a document anywhere (YAML 1.2.2, 9.1.2), so an unreadable document does
/// not affect the next ones.
pub fn documents(mut lines: impl BufRead, mut each: impl FnMut(String, usize)) -> io::Result<bool> {
    let (mut line, mut line_number, mut is_blank) = (String::new(), 0_usize, true);
    // The document, the number of lines before it, and whether it has more than blanks and comments.
    let (mut document, mut before, mut is_filled) = (String::new(), 0_usize, false);
    loop {
        line.clear();
        let is_end = lines.read_line(&mut line)? == 0;
        let marker = ["---", "..."].into_iter().find(|marker| {
            let after = line.strip_prefix(marker);
            after.is_some_and(|after| after.is_empty() || after.starts_with([' ', '\t', '\r', '\n']))
        });
        if marker.is_some() || is_end {
            if is_filled {
                each(std::mem::take(&mut document), before);
            }
            document.clear();
            (before, is_filled) = (line_number, false);
        }
        if is_end {
            return Ok(is_blank);
        }
        let directive = line.starts_with('%') && !is_filled;
        let content = match marker {
            Some("---") => line.get(3..).unwrap_or_default(),
            Some(_) => "\n",
            None if directive => "\n",
            None => line.as_str(),
        };
        let text = content.trim_start();
        is_filled |= !text.is_empty() && !text.starts_with('#');
        is_blank &= line.trim().is_empty();
        document.push_str(content);
        line_number = line_number.saturating_add(1);
    }
}

/// Parses one YAML or JSON document.
/// Errors: one line: what is wrong, with line and column within `text`.
pub fn parse(text: &str, duplicates: DuplicateKeyPolicy) -> Result<Value, String> {
    // YAML includes JSON, except for tabs, but JSON's own parser is faster and has clearer errors.
    if text.trim_start().starts_with(['{', '['])
        && matches!(duplicates, DuplicateKeyPolicy::LastWins)
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    serde_saphyr::from_str_with_options(text, options(duplicates)).map_err(|error| first_line(&error.to_string()))
}

/// Passes one YAML document to a seed while it is parsed.
pub fn parse_into<'a, S: DeserializeSeed<'a>>(
    text: &'a str,
    duplicates: DuplicateKeyPolicy,
    seed: S,
) -> Result<S::Value, String> {
    let hand = |deserializer: serde_saphyr::Deserializer<'a, '_>| seed.deserialize(deserializer);
    serde_saphyr::with_deserializer_from_str_with_options(text, options(duplicates), hand)
        .map_err(|error| first_line(&error.to_string()))
}

/// Large enough for `kubectl get -o yaml` of a large cluster. Nesting and aliases stay limited, since they can turn a
/// small text into a large value.
fn options(duplicate_keys: DuplicateKeyPolicy) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 200_000_000,
            max_nodes: 100_000_000,
            max_total_scalar_bytes: 1 << 30,
            max_depth: 64,
            max_documents: 1,
        },
        duplicate_keys: duplicate_keys,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// The first line, without words and advice for programmers.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let line = line.replace(", set DuplicateKeyPolicy in Options if acceptable", "");
    // A limit of `options`, its type and numbers, and the place.
    let Some((limit, place)) = line.strip_prefix("budget breached: ").and_then(|rest| rest.split_once('}')) else {
        return line;
    };
    let why = match limit.split(' ').next().unwrap_or_default() {
        "Depth" => "nested deeper than 64 levels",
        "Documents" => "more than one document",
        limit if limit.contains("Alias") || limit.contains("Anchor") => "its aliases stand for too much",
        _ => "too large",
    };
    format!("{why}{place}")
}

/// Reads `null` as the default.
pub(crate) fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a value as a typed object.
/// Errors: the path of the field at fault (empty for the object itself), and what is wrong with it.
pub fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<T, (String, String)> {
    serde_path_to_error::deserialize(value).map_err(|error| (path(error.path()), in_words(error.inner().to_string())))
}

/// Reads a value like [`read`]; also returns the paths of fields that `T` does not have.
pub fn read_strictly<T: DeserializeOwned>(value: &Value) -> Result<(T, Vec<String>), (String, String)> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let with_path = serde_path_to_error::Deserializer::new(value, &mut track);
    // An optional struct in a path appears as `?`.
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(path.to_string().replace(".?", "").replace("?.", ""));
    match T::deserialize(serde_ignored::Deserializer::new(with_path, &mut note)) {
        Ok(object) => Ok((object, unknown)),
        Err(error) => Err((path(&track.path()), in_words(error.to_string()))),
    }
}

pub fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, (String, String)> {
    // Tracking the path doubles the cost of reading, and only bad texts need it.
    serde_json::from_str(text).map_err(|error| {
        // A value has each field once: a text that has one twice is wrong as a whole.
        let at_field = serde_json::from_str::<Value>(text).ok().and_then(|value| read::<T, _>(&value).err());
        at_field.unwrap_or_else(|| (String::new(), in_words(error.to_string())))
    })
}

/// The text of an error, with words of YAML and JSON for the types of this program.
pub fn in_words(mut text: String) -> String {
    for (of_rust, plain) in [("i64", "a whole number"), ("f64", "a number"), ("a sequence", "a list")] {
        text = text.replace(&format!("expected {of_rust}"), &format!("expected {plain}"));
    }
    match text.split_once("expected struct ") {
        Some((before, _name)) => format!("{before}expected an object"),
        None => text,
    }
}

fn path(path: &serde_path_to_error::Path) -> String {
    // `.` stands for the object itself, `?` for a field whose name cannot be read.
    path.to_string().trim_end_matches(['.', '?']).to_owned()
}
