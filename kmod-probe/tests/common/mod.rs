//! A captured tree, copied so that a test may change it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use kmod_probe::{Finding, LoadableModules, Probe, Profile, Report};

/// A copy of a tree with an empty file for every module that `modules.dep` names. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).expect("a test left something that cannot be removed");
    }
}

impl Tree {
    /// A tree with nothing in it.
    pub(crate) fn empty() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tree-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    /// A copy of `tests/trees/<name>`, with its links.
    pub(crate) fn of(name: &str) -> Self {
        let tree = Self::empty();
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees").join(name), &tree.root);
        for base in ["lib/modules", "usr/lib/modules"] {
            let Ok(releases) = fs::read_dir(tree.root.join(base)) else { continue };
            for directory in releases.map(|entry| entry.unwrap().path()) {
                let list = LoadableModules::parse(&fs::read(directory.join("modules.dep")).unwrap()).unwrap();
                for name in list.names() {
                    let file = directory.join(list.get(name).unwrap().1);
                    fs::create_dir_all(file.parent().unwrap()).unwrap();
                    fs::write(file, "").unwrap();
                }
            }
        }
        // The links are made here: in the repository an absolute link would lead out of the tree, and before the files
        // exist it would lead to this machine's.
        if name == "debian-13-usr-merged" {
            tree.link("lib", "/usr/lib");
        }
        tree
    }

    /// The tree in a folder that every user may enter, with files that every user may read. The folder that the tests
    /// were built in may be closed to others.
    pub(crate) fn where_everybody_may_look(self) -> Self {
        let enters = |path: &Path| fs::metadata(path).is_ok_and(|at| at.permissions().mode() & 0o001 != 0);
        let places = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
        let place =
            places.iter().find(|place| place.ancestors().all(enters)).expect("no folder that everybody may enter");
        let root = place.join(self.root.file_name().unwrap()).with_extension("kmod-probe");
        let tree = Self { root };
        copy(&self.root, &tree.root);
        open_to_all(&tree.root);
        tree
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Replaces the lines of a file that contain `part`; `None` removes them. At least one line has to.
    pub(crate) fn edit(&self, path: &str, part: &str, with: Option<&str>) -> &Self {
        let text = fs::read_to_string(self.root.join(path)).unwrap();
        assert!(text.contains(part), "{path} has no {part:?}");
        let lines = text.lines().filter_map(|line| if line.contains(part) { with } else { Some(line) });
        self.write(path, lines.flat_map(|line| [line, "\n"]).collect::<String>())
    }

    pub(crate) fn remove(&self, path: &str) -> &Self {
        let path = self.root.join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
        self
    }

    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    pub(crate) fn probe(&self) -> Probe {
        Probe::new().root(&self.root)
    }

    pub(crate) fn report(&self) -> Report {
        self.probe().run()
    }

    pub(crate) fn report_for(&self, profile: Profile) -> Report {
        self.probe().profile(profile).run()
    }
}

fn open_to_all(path: &Path) {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    if kind.is_symlink() {
        return;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(if kind.is_dir() { 0o755 } else { 0o644 })).unwrap();
    if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            open_to_all(&entry.unwrap().path());
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.unwrap();
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            symlink(fs::read_link(source).unwrap(), target).unwrap();
        } else if kind.is_dir() {
            copy(&source, &target);
        } else {
            fs::write(target, fs::read(source).unwrap()).unwrap();
        }
    }
}

/// The finding of this name; the report is printed when it is not there.
pub(crate) fn find<'a>(report: &'a Report, name: &str) -> &'a Finding {
    report.finding(name).unwrap_or_else(|| panic!("no finding {name} in\n{report}"))
}
