//! Prints the public API that a file of rustdoc's JSON describes, an item a line: `public-api FILE`.
//!
//! Derived implementations print only as the line `impl TRAIT for TYPE`; blanket and automatic ones do not print.

use std::collections::HashSet;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os().nth(1).ok_or("usage: public-api FILE")?;
    let lines = |without_derived| -> Result<Vec<String>, Box<dyn Error>> {
        let api = public_api::Builder::from_rustdoc_json(Path::new(&file))
            .sorted(true)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(without_derived)
            .build()
            .map_err(|error| {
                format!("{}: not the JSON of a rustdoc that this program knows: {error}", file.display())
            })?;
        Ok(api.items().map(ToString::to_string).collect())
    };
    let written: HashSet<String> = lines(true)?.into_iter().collect();
    let mut seen = HashSet::new();
    let mut text = String::new();
    for line in lines(false)? {
        let implements = line.starts_with("impl") && !line.contains("core::marker::StructuralPartialEq");
        // An item that is exported twice has all its lines twice.
        if (implements || written.contains(&line)) && seen.insert(line.clone()) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    print!("{text}");
    Ok(())
}
