//! The steps of a plan of IPVS mode, one for each operation.

use std::fmt;

use ipset::Element;
use ipvs::model::{
    ForwardingMethod, Granularity, Persistence, RealServerConfig, TimeoutsUpdate, VirtualServer, Weight,
};
use ipvs::{Operation as ServerOperation, RealServer, VirtualServerKey};

use super::index::usual_flags;
use super::plan::{Operation, Plan, RulesChange};
use super::sets::{NamedSet, SetKey};
use super::split;
use crate::config::KernelNames;
use crate::modes::Work;
use crate::modes::shared::names::Names;
use crate::net::FrontendKey;
use crate::plan::step::{Action, Part, Step};

impl Step {
    pub(crate) fn timeouts(update: &TimeoutsUpdate) -> Self {
        let secs = |secs: Option<u32>| secs.map_or_else(|| "kept".to_owned(), |secs| format!("{secs} s"));
        let detail = format!(
            "tcp {}, tcpfin {}, udp {}",
            secs(update.tcp_secs),
            secs(update.tcp_fin_secs),
            secs(update.udp_secs)
        );
        Step::new(Action::Change, Part::Timeouts, "ipvs").with(detail)
    }

    pub(crate) fn create_set(set: NamedSet) -> Self {
        Step::new(Action::Add, Part::Set, set).with(set.key.kind.set_type())
    }

    pub(crate) fn destroy_set(set: NamedSet) -> Self {
        Step::new(Action::Delete, Part::Set, set)
    }

    pub(crate) fn entry(action: Action, set: impl fmt::Display, element: &Element) -> Self {
        Step::new(action, Part::Entry, set).with(element)
    }

    /// An entry of this set, which has this name.
    pub(crate) fn entry_of(set: SetKey, action: Action, name: impl fmt::Display, element: &Element) -> Self {
        match split::recorded(element).filter(|_| set.kind.has_marks()) {
            Some((frontend, mark)) => {
                Step::new(action, Part::Entry, name).with(format_args!("{frontend} : {mark:#010x}"))
            }
            None => Step::entry(action, name, element),
        }
    }

    pub(crate) fn rules(change: &RulesChange) -> Self {
        let lines = change.changes.lines();
        let count = lines.len();
        let family = change.family.name();
        let mut step = Step::new(Action::Change, Part::Rules, family).with(format_args!("{count} lines differ"));
        step.lines = lines.iter().map(ToString::to_string).collect();
        step
    }

    /// `frontend`: the Frontend of its virtual server.
    pub(crate) fn server(operation: &ServerOperation, frontend: Option<FrontendKey>, names: &Names<'_>) -> Self {
        let service = || names.service_of(&frontend?);
        let real = |action, key: &VirtualServerKey, server: &RealServer| {
            let step = Step::new(action, Part::RealServer, format_args!("{key} -> {}", server.key));
            step.with(ShownReal(server)).of_service(service())
        };
        let virtual_server = |action, server: &VirtualServer| {
            Step::new(action, Part::VirtualServer, server.key).with(Shown(server)).of_service(service())
        };
        let is_asked_to_rest =
            |server: &RealServer| frontend.is_some_and(|frontend| names.rests(&frontend, &server.key.into()));
        match operation {
            ServerOperation::AddVirtualServer(server) => virtual_server(Action::Add, server),
            ServerOperation::UpdateVirtualServer(server) => virtual_server(Action::Change, server),
            ServerOperation::DeleteVirtualServer(key) => {
                Step::new(Action::Delete, Part::VirtualServer, key).of_service(service())
            }
            ServerOperation::AddRealServer(key, server) => real(Action::Add, key, server),
            // A wanted one may have weight 0 on purpose.
            ServerOperation::UpdateRealServer(key, server)
                if server.config.weight == Weight::DRAIN && !is_asked_to_rest(server) =>
            {
                real(Action::Drain, key, server)
            }
            ServerOperation::UpdateRealServer(key, server) => real(Action::Change, key, server),
            ServerOperation::DeleteRealServer(key, real) => {
                Step::new(Action::Delete, Part::RealServer, format_args!("{key} -> {real}")).of_service(service())
            }
            // Other operations are never planned.
            other => Step::new(Action::Change, Part::VirtualServer, other.subject()),
        }
    }
}

/// A virtual server's configuration: `rr`, `mh persistent 10800`.
pub(super) struct Shown<'a>(pub(super) &'a VirtualServer);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.0.config;
        write!(f, "{}", config.scheduler)?;
        // The usual ones say nothing new.
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
pub(super) struct ShownReal<'a>(pub(super) &'a RealServer);

impl fmt::Display for ShownReal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RealServerConfig { weight, forwarding_method, thresholds, .. } = &self.0.config;
        write!(f, "weight {weight}")?;
        // The usual ones say nothing new.
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

impl Work for Plan {
    fn is_empty(&self) -> bool {
        Plan::is_empty(self)
    }

    fn steps<'a>(&'a self, names: &'a Names<'a>) -> Box<dyn Iterator<Item = Step> + 'a> {
        Box::new(Plan::steps(self, names))
    }
}

impl Plan {
    /// The operations as steps, in the order in which they are carried out.
    pub fn steps<'a>(&'a self, names: &'a Names<'a>) -> impl Iterator<Item = Step> + 'a {
        self.operations().map(|operation| self.step(operation, names))
    }

    pub(crate) fn step(&self, operation: Operation<'_>, names: &Names<'_>) -> Step {
        let KernelNames { device, prefix, .. } = &self.names;
        match operation {
            Operation::Device(Action::Delete) => Step::delete_device(device),
            Operation::Device(_) => Step::device(device),
            Operation::Timeouts(update) => Step::timeouts(update),
            Operation::Set(set) => Step::create_set(set.named(*prefix)),
            Operation::Table(change) => change.step(),
            Operation::Entry(action, set, element) => {
                Step::entry_of(set, action, self.guards.name_of(set, &self.names), element)
            }
            Operation::Rules(change) => Step::rules(change),
            Operation::Server(operation) => {
                let key = operation.virtual_server();
                let frontend = FrontendKey::try_from(key).ok().or_else(|| self.split.get(&key).copied());
                Step::server(operation, frontend, names)
            }
            Operation::Address(action, address) => Step::address(action, address, device),
            Operation::Route(action, route) => Step::route(action, route),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::model::{Scheduler, SchedulerFlags, Thresholds};

    use super::*;

    #[test]
    fn only_what_is_unusual_is_said() {
        let mut server = VirtualServer::new("UDP 192.0.2.1:53".parse().unwrap(), Scheduler::MaglevHashing);
        server.config.scheduler_flags = usual_flags(Scheduler::MaglevHashing);
        assert_eq!(Shown(&server).to_string(), "mh");
        server.config.scheduler_flags = SchedulerFlags::MH_PORT;
        server.config.persistence = Some(Persistence::new(300));
        assert_eq!(Shown(&server).to_string(), "mh (mh-port) persistent 300 s");
        server.config = VirtualServer::new(server.key, Scheduler::RoundRobin).config;
        server.config.one_packet = true;
        let mut persistence = Persistence::new(300);
        persistence.granularity = Granularity::from_prefix(ipvs::model::Family::V4, 24).unwrap();
        server.config.persistence = Some(persistence);
        assert_eq!(Shown(&server).to_string(), "rr one-packet persistent 300 s by /24");

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
