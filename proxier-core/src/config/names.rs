//! Names of objects that a proxy makes in the kernel. The names show that an object is its own, so two proxies in one network namespace
//! need different ones.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A name that cannot be used, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidName {
    name: String,
    what: &'static str,
    why: &'static str,
}

impl InvalidName {
    fn new(name: &str, what: &'static str, why: &'static str) -> Self {
        InvalidName { name: name.to_owned(), what, why }
    }
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvalidName { name, what, why } = self;
        write!(f, "{name:?} cannot be {what}: {why}")
    }
}

impl std::error::Error for InvalidName {}

/// The name of a network device: at most 15 bytes, no `/`, `:` or blank (`dev_valid_name` in `net/core/dev.c`), and no `+`
/// at its end, which iptables reads as a wildcard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceName(Box<str>);

impl InterfaceName {
    /// The longest name, in bytes (`IFNAMSIZ` less the NUL).
    pub const MAX_LEN: usize = 15;

    /// Checks a name; `None` if no device can have it, or iptables would read it as a pattern.
    pub fn new(name: &str) -> Option<Self> {
        let bad = |c: char| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control();
        let good =
            !name.is_empty() && name.len() <= Self::MAX_LEN && !matches!(name, "." | "..") && !name.contains(bad);
        (good && !name.ends_with('+')).then(|| InterfaceName(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Prefix of the names of a proxy's sets and chains. Default `KUBE-`, as kube-proxy's, of which other software
/// knows some (`KUBE-MARK-MASQ`).
///
/// 2 to 6 bytes: upper-case letters, digits, `_` and `-`; a letter first, `-` last, and not `-6-` at the end. So the names of
/// chains fit into the 28 bytes that iptables takes, those of sets differ within the 31 that the kernel keeps, and no two
/// prefixes make the same name: sets of IPv6 have `6-` after the prefix. No other program may use names of this prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePrefix {
    /// Padded with NUL.
    bytes: [u8; NamePrefix::MAX_LEN],
}

impl NamePrefix {
    /// The longest prefix, in bytes.
    pub const MAX_LEN: usize = 6;
    /// kube-proxy's.
    pub const KUBE: NamePrefix = NamePrefix { bytes: *b"KUBE-\0" };

    /// Checks a prefix.
    ///
    /// # Errors
    /// When it is none, with the reason.
    pub fn new(prefix: &str) -> Result<Self, InvalidName> {
        let invalid = |why| Err(InvalidName::new(prefix, "the prefix of sets and chains", why));
        let is_good = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if prefix.len() > Self::MAX_LEN {
            return invalid(
                "it is longer than 6 bytes, so names of sets would not differ in the 31 that the kernel keeps",
            );
        }
        if !prefix.starts_with(|c: char| c.is_ascii_uppercase()) || !prefix.chars().all(is_good) {
            return invalid("it must have upper-case letters, digits, '_' and '-' only, and begin with a letter");
        }
        if !prefix.ends_with('-') {
            return invalid("it must end with '-'");
        }
        if prefix.ends_with("-6-") {
            return invalid(
                "sets of IPv6 of another prefix would have the same names; end it otherwise than with '-6-'",
            );
        }
        let mut bytes = [0; Self::MAX_LEN];
        bytes.iter_mut().zip(prefix.bytes()).for_each(|(to, from)| *to = from);
        Ok(NamePrefix { bytes })
    }

    /// The prefix.
    pub(crate) fn as_str(&self) -> &str {
        let text = self.bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }
}

impl Default for NamePrefix {
    fn default() -> Self {
        NamePrefix::KUBE
    }
}

impl FromStr for NamePrefix {
    type Err = InvalidName;

    fn from_str(prefix: &str) -> Result<Self, InvalidName> {
        NamePrefix::new(prefix)
    }
}

impl fmt::Display for NamePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for NamePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NamePrefix").field(&self.as_str()).finish()
    }
}

/// The name of the tables of nftables mode, one of family `ip` and one of family `ip6`. Default `proxier`.
///
/// 1 to 255 bytes without control characters, and none of the names that iptables has for tables in nf_tables.
#[derive(Clone, Debug, PartialEq)]
pub struct TableName(Box<str>);

impl TableName {
    /// Checks a name.
    ///
    /// # Errors
    /// When the tables cannot have it, with the reason.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let invalid = |why| InvalidName::new(name, "the name of a table", why);
        if matches!(name, "filter" | "nat" | "mangle" | "raw" | "security") {
            return Err(invalid("iptables has a table of this name"));
        }
        match nftables::Name::new(name) {
            Ok(_) => Ok(TableName(name.into())),
            Err(_) => Err(invalid("it must have 1 to 255 bytes and no control character")),
        }
    }

    /// The name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TableName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        TableName::new(name)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Names of objects that a proxy makes in the kernel. Default: kube-proxy's, so that one takes over from the other.
///
/// Objects of these names are this proxy's: it removes those that it does not want. Two proxies in one network namespace do
/// not touch each other if their names differ, and each has the device of the other in
/// [`other_devices`](KernelNames::other_devices). Two things they share all the same. The kernel has one virtual server for
/// an address, port and protocol, so they must not serve the same ones. And the bit of the packet mark means "masquerade
/// this" in both ([`MarkBit`](super::MarkBit)), which does no harm.
///
/// iptables mode always has kube-proxy's own names (`KUBE-SVC-…`, `KUBE-SERVICES`), not the prefix: two proxies in iptables mode, or one
/// and a kube-proxy, cannot share a network namespace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KernelNames {
    /// The dummy device that addresses are bound to, in IPVS mode. Default `kube-ipvs0`. A device of this name that is no
    /// dummy device is not touched, and passes fail.
    pub device: InterfaceName,
    /// Devices of other proxies in this network namespace. Their addresses are of other Services, not of this host: no node
    /// ports are served on them. `kube-ipvs0` is always one of them. Default empty.
    pub other_devices: BTreeSet<InterfaceName>,
    /// Prefix of the names of sets and chains, in IPVS mode. Default `KUBE-`.
    pub prefix: NamePrefix,
    /// Name of the tables of nftables mode; those of IPVS mode have `-ipvs` behind it. Default `proxier`. A foreign
    /// table of this name is not touched; its family is then not served.
    pub table: TableName,
}

impl KernelNames {
    /// kube-proxy's device.
    pub const DEVICE: &str = "kube-ipvs0";

    /// The tables of IPVS mode where nf_tables guards its virtual servers ([`RulesBy::Nftables`](super::RulesBy)): the name of
    /// those of nftables mode with `-ipvs` behind, `proxier-ipvs` by default.
    pub(crate) fn ipvs_table(&self) -> TableName {
        self.table_with("-ipvs")
    }

    /// The table of the fast path, `proxier-fast-path` by default.
    pub(crate) fn fast_path_table(&self) -> TableName {
        self.table_with("-fast-path")
    }

    fn table_with(&self, behind: &str) -> TableName {
        let longest = 255_usize.saturating_sub(behind.len());
        let mut name = self.table.as_str().to_owned();
        while name.len() > longest {
            name.pop();
        }
        TableName((name + behind).into())
    }

    /// Whether a device holds addresses of Services: this proxy's, or another one's.
    pub(crate) fn is_of_a_proxy(&self, device: &str) -> bool {
        device == self.device.as_str()
            || device == Self::DEVICE
            || self.other_devices.iter().any(|other| other.as_str() == device)
    }
}

impl Default for KernelNames {
    fn default() -> Self {
        KernelNames {
            device: InterfaceName(Self::DEVICE.into()),
            other_devices: BTreeSet::new(),
            prefix: NamePrefix::KUBE,
            table: TableName("proxier".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for good in ["KUBE-", "A-", "AGENT-", "NODE1-", "AG-6A-", "V6-", "A_B-"] {
            let prefix = NamePrefix::new(good).unwrap();
            assert_eq!((prefix.as_str(), prefix.to_string(), good.parse()), (good, good.to_owned(), Ok(prefix)));
        }
        for bad in ["", "-", "6-", "KUBE", "AGENT1-", "kube-", "KUBE-6-", "A-6-", "-A-", "A B-", "A\0-", "É-"] {
            let error = NamePrefix::new(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{bad:?} cannot be the prefix")), "{error}");
        }
        assert_eq!(NamePrefix::default(), NamePrefix::new("KUBE-").unwrap());
        assert!(NamePrefix::new("A-").unwrap() < NamePrefix::new("AB-").unwrap());
    }

    #[test]
    fn tables() {
        assert_eq!(TableName::new("agent").unwrap().to_string(), "agent");
        for bad in ["", "nat", "filter", "a\nb", &"a".repeat(256)] {
            assert!(TableName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(KernelNames::default().table.as_str(), "proxier");
        assert_eq!(KernelNames::default().ipvs_table().as_str(), "proxier-ipvs");
        let table = TableName::new(&"\u{e4}".repeat(127)).unwrap();
        let longest = KernelNames { table, ..KernelNames::default() }.ipvs_table();
        assert_eq!(TableName::new(longest.as_str()), Ok(longest));
    }

    #[test]
    fn devices_of_proxies() {
        let device = |name| InterfaceName::new(name).unwrap();
        let names = KernelNames { device: device("agent0"), ..KernelNames::default() };
        assert!(names.is_of_a_proxy("agent0") && names.is_of_a_proxy("kube-ipvs0"));
        assert!(!names.is_of_a_proxy("agent1") && !names.is_of_a_proxy("eth0"));
        let other_devices = [device("agent1")].into();
        assert!(KernelNames { other_devices, ..names }.is_of_a_proxy("agent1"));
    }
}
