//! A thin, fast layer over netlink sockets, shared by crates that program parts of the Linux network stack.
//!
//! It gives them
//! * typed attribute tables ([`attrs!`]) with byte order in the type, one encoder that only appends ([`Encoder`]), and
//!   decoders that never panic: every prefix of a valid message gives an error or fewer items;
//! * batches ([`Connection::batch`]): many requests in one send, an acknowledgement asked for only on the last, every
//!   failure mapped to its request, never more in flight than the receive buffer can answer;
//! * dumps ([`Connection::dump`]) that are complete or an error: sequence number and port id are checked, changes during the
//!   dump and cut-off datagrams lead to a bounded number of new attempts;
//! * the kernel's own words and the name of the attribute it refused ([`KernelError`]);
//! * a deadline on every receive. Lost answers (`ENOBUFS`) are reported as "state unknown", never retried blindly.
//!
//! It does not know any family (those are in the crates above), start threads, log, load modules or use an async runtime: the
//! kernel handles a request inside `send`, so its answer is queued when `send` returns.
//!
//! The socket below is [neli](https://docs.rs/neli)'s; none of its types appear here, because its router costs ten times the
//! request it carries.
//!
//! # Example
//!
//! Asking the kernel for its generic-netlink controller, which every kernel has:
//!
//! ```
//! use netlink_batch::Genl;
//!
//! let genl = Genl::open("nlctrl")?;
//! assert_eq!(genl.family().id, 0x10);
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
pub use genl::{ControllerAttr, Family, Genl};
pub use message::{Content, Message, Messages};
pub use socket::{Protocol, Socket};
pub use together::TogetherWriter;
pub use wire::{Be16, Be32, Be64, NulStr, Wire};
