//! Writes the cpio archives ("newc" format) that the kernel unpacks as its first root file system.
//!
//! The format is described in the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`: a header of
//! 110 ASCII characters, the name, the content, each padded to four bytes, and an entry `TRAILER!!!` at the end.

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFCHR: u32 = 0o020_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive in memory, one entry after the other.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    next_inode: u32,
}

impl Archive {
    /// Adds a directory, readable by all. Parents come before children.
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, S_IFDIR | 0o755, (0, 0), &[]);
    }

    /// Adds an executable file.
    ///
    /// The format has 32 bits for a length: content beyond 4 GiB cannot be stored and would be cut.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, S_IFREG | 0o755, (0, 0), content);
    }

    /// Adds a character device, as `mknod PATH c MAJOR MINOR` would.
    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, S_IFCHR | 0o600, (major, minor), &[]);
    }

    /// Closes the archive and hands out its bytes.
    #[must_use]
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.next_inode += 1;
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_length = u32::try_from(path.len()).unwrap_or(u32::MAX).saturating_add(1);
        let fields = [
            self.next_inode,
            mode,
            0, // uid
            0, // gid
            if mode & S_IFDIR == S_IFDIR { 2 } else { 1 },
            0, // mtime: the same input gives the same bytes
            length,
            0, // device the file lies on
            0,
            device.0,
            device.1,
            name_length,
            0, // checksum, unused in this variant
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::Archive;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.character_device("dev/console", 5, 1);
        archive.file("init", b"#!/bin/sh\n");
        archive.file("odd", b"12345");
        archive.finish()
    }

    #[test]
    fn every_entry_starts_at_a_multiple_of_four_with_the_magic() {
        let bytes = sample();
        assert_eq!(bytes.len() % 4, 0);
        let starts: Vec<usize> =
            bytes.windows(6).enumerate().filter(|(_, window)| *window == b"070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 5, "four entries and the trailer");
        assert!(starts.iter().all(|start| start % 4 == 0), "{starts:?}");
        assert!(bytes.windows(11).any(|window| window == b"TRAILER!!!\0"));
    }

    #[test]
    fn header_has_thirteen_hexadecimal_fields() {
        let bytes = sample();
        let header = std::str::from_utf8(&bytes[..110]).unwrap();
        assert!(header[6..].chars().all(|c| c.is_ascii_hexdigit()), "{header}");
        assert_eq!(&header[14..22], "000041ed", "mode of a directory");
        assert_eq!(&header[94..102], "00000004", "length of the name with its NUL");
    }

    /// The field's own reader agrees with what was written.
    #[test]
    fn cpio_lists_what_was_written() {
        let Ok(mut child) = Command::new("cpio")
            .args(["--list", "--verbose", "--numeric-uid-gid", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            // Not every machine has cpio, and it is not needed for anything else: busybox always is.
            return busybox_lists_what_was_written();
        };
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let listing = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert!(listing.contains("drwxr-xr-x"), "{listing}");
        assert!(listing.lines().any(|line| line.starts_with("crw-------") && line.contains("5,")), "{listing}");
        assert!(listing.lines().any(|line| line.ends_with(" init") && line.contains(" 10 ")), "{listing}");
        assert!(listing.lines().any(|line| line.ends_with(" odd") && line.contains(" 5 ")), "{listing}");
    }

    fn busybox_lists_what_was_written() {
        let mut child = Command::new("busybox")
            .args(["cpio", "-t"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cpio or busybox");
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let listing = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(listing, "dev\ndev/console\ninit\nodd\n");
    }
}
