//! Drain of a real server: no new connections, then none, then gone.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::Error;
use crate::model::{ObservedRealServer, RealServerKey, VirtualServerKey, Weight};

/// Time between two looks at a draining real server.
const INTERVAL: Duration = Duration::from_secs(1);

impl Client {
    /// One step of a drain, for programs that have a loop of their own: gives the real server weight 0, or deletes it once it has no
    /// connections, active or inactive, or `is_over`. Returns it as long as it drains; `None` when it is gone, or was not there.
    ///
    /// Its other settings stay. Connections that are left when it is deleted are cut: the kernel drops their packets, or ends them with
    /// `expire_nodest_conn` ([`Sysctl`](crate::sysctl::Sysctl)). Persistent clients may come back to a real server of weight 0: see
    /// [`Weight::DRAIN`].
    ///
    /// # Errors
    /// As [`Client::list_real_servers`] and [`Client::update_real_server`]; none because something is gone already.
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
            // A connection may have been made until now.
            self.update_real_server(key, &drained)?;
            observed = self.get_real_server(key, real)?;
        }
        if is_over || connections(&observed) == 0 {
            self.delete_real_server(key, real)?;
            return Ok(None);
        }
        Ok(Some(observed))
    }

    /// Drains a real server: weight 0, a wait until it has no connections, at most `patience`, and its deletion. Returns the number of
    /// connections that were left, and are cut; 0 also when it was not there. Looks once a second, and blocks the thread meanwhile;
    /// [`Client::drain_step`] does not.
    ///
    /// Connections of UDP count until they time out, [`Timeouts::udp_secs`](crate::model::Timeouts::udp_secs) after their last packet.
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
