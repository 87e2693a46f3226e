//! Names of a proxy's objects in the kernel. The names identify its objects, so two proxies in one network namespace
//! need different ones.

use std::collections::BTreeSet;
use std::fmt;

/// An invalid name, and why.
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

/// The name of a network device. It has at most 15 bytes, no `/`, `:` or blank (`dev_valid_name` in `net/core/dev.c`),
/// and no trailing `+`, which iptables treats as a wildcard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceName(Box<str>);

impl InterfaceName {
    /// The longest name in bytes (`IFNAMSIZ` without the NUL).
    pub(crate) const MAX_LEN: usize = 15;

    /// Checks a name.
    ///
    /// # Errors
    /// No device can have this name, or it is a wildcard in iptables.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let bad = |c: char| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control();
        let good =
            !name.is_empty() && name.len() <= Self::MAX_LEN && !matches!(name, "." | "..") && !name.contains(bad);
        if good && !name.ends_with('+') {
            return Ok(InterfaceName(name.into()));
        }
        let why = "it needs 1 to 15 bytes without '/', ':' and blanks, and no '+' at its end";
        Err(InvalidName::new(name, "the name of a network device", why))
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

/// Prefix of the names of a proxy's sets and chains. Default `KUBE-`, as in kube-proxy; other software relies on some
/// of these names (`KUBE-MARK-MASQ`).
///
/// 2 to 6 bytes: upper-case letters, digits, `_` and `-`, starting with a letter, ending with `-` but not with `-6-`.
/// So chain names fit into iptables' 28 bytes, and set names differ within the kernel's 31 bytes. No two prefixes give
/// the same name: sets of IPv6 have `6-` after the prefix. No other program may use names with this prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePrefix {
    /// Padded with NUL.
    bytes: [u8; NamePrefix::MAX_LEN],
}

impl NamePrefix {
    /// The longest prefix in bytes.
    pub(crate) const MAX_LEN: usize = 6;
    /// kube-proxy's.
    pub const KUBE: NamePrefix = NamePrefix { bytes: *b"KUBE-\0" };

    /// Checks a prefix.
    ///
    /// # Errors
    /// The name is invalid, and why.
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

/// The name of the tables of nftables mode, one per family `ip` and `ip6`. Default `proxier`.
///
/// 1 to 255 bytes without control characters, and not a name of an iptables table in nf_tables.
#[derive(Clone, Debug, PartialEq)]
pub struct TableName(Box<str>);

impl TableName {
    /// Checks a name.
    ///
    /// # Errors
    /// The tables cannot have this name, and why.
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

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Names of a proxy's objects in the kernel. By default kube-proxy's, so that one can take over from the other.
///
/// The proxy owns objects with these names and removes those that it does not need. Two proxies in one network
/// namespace are independent if their names differ and each lists the other's device in
/// [`other_devices`](KernelNames::other_devices). The same bit of the packet mark means "masquerade" in both
/// ([`MarkBit`](super::MarkBit)), which is harmless.
///
/// If both are asked for the same address and port, the proxy that serves it keeps it. The other one reports it as
/// refused and leaves it alone. It recognizes addresses on another proxy's device, and Frontends in another proxy's
/// table of nf_tables. If both had it already, the smaller name of device or table keeps it. A node port that two
/// proxies in IPVS mode serve is not recognized.
///
/// iptables mode always uses kube-proxy's own names (`KUBE-SVC-…`, `KUBE-SERVICES`) instead of the prefix. Two proxies
/// in iptables mode, or one and a kube-proxy, cannot share a network namespace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KernelNames {
    /// The dummy device to which IPVS mode binds addresses. Default `kube-ipvs0`. If a device of another type has this
    /// name, it is not changed and passes fail.
    pub device: InterfaceName,
    /// Devices of other proxies in this network namespace. Their addresses belong to other Services, so no node ports
    /// are served on them. `kube-ipvs0` is always included. Default empty.
    pub other_devices: BTreeSet<InterfaceName>,
    /// Prefix of the names of sets and chains, in IPVS mode. Default `KUBE-`.
    pub prefix: NamePrefix,
    /// Name of the tables of nftables mode; those of IPVS mode have the suffix `-ipvs`. Default `proxier`. Another
    /// program's table with this name is not changed, and its family is not served.
    pub table: TableName,
}

impl KernelNames {
    /// kube-proxy's device.
    pub(crate) const DEVICE: &str = "kube-ipvs0";

    /// Name of the tables of IPVS mode if nf_tables guards its virtual servers ([`RulesBy::Nftables`](super::RulesBy)):
    /// `proxier-ipvs` by default.
    pub(crate) fn ipvs_table(&self) -> TableName {
        self.table_with("-ipvs")
    }

    /// Name of the fast path's table, `proxier-fast-path` by default.
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

    /// Whether a device holds addresses of Services, of this proxy or another one.
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
    fn prefixes_are_checked() {
        for good in ["KUBE-", "A-", "AGENT-", "NODE1-", "AG-6A-", "V6-", "A_B-"] {
            let prefix = NamePrefix::new(good).unwrap();
            assert_eq!((prefix.as_str(), prefix.to_string()), (good, good.to_owned()));
        }
        for bad in ["", "-", "6-", "KUBE", "AGENT1-", "kube-", "KUBE-6-", "A-6-", "-A-", "A B-", "A\0-", "É-"] {
            let error = NamePrefix::new(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{bad:?} cannot be the prefix")), "{error}");
        }
        assert_eq!(NamePrefix::default(), NamePrefix::new("KUBE-").unwrap());
        assert!(NamePrefix::new("A-").unwrap() < NamePrefix::new("AB-").unwrap());
    }

    #[test]
    fn table_names_are_checked() {
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
    fn devices_of_proxies_are_recognised() {
        let device = |name: &str| InterfaceName::new(name).unwrap();
        let error = InterfaceName::new("eth/0").unwrap_err().to_string();
        assert!(
            error.starts_with("\"eth/0\" cannot be the name of a network device: it needs 1 to 15 bytes"),
            "{error}"
        );
        let names = KernelNames { device: device("agent0"), ..KernelNames::default() };
        assert!(names.is_of_a_proxy("agent0") && names.is_of_a_proxy("kube-ipvs0"));
        assert!(!names.is_of_a_proxy("agent1") && !names.is_of_a_proxy("eth0"));
        let other_devices = [device("agent1")].into();
        assert!(KernelNames { other_devices, ..names }.is_of_a_proxy("agent1"));
    }
}
