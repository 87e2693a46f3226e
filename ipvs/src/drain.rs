//! Drains a real server: stops new connections, waits until the old ones end, then deletes it.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::Error;
use crate::model::{ObservedRealServer, RealServerKey, VirtualServerKey, Weight};

/// Time between two checks of a draining real server.
const INTERVAL: Duration = Duration::from_secs(1);

impl Client {
    /// Runs one step of a drain, for programs with their own loop. Sets the weight to 0, or deletes the real server if
    /// it has no active or inactive connections or if `is_over`. Returns the real server while it drains, and `None`
    /// once it does not exist.
    ///
    /// Other settings are unchanged. Deleting cuts the remaining connections: the kernel drops their packets, or resets
    /// the connections with `expire_nodest_conn` ([`Sysctl`](crate::sysctl::Sysctl)). Persistent clients may return to
    /// a real server of weight 0: see [`Weight::DRAIN`].
    ///
    /// # Errors
    /// As [`Client::list_real_servers`] and [`Client::update_real_server`]. A server that is missing is not an error.
    pub fn drain_step(
        &mut self,
        key: &VirtualServerKey,
        real: &RealServerKey,
        is_over: bool,
    ) -> Result<Option<ObservedRealServer>, Error> {
        let step = self.try_drain_step(key, real, is_over);
        step.or_else(|error| if error.is_not_found() { Ok(None) } else { Err(error) })
    }

    fn try_drain_step(
        &mut self,
        key: &VirtualServerKey,
        real: &RealServerKey,
        is_over: bool,
    ) -> Result<Option<ObservedRealServer>, Error> {
        let mut observed = self.get_real_server(key, real)?;
        let drained = observed.server.with_weight(Weight::DRAIN);
        if observed.server != drained {
            // A connection may have started just before.
            self.update_real_server(key, &drained)?;
            observed = self.get_real_server(key, real)?;
        }
        if is_over || connections(&observed) == 0 {
            self.delete_real_server(key, real)?;
            return Ok(None);
        }
        Ok(Some(observed))
    }

    /// Drains a real server: sets its weight to 0, waits at most `patience` until it has no connections, and deletes
    /// it. Returns the number of connections that this cut; 0 also if the real server did not exist. It checks once a
    /// second and blocks the thread; [`Client::drain_step`] does not block.
    ///
    /// UDP connections count until they time out, [`Timeouts::udp_secs`](crate::model::Timeouts::udp_secs) after their
    /// last packet.
    ///
    /// # Errors
    /// As [`Client::drain_step`].
    pub fn drain_real_server(
        &mut self,
        key: &VirtualServerKey,
        real: &RealServerKey,
        patience: Duration,
    ) -> Result<u32, Error> {
        let start = Instant::now();
        loop {
            let Some(observed) = self.drain_step(key, real, false)? else { return Ok(0) };
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                self.drain_step(key, real, true)?;
                return Ok(connections(&observed));
            }
            std::thread::sleep(left.min(INTERVAL));
        }
    }
}

fn connections(real: &ObservedRealServer) -> u32 {
    real.active_connections.saturating_add(real.inactive_connections)
}
