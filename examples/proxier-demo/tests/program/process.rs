//! Programs that a test starts, and folders of its own. The tests of the cookbook have this file, too.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Output of a program that has to succeed.
#[track_caller]
pub(crate) fn tool(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    testkit::oracle::run(words[0], &words[1..], None).unwrap().stdout
}

/// A directory that is removed with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("proxier-demo-{name}-{}-{number}", std::process::id()));
        let _not_there = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// A folder with one file.
    pub(crate) fn with(name: &str, text: &str) -> Self {
        let folder = Self::new("files");
        folder.put(name, text);
        folder
    }

    /// Its own path, for a command line.
    pub(crate) fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Puts a file in place atomically, as editors do, and returns its path.
    pub(crate) fn put(&self, name: &str, text: &str) -> PathBuf {
        let (next, path) = (self.path(".next"), self.path(name));
        fs::write(&next, text).unwrap();
        fs::rename(next, &path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone_already = fs::remove_dir_all(&self.0);
    }
}

/// A program that runs until the value is dropped, and its output so far.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    _folder: Folder,
}

impl Running {
    pub(crate) fn spawn(mut command: Command) -> Self {
        let folder = Folder::new("log");
        let log = folder.put("log", "");
        // In append mode: both ends write to it.
        let output = fs::File::options().append(true).open(&log).unwrap();
        let child = command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
        Running { child, log, _folder: folder }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until this holds; shows the log if it never does.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            if start.elapsed() > Duration::from_secs(120) {
                // ipvsadm fails on a kernel without IPVS.
                let shown = Command::new("sh").args(["-c", "ipvsadm -Sn; iptables-save -t nat"]).output().unwrap();
                panic!("waited for: {what}\n{}\n{}", text(&shown.stdout), self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    pub(crate) fn until_logged(&self, words: &str) {
        self.until(&format!("a line with {words:?}"), || self.log().contains(words));
    }

    pub(crate) fn signal(&self, name: &str) {
        tool(&format!("kill -{name} {}", self.child.id()));
    }

    /// Sends this signal, and returns how it ends.
    pub(crate) fn end_with(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        let status = self.child.wait().unwrap();
        // Shown where the test fails.
        println!("by SIG{signal} it ended with {status}: {}", self.log());
        status
    }

    /// Sends SIGTERM, and returns how it ends.
    pub(crate) fn end(self) -> ExitStatus {
        self.end_with("TERM")
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        (self.child.wait().unwrap(), self.log())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _waited_already = self.child.wait();
    }
}
