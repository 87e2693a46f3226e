//! Parts of the kernel that a caller wants to use: schedulers, set types, address families, iptables backend.

use crate::error::{Error, ErrorKind, shown};
use crate::modules::ModuleName;
use crate::requirement::{Backend, Requirement};
use crate::sysctl::Sysctl;
use crate::table::{self, SCHEDULERS, SET_TYPES};
use crate::version::{IpsetVersion, KernelRelease};

/// One address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The address families that are used.
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
    /// Whether a family is among them.
    #[must_use]
    pub fn has(self, family: Family) -> bool {
        matches!((self, family), (Self::Dual, _) | (Self::Ipv4, Family::Ipv4) | (Self::Ipv6, Family::Ipv6))
    }
}

/// The name of an IPVS scheduler such as `rr`: the kernel looks for module `ip_vs_<name>`
/// (`net/netfilter/ipvs/ip_vs_sched.c`, `ip_vs_scheduler_get`), so out-of-tree ones are names too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct Scheduler(String);

impl Scheduler {
    /// Checks a name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidScheduler`] unless it is 1 to 15 characters (`IP_VS_SCHEDNAME_MAXLEN` less the closing NUL)
    /// that may stand in a module name.
    pub fn new(name: &str) -> Result<Self, Error> {
        let fits = (1..=15).contains(&name.len()) && ModuleName::new(&format!("ip_vs_{name}")).is_ok();
        if !fits {
            return Err(Error::new(
                ErrorKind::InvalidScheduler,
                format!("\"{}\"; expected a name of 1 to 15 letters, digits or _, such as \"rr\"", shown(name)),
            ));
        }
        Ok(Self(name.to_owned()))
    }

    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names of the schedulers in the kernel's own tree, from `rr` to `twos`. Not every kernel has them all.
    pub fn known() -> impl Iterator<Item = &'static str> {
        SCHEDULERS.iter().map(|(name, ..)| *name)
    }
}

impl TryFrom<String> for Scheduler {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(&name)
    }
}

impl From<Scheduler> for String {
    fn from(scheduler: Scheduler) -> Self {
        scheduler.0
    }
}

/// Parts of the kernel that are going to be used. The default is those of kube-proxy's IPVS mode on an IPv4 cluster: scheduler `rr`, the set
/// types `hash:ip`, `hash:ip,port`, `hash:ip,port,ip`, `hash:ip,port,net` and `bitmap:port`, whichever iptables backend
/// the kernel has, strict ARP off, and no `ipset` program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    schedulers: Vec<Scheduler>,
    scheduler_is_default: bool,
    set_types: Vec<String>,
    families: Families,
    backend: Option<Backend>,
    ipset_version: Option<IpsetVersion>,
    strict_arp: bool,
    without_iptables: bool,
    /// Subject of a profile that has none of IPVS mode's requirements.
    subject: Option<String>,
    requirements: Vec<Requirement>,
    sysctls: Vec<Sysctl>,
}

/// Subject of a profile with IPVS mode's requirements.
pub(crate) const IPVS_MODE: &str = "IPVS mode";

impl Default for Profile {
    fn default() -> Self {
        Self {
            schedulers: vec![Scheduler("rr".to_owned())],
            scheduler_is_default: true,
            set_types: ["hash:ip", "hash:ip,port", "hash:ip,port,ip", "hash:ip,port,net", "bitmap:port"]
                .map(str::to_owned)
                .to_vec(),
            families: Families::Ipv4,
            backend: None,
            ipset_version: None,
            strict_arp: false,
            without_iptables: false,
            subject: None,
            requirements: Vec::new(),
            sysctls: Vec::new(),
        }
    }
}

impl Profile {
    /// A profile of the caller's own, without the requirements of IPVS mode: only what [`Profile::require`] and [`Profile::sysctl`] add is
    /// looked for. `subject` is the verdict's, in reports: `flow offload: yes`.
    #[must_use]
    pub fn own(subject: &str) -> Self {
        Self { subject: Some(subject.to_owned()), ..Self::default() }
    }

    /// Adds a requirement, judged and reported as those of IPVS mode are. It takes the place of one of the same name.
    #[must_use]
    pub fn require(mut self, requirement: Requirement) -> Self {
        self.requirements.retain(|known| known.name != requirement.name);
        self.requirements.push(requirement);
        self
    }

    /// Wants a sysctl, judged and reported as those of IPVS mode are. It takes the place of one of the same name.
    #[must_use]
    pub fn sysctl(mut self, sysctl: Sysctl) -> Self {
        self.sysctls.retain(|known| known.name() != sysctl.name());
        self.sysctls.push(sysctl);
        self
    }

    /// Requires a scheduler. The first call replaces the default `rr`, further calls add. Empty means `rr`, as it does
    /// in kube-proxy's configuration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidScheduler`].
    pub fn scheduler(mut self, name: &str) -> Result<Self, Error> {
        let scheduler = Scheduler::new(if name.is_empty() { "rr" } else { name })?;
        if std::mem::take(&mut self.scheduler_is_default) {
            self.schedulers.clear();
        }
        if !self.schedulers.contains(&scheduler) {
            self.schedulers.push(scheduler);
        }
        Ok(self)
    }

    /// Requires one more set type, written as ipset writes it (`hash:net,port`). One that no kernel of this crate's
    /// table has is reported as unknown unless an [`ActiveProbe`](crate::ActiveProbe) knows it.
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

    /// Says which address families are used. What the other family needs is then only wanted.
    #[must_use]
    pub fn families(mut self, families: Families) -> Self {
        self.families = families;
        self
    }

    /// Insists on one iptables backend. Without this either will do.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Says that the `ipset` program is used and what `ipset --version` printed. Programs that talk netlink themselves
    /// leave this out; then no version is asked for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidIpsetVersion`].
    pub fn ipset_output(mut self, output: &[u8]) -> Result<Self, Error> {
        self.ipset_version = Some(IpsetVersion::parse(output)?);
        Ok(self)
    }

    /// Also wants the sysctls of kube-proxy's `ipvs.strictARP: true`.
    #[must_use]
    pub fn strict_arp(mut self, on: bool) -> Self {
        self.strict_arp = on;
        self
    }

    /// Says that the program needs neither iptables nor ipset, because it has tables of nf_tables do what their rules and sets do:
    /// what these need is left out. Whether nf_tables does is for the program to ask, by a transaction that the kernel only checks.
    #[must_use]
    pub fn without_iptables(mut self, on: bool) -> Self {
        self.without_iptables = on;
        self
    }

    /// The table behind a report: everything this profile needs from a kernel of this release, with modules,
    /// configuration symbols and upstream versions. Without a release, rows that only old kernels have are left out.
    #[must_use]
    pub fn requirements(&self, release: Option<&KernelRelease>) -> Vec<Requirement> {
        table::requirements(self, release)
    }

    /// Subject of the verdict.
    pub(crate) fn subject(&self) -> &str {
        self.subject.as_deref().unwrap_or(IPVS_MODE)
    }

    /// Whether the requirements of IPVS mode are left out.
    pub(crate) fn is_own(&self) -> bool {
        self.subject.is_some()
    }

    pub(crate) fn own_requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    pub(crate) fn own_sysctls(&self) -> &[Sysctl] {
        &self.sysctls
    }

    pub(crate) fn wanted_schedulers(&self) -> &[Scheduler] {
        &self.schedulers
    }

    pub(crate) fn wanted_set_types(&self) -> &[String] {
        &self.set_types
    }

    pub(crate) fn wanted_families(&self) -> Families {
        self.families
    }

    pub(crate) fn wanted_backend(&self) -> Option<Backend> {
        self.backend
    }

    pub(crate) fn used_ipset(&self) -> Option<&IpsetVersion> {
        self.ipset_version.as_ref()
    }

    pub(crate) fn goes_without_iptables(&self) -> bool {
        self.without_iptables
    }

    pub(crate) fn wants_strict_arp(&self) -> bool {
        self.strict_arp
    }
}
