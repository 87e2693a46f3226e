//! The kernel's release string and its version.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;
use semver::Version;

use crate::error::{Error, ErrorKind, shown};

/// Longest release that the kernel reports (`__NEW_UTS_LEN`, `include/uapi/linux/utsname.h`).
const LONGEST_RELEASE: usize = 64;

/// A pattern that does not compile would mean "no match"; the tests below would fail.
static RELEASE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:[^0-9].*)?$").ok());

/// A kernel release as in `/proc/sys/kernel/osrelease` and `uname -r`.
///
/// Distributions append arbitrary text, so only the leading dotted numbers count: at least two of them; a missing third
/// is 0.
///
/// The [`Version`] has no pre-release or build part. In semantic versioning `4.19.0-rc1` and even `4.19.0-14-generic`
/// would sort *below* 4.19.0. But a kernel's suffix is a package revision, and a release candidate already has its
/// version's features, so both count as that version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct KernelRelease {
    raw: String,
    version: Version,
}

impl KernelRelease {
    /// Parses a release from the bytes of a file, ignoring surrounding white space.
    ///
    /// The release is used in file names, so only letters, digits and `.`, `-`, `+`, `_`, `~` are accepted, at most 64
    /// of them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRelease`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let invalid = |why: &str| {
            let text = String::from_utf8_lossy(bytes.get(..256).unwrap_or(bytes)).trim().to_owned();
            Error::new(
                ErrorKind::InvalidRelease,
                format!("\"{}\" {why}; expected something like \"6.1.0-56-amd64\"", shown(&text)),
            )
        };
        let raw =
            std::str::from_utf8(bytes.trim_ascii()).map_err(|error| invalid(&format!("is not text ({error})")))?;
        if raw.len() > LONGEST_RELEASE {
            return Err(invalid("is longer than 64 characters"));
        }
        if let Some(odd) = raw.chars().find(|c| !c.is_ascii_alphanumeric() && !".-+_~".contains(*c)) {
            return Err(invalid(&format!("has the character {odd:?}")));
        }
        let captures = RELEASE.as_ref().and_then(|pattern| pattern.captures(raw));
        let captures = captures.ok_or_else(|| invalid("does not begin with two numbers and a dot between them"))?;
        let number = |group| captures.get(group).and_then(|part| part.as_str().parse::<u64>().ok()).unwrap_or(0);
        Ok(Self { raw: raw.to_owned(), version: Version::new(number(1), number(2), number(3)) })
    }

    /// The release exactly as the kernel reported it: the name of its directory below `/lib/modules`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.raw
    }

    /// The leading numbers, without pre-release and build part.
    #[must_use]
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Whether this is kernel `major.minor` or later. A release candidate of `major.minor` counts as `major.minor`.
    #[must_use]
    pub fn at_least(&self, major: u64, minor: u64) -> bool {
        (self.version.major, self.version.minor) >= (major, minor)
    }
}

impl fmt::Display for KernelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.raw)
    }
}

impl std::str::FromStr for KernelRelease {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text.as_bytes())
    }
}

impl TryFrom<String> for KernelRelease {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(text.as_bytes())
    }
}

impl From<KernelRelease> for String {
    fn from(release: KernelRelease) -> Self {
        release.raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_compile() {
        assert!(RELEASE.is_some());
    }

    #[test]
    fn releases_of_many_distributions_are_read() {
        for (raw, numbers) in [
            ("6.1.0-56-amd64", (6, 1, 0)),
            ("3.10.0-1160.el7.x86_64", (3, 10, 0)),
            ("5.15.167.4-microsoft-standard-WSL2", (5, 15, 167)),
            ("6.18.44-fc-v595", (6, 18, 44)),
            ("4.19", (4, 19, 0)),
            ("7.2-rc3", (7, 2, 0)),
            ("6.8.0-1015-aws", (6, 8, 0)),
            ("5.10.0+", (5, 10, 0)),
            ("2.6.32.71", (2, 6, 32)),
            ("6.12.107+deb13-cloud-amd64", (6, 12, 107)),
            ("4.14.336~pre1_custom", (4, 14, 336)),
        ] {
            let release: KernelRelease = raw.parse().unwrap();
            assert_eq!(release.version(), &Version::new(numbers.0, numbers.1, numbers.2), "{raw}");
            assert_eq!(release.as_str(), raw);
        }
    }

    #[test]
    fn other_texts_are_no_release() {
        let long = format!("6.1.0-{}", "a".repeat(64));
        for raw in ["", "6", "6.", "v6.1", "linux", "6.1/../../etc", "6.1 amd64", "6.1\n6.2", "6.1\u{e9}", "6.x", &long]
        {
            assert_eq!(raw.parse::<KernelRelease>().unwrap_err().kind(), ErrorKind::InvalidRelease, "{raw:?}");
        }
        assert_eq!(KernelRelease::parse(b"\xff\xfe").unwrap_err().kind(), ErrorKind::InvalidRelease);
        assert!("99999999999999999999.1".parse::<KernelRelease>().is_err(), "out of range is refused, not wrapped");
    }

    #[test]
    fn a_release_candidate_has_what_its_version_has() {
        let candidate: KernelRelease = "4.19.0-rc1-next".parse().unwrap();
        assert!(candidate.at_least(4, 19) && !candidate.at_least(4, 20));
        assert!(semver::VersionReq::parse(">=4.19").unwrap().matches(candidate.version()));
    }
}
