//! Recorded datagrams: what a program sent to the kernel, and what it received.

use std::path::Path;
use std::{fs, io};

/// A file of captured bytes: a hexadecimal line for each datagram, with `>` before what was sent and `<` before what
/// was received. Lines that start with `#` describe how it was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Datagrams that the program sent.
    pub sent: Vec<Vec<u8>>,
    /// Datagrams that the program received.
    pub received: Vec<Vec<u8>>,
}

impl Capture {
    /// Reads a file.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let text = fs::read_to_string(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let mut capture = Capture { sent: Vec::new(), received: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let unreadable = || io::Error::new(io::ErrorKind::InvalidData, format!("{}: {line}", path.display()));
            let (side, digits) = line.split_once(' ').ok_or_else(unreadable)?;
            let bytes = bytes(digits).ok_or_else(unreadable)?;
            match side {
                ">" => capture.sent.push(bytes),
                "<" => capture.received.push(bytes),
                _ => return Err(unreadable()),
            }
        }
        Ok(capture)
    }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_read_by_side() {
        let path = std::env::temp_dir().join(format!("testkit-capture-{}", std::process::id()));
        fs::write(&path, "# how\n> 0102ff\n< 00\n> \n").unwrap();
        let found = Capture::read(&path).unwrap();
        assert_eq!(found, Capture { sent: vec![vec![1, 2, 255], Vec::new()], received: vec![vec![0]] });
        fs::write(&path, "> 0g\n").unwrap();
        assert!(Capture::read(&path).unwrap_err().to_string().ends_with(": > 0g"));
        fs::remove_file(&path).unwrap();
        assert!(Capture::read(&path).unwrap_err().to_string().contains("testkit-capture-"));
    }
}
