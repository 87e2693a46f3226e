//! Another program changes the table while it is read.
//!
//! The writer adds one of a pair before it takes the other away, so that at every moment at least one is there, beside many
//! that never change. A list without both, or without one of the others, or with something twice, is not a state that ever was.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ipvs::{Batch, ErrorKind, Operation, RealServer, VirtualServerKey};

use super::{World, round_robin, tcp, with_server};

const STILL: u32 = 300;
const READS: usize = 25;

fn at(number: u32) -> SocketAddr {
    (Ipv4Addr::from(0x0a80_0000 + number), 8080).into()
}

struct StopWriting<'a>(&'a AtomicBool);

impl Drop for StopWriting<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Repeats `changes` with this pause between them while `read` runs `READS` times; returns how many reads succeeded.
fn while_changing(
    world: &dyn World,
    pause: Duration,
    changes: &[Operation],
    mut read: impl FnMut(&mut ipvs::Client) -> Result<(), ipvs::Error>,
) -> usize {
    let mut writer = world.client();
    let mut reader = world.client();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also when a read finds something wrong: the writer must not go on for ever.
        let _stop = StopWriting(&done);
        let writing = scope.spawn(|| {
            let mut rounds = 0_u32;
            while !done.load(Ordering::Relaxed) {
                for change in changes {
                    let mut batch = Batch::new();
                    batch.push(*change);
                    assert!(writer.run(&batch).is_done(), "{change}");
                    thread::sleep(pause);
                }
                rounds += 1;
            }
            rounds
        });
        let mut good = 0;
        for _ in 0..READS {
            match read(&mut reader) {
                Ok(()) => good += 1,
                Err(error) => assert_eq!(*error.kind(), ErrorKind::Interrupted, "{error}"),
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(writing.join().unwrap() > 0);
        good
    })
}

fn check<T: Ord + Copy + std::fmt::Debug>(listed: &[T], still: impl Iterator<Item = T>, pair: [T; 2]) {
    let unique: BTreeSet<T> = listed.iter().copied().collect();
    assert_eq!(unique.len(), listed.len(), "something was listed twice");
    let missing: Vec<T> = still.filter(|item| !unique.contains(item)).collect();
    assert!(missing.is_empty(), "{} are missing: {:?}", missing.len(), missing.first());
    assert!(pair.iter().any(|item| unique.contains(item)), "neither {pair:?} was listed");
}

pub(crate) fn lists_are_never_partial(world: &dyn World) {
    let mut client = world.client();
    let key = with_server(&mut client);
    let add = |number| Operation::AddRealServer(key, RealServer::new(at(number)));
    let delete = |number| Operation::DeleteRealServer(key, at(number).into());
    let (one, other) = (STILL + 1, STILL + 2);
    // One at the end of the kernel's list, where it is found last.
    let batch: Batch = std::iter::once(one).chain(0..STILL).map(add).collect();
    assert!(client.run(&batch).is_done());
    let changes = [add(other), delete(one), add(one), delete(other)];
    for (pause, some_succeed) in [(Duration::from_millis(100), true), (Duration::ZERO, false)] {
        let good = while_changing(world, pause, &changes, |reader| {
            let listed: Vec<_> = reader.list_real_servers(&key)?.iter().map(|observed| observed.server.key).collect();
            check(&listed, (0..STILL).map(|number| at(number).into()), [at(one).into(), at(other).into()]);
            Ok(())
        });
        assert!(good > 0 || !some_succeed, "no read succeeded with pauses of {pause:?}");
    }
}

pub(crate) fn snapshots_are_never_partial(world: &dyn World) {
    let mut client = world.client();
    let key = |number: u32| VirtualServerKey::tcp((at(number).ip(), 80).into());
    let add = |number| Operation::AddVirtualServer(round_robin(key(number)));
    let (one, other) = (STILL + 1, STILL + 2);
    let batch: Batch = (0..=one).map(add).collect();
    assert!(client.run(&batch).is_done());
    let changes =
        [add(other), Operation::DeleteVirtualServer(key(one)), add(one), Operation::DeleteVirtualServer(key(other))];
    for (pause, some_succeed) in [(Duration::from_millis(300), true), (Duration::from_millis(1), false)] {
        let good = while_changing(world, pause, &changes, |reader| {
            let snapshot = reader.snapshot()?;
            let listed: Vec<_> = snapshot.entries.iter().map(|entry| entry.virtual_server.server.key).collect();
            check(&listed, (0..STILL).map(key), [key(one), key(other)]);
            Ok(())
        });
        assert!(good > 0 || !some_succeed, "no snapshot succeeded with pauses of {pause:?}");
    }
    assert!(client.list_real_servers(&tcp("10.0.0.1:80")).unwrap().is_empty());
}
