//! Reads the initial list for `plan`, `render`, `show` and `run --once`.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::message::change::{Change, Snapshot};
use crate::message::{Event, channel};
use crate::problem::{Problem, Stopped};
use crate::settings::cli::{Configured, Source};
use crate::sources::cluster::{Cluster, Options};
use crate::sources::manifests::Manifests;

/// Reads everything once, with these options for an API server.
///
/// An API server may take any time while it sends something new; see [`Configured::input_timeout`].
pub async fn read(configured: &Configured, options: Options) -> Result<Snapshot, Stopped> {
    let (node_name, mut snapshot) = (&configured.settings.node_name, Snapshot::default());
    match &configured.source {
        Source::Manifests(paths) => {
            for change in Manifests::once(paths.clone(), node_name).map_err(Stopped::bad_input)? {
                snapshot.apply(change);
            }
        }
        Source::Cluster(connection) => {
            let (changes, mut receiver) = channel();
            let cluster =
                Cluster::start(connection.clone(), node_name, options, changes).await.map_err(Stopped::bad_input)?;
            let complete = collect(&mut receiver, configured.input_timeout, &mut snapshot).await;
            complete.map_err(|silent| no_answer(silent, &cluster.outstanding(), &snapshot))?;
        }
    }
    Ok(snapshot)
}

/// Collects changes until the initial list is complete, or nothing new arrived for `patience`; `None`: no limit.
/// Errors: the time for which no change arrived; `None`: there are no more changes.
async fn collect(
    changes: &mut mpsc::Receiver<Event>,
    patience: Option<Duration>,
    snapshot: &mut Snapshot,
) -> Result<(), Option<Duration>> {
    let mut since = Instant::now();
    loop {
        let next = match patience {
            Some(patience) => timeout(patience.saturating_sub(since.elapsed()), changes.recv())
                .await
                .map_err(|_elapsed| Some(patience))?,
            None => changes.recv().await,
        };
        match next.ok_or(None)?.change {
            Change::Synced => return Ok(()),
            // Sent at each attempt, whether the server answers or not.
            Change::Listing(_) => {}
            change => {
                since = Instant::now();
                snapshot.apply(change);
            }
        }
    }
}

fn no_answer(silent: Option<Duration>, outstanding: &[&str], came: &Snapshot) -> Problem {
    let came = format!("{} Services, {} EndpointSlices", came.services.len(), came.slices.len());
    let missing = outstanding.join(", ");
    let reason = match silent {
        Some(patience) => format!(
            "no complete answer: {came} came, then nothing for {} s, while waiting for {missing}; the log says why; \
             --input-timeout says how long to wait",
            patience.as_secs_f64()
        ),
        None => format!("no complete answer: {came} came, and the client has ended; the log says why"),
    };
    Problem::new("the API server", reason)
}

pub fn changes(snapshot: Snapshot) -> impl Iterator<Item = Change> {
    let services = snapshot.services.into_values().map(Change::UpsertService);
    let slices = snapshot.slices.into_values().map(Change::UpsertSlice);
    let node = snapshot.node.into_iter().map(|node| Change::Node(Box::new(node)));
    let weights = snapshot.cluster_nodes.into_values().map(|object| Change::ClusterNode(Box::new(object)));
    let cidrs = snapshot.service_cidrs.into_iter().map(|(name, networks)| Change::ServiceCidr(name, networks));
    let unreadable = snapshot.unreadable.into_iter().map(|of| Change::Unreadable(Box::new(of)));
    unreadable.chain(node).chain(weights).chain(cidrs).chain(services).chain(slices).chain([Change::Synced])
}
