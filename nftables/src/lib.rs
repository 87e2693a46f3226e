//! Programs Linux nf_tables over netlink, without processes or C libraries.
//!
//! nf_tables is the kernel's packet filter: rules in chains read a packet, look up sets and maps, and translate, count
//! or drop it. This crate uses the kernel's own protocol (nfnetlink, subsystem 10). It has:
//! * tables, chains, rules, sets, maps, elements, flow tables and objects as values ([`Table`], [`Chain`], [`Rule`], [`Set`],
//!   [`Element`], [`Flowtable`], [`Object`]);
//! * a builder whose calls read like nft's syntax ([`rule`]), over typed [`Expression`]s. Unknown expressions are
//!   kept as bytes and written back unchanged;
//! * [`Transaction`]s of any size, which the kernel applies atomically or only checks ([`Client::check`]). They can
//!   depend on the rule set being unchanged since it was read ([`Client::change_table`]). An error names the refused
//!   operation, expression or element ([`Error::refusals`]);
//! * complete reads of a table, chain or set, a whole table in one generation ([`Client::snapshot`]), or elements as
//!   they arrive ([`Client::for_each_element`]);
//! * changes and traced packets as they happen ([`Events`]), and atomic read-and-reset of counters and quotas
//!   ([`Client::reset_object`]);
//! * a sync that brings a table to a desired state with the smallest transaction ([`TableSpec`], [`Client::sync`]);
//! * output in nft's syntax ([`Transaction`], [`TableSnapshot`] and [`Rule::to_nft`]), and sets that `nft` prints
//!   correctly.
//!
//! It only needs `CAP_NET_ADMIN` in the network namespace.
//!
//! It does not parse nft's syntax, look up host, service or interface names, log, start threads, or load modules (the
//! kernel loads what an expression needs itself).
//!
//! It neither writes nor parses the JSON of `nft -j` (libnftables-json(5)), which changes with nft and cannot represent
//! what this crate keeps as bytes. Pass the text of a [`Transaction`] to `nft -j`, or run `nft -j list ruleset`, if you
//! need it.
//!
//! Feature `serde` serialises keys, the parts of tables, snapshots and events in the kernel's form: nft's words, values
//! as hexadecimal digits, flags by name. [`Transaction`] is excluded, since it numbers the sets that it creates, and so
//! is [`Error`].
//!
//! # Example
//!
//! A service with two endpoints, and a chain that sends new connections to one of them. The map has the endpoints; the
//! chain has one rule for all services with two endpoints:
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use nftables::fake::FakeNftables;
//! use nftables::{
//!     BaseChain, Chain, ChainType, Client, Element, Family, Hook, L4Protocol, Operand, Priority, Set, Table, TableKey, Transaction,
//!     Value, Verdict, rule,
//! };
//!
//! // Client::open()? speaks to the kernel of the namespace that the thread is in.
//! let mut client = Client::with_transport(FakeNftables::new().transport());
//!
//! let table = TableKey::new(Family::Inet, "proxy")?;
//! let (pick, nat) = (table.chain("pick2")?, table.chain("nat")?);
//! let key = [Operand::IP_DADDR, Operand::L4PROTO, Operand::DPORT];
//! let slots = [key.as_slice(), &[Operand::random(2)]].concat();
//! let services = Set::typeof_verdict_map(table.set("services")?, &key)?;
//! let endpoints = Set::typeof_map(table.set("endpoints2")?, &slots, &[Operand::IP_DADDR, Operand::DPORT])?;
//!
//! let mut transaction = Transaction::new();
//! transaction.add_table(Table::new(table.clone()));
//! transaction.add_chain(Chain::regular(pick.clone()));
//! transaction.add_chain(Chain::base(nat.clone(), BaseChain::new(ChainType::Nat, Hook::Prerouting, Priority::DSTNAT)));
//! transaction.add_set(endpoints.clone());
//! transaction.add_set(services.clone());
//!
//! // ip daddr . meta l4proto . th dport vmap @services
//! transaction.add_rule(&nat, rule(Family::Inet).verdict_map(&key, &services.key).build()?);
//! // dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints2
//! let send = rule(Family::Inet).meta_l4proto(L4Protocol::TCP).dnat_to_map(Family::Ip, &slots, &endpoints.key);
//! transaction.add_rule(&pick, send.build()?);
//!
//! let address = Value::from("10.96.0.1".parse::<std::net::Ipv4Addr>()?);
//! let fields = [address, Value::byte(L4Protocol::TCP.0), Value::port(80)];
//! for (number, pod) in ["10.1.0.1", "10.1.0.2"].iter().enumerate() {
//!     let key = Value::concat(&[fields.as_slice(), &[Value::mark(u32::try_from(number)?)]].concat())?;
//!     let data = Value::concat(&[pod.parse::<std::net::Ipv4Addr>()?.into(), Value::port(8080)])?;
//!     transaction.add_elements(&endpoints, [Element::value(key).maps_to(data)]);
//! }
//! let verdict = Element::value(Value::concat(&fields)?).verdict(Verdict::Goto(pick.name.clone()));
//! transaction.add_elements(&services, [verdict]);
//!
//! client.check(&transaction)?;
//! client.commit(&transaction)?;
//! let snapshot = client.snapshot(&table)?;
//! assert!(snapshot.to_string().contains("10.96.0.1 . tcp . 80 . 1 : 10.1.0.2 . 8080"));
//! assert!(snapshot.to_string().contains("ip daddr . meta l4proto . th dport vmap @services"));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look next
//!
//! | task | API |
//! | --- | --- |
//! | tables and their contents as values | [`Table`], [`Chain`], [`Rule`], [`Set`], [`Element`], [`Object`], [`Flowtable`] |
//! | write a rule as in nft's syntax | [`rule`], [`RuleBuilder`], [`Operand`]; its single steps: [`Expression`] |
//! | apply changes atomically, or only check them | [`Transaction`], [`Client::commit`], [`Client::check`] |
//! | bring a table to a desired state, or print the changes | [`Client::sync`], [`TableSpec::diff`] |
//! | read, change and retry if another program was faster | [`Client::change_table`] |
//! | read a table, chain, set or element | [`Client::snapshot`], [`Client::list_rules`], [`Client::get_element`] |
//! | read and reset counters and quotas | [`Client::reset_object`], [`Client::reset_rule`], [`Client::reset_element`] |
//! | follow changes, and packets through the rules | [`Events::open`], [`Events::open_traces`] |
//! | use ranges and networks in sets | [`Element::range`], [`Element::network`], [`Set::merge`] |
//! | print nft's syntax | `Display` of [`Transaction`] and [`TableSnapshot`], [`Rule::to_nft`]; with a host's names: [`Rule::to_nft_named`] |
//! | test without a kernel (feature `testing`) | `fake` |
//!
//! # Why a transaction is one datagram
//!
//! The kernel only treats messages in one datagram as a transaction. The send buffer is therefore made as large as the
//! transaction. Beyond about twice `net.core.wmem_max` this needs `CAP_NET_ADMIN` in the initial user namespace.
//! Without it the error is [`ErrorKind::TooLarge`], before anything is sent, because only the caller knows where to
//! split.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod attrs;
mod builder;
mod client;
mod draft;
mod error;
mod events;
pub mod expr;
#[cfg(feature = "testing")]
pub mod fake;
mod gather;
pub mod model;
mod operand;
mod snapshot;
mod sync;
mod text;
mod trace;
mod transaction;
mod typing;
pub mod uapi;
#[cfg(all(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "tests stop at the first surprise"
)]
mod uapi_tests;
mod userdata;
mod wire;

pub use builder::{CtState, L4Protocol, RuleBuilder, TcpFlags, rule};
pub use client::Client;
pub use draft::Draft;
pub use error::{Error, ErrorKind, Part, Refusal};
pub use events::{Change, Event, Events};
pub use expr::{Expression, Register, SetReference};
pub use model::{
    BaseChain, Chain, ChainKey, ChainType, DataType, Element, ElementData, ElementExtras, ElementKey, ElementList,
    Family, Field, FieldTypes, Flowtable, FlowtableFlags, FlowtableKey, Hook, InvalidValue, MapData, Name, Object,
    ObjectData, ObjectKey, ObjectType, ObservedChain, ObservedFlowtable, ObservedObject, ObservedRule, ObservedSet,
    ObservedTable, Policy, Priority, Rule, Set, SetFlags, SetKey, SetPolicy, Table, TableFlags, TableKey, Value,
    Verdict,
};
pub use operand::Operand;
pub use snapshot::{SetContents, TableSnapshot};
pub use sync::TableSpec;
pub use trace::{Trace, TraceStep};
pub use transaction::{RulePlace, Transaction};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
