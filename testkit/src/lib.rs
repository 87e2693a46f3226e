//! Tools for tests on real kernels: network namespaces, visible skips, traffic, and the usual programs as oracles.
//!
//! A test that touches the kernel calls [`kernel_test`] with its needs. It runs in its own network namespace. If the
//! kernel lacks something, the test is counted as skipped, with the reason:
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
//! It depends on none of the project's other crates, so each of them can use it. It starts the usual programs (`ip`,
//! `ipvsadm`, `ipset`, `iptables`) and has no netlink code.

#![forbid(unsafe_code)]

#[cfg(feature = "apiserver")]
pub mod apiserver;
#[cfg(feature = "corpus")]
mod corpus;
pub mod cost;
pub mod differential;
pub mod documents;
mod executable;
pub mod modules;
mod netns;
pub mod oracle;
mod page;
mod require;
mod sample;
pub mod tap;
pub mod traffic;
pub mod witness;

#[cfg(feature = "corpus")]
pub use corpus::{corpus, replay};
pub use executable::Executable;
pub use netns::{Netns, NetnsGuard, veth_pair};
pub use page::{Page, get};
pub use require::{Need, PROXY, kernel_test, missing};
pub use sample::Sample;
