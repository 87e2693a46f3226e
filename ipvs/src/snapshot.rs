//! Reading whole tables without being fooled by changes meanwhile.
//!
//! IPVS does not set `NLM_F_DUMP_INTR`. A dump that comes in one datagram is one state, since the kernel fills it under its
//! lock; one that takes several may miss or repeat entries when the table changes in between, and a table of virtual servers
//! may change between the dumps of their real servers.
//!
//! So a list is believed when reading it again gives the same. A gap is an entry that went away, with everything behind it moving
//! up: for two readings to have the same gap, that same entry must have been put back at its old place between them, and taken
//! away again. A program that flips one entry faster than a list of more than 80 can be read twice can bring that about; nothing
//! that the kernel offers would show it.

use std::collections::BTreeSet;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Subject};
use crate::model::{ObservedRealServer, Snapshot, SnapshotEntry, VirtualServer, VirtualServerKey};

/// How often a table is read before it is given up as too restless.
const ATTEMPTS: usize = 8;

/// The real servers of one virtual server, as one state.
pub(crate) fn list_real_servers(client: &mut Client, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, Error> {
    let mut dump = client.dump_real_servers(key)?;
    for _ in 0..ATTEMPTS {
        if dump.datagrams <= 1 {
            return Ok(dump.items);
        }
        // More than about 80 real servers: believe a list when reading it again gives the same keys in the same order.
        let again = client.dump_real_servers(key)?;
        let keys = |items: &[ObservedRealServer]| items.iter().map(|item| item.server).collect::<Vec<_>>();
        if keys(&dump.items) == keys(&again.items) {
            return Ok(again.items);
        }
        dump = again;
    }
    Err(Error::new(ErrorKind::Interrupted, "listing the real servers of", Subject::VirtualServer(*key)))
}

pub(crate) fn snapshot(client: &mut Client) -> Result<Snapshot, Error> {
    let mut virtual_servers = client.dump_virtual_servers()?.items;
    for _ in 0..ATTEMPTS {
        let mut entries = Vec::with_capacity(virtual_servers.len());
        for virtual_server in &virtual_servers {
            let real_servers = list_real_servers(client, &virtual_server.server.key)?;
            entries.push(SnapshotEntry { virtual_server: *virtual_server, real_servers });
        }
        let again = client.dump_virtual_servers()?.items;
        let servers: Vec<&VirtualServer> = virtual_servers.iter().map(|observed| &observed.server).collect();
        let unique: BTreeSet<&VirtualServer> = servers.iter().copied().collect();
        if unique.len() == servers.len() && servers.iter().copied().eq(again.iter().map(|observed| &observed.server)) {
            return Ok(Snapshot { entries });
        }
        virtual_servers = again;
    }
    Err(Error::new(ErrorKind::Interrupted, "reading a snapshot of", Subject::Ipvs))
}
