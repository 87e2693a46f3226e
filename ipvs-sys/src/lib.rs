//! The generic-netlink interface of the Linux IP Virtual Server (IPVS), as in `linux/ip_vs.h`.
//!
//! It has every command and attribute with its type and byte order, and the meaning of each error number for each
//! command. Names are the C names without their prefix, so you can search the kernel for them: [`SvcAttr::SCHED_NAME`]
//! is `IPVS_SVC_ATTR_SCHED_NAME`. Unknown attributes are kept and written back unchanged.
//!
//! It does no I/O and has no policy and no `unsafe` code. To program virtual servers, use the crate `ipvs`, which is
//! built on this one.
//!
//! # Example
//!
//! The bytes that delete the virtual server 10.0.0.1:80, from the generic-netlink header on:
//!
//! ```
//! use ipvs_sys::{Command, DelService, SvcAttr};
//! use netlink_batch::{Be16, Encoder};
//!
//! let mut address = [0; 16];
//! address[..4].copy_from_slice(&[10, 0, 0, 1]);
//! let key = [
//!     SvcAttr::Af(2), // AF_INET
//!     SvcAttr::Protocol(6),
//!     SvcAttr::Addr(address),
//!     SvcAttr::Port(Be16(80)),
//! ];
//! let mut out = Encoder::new();
//! DelService { service: &key[..] }.encode(&mut out);
//! assert_eq!(out.len(), 4 + 8 + 8 + 20 + 8);
//! ```
//!
//! # Where to look next
//!
//! | part | API |
//! | --- | --- |
//! | virtual servers | [`SvcAttr`], [`NewService`], [`SetService`], [`DelService`], [`GetService`] |
//! | real servers | [`DestAttr`], [`NewDest`], [`SetDest`], [`DelDest`], [`GetDest`] |
//! | counters and rates | [`StatsAttr`], [`Counter`], [`Zero`] |
//! | synchronisation daemons | [`DaemonAttr`], [`NewDaemon`], [`DelDaemon`], [`GetDaemon`] |
//! | timeouts, version, flush | [`SetConfig`], [`GetConfig`], [`GetInfo`], [`InfoAttr`], [`Flush`] |
//! | commands and attributes in general | [`Command`], [`CmdAttr`] |
//! | constants of the header | [`uapi`] |
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod attr;
mod cmd;
mod daemon;
mod dest;
mod service;
mod stats;
pub mod uapi;

pub use attr::{CmdAttr, InfoAttr};
pub use cmd::*;
pub use daemon::DaemonAttr;
pub use dest::DestAttr;
pub use service::{FlagsMask, SvcAttr};
pub use stats::{Counter, StatsAttr};
