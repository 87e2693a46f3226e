//! Schedulers and their flags.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;
use ipvs_sys::uapi::SvcFlags;

use crate::model::{Name, OutOfRange};

macro_rules! schedulers {
    ($($(#[$doc:meta])* $scheduler:ident = $name:literal;)*) => {
        /// How new connections are distributed over real servers. Each scheduler except `none` is a kernel module
        /// `ip_vs_<name>` that the kernel loads on first use.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Scheduler {
            $( $(#[$doc])* $scheduler, )*
            /// A scheduler of another module.
            Other(Name),
        }

        impl Scheduler {
            /// All schedulers that this crate knows by name.
            pub const KNOWN: [Scheduler; 15] = [$( Scheduler::$scheduler ),*];

            /// The kernel's name.
            pub fn name(&self) -> &str {
                match self {
                    $( Scheduler::$scheduler => $name, )*
                    Scheduler::Other(name) => name.as_str(),
                }
            }
        }
    };
}

schedulers! {
    /// Round robin (`rr`).
    RoundRobin = "rr";
    /// Weighted round robin (`wrr`).
    WeightedRoundRobin = "wrr";
    /// Least connections (`lc`).
    LeastConnection = "lc";
    /// Weighted least connections (`wlc`), the default of `ipvsadm`.
    WeightedLeastConnection = "wlc";
    /// Weighted fail-over: the available real server with the highest weight (`fo`). Since Linux 3.18.
    WeightedFailover = "fo";
    /// Weighted overflow: the real server with the highest weight until it has that many connections, then the next
    /// (`ovf`). Since Linux 4.3.
    WeightedOverflow = "ovf";
    /// Locality-based least connections, by destination (`lblc`).
    LocalityLeastConnection = "lblc";
    /// Locality-based least connections with replication (`lblcr`).
    LocalityLeastConnectionReplication = "lblcr";
    /// Destination hashing (`dh`).
    DestinationHashing = "dh";
    /// Source hashing (`sh`).
    SourceHashing = "sh";
    /// Maglev hashing (`mh`): adding or removing a real server moves few clients. Since Linux 4.18.
    MaglevHashing = "mh";
    /// Shortest expected delay (`sed`).
    ShortestExpectedDelay = "sed";
    /// Never queue (`nq`).
    NeverQueue = "nq";
    /// The better of two random choices, weighted (`twos`). Since Linux 5.12.
    PowerOfTwoChoices = "twos";
    /// No scheduler (`none`): connections are not forwarded until one is set. Since Linux 4.2.
    None = "none";
}

impl Scheduler {
    /// Normalises to the form in which the kernel reports it.
    pub(crate) fn canonical(self) -> Self {
        self.name().parse().unwrap_or(self)
    }

    /// The kernel module that provides it; `None` for [`Scheduler::None`].
    pub fn module(&self) -> Option<String> {
        (*self != Scheduler::None).then(|| format!("ip_vs_{}", self.name()))
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Scheduler {
    type Err = OutOfRange;

    /// Parses the kernel's name. An unknown one becomes [`Scheduler::Other`].
    fn from_str(name: &str) -> Result<Self, OutOfRange> {
        match Self::KNOWN.iter().find(|known| known.name() == name) {
            Some(known) => Ok(*known),
            None => Name::new(name).map(Scheduler::Other),
        }
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(Scheduler, "a scheduler's name");

bitflags! {
    /// Flags whose meaning depends on the scheduler (`-b` of ipvsadm).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct SchedulerFlags: u32 {
        /// `flag-1`.
        const FLAG_1 = SvcFlags::SCHED1.bits();
        /// `flag-2`.
        const FLAG_2 = SvcFlags::SCHED2.bits();
        /// `flag-3`.
        const FLAG_3 = SvcFlags::SCHED3.bits();
    }
}

impl SchedulerFlags {
    /// `sh-fallback`: use another real server if the hashed one is not available (weight 0).
    pub const SH_FALLBACK: SchedulerFlags = SchedulerFlags::FLAG_1;
    /// `sh-port`: hash the client's port too.
    pub const SH_PORT: SchedulerFlags = SchedulerFlags::FLAG_2;
    /// `mh-fallback`: use another real server if the hashed one is not available (weight 0). Without it, draining by
    /// weight 0 loses new connections.
    pub const MH_FALLBACK: SchedulerFlags = SchedulerFlags::FLAG_1;
    /// `mh-port`: hash the client's port too.
    pub const MH_PORT: SchedulerFlags = SchedulerFlags::FLAG_2;

    /// ipvsadm's names of the set flags for this scheduler: `sh-port`, `mh-fallback`, otherwise `flag-1`.
    pub fn names(self, scheduler: Scheduler) -> Vec<&'static str> {
        let known = match scheduler {
            Scheduler::SourceHashing => ["sh-fallback", "sh-port", "flag-3"],
            Scheduler::MaglevHashing => ["mh-fallback", "mh-port", "flag-3"],
            _ => ["flag-1", "flag-2", "flag-3"],
        };
        let all = [Self::FLAG_1, Self::FLAG_2, Self::FLAG_3];
        all.into_iter().zip(known).filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| name).collect()
    }

    /// The flag with this name, for any scheduler.
    ///
    /// # Errors
    /// [`OutOfRange`] for a name that ipvsadm does not know.
    pub fn by_name(name: &str) -> Result<Self, OutOfRange> {
        match name {
            "flag-1" | "sh-fallback" | "mh-fallback" => Ok(Self::FLAG_1),
            "flag-2" | "sh-port" | "mh-port" => Ok(Self::FLAG_2),
            "flag-3" => Ok(Self::FLAG_3),
            _ => Err(OutOfRange::new(
                "scheduler flag",
                name,
                "sh-fallback, sh-port, mh-fallback, mh-port, flag-1, flag-2, flag-3",
            )),
        }
    }
}

#[cfg(feature = "serde")]
mod names {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::SchedulerFlags;
    use crate::model::Scheduler;

    /// Serialised as a list of `flag-1`, `flag-2`, `flag-3`. The scheduler-specific names can be read too.
    impl Serialize for SchedulerFlags {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(self.names(Scheduler::None))
        }
    }

    impl<'de> Deserialize<'de> for SchedulerFlags {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let names = Vec::<String>::deserialize(deserializer)?;
            names.iter().map(|name| Self::by_name(name).map_err(D::Error::custom)).collect()
        }
    }
}
