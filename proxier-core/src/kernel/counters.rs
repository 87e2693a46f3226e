//! Named packet counters (nfacct), to which iptables rules can refer, over nfnetlink. Kernel:
//! net/netfilter/nfnetlink_acct.c.

use std::collections::BTreeMap;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Attrs, Be64, Connection, Encoder, Errno, Error, NulStr, Protocol, attrs};

use super::lazy::Lazy;
use super::release::until_released;
use crate::pack::Gather as _;
use crate::ports::Result;

/// `NFNL_SUBSYS_ACCT` in the upper byte, `NFNL_MSG_ACCT_*` in the lower.
const NEW: u16 = 0x0700;
const GET: u16 = 0x0701;
const DELETE: u16 = 0x0703;

const NLM_F_CREATE: u16 = 0x0400;

attrs! {
    /// A counter.
    "NFACCT_",
    pub enum CounterAttr<'a> {
        NAME = 1 => Name(NulStr<'a>),
        PKTS = 2 => Packets(Be64),
    }
}

/// Named packet counters of the network namespace in which it is first used.
#[derive(Debug)]
pub struct PacketCounters {
    connection: Lazy<Connection, Error>,
}

impl Default for PacketCounters {
    /// Opens a socket at first use.
    fn default() -> Self {
        PacketCounters { connection: Lazy::new(|| Connection::open(Protocol::Netfilter)) }
    }
}

impl PacketCounters {
    /// Reads the packets of all counters.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ports::PortErrorKind::Unavailable) if the kernel does not support them.
    pub fn read(&mut self) -> Result<BTreeMap<String, u64>> {
        let read = |payload: &[u8]| {
            let (mut name, mut packets) = (None, 0);
            let attributes = payload.get(NfGenHeader::LENGTH..).unwrap_or_default();
            for attr in Attrs::<CounterAttr<'_>>::new(attributes).iter() {
                match attr? {
                    CounterAttr::Name(text) => name = text.to_str().map(str::to_owned),
                    CounterAttr::Packets(Be64(number)) => packets = number,
                    CounterAttr::Unknown(_) => {}
                }
            }
            Ok(name.map(|name| (name, packets)))
        };
        let list = |connection: &mut Connection| connection.dump(GET, 0, &header(), |_| {}, read);
        Ok(self.attempt("listing counters of packets", list)?.items.into_iter().flatten().gather())
    }

    /// Creates a counter, unless it exists.
    pub fn make(&mut self, name: &str) -> Result<()> {
        self.attempt("making counters of packets", |connection| {
            let name = |out: &mut Encoder| out.attr(CounterAttr::NAME, &NulStr::from(name));
            // The kernel answers EBUSY for an existing one.
            unless(&[Errno::EBUSY, Errno::EEXIST], connection.request(NEW, NLM_F_CREATE, &header(), name)).map(|_| ())
        })
    }

    /// Deletes a counter to which no rule refers. Returns whether it existed and was deleted. The kernel frees rules a
    /// moment after they are deleted, so this tries for up to 200 ms.
    pub(crate) fn delete(&mut self, name: &str) -> Result<bool> {
        let is_in_use = |outcome: &Result<Option<bool>>| matches!(outcome, Ok(None));
        let deleted = until_released(20, is_in_use, || {
            self.attempt("deleting counters of packets", |connection| {
                let name = |out: &mut Encoder| out.attr(CounterAttr::NAME, &NulStr::from(name));
                match connection.request(DELETE, 0, &header(), name) {
                    Err(error) if is_one_of(&error, &[Errno::EBUSY]) => Ok(None),
                    outcome => unless(&[Errno::ENOENT], outcome).map(Some),
                }
            })
        })?;
        Ok(deleted.unwrap_or_default())
    }

    fn attempt<T>(&mut self, doing: &str, attempt: impl FnOnce(&mut Connection) -> Result<T, Error>) -> Result<T> {
        self.connection.call_subsystem(doing, " (module nfnetlink_acct)", attempt)
    }
}

fn header() -> [u8; NfGenHeader::LENGTH] {
    NfGenHeader { family: 0, version: 0, resource: 0 }.to_bytes()
}

fn is_one_of(error: &Error, numbers: &[Errno]) -> bool {
    error.kernel().is_some_and(|refusal| numbers.contains(&refusal.errno))
}

/// Whether it succeeded; `false` if the kernel answered one of these numbers.
fn unless(numbers: &[Errno], outcome: Result<(), Error>) -> Result<bool, Error> {
    match outcome {
        Err(error) if is_one_of(&error, numbers) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}
