//! Packages from the distribution's archive, without installing anything: a private apt tree in a cache folder.
//!
//! apt checks the archive's signatures against the distribution's key ring. The mirror is the one that the machine's
//! own apt uses, or the one named by the environment variable `XTASK_DEBIAN_MIRROR`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Context as _, Error, Result};

/// File of the keys in Debian's package `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Names a Debian mirror (`http://HOST/debian`) on a machine whose own apt sources have none.
const MIRROR_VARIABLE: &str = "XTASK_DEBIAN_MIRROR";

/// A source of packages as apt's files describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
}

impl Source {
    /// A Debian main archive: not security, not another vendor's.
    fn is_debian_main(&self) -> bool {
        let path = self.uri.trim_end_matches('/');
        (path.ends_with("/debian") || path.contains("/archive/debian/"))
            && self.components.iter().any(|component| component == "main")
            && !self.suites.iter().any(|suite| suite.ends_with("-security") || suite.contains("/updates"))
    }
}

/// Reads the one-line format of `sources.list(5)`: `deb [options] URI SUITE COMPONENT...`.
pub(crate) fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines()
        .filter_map(|line| {
            let line = line.split('#').next().unwrap_or_default().trim();
            let rest = line.strip_prefix("deb")?;
            if !rest.starts_with(char::is_whitespace) {
                return None; // deb-src, or not a source at all
            }
            let rest = rest.trim_start();
            let rest = match rest.strip_prefix('[') {
                Some(options) => options.split_once(']')?.1,
                None => rest,
            };
            let mut words = rest.split_whitespace().map(str::to_owned);
            Some(Source { uri: words.next()?, suites: vec![words.next()?], components: words.collect() })
        })
        .collect()
}

/// Reads the deb822 format of `sources.list(5)`: stanzas of `Field: values`, continued on indented lines.
pub(crate) fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut stanza: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(stanza_sources(&stanza));
            stanza.clear();
        } else if line.starts_with(char::is_whitespace) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((field, value)) = line.split_once(':') {
            stanza.push((field.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources
}

fn stanza_sources(stanza: &[(String, String)]) -> Vec<Source> {
    let words = |field: &str| -> Vec<String> {
        stanza
            .iter()
            .find(|(name, _)| name == field)
            .map(|(_, value)| value.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default()
    };
    let disabled = words("enabled").iter().any(|value| value == "no" || value == "false");
    if disabled || !words("types").iter().any(|kind| kind == "deb") {
        return Vec::new();
    }
    words("uris")
        .into_iter()
        .map(|uri| Source { uri, suites: words("suites"), components: words("components") })
        .collect()
}

/// The Debian mirror in the machine's own apt configuration.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR_VARIABLE)
        && !mirror.is_empty()
    {
        return Ok(mirror);
    }
    let mut sources = fs::read_to_string("/etc/apt/sources.list").map(|text| parse_one_line(&text)).unwrap_or_default();
    let mut parts: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    parts.sort();
    for part in parts {
        let Ok(text) = fs::read_to_string(&part) else { continue };
        match part.extension().and_then(|extension| extension.to_str()) {
            Some("list") => sources.extend(parse_one_line(&text)),
            Some("sources") => sources.extend(parse_deb822(&text)),
            _ => {}
        }
    }
    let found = sources.into_iter().find(Source::is_debian_main);
    found.map(|source| source.uri).ok_or_else(|| {
        Error::new(format!(
            "no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d: name one in {MIRROR_VARIABLE} \
             (an address that ends in /debian)"
        ))
    })
}

/// A private apt tree for one suite: its own lists and cache, nothing of the machine's.
#[derive(Debug)]
pub(crate) struct Tree {
    folder: PathBuf,
}

impl Tree {
    /// Sets the tree up below `folder` and fetches the suite's index.
    pub(crate) fn open(folder: &Path, suite: &str) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            return Err(Error::new(format!("{KEYRING} is missing: install the package debian-archive-keyring")));
        }
        let mirror = mirror()?;
        for name in ["lists/partial", "cache/archives/partial"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).context(|| format!("cannot create {}", path.display()))?;
        }
        let list = folder.join("sources.list");
        fs::write(&list, format!("deb [arch=amd64 signed-by={KEYRING}] {mirror} {suite} main\n"))
            .context(|| format!("cannot write {}", list.display()))?;
        let tree = Self { folder: folder.to_owned() };
        tree.run("apt-get", &["--quiet", "--quiet", "update"], folder)?;
        Ok(tree)
    }

    /// Names of all packages in the suite that start with `prefix`.
    pub(crate) fn package_names(&self, prefix: &str) -> Result<Vec<String>> {
        let output = self.run("apt-cache", &["pkgnames", prefix], &self.folder)?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// Downloads packages into `folder` and names the files.
    pub(crate) fn download(&self, packages: &[String], folder: &Path) -> Result<Vec<PathBuf>> {
        let mut arguments = vec!["--quiet", "--quiet", "download"];
        arguments.extend(packages.iter().map(String::as_str));
        self.run("apt-get", &arguments, folder)?;
        let entries = fs::read_dir(folder).context(|| format!("cannot list {}", folder.display()))?;
        let files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .collect();
        if files.len() == packages.len() {
            Ok(files)
        } else {
            Err(Error::new(format!("apt-get download {} left {} files", packages.join(" "), files.len())))
        }
    }

    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<String> {
        let option = |name: &str, value: &Path| -> [OsString; 2] {
            let mut setting = OsString::from(name);
            setting.push("=");
            setting.push(value);
            ["-o".into(), setting]
        };
        let output = Command::new(program)
            .args(option("Dir::Etc::sourcelist", &self.folder.join("sources.list")))
            .args(option("Dir::Etc::sourceparts", Path::new("-")))
            .args(option("Dir::State::lists", &self.folder.join("lists")))
            .args(option("Dir::Cache", &self.folder.join("cache")))
            .args(option("Dir::Cache::archives", &self.folder.join("cache/archives")))
            .args(["-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"])
            // The unprivileged download user cannot enter a cache below a home folder.
            .args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"])
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .output()
            .context(|| format!("cannot start {program}"))?;
        // apt-get update answers 0 when an index could not be fetched and an old one exists; what is missing shows
        // when a package is asked for.
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(Error::new(format!(
                "{program} {} failed ({}): {}",
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, parse_deb822, parse_one_line};

    #[test]
    fn one_line_format_with_options_and_comments() {
        let sources = parse_one_line(
            "# deb http://mirror.example/old old main\n\
             deb-src http://mirror.example/debian bookworm main\n\
             deb [ arch=amd64 signed-by=/k.gpg ] http://mirror.example/debian bookworm main contrib # ours\n\
             deb http://security.example/debian-security bookworm-security main\n",
        );
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[0].uri, "http://mirror.example/debian");
        assert_eq!(sources[0].components, ["main", "contrib"]);
        assert!(sources[0].is_debian_main());
        assert!(!sources[1].is_debian_main(), "the security archive lacks the other suites");
    }

    #[test]
    fn deb822_format_with_comment_continuation_and_disabled_stanza() {
        let sources = parse_deb822(
            "Types: deb deb-src\n# http://snapshot.example/1\nURIs: http://mirror.example/debian/\n\
             Suites: bookworm\n bookworm-updates\nComponents: main\n\n\
             Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: sid\nComponents: main\n\n\
             Types: deb\nURIs: http://tools.example/node_20.x\nSuites: nodistro\nComponents: main\n",
        );
        assert_eq!(
            sources,
            [
                Source {
                    uri: "http://mirror.example/debian/".into(),
                    suites: vec!["bookworm".into(), "bookworm-updates".into()],
                    components: vec!["main".into()],
                },
                Source {
                    uri: "http://tools.example/node_20.x".into(),
                    suites: vec!["nodistro".into()],
                    components: vec!["main".into()],
                },
            ]
        );
        assert!(sources[0].is_debian_main());
        assert!(!sources[1].is_debian_main());
    }

    #[test]
    fn security_suites_on_the_same_path_are_told_apart() {
        let sources = parse_one_line("deb http://mirror.example/debian bookworm-security main");
        assert!(!sources[0].is_debian_main());
    }
}
