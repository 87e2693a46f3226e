//! Ground for tests on real kernels: network namespaces, visible skips, traffic, and the field's own tools as oracles.
//!
//! A test that touches the kernel goes through [`kernel_test`]. It says what it needs, gets a network namespace of its
//! own, and is counted as skipped, with the reason, where the kernel cannot do it:
//!
//! ```
//! use testkit::{Need, kernel_test, oracle};
//!
//! kernel_test(&[Need::Root, Need::Ipset("hash:ip")], || {
//!     oracle::ipset_restore("create blue hash:ip\nadd blue 192.0.2.1\n").unwrap();
//!     assert!(oracle::ipset_save().unwrap().contains("add blue 192.0.2.1"));
//! });
//! ```
//!
//! `cargo xtask test` runs such tests on this machine's kernel first, and then on Debian's kernels in a virtual
//! machine, where a skip is a failure (`TESTKIT_REQUIRE=all`).
//!
//! This crate depends on none of the project's other crates, so each of them can be tested with it. It starts the
//! field's own programs (`ip`, `ipvsadm`, `ipset`, `iptables`) and speaks no netlink itself.

#![forbid(unsafe_code)]

#[cfg(feature = "apiserver")]
pub mod apiserver;
mod capture;
#[cfg(feature = "corpus")]
mod corpus;
mod executable;
mod hexdiff;
pub mod modules;
mod netns;
pub mod oracle;
mod page;
mod require;
mod sample;
pub mod tap;
pub mod traffic;
pub mod witness;

pub use capture::Capture;
#[cfg(feature = "corpus")]
pub use corpus::{corpus, replay};
pub use executable::Executable;
pub use hexdiff::hexdiff;
pub use netns::{Netns, NetnsGuard, veth_pair};
pub use page::{Page, get};
pub use require::{Need, PROXY, kernel_test, missing};
pub use sample::Sample;
