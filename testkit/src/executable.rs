//! A program that any user can start, even from a directory that only its owner may enter.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};

/// A copy of a program in memory that every user can start, as long as this value lives.
///
/// A test that needs another user's view starts a program as that user. Cargo's output may be in a directory that only
/// its owner can enter, such as root's home.
#[derive(Debug)]
pub struct Executable {
    file: File,
}

impl Executable {
    /// The program of the calling test, to be started again.
    pub fn this() -> io::Result<Self> {
        Self::of(&std::env::current_exe()?)
    }

    /// A copy of this program.
    pub fn of(program: &Path) -> io::Result<Self> {
        let mut file = File::from(memfd_create("testkit", MFdFlags::MFD_CLOEXEC)?);
        io::copy(&mut File::open(program)?, &mut file)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        // A file that is open for writing cannot be executed.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let readable = File::open(path)?;
        // Not closed on exec: a program that starts this one must find it.
        nix::fcntl::fcntl(&readable, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
        Ok(Executable { file: readable })
    }

    /// Path of the program, for this process and those that it starts.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Starts through another program and, as root, as a user who may not enter the directory.
    #[test]
    fn everybody_may_start_it() {
        use std::os::unix::fs::MetadataExt as _;
        use std::os::unix::process::CommandExt as _;
        let folder = std::env::temp_dir().join(format!("testkit-executable-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::copy("/bin/sh", folder.join("program")).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let program = Executable::of(&folder.join("program")).unwrap();
        let mut through = Command::new("env");
        through.arg(program.path()).args(["-c", "echo started"]);
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            through.uid(65534).gid(65534);
        }
        let output = through.output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n", "{}", String::from_utf8_lossy(&output.stderr));
    }
}
