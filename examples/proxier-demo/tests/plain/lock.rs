//! The lock that allows one proxy per node, held by other processes and on files that others planted.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proxier_demo::engine::lock::Lock;

use crate::program::Folder;

/// A directory instead of `/run`.
struct Base(Folder);

impl Base {
    fn new(name: &str) -> Self {
        let folder = Folder::new(&format!("lock-{name}"));
        fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
        Base(folder)
    }

    fn folder(&self) -> PathBuf {
        self.0.path("proxier-demo")
    }

    fn file(&self) -> PathBuf {
        self.folder().join(format!("netns-{}.lock", fs::metadata("/proc/thread-self/ns/net").unwrap().ino()))
    }

    fn take(&self) -> Result<Lock, String> {
        Lock::take_below(&self.0.0).map_err(|problem| problem.to_string())
    }
}

/// Another process that holds the lock, with the usual tool. `namespace`: its namespace of processes.
fn hold(path: &Path, namespace: &str) -> Option<Child> {
    let script = format!(
        "exec 3<>{}; flock -n 3 || exit 1; printf '%s\\n%s\\n%s\\n' $$ {namespace} 'a proxy' >&3; echo ok; exec sleep 1000",
        path.display()
    );
    let mut child = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().ok()?;
    let mut line = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    Some(child)
}

#[test]
fn the_second_process_learns_who_holds_the_lock() {
    let base = Base::new("second");
    let first = base.take().unwrap();
    let problem = base.take().unwrap_err();
    let expected = format!("another one runs on this node: process {} (", std::process::id());
    assert!(problem.starts_with(&expected), "{problem}");
    drop(first);
    base.take().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&base.folder()), mode(&base.file())), (0o700, 0o600));
}

/// The holder is another process, perhaps of another container, and is killed.
#[test]
fn a_killed_process_leaves_no_lock() {
    let base = Base::new("killed");
    drop(base.take().unwrap());
    for (namespace, container) in [("$(stat -Lc %i /proc/self/ns/pid)", ""), ("1", " of another container")] {
        let mut holder = hold(&base.file(), namespace).unwrap();
        let problem = base.take().unwrap_err();
        let named = format!("process {}{container} (a proxy)", holder.id());
        assert_eq!(problem, format!("another one runs on this node: {named}; stop it first"));
        holder.kill().unwrap();
        holder.wait().unwrap();
        drop(base.take().unwrap());
    }
}

/// An earlier holder's name is not reported as the current one, and the wait ends.
#[test]
fn a_holder_may_leave_no_information() {
    let base = Base::new("silent");
    drop(base.take().unwrap());
    let file = File::options().read(true).write(true).open(base.file()).unwrap();
    file.lock().unwrap();
    file.set_len(0).unwrap();
    let start = Instant::now();
    let problem = base.take().unwrap_err();
    assert!(problem.starts_with("another process, which cannot be identified, holds the lock "), "{problem}");
    assert!(start.elapsed() >= Duration::from_secs(1));
    drop(file);
    base.take().unwrap();
}

#[test]
fn planted_files_are_refused() {
    let base = Base::new("planted");
    let elsewhere = Base::new("elsewhere");
    fs::create_dir(elsewhere.0.path("theirs")).unwrap();
    symlink(elsewhere.0.path("theirs"), base.folder()).unwrap();
    let problem = base.take().unwrap_err();
    assert!(problem.contains("it is a link or a file, not a folder") && problem.ends_with("remove it"), "{problem}");
    fs::remove_file(base.folder()).unwrap();

    fs::create_dir(base.folder()).unwrap();
    symlink(elsewhere.0.path("victim"), base.file()).unwrap();
    let problem = base.take().unwrap_err();
    assert!(problem.contains("it is a link"), "{problem}");
    assert!(!elsewhere.0.path("victim").exists() && fs::read_dir(elsewhere.0.path("theirs")).unwrap().count() == 0);
    fs::remove_file(base.file()).unwrap();

    // Another process may have a file with a second name open.
    fs::write(elsewhere.0.path("file"), "").unwrap();
    fs::hard_link(elsewhere.0.path("file"), base.file()).unwrap();
    let problem = base.take().unwrap_err();
    assert!(problem.contains("it is not a regular file with one name"), "{problem}");
    fs::remove_file(base.file()).unwrap();
    base.take().unwrap();
}

#[test]
fn files_that_others_can_write_are_refused() {
    let base = Base::new("open");
    drop(base.take().unwrap());
    let chmod = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    for (path, mode, good) in
        [(base.0.0.clone(), 0o1777, 0o755), (base.folder(), 0o770, 0o700), (base.file(), 0o644, 0o600)]
    {
        chmod(&path, mode);
        let problem = base.take().unwrap_err();
        assert!(
            problem.starts_with(&format!("{}: it", path.display())) || problem.contains("others may write"),
            "{problem}"
        );
        assert!(problem.contains(&format!("{mode:o}")), "{problem}");
        // Directories have their own use.
        let advice = if path.is_dir() { format!("chmod go-w {}", path.display()) } else { "remove it".to_owned() };
        assert!(problem.ends_with(&advice), "{problem}");
        chmod(&path, good);
        base.take().unwrap();
    }
    // The kubelet creates the directory with these permissions.
    chmod(&base.folder(), 0o755);
    base.take().unwrap();
}

#[test]
fn a_missing_directory_is_named() {
    let problem = Lock::take_below(Path::new("/nonexistent")).unwrap_err().to_string();
    assert!(problem.starts_with("/nonexistent: the lock cannot be looked for here ("), "{problem}");
}
