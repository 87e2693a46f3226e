//! Another program changes the table while it is read.
//!
//! The writer adds the next entry before it deletes the last one, so at every moment at least one of them exists, in
//! addition to many that never change. A list without any, without one of those, or with a repeated entry was never the
//! table's state. A slow writer alternates between two entries; a fast one uses a new entry each time. If one entry
//! were deleted and restored at its position faster than a list can be read, two reads could agree on the same gap, and
//! no reader could tell.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ipvs::{Batch, ErrorKind, Operation, RealServer, VirtualServerKey};

use super::{World, round_robin, with_server};

const STILL: u32 = 300;
const READS: usize = 12;
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

fn at(number: u32) -> SocketAddr {
    (Ipv4Addr::from(0x0a80_0000 + number), 8080).into()
}

struct StopWriting<'a>(&'a AtomicBool);

impl Drop for StopWriting<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Carries out `changes` in turn with this pause between them while `read` runs `READS` times; returns how many reads succeeded.
fn while_changing(
    world: &dyn World,
    pause: Duration,
    changes: impl Iterator<Item = Operation> + Send,
    mut read: impl FnMut(&mut ipvs::Client) -> Result<(), ipvs::Error>,
) -> usize {
    let mut writer = world.client();
    let mut reader = world.client();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Stops the writer also when a check of a read fails.
        let stop = StopWriting(&done);
        let writing = scope.spawn(|| {
            let mut written = 0_u32;
            for change in changes {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let mut batch = Batch::new();
                batch.push(change);
                assert!(writer.run(&batch).is_done(), "{change}");
                written += 1;
                thread::sleep(pause);
            }
            written
        });
        let mut good = 0;
        for _ in 0..READS {
            match read(&mut reader) {
                Ok(()) => good += 1,
                Err(error) => assert_eq!(*error.kind(), ErrorKind::Interrupted, "{error}"),
            }
        }
        drop(stop);
        assert!(writing.join().unwrap() > 0);
        good
    })
}

/// Runs `attempt` with this pause; it returns how many reads succeeded. Where some must succeed and none did, tries
/// longer pauses: how long a read takes depends on the machine.
fn with_pauses(first: Duration, some_succeed: bool, mut attempt: impl FnMut(Duration) -> usize) {
    let mut pause = first;
    while attempt(pause) == 0 && some_succeed {
        pause *= 2;
        assert!(pause < LONGEST_PAUSE, "no read succeeded with pauses of {pause:?}");
    }
}

/// Pairs without end: the entry to add, and the one before it, to delete.
fn coming_and_going(fresh: bool) -> impl Iterator<Item = (u32, u32)> + Send {
    let name = move |number: u32| if fresh { STILL + number } else { STILL + number % 2 };
    (1..=u32::MAX).map(move |number| (name(number), name(number - 1)))
}

fn check<T: Ord + Copy + std::fmt::Debug>(listed: &[T], still: impl Iterator<Item = T>) {
    let unique: BTreeSet<T> = listed.iter().copied().collect();
    assert_eq!(unique.len(), listed.len(), "something was listed twice");
    let missing: Vec<T> = still.filter(|item| !unique.contains(item)).collect();
    assert!(missing.is_empty(), "{} are missing: {:?}", missing.len(), missing.first());
    let moving = unique.len() - usize::try_from(STILL).unwrap();
    assert!((1..=2).contains(&moving), "{moving} of those that come and go");
}

/// Writers: pause, whether each entry is a new one, whether some reads have to succeed.
fn writers(pause_millis: u64) -> [(Duration, bool, bool); 2] {
    [(Duration::from_millis(pause_millis), false, true), (Duration::ZERO, true, false)]
}

pub(crate) fn lists_are_never_partial(world: &dyn World) {
    for (pause, fresh, some_succeed) in writers(100) {
        with_pauses(pause, some_succeed, |pause| {
            let mut client = world.client();
            client.flush_and_cut_everything().unwrap();
            let key = with_server(&mut client);
            let add = |number| Operation::AddRealServer(key, RealServer::new(at(number)));
            let delete = |number| Operation::DeleteRealServer(key, at(number).into());
            let batch: Batch = (0..=STILL).map(add).collect();
            assert!(client.run(&batch).is_done());
            let changes = coming_and_going(fresh).flat_map(|(comes, goes)| [add(comes), delete(goes)]);
            while_changing(world, pause, changes, |reader| {
                let listed: Vec<_> =
                    reader.list_real_servers(&key)?.iter().map(|observed| observed.server.key).collect();
                check(&listed, (0..STILL).map(|number| at(number).into()));
                Ok(())
            })
        });
    }
}

pub(crate) fn snapshots_are_never_partial(world: &dyn World) {
    for (pause, fresh, some_succeed) in writers(400) {
        with_pauses(pause, some_succeed, |pause| {
            let mut client = world.client();
            client.flush_and_cut_everything().unwrap();
            let key = |number: u32| VirtualServerKey::tcp((at(number).ip(), 80).into());
            let add = |number| Operation::AddVirtualServer(round_robin(key(number)));
            let delete = |number| Operation::DeleteVirtualServer(key(number));
            let batch: Batch = (0..=STILL).map(add).collect();
            assert!(client.run(&batch).is_done());
            let changes = coming_and_going(fresh).flat_map(|(comes, goes)| [add(comes), delete(goes)]);
            let mut listing = false;
            while_changing(world, pause, changes, |reader| {
                // Every other time the virtual servers alone.
                listing = !listing;
                if listing {
                    let listed: Vec<_> =
                        reader.list_virtual_servers()?.iter().map(|observed| observed.server.key).collect();
                    check(&listed, (0..STILL).map(key));
                    return Ok(());
                }
                let snapshot = reader.snapshot()?;
                let listed: Vec<_> = snapshot.entries.iter().map(|entry| entry.virtual_server.server.key).collect();
                check(&listed, (0..STILL).map(key));
                Ok(())
            })
        });
    }
}
