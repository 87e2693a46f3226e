//! All settings of IPVS, one row each.

use std::fmt;
use std::str::FromStr;

use super::Value;
use crate::model::OutOfRange;

/// Type of a knob's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueType {
    /// 0 is off, everything else on. See [`Value::Integer`].
    Switch,
    /// A whole number in this range, as [`Value::Integer`].
    Integer {
        /// The least.
        min: i64,
        /// The most.
        max: i64,
    },
    /// A power of two from 1 to 2^30, as [`Value::Integer`].
    PowerOfTwo,
    /// An unsigned number, as [`Value::Count`].
    Count,
    /// Threshold and period of synchronisation, as [`Value::Pair`].
    Pair,
    /// A list of CPUs such as `0-3,8`, as [`Value::CpuList`].
    CpuList,
}

/// A requirement of a knob besides the kernel's version and `ip_vs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requirement {
    /// An option of the kernel's configuration.
    Config(&'static str),
    /// Another loaded module.
    Module(&'static str),
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requirement::Config(option) => write!(f, "a kernel with {option}"),
            Requirement::Module(module) => write!(f, "module {module}"),
        }
    }
}

/// The description of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// Name below `net.ipv4.vs`.
    pub name: &'static str,
    /// Type of its values.
    pub value_type: ValueType,
    /// Unit of the value, if any.
    pub unit: Option<&'static str>,
    /// Value in the initial network namespace after boot, as the kernel prints it; `None` if it depends on the machine.
    /// In namespaces made later, both load factors are -2.
    pub default: Option<&'static str>,
    /// Major and minor version of the first kernel with this knob; `None` if older than 5.10. Kernels of distributions
    /// may have it earlier.
    pub since: Option<(u16, u16)>,
    /// Further requirement of the kernel.
    pub requires: Option<Requirement>,
    /// Effect of the knob, as text.
    pub meaning: &'static str,
}

const INT: ValueType = ValueType::Integer { min: -0x8000_0000, max: 0x7fff_ffff };
const DEFENSE: ValueType = ValueType::Integer { min: 0, max: 3 };
const LOAD: ValueType = ValueType::Integer { min: -8, max: 8 };
/// The seconds must fit into 2^31 jiffies at 1000 per second.
const SECONDS: ValueType = ValueType::Integer { min: 0, max: 2_147_483 };

macro_rules! knobs {
    ($($variant:ident = $name:literal, $value_type:expr, $unit:expr, $default:expr, $since:expr, $requires:expr, $meaning:literal;)*) => {
        /// A setting below `net.ipv4.vs`. All are per network namespace, except [`Knob::DebugLevel`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Knob {
            $(#[doc = $meaning] $variant,)*
        }

        impl Knob {
            /// All knobs that Linux 7.2 has.
            pub const ALL: &[Knob] = &[$(Knob::$variant,)*];

            /// The knob's description.
            pub fn describe(self) -> &'static Description {
                match self {
                    $(Knob::$variant => {
                        const DESCRIPTION: Description = Description {
                            name: $name,
                            value_type: $value_type,
                            unit: $unit,
                            default: $default,
                            since: $since,
                            requires: $requires,
                            meaning: $meaning,
                        };
                        &DESCRIPTION
                    })*
                }
            }
        }
    };
}

use Requirement::{Config, Module};
use ValueType::{Count, CpuList, Integer, Pair, PowerOfTwo, Switch};

knobs! {
    AmDroprate = "am_droprate", INT, Some("packets"), Some("10"), None, None,
        "Of how many packets one is dropped when `drop_packet` is 3.";
    Amemthresh = "amemthresh", INT, Some("pages"), Some("1024"), None, None,
        "Below this much free memory the automatic defences (mode 1) switch on.";
    BackupOnly = "backup_only", Switch, None, Some("0"), None, None,
        "Do not direct connections while this host is only a backup.";
    CacheBypass = "cache_bypass", Switch, None, Some("0"), None, None,
        "Forward to the original destination when no real server is available (transparent caches).";
    ConnLfactor = "conn_lfactor", LOAD, Some("log2 of connections a bucket"), Some("-4"), Some((7, 1)), None,
        "Load at which the table of connections grows; smaller means a larger table.";
    ConnMax = "conn_max", Integer { min: 0, max: 1 << 30 }, Some("connections"), Some("1073741824"), Some((7, 2)), None,
        "Most connections of a network namespace; new namespaces take the initial one's. Default and most are for 64 bits.";
    ConnReuseMode = "conn_reuse_mode", INT, None, Some("1"), None, None,
        "What happens when a client uses a port again: 0 keeps the real server, bit 0 schedules anew in TIME_WAIT, bit 1 in FIN_WAIT too.";
    Conntrack = "conntrack", Switch, None, Some("0"), None, Some(Config("CONFIG_IP_VS_NFCT")),
        "Keep connection tracking entries for connections of IPVS, which firewall rules with state need.";
    DebugLevel = "debug_level", INT, None, Some("0"), None, Some(Config("CONFIG_IP_VS_DEBUG")),
        "How much is logged: 0 to 12. One for all network namespaces, read-only in all but the initial one.";
    DropEntry = "drop_entry", DEFENSE, None, Some("0"), None, None,
        "Drop connections in the middle of a handshake: 0 never, 1 when memory is short (then it reads 2), 3 always.";
    DropPacket = "drop_packet", DEFENSE, None, Some("0"), None, None,
        "Drop a part of the packets: 0 never, 1 when memory is short (then it reads 2), 3 always.";
    EstCpulist = "est_cpulist", CpuList, Some("CPUs"), None, Some((6, 2)), None,
        "CPUs on which rates may be estimated; an empty list stops it. Default: the housekeeping CPUs.";
    EstNice = "est_nice", Integer { min: -20, max: 19 }, None, Some("0"), Some((6, 2)), None,
        "Niceness of the threads that estimate rates.";
    ExpireNodestConn = "expire_nodest_conn", Switch, None, Some("0"), None, None,
        "End a connection at its next packet when its real server is gone, in place of dropping its packets in silence.";
    ExpireQuiescentTemplate = "expire_quiescent_template", Switch, None, Some("0"), None, None,
        "Do not let persistence bring clients back to a real server of weight 0, which without this need never drain.";
    IgnoreTunneled = "ignore_tunneled", Switch, None, Some("0"), None, None,
        "Do not schedule packets of unknown protocols, such as tunnelled ones.";
    LblcExpiration = "lblc_expiration", SECONDS, Some("seconds"), Some("86400"), None, Some(Module("ip_vs_lblc")),
        "How long scheduler `lblc` remembers a destination nobody asks for.";
    LblcrExpiration = "lblcr_expiration", SECONDS, Some("seconds"), Some("86400"), None, Some(Module("ip_vs_lblcr")),
        "How long scheduler `lblcr` remembers a destination nobody asks for.";
    NatIcmpSend = "nat_icmp_send", Switch, None, Some("0"), None, None,
        "Tell a real server with ICMP when it answers on a connection that is not known.";
    PmtuDisc = "pmtu_disc", Switch, None, Some("1"), None, None,
        "Refuse packets that do not fit the path and must not be split; off, tunnels may split them.";
    RunEstimation = "run_estimation", Switch, None, Some("1"), Some((5, 16)), None,
        "Estimate rates. Off, rates stay as they are, and much time is saved with many real servers.";
    ScheduleIcmp = "schedule_icmp", Switch, None, Some("0"), None, None,
        "Send ICMP that belongs to no connection to the real server its inner packet would go to.";
    SecureTcp = "secure_tcp", DEFENSE, None, Some("0"), None, None,
        "Stricter TCP states: 0 never, 1 when memory is short (then it reads 2), 3 always.";
    SloppySctp = "sloppy_sctp", Switch, None, Some("0"), None, None,
        "Make an SCTP connection from any packet, not just the first (after a fail-over).";
    SloppyTcp = "sloppy_tcp", Switch, None, Some("0"), None, None,
        "Make a TCP connection from any packet, not just a SYN (after a fail-over).";
    SnatReroute = "snat_reroute", Switch, None, Some("1"), None, None,
        "Route answers from real servers as if this host had sent them.";
    SvcLfactor = "svc_lfactor", LOAD, Some("log2 of virtual servers a bucket"), Some("-3"), Some((7, 1)), None,
        "Load at which the table of virtual servers grows; smaller means a larger table.";
    SyncPersistMode = "sync_persist_mode", INT, None, Some("0"), None, None,
        "What is synchronised of persistent virtual servers: 0 all, 1 templates only.";
    SyncPorts = "sync_ports", PowerOfTwo, Some("threads and UDP ports"), Some("1"), None, None,
        "Threads of the synchronisation daemon, each with its port from 8848 on; from 64 on it stays 64.";
    SyncQlenMax = "sync_qlen_max", Count, Some("messages"), None, None, None,
        "Most messages that wait for being sent. Default: by the machine's memory.";
    SyncRefreshPeriod = "sync_refresh_period", SECONDS, Some("seconds"), Some("0"), None, None,
        "By how much a connection's timer must have changed for a new message; 0 is no such messages.";
    SyncRetries = "sync_retries", Integer { min: 0, max: 3 }, Some("messages"), Some("0"), None, None,
        "Repetitions of a message, an eighth of `sync_refresh_period` apart.";
    SyncSockSize = "sync_sock_size", INT, Some("bytes"), Some("0"), None, None,
        "Size of the synchronisation daemon's socket buffer; 0 is the system's default.";
    SyncThreshold = "sync_threshold", Pair, Some("packets"), Some("3\t50"), None, None,
        "A connection is synchronised when its packets, modulo the second number, reach the first.";
    SyncVersion = "sync_version", Integer { min: 0, max: 1 }, None, Some("1"), None, None,
        "Protocol of synchronisation messages: 0 for very old directors.";
}

impl Knob {
    /// Name below `net.ipv4.vs`.
    pub fn name(self) -> &'static str {
        self.describe().name
    }

    /// Reads a value as the kernel prints it.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        match self.describe().value_type {
            ValueType::CpuList => Some(Value::CpuList(text.to_owned())),
            ValueType::Count => text.parse().ok().map(Value::Count),
            ValueType::Pair => {
                let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
                let pair = (numbers.next()??, numbers.next()??);
                numbers.next().is_none().then_some(Value::Pair(pair.0, pair.1))
            }
            ValueType::Switch | ValueType::Integer { .. } | ValueType::PowerOfTwo => {
                text.parse().ok().map(Value::Integer)
            }
        }
    }

    /// Checks a value before it is written.
    ///
    /// # Errors
    /// [`OutOfRange`] for a value that the kernel refuses, a value of another type, or a switch that is neither 0 nor
    /// 1.
    pub fn check(self, value: &Value) -> Result<(), OutOfRange> {
        let allowed = match (self.describe().value_type, value) {
            (ValueType::Switch, Value::Integer(0 | 1)) | (ValueType::Count, Value::Count(_)) => return Ok(()),
            (ValueType::Integer { min, max }, Value::Integer(number)) if (min..=max).contains(number) => return Ok(()),
            (ValueType::PowerOfTwo, Value::Integer(number)) if is_power_of_two(*number) => return Ok(()),
            (ValueType::Pair, Value::Pair(threshold, period))
                if *threshold >= 0 && *period >= 0 && (threshold < period || *period == 0) =>
            {
                return Ok(());
            }
            (ValueType::CpuList, Value::CpuList(list)) if list.bytes().all(is_cpu_list_byte) => return Ok(()),
            (ValueType::Switch | ValueType::Integer { min: 0, max: 1 }, _) => "0 or 1",
            (ValueType::Integer { min: 0, max: 3 }, _) => "0 to 3",
            (ValueType::Integer { min: -8, max: 8 }, _) => "-8 to 8",
            (ValueType::Integer { min: -20, max: 19 }, _) => "-20 to 19",
            (ValueType::Integer { min: 0, max: 2_147_483 }, _) => "0 to 2147483",
            (ValueType::Integer { min: 0, .. }, _) => "0 to 1073741824",
            (ValueType::Integer { .. }, _) => "-2147483648 to 2147483647",
            (ValueType::PowerOfTwo, _) => "a power of two from 1 to 1073741824",
            (ValueType::Count, _) => "a count",
            (ValueType::Pair, _) => "a threshold and a larger period, or any threshold and period 0; none negative",
            (ValueType::CpuList, _) => "a list of CPUs such as 0-3,8",
        };
        Err(OutOfRange::new(self.name(), value, allowed))
    }
}

fn is_power_of_two(number: i64) -> bool {
    (1..=1 << 30).contains(&number) && number.count_ones() == 1
}

/// Whether a list of CPUs may contain the byte: `0-7:2/4`, `all`, `N`.
fn is_cpu_list_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b',' | b':' | b'/')
}

/// `net.ipv4.vs.conntrack`.
impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net.ipv4.vs.{}", self.name())
    }
}

/// Parses a name, with or without `net.ipv4.vs.` before it.
impl FromStr for Knob {
    type Err = OutOfRange;

    fn from_str(name: &str) -> Result<Self, OutOfRange> {
        let bare = name.strip_prefix("net.ipv4.vs.").unwrap_or(name);
        let knob = Knob::ALL.iter().find(|knob| knob.name() == bare).copied();
        knob.ok_or_else(|| OutOfRange::new("setting", name, "names below net.ipv4.vs that Linux 7.2 has"))
    }
}

#[cfg(feature = "serde")]
mod text {
    use super::Knob;
    netlink_batch::serde_as_text!(Knob, "a setting such as \"net.ipv4.vs.conntrack\"");
}
