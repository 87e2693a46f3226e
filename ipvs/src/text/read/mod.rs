//! Parses one line into a statement.

mod real_server;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::Statement;
use super::error::{Error, ErrorKind};
use super::options::{Given, Line, Opt, scan};
use crate::batch::Operation;
use crate::model::{
    Family, Granularity, Name, OutOfRange, Persistence, Protocol, Scheduler, SchedulerFlags, VirtualServer,
    VirtualServerConfig, VirtualServerKey,
};

/// ipvsadm's default of `-p`, in seconds. Its manual says 300, but it uses 360.
const PERSISTENCE_SECS: u32 = 360;

/// A port as a number: 0 to 65535.
const PORT: &str = "a port from 0 to 65535";

const NAME: &str = "a name of 1 to 15 printable ASCII characters";

const FLAGS: &str = "sh-fallback, sh-port, mh-fallback, mh-port, flag-1, flag-2 or flag-3, with commas between";

const SERVICE: &str = "a virtual server: -t, -u or --sctp-service ADDRESS[:PORT], or -f MARK [-6]";

/// The options of one line.
struct Options<'a> {
    line: Line<'a>,
    given: Vec<Given<'a>>,
}

/// The statement of a line; `None` if it is empty or a comment.
pub(super) fn statement(number: usize, text: &str) -> Result<Option<(Statement, Place)>, Error> {
    let line = Line { number, text };
    let given = scan(&line)?;
    let Some(first_at) = given.first().map(|first| first.at) else { return Ok(None) };
    let options = Options { line, given };
    let command = options.command()?;
    options.check(command)?;
    let statement = options.statement(command)?;
    let at = options.service_option().map_or(first_at, |service| service.value_at);
    Ok(Some((statement, Place { at })))
}

/// Position of the virtual server in a statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    at: usize,
}

impl Place {
    pub(super) fn error(self, number: usize, text: &str, kind: ErrorKind, expected: &str) -> Error {
        let word = text.get(self.at..).unwrap_or_default();
        let word = word.split([' ', '\t', '\r']).next().unwrap_or_default();
        Line { number, text }.error(kind, self.at, word, expected)
    }
}

fn is_command(opt: Opt) -> bool {
    matches!(
        opt,
        Opt::Add | Opt::Edit | Opt::Delete | Opt::Clear | Opt::Zero | Opt::AddReal | Opt::EditReal | Opt::DeleteReal
    )
}

fn is_service(opt: Opt) -> bool {
    matches!(opt, Opt::Tcp | Opt::Udp | Opt::Sctp | Opt::Other | Opt::Fwmark)
}

fn is_method(opt: Opt) -> bool {
    matches!(opt, Opt::Masquerade | Opt::Tunnel | Opt::Route | Opt::Forward)
}

/// Whether an option fits a command.
fn belongs(opt: Opt, command: Opt) -> bool {
    let changes_service = matches!(command, Opt::Add | Opt::Edit);
    let changes_real = matches!(command, Opt::AddReal | Opt::EditReal);
    match opt {
        Opt::Tcp | Opt::Udp | Opt::Sctp | Opt::Other | Opt::Fwmark | Opt::Ipv6 => command != Opt::Clear,
        Opt::Scheduler | Opt::SchedulerFlags | Opt::Persistent | Opt::Netmask | Opt::Engine | Opt::OnePacket => {
            changes_service
        }
        Opt::Real => changes_real || command == Opt::DeleteReal,
        _ => changes_real,
    }
}

impl<'a> Options<'a> {
    fn find(&self, opt: Opt) -> Option<&Given<'a>> {
        self.given.iter().find(|given| given.opt == opt)
    }

    fn has(&self, opt: Opt) -> bool {
        self.find(opt).is_some()
    }

    fn service_option(&self) -> Option<&Given<'a>> {
        self.given.iter().find(|given| is_service(given.opt))
    }

    fn conflict(&self, given: &Given<'a>, expected: impl Into<String>) -> Error {
        self.line.error(ErrorKind::Conflict, given.at, given.written, expected)
    }

    /// The one command of the line.
    fn command(&self) -> Result<Opt, Error> {
        self.given
            .iter()
            .find(|given| is_command(given.opt))
            .map(|given| given.opt)
            .ok_or_else(|| self.line.missing("a command: -A, -E, -D, -C, -Z, -a, -e or -d"))
    }

    /// Checks that each option fits the command and none is repeated.
    fn check(&self, command: Opt) -> Result<(), Error> {
        let mut before: Vec<&Given<'a>> = Vec::with_capacity(self.given.len());
        for given in &self.given {
            let same = |other: &&&Given<'a>| {
                other.opt == given.opt
                    || [is_command, is_service, is_method].iter().any(|group| group(other.opt) && group(given.opt))
            };
            if let Some(other) = before.iter().find(same) {
                let expected = format!("no --{} after --{}", given.name, other.name);
                return Err(self.line.error(ErrorKind::Repeated, given.at, given.written, expected));
            }
            if !is_command(given.opt) && !belongs(given.opt, command) {
                let name = self.find(command).map_or("", |command| command.name);
                return Err(self.conflict(given, format!("no such option with --{name}")));
            }
            before.push(given);
        }
        Ok(())
    }

    fn bad(&self, given: &Given<'a>, expected: impl Into<String>) -> Error {
        self.line.error(ErrorKind::BadValue, given.value_at, given.value.unwrap_or_default(), expected)
    }

    fn ranged<T>(&self, given: &Given<'a>, result: Result<T, OutOfRange>, expected: &str) -> Result<T, Error> {
        result.ok().ok_or_else(|| self.bad(given, expected))
    }

    fn number<T: FromStr>(&self, given: &Given<'a>, expected: &str) -> Result<T, Error> {
        given.value.and_then(|value| value.parse().ok()).ok_or_else(|| self.bad(given, expected))
    }

    fn statement(&self, command: Opt) -> Result<Statement, Error> {
        if command == Opt::Clear {
            return Ok(Statement::Clear);
        }
        let service = match self.service_option() {
            Some(given) => self.service(given)?,
            None if command == Opt::Zero && !self.has(Opt::Ipv6) => return Ok(Statement::ZeroAll),
            None => return Err(self.line.missing(SERVICE)),
        };
        let key = service.key;
        Ok(Statement::Operation(match command {
            Opt::Add => Operation::AddVirtualServer(self.virtual_server(service)?),
            Opt::Edit => Operation::UpdateVirtualServer(self.virtual_server(service)?),
            Opt::Delete => Operation::DeleteVirtualServer(key),
            Opt::Zero => Operation::ZeroVirtualServer(key),
            Opt::AddReal => Operation::AddRealServer(key, self.real_server(&key)?),
            Opt::EditReal => Operation::UpdateRealServer(key, self.real_server(&key)?),
            _ => Operation::DeleteRealServer(key, self.real_server_key(&key)?),
        }))
    }

    fn service(&self, given: &Given<'a>) -> Result<Service, Error> {
        if given.opt == Opt::Fwmark {
            let family = if self.has(Opt::Ipv6) { Family::V6 } else { Family::V4 };
            let expected = "a firewall mark from 1 to 4294967295";
            let key = self.ranged(given, VirtualServerKey::fwmark(family, self.number(given, expected)?), expected)?;
            return Ok(Service { key, port_given: true });
        }
        if let Some(six) = self.find(Opt::Ipv6) {
            return Err(self.conflict(six, "-6 only with -f: an address says its family itself"));
        }
        let text = given.value.unwrap_or_default();
        let (protocol, text, at) = match given.opt {
            Opt::Tcp => (Protocol::Tcp, text, given.value_at),
            Opt::Udp => (Protocol::Udp, text, given.value_at),
            Opt::Sctp => (Protocol::Sctp, text, given.value_at),
            _ => {
                let (number, rest) = text
                    .split_once('/')
                    .and_then(|(number, rest)| Some((number.parse::<u8>().ok()?, rest)))
                    .ok_or_else(|| self.bad(given, "PROTOCOL/ADDRESS:PORT with a protocol from 0 to 255"))?;
                let before = text.len().saturating_sub(rest.len());
                (Protocol::from(number), rest, given.value_at.saturating_add(before))
            }
        };
        let (addr, port) = self.address(text, at)?;
        let key = VirtualServerKey::Address { protocol, addr, port: port.unwrap_or(0) };
        Ok(Service { key, port_given: port.is_some() })
    }

    /// `10.0.0.1`, `10.0.0.1:80`, `fd00::1`, `[fd00::1]:80`.
    fn address(&self, text: &str, at: usize) -> Result<(IpAddr, Option<u16>), Error> {
        const EXPECTED: &str = "an address: 10.0.0.1, 10.0.0.1:80, fd00::1 or [fd00::1]:80";
        let bad = |expected: &str| self.line.error(ErrorKind::BadValue, at, text, expected);
        if let Some(inner) = text.strip_prefix('[') {
            let (host, rest) = inner.split_once(']').ok_or_else(|| bad(EXPECTED))?;
            let addr = host.parse::<Ipv6Addr>().ok().ok_or_else(|| bad("an IPv6 address within the brackets"))?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(self.port(port, at, text)?),
                None if rest.is_empty() => None,
                None => return Err(bad(EXPECTED)),
            };
            return Ok((addr.into(), port));
        }
        if let Ok(addr) = text.parse::<Ipv6Addr>() {
            return Ok((addr.into(), None));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let Ok(addr) = host.parse::<Ipv4Addr>() else {
            if is_host_name(host) {
                let expected = "an address in numbers: host names are not looked up";
                return Err(self.line.error(ErrorKind::HostName, at, host, expected));
            }
            return Err(bad(EXPECTED));
        };
        let port = port.map(|port| self.port(port, at, text)).transpose()?;
        Ok((addr.into(), port))
    }

    /// `port` is the end of `text`, which starts at `at`.
    fn port(&self, port: &str, at: usize, text: &str) -> Result<u16, Error> {
        let at = at.saturating_add(text.len().saturating_sub(port.len()));
        port.parse().ok().ok_or_else(|| {
            if port.starts_with(|first: char| first.is_ascii_alphabetic()) {
                let expected = "a port in numbers: service names are not looked up";
                self.line.error(ErrorKind::ServiceName, at, port, expected)
            } else {
                self.line.error(ErrorKind::BadValue, at, port, PORT)
            }
        })
    }

    fn virtual_server(&self, service: Service) -> Result<VirtualServer, Error> {
        let Service { key, port_given } = service;
        let scheduler = match self.find(Opt::Scheduler) {
            Some(given) => self.ranged(given, given.value.unwrap_or_default().parse(), NAME)?,
            None => Scheduler::WeightedLeastConnection,
        };
        let config = VirtualServerConfig {
            scheduler,
            scheduler_flags: self.scheduler_flags(scheduler)?,
            persistence: self.persistence(key.family())?,
            one_packet: self.has(Opt::OnePacket),
        };
        if !port_given && config.persistence.is_none() {
            return Err(self
                .line
                .missing("a port, or -p: without a port, all ports are served, which needs persistence"));
        }
        Ok(VirtualServer { key, config })
    }

    fn scheduler_flags(&self, scheduler: Scheduler) -> Result<SchedulerFlags, Error> {
        let Some(given) = self.find(Opt::SchedulerFlags) else { return Ok(SchedulerFlags::empty()) };
        let mut flags = SchedulerFlags::empty();
        // As in strtok, empty parts are ignored.
        for name in given.value.unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
            let flag = self.ranged(given, SchedulerFlags::by_name(name), FLAGS)?;
            if !name.starts_with("flag-") && !flag.names(scheduler).contains(&name) {
                let expected = format!("flags of scheduler {scheduler}; {name} is another one's");
                return Err(self.line.error(ErrorKind::Conflict, given.value_at, name, expected));
            }
            flags |= flag;
        }
        Ok(flags)
    }

    fn persistence(&self, family: Family) -> Result<Option<Persistence>, Error> {
        let Some(persistent) = self.find(Opt::Persistent) else {
            return match self.find(Opt::Netmask).or(self.find(Opt::Engine)) {
                Some(given) => Err(self.conflict(given, "-p beside it: it says how persistence works")),
                None => Ok(None),
            };
        };
        let timeout_secs = match persistent.value {
            Some(_) => self.number(persistent, "seconds from 0 to 4294967295")?,
            None => PERSISTENCE_SECS,
        };
        let granularity = match (self.find(Opt::Netmask), family) {
            (None, _) => Granularity::Client,
            (Some(given), Family::V4) => Granularity::from_mask(self.number(given, "a mask such as 255.255.255.0")?),
            (Some(given), Family::V6) => {
                let expected = "a prefix length from 1 to 128";
                let prefix = self.number(given, expected)?;
                self.ranged(given, Granularity::from_prefix(family, prefix), expected)?
            }
        };
        let engine = match self.find(Opt::Engine) {
            Some(given) => Some(self.ranged(given, Name::new(given.value.unwrap_or_default()), NAME)?),
            None => None,
        };
        Ok(Some(Persistence { timeout_secs, granularity, engine }))
    }
}

/// A virtual server as written, and whether a port was written.
#[derive(Clone, Copy, Debug)]
struct Service {
    key: VirtualServerKey,
    port_given: bool,
}

fn is_host_name(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}
