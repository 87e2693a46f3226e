//! Sysctls that IPVS mode or a caller wants: what is wanted on this kernel, what is set, and whether it could be changed.
//!
//! Nothing is written here.

use std::borrow::Cow;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::error::{Error, ErrorKind, shown};
use crate::own::has_controls;
use crate::profile::{Families, Family, Profile};
use crate::requirement::Need;
use crate::root::Failure;
use crate::sources::Sources;
use crate::version::KernelRelease;

/// Relation of a sysctl to its wanted value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum SysctlState {
    /// The sysctl has the wanted value.
    Right,
    /// The sysctl has another value.
    Wrong,
    /// There is no such file. Those below `net/ipv4/vs` appear in a network namespace when `ip_vs` is loaded.
    Absent,
    /// The sysctl could not be read.
    Unreadable(Failure),
}

/// Whether this process could write a sysctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Access {
    /// Yes.
    Writable,
    /// No: `/proc/sys` is mounted read-only, as in a container that is not privileged. Not even root can.
    ReadOnly,
    /// No: this process may not; another user might.
    Denied,
    /// Not known.
    Unknown,
}

/// A sysctl that IPVS mode, or the profile, wants.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SysctlFinding {
    /// Path below `/proc/sys`.
    pub name: String,
    /// The value it should have.
    pub wanted: String,
    /// Purpose of the value.
    pub why: String,
    /// Importance of the value.
    pub need: Need,
    /// The value it has, when it could be read.
    pub current: Option<String>,
    /// Relation of the two values.
    pub state: SysctlState,
    /// Whether this process could change it.
    pub access: Access,
}

/// A sysctl, the value it should have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    name: Cow<'static, str>,
    value: Cow<'static, str>,
    why: Cow<'static, str>,
    need: Need,
}

impl Sysctl {
    /// A sysctl by its path below `/proc/sys`, with `/`. Required: where it has another value and cannot be written at all (`/proc/sys` is
    /// read-only), the verdict is no. Blanks between several values do not count.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequirement`] for a name with dots in place of slashes, `..`, blanks or control characters, and for an empty
    /// value.
    pub fn new(name: &str, value: &str, why: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        let refused =
            |says: &str| Error::new(ErrorKind::InvalidRequirement, format!("sysctl \"{}\"; {says}", shown(name)));
        let odd = |part: &str| matches!(part, "" | "." | "..");
        if name.len() > 255 || name.split('/').any(odd) || name.contains(char::is_whitespace) || has_controls(name) {
            return Err(refused("expected a path below /proc/sys, such as \"net/ipv4/ip_forward\""));
        }
        if !name.contains('/') && name.contains('.') {
            return Err(refused(&format!("write it with slashes: \"{}\"", shown(&name.replace('.', "/")))));
        }
        let value = joined(value);
        if value.is_empty() || has_controls(&value) {
            return Err(refused("the value it should have is empty or has control characters"));
        }
        Ok(Self { name: name.to_owned().into(), value: value.into(), why: why.into(), need: Need::Required })
    }

    /// The same, only wanted: another value is no obstacle.
    #[must_use]
    pub fn wanted(mut self) -> Self {
        self.need = Need::Wanted;
        self
    }

    /// Path below `/proc/sys`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Value it should have.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    const fn of_ipvs_mode(name: &'static str, value: &'static str, why: &'static str, need: Need) -> Self {
        Self { name: Cow::Borrowed(name), value: Cow::Borrowed(value), why: Cow::Borrowed(why), need }
    }
}

/// Values with one blank between them.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A sysctl that kube-proxy's IPVS mode sets, and the families it is for.
struct Wish {
    sysctl: Sysctl,
    applies: fn(Families, bool, Option<&KernelRelease>) -> bool,
}

const WISHES: &[Wish] = &[
    Wish {
        sysctl: Sysctl::of_ipvs_mode(
            "net/ipv4/vs/conntrack",
            "1",
            "masquerading of balanced connections",
            Need::Required,
        ),
        applies: |_, _, _| true,
    },
    Wish {
        sysctl: Sysctl::of_ipvs_mode(
            "net/ipv4/vs/conn_reuse_mode",
            "0",
            "no second of delay for a reused client port; needed from 4.1, fixed in 5.9",
            Need::Wanted,
        ),
        applies: |_, _, release| release.is_some_and(|r| r.at_least(4, 1) && !r.at_least(5, 9)),
    },
    Wish {
        sysctl: Sysctl::of_ipvs_mode(
            "net/ipv4/vs/expire_nodest_conn",
            "1",
            "connections end at once when their endpoint is gone",
            Need::Wanted,
        ),
        applies: |_, _, _| true,
    },
    Wish {
        sysctl: Sysctl::of_ipvs_mode(
            "net/ipv4/vs/expire_quiescent_template",
            "1",
            "session affinity does not stick to a draining endpoint",
            Need::Wanted,
        ),
        applies: |_, _, _| true,
    },
    Wish {
        sysctl: Sysctl::of_ipvs_mode("net/ipv4/ip_forward", "1", "traffic to pods on IPv4", Need::Required),
        applies: |families, _, _| families.has(Family::Ipv4),
    },
    Wish {
        sysctl: Sysctl::of_ipvs_mode(
            "net/ipv6/conf/all/forwarding",
            "1",
            "traffic to pods on IPv6 (kube-proxy leaves it to others)",
            Need::Wanted,
        ),
        applies: |families, _, _| families.has(Family::Ipv6),
    },
    Wish {
        sysctl: Sysctl::of_ipvs_mode(
            "net/ipv4/conf/all/arp_ignore",
            "1",
            "strict ARP: answer for an address only on its own device",
            Need::Wanted,
        ),
        applies: |_, strict_arp, _| strict_arp,
    },
    Wish {
        sysctl: Sysctl::of_ipvs_mode(
            "net/ipv4/conf/all/arp_announce",
            "2",
            "strict ARP: announce only addresses of the device itself",
            Need::Wanted,
        ),
        applies: |_, strict_arp, _| strict_arp,
    },
];

/// Looks at all sysctls that apply. Empty when the report is about a kernel that is not running.
pub(crate) fn findings(sources: &Sources, profile: &Profile) -> Vec<SysctlFinding> {
    if !sources.running {
        return Vec::new();
    }
    let applies =
        |wish: &&Wish| (wish.applies)(profile.wanted_families(), profile.wants_strict_arp(), sources.release.get());
    let own = profile.own_sysctls();
    let replaced = |wish: &&Wish| own.iter().any(|own| own.name == wish.sysctl.name);
    let wishes = WISHES.iter().filter(|wish| !profile.is_own() && applies(wish) && !replaced(wish));
    wishes.map(|wish| &wish.sysctl).chain(own).map(|sysctl| look_at(sources, sysctl)).collect()
}

fn look_at(sources: &Sources, wish: &Sysctl) -> SysctlFinding {
    const LARGEST: u64 = 256;
    let path = format!("/proc/sys/{}", wish.name);
    let (current, state) = match sources.running_text(&path, LARGEST) {
        Ok(text) if joined(&text) == wish.value => (Some(joined(&text)), SysctlState::Right),
        Ok(text) if text.chars().any(|c| c.is_control() && !c.is_ascii_whitespace()) => {
            (None, SysctlState::Unreadable(Failure::Garbage("not a value".to_owned())))
        }
        Ok(text) => (Some(joined(&text)), SysctlState::Wrong),
        Err(Failure::Absent) => (None, SysctlState::Absent),
        Err(failure) => (None, SysctlState::Unreadable(failure)),
    };
    let access = match sources.root.locate(&path).map(|real| access(&real, AccessFlags::W_OK)) {
        Ok(Ok(())) => Access::Writable,
        Ok(Err(Errno::EROFS)) => Access::ReadOnly,
        Ok(Err(Errno::EACCES | Errno::EPERM)) => Access::Denied,
        _ => Access::Unknown,
    };
    SysctlFinding {
        name: wish.name.to_string(),
        wanted: wish.value.to_string(),
        why: wish.why.to_string(),
        need: wish.need,
        current,
        state,
        access,
    }
}
