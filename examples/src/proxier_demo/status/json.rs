//! JSON on standard output.

use std::io::Write as _;

use serde_json::Value;

/// Prints it with a newline at its end.
pub(crate) fn print(value: &Value) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}
