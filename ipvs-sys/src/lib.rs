//! The generic-netlink interface of the Linux IP Virtual Server, as `linux/ip_vs.h` has it.
//!
//! Every command and attribute, with its type and byte order, and what each error number means for each command. Names are
//! those of C without their prefix, so that what you find here you find in the kernel: [`SvcAttr::SCHED_NAME`] is
//! `IPVS_SVC_ATTR_SCHED_NAME`. Attributes this crate does not know are kept and written again unchanged.
//!
//! There is no I/O here, no policy and no `unsafe`. For programming virtual servers use the `ipvs` crate on top.
//!
//! # What there is
//!
//! | of the family | here |
//! | --- | --- |
//! | virtual servers | [`SvcAttr`], [`NewService`], [`SetService`], [`DelService`], [`GetService`] |
//! | real servers | [`DestAttr`], [`NewDest`], [`SetDest`], [`DelDest`], [`GetDest`] |
//! | counters and rates | [`StatsAttr`], [`Counter`], [`Zero`] |
//! | synchronisation daemons | [`DaemonAttr`], [`NewDaemon`], [`DelDaemon`], [`GetDaemon`] |
//! | time-outs, version, everything at once | [`SetConfig`], [`GetConfig`], [`GetInfo`], [`InfoAttr`], [`Flush`] |
//! | command and error numbers | [`Command`], [`CmdAttr`] |
//! | constants of the header | [`uapi`] |
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
