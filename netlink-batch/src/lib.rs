//! A thin, fast layer over netlink sockets, shared by crates that program parts of the Linux network stack.
//!
//! It has:
//! * typed attribute tables ([`attrs!`]) with the byte order in the type, an encoder ([`Encoder`]), and decoders that
//!   never panic on malformed input;
//! * batches ([`Connection::batch`]): many requests in one send, one acknowledgement per chunk, every failure mapped
//!   to its request, and never more requests in flight than the receive buffer can answer;
//! * dumps ([`Connection::dump`]) that are complete or an error: sequence number and port id are checked, and an
//!   interrupted or truncated dump is started again a limited number of times;
//! * the kernel's error message and the name of the refused attribute ([`KernelError`]);
//! * multicast events ([`Listener`]), over a descriptor that an event loop or async runtime can wait on;
//! * a deadline on every receive. Lost answers (`ENOBUFS`) are reported as "state unknown"; changes are never retried
//!   blindly.
//!
//! It knows no netlink family (the crates above do), starts no threads, does not log and loads no modules. It has no
//! async interface and needs none: the kernel handles a request inside `send`, so the answer is queued when `send`
//! returns.
//!
//! # Example
//!
//! To use a family, declare a table of its attributes and the numbers of its commands. This lists all generic-netlink
//! families, which every kernel has and every user may read:
//!
//! ```
//! use netlink_batch::{Attrs, Genl, NulStr, attrs};
//!
//! attrs! {
//!     /// What there is to know about a family (linux/genetlink.h).
//!     "CTRL_ATTR_",
//!     pub enum FamilyAttr<'a> {
//!         /// Its number, in the machine's byte order.
//!         FAMILY_ID = 1 => Id(u16),
//!         /// Its name.
//!         FAMILY_NAME = 2 => Name(NulStr<'a>),
//!     }
//! }
//! const GET_FAMILY: u8 = 3;
//!
//! let mut controller = Genl::open("nlctrl")?;
//! // A dump is complete, or an error. `read` sees each message.
//! let read = |attributes: &[u8]| {
//!     let (mut id, mut name) = (0, String::new());
//!     for attribute in Attrs::<FamilyAttr<'_>>::new(attributes).iter() {
//!         match attribute? {
//!             FamilyAttr::Id(number) => id = number,
//!             FamilyAttr::Name(text) => name = text.to_str().unwrap_or("?").to_owned(),
//!             FamilyAttr::Unknown(_) => {} // kept as bytes
//!         }
//!     }
//!     Ok((name, id))
//! };
//! let families = controller.dump(GET_FAMILY, |_request| {}, |_header, attributes| read(attributes))?.items;
//! assert!(families.contains(&("nlctrl".to_owned(), controller.family().id)));
//!
//! // A request with attributes; what the kernel refuses, it refuses in its own words and by the attribute's name.
//! let ask = |name: &'static str| move |out: &mut netlink_batch::Encoder| out.attr(FamilyAttr::FAMILY_NAME, &NulStr::from(name));
//! let answers = controller.query(GET_FAMILY, ask("nlctrl"), |_header, attributes| read(attributes))?;
//! assert_eq!(answers.len(), 1);
//! let error = controller.request(GET_FAMILY, ask("a name of more than sixteen bytes")).unwrap_err();
//! assert_eq!(error.kernel().map(|kernel| kernel.attribute.as_slice()), Some([FamilyAttr::FAMILY_NAME].as_slice()));
//! # Ok::<(), netlink_batch::Error>(())
//! ```
//!
//! # Where to look next
//!
//! | task | API |
//! | --- | --- |
//! | declare a family's attributes | [`attrs!`], [`Attrs`], [`RawAttrs`], [`Wire`], [`Be16`], [`Be32`], [`Be64`], [`NulStr`] |
//! | write and read messages | [`Encoder`], [`Messages`], [`header`] |
//! | open a socket of any protocol | [`Connection`], [`Socket`], [`Protocol`], [`Transport`], [`Limits`] |
//! | find a generic-netlink family by name | [`Genl`] |
//! | send many requests at once | [`Connection::batch`], [`BatchReport`]; as one transaction: [`Connection::together`] |
//! | read a complete table | [`Connection::dump`], [`Dump`] |
//! | explain a refusal | [`KernelError`], [`ExtendedAck`], [`Errno`] |
//! | follow multicast events | [`Listener`] |
//! | write settings of a request once, and numbers of a C header | [`settings!`], [`numbers!`] |
//! | test without a kernel | [`testing`] |
//!
//! # Dependencies
//!
//! The socket is [neli](https://docs.rs/neli)'s. None of its types are public here, because its router costs ten times
//! the request that it carries. `cargo tree -e normal` shows 31 crates below this one:
//! * 11 are linked: `libc`, `nix` (socket options, `setns`) with `bitflags`, `cfg-if` and `memoffset`, `thiserror`,
//!   and `neli` with `byteorder`, `derive_builder`, `linux-raw-sys` and `log`;
//! * 20 are procedural macros and their dependencies (`syn`, `darling`, `serde_derive` and others), which are only
//!   built.
//!
//! neli brings 20 of the 31. All of its optional features are off, including its routers and `parking_lot`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod attr;
mod batch;
mod connection;
mod encode;
mod error;
mod extack;
mod genl;
pub mod header;
mod listener;
mod message;
mod socket;
mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod together;
mod wire;

pub use attr::{
    AttrRow, AttrTable, Attribute, Attrs, NLA_TYPE_MASK, RawAttr, RawAttrs, decode_row, encode_row, locate,
};
pub use batch::{BatchReport, BatchWriter, Outcome};
pub use connection::{Connection, Dump, Limits, Transport};
pub use encode::{Encoder, NLA_F_NESTED};
pub use error::{Errno, Error, ErrorKind, KernelError, WireError};
pub use extack::{ExtAckAttr, ExtendedAck};
pub use genl::{ControllerAttr, Family, Genl, GroupAttr};
pub use listener::Listener;
pub use message::{Content, Message, Messages};
pub use socket::{Protocol, Socket};
pub use together::TogetherWriter;
pub use wire::{Be16, Be32, Be64, NulStr, Wire};
