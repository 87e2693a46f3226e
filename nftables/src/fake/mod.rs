//! A simulated kernel that understands nf_tables' netlink messages (feature `testing`).
//!
//! The fake follows the kernel's rules: existence, use, what a transaction may refer to, and the error number of each
//! refusal. Transactions are atomic, and a batch without an end is only checked. It passes the same tests as the
//! kernel.
//!
//! The fake has no packets, owners of tables or events. Elements are listed with their full lifetime until they expire.
//! Expressions are checked only for the sets, chains and objects to which they refer. Expressions that the crate keeps
//! as bytes are stored.

mod reply;
mod state;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use netlink_batch::testing::{Reply, Responder, Simulated};
use netlink_batch::{Errno, Message};

use crate::uapi;
use state::Ruleset;

/// The rule set of a namespace. Clones share it.
///
/// A test examines what the code under test has written:
///
/// ```
/// use nftables::fake::FakeNftables;
/// use nftables::{Chain, Client, Error, Family, Table, TableKey, Transaction};
///
/// fn sync(client: &mut Client, table: &TableKey) -> Result<(), Error> {
///     let mut transaction = Transaction::new();
///     transaction.add_table(Table::new(table.clone())).add_chain(Chain::regular(table.chain("services")?));
///     client.commit(&transaction)
/// }
///
/// let kernel = FakeNftables::new();
/// let table = TableKey::new(Family::Inet, "proxy")?;
/// sync(&mut Client::with_transport(kernel.transport()), &table)?;
///
/// let mut other = Client::with_transport(kernel.transport());
/// assert_eq!(other.get_table(&table)?.references, 1);
/// assert_eq!(other.snapshot(&table)?.to_string(), "table inet proxy {\n\tchain services {\n\t}\n}\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FakeNftables {
    state: Arc<Mutex<Ruleset>>,
}

impl FakeNftables {
    /// A namespace without tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// A transport to it, for [`Client::with_transport`](crate::Client::with_transport), with configurable faults.
    pub fn transport(&self) -> Simulated<FakeNftables> {
        Simulated::new(self.clone())
    }

    /// Refuses to add elements whose keys begin with these bytes; `None` stops that. Many keys have an address as their
    /// first field.
    pub fn refuse_elements(&self, refusal: Option<(&[u8], Errno)>) {
        let objections = &mut self.lock().objections;
        match refusal {
            Some((begin, errno)) => objections.push((begin.to_vec(), errno)),
            None => objections.clear(),
        }
    }

    /// Whether refusals omit the part of the message that they concern, as on older kernels.
    pub fn set_silent(&self, is_silent: bool) {
        self.lock().is_silent = is_silent;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ruleset> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.expire(Instant::now());
        state
    }

    /// A datagram that starts with `NFNL_MSG_BATCH_BEGIN` (net/netfilter/nfnetlink.c, `nfnetlink_rcv_batch`).
    fn batch(&self, messages: &[Message<'_>]) -> Vec<Reply> {
        let mut state = self.lock();
        let all = |reply: Reply| {
            let mut replies = vec![Reply::Ok; messages.len()];
            if let Some(first) = replies.first_mut() {
                *first = reply;
            }
            replies
        };
        let wanted = messages.first().and_then(|begin| reply::batch_generation(begin.payload));
        if wanted.is_some_and(|wanted| wanted != state.generation) {
            return all(Reply::Error(Errno::ERESTART));
        }
        let mut next = state.clone();
        next.begin();
        let mut replies = Vec::with_capacity(messages.len());
        let (mut failed, mut ended) = (false, false);
        for message in messages {
            let reply = match message.header.kind {
                uapi::NFNL_MSG_BATCH_BEGIN => Reply::Ok,
                uapi::NFNL_MSG_BATCH_END => {
                    ended = true;
                    Reply::Ok
                }
                kind if kind.to_be_bytes().first() == Some(&uapi::NFNL_SUBSYS_NFTABLES) => {
                    reply::change(&mut next, message)
                }
                _ => Reply::Error(Errno::EINVAL),
            };
            failed |= !matches!(reply, Reply::Ok);
            replies.push(reply);
        }
        // A check ends before this step (`nf_tables_commit`).
        if !failed && ended {
            if let Err(errno) = next.validate() {
                return all(Reply::Error(errno));
            }
            next.generation = next.generation.wrapping_add(1);
            *state = next;
        }
        replies
    }
}

impl Responder for FakeNftables {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        reply::read(&mut self.lock(), message)
    }

    fn respond_together(&mut self, messages: &[Message<'_>]) -> Option<Vec<Reply>> {
        let begins = messages.first().is_some_and(|first| first.header.kind == uapi::NFNL_MSG_BATCH_BEGIN);
        begins.then(|| self.batch(messages))
    }
}
