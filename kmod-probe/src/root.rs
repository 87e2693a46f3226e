//! Reads files below a root that need not be `/`, and distinguishes all reasons for failure.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Why a file could not be used. Only [`Failure::Absent`] means that it does not exist.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Failure {
    /// The file does not exist.
    Absent,
    /// Permission denied; the file may exist.
    Denied,
    /// Following more than 40 symbolic links.
    Loop,
    /// The path is a directory, a device or a pipe.
    NotAFile,
    /// The file has more than this many bytes. None of them was used.
    TooLarge(u64),
    /// The content is not in the expected form, and why.
    Garbage(String),
    /// Another error of the system.
    Io(String),
    /// The file was not looked for, and why.
    NotTried(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("not there"),
            Self::Denied => f.write_str("permission denied"),
            Self::Loop => f.write_str("too many symbolic links"),
            Self::NotAFile => f.write_str("not a regular file"),
            Self::TooLarge(limit) => write!(f, "larger than {limit} bytes"),
            Self::Garbage(why) => f.write_str(why),
            Self::Io(error) => f.write_str(error),
            Self::NotTried(why) => write!(f, "not read: {why}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // ENOTDIR: a directory of the path is a file, so the path does not exist.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Denied,
            io::ErrorKind::IsADirectory => Self::NotAFile,
            _ => Self::Io(error.to_string()),
        }
    }
}

/// The directory below which paths are read. Symbolic links never lead out of it: `/lib` → `/usr/lib` in a host's root
/// mounted at `/host` means `/host/usr/lib`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Resolves symbolic links in `path`, which is relative to the root, inside the root.
    pub(crate) fn locate(&self, path: &str) -> Result<PathBuf, Failure> {
        /// The kernel's limit (`MAXSYMLINKS`, `include/linux/namei.h`).
        const MOST_LINKS: usize = 40;
        let mut left: VecDeque<OsString> = parts(Path::new(path)).collect();
        let mut here = self.0.clone();
        let mut depth: usize = 0; // components below the root, so that ".." cannot climb out of it
        let mut links: usize = 0;
        while let Some(part) = left.pop_front() {
            if part == ".." {
                if depth > 0 {
                    here.pop();
                    depth = depth.saturating_sub(1);
                }
                continue;
            }
            here.push(&part);
            depth = depth.saturating_add(1);
            if !fs::symlink_metadata(&here)?.file_type().is_symlink() {
                continue;
            }
            links = links.saturating_add(1);
            if links > MOST_LINKS {
                return Err(Failure::Loop);
            }
            let target = fs::read_link(&here)?;
            if target.is_absolute() {
                here.clone_from(&self.0);
                depth = 0;
            } else {
                here.pop();
                depth = depth.saturating_sub(1);
            }
            for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(part);
            }
        }
        Ok(here)
    }

    /// Reads a regular file of at most `limit` bytes. Pipes and devices are not opened.
    pub(crate) fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, Failure> {
        let real = self.locate(path)?;
        if !fs::metadata(&real)?.is_file() {
            return Err(Failure::NotAFile);
        }
        let mut bytes = Vec::new();
        fs::File::open(&real)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
            return Err(Failure::TooLarge(limit));
        }
        Ok(bytes)
    }

    /// Whether a file of any type is at this path.
    pub(crate) fn exists(&self, path: &str) -> Result<bool, Failure> {
        match self.locate(path) {
            Ok(_) => Ok(true),
            Err(Failure::Absent) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Names in a directory, sorted, at most `most` of them.
    pub(crate) fn list(&self, path: &str, most: usize) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.locate(path)?)?.take(most) {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}
