//! Continuously measures how long a change takes from the API server to the clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::Netns;
use testkit::apiserver::ApiServer;
use testkit::witness::{Conversation, Transport};

use super::script::{apply, slices};
use super::watchers::{Followed, Log};
use super::world::{Endpoint, Family, Host, PODS, Service, State, Way};
use super::{ground, held};
use crate::Failure;

/// Pause between two checks. Each is a connection, so a late change is checked less and less often, with a precision of
/// a tenth of its time.
const LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(600);
/// How long a check waits for an answer.
const LIMIT: Duration = Duration::from_secs(3);
/// Its own ports: the first one, and how many.
const PORTS: (u16, u16) = (62_000, 3_000);

/// Replaces an endpoint of one Service after another, in the clients' namespace, and connects until the new one
/// answers. Returns the Services in their final state.
///
/// A change may take `limit`. After one and a half times that it is considered lost.
pub(super) fn follow(
    clients: &Netns,
    mut services: Vec<Service>,
    limit: Duration,
    server: Arc<ApiServer>,
    log: Arc<Log>,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<Vec<Service>>, Failure> {
    let patience = limit + limit / 2;
    Ok(clients.spawn(move || {
        let (mut turn, mut looks): (u16, u16) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            for service in &mut services {
                let pod = turn % PODS;
                service.endpoints = vec![Endpoint { host: Host::Pod(pod), state: State::Ready }];
                let Some((family, place)) =
                    Family::ALL.into_iter().find_map(|family| Some((family, service.place(Way::ClusterIp, family)?)))
                else {
                    continue;
                };
                let from = log.now();
                {
                    let _alone = held::nobody_writes();
                    for write in slices(service) {
                        apply(&server, &write);
                    }
                }
                let mut arrived = false;
                while !arrived && log.now().saturating_sub(from) < patience {
                    looks = (looks + 1) % PORTS.1;
                    arrived = answers(family, PORTS.0 + looks, place).is_some_and(|name| name == pod.to_string());
                    if !arrived {
                        let waited = log.now().saturating_sub(from);
                        std::thread::sleep((waited / 10).clamp(LOOK, LONGEST_LOOK));
                    }
                }
                let took = log.now().saturating_sub(from);
                log.notes().followed.push(Followed { from, took, arrived });
                std::thread::sleep(PAUSE);
            }
            turn = turn.wrapping_add(1);
        }
        services
    })?)
}

/// Name of the server that answers there, if any.
fn answers(family: Family, port: u16, place: SocketAddr) -> Option<String> {
    let source = Some(ground::client(family, false));
    let conversation = Conversation::open_from_port(Transport::Tcp, source, port, place, LIMIT);
    Some(conversation.and_then(|mut conversation| conversation.ask()).ok()?.name)
}
