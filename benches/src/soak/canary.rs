//! Measures all the time how long a change takes from the API server to the kernel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ipvs::{Client, VirtualServerKey};
use testkit::apiserver::ApiServer;

use super::script::{apply, slices};
use super::watchers::{Followed, Log};
use super::world::{Endpoint, Family, Host, POD_PORT, Service, State, Way};

/// Pause between two checks. Each takes the lock of IPVS and lists real servers, so a late change is checked for less and
/// less often, precise to a tenth of the time it takes.
const LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(600);

/// Changes one endpoint of one Service after the other and follows it into the kernel; returns the Services as they are in
/// the end.
///
/// A change may take `limit`. One that takes half as long again never arrives.
pub(super) fn follow(
    mut services: Vec<Service>,
    limit: Duration,
    server: Arc<ApiServer>,
    log: Arc<Log>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<Result<Vec<Service>, String>> {
    let patience = limit + limit / 2;
    std::thread::spawn(move || {
        let mut client = Client::open().map_err(|error| error.to_string())?;
        let mut turn: u16 = 0;
        while !stop.load(Ordering::Relaxed) {
            for service in &mut services {
                // Three in turn: the one before may be about to leave.
                let host = Host::Nobody(2 + 2 * (turn % 3));
                service.endpoints.truncate(1);
                service.endpoints.push(Endpoint { host, state: State::Ready });
                let Some((family, place)) =
                    Family::ALL.into_iter().find_map(|family| Some((family, service.place(Way::ClusterIp, family)?)))
                else {
                    continue;
                };
                let (key, real) = (VirtualServerKey::tcp(place), SocketAddr::new(host.address(family), POD_PORT));
                let from = log.now();
                for write in slices(service) {
                    apply(&server, &write);
                }
                let mut arrived = false;
                while !arrived && log.now().saturating_sub(from) < patience {
                    arrived = serves(&mut client, &key, real);
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
        Ok(services)
    })
}

/// Whether the kernel sends new connections to this real server.
pub(super) fn serves(client: &mut Client, key: &VirtualServerKey, real: SocketAddr) -> bool {
    client.list_real_servers(key).is_ok_and(|servers| {
        servers.iter().any(|known| {
            let key = known.server.key;
            key.addr == real.ip() && key.port == real.port() && known.server.config.weight.get() > 0
        })
    })
}
