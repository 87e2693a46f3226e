//! Userspace mode: this process listens for Services itself, and passes connections and datagrams on. For kernels
//! without IPVS and netfilter.
//!
//! Routes make the addresses of Services local ("AnyIP": `ip route add local 10.96.0.0/12 dev lo`), one for each
//! network of [`UserspaceOptions::service_cidrs`] and one for each address outside of them. Node ports have listeners
//! at the node's addresses. What clients and endpoints notice is in `docs/modes.md`, and what differs from kube-proxy
//! for packets in one list that tests use, `tests/differences` of this crate. Besides:
//!
//! * An endpoint that refuses, or does not answer within 250 ms, is skipped; those that did not answer are tried again,
//!   for 500 ms, 1 s and 2 s. Then the connection is reset.
//! * A half-closed connection stays half-open, and a reset is forwarded. Data that a slow reader does not take stays
//!   with the sender. TCP urgent data stays in line with the rest.
//! * Connections to a removed endpoint, and those of a removed Service, continue until either side closes them. UDP
//!   clients move to another endpoint at once, unless their own still serves (hints or policies exclude it, or it is
//!   terminating).
//! * A UDP flow is a client's address and port at a listener. It ends after [`UserspaceOptions::udp_idle`] without a
//!   datagram, or when the endpoint refuses.
//! * A client that may not connect (source ranges; policy `Local` without a local endpoint) has its TCP connection
//!   accepted and reset, if other clients may connect. Without endpoints for any client it is refused. UDP datagrams
//!   are dropped.
//! * With external policy `Local` the node and its pods get the cluster's endpoints, as in kube-proxy's iptables mode.

mod mode;

pub(crate) use mode::Mode;
pub use mode::UserspaceOptions;

use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::networks::delete_routes;
use crate::ports::{Ports, RouteOwner};

/// Why SCTP is not served.
#[doc(hidden)]
pub const NO_SCTP: &str = "userspace mode serves TCP and UDP; SCTP needs a mode of the kernel (ipvs, nftables)";

/// Deletes the local routes that this mode has created, and nothing else. Everything else ends with the mode's process.
#[doc(hidden)]
pub fn cleanup(ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    delete_routes(RouteOwner::Userspace, ports, &mut cleaned);
    cleaned
}
