//! YAML and JSON texts as values, and values as typed objects, with errors that name the field.

use std::fmt::Display;

use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::Value;
use serde_saphyr::Options;
use serde_saphyr::options::DuplicateKeyPolicy;

/// Parses one YAML or JSON document.
///
/// # Errors
///
/// One line: what is wrong, with line and column within `text`.
pub fn parse(text: &str, duplicates: DuplicateKeyPolicy) -> Result<Value, String> {
    // YAML includes JSON, except for tabs; and JSON's own reader is faster, with clearer errors.
    if text.trim_start().starts_with(['{', '['])
        && matches!(duplicates, DuplicateKeyPolicy::LastWins)
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    serde_saphyr::from_str_with_options(text, options(duplicates)).map_err(|error| first_line(&error.to_string()))
}

/// Hands one YAML document to a seed while it is read.
///
/// # Errors
///
/// Fails as [`parse`] does.
pub fn parse_into<'a, S: DeserializeSeed<'a>>(
    text: &'a str,
    duplicates: DuplicateKeyPolicy,
    seed: S,
) -> Result<S::Value, String> {
    let hand = |deserializer: serde_saphyr::Deserializer<'a, '_>| seed.deserialize(deserializer);
    serde_saphyr::with_deserializer_from_str_with_options(text, options(duplicates), hand)
        .map_err(|error| first_line(&error.to_string()))
}

/// Large enough for `kubectl get -o yaml` of a large cluster. Nesting and aliases stay limited: with them a small text
/// becomes a large value.
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

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Reads a value as an object.
///
/// # Errors
///
/// The path of the field at fault (empty when it is the object itself), and what is wrong with it.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, (String, String)> {
    serde_path_to_error::deserialize(value).map_err(|error| named(&error))
}

/// Reads a value as [`read`] does; also returns the paths of the fields that `T` does not have.
///
/// # Errors
///
/// Fails as [`read`] does.
pub fn read_strictly<T: DeserializeOwned>(value: &Value) -> Result<(T, Vec<String>), (String, String)> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let with_path = serde_path_to_error::Deserializer::new(value, &mut track);
    // An optional struct in a path is `?`.
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(path.to_string().replace(".?", "").replace("?.", ""));
    match T::deserialize(serde_ignored::Deserializer::new(with_path, &mut note)) {
        Ok(object) => Ok((object, unknown)),
        Err(error) => Err((path(&track.path()), error.to_string())),
    }
}

/// Reads a JSON text as an object.
///
/// # Errors
///
/// Fails as [`read`] does.
pub fn read_json<T: DeserializeOwned>(text: &str) -> Result<T, (String, String)> {
    // Keeping the path doubles the cost of reading, and only bad texts need it.
    if let Ok(object) = serde_json::from_str(text) {
        return Ok(object);
    }
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| named(&error))
}

/// The path of the field at fault (empty when it is the object itself), and what is wrong with it.
pub fn named<E: Display>(error: &serde_path_to_error::Error<E>) -> (String, String) {
    (path(error.path()), error.inner().to_string())
}

fn path(path: &serde_path_to_error::Path) -> String {
    let text = path.to_string();
    if text == "." { String::new() } else { text }
}
