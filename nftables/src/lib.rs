//! Programs Linux nf_tables over netlink, without processes or C libraries.
//!
//! nf_tables decides in the kernel what becomes of packets: rules in chains read a packet, look into sets and maps, and
//! translate, count or drop. This crate speaks the kernel's own protocol (nfnetlink, subsystem 10):
//! * tables, chains, rules, sets, maps, elements, flow tables and objects as values ([`Table`], [`Chain`], [`Rule`], [`Set`],
//!   [`Element`], [`Flowtable`], [`Object`]);
//! * a builder whose calls read like nft's syntax ([`rule`]), over typed [`Expression`]s; expressions that this crate
//!   does not know are kept as bytes and written again unchanged;
//! * [`Transaction`]s of any size and mixture, which the kernel makes at one instant or not at all, or only checks
//!   ([`Client::check`]), and which can be made only if the rule set is still the one that was read
//!   ([`Client::change_table`]); an error names the operation, the expression or the element that was refused
//!   ([`Error::refusals`]);
//! * reading of one table, chain or set, complete or an error; a whole table of one generation ([`Client::snapshot`]);
//!   elements while they arrive ([`Client::for_each_element`]); changes as they happen, and the way of traced packets ([`Events`]);
//!   counters and quotas read and set to zero at one instant ([`Client::reset_object`]);
//! * a table made what is wanted, by the difference to what it is ([`TableSpec`], [`Client::sync`]);
//! * nft's syntax for people ([`Transaction`], [`TableSnapshot`] and [`Rule::to_nft`]), and sets that `nft` prints
//!   correctly.
//!
//! The crate needs `CAP_NET_ADMIN` in the network namespace, and only that.
//!
//! The crate does not read nft's syntax, look up host, service or interface names, log, start threads, keep state of its own,
//! or load modules (the kernel loads what an expression needs by itself).
//!
//! JSON as `nft -j` has it is neither written nor read: it is nft's own form (libnftables-json(5)), which changes with nft and has no
//! words for what this crate keeps as bytes. Programs that need it give the text of a [`Transaction`] to `nft -j`, or read
//! `nft -j list ruleset`; feature `serde` has the values of this crate, whose form follows the kernel.
//!
//! Feature `serde` serialises keys, what tables are made of, snapshots and events: words as nft has them, values as hexadecimal
//! digits, flags by their names. A [`Transaction`] is left out, since it numbers the sets that it makes, and so is [`Error`].
//!
//! # What there is
//!
//! | task | here |
//! | --- | --- |
//! | tables and what they have, as values | [`Table`], [`Chain`], [`Rule`], [`Set`], [`Element`], [`Object`], [`Flowtable`] |
//! | a rule, as it reads in nft's syntax | [`rule`], [`RuleBuilder`], [`Operand`]; its steps one by one: [`Expression`] |
//! | changes that are made at one instant, or only checked | [`Transaction`], [`Client::commit`], [`Client::check`] |
//! | a wanted state: plan, and make it so | [`TableSpec::diff`], [`Client::sync`] |
//! | a change of what was read, tried again when others were faster | [`Client::change_table`] |
//! | read a table, chain, set or element | [`Client::snapshot`], [`Client::list_rules`], [`Client::get_element`] |
//! | read counters and quotas, and set them to zero | [`Client::reset_object`], [`Client::reset_rule`], [`Client::reset_element`] |
//! | follow changes, and packets through the rules | [`Events::open`], [`Events::open_traces`] |
//! | ranges and networks in sets | [`Element::range`], [`Element::network`], [`Set::merge`] |
//! | nft's syntax | `Display` of [`Transaction`] and [`TableSnapshot`], [`Rule::to_nft`]; with a host's names: [`Rule::to_nft_named`] |
//! | tests without a kernel (feature `testing`) | `fake` |
//!
//! # Example
//!
//! A service with two endpoints, and a chain that sends new connections to one of them. The map has the endpoints, the
//! chain one rule for all services of two endpoints:
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
//! # Why a transaction is one datagram
//!
//! The kernel takes as one transaction what lies in one datagram, and nothing larger. So the send buffer is made as
//! large as the transaction needs. Beyond about twice `net.core.wmem_max` that takes `CAP_NET_ADMIN` in the initial
//! user namespace; without it, the error is [`ErrorKind::TooLarge`] before anything is sent: only the caller knows
//! where to divide.
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
    BaseChain, Chain, ChainKey, ChainType, DataType, Element, ElementData, ElementExtras, ElementKey, Family, Field,
    FieldTypes, Flowtable, FlowtableFlags, FlowtableKey, Hook, InvalidValue, MapData, Name, Object, ObjectData,
    ObjectKey, ObjectType, ObservedChain, ObservedFlowtable, ObservedObject, ObservedRule, ObservedSet, ObservedTable,
    Policy, Priority, Rule, Set, SetFlags, SetKey, SetPolicy, Table, TableFlags, TableKey, Value, Verdict,
};
pub use operand::Operand;
pub use snapshot::{SetContents, TableSnapshot};
pub use sync::TableSpec;
pub use trace::{Trace, TraceStep};
pub use transaction::{RulePlace, Transaction};

/// The example of the README is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
