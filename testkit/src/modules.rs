//! Removes kernel modules for a test. The machine must be meant for tests (`TESTKIT_REQUIRE=all`).

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The turn of a test that removes modules, or that needs those which another test of its program removes.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the module is loaded or built in with parameters.
pub fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

/// Unloads a module and all modules that use it, whoever loaded them. Waits for users that end by themselves:
/// namespaces of finished tests are removed a little later.
///
/// # Panics
/// If the module is still loaded after two minutes.
pub fn unload(module: &str) {
    let start = Instant::now();
    while is_loaded(module) {
        let loaded = fs::read_to_string("/proc/modules").unwrap_or_default();
        assert!(start.elapsed() < Duration::from_secs(120), "{module} stays:\n{loaded}");
        remove(module);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One attempt, users first.
fn remove(module: &str) {
    for holder in fs::read_dir(format!("/sys/module/{module}/holders")).into_iter().flatten().flatten() {
        remove(&holder.file_name().to_string_lossy());
    }
    let _in_use = Command::new("modprobe").args(["-r", "-q", module]).output();
}

/// Prevents modules from being loaded, by lines in [`Forbidden::FILE`] as administrators write them, until it is
/// dropped.
#[derive(Debug)]
#[must_use = "the modules can be loaded again when it is dropped"]
pub struct Forbidden;

impl Forbidden {
    /// File of `modprobe.d(5)` that forbids them.
    pub const FILE: &'static str = "/etc/modprobe.d/testkit-forbidden.conf";

    /// # Panics
    /// If the file cannot be written.
    pub fn new(modules: &[&str]) -> Self {
        let lines: Vec<String> = modules.iter().map(|module| format!("install {module} /bin/false\n")).collect();
        let written = fs::create_dir_all("/etc/modprobe.d").and_then(|()| fs::write(Self::FILE, lines.concat()));
        assert!(written.is_ok(), "{}: {written:?}", Self::FILE);
        Forbidden
    }
}

impl Drop for Forbidden {
    fn drop(&mut self) {
        let removed = fs::remove_file(Self::FILE);
        assert!(removed.is_ok() || std::thread::panicking(), "{}: {removed:?}", Self::FILE);
    }
}
