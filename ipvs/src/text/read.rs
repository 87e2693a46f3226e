//! Reads a line of ipvsadm's options, as popt does.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use super::Statement;
use crate::batch::Operation;
use crate::model::{
    Family, ForwardingMethod, Granularity, Name, Persistence, Protocol, RealServer, RealServerConfig, RealServerKey,
    Scheduler, SchedulerFlags, Thresholds, Tunnel, TunnelFlags, TunnelKind, VirtualServer, VirtualServerConfig,
    VirtualServerKey, Weight,
};

/// ipvsadm's default of `-p`, in seconds. Its manual says 300, but it uses 360.
const PERSISTENCE_SECS: u32 = 360;

const COMMAND: &str = "a command: -A, -E, -D, -C, -Z, -a, -e or -d";
const FLAGS: &str = "sh-fallback, sh-port, mh-fallback, mh-port, flag-1, flag-2 or flag-3, with commas between";
const NAME: &str = "a name of 1 to 15 printable ASCII characters";
const OPTION: &str = "an option of -A, -E, -D, -C, -Z, -a, -e or -d";
const PORT: &str = "a port from 0 to 65535";

/// Characters of the wrong text that an error quotes.
const SHOWN: usize = 60;

/// A mistake in a text.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    line: usize,
    found: String,
    expected: String,
}

impl Error {
    /// `found` is empty where something is missing.
    pub(super) fn new(line: usize, found: impl fmt::Display, expected: impl Into<String>) -> Self {
        let found = found.to_string();
        let mut short: String = found.chars().take(SHOWN).collect();
        if short.len() < found.len() {
            short.push('…');
        }
        Error { line, found: short, expected: expected.into() }
    }

    /// Line, from 1.
    pub fn line(&self) -> usize {
        self.line
    }
}

/// `line 3: found "http", expected a port in numbers: service names are not looked up`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { line, found, expected } = self;
        match found.as_str() {
            "" => write!(f, "line {line}: found nothing more, expected {expected}"),
            found => write!(f, "line {line}: found {found:?}, expected {expected}"),
        }
    }
}

netlink_batch::debug_is_message!(Error);

impl std::error::Error for Error {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// `-p`: a value unless the next word is an option.
    Perhaps,
}
use Takes::{Nothing, Perhaps, Value};

/// An option: letter, long name, what it takes, and the letters of the commands that it belongs to.
type Spec = (Option<char>, &'static str, Takes, &'static str);

const OPTIONS: [Spec; 34] = [
    (Some('A'), "add-service", Nothing, "A"),
    (Some('E'), "edit-service", Nothing, "E"),
    (Some('D'), "delete-service", Nothing, "D"),
    (Some('C'), "clear", Nothing, "C"),
    (Some('Z'), "zero", Nothing, "Z"),
    (Some('a'), "add-server", Nothing, "a"),
    (Some('e'), "edit-server", Nothing, "e"),
    (Some('d'), "delete-server", Nothing, "d"),
    (Some('t'), "tcp-service", Value, "AEDZaed"),
    (Some('u'), "udp-service", Value, "AEDZaed"),
    (None, "sctp-service", Value, "AEDZaed"),
    (None, "other-service", Value, "AEDZaed"),
    (Some('f'), "fwmark-service", Value, "AEDZaed"),
    (Some('6'), "ipv6", Nothing, "AEDZaed"),
    (Some('s'), "scheduler", Value, "AE"),
    (Some('b'), "sched-flags", Value, "AE"),
    (Some('p'), "persistent", Perhaps, "AE"),
    (Some('M'), "netmask", Value, "AE"),
    (None, "pe", Value, "AE"),
    (Some('o'), "ops", Nothing, "AE"),
    (Some('r'), "real-server", Value, "aed"),
    (Some('m'), "masquerading", Nothing, "ae"),
    (Some('i'), "ipip", Nothing, "ae"),
    (Some('g'), "gatewaying", Nothing, "ae"),
    (None, "forward", Value, "ae"),
    (Some('w'), "weight", Value, "ae"),
    (Some('x'), "u-threshold", Value, "ae"),
    (Some('y'), "l-threshold", Value, "ae"),
    (None, "tun-type", Value, "ae"),
    (None, "tun-port", Value, "ae"),
    (None, "tun-nocsum", Nothing, "ae"),
    (None, "tun-csum", Nothing, "ae"),
    (None, "tun-remcsum", Nothing, "ae"),
    (None, "tun-flags", Value, "ae"),
];

/// Options of which a line has at most one.
const COMMANDS: &[&str] =
    &["add-service", "edit-service", "delete-service", "clear", "zero", "add-server", "edit-server", "delete-server"];
const SERVICES: &[&str] = &["tcp-service", "udp-service", "sctp-service", "other-service", "fwmark-service"];
const METHODS: &[&str] = &["masquerading", "ipip", "gatewaying", "forward"];

/// An option of a line.
#[derive(Clone, Copy, Debug)]
struct Given<'a> {
    name: &'static str,
    /// Letters of its commands.
    commands: &'static str,
    /// The word that contains it, as written.
    word: &'a str,
    value: Option<&'a str>,
}

struct Line<'a> {
    number: usize,
    given: Vec<Given<'a>>,
}

/// The statement of a line; `None` if it is empty or a comment.
pub(super) fn statement(number: usize, text: &str) -> Result<Option<Statement>, Error> {
    let mut line = Line { number, given: Vec::with_capacity(8) };
    let mut words = text.split_ascii_whitespace().peekable();
    words.next_if_eq(&"ipvsadm");
    while let Some(word) = words.next().filter(|word| !word.starts_with('#')) {
        let mut take = |spec: Option<&Spec>, attached| {
            let (_, name, takes, commands) = *spec.ok_or_else(|| line.error(word, OPTION))?;
            let value = match (takes, attached) {
                (Nothing, Some(value)) => return Err(line.error(value, format!("no value for --{name}"))),
                (Value | Perhaps, Some(_)) => attached,
                (Nothing, None) => None,
                // A required value is the next word, even if that looks like an option, as in popt.
                (Value, None) => Some(words.next().ok_or_else(|| line.error("", format!("a value for {word}")))?),
                (Perhaps, None) => words.next_if(|next| !next.starts_with(['-', '#'])),
            };
            line.push(Given { name, commands, word, value })
        };
        if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            take(OPTIONS.iter().find(|spec| spec.1 == name), value)?;
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !matches!(*letters, "" | "-")) {
            let mut letters = letters.chars();
            while let Some(letter) = letters.next() {
                let spec = OPTIONS.iter().find(|spec| spec.0 == Some(letter));
                // The rest of the word is the value: -w5, -w=5.
                let rest = Some(letters.as_str()).filter(|rest| !rest.is_empty());
                let value = rest.filter(|_| spec.is_some_and(|spec| spec.2 != Nothing));
                take(spec, value.map(|value| value.strip_prefix('=').unwrap_or(value)))?;
                if value.is_some() {
                    break;
                }
            }
        } else {
            return Err(line.error(word, "an option such as -A, -a or -r"));
        }
    }
    if line.given.is_empty() { Ok(None) } else { line.statement().map(Some) }
}

impl<'a> Line<'a> {
    fn error(&self, found: &str, expected: impl Into<String>) -> Error {
        Error::new(self.number, found, expected)
    }

    /// Adds an option, unless one excludes the other.
    fn push(&mut self, given: Given<'a>) -> Result<(), Error> {
        let excludes = |other: &&Given<'_>| {
            let both = |group: &&[&str]| group.contains(&other.name) && group.contains(&given.name);
            other.name == given.name || [COMMANDS, SERVICES, METHODS].iter().any(both)
        };
        if let Some(other) = self.given.iter().find(excludes) {
            return Err(self.error(given.word, format!("no --{} after --{}", given.name, other.name)));
        }
        self.given.push(given);
        Ok(())
    }

    fn one_of(&self, names: &[&str]) -> Option<&Given<'a>> {
        self.given.iter().find(|given| names.contains(&given.name))
    }

    fn has(&self, name: &str) -> bool {
        self.one_of(&[name]).is_some()
    }

    /// The value of an option, as written.
    fn word(&self, name: &str) -> Option<&'a str> {
        self.one_of(&[name])?.value
    }

    /// The value of an option; `None` without the option.
    fn value<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, Error> {
        let parse = |word: &str| word.parse().ok().ok_or_else(|| self.error(word, expected));
        self.word(name).map(parse).transpose()
    }

    fn statement(&self) -> Result<Statement, Error> {
        let command = self.one_of(COMMANDS).ok_or_else(|| self.error("", COMMAND))?;
        if let Some(given) = self
            .given
            .iter()
            .find(|given| !COMMANDS.contains(&given.name) && !given.commands.contains(command.commands))
        {
            return Err(self.error(given.word, format!("no such option with --{}", command.name)));
        }
        if command.name == "clear" {
            return Ok(Statement::Clear);
        }
        let (key, has_port) = match self.one_of(SERVICES) {
            Some(given) => self.service(given)?,
            None if command.name == "zero" && !self.has("ipv6") => return Ok(Statement::ZeroAll),
            None => {
                let expected = "a virtual server: -t, -u or --sctp-service ADDRESS[:PORT], or -f MARK [-6]";
                return Err(self.error("", expected));
            }
        };
        let virtual_server = || self.virtual_server(key, has_port);
        Ok(Statement::Operation(match command.name {
            "add-service" => Operation::AddVirtualServer(virtual_server()?),
            "edit-service" => Operation::UpdateVirtualServer(virtual_server()?),
            "delete-service" => Operation::DeleteVirtualServer(key),
            "zero" => Operation::ZeroVirtualServer(key),
            "add-server" => Operation::AddRealServer(key, self.real_server(&key)?),
            "edit-server" => Operation::UpdateRealServer(key, self.real_server(&key)?),
            _ => Operation::DeleteRealServer(key, self.real_server_key(&key)?),
        }))
    }

    /// The virtual server, and whether a port is written.
    fn service(&self, given: &Given<'a>) -> Result<(VirtualServerKey, bool), Error> {
        let text = given.value.unwrap_or_default();
        if given.name == "fwmark-service" {
            let family = if self.has("ipv6") { Family::V6 } else { Family::V4 };
            let key = text.parse().ok().and_then(|mark| VirtualServerKey::fwmark(family, mark).ok());
            let key = key.ok_or_else(|| self.error(text, "a firewall mark from 1 to 4294967295"))?;
            return Ok((key, true));
        }
        if let Some(six) = self.one_of(&["ipv6"]) {
            return Err(self.error(six.word, "-6 only with -f: an address says its family itself"));
        }
        let (protocol, at) = match given.name {
            "tcp-service" => (Protocol::Tcp, text),
            "udp-service" => (Protocol::Udp, text),
            "sctp-service" => (Protocol::Sctp, text),
            _ => {
                let parts = text.split_once('/').and_then(|(number, at)| Some((number.parse::<u8>().ok()?, at)));
                let expected = "PROTOCOL/ADDRESS:PORT with a protocol from 0 to 255";
                let (number, at) = parts.ok_or_else(|| self.error(text, expected))?;
                (Protocol::from(number), at)
            }
        };
        let (addr, port) = self.address(at)?;
        Ok((VirtualServerKey::Address { protocol, addr, port: port.unwrap_or(0) }, port.is_some()))
    }

    /// `10.0.0.1`, `10.0.0.1:80`, `fd00::1`, `[fd00::1]:80`.
    fn address(&self, text: &str) -> Result<(IpAddr, Option<u16>), Error> {
        if let Ok(addr) = text.parse::<Ipv6Addr>() {
            return Ok((addr.into(), None));
        }
        let is_bracketed = text.starts_with('[');
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !is_bracketed || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let addr = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(six) => six.parse::<Ipv6Addr>().ok().map(IpAddr::from),
            None => host.parse::<Ipv4Addr>().ok().map(IpAddr::from),
        };
        let is_name = |of: char| of.is_ascii_alphanumeric() || matches!(of, '.' | '-' | '_');
        let addr = addr.ok_or_else(|| {
            let is_name = host.chars().all(is_name) && host.contains(|of: char| of.is_ascii_alphabetic());
            let names = "an address in numbers: host names are not looked up";
            let forms = "an address: 10.0.0.1, 10.0.0.1:80, fd00::1 or [fd00::1]:80";
            self.error(text, if is_name { names } else { forms })
        })?;
        let number = |port: &str| {
            let is_name = port.starts_with(|first: char| first.is_ascii_alphabetic());
            let expected = if is_name { "a port in numbers: service names are not looked up" } else { PORT };
            port.parse().ok().ok_or_else(|| self.error(text, expected))
        };
        Ok((addr, port.map(number).transpose()?))
    }

    fn virtual_server(&self, key: VirtualServerKey, has_port: bool) -> Result<VirtualServer, Error> {
        let scheduler = self.value("scheduler", NAME)?.unwrap_or(Scheduler::WeightedLeastConnection);
        let config = VirtualServerConfig {
            scheduler,
            scheduler_flags: self.scheduler_flags(scheduler)?,
            persistence: self.persistence(key.family())?,
            one_packet: self.has("ops"),
        };
        if !has_port && config.persistence.is_none() {
            let expected = "a port, or -p: without a port, all ports are served, which needs persistence";
            return Err(self.error("", expected));
        }
        Ok(VirtualServer { key, config })
    }

    fn scheduler_flags(&self, scheduler: Scheduler) -> Result<SchedulerFlags, Error> {
        let mut flags = SchedulerFlags::empty();
        // As in strtok, empty parts are ignored.
        for name in self.word("sched-flags").unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
            let flag = SchedulerFlags::by_name(name).ok().ok_or_else(|| self.error(name, FLAGS))?;
            if !name.starts_with("flag-") && !flag.names(scheduler).contains(&name) {
                let expected = format!("flags of scheduler {scheduler}; {name} is another one's");
                return Err(self.error(name, expected));
            }
            flags |= flag;
        }
        Ok(flags)
    }

    fn persistence(&self, family: Family) -> Result<Option<Persistence>, Error> {
        if !self.has("persistent") {
            return match self.one_of(&["netmask", "pe"]) {
                Some(given) => Err(self.error(given.word, "-p beside it: it says how persistence works")),
                None => Ok(None),
            };
        }
        let seconds = self.value("persistent", "seconds from 0 to 4294967295")?;
        let granularity = match family {
            Family::V4 => self.value("netmask", "a mask such as 255.255.255.0")?.map(Granularity::from_mask),
            Family::V6 => {
                let expected = "a prefix length from 1 to 128";
                let checked = |prefix| Granularity::from_prefix(family, prefix).ok();
                let out_of_range = || self.error(self.word("netmask").unwrap_or_default(), expected);
                let prefix = self.value("netmask", expected)?;
                prefix.map(|prefix| checked(prefix).ok_or_else(out_of_range)).transpose()?
            }
        };
        Ok(Some(Persistence {
            timeout_secs: seconds.unwrap_or(PERSISTENCE_SECS),
            granularity: granularity.unwrap_or(Granularity::Client),
            engine: self.value::<Name>("pe", NAME)?,
        }))
    }

    /// The key as written. Without a port, it gets the virtual server's.
    fn real_server_key(&self, service: &VirtualServerKey) -> Result<RealServerKey, Error> {
        let text = self.word("real-server").ok_or_else(|| self.error("", "a real server: -r ADDRESS[:PORT]"))?;
        let (addr, port) = self.address(text)?;
        Ok(RealServerKey { addr, port: port.or(service.port()).unwrap_or(0) })
    }

    fn real_server(&self, service: &VirtualServerKey) -> Result<RealServer, Error> {
        let mut key = self.real_server_key(service)?;
        let forwarding_method = self.forwarding_method()?;
        if !self.has("forward")
            && forwarding_method != ForwardingMethod::Masquerade
            && let Some(port) = service.port()
        {
            // As in ipvsadm, -g and -i silently replace the port with the virtual server's.
            key.port = port;
        }
        let weight = self.value::<Weight>("weight", "a weight from 0 to 2147483647")?.unwrap_or(Weight::ONE);
        let config = RealServerConfig { weight, forwarding_method, thresholds: self.thresholds()? };
        Ok(RealServer { config, ..RealServer::new(SocketAddr::new(key.addr, key.port)) })
    }

    fn thresholds(&self) -> Result<Thresholds, Error> {
        let connections = "a number of connections from 0 to 4294967295";
        let upper = self.value("u-threshold", connections)?.unwrap_or(0);
        let lower = self.value("l-threshold", connections)?.unwrap_or(0);
        let thresholds = Thresholds::new(upper, lower).ok();
        let lower = || self.word("l-threshold").unwrap_or_default();
        thresholds.ok_or_else(|| self.error(lower(), "at most the upper threshold (-x)"))
    }

    fn forwarding_method(&self) -> Result<ForwardingMethod, Error> {
        let method = match self.one_of(METHODS) {
            None | Some(Given { name: "gatewaying", .. }) => "route",
            Some(Given { name: "masquerading", .. }) => "masquerade",
            Some(Given { name: "ipip", .. }) => "tunnel",
            Some(given) => given.value.unwrap_or_default(),
        };
        let method = match method {
            "tunnel" => return self.tunnel().map(ForwardingMethod::Tunnel),
            "masquerade" => ForwardingMethod::Masquerade,
            "route" => ForwardingMethod::DirectRoute,
            "local" => ForwardingMethod::Local,
            "bypass" => ForwardingMethod::Bypass,
            number => match number.parse() {
                Ok(number @ 5..=7) => ForwardingMethod::Other(number),
                _ => return Err(self.error(number, "masquerade, route, tunnel, local, bypass, 5, 6 or 7")),
            },
        };
        let of_tunnel = self.given.iter().find(|given| given.name.starts_with("tun-"));
        of_tunnel.map_or(Ok(method), |given| Err(self.error(given.word, "-i beside it")))
    }

    fn tunnel(&self) -> Result<Tunnel, Error> {
        let port = |expected| self.value("tun-port", expected);
        let kind = match self.word("tun-type").unwrap_or("ipip") {
            "ipip" => TunnelKind::Ipip,
            "gre" => TunnelKind::Gre,
            "gue" => {
                let port = self.value::<NonZeroU16>("tun-port", "a port from 1 to 65535")?;
                let missing = || self.error("", "--tun-port PORT for --tun-type gue");
                TunnelKind::Gue { port: port.ok_or_else(missing)? }
            }
            number => TunnelKind::Other {
                kind: number
                    .parse()
                    .ok()
                    .ok_or_else(|| self.error(number, "ipip, gue, gre or a number from 0 to 255"))?,
                port: port(PORT)?.unwrap_or(0),
            },
        };
        if let (TunnelKind::Ipip | TunnelKind::Gre, Some(given)) = (kind, self.one_of(&["tun-port"])) {
            return Err(self.error(given.word, "a port only with --tun-type gue"));
        }
        let named: Vec<_> = self.given.iter().filter(|given| given.name.ends_with("csum")).collect();
        let no_checksum = named.iter().find(|given| given.name == "tun-nocsum");
        match (self.value("tun-flags", "flags as a number from 0 to 65535")?, named.first(), no_checksum) {
            (Some(bits), None, _) => Ok(Tunnel { kind, flags: TunnelFlags::from_bits_retain(bits) }),
            (Some(_), Some(other), _) => Err(self.error(other.word, "either --tun-flags or the names of flags")),
            (None, _, Some(no)) if named.len() > 1 => {
                Err(self.error(no.word, "no --tun-nocsum beside another checksum"))
            }
            (None, ..) => {
                let mut flags = TunnelFlags::empty();
                flags.set(TunnelFlags::CHECKSUM, self.has("tun-csum"));
                flags.set(TunnelFlags::REMOTE_CHECKSUM, self.has("tun-remcsum"));
                Ok(Tunnel { kind, flags })
            }
        }
    }
}
