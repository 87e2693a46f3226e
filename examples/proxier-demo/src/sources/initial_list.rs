//! Reads the initial list for `plan`, `render`, `show` and `run --once`.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::message::change::{Change, Snapshot};
use crate::message::{Event, channel};
use crate::problem::Problem;
use crate::settings::cli::{Configured, Source};
use crate::sources::cluster::{Cluster, Connection, Options};
use crate::sources::manifests::Manifests;
use crate::sources::read_counts::ReadCounts;

/// Why the initial list is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The configured source is wrong.
    BadInput(Vec<Problem>),
    /// The API server did not send everything.
    NoAnswer(Problem),
}

impl Unread {
    /// The problems to report.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Unread::BadInput(problems) => problems,
            Unread::NoAnswer(problem) => std::slice::from_ref(problem),
        }
    }
}

/// Reads everything once, with these options for an API server, and counts the objects so far.
///
/// An API server may take any time while it sends something new; see [`Configured::input_timeout`].
///
/// # Errors
///
/// Nothing could be read.
pub async fn read(configured: &Configured, options: Options, counted: &ReadCounts) -> Result<Snapshot, Unread> {
    let node_name = &configured.settings.node_name;
    match &configured.source {
        Source::Manifests(paths) => {
            let changes = Manifests::once(paths.clone(), node_name, counted).map_err(Unread::BadInput)?;
            let mut snapshot = Snapshot::default();
            for change in changes {
                snapshot.apply(change);
            }
            Ok(snapshot)
        }
        Source::Cluster { kubeconfig, master } => {
            let connection = Connection { kubeconfig: kubeconfig.clone(), master: master.clone() };
            let (changes, mut receiver) = channel();
            let cluster = Cluster::start(connection, node_name, options, changes)
                .await
                .map_err(|problem| Unread::BadInput(vec![problem]))?;
            let snapshot = collect(&mut receiver, configured.input_timeout, counted).await;
            snapshot.map_err(|stopped| Unread::NoAnswer(no_answer(&stopped, &cluster.outstanding(), counted)))
        }
    }
}

/// Why the changes ended before the initial list was complete.
enum EndReason {
    /// No change arrived for this time.
    Silent(Duration),
    /// The source has ended.
    Ended,
}

/// Collects changes until the initial list is complete, or nothing new arrived for `patience`; `None`: no limit.
async fn collect(
    changes: &mut mpsc::Receiver<Event>,
    patience: Option<Duration>,
    counted: &ReadCounts,
) -> Result<Snapshot, EndReason> {
    let mut snapshot = Snapshot::default();
    let mut since = Instant::now();
    loop {
        let next = match patience {
            Some(patience) => timeout(patience.saturating_sub(since.elapsed()), changes.recv())
                .await
                .map_err(|_elapsed| EndReason::Silent(patience))?,
            None => changes.recv().await,
        };
        match next.ok_or(EndReason::Ended)?.change {
            Change::Synced => return Ok(snapshot),
            // Sent at each attempt, whether the server answers or not.
            Change::Listing(_) => {}
            change => {
                since = Instant::now();
                counted.saw(&change);
                snapshot.apply(change);
            }
        }
    }
}

fn no_answer(stopped: &EndReason, outstanding: &[&str], counted: &ReadCounts) -> Problem {
    let came = counted.words();
    let missing = outstanding.join(", ");
    let reason = match stopped {
        EndReason::Silent(patience) => format!(
            "no complete answer: {came} came, then nothing for {} s, while waiting for {missing}; the log says why; \
             --input-timeout says how long to wait",
            patience.as_secs_f64()
        ),
        EndReason::Ended => format!("no complete answer: {came} came, and the client has ended; the log says why"),
    };
    Problem::new("the API server", reason)
}

/// The changes that make up a snapshot.
pub fn changes(snapshot: Snapshot) -> impl Iterator<Item = Change> {
    let services = snapshot.services.into_values().map(Change::UpsertService);
    let slices = snapshot.slices.into_values().map(Change::UpsertSlice);
    let node = snapshot.node.into_iter().map(|node| Change::Node(Box::new(node)));
    let weights = snapshot.cluster_nodes.into_values().map(|object| Change::ClusterNode(Box::new(object)));
    let cidrs = snapshot.service_cidrs.into_iter().map(|(name, networks)| Change::ServiceCidr(name, networks));
    let unreadable = snapshot.unreadable.into_iter().map(|of| Change::Unreadable(Box::new(of)));
    unreadable.chain(node).chain(weights).chain(cidrs).chain(services).chain(slices).chain([Change::Synced])
}
