//! Reading whole tables without being fooled by changes meanwhile.
//!
//! IPVS does not set `NLM_F_DUMP_INTR`. A dump that comes in one datagram is one state, since the kernel fills it under its
//! lock; one that takes several may miss or repeat entries when the table changes in between, and a table of virtual servers
//! may change between the dumps of their real servers.
//!
//! Before Linux 7 all network namespaces share the table of virtual servers and a dump counts its way through all of
//! it, so a change in any other namespace disturbs a long list too.
//!
//! So a list counts when a second reading gives the same. A reading misses an entry when an earlier one was deleted and
//! the rest moved up. Two readings miss the same one only if another program put the deleted entry back at its old
//! place between them and deleted it again: that takes a program that adds and deletes one entry faster than a list of
//! more than 80 can be read twice. Nothing that the kernel offers would show it.

use std::collections::BTreeSet;
use std::time::Duration;

use netlink_batch::Dump;

use crate::client::{Client, Expect};
use crate::error::{Error, ErrorKind, Subject};
use crate::model::{
    ObservedRealServer, ObservedVirtualServer, Snapshot, SnapshotEntry, VirtualServer, VirtualServerKey,
};

/// Pauses before a table that keeps changing is read again; when none is left, reading fails. Linux 7.2 takes some
/// milliseconds to move virtual servers to a bigger table, which reading again at once would not outlast.
const PAUSES_MS: [u64; 8] = [0, 1, 2, 5, 10, 20, 50, 100];

/// A list that came in a single datagram, or on which two consecutive readings agree and in which nothing is repeated.
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
        let unique = keys.iter().collect::<BTreeSet<_>>().len() == keys.len();
        before = unique.then_some(keys);
        let Some(pause) = pauses.next() else { return Ok(None) };
        std::thread::sleep(Duration::from_millis(*pause));
    }
}

/// The real servers of one virtual server, as one state.
pub(crate) fn list_real_servers(client: &mut Client, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, Error> {
    // A list that does not fit the small buffer is read again with the large one, where up to 80 are one datagram.
    let mut expect = Expect::Short;
    agreed(|| client.dump_real_servers(key, std::mem::replace(&mut expect, Expect::Long)), |observed| observed.server)?
        .ok_or_else(|| Error::new(ErrorKind::Interrupted, "listing the real servers of", Subject::VirtualServer(*key)))
}

/// The virtual servers, as one state. Since Linux 7.0 the kernel moves them to a bigger table some time after many were added:
/// until it has done so, a list of several datagrams may have one of them twice and lack another.
pub(crate) fn list_virtual_servers(client: &mut Client) -> Result<Vec<ObservedVirtualServer>, Error> {
    agreed(|| client.dump_virtual_servers(), |observed| observed.server)?
        .ok_or_else(|| Error::new(ErrorKind::Interrupted, "listing the virtual servers of", Subject::Ipvs))
}

/// One reading, not compared with another.
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
    let unique: BTreeSet<&VirtualServer> = servers().collect();
    let now = client.dump_virtual_servers()?.items;
    Ok(unique.len() == snapshot.entries.len() && servers().eq(now.iter().map(|observed| &observed.server)))
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
