//! The sources of facts about a kernel. Each list is read once, with its path and the reason if it could not be read.

use std::collections::{BTreeMap, BTreeSet};

use crate::kconfig::{Kconfig, Setting};
use crate::modules::{BuiltinModules, LoadableModules, LoadedModules, ModuleName};
use crate::report::{Evidence, SourceStatus};
use crate::root::{Failure, Root};
use crate::version::KernelRelease;
use crate::{Answer, Error};

/// Largest list to read, in bytes. Debian's `modules.dep`, the longest one, has 0.8 MB.
const LARGEST_LIST: u64 = 16 << 20;
/// Largest single value to read (`osrelease`, a sysctl, `initstate`).
const LARGEST_VALUE: u64 = 4096;
/// The parameters with which the kernel was started.
pub(crate) const COMMAND_LINE: &str = "/proc/cmdline";

/// One list: its path, and its content or why there is none.
#[derive(Debug)]
pub(crate) struct Source<T> {
    pub(crate) path: String,
    pub(crate) content: Result<T, Failure>,
}

impl<T> Source<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.content.as_ref().ok()
    }

    fn not_tried(path: &str, why: &str) -> Self {
        Self { path: path.to_owned(), content: Err(Failure::NotTried(why.to_owned())) }
    }
}

/// All lists of one machine.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) root: Root,
    pub(crate) release: Source<KernelRelease>,
    pub(crate) loaded: Source<LoadedModules>,
    /// The directory with the modules of this release.
    pub(crate) directory: Source<()>,
    /// Other releases next to it.
    pub(crate) other_releases: Vec<String>,
    pub(crate) builtin: Source<BuiltinModules>,
    pub(crate) loadable: Source<LoadableModules>,
    pub(crate) config: Source<Kconfig>,
    /// Whether this kernel can load modules.
    pub(crate) module_support: Answer,
    /// Lines of `modprobe.d` that forbid a module, and modules that the kernel was started without.
    pub(crate) forbidden: BTreeMap<ModuleName, Evidence>,
    /// Whether `/proc/sys/kernel/modules_disabled` is 1: no module can be loaded until the next boot.
    pub(crate) loading_disabled: bool,
}

impl Sources {
    /// Reads everything below `root`.
    pub(crate) fn read(root: Root) -> Self {
        let disabled = root.read("/proc/sys/kernel/modules_disabled", LARGEST_VALUE);
        let mut sources = Self {
            release: parsed(&root, &["/proc/sys/kernel/osrelease".to_owned()], LARGEST_VALUE, KernelRelease::parse),
            loaded: parsed(&root, &["/proc/modules".to_owned()], LARGEST_LIST, LoadedModules::parse),
            directory: Source::not_tried("/lib/modules", "the kernel release is unknown"),
            other_releases: Vec::new(),
            builtin: Source::not_tried("modules.builtin", "no directory with modules"),
            loadable: Source::not_tried("modules.dep", "no directory with modules"),
            config: Source::not_tried("/boot/config", "the kernel release is unknown"),
            module_support: Answer::Unknown,
            forbidden: forbidden(&root),
            loading_disabled: disabled.is_ok_and(|value| value.trim_ascii() == b"1"),
            root,
        };
        sources.read_directory();
        sources.read_config();
        sources.module_support = sources.module_support();
        sources
    }

    fn read_directory(&mut self) {
        let Some(release) = self.release.get() else { return };
        let mut first_failure = None;
        for base in ["/lib/modules", "/usr/lib/modules"] {
            let path = format!("{base}/{release}");
            match self.root.list(&path, 1) {
                Ok(_) => {
                    let file = |name: &str| [format!("{path}/{name}")];
                    self.builtin = parsed(&self.root, &file("modules.builtin"), LARGEST_LIST, BuiltinModules::parse);
                    self.loadable = parsed(&self.root, &file("modules.dep"), LARGEST_LIST, LoadableModules::parse);
                    self.directory = Source { path, content: Ok(()) };
                    return;
                }
                Err(failure) => {
                    const MOST_RELEASES: usize = 64;
                    if self.other_releases.is_empty() {
                        self.other_releases = self.root.list(base, MOST_RELEASES).unwrap_or_default();
                        // The names are used in messages, so only keep valid kernel releases.
                        self.other_releases.retain(|name| name.parse::<KernelRelease>().is_ok());
                    }
                    if says_more(first_failure.as_ref(), &failure) {
                        first_failure = Some((path, failure));
                    }
                }
            }
        }
        if let Some((path, failure)) = first_failure {
            self.directory = Source { path, content: Err(failure) };
        }
    }

    /// The running kernel's own configuration first, then the files that packages install.
    fn read_config(&mut self) {
        let mut candidates = vec!["/proc/config.gz".to_owned()];
        if let Some(release) = self.release.get() {
            candidates.push(format!("/boot/config-{release}"));
            candidates.push(format!("/lib/modules/{release}/config"));
            candidates.push(format!("/usr/lib/modules/{release}/config"));
            candidates.push(format!("/lib/modules/{release}/build/.config"));
        }
        self.config = parsed(&self.root, &candidates, LARGEST_LIST, Kconfig::parse);
    }

    /// Whether this kernel can load modules at all. `/proc/modules` and `/proc/sys/kernel/modprobe` only exist if it
    /// was built with `CONFIG_MODULES` (`kernel/module/procfs.c`, `kernel/module/main.c`).
    fn module_support(&self) -> Answer {
        match &self.loaded.content {
            Err(Failure::Absent) => {}
            Ok(_) | Err(_) => return Answer::Yes,
        }
        match self.config.get().and_then(|config| config.get("MODULES")) {
            Some((_, Setting::BuiltIn)) => Answer::Yes,
            Some((_, Setting::NotSet)) => Answer::No,
            // Without a release /proc is not usable.
            _ if self.release.get().is_none() => Answer::Unknown,
            _ if self.root.exists("/proc/sys/kernel/modprobe") == Ok(false) => Answer::No,
            _ => Answer::Yes,
        }
    }

    /// `/sys/module/<name>`: loaded (has `initstate`), built in (has none), or missing.
    pub(crate) fn sysfs(&self, name: &ModuleName) -> Option<(String, Option<String>)> {
        let path = format!("/sys/module/{name}");
        if !self.root.exists(&path).unwrap_or(false) {
            return None;
        }
        match self.root.read(&format!("{path}/initstate"), LARGEST_VALUE) {
            Ok(state) => Some((format!("{path}/initstate"), Some(String::from_utf8_lossy(state.trim_ascii()).into()))),
            Err(Failure::Absent) => Some((path, None)),
            Err(_) => None,
        }
    }

    /// A short text file of the running kernel, such as a sysctl or a list of names.
    pub(crate) fn running_text(&self, path: &str, limit: u64) -> Result<String, Failure> {
        let bytes = self.root.read(path, limit)?;
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Ok(text),
            _ => Err(Failure::Garbage("not text".to_owned())),
        }
    }

    /// The outcome of reading each list, for the report.
    pub(crate) fn statuses(&self) -> Vec<SourceStatus> {
        fn status<T>(source: &Source<T>, complete: impl Fn(&T) -> bool) -> SourceStatus {
            SourceStatus {
                path: source.path.clone(),
                failure: source.content.as_ref().err().cloned(),
                complete: source.get().is_some_and(complete),
            }
        }
        vec![
            status(&self.release, |_| true),
            status(&self.loaded, LoadedModules::complete),
            status(&self.directory, |()| true),
            status(&self.builtin, BuiltinModules::complete),
            status(&self.loadable, LoadableModules::complete),
            status(&self.config, Kconfig::complete),
        ]
    }
}

/// Parses the first usable one of several files. If none is usable, returns the most informative failure: any other
/// rather than "does not exist".
fn parsed<T>(root: &Root, paths: &[String], limit: u64, parse: impl Fn(&[u8]) -> Result<T, Error>) -> Source<T> {
    let mut told: Option<(String, Failure)> = None;
    for path in paths {
        let content =
            root.read(path, limit).and_then(|bytes| parse(&bytes).map_err(|error| Failure::Garbage(error.to_string())));
        match content {
            Ok(content) => return Source { path: path.clone(), content: Ok(content) },
            Err(failure) if says_more(told.as_ref(), &failure) => told = Some((path.clone(), failure)),
            Err(_) => {}
        }
    }
    let (path, failure) = told.unwrap_or_else(|| (String::new(), Failure::Absent));
    Source { path, content: Err(failure) }
}

/// Whether a failure is more informative than the known one: the first counts, but any other replaces "does not exist".
fn says_more(known: Option<&(String, Failure)>, failure: &Failure) -> bool {
    known.is_none_or(|(_, known)| *known == Failure::Absent && *failure != Failure::Absent)
}

/// Modules that `modprobe.d` forbids: `install MODULE /bin/false`. `blacklist` does not forbid; it only ignores a
/// module's aliases. Other commands are assumed to load the module (modprobe.d(5)).
fn forbidden(root: &Root) -> BTreeMap<ModuleName, Evidence> {
    /// In order of precedence: a file hides those of the same name in later directories.
    const DIRECTORIES: [&str; 5] =
        ["/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];
    /// Commands that load nothing.
    const NOTHING: [&str; 7] = ["/bin/false", "/usr/bin/false", "/bin/true", "/usr/bin/true", "false", "true", ":"];
    const MOST_FILES: usize = 1000;
    const LARGEST: u64 = 1 << 20;
    let (mut modules, mut seen) = (refused_by_kernel(root), BTreeSet::new());
    for directory in DIRECTORIES {
        for file in root.list(directory, MOST_FILES).unwrap_or_default() {
            if file.strip_suffix(".conf").is_none() || !seen.insert(file.clone()) {
                continue;
            }
            let path = format!("{directory}/{file}");
            // A file that cannot be read forbids nothing.
            let text = root.read(&path, LARGEST).unwrap_or_default();
            let (text, mut whole) = (String::from_utf8_lossy(&text), String::new());
            let mut lines = (1..).zip(text.lines()).peekable();
            while let Some((line, text)) = lines.next() {
                // A backslash at the end: the next line, if any, continues this one (`freadline_wrapped` in kmod).
                whole.push_str(text.strip_suffix('\\').unwrap_or(text));
                if text.ends_with('\\') && lines.peek().is_some() {
                    continue;
                }
                let whole = std::mem::take(&mut whole);
                let words: Vec<&str> = whole.split_whitespace().collect();
                let ["install", name, command, ..] = words.as_slice() else { continue };
                let Ok(module) = ModuleName::new(name) else { continue };
                if NOTHING.contains(command) {
                    let says = format!("install {module} {command}");
                    modules.entry(module).or_insert(Evidence { path: path.clone(), line: Some(line), says });
                }
            }
        }
    }
    modules
}

/// Modules that the kernel was told to refuse (`blacklisted`, `kernel/module/main.c`): the exact names in the last
/// `module_blacklist=`. `modprobe.blacklist=` is a `blacklist` of `modprobe.d`, which forbids nothing.
fn refused_by_kernel(root: &Root) -> BTreeMap<ModuleName, Evidence> {
    let text = root.read(COMMAND_LINE, LARGEST_LIST).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // What follows `--` is for init.
    let parameters = text.split_whitespace().take_while(|word| *word != "--");
    let list = parameters.filter_map(|word| {
        let (name, list) = word.trim_start_matches('"').split_once('=')?;
        (name.replace('-', "_") == "module_blacklist").then(|| list.trim_matches('"'))
    });
    let names = list.last().into_iter().flat_map(|list| list.split(','));
    let modules = names.filter_map(|name| ModuleName::new(name).ok().filter(|module| module.as_str() == name));
    let evidence = |module: ModuleName| {
        let says = format!("module_blacklist={module}");
        (module, Evidence { path: COMMAND_LINE.to_owned(), line: None, says })
    };
    modules.map(evidence).collect()
}
