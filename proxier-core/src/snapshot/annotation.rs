//! The load-balancing annotations of a Service, one row each.

use ipvs::model::{Scheduler, SchedulerFlags};

use super::{Balancing, ZoneWeights, forwarding};
use crate::flags::flags;
use crate::named::one_of;
use crate::objects::IpvsDefaultsObject;

/// Defines the set of permissions: constant, value, name in a configuration, what it allows to decide.
macro_rules! permissions {
    ($($flag:ident = $value:literal, $name:literal $about:literal;)*) => {
        flags! {
            /// Settings that annotations of Services, EndpointSlices and Nodes may override.
            pub struct MayAskFor(u16) {
                $(#[doc = concat!("`", $name, "`: ", $about, ".")] const $flag = $value;)*
            }
        }

        impl MayAskFor {
            /// All settings with their names in configuration files.
            pub const NAMED: &'static [(&'static str, MayAskFor)] = &[$(($name, MayAskFor::$flag)),*];
            /// Why another name is rejected.
            pub(crate) const UNKNOWN: &'static str = concat!("not ", one_of!($($name),*), "; left out");
        }
    };
}

permissions! {
    SCHEDULER = 1, "scheduler" "the scheduler and its flags";
    PERSISTENCE = 2, "persistence" "how long clients stay with their endpoints";
    WEIGHTS = 8, "weights" "weights of endpoints, by slice and by zone";
    NODE_WEIGHTS = 16, "node-weights" "weights of endpoints by node; not by default, since a watch of all Nodes has its cost";
    FORWARDING = 32, "forwarding" "how packets for external addresses reach endpoints";
    THRESHOLDS = 64, "thresholds" "limits of connections";
    DRAIN = 128, "drain" "how long endpoints that leave keep connections";
}

impl MayAskFor {
    /// The setting with this name in configuration files, or `None`.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(named, _)| *named == name).map(|(_, setting)| *setting)
    }
}

/// Receives an invalid value and the reason.
pub(super) type Reject<'a> = dyn FnMut(&str, &'static str) + 'a;

/// The longest persistence that ipvsadm accepts: 31 days. Also the longest drain time of an endpoint.
const MAX_SECS: u32 = 31 * 86_400;

/// Defines the table: constant, annotation, value in words, name in kube-router, field of the configuration with its
/// value, part of [`Balancing`], permission, title, and how the value is parsed.
macro_rules! annotations {
    ($($row:ident = $name:literal $star:literal, $value:literal, [$($alias:literal)?], $field:literal $default:expr, $part:ident, $needs:ident, $title:literal,
       $parse:expr;)*) => {
        /// A load-balancing annotation of a Service. Those with a star also work in nftables mode; iptables and
        /// userspace mode ignore all.
        ///
        /// | annotation | value | also read |
        /// | --- | --- | --- |
        $(#[doc = concat!("| `", $name, "`", $star, " | ", $value, " | ", $("`", $alias, "`",)? " |")])*
        #[derive(Debug)]
        pub struct Annotation {
            /// The name.
            pub name: &'static str,
            /// kube-router's name for it.
            alias: Option<&'static str>,
            /// The configuration field with the same meaning for other Services.
            pub field: &'static str,
            /// The setting in words.
            pub title: &'static str,
            /// Permission that a Service needs to set it.
            pub needs: MayAskFor,
            pub(super) parse: fn(&mut Balancing, &str, &mut Reject<'_>),
            pub(super) default: fn(&IpvsDefaultsObject) -> Option<String>,
            is_set: fn(&Balancing) -> bool,
            copy: fn(&mut Balancing, &Balancing),
        }

        impl Annotation {
            $(
                #[doc = concat!("`", $name, "`.")]
                pub const $row: &'static Annotation = &Annotation {
                    name: $name,
                    alias: [$(Some($alias),)? None][0],
                    field: $field,
                    title: $title,
                    needs: MayAskFor::$needs,
                    parse: $parse,
                    default: $default,
                    is_set: |of| of.$part != Balancing::default().$part,
                    copy: |to, from| to.$part.clone_from(&from.$part),
                };
            )*
            /// All of them.
            pub const ALL: &'static [&'static Annotation] = &[$(Annotation::$row),*];
        }

        /// All of them, with the star and the value in words.
        #[cfg(feature = "testing")]
        const IN_WORDS: &[(&Annotation, &str, &str)] = &[$((Annotation::$row, $star, $value)),*];
    };
}

annotations! {
    SCHEDULER = "proxier/scheduler" " *", "a scheduler of IPVS: `rr`, `wlc`, `mh`, …", ["kube-router.io/service.scheduler"],
        "ipvs.scheduler" |_| None, scheduler, SCHEDULER, "scheduler",
        |of, text, reject| {
            let known = |of: &Scheduler| Scheduler::KNOWN.contains(of) && *of != Scheduler::None;
            let reason = "not a scheduler of IPVS; the configured one counts";
            of.scheduler = or_reject(text.parse().ok().filter(known), text, reason, reject);
        };
    SCHEDULER_FLAGS = "proxier/scheduler-flags" " *", "`sh-port`, `sh-fallback`, `mh-port`, `mh-fallback`, `flag-1` to `flag-3`, with commas",
        ["kube-router.io/service.schedflags"], "ipvs.defaults.schedulerFlags" |of| of.scheduler_flags.clone(),
        scheduler_flags, SCHEDULER, "scheduler's flags",
        |of, text, reject| {
            let reason = "not flags of a scheduler (sh-port, mh-fallback, flag-1, …); the usual ones count";
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            let flags = names.map(|name| SchedulerFlags::by_name(name).ok()).collect();
            of.scheduler_flags = or_reject(flags, text, reason, reject);
        };
    PERSISTENCE = "proxier/persistence-seconds" " *", "1 to 2678400: a client stays with its endpoint, with any `sessionAffinity`", [],
        "ipvs.defaults.persistenceSeconds" |of| number(of.persistence_seconds), persistence_secs, PERSISTENCE, "session affinity",
        |of, text, reject| {
            let secs = text.parse().ok().filter(|secs| (1..=MAX_SECS).contains(secs));
            of.persistence_secs = or_reject(secs, text, "not 1 to 2678400 seconds; sessionAffinity counts", reject);
        };
    ZONE_WEIGHTS = "proxier/zone-weights" " *",
        "`zone-a=3, zone-b=1, *=0`: weights of endpoints by zone, 0 to 65535; 1 for zones that are not named", [],
        "ipvs.defaults.zoneWeights" |of| of.zone_weights.clone(), zone_weights, WEIGHTS, "weights",
        |of, text, reject| of.zone_weights = ZoneWeights::check(text, reject);
    FORWARDING = "proxier/forwarding" "",
        "`masquerade`, `direct-route`, `ipip`, `gre`, `gue:PORT`: how packets for external addresses reach endpoints",
        ["kube-router.io/service.dsr"], "ipvs.defaults.forwarding" |of| of.forwarding.clone(), forwarding, FORWARDING, "forwarding",
        |of, text, reject| of.forwarding = forwarding::parse(text).map_err(|reason| reject(text, reason)).ok();
    MAX_CONNECTIONS = "proxier/max-connections" "",
        "connections above which an endpoint gets no new ones, at each address of the Service, until it has less than three quarters of them", [],
        "ipvs.defaults.maxConnections" |of| number(of.max_connections), max_connections, THRESHOLDS, "connections of an endpoint",
        |of, text, reject| {
            of.max_connections = or_reject(text.parse().ok(), text, "not a number from 1; no limit", reject);
        };
    DRAIN = "proxier/drain-seconds" " *", "0 to 2678400: how long an endpoint that leaves keeps its connections of TCP", [],
        "ipvs.defaults.drainSeconds" |of| number(of.drain_seconds), drain_secs, DRAIN, "drain time of TCP",
        |of, text, reject| {
            let secs = text.parse().ok().filter(|secs| *secs <= MAX_SECS);
            of.drain_secs = or_reject(secs, text, "not 0 to 2678400 seconds; the configured time counts", reject);
        };
}

fn or_reject<T>(value: Option<T>, text: &str, reason: &'static str, reject: &mut Reject<'_>) -> Option<T> {
    if value.is_none() {
        reject(text, reason);
    }
    value
}

fn number(of: Option<i64>) -> Option<String> {
    of.map(|number| number.to_string())
}

impl Annotation {
    /// The names that are read; the first one takes precedence.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.alias)
    }

    /// Whether `of` has a value for this one.
    pub fn is_set(&self, of: &Balancing) -> bool {
        (self.is_set)(of)
    }

    pub(crate) fn copy(&self, to: &mut Balancing, from: &Balancing) {
        (self.copy)(to, from);
        if self.name == Annotation::FORWARDING.name {
            to.forwarding_asked_by = from.forwarding_asked_by;
        }
    }

    /// The page of the documentation about annotations, for a test that compares them.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn documentation() -> String {
        let mut text = "# Annotations\n\nOf a Service, except where the table names another object. Those with a star work in nftables mode \
            too; iptables and userspace mode ignore all of them. A value from `ipvs.allowedAnnotations` must permit each. \
            [What they do](../policy.md).\n\n| annotation | value | permission | also read |\n| --- | --- | --- | --- |\n"
            .to_owned();
        for (annotation, star, value) in IN_WORDS {
            let named = MayAskFor::NAMED.iter().find(|(_, needs)| *needs == annotation.needs);
            let permission = named.map_or("", |(name, _)| *name);
            let alias = annotation.alias.map(|alias| format!("`{alias}`")).unwrap_or_default();
            text += &format!("| `{}`{star} | {value} | `{permission}` | {alias} |\n", annotation.name);
        }
        text += "| `proxier/weights` *, of an EndpointSlice | `10.0.0.1=3, 10.0.0.2=0`: weights of its endpoints, 0 to 65535 | `weights` | |\n\
            | `proxier/weight` *, of a Node, or a label of it | the weight of its endpoints, 0 to 65535 | `node-weights` | |\n\n\
            All permissions but `node-weights` are given by default.\n";
        text
    }
}
