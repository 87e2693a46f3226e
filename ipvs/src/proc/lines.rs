//! Reads a file line by line into one buffer.

use std::io::{BufRead, Read as _};
use std::path::PathBuf;

use super::Error;

/// The kernel's lines are far shorter. A longer line is cut and then malformed.
const LONGEST: u64 = 4096;

#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    path: PathBuf,
    buffer: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R, path: PathBuf) -> Self {
        Lines { reader, path, buffer: Vec::with_capacity(256), number: 0 }
    }

    /// The next line without its end; `None` at the end of the file.
    pub(super) fn advance(&mut self) -> Result<Option<&[u8]>, Error> {
        self.buffer.clear();
        let read = (&mut self.reader).take(LONGEST).read_until(b'\n', &mut self.buffer);
        let length = read.map_err(|error| Error::io(&self.path, self.number, error))?;
        if length == 0 {
            return Ok(None);
        }
        self.number = self.number.saturating_add(1);
        let line = self.buffer.as_slice();
        Ok(Some(line.strip_suffix(b"\n").unwrap_or(line)))
    }

    /// The next line as text; an error at the end of the file.
    pub(super) fn text(&mut self, expected: &'static str) -> Result<&str, Error> {
        let there = self.advance()?.is_some();
        let line = self.line();
        std::str::from_utf8(line).ok().filter(|_| there).ok_or_else(|| self.malformed(expected))
    }

    /// The last line read.
    pub(super) fn line(&self) -> &[u8] {
        self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer)
    }

    /// The error for the last line read.
    pub(super) fn malformed(&self, expected: &'static str) -> Error {
        Error::malformed(&self.path, self.number.max(1), &self.buffer, expected)
    }
}
