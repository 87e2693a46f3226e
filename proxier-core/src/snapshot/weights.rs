//! Weights of endpoints in annotations: `zone-a=3, zone-b=1, *=0`.

use std::fmt;
use std::net::IpAddr;

use super::annotation::Reject;
use super::{Abilities, Reporter, parse_address};

/// The annotation of an EndpointSlice that sets its endpoints' weights, each 0 to 65,535: `10.0.0.1=3, 10.0.0.2=0`.
pub(super) const OF_ADDRESSES: &str = "proxier/weights";

/// Key of the weight for all other zones.
const OTHERS: &str = "*";

/// The weights of endpoints by zone. In an annotation: `zone-a=3, zone-b=1, *=0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneWeights {
    zones: Vec<(Box<str>, u16)>,
    others: u16,
}

/// Prints as in an annotation: `zone-a=3, *=1`.
impl fmt::Display for ZoneWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (zone, weight) in &self.zones {
            write!(f, "{zone}={weight}, ")?;
        }
        write!(f, "{OTHERS}={}", self.others)
    }
}

impl ZoneWeights {
    /// Weights of these zones; the first counts if a zone is repeated. `others` is the weight of all other zones, and
    /// of endpoints without a zone.
    pub fn new<'a>(zones: impl IntoIterator<Item = (&'a str, u16)>, others: u16) -> Self {
        let mut zones: Vec<(Box<str>, u16)> = zones.into_iter().map(|(zone, weight)| (zone.into(), weight)).collect();
        // The sort is stable, so the first stays first.
        zones.sort_by(|a, b| a.0.cmp(&b.0));
        zones.dedup_by(|later, first| later.0 == first.0);
        ZoneWeights { zones, others }
    }

    /// The weight of an endpoint in this zone.
    pub(crate) fn of(&self, zone: Option<&str>) -> u16 {
        let found = zone.and_then(|zone| self.zones.binary_search_by(|(known, _)| (**known).cmp(zone)).ok());
        found.and_then(|place| self.zones.get(place)).map_or(self.others, |(_, weight)| *weight)
    }

    /// Parses an annotation. Ignores and reports invalid items; `None` if none is left.
    pub(super) fn check(text: &str, reject: &mut Reject<'_>) -> Option<Self> {
        let reason = "not a zone (or *) and its weight, 0 to 65535: zone-a=3; left out";
        let items = items(text, reason, reject, |zone| (!zone.is_empty()).then_some(zone));
        let (named, others): (Vec<_>, Vec<_>) = items.into_iter().partition(|(zone, _)| *zone != OTHERS);
        if named.is_empty() && others.is_empty() {
            return None;
        }
        Some(ZoneWeights::new(named, others.first().map_or(1, |(_, weight)| *weight)))
    }
}

/// Parses the weights of a slice's endpoints, sorted by address. Ignores and reports invalid items; all of them in a
/// mode without policy.
pub(super) fn of_addresses(text: &str, abilities: Abilities, report: &mut Reporter<'_>) -> Box<[(IpAddr, u16)]> {
    let reason = "not an address and its weight, 0 to 65535: 10.0.0.1=3; left out";
    let field = format!("metadata.annotations[{OF_ADDRESSES}]");
    if abilities == Abilities::None {
        report.reject(field, text, Abilities::IGNORED);
        return Box::default();
    }
    let mut weights = items(text, reason, &mut |item, reason| report.reject(&*field, item, reason), parse_address);
    weights.sort_by_key(|(address, _)| *address);
    weights.dedup_by_key(|(address, _)| *address);
    weights.into()
}

/// A weight in annotations and labels: 0 to 65535, the numbers that ipvsadm accepts.
pub(super) fn parse(text: &str) -> Option<u16> {
    text.trim().parse().ok()
}

/// The items `KEY=WEIGHT`, separated by commas.
fn items<'a, K>(
    text: &'a str,
    reason: &'static str,
    reject: &mut Reject<'_>,
    key: impl Fn(&'a str) -> Option<K>,
) -> Vec<(K, u16)> {
    let mut items = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let read = item.split_once('=').and_then(|(left, right)| Some((key(left.trim())?, parse(right)?)));
        if read.is_none() {
            reject(item, reason);
        }
        items.extend(read);
    }
    items
}
