//! The cost of reading grows linearly with the input, not quadratically.
#![cfg(feature = "proxier-demo")]
#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::fmt::Write as _;
use std::fs;

use examples::proxier_demo::sources::change::{Change, Snapshot};
use examples::proxier_demo::sources::manifests::Manifests;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};

/// How long this thread has been on a processor, in nanoseconds: other programs do not count.
fn busy() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// The least cost of some work in a few attempts.
fn cost(mut work: impl FnMut()) -> u64 {
    let attempt = |work: &mut dyn FnMut()| {
        let start = busy();
        work();
        busy() - start
    };
    (0..3).map(|_| attempt(&mut work)).min().unwrap()
}

/// Eight times as much takes eight times as long, plus a logarithm and cache effects, and 64 times if it is quadratic.
fn is_linear(what: &str, mut work: impl FnMut(usize)) {
    const SMALL: usize = 1000;
    work(SMALL);
    let (small, large) = (cost(|| work(SMALL)), cost(|| work(8 * SMALL)));
    assert!(large < 24 * small, "{what}: {SMALL} took {small} ns, {} took {large} ns", 8 * SMALL);
}

fn service(number: usize) -> ServiceObject {
    let mut object = ServiceObject::default();
    object.metadata.name = format!("s-{number}");
    "demo".clone_into(&mut object.metadata.namespace);
    object
}

#[test]
fn a_snapshot_takes_each_change_at_its_own_cost() {
    is_linear("changes", |count| {
        let mut snapshot = Snapshot::default();
        for number in 0..count {
            let metadata = service(number).metadata;
            let slice = EndpointSliceObject { metadata, ..EndpointSliceObject::default() };
            snapshot.take(Change::UpsertService(Box::new(service(number))));
            snapshot.take(Change::UpsertSlice(Box::new(slice)));
        }
        assert_eq!((snapshot.services.len(), snapshot.slices.len()), (count, count));
        let keys = snapshot.services.keys().cloned().collect();
        snapshot.take(Change::LostServices(keys));
        assert!(snapshot.services.is_empty());
    });
}

#[test]
fn files_are_read_at_the_cost_of_their_length() {
    let path = std::env::temp_dir().join(format!("proxier-demo-linear-{}.yaml", std::process::id()));
    is_linear("a file", |count| {
        let mut text = String::new();
        for number in 0..count {
            write!(text, "apiVersion: v1\nkind: Service\nmetadata: {{name: s-{number}, namespace: demo}}\n---\n")
                .unwrap();
        }
        fs::write(&path, text).unwrap();
        let (_, changes) = Manifests::open(vec![path.clone()], "n1").unwrap();
        assert_eq!(changes.len(), count);
    });
    fs::remove_file(path).unwrap();
}
