//! Operations of a plan, and the steps that show them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipset::Element;
use ipvs::model::{
    ForwardingMethod, Granularity, Persistence, RealServerConfig, TimeoutsUpdate, VirtualServer, Weight,
};
use ipvs::{Operation as ServerOperation, RealServer};
use nftables::TableKey;

use crate::config::{InterfaceName, usual_flags};
use crate::net::{EndpointKey, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::plan::step::{Action, Names, Part, Step};
use crate::ports::{Listener, LocalRoute, NamedSet, RouteOwner, SysctlChange, UdpServices, recorded};

/// One operation of a plan on a port.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation<'a> {
    Sysctl(&'a SysctlChange),
    Device(Action, &'a InterfaceName),
    Timeouts(&'a TimeoutsUpdate),
    Set(Action, NamedSet),
    Entry(Action, SetIn<'a>, &'a Element),
    /// An operation on a virtual server or one of its real servers, and the Frontend of the virtual server.
    Server(&'a ServerOperation, Option<FrontendKey>),
    Address(Action, IpAddr, &'a InterfaceName),
    Route(Action, RouteOwner, LocalRoute),
    /// The listener of a Frontend; `None` if it is closed.
    Listener(Action, FrontendKey, Option<&'a Listener>),
    /// A Frontend in a table or in rules, with the number of its endpoints.
    Frontend(Action, FrontendKey, usize),
    Whole(&'a dyn Whole),
    Flows(Protocol, &'a UdpServices),
}

/// One write that changes many objects: a transaction of a table, or a restore of rules.
pub(crate) trait Whole {
    fn step(&self) -> Step;
}

// Not a supertrait, here and of modes: that would put the code that prints all their types into each program.
impl fmt::Debug for dyn Whole + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.step(), f)
    }
}

/// An ipset, or the set of that kind in an nf_tables table. Prints as `KUBE-CLUSTER-IP`, or `ip proxier-ipvs
/// cluster-ip`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SetIn<'a>(pub(crate) NamedSet, pub(crate) Option<&'a TableKey>);

impl fmt::Display for SetIn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetIn(set, None) => set.fmt(f),
            SetIn(set, Some(table)) => write!(f, "{table} {}", set.key.kind.nft_name()),
        }
    }
}

/// Extracts an item from each of several operations of one kind.
macro_rules! items {
    ($operations:expr, $operation:pat => $item:expr) => {
        $operations.iter().filter_map(|of| if let $operation = *of { Some($item) } else { None }).collect::<Vec<_>>()
    };
}
pub(crate) use items;

impl Operation<'_> {
    pub(crate) fn kind(&self) -> (Part, Action) {
        match *self {
            Operation::Sysctl(_) => (Part::Sysctl, Action::Change),
            Operation::Device(action, _) => (Part::Device, action),
            Operation::Timeouts(_) => (Part::Timeouts, Action::Change),
            Operation::Set(action, _) => (Part::Set, action),
            Operation::Entry(action, ..) => (Part::Entry, action),
            Operation::Server(ServerOperation::AddVirtualServer(_), _) => (Part::VirtualServer, Action::Add),
            Operation::Server(ServerOperation::DeleteVirtualServer(_), _) => (Part::VirtualServer, Action::Delete),
            Operation::Server(ServerOperation::AddRealServer(..), _) => (Part::RealServer, Action::Add),
            Operation::Server(ServerOperation::UpdateRealServer(..), _) => (Part::RealServer, Action::Change),
            Operation::Server(ServerOperation::DeleteRealServer(..), _) => (Part::RealServer, Action::Delete),
            Operation::Server(..) => (Part::VirtualServer, Action::Change),
            Operation::Address(action, ..) => (Part::Address, action),
            Operation::Route(action, ..) => (Part::Route, action),
            Operation::Listener(action, ..) => (Part::Listener, action),
            Operation::Frontend(action, ..) => (Part::Frontend, action),
            Operation::Whole(whole) => {
                let Step { part, action, .. } = whole.step();
                (part, action)
            }
            Operation::Flows(..) => (Part::Flows, Action::Delete),
        }
    }

    /// As [`Operation::kind`], but a change to weight 0 drains. A desired real server may have that weight on purpose.
    pub(crate) fn shown_kind(&self, names: &Names<'_>) -> (Part, Action) {
        match self {
            Operation::Server(ServerOperation::UpdateRealServer(_, real), frontend)
                if real.config.weight == Weight::DRAIN
                    && !frontend.is_some_and(|frontend| names.rests(&frontend, &real.key.into())) =>
            {
                (Part::RealServer, Action::Drain)
            }
            _ => self.kind(),
        }
    }

    /// Whether both belong to the same virtual server.
    pub(crate) fn is_of_one_server(&self, other: &Operation<'_>) -> bool {
        let (Operation::Server(one, _), Operation::Server(other, _)) = (self, other) else { return false };
        one.virtual_server() == other.virtual_server()
    }

    /// Whether one call carries out both.
    pub(crate) fn is_one_call(&self, other: &Operation<'_>) -> bool {
        match (self, other) {
            (Operation::Server(..), Operation::Server(..)) => true,
            (Operation::Entry(_, set, _), Operation::Entry(_, other, _)) if set != other => false,
            _ => self.kind() == other.kind(),
        }
    }

    pub(crate) fn step(&self, names: &Names<'_>) -> Step {
        let (part, action) = self.kind();
        let step = |name: &dyn fmt::Display| Step::new(action, part, name);
        match *self {
            Operation::Sysctl(SysctlChange { path, from, to }) => {
                step(path).with(format_args!("= {to} (was {})", from.as_deref().unwrap_or("unknown")))
            }
            Operation::Device(Action::Add, name) => step(name).with("type dummy"),
            Operation::Device(_, name) => step(name),
            Operation::Timeouts(TimeoutsUpdate { tcp_secs, tcp_fin_secs, udp_secs, .. }) => {
                let secs = |secs: &Option<u32>| secs.map_or_else(|| "kept".to_owned(), |secs| format!("{secs} s"));
                let (tcp, fin, udp) = (secs(tcp_secs), secs(tcp_fin_secs), secs(udp_secs));
                step(&"ipvs").with(format_args!("tcp {tcp}, tcpfin {fin}, udp {udp}"))
            }
            Operation::Set(Action::Add, set) => step(&set).with(set.key.kind.set_type()),
            Operation::Set(_, set) => step(&set),
            Operation::Entry(_, set, element) => match recorded(element).filter(|_| set.0.key.kind.has_marks()) {
                Some((frontend, mark)) => step(&set).with(format_args!("{frontend} : {mark:#010x}")),
                None => step(&set).with(element),
            },
            Operation::Server(operation, frontend) => server(operation, frontend, names),
            Operation::Address(_, address, device) => step(&address).with(format_args!("on {device}")),
            Operation::Route(_, _, LocalRoute { network, source }) => {
                let source = source.map_or_else(String::new, |source| format!(" src {source}"));
                step(&format_args!("local {network}")).with(format_args!("dev lo{source}"))
            }
            Operation::Listener(_, key, None) => step(&key),
            Operation::Listener(_, key, Some(listener)) => {
                let endpoints: BTreeSet<EndpointKey> =
                    listener.inside.iter().chain(listener.outside.iter()).copied().gather();
                step(&key).with(format_args!("{} endpoints", endpoints.len())).of_service(names.service_of(&key))
            }
            Operation::Frontend(_, key, endpoints) => {
                let step = step(&key).of_service(names.service_of(&key));
                match (action, endpoints) {
                    (Action::Delete, _) => step,
                    (_, 1) => step.with("1 endpoint"),
                    (_, count) => step.with(format_args!("{count} endpoints")),
                }
            }
            Operation::Flows(protocol, services) => step(&protocol)
                .with(format_args!("to {} addresses and ports, if none of their endpoints answers", services.len())),
            Operation::Whole(whole) => whole.step(),
        }
    }
}

fn server(operation: &ServerOperation, frontend: Option<FrontendKey>, names: &Names<'_>) -> Step {
    let (part, action) = Operation::Server(operation, frontend).shown_kind(names);
    let step = match operation {
        ServerOperation::AddVirtualServer(server) | ServerOperation::UpdateVirtualServer(server) => {
            Step::new(action, part, server.key).with(ShownVirtual(server))
        }
        ServerOperation::AddRealServer(key, real) | ServerOperation::UpdateRealServer(key, real) => {
            Step::new(action, part, format_args!("{key} -> {}", real.key)).with(ShownReal(real))
        }
        ServerOperation::DeleteRealServer(key, real) => Step::new(action, part, format_args!("{key} -> {real}")),
        other => Step::new(action, part, other.virtual_server()),
    };
    step.of_service(frontend.and_then(|frontend| names.service_of(&frontend)))
}

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
