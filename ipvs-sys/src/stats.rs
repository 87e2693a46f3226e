//! Counters and rates. Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_fill_stats`, `ip_vs_genl_fill_stats64`.

use netlink_batch::{Encoder, Wire, attrs};

/// A counter: 32 bits in the old statistics (except byte counts), 64 bits in the new ones. It is written with the width
/// with which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// 32 bits.
    Narrow(u32),
    /// 64 bits.
    Wide(u64),
}

impl Counter {
    /// The count.
    #[inline]
    pub fn get(self) -> u64 {
        match self {
            Counter::Narrow(count) => count.into(),
            Counter::Wide(count) => count,
        }
    }
}

impl Wire<'_> for Counter {
    const EXPECTED: &'static str = "4 or 8 bytes";

    #[inline]
    fn get(payload: &[u8]) -> Option<Self> {
        u32::get(payload).map(Counter::Narrow).or_else(|| u64::get(payload).map(Counter::Wide))
    }

    fn put(&self, out: &mut Encoder) {
        match self {
            Counter::Narrow(count) => count.put(out),
            Counter::Wide(count) => count.put(out),
        }
    }
}

attrs! {
    /// Statistics of a virtual or real server.
    "IPVS_STATS_ATTR_", pub enum StatsAttr<'a> {
        /// Connections scheduled.
        CONNS = 1 => Conns(Counter),
        /// Packets from clients.
        INPKTS = 2 => InPkts(Counter),
        /// Packets to clients.
        OUTPKTS = 3 => OutPkts(Counter),
        /// Bytes from clients.
        INBYTES = 4 => InBytes(Counter),
        /// Bytes to clients.
        OUTBYTES = 5 => OutBytes(Counter),
        /// Connections a second.
        CPS = 6 => Cps(Counter),
        /// Packets from clients a second.
        INPPS = 7 => InPps(Counter),
        /// Packets to clients a second.
        OUTPPS = 8 => OutPps(Counter),
        /// Bytes from clients a second.
        INBPS = 9 => InBps(Counter),
        /// Bytes to clients a second.
        OUTBPS = 10 => OutBps(Counter),
        /// Padding that aligns the following 64-bit counter.
        PAD = 11 => Pad(&'a [u8]),
    }
}
