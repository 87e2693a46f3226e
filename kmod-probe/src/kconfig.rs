//! The kernel's build configuration: `/boot/config-<release>`, `/proc/config.gz` and similar files.

use std::collections::BTreeMap;
use std::io::Read;

use crate::error::{Error, ErrorKind};

/// Setting of a symbol of the kernel's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `=y`: part of the kernel image.
    BuiltIn,
    /// `=m`: built as a module.
    Module,
    /// `# … is not set`, or `=n`.
    NotSet,
    /// A number or a text, as written.
    Value(String),
}

/// A kernel configuration. Symbols are named without `CONFIG_`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kconfig {
    symbols: BTreeMap<String, (usize, Setting)>,
    complete: bool,
}

impl Kconfig {
    /// Largest configuration to unpack from gzip, in bytes. Real ones have about 300 kB.
    pub const LARGEST: u64 = 8 << 20;

    /// Parses a configuration as the kernel's build writes it, plain or gzipped. If a symbol is set twice the last line
    /// counts, as in the build.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidList`] for binary data, broken or too large gzip data, or text without any symbol.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        const GZIP: &[u8] = &[0x1f, 0x8b];
        if !bytes.starts_with(GZIP) {
            return Self::parse_text(bytes);
        }
        let invalid =
            |why: String| Error::new(ErrorKind::InvalidList, format!("this is no kernel configuration: {why}"));
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(bytes)
            .take(Self::LARGEST.saturating_add(1))
            .read_to_end(&mut text)
            .map_err(|error| invalid(format!("gzip data that cannot be unpacked ({error})")))?;
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > Self::LARGEST {
            return Err(invalid(format!("unpacks to more than {} bytes", Self::LARGEST)));
        }
        Self::parse_text(&text)
    }

    fn parse_text(bytes: &[u8]) -> Result<Self, Error> {
        let invalid =
            |why: String| Error::new(ErrorKind::InvalidList, format!("this is no kernel configuration: {why}"));
        if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
            return Err(invalid(format!("binary data at byte {at}")));
        }
        let mut config = Self { complete: bytes.ends_with(b"\n"), ..Self::default() };
        let mut skipped: usize = 0;
        let mut lines = bytes.split(|byte| *byte == b'\n').enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            if lines.peek().is_none() {
                break; // without a line end it may be half a line: "CONFIG_IP_VS_TAB_BITS=1" of "…=12"
            }
            let entry = std::str::from_utf8(line).ok().and_then(setting);
            match entry {
                Some((symbol, setting)) => {
                    config.symbols.insert(symbol.to_owned(), (index.saturating_add(1), setting));
                }
                None if line.starts_with(b"#") => {}
                None => skipped = skipped.saturating_add(1),
            }
        }
        if config.symbols.is_empty() || skipped > config.symbols.len() {
            return Err(invalid(format!("{} symbols, {skipped} lines that make no sense", config.symbols.len())));
        }
        config.complete &= skipped == 0;
        Ok(config)
    }

    /// The line of a symbol and its setting. `None` if the configuration does not mention it: the kernel has no such
    /// symbol, or one of its dependencies is off.
    #[must_use]
    pub fn get(&self, symbol: &str) -> Option<(usize, &Setting)> {
        self.symbols.get(symbol).map(|(line, setting)| (*line, setting))
    }

    /// All symbols with line and setting, sorted by name.
    pub fn symbols(&self) -> impl Iterator<Item = (&str, usize, &Setting)> {
        self.symbols.iter().map(|(symbol, (line, setting))| (symbol.as_str(), *line, setting))
    }

    /// Whether every line was valid and the end was not cut off.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.complete
    }
}

/// One line: `CONFIG_X=…` or `# CONFIG_X is not set`.
fn setting(line: &str) -> Option<(&str, Setting)> {
    let valid = |symbol: &str| !symbol.is_empty() && symbol.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if let Some(comment) = line.strip_prefix("# CONFIG_") {
        let symbol = comment.strip_suffix(" is not set")?;
        return valid(symbol).then_some((symbol, Setting::NotSet));
    }
    let (symbol, value) = line.strip_prefix("CONFIG_")?.split_once('=')?;
    let setting = match value {
        "y" => Setting::BuiltIn,
        "m" => Setting::Module,
        "n" => Setting::NotSet,
        "" => return None,
        other => Setting::Value(other.to_owned()),
    };
    valid(symbol).then_some((symbol, setting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_with_their_lines() {
        let text = b"#\n# Linux/x86 6.1.0 Kernel Configuration\n#\nCONFIG_IP_VS=m\r\n# CONFIG_IP_VS_DEBUG is not set\n\
            CONFIG_IP_VS_TAB_BITS=12\nCONFIG_IP_VS_IPV6=y\nCONFIG_LOCALVERSION=\"\"\nCONFIG_X=n\nCONFIG_IP_VS=y\n";
        let config = Kconfig::parse(text).unwrap();
        assert_eq!(config.get("IP_VS"), Some((10, &Setting::BuiltIn)), "the last line counts");
        assert_eq!(config.get("IP_VS_DEBUG"), Some((5, &Setting::NotSet)));
        assert_eq!(config.get("X"), Some((9, &Setting::NotSet)));
        assert_eq!(config.get("IP_VS_TAB_BITS"), Some((6, &Setting::Value("12".into()))));
        assert_eq!(config.get("IP_VS_IPV6"), Some((7, &Setting::BuiltIn)));
        assert_eq!(config.get("IP"), None, "symbols are compared whole");
        assert!(config.complete());
    }

    #[test]
    fn a_cut_off_configuration_is_not_complete() {
        let config = Kconfig::parse(b"CONFIG_MODULES=y\nCONFIG_IP_V").unwrap();
        assert!(!config.complete());
        assert_eq!(config.symbols().count(), 1);
    }

    #[test]
    fn other_texts_are_no_configuration() {
        for bytes in [&b""[..], b"\x7fELF\0", b"<html>\n</html>\n", b"\x1f\x8b\x08garbage", b"# only a comment\n"] {
            assert_eq!(Kconfig::parse(bytes).unwrap_err().kind(), ErrorKind::InvalidList, "{bytes:?}");
        }
    }

    #[test]
    fn gzip_is_unpacked_and_bounded() {
        use std::io::Write;
        let pack = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let config = Kconfig::parse(&pack(b"CONFIG_IP_VS=m\n")).unwrap();
        assert_eq!(config.get("IP_VS"), Some((1, &Setting::Module)));
        let bomb = pack(&vec![b'\n'; 9 << 20]);
        assert!(bomb.len() < 1 << 20);
        assert!(Kconfig::parse(&bomb).unwrap_err().to_string().contains("more than"));
        let packed = pack(b"CONFIG_IP_VS=m\nCONFIG_IP_SET=m\n");
        assert!(Kconfig::parse(&packed[..packed.len() - 9]).is_err(), "cut-off gzip data");
    }
}
