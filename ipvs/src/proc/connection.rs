//! One line of `ip_vs_conn` or `ip_vs_conn_sync`.

use std::convert::Infallible;
use std::fmt;
use std::io::BufRead;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::Error;
use super::lines::Lines;
use crate::model::{Name, Protocol};

/// A connection, or a persistence template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Connection {
    /// Protocol. Templates of firewall marks have number 0.
    pub protocol: Protocol,
    /// The client. A template has port 0, and its address is masked by the persistence granularity.
    pub client: SocketAddr,
    /// Address and port, or firewall mark, that the client connected to.
    pub target: Target,
    /// The real server. Its family may differ from the client's. Port 65535 in a template that is not used any more.
    pub real_server: SocketAddr,
    /// State of the protocol.
    pub state: State,
    /// Time until the entry expires if no packet arrives, in whole seconds.
    pub expires_in: Duration,
    /// Origin of the connection. Only [`Proc::synced_connections`](super::Proc::synced_connections) reads it.
    pub origin: Option<Origin>,
    /// Data that a persistence engine found in packets. Only [`Proc::connections`](super::Proc::connections) reads it.
    pub persistence: Option<PersistenceData>,
}

/// Address and port, or firewall mark, that a client connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Target {
    /// An address and port. Port 0 in a template for all ports.
    Address(SocketAddr),
    /// A firewall mark: a template of a persistent virtual server with this mark.
    Fwmark(u32),
}

/// Where a connection was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Origin {
    /// Created on this host.
    Local,
    /// Received by the synchronisation daemon from another director.
    Synchronised,
}

/// Data that a persistence engine stores with a template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PersistenceData {
    /// The engine: `sip`.
    pub engine: Name,
    /// Data from packets, such as a SIP `Call-ID`. It comes from the network and may not be text.
    pub data: Vec<u8>,
}

macro_rules! states {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// State of a connection, for all protocols (`ip_vs_state_name`).
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum State {
            $($(#[$doc])* $variant,)*
            /// Another name.
            Other(Box<str>),
        }

        impl State {
            /// The kernel's name.
            pub fn as_str(&self) -> &str {
                match self {
                    $(State::$variant => $name,)*
                    State::Other(name) => name,
                }
            }

            fn new(name: &str) -> Self {
                match name {
                    $($name => State::$variant,)*
                    other => State::Other(other.into()),
                }
            }
        }
    };
}

/// Parses the kernel's name. An unknown one becomes [`State::Other`].
impl FromStr for State {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(State::new(name))
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(State, "a connection's state such as \"ESTABLISHED\"");

states! {
    /// No state: a fresh connection, or a template that no connection has confirmed.
    None = "NONE",
    /// A template that a connection has confirmed. Since Linux 4.19.
    Assured = "ASSURED",
    /// TCP and SCTP: established.
    Established = "ESTABLISHED",
    /// TCP: a SYN was sent.
    SynSent = "SYN_SENT",
    /// TCP: a SYN was received.
    SynReceived = "SYN_RECV",
    /// TCP: a FIN was seen.
    FinWait = "FIN_WAIT",
    /// TCP: both ends have finished.
    TimeWait = "TIME_WAIT",
    /// TCP: closed or reset.
    Close = "CLOSE",
    /// TCP: the real server has finished first.
    CloseWait = "CLOSE_WAIT",
    /// TCP: the last acknowledgement is due.
    LastAck = "LAST_ACK",
    /// TCP: listening.
    Listen = "LISTEN",
    /// TCP: a SYN with acknowledgement was seen.
    SynAck = "SYNACK",
    /// UDP: the only state.
    Udp = "UDP",
    /// SCTP: the first INIT.
    Init1 = "INIT1",
    /// SCTP: INIT.
    Init = "INIT",
    /// SCTP: COOKIE ECHO was sent.
    CookieSent = "COOKIE_SENT",
    /// SCTP: COOKIE ECHO was answered.
    CookieReplied = "COOKIE_REPLIED",
    /// SCTP: waiting for the cookie.
    CookieWait = "COOKIE_WAIT",
    /// SCTP: the cookie was received.
    Cookie = "COOKIE",
    /// SCTP: the cookie was echoed.
    CookieEchoed = "COOKIE_ECHOED",
    /// SCTP: SHUTDOWN was sent.
    ShutdownSent = "SHUTDOWN_SENT",
    /// SCTP: SHUTDOWN was received.
    ShutdownReceived = "SHUTDOWN_RECEIVED",
    /// SCTP: SHUTDOWN was acknowledged.
    ShutdownAckSent = "SHUTDOWN_ACK_SENT",
    /// SCTP: rejected.
    Rejected = "REJECTED",
    /// SCTP: closed.
    Closed = "CLOSED",
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Reads the connections of a file, one line at a time.
///
/// A malformed line gives an error, and the next call continues with the next line. The iterator ends after a read
/// error.
#[derive(Debug)]
pub struct Connections<R> {
    lines: Lines<R>,
    /// Whether there is a column of origins; unknown before the header was read.
    origins: Option<bool>,
    ended: bool,
}

impl<R: BufRead> Connections<R> {
    /// Reads a file in the format of `ip_vs_conn` or `ip_vs_conn_sync`; the header tells which. `path` is used in
    /// errors.
    pub fn new(reader: R, path: impl Into<PathBuf>) -> Self {
        Connections { lines: Lines::new(reader, path.into()), origins: None, ended: false }
    }

    fn advance(&mut self) -> Result<Option<Connection>, Error> {
        let origins = if let Some(origins) = self.origins {
            origins
        } else {
            const HEADER: &str = "the header of ip_vs_conn or ip_vs_conn_sync";
            let header = self.lines.text(HEADER)?;
            if !header.starts_with("Pro ") {
                return Err(self.lines.malformed(HEADER));
            }
            *self.origins.insert(header.contains(" Origin "))
        };
        let Some(line) = self.lines.advance()? else {
            self.ended = true;
            return Ok(None);
        };
        match connection(line, origins) {
            Ok(connection) => Ok(Some(connection)),
            Err(expected) => Err(self.lines.malformed(expected)),
        }
    }
}

impl<R: BufRead> Iterator for Connections<R> {
    type Item = Result<Connection, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.advance();
        if item.as_ref().is_err_and(|error| error.kind() != super::ErrorKind::Malformed) || self.origins.is_none() {
            self.ended = true;
        }
        item.transpose()
    }
}

/// Splits words off the front of a line; the rest stays as bytes.
struct Columns<'a>(&'a [u8]);

impl<'a> Columns<'a> {
    fn next(&mut self, expected: &'static str) -> Result<&'a str, &'static str> {
        let start = self.0.iter().position(|byte| *byte != b' ').ok_or(expected)?;
        let from = self.0.get(start..).unwrap_or_default();
        let end = from.iter().position(|byte| *byte == b' ').unwrap_or(from.len());
        let (word, rest) = from.split_at_checked(end).ok_or(expected)?;
        self.0 = rest;
        std::str::from_utf8(word).ok().ok_or(expected)
    }

    fn endpoint(&mut self, address: &'static str, port: &'static str) -> Result<SocketAddr, &'static str> {
        let addr = parse_address(self.next(address)?).ok_or(address)?;
        let port = parse_hex(self.next(port)?, 4).and_then(|number| u16::try_from(number).ok()).ok_or(port)?;
        Ok(SocketAddr::new(addr, port))
    }
}

/// Kernel: `ip_vs_conn_seq_show`, `ip_vs_conn_sync_seq_show` in net/netfilter/ipvs/ip_vs_conn.c.
fn connection(line: &[u8], origins: bool) -> Result<Connection, &'static str> {
    let mut columns = Columns(line);
    let protocol =
        parse_protocol(columns.next("a protocol")?).ok_or("a protocol: TCP, UDP, SCTP, IP or IP_<number>")?;
    let client = columns.endpoint("the client's address", "the client's port")?;
    let virtual_at = columns.endpoint("the virtual address", "the virtual port")?;
    let real_server = columns.endpoint("the real server's address", "the real server's port")?;
    let state = State::new(columns.next("a state")?);
    let origin = match origins.then(|| columns.next("an origin")).transpose()? {
        None => None,
        Some("LOCAL") => Some(Origin::Local),
        Some("SYNC") => Some(Origin::Synchronised),
        Some(_) => return Err("an origin: LOCAL or SYNC"),
    };
    let expires: u64 = columns.next("seconds until it expires")?.parse().ok().ok_or("seconds until it expires")?;
    // Older kernels print an overdue timer as a number just below 2^64 / HZ. No timer runs for 2^32 seconds.
    let expires_in = Duration::from_secs(u32::try_from(expires).unwrap_or(0).into());
    let persistence = match columns.0.strip_prefix(b" ") {
        None | Some(b"") => None,
        Some(_) => {
            let engine = Name::new(columns.next("a persistence engine")?).ok().ok_or("a persistence engine")?;
            Some(PersistenceData { engine, data: columns.0.strip_prefix(b" ").unwrap_or_default().to_vec() })
        }
    };
    let target = match protocol {
        Protocol::Other(0) => Target::Fwmark(mark(virtual_at.ip())),
        _ => Target::Address(virtual_at),
    };
    Ok(Connection { protocol, client, target, real_server, state, expires_in, origin, persistence })
}

/// A template of a firewall mark has the mark where the address would start.
fn mark(addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(addr) => addr.to_bits(),
        IpAddr::V6(addr) => {
            let [a, b, c, d, ..] = addr.octets();
            u32::from_be_bytes([a, b, c, d])
        }
    }
}

/// Kernel: `ip_vs_proto_name`.
fn parse_protocol(name: &str) -> Option<Protocol> {
    match name {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        "IP" => Some(Protocol::Other(0)),
        "ICMP" => Some(Protocol::Other(1)),
        "ICMPv6" => Some(Protocol::Other(58)),
        other => other.strip_prefix("IP_")?.parse::<u8>().ok().map(Protocol::from),
    }
}

/// Exactly `digits` upper-case hexadecimal digits.
fn parse_hex(text: &str, digits: usize) -> Option<u32> {
    let fits = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    fits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// `0A000001`, or IPv6 in the usual notation.
fn parse_address(text: &str) -> Option<IpAddr> {
    match parse_hex(text, 8) {
        Some(bits) => Some(Ipv4Addr::from_bits(bits).into()),
        None => text.parse::<Ipv6Addr>().ok().map(IpAddr::from),
    }
}
