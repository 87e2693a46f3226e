//! The sysctls that IPVS mode needs: desired value, current value, and whether it can be changed.
//!
//! Nothing is written here.

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::profile::{Family, Profile};
use crate::requirement::Need;
use crate::root::Failure;
use crate::sources::Sources;

/// How a sysctl compares to its desired value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum SysctlState {
    /// It has the desired value.
    Right,
    /// The sysctl has another value.
    Wrong,
    /// The file does not exist. Those below `net/ipv4/vs` appear in a network namespace when `ip_vs` is loaded.
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
    /// No: `/proc/sys` is mounted read-only, as in an unprivileged container. Even root cannot write it.
    ReadOnly,
    /// No: this process may not write it, but another user might.
    Denied,
    /// Not known.
    Unknown,
}

/// A sysctl that IPVS mode needs.
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
    /// The current value, if it could be read.
    pub current: Option<String>,
    /// How the two values compare.
    pub state: SysctlState,
    /// Whether this process could change it.
    pub access: Access,
}

/// Values with one blank between them.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// When a sysctl is needed.
enum When {
    Always,
    With(Family),
    StrictArp,
}

/// A sysctl that kube-proxy's IPVS mode sets: name, value, purpose, importance.
type Wish = (&'static str, &'static str, &'static str, Need, When);

const WISHES: &[Wish] = &[
    ("net/ipv4/vs/conntrack", "1", "masquerading of balanced connections", Need::Required, When::Always),
    ("net/ipv4/vs/expire_nodest_conn", "1", "connections end with their endpoint", Need::Wanted, When::Always),
    ("net/ipv4/vs/expire_quiescent_template", "1", "affinity leaves a draining endpoint", Need::Wanted, When::Always),
    ("net/ipv4/ip_forward", "1", "traffic to pods on IPv4", Need::Required, When::With(Family::Ipv4)),
    ("net/ipv6/conf/all/forwarding", "1", "traffic to pods on IPv6", Need::Wanted, When::With(Family::Ipv6)),
    ("net/ipv4/conf/all/arp_ignore", "1", "strict ARP", Need::Wanted, When::StrictArp),
    ("net/ipv4/conf/all/arp_announce", "2", "strict ARP", Need::Wanted, When::StrictArp),
];

/// Checks all sysctls that apply.
pub(crate) fn findings(sources: &Sources, profile: &Profile) -> Vec<SysctlFinding> {
    let applies = |(.., when): &&Wish| match when {
        When::Always => true,
        When::With(family) => profile.families.has(*family),
        When::StrictArp => profile.strict_arp,
    };
    WISHES.iter().filter(|wish| !profile.is_own() && applies(wish)).map(|wish| look_at(sources, wish)).collect()
}

fn look_at(sources: &Sources, (name, wanted, why, need, _): &Wish) -> SysctlFinding {
    const LARGEST: u64 = 256;
    let path = format!("/proc/sys/{name}");
    let (current, state) = match sources.running_text(&path, LARGEST) {
        Ok(text) if joined(&text) == *wanted => (Some(joined(&text)), SysctlState::Right),
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
        name: (*name).to_owned(),
        wanted: (*wanted).to_owned(),
        why: (*why).to_owned(),
        need: *need,
        current,
        state,
        access,
    }
}
