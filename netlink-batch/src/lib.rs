//! A thin, fast layer over netlink sockets, shared by crates that program parts of the Linux network stack.
//!
//! Contents:
//! * typed attribute tables ([`attrs!`]) with byte order in the type, one encoder that only appends ([`Encoder`]), and
//!   decoders that never panic: every prefix of a valid message gives an error or fewer items;
//! * batches ([`Connection::batch`]): many requests in one send, an acknowledgement asked for only on the last, every
//!   failure mapped to its request, never more in flight than the receive buffer can answer;
//! * dumps ([`Connection::dump`]) that are complete or an error: sequence number and port id are checked, changes during the
//!   dump and cut-off datagrams lead to a bounded number of new attempts;
//! * the kernel's own words and the name of the attribute it refused ([`KernelError`]);
//! * multicast events ([`Listener`]), over a descriptor that an event loop or async runtime can wait on;
//! * a deadline on every receive. Lost answers (`ENOBUFS`) are reported as "state unknown", never retried blindly.
//!
//! The crate does not know any family (those are in the crates above), start threads, log, load modules or use an async runtime: the
//! kernel handles a request inside `send`, so its answer is queued when `send` returns.
//!
//! # What there is
//!
//! | task | here |
//! | --- | --- |
//! | a family's attributes | [`attrs!`], [`Attrs`], [`RawAttrs`], [`Wire`], [`Be16`], [`Be32`], [`Be64`], [`NulStr`] |
//! | messages, written and read | [`Encoder`], [`Messages`], [`header`] |
//! | a socket of any protocol | [`Connection`], [`Socket`], [`Protocol`], [`Transport`], [`Limits`] |
//! | a generic family by its name | [`Genl`] |
//! | many requests in one send | [`Connection::batch`], [`BatchReport`]; as one transaction: [`Connection::together`] |
//! | complete dumps | [`Connection::dump`], [`Dump`] |
//! | refusals, with the attribute | [`KernelError`], [`ExtendedAck`], [`Errno`] |
//! | multicast events | [`Listener`] |
//! | kernels in memory | [`testing`] |
//!
//! # What it is made of
//!
//! The socket below is [neli](https://docs.rs/neli)'s; none of its types appear here, because its router costs ten times the
//! request it carries. `cargo tree -e normal` shows 31 crates below this one:
//! * 11 end up in a program: `libc`, `nix` (socket options, `setns`) with `bitflags`, `cfg-if` and `memoffset`, `thiserror`, and
//!   `neli` with `byteorder`, `derive_builder`, `linux-raw-sys` and `log`;
//! * 20 are procedural macros and what those are made of (`syn`, `darling`, `serde_derive` and others): built once, not linked.
//!
//! 20 of the 31 are neli's alone and do not depend on its features, of which none is on: its routers, and `parking_lot` with them,
//! are left out.
//!
//! # Example
//!
//! A family of one's own takes a table of its attributes and the numbers of its commands. Here, the family of all
//! generic-netlink families, which every kernel has and everybody may ask:
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
