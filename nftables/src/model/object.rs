//! Named objects: counters and others.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Family, InvalidValue, ObjectKey};
use crate::builder::L4Protocol;
use crate::expr::{Expression, LimitUnit, SynproxyFlags, numbered};

numbered! {
    /// The kind of an object (`NFT_OBJECT_*`).
    #[derive(PartialOrd, Ord)]
    #[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
    ObjectType {
        /// Counts packets and bytes.
        Counter = 1 NFT_OBJECT_COUNTER, "counter";
        /// Counts bytes up to a limit.
        Quota = 2 NFT_OBJECT_QUOTA, "quota";
        /// A rate.
        Limit = 4 NFT_OBJECT_LIMIT, "limit";
        /// A connection-tracking helper.
        #[cfg_attr(feature = "serde", serde(rename = "ct helper"))]
        CtHelper = 3 NFT_OBJECT_CT_HELPER, "ct helper";
        /// Timeouts of connections. Since Linux 4.19.
        #[cfg_attr(feature = "serde", serde(rename = "ct timeout"))]
        CtTimeout = 7 NFT_OBJECT_CT_TIMEOUT, "ct timeout";
        /// An expected connection. Since Linux 5.3.
        #[cfg_attr(feature = "serde", serde(rename = "ct expectation"))]
        CtExpectation = 9 NFT_OBJECT_CT_EXPECT, "ct expectation";
        /// Completes TCP handshakes for servers. Since Linux 5.4.
        Synproxy = 10 NFT_OBJECT_SYNPROXY, "synproxy";
        /// A security label for packets. Since Linux 4.20.
        Secmark = 8 NFT_OBJECT_SECMARK, "secmark";
    }
}

impl ObjectType {
    /// Words with which a rule uses an object of this kind, before its name: `counter name`, `ct helper set`.
    pub(crate) fn statement(self) -> Option<&'static str> {
        Some(match self {
            ObjectType::Counter => "counter name",
            ObjectType::Quota => "quota name",
            ObjectType::Limit => "limit name",
            ObjectType::CtHelper => "ct helper set",
            ObjectType::CtTimeout => "ct timeout set",
            ObjectType::CtExpectation => "ct expectation set",
            ObjectType::Synproxy => "synproxy name",
            ObjectType::Secmark => "meta secmark set",
            ObjectType::Other(_) => return None,
        })
    }
}

/// The states of a protocol that have their own timeout: number (`CTA_TIMEOUT_*`,
/// linux/netfilter/nfnetlink_cttimeout.h), nft's word, and the kernel's default in seconds.
pub(crate) fn timeout_states(protocol: L4Protocol) -> &'static [(u16, &'static str, u64)] {
    match protocol {
        L4Protocol::TCP => &[
            (1, "syn_sent", 120),
            (2, "syn_recv", 60),
            (3, "established", 432_000),
            (4, "fin_wait", 120),
            (5, "close_wait", 60),
            (6, "last_ack", 30),
            (7, "time_wait", 120),
            (8, "close", 10),
            (9, "syn_sent2", 120),
            (10, "retrans", 300),
            (11, "unack", 300),
        ],
        L4Protocol::UDP => &[(1, "unreplied", 30), (2, "replied", 120)],
        _ => &[],
    }
}

/// The word of a state, otherwise its number.
pub(crate) fn timeout_state(protocol: L4Protocol, number: u16) -> String {
    let known = timeout_states(protocol).iter().find(|(known, ..)| *known == number);
    known.map_or_else(|| number.to_string(), |(_, word, _)| (*word).to_owned())
}

pub(crate) fn timeout_state_number(protocol: L4Protocol, state: &str) -> Option<u16> {
    let known = timeout_states(protocol).iter().find(|(_, word, _)| *word == state);
    known.map(|(number, ..)| *number).or_else(|| state.parse().ok())
}

/// Data of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ObjectData {
    /// A counter.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// A quota.
    Quota {
        /// Number of bytes.
        bytes: u64,
        /// Bytes so far.
        consumed: u64,
        /// Matches beyond them instead.
        inverted: bool,
    },
    /// A rate.
    Limit {
        /// Number per unit of time.
        rate: u64,
        /// The unit of time.
        unit: LimitUnit,
        /// Allowed burst beyond the rate.
        burst: u32,
        /// Counts bytes instead of packets.
        bytes: bool,
        /// Matches above the rate instead.
        inverted: bool,
    },
    /// A connection-tracking helper, which follows a protocol to the related connections that it negotiates.
    #[cfg_attr(feature = "serde", serde(rename = "ct helper"))]
    CtHelper {
        /// The kernel's name of the helper: `ftp`, `sip`, `tftp`.
        helper: String,
        /// Family of its connections: `inet`, `ip` or `ip6`.
        family: Family,
        /// Protocol of its connections.
        protocol: L4Protocol,
    },
    /// Timeouts of connections by state.
    #[cfg_attr(feature = "serde", serde(rename = "ct timeout"))]
    CtTimeout {
        /// Family of the connections: `inet` (Linux 5.8), `ip` or `ip6`.
        family: Family,
        /// Protocol of the connections.
        protocol: L4Protocol,
        /// Whole seconds by state, in nft's words (`established`, `unreplied`); for protocols other than TCP and UDP by
        /// number (`CTA_TIMEOUT_*`). Missing states have the network namespace's default when they are read back.
        policy: BTreeMap<String, Duration>,
    },
    /// A connection that is expected in addition to the one that a rule sees.
    #[cfg_attr(feature = "serde", serde(rename = "ct expectation"))]
    CtExpectation {
        /// Family of the expected connection.
        family: Family,
        /// Protocol of the expected connection.
        protocol: L4Protocol,
        /// Destination port of the expected connection.
        port: u16,
        /// Time for which it is expected, in seconds (net/netfilter/nft_ct.c, `nft_ct_expect_obj_eval`). nft prints and
        /// parses this number as milliseconds, and so does the text here.
        timeout: u32,
        /// Most connections expected at once.
        size: u8,
    },
    /// Completes TCP handshakes on behalf of a server.
    Synproxy {
        /// Greatest segment size.
        mss: u16,
        /// Window scale.
        window_scale: u8,
        /// TCP options offered to clients.
        flags: SynproxyFlags,
    },
    /// A security label for packets. The kernel refuses a context that its security module does not know.
    Secmark {
        /// Security context: `system_u:object_r:ssh_server_packet_t:s0`.
        context: String,
    },
    /// Attributes of another kind, unchanged.
    Other(Vec<u8>),
}

impl ObjectData {
    /// Refuses what could not be written in full.
    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        let text = |what: &str, text: &str, most: usize| {
            if text.is_empty() || text.len() > most || text.contains('\0') {
                let why = "it is empty, has a NUL, or is longer than the kernel takes";
                return Err(InvalidValue::new(format!("{what} {text:?}"), why));
            }
            Ok(())
        };
        match self {
            // NF_CT_HELPER_NAME_LEN and NFT_SECMARK_CTX_MAXLEN, including the NUL.
            ObjectData::CtHelper { helper, .. } => text("helper", helper, 15),
            ObjectData::Secmark { context } => text("security context", context, 4095),
            ObjectData::CtTimeout { protocol, policy, .. } => {
                for (state, time) in policy {
                    if timeout_state_number(*protocol, state).is_none() {
                        let what = format!("state {state:?} of protocol {}", protocol.0);
                        return Err(InvalidValue::new(
                            what,
                            "it is neither a word of nft's for the protocol nor a number",
                        ));
                    }
                    if time.subsec_nanos() != 0 || u32::try_from(time.as_secs()).is_err() {
                        let what = format!("time-out {time:?} of state {state}");
                        return Err(InvalidValue::new(what, "the kernel takes whole seconds, at most 4,294,967,295"));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Objects that a rule can have in place of their name, as expressions with the same fields.
macro_rules! in_rules {
    ($($name:ident { $($field:ident),* })*) => {
        impl ObjectData {
            /// The expression with the same effect in a rule.
            pub(crate) fn to_expression(&self) -> Option<Expression> {
                match *self {
                    $( ObjectData::$name { $($field),* } => Some(Expression::$name { $($field),* }), )*
                    _ => None,
                }
            }

            pub(crate) fn from_expression(expression: &Expression) -> Option<Self> {
                match *expression {
                    $( Expression::$name { $($field),* } => Some(ObjectData::$name { $($field),* }), )*
                    _ => None,
                }
            }
        }
    };
}

in_rules! {
    Counter { packets, bytes }
    Quota { bytes, consumed, inverted }
    Limit { rate, unit, burst, bytes, inverted }
    Synproxy { mss, window_scale, flags }
}

/// A named object. Rules name one ([`named_counter`](crate::RuleBuilder::named_counter)), or look it up in a map
/// ([`Set::object_map`](crate::Set::object_map)):
///
/// ```
/// use nftables::{DataType, Element, Family, FieldTypes, Object, ObjectData, ObjectType, Set, TableKey, Transaction};
///
/// let table = TableKey::new(Family::Ip, "account")?;
/// let alice = table.object(ObjectType::Counter, "alice")?;
/// let clients = Set::object_map(table.set("clients")?, FieldTypes::of(&[DataType::IPV4_ADDR])?, ObjectType::Counter);
/// let mut transaction = Transaction::new();
/// // Goes on where it was before a restart.
/// transaction.add_object(Object::new(alice.clone(), ObjectData::Counter { packets: 12, bytes: 3_400 }));
/// let address = "192.0.2.10".parse::<std::net::Ipv4Addr>()?;
/// transaction.add_elements(&clients, [Element::value(address).object(alice.name)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Object {
    /// Identity of the object.
    pub key: ObjectKey,
    /// Data of the object.
    pub data: ObjectData,
    /// A comment. nft accepts at most 128 bytes, the kernel stores up to 253. Kept since Linux 5.10.
    pub comment: Option<String>,
}

impl Object {
    /// An object with these data.
    pub fn new(key: ObjectKey, data: ObjectData) -> Self {
        Object { key, data, comment: None }
    }

    /// A counter at zero. The key's kind should be [`ObjectType::Counter`].
    pub fn counter(key: ObjectKey) -> Self {
        Object::new(key, ObjectData::Counter { packets: 0, bytes: 0 })
    }
}

/// An object as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedObject {
    /// The object.
    pub object: Object,
    /// The kernel's handle.
    pub handle: u64,
    /// Number of rules and elements that refer to it.
    pub references: u32,
}
