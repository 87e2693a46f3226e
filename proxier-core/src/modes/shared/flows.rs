//! UDP flows that go to endpoints which do not answer any more.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::net::{FrontendKey, Protocol};
use crate::ports::UdpServices;
use crate::service::{Desired, Frontend};

/// The flows to forget after Frontends changed, in modes that translate connections: by address and port, with the endpoints
/// that may answer there from now on.
///
/// `changed`: what may have changed, each as it was. `everything`: at the start, when earlier changes are unknown. `again`:
/// addresses and ports whose flows could not be forgotten yet. `answering`: the endpoints that may answer for a Frontend.
pub(crate) fn to_forget<'a>(
    desired: &Desired,
    changed: impl Iterator<Item = (&'a FrontendKey, Option<&'a Frontend>)>,
    everything: bool,
    again: &BTreeSet<SocketAddr>,
    answering: impl Fn(&Frontend) -> BTreeSet<SocketAddr>,
) -> UdpServices {
    let mut flows = UdpServices::new();
    for (key, before) in changed {
        let (Some(place), after) = (key.udp(), desired.frontend(key)) else { continue };
        let (old, new) = (before.map(&answering), after.map(&answering).unwrap_or_default());
        // A flow that began before there was anybody to answer is not translated.
        let begins = old.as_ref().is_none_or(BTreeSet::is_empty) && !new.is_empty();
        let ends = old.is_some_and(|old| !old.is_subset(&new));
        if begins || ends {
            flows.insert(place, new);
        }
    }
    let again = again.iter().map(|place| {
        let key = FrontendKey::new(Protocol::Udp, place.ip(), place.port());
        (*place, desired.frontend(&key).map(&answering).unwrap_or_default())
    });
    // Not gone through for a change.
    let all = everything.then(|| desired.frontends()).into_iter().flatten();
    let all = all.filter_map(|frontend| Some((frontend.key.udp()?, answering(frontend))));
    for (place, answering) in all.chain(again) {
        flows.entry(place).or_insert(answering);
    }
    flows
}
