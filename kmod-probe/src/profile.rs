//! The parts of the kernel that a caller needs: schedulers, set types, address families, iptables backend.

use crate::error::{Error, ErrorKind, shown};
use crate::modules::ModuleName;
use crate::requirement::Requirement;
use crate::table::{self, SCHEDULERS, SET_TYPES};

/// One address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The address families in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Families {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
    /// Both.
    Dual,
}

impl Families {
    /// Whether a family is included.
    #[must_use]
    pub fn has(self, family: Family) -> bool {
        matches!((self, family), (Self::Dual, _) | (Self::Ipv4, Family::Ipv4) | (Self::Ipv6, Family::Ipv6))
    }
}

/// The parts of the kernel that a caller needs. The default is kube-proxy's IPVS mode on an IPv4 cluster: scheduler
/// `rr`, either iptables backend, and strict ARP off. Its set types are `hash:ip`, `hash:ip,port`, `hash:ip,port,ip`,
/// `hash:ip,port,net` and `bitmap:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Empty: the default, `rr`.
    schedulers: Vec<String>,
    pub(crate) set_types: Vec<String>,
    pub(crate) families: Families,
    pub(crate) strict_arp: bool,
    pub(crate) without_iptables: bool,
    /// Subject of a profile without IPVS mode's requirements.
    subject: Option<String>,
    pub(crate) requirements: Vec<Requirement>,
}

/// Subject of a profile with IPVS mode's requirements.
pub(crate) const IPVS_MODE: &str = "IPVS mode";

impl Default for Profile {
    fn default() -> Self {
        Self {
            schedulers: Vec::new(),
            set_types: ["hash:ip", "hash:ip,port", "hash:ip,port,ip", "hash:ip,port,net", "bitmap:port"]
                .map(str::to_owned)
                .to_vec(),
            families: Families::Ipv4,
            strict_arp: false,
            without_iptables: false,
            subject: None,
            requirements: Vec::new(),
        }
    }
}

impl Profile {
    /// A profile without the requirements of IPVS mode, to which you add your own with [`Profile::require`]. `subject`
    /// names the verdict in reports: `flow offload: yes`.
    #[must_use]
    pub fn own(subject: &str) -> Self {
        Self { subject: Some(subject.to_owned()), ..Self::default() }
    }

    /// Adds a requirement. It replaces one of the same name.
    #[must_use]
    pub fn require(mut self, requirement: Requirement) -> Self {
        self.requirements.retain(|known| known.name != requirement.name);
        self.requirements.push(requirement);
        self
    }

    /// Requires a scheduler. The kernel looks for module `ip_vs_<name>` (`net/netfilter/ipvs/ip_vs_sched.c`,
    /// `ip_vs_scheduler_get`), so out-of-tree schedulers work too. The first call replaces the default `rr`; further
    /// calls add. An empty name means `rr`, as in kube-proxy's configuration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidScheduler`] unless it has 1 to 15 characters (`IP_VS_SCHEDNAME_MAXLEN` without the NUL) that
    /// are valid in a module name.
    pub fn scheduler(mut self, name: &str) -> Result<Self, Error> {
        let name = if name.is_empty() { "rr" } else { name };
        if name.len() > 15 || ModuleName::new(&format!("ip_vs_{name}")).is_err() {
            return Err(Error::new(
                ErrorKind::InvalidScheduler,
                format!("\"{}\"; expected a name of 1 to 15 letters, digits or _, such as \"rr\"", shown(name)),
            ));
        }
        if !self.schedulers.iter().any(|known| known == name) {
            self.schedulers.push(name.to_owned());
        }
        Ok(self)
    }

    /// The names of the schedulers in the kernel's own tree, from `rr` to `twos`. Not every kernel has all of them.
    pub fn known_schedulers() -> impl Iterator<Item = &'static str> {
        SCHEDULERS.into_iter()
    }

    /// Requires another set type in ipset's notation (`hash:net,port`). A type that this crate does not know is
    /// reported as unknown unless an [`ActiveProbe`](crate::ActiveProbe) confirms it.
    #[must_use]
    pub fn set_type(mut self, name: &str) -> Self {
        if !self.set_types.iter().any(|known| known == name) {
            self.set_types.push(name.to_owned());
        }
        self
    }

    /// Requires every set type that this crate knows.
    #[must_use]
    pub fn all_set_types(mut self) -> Self {
        for (name, ..) in SET_TYPES {
            self = self.set_type(name);
        }
        self
    }

    /// Sets the address families in use. Requirements of other families become optional.
    #[must_use]
    pub fn families(mut self, families: Families) -> Self {
        self.families = families;
        self
    }

    /// Also checks the sysctls of kube-proxy's `ipvs.strictARP: true`.
    #[must_use]
    pub fn strict_arp(mut self, on: bool) -> Self {
        self.strict_arp = on;
        self
    }

    /// Omits the requirements of iptables and ipset, for a program that uses nf_tables instead. Whether nf_tables works
    /// is for the program to check, with a transaction that the kernel only validates.
    #[must_use]
    pub fn without_iptables(mut self, on: bool) -> Self {
        self.without_iptables = on;
        self
    }

    /// All requirements of this profile, with modules and configuration symbols.
    #[must_use]
    pub fn requirements(&self) -> Vec<Requirement> {
        table::requirements(self)
    }

    /// Subject of the verdict.
    pub(crate) fn subject(&self) -> &str {
        self.subject.as_deref().unwrap_or(IPVS_MODE)
    }

    /// Whether the requirements of IPVS mode are omitted.
    pub(crate) fn is_own(&self) -> bool {
        self.subject.is_some()
    }

    pub(crate) fn wanted_schedulers(&self) -> impl Iterator<Item = &str> {
        let default = self.schedulers.is_empty().then_some("rr");
        self.schedulers.iter().map(String::as_str).chain(default)
    }
}
