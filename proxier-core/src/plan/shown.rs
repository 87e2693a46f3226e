//! Servers in words.

use std::fmt;

use ipvs::RealServer;
use ipvs::model::{ForwardingMethod, Granularity, Persistence, RealServerConfig, VirtualServer};

use crate::config::usual_flags;

/// A virtual server's configuration: `rr`, `mh persistent 10800`.
pub(crate) struct ShownVirtual<'a>(pub(crate) &'a VirtualServer);

impl fmt::Display for ShownVirtual<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.0.config;
        write!(f, "{}", config.scheduler)?;
        // Usual values are not printed.
        if config.scheduler_flags != usual_flags(config.scheduler) {
            write!(f, " ({})", config.scheduler_flags.names(config.scheduler).join(","))?;
        }
        if config.one_packet {
            f.write_str(" one-packet")?;
        }
        if let Some(Persistence { timeout_secs, granularity, .. }) = config.persistence {
            write!(f, " persistent {timeout_secs} s")?;
            if let Granularity::Prefix(prefix) = granularity {
                write!(f, " by /{prefix}")?;
            }
        }
        Ok(())
    }
}

/// A real server's configuration: `weight 1`, `weight 3, tunnel, at most 100 connections`.
pub(crate) struct ShownReal<'a>(pub(crate) &'a RealServer);

impl fmt::Display for ShownReal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RealServerConfig { weight, forwarding_method, thresholds, .. } = &self.0.config;
        write!(f, "weight {weight}")?;
        // Usual values are not printed.
        if *forwarding_method != ForwardingMethod::Masquerade {
            write!(f, ", {forwarding_method}")?;
        }
        match (thresholds.upper(), thresholds.lower()) {
            (0, _) => Ok(()),
            (upper, 0) => write!(f, ", at most {upper} connections"),
            (upper, lower) => write!(f, ", at most {upper} connections, again below {lower}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::model::{Scheduler, SchedulerFlags, Thresholds};

    use super::*;

    #[test]
    fn only_unusual_settings_are_shown() {
        let mut server = VirtualServer::new("UDP 192.0.2.1:53".parse().unwrap(), Scheduler::MaglevHashing);
        server.config.scheduler_flags = usual_flags(Scheduler::MaglevHashing);
        assert_eq!(ShownVirtual(&server).to_string(), "mh");
        server.config.scheduler_flags = SchedulerFlags::MH_PORT;
        server.config.persistence = Some(Persistence::new(300));
        assert_eq!(ShownVirtual(&server).to_string(), "mh (mh-port) persistent 300 s");
        server.config = VirtualServer::new(server.key, Scheduler::RoundRobin).config;
        server.config.one_packet = true;
        let mut persistence = Persistence::new(300);
        persistence.granularity = Granularity::from_prefix(ipvs::model::Family::V4, 24).unwrap();
        server.config.persistence = Some(persistence);
        assert_eq!(ShownVirtual(&server).to_string(), "rr one-packet persistent 300 s by /24");

        let mut real = RealServer::new("10.244.0.1:53".parse().unwrap());
        assert_eq!(ShownReal(&real).to_string(), "weight 1");
        real.config.thresholds = Thresholds::new(100, 0).unwrap();
        assert_eq!(ShownReal(&real).to_string(), "weight 1, at most 100 connections");
        real.config.thresholds = Thresholds::new(100, 75).unwrap();
        real.config.forwarding_method = ForwardingMethod::DirectRoute;
        let method = ForwardingMethod::DirectRoute;
        assert_eq!(
            ShownReal(&real).to_string(),
            format!("weight 1, {method}, at most 100 connections, again below 75")
        );
    }
}
