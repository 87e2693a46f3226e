//! Modules that `modprobe.d` forbids: `install MODULE /bin/false` keeps a module out, by any caller.
//!
//! `blacklist` does not: it only keeps aliases from leading to the module, and the module can be loaded by its name. Commands
//! other than those that do nothing are taken to load the module in their way (modprobe.d(5)).

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::ModuleName;
use crate::root::Root;

/// Directories in the order in which a file hides those of the same name behind it.
const DIRECTORIES: [&str; 5] =
    ["/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];
/// Commands that load nothing.
const NOTHING: [&str; 7] = ["/bin/false", "/usr/bin/false", "/bin/true", "/usr/bin/true", "false", "true", ":"];

/// Modules that `modprobe` is told not to load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy(BTreeMap<ModuleName, Rule>);

/// The line that forbids a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) says: String,
}

impl Policy {
    /// Reads all files. One that cannot be read forbids nothing that is known.
    pub(crate) fn read(root: &Root) -> Self {
        const MOST_FILES: usize = 1000;
        const LARGEST: u64 = 1 << 20;
        let mut policy = Self::default();
        let mut seen = BTreeSet::new();
        for directory in DIRECTORIES {
            for name in root.list(directory, MOST_FILES).unwrap_or_default() {
                if name.strip_suffix(".conf").is_none() || !seen.insert(name.clone()) {
                    continue;
                }
                let path = format!("{directory}/{name}");
                let text = root.read(&path, LARGEST).unwrap_or_default();
                policy.take(&path, &String::from_utf8_lossy(&text));
            }
        }
        policy
    }

    fn take(&mut self, path: &str, text: &str) {
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["install", module, command, ..] = words.as_slice() else { continue };
            let Ok(module) = ModuleName::new(module) else { continue };
            if NOTHING.contains(command) {
                let says = format!("install {module} {command}");
                let rule = Rule { path: path.to_owned(), line: index.saturating_add(1), says };
                self.0.entry(module).or_insert(rule);
            }
        }
    }

    /// The line that forbids this module.
    pub(crate) fn forbids(&self, module: &ModuleName) -> Option<&Rule> {
        self.0.get(module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_that_do_nothing_forbid() {
        let mut policy = Policy::default();
        policy.take(
            "/etc/modprobe.d/x.conf",
            "# install ip_vs /bin/false\nblacklist dummy\n  install\tnf-conntrack-netlink   /bin/false # why\n\
             install xt_ipvs /bin/true\ninstall ip_vs /sbin/modprobe --ignore-install ip_vs\ninstall ip_set\n\
             install a/b /bin/false\n",
        );
        let forbids = |name: &str| policy.forbids(&ModuleName::new(name).unwrap()).map(|rule| rule.line);
        assert_eq!(forbids("nf_conntrack_netlink"), Some(3));
        assert_eq!(forbids("xt_ipvs"), Some(4));
        for free in ["ip_vs", "dummy", "ip_set"] {
            assert_eq!(forbids(free), None, "{free}");
        }
    }
}
