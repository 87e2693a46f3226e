//! Versions of the programs, and what they can do.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use semver::Version;

use crate::error::{Error, ErrorKind, excerpt};
use crate::name::Backend;

/// Version and back end of a program, as it reports them: `iptables v1.8.9 (nf_tables)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramVersion {
    /// Version number. A fourth number, as in 1.4.3.2, is ignored.
    pub version: Version,
    /// Kernel interface that the program writes to. Programs before 1.8 do not report it; they only have the legacy
    /// tables.
    pub backend: Backend,
}

static VERSION: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\bv([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?[0-9.]*\S*(?:\s+\((\w+)\))?").ok());

impl ProgramVersion {
    /// Parses the output of `--version`.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedProgram`] if it contains no version, or an unknown back end.
    pub fn parse(output: &str) -> Result<Self, Error> {
        let unknown =
            |why: &str| Error::new(ErrorKind::UnsupportedProgram, format!("{why} in \"{}\"", excerpt(output.trim())));
        let found = VERSION.as_ref().and_then(|v| v.captures(output)).ok_or_else(|| unknown("no version"))?;
        let number = |at: usize| found.get(at).map_or(Ok(0), |m| m.as_str().parse::<u64>());
        let (Ok(major), Ok(minor), Ok(patch)) = (number(1), number(2), number(3)) else {
            return Err(unknown("no version"));
        };
        let backend = match found.get(4).map(|m| m.as_str()) {
            None | Some("legacy") => Backend::Legacy,
            Some("nf_tables") => Backend::NfTables,
            Some(_) => return Err(unknown("unknown back end")),
        };
        Ok(Self { version: Version::new(major, minor, patch), backend })
    }

    /// Whether the program supports `MASQUERADE --random-fully` (since 1.6.2).
    pub fn has_random_fully(&self) -> bool {
        self.version >= Version::new(1, 6, 2)
    }

    /// How this version's `iptables-restore` waits for the xtables lock.
    pub fn restore_wait(&self, version_option_works: bool, wait: Duration) -> RestoreWait {
        let seconds = wait.as_secs().max(1).to_string();
        if self.backend == Backend::NfTables {
            // No lock is taken: the kernel's transactions are atomic.
            RestoreWait::Nothing
        } else if self.version >= Version::new(1, 8, 8) {
            // Prints "Ignoring deprecated --wait-interval option." since then.
            RestoreWait::Options(vec!["-w".into(), seconds])
        } else if self.version >= Version::new(1, 6, 2) {
            RestoreWait::Options(vec!["-w".into(), seconds, "-W".into(), "100000".into()])
        } else if version_option_works {
            // A distribution's backport, which has `-w` but no limit. The program's own time limit bounds the wait.
            RestoreWait::Options(vec!["-w".into()])
        } else {
            RestoreWait::LockForIt
        }
    }
}

impl fmt::Display for ProgramVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.version, self.backend)
    }
}

/// How a restore waits for the xtables lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreWait {
    /// It does not wait.
    Nothing,
    /// Command-line options of the restore program.
    Options(Vec<String>),
    /// The program takes no lock, so its caller must hold it.
    LockForIt,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (String, Backend) {
        let v = ProgramVersion::parse(text).unwrap();
        (v.version.to_string(), v.backend)
    }

    #[test]
    fn version_lines_are_read() {
        assert_eq!(parse("iptables v1.8.9 (nf_tables)\n"), ("1.8.9".into(), Backend::NfTables));
        assert_eq!(parse("iptables-restore v1.8.7 (legacy)\n"), ("1.8.7".into(), Backend::Legacy));
        assert_eq!(parse("iptables v1.4.21"), ("1.4.21".into(), Backend::Legacy));
        assert_eq!(parse("iptables v1.4.3.2"), ("1.4.3".into(), Backend::Legacy));
        assert_eq!(parse("ip6tables v1.8"), ("1.8.0".into(), Backend::Legacy));
        for bad in ["", "garbage", "v", "iptables 1.8.9", "iptables v1.8.9 (ebpf)", "v99999999999.1.1"] {
            assert_eq!(ProgramVersion::parse(bad).unwrap_err().kind(), ErrorKind::UnsupportedProgram, "{bad}");
        }
    }

    #[test]
    fn wait_options_depend_on_the_version() {
        let wait = |text: &str, works| {
            let version = ProgramVersion::parse(text).unwrap();
            version.restore_wait(works, Duration::from_secs(5))
        };
        let options = |words: &[&str]| RestoreWait::Options(words.iter().map(|w| (*w).to_owned()).collect());
        assert_eq!(wait("v1.8.9 (nf_tables)", true), RestoreWait::Nothing);
        assert_eq!(wait("v1.8.9 (legacy)", true), options(&["-w", "5"]));
        assert_eq!(wait("v1.6.2", true), options(&["-w", "5", "-W", "100000"]));
        assert_eq!(wait("v1.8.7 (legacy)", true), options(&["-w", "5", "-W", "100000"]));
        assert_eq!(wait("v1.6.1", true), options(&["-w"]));
        assert_eq!(wait("v1.4.21", false), RestoreWait::LockForIt);
    }
}
