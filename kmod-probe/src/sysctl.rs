//! Sysctls that IPVS mode wants: what is wanted on this kernel, what is set, and whether it could be changed.
//!
//! Nothing is written here.

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

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

/// A sysctl that IPVS mode wants.
///
/// ```
/// use kmod_probe::{Access, Probe, SysctlState};
///
/// // Only `Right` needs nothing: `Absent` ones below net/ipv4/vs appear with `ip_vs`.
/// for sysctl in Probe::new().run().sysctls.iter().filter(|sysctl| sysctl.state == SysctlState::Wrong) {
///     match sysctl.access {
///         Access::Writable => println!("sysctl -w {}={} # {}", sysctl.name, sysctl.wanted, sysctl.why),
///         _ => println!("{} has to be set on the host", sysctl.name),
///     }
/// }
/// ```
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

/// A sysctl that kube-proxy's IPVS mode sets, and the families it is for.
struct Wish {
    name: &'static str,
    wanted: &'static str,
    why: &'static str,
    need: Need,
    applies: fn(Families, bool, Option<&KernelRelease>) -> bool,
}

const WISHES: &[Wish] = &[
    Wish {
        name: "net/ipv4/vs/conntrack",
        wanted: "1",
        why: "masquerading of balanced connections",
        need: Need::Required,
        applies: |_, _, _| true,
    },
    Wish {
        name: "net/ipv4/vs/conn_reuse_mode",
        wanted: "0",
        why: "no second of delay for a reused client port; needed from 4.1, fixed in 5.9",
        need: Need::Wanted,
        applies: |_, _, release| release.is_some_and(|r| r.at_least(4, 1) && !r.at_least(5, 9)),
    },
    Wish {
        name: "net/ipv4/vs/expire_nodest_conn",
        wanted: "1",
        why: "connections end at once when their endpoint is gone",
        need: Need::Wanted,
        applies: |_, _, _| true,
    },
    Wish {
        name: "net/ipv4/vs/expire_quiescent_template",
        wanted: "1",
        why: "session affinity does not stick to a draining endpoint",
        need: Need::Wanted,
        applies: |_, _, _| true,
    },
    Wish {
        name: "net/ipv4/ip_forward",
        wanted: "1",
        why: "traffic to pods on IPv4",
        need: Need::Required,
        applies: |families, _, _| families.has(Family::Ipv4),
    },
    Wish {
        name: "net/ipv6/conf/all/forwarding",
        wanted: "1",
        why: "traffic to pods on IPv6 (kube-proxy leaves it to others)",
        need: Need::Wanted,
        applies: |families, _, _| families.has(Family::Ipv6),
    },
    Wish {
        name: "net/ipv4/conf/all/arp_ignore",
        wanted: "1",
        why: "strict ARP: answer for an address only on its own device",
        need: Need::Wanted,
        applies: |_, strict_arp, _| strict_arp,
    },
    Wish {
        name: "net/ipv4/conf/all/arp_announce",
        wanted: "2",
        why: "strict ARP: announce only addresses of the device itself",
        need: Need::Wanted,
        applies: |_, strict_arp, _| strict_arp,
    },
];

/// Looks at all sysctls that apply. Empty when the report is about a kernel that is not running.
pub(crate) fn findings(sources: &Sources, profile: &Profile) -> Vec<SysctlFinding> {
    if !sources.running {
        return Vec::new();
    }
    WISHES
        .iter()
        .filter(|wish| (wish.applies)(profile.wanted_families(), profile.wants_strict_arp(), sources.release.get()))
        .map(|wish| look_at(sources, wish))
        .collect()
}

fn look_at(sources: &Sources, wish: &Wish) -> SysctlFinding {
    const LARGEST: u64 = 256;
    let path = format!("/proc/sys/{}", wish.name);
    let (current, state) = match sources.running_text(&path, LARGEST) {
        Ok(text) if text.trim() == wish.wanted => (Some(text.trim().to_owned()), SysctlState::Right),
        Ok(text) if text.chars().any(|c| c.is_control() && !c.is_ascii_whitespace()) => {
            (None, SysctlState::Unreadable(Failure::Garbage("not a value".to_owned())))
        }
        Ok(text) => (Some(text.split_whitespace().collect::<Vec<_>>().join(" ")), SysctlState::Wrong),
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
        name: wish.name.to_owned(),
        wanted: wish.wanted.to_owned(),
        why: wish.why.to_owned(),
        need: wish.need,
        current,
        state,
        access,
    }
}
