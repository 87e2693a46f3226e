//! Consistent reads of whole tables.
//!
//! IPVS does not set `NLM_F_DUMP_INTR`. A dump in one datagram is consistent, since the kernel fills it under its lock.
//! A longer dump may miss or repeat entries if the table changes in between. The list of virtual servers may also
//! change between the dumps of their real servers.
//!
//! Before Linux 7.1 all network namespaces share one table of virtual servers, and a dump counts its way through all of
//! it. A change in another namespace therefore also disturbs a long list.
//!
//! So a list is accepted once a second read returns the same. A read misses an entry if an earlier entry was deleted
//! and the rest moved up. Two reads miss the same entry only if another program restored the deleted entry at its old
//! position between them and deleted it again. That program would have to add and delete one entry faster than a list
//! of more than 80 can be read twice. The kernel offers nothing that would reveal it.

use std::collections::BTreeSet;
use std::time::Duration;

use netlink_batch::Dump;

use crate::client::{Client, Expect};
use crate::error::{Error, ErrorKind, Subject};
use crate::model::{ObservedRealServer, ObservedVirtualServer, Snapshot, SnapshotEntry, VirtualServerKey};

/// Pauses before a changing table is read again; after the last one the read fails. Linux 7.2 takes some milliseconds
/// to move virtual servers to a larger table, which immediate retries would not outlast.
const PAUSES_MS: [u64; 8] = [0, 1, 2, 5, 10, 20, 50, 100];

/// Whether no two items are equal.
fn are_unique<'a, T: Ord + 'a>(items: impl IntoIterator<Item = &'a T>) -> bool {
    let mut seen = BTreeSet::new();
    items.into_iter().all(|item| seen.insert(item))
}

/// Returns a list that came in one datagram, or on which two consecutive reads agree and that repeats nothing.
fn agreed<T, K: Ord>(
    mut read: impl FnMut() -> Result<Dump<T>, Error>,
    key: impl Fn(&T) -> K,
) -> Result<Option<Vec<T>>, Error> {
    let mut before = None;
    let mut pauses = PAUSES_MS.iter();
    loop {
        let dump = read()?;
        if dump.datagrams <= 1 {
            return Ok(Some(dump.items));
        }
        let keys: Vec<K> = dump.items.iter().map(&key).collect();
        if before.as_ref() == Some(&keys) {
            return Ok(Some(dump.items));
        }
        before = are_unique(&keys).then_some(keys);
        let Some(pause) = pauses.next() else { return Ok(None) };
        std::thread::sleep(Duration::from_millis(*pause));
    }
}

/// The real servers of one virtual server, consistently.
pub(crate) fn list_real_servers(client: &mut Client, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, Error> {
    // A list that does not fit the small buffer is read again with the large one, where up to 80 fit into one datagram.
    let mut expect = Expect::Short;
    agreed(|| client.dump_real_servers(key, std::mem::replace(&mut expect, Expect::Long)), |observed| observed.server)?
        .ok_or_else(|| Error::new(ErrorKind::Interrupted, "listing the real servers of", Subject::VirtualServer(*key)))
}

/// The virtual servers, consistently. Since Linux 7.1 the kernel moves them to a larger table some time after many were
/// added. Until then a list of several datagrams may repeat one and miss another.
pub(crate) fn list_virtual_servers(client: &mut Client) -> Result<Vec<ObservedVirtualServer>, Error> {
    agreed(|| client.dump_virtual_servers(), |observed| observed.server)?
        .ok_or_else(|| Error::new(ErrorKind::Interrupted, "listing the virtual servers of", Subject::Ipvs))
}

/// One read, without comparison.
pub(crate) fn once(client: &mut Client) -> Result<Snapshot, Error> {
    let virtual_servers = client.dump_virtual_servers()?.items;
    let mut entries = Vec::with_capacity(virtual_servers.len());
    for virtual_server in virtual_servers {
        let real_servers = list_real_servers(client, &virtual_server.server.key)?;
        entries.push(SnapshotEntry { virtual_server, real_servers });
    }
    Ok(Snapshot { entries })
}

/// Whether the kernel lists the same virtual servers in the same order, and the snapshot repeats none.
pub(crate) fn is_still(client: &mut Client, snapshot: &Snapshot) -> Result<bool, Error> {
    let servers = || snapshot.entries.iter().map(|entry| &entry.virtual_server.server);
    let now = client.dump_virtual_servers()?.items;
    Ok(are_unique(servers()) && servers().eq(now.iter().map(|observed| &observed.server)))
}

pub(crate) fn snapshot(client: &mut Client) -> Result<Snapshot, Error> {
    for pause in PAUSES_MS {
        let snapshot = once(client)?;
        if is_still(client, &snapshot)? {
            return Ok(snapshot);
        }
        std::thread::sleep(Duration::from_millis(pause));
    }
    Err(Error::new(ErrorKind::Interrupted, "reading a snapshot of", Subject::Ipvs))
}
