//! What a Service says of how its connections are shared out, by annotations.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipvs::model::{Family as KernelFamily, Granularity, Scheduler, SchedulerFlags};

use super::Reporter;
use crate::net::Protocol;

/// How a Service's connections are shared out among its endpoints, where that differs from the configuration. Used by IPVS mode;
/// other modes ignore it.
///
/// | annotation | value | also read |
/// | --- | --- | --- |
/// | `proxier/scheduler` | a scheduler of IPVS: `rr`, `wlc`, `mh`, … | `kube-router.io/service.scheduler` |
/// | `proxier/scheduler-flags` | `sh-port`, `sh-fallback`, `mh-port`, `mh-fallback`, `flag-1` to `flag-3`, with commas | `kube-router.io/service.schedflags` |
/// | `proxier/persistence-seconds` | 1 to 2678400: a client stays with its endpoint, whatever `sessionAffinity` says | |
/// | `proxier/persistence-prefix-ipv4`, `-ipv6` | 0 to 32, 1 to 128: clients of one network count as one | |
/// | `proxier/one-packet` | `true`: each datagram for itself, for ports of UDP | |
///
/// The first column counts when both are there. What cannot be is reported, and the configuration counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Balancing {
    /// The scheduler.
    pub scheduler: Option<Scheduler>,
    /// Its flags. `None`: those that are usual for the scheduler.
    pub scheduler_flags: Option<SchedulerFlags>,
    /// How long a client stays with its endpoint after its last connection, in seconds.
    pub persistence_secs: Option<u32>,
    /// Which clients of IPv4 count as one.
    pub granularity_v4: Option<Granularity>,
    /// Which clients of IPv6 count as one.
    pub granularity_v6: Option<Granularity>,
    /// Whether each UDP datagram is scheduled for itself.
    pub one_packet: bool,
}

const SCHEDULER: &str = "proxier/scheduler";
const FLAGS: &str = "proxier/scheduler-flags";
const PERSISTENCE: &str = "proxier/persistence-seconds";
const PREFIX_V4: &str = "proxier/persistence-prefix-ipv4";
const PREFIX_V6: &str = "proxier/persistence-prefix-ipv6";
const ONE_PACKET: &str = "proxier/one-packet";

/// Names of kube-router.
const ALIASES: [(&str, &str); 2] =
    [(SCHEDULER, "kube-router.io/service.scheduler"), (FLAGS, "kube-router.io/service.schedflags")];

/// The longest persistence that ipvsadm accepts: 31 days.
const MAX_PERSISTENCE_SECS: u32 = 31 * 86_400;

/// The annotations of one Service.
struct Annotations<'a, 'r> {
    all: &'a BTreeMap<String, String>,
    report: &'a mut Reporter<'r>,
}

impl<'a> Annotations<'a, '_> {
    /// The name under which it is there, and its value without blanks around.
    fn get(&self, name: &'static str) -> Option<(&'static str, &'a str)> {
        let alias = ALIASES.iter().filter(|(ours, _)| *ours == name).map(|(_, theirs)| *theirs);
        let found = [name].into_iter().chain(alias).find_map(|name| Some((name, self.all.get(name)?)));
        found.map(|(name, value)| (name, value.trim()))
    }

    fn read<T>(&mut self, name: &'static str, reason: &'static str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (name, value) = self.get(name)?;
        let parsed = parse(value);
        if parsed.is_none() {
            self.reject(name, value, reason);
        }
        parsed
    }

    fn reject(&mut self, name: &str, value: &str, reason: &'static str) {
        self.report.reject(format!("metadata.annotations[{name}]"), value, reason);
    }
}

fn flags(text: &str) -> Option<SchedulerFlags> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(|name| SchedulerFlags::by_name(name).ok()).collect()
}

impl Balancing {
    /// Reads the annotations of a Service with ports of these protocols. `None`: nothing differs from the configuration.
    pub(super) fn check(
        annotations: &BTreeMap<String, String>,
        protocols: impl IntoIterator<Item = Protocol>,
        has_affinity: bool,
        report: &mut Reporter<'_>,
    ) -> Option<Arc<Self>> {
        // Most Services have none.
        let is_one = |name: &String| name.starts_with("proxier/") || ALIASES.iter().any(|(_, theirs)| name == theirs);
        if !annotations.keys().any(is_one) {
            return None;
        }
        let mut given = Annotations { all: annotations, report };
        let scheduler = given.read(SCHEDULER, "not a scheduler of IPVS; the configured one counts", |text| {
            text.parse().ok().filter(|scheduler| Scheduler::KNOWN.contains(scheduler) && *scheduler != Scheduler::None)
        });
        let scheduler_flags = given.read(
            FLAGS,
            "not flags of a scheduler (sh-port, mh-fallback, flag-1, …); the usual ones count",
            flags,
        );
        let persistence_secs = given.read(PERSISTENCE, "not 1 to 2678400 seconds; sessionAffinity counts", |text| {
            text.parse().ok().filter(|secs| (1..=MAX_PERSISTENCE_SECS).contains(secs))
        });
        let of = |family| move |text: &str| Granularity::from_prefix(family, text.parse().ok()?).ok();
        let mut granularity_v4 =
            given.read(PREFIX_V4, "not 0 to 32; each client counts for itself", of(KernelFamily::V4));
        let mut granularity_v6 =
            given.read(PREFIX_V6, "not 1 to 128; each client counts for itself", of(KernelFamily::V6));
        if persistence_secs.is_none() && !has_affinity {
            for (name, granularity) in [(PREFIX_V4, &mut granularity_v4), (PREFIX_V6, &mut granularity_v6)] {
                if granularity.take().is_some() {
                    let value = given.get(name).map(|(_, value)| value).unwrap_or_default();
                    given.reject(name, value, "needs session affinity or persistence-seconds; ignored");
                }
            }
        }
        let one_packet = given.read(ONE_PACKET, "neither true nor false; taken as false", |text| text.parse().ok());
        let mut one_packet = one_packet.unwrap_or_default();
        if one_packet && !protocols.into_iter().any(|protocol| protocol == Protocol::Udp) {
            given.reject(ONE_PACKET, "true", "needs a port of UDP; ignored");
            one_packet = false;
        }
        let balancing =
            Balancing { scheduler, scheduler_flags, persistence_secs, granularity_v4, granularity_v6, one_packet };
        (balancing != Balancing::default()).then(|| Arc::new(balancing))
    }
}
