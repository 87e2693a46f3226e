//! The input as of one moment: for the commands that look once.

use std::time::Duration;

use super::change::{Change, Snapshot, channel};
use super::cli::Source;
use super::cluster::{Cluster, Connection, Options};
use super::manifests::Manifests;
use super::problem::Problem;

/// How long to wait for an API server's complete answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// What was given to read from is wrong.
    BadInput(Vec<Problem>),
    /// The API server has not told everything.
    NoAnswer(Problem),
}

impl Unread {
    /// What to say.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Unread::BadInput(problems) => problems,
            Unread::NoAnswer(problem) => std::slice::from_ref(problem),
        }
    }
}

/// Reads everything once, from an API server with these times and sizes.
///
/// # Errors
///
/// Nothing could be read.
pub async fn read(source: &Source, node_name: &str, options: Options) -> Result<Snapshot, Unread> {
    match source {
        Source::Manifests(paths) => {
            let (_, changes) = Manifests::open(paths.clone(), node_name).map_err(Unread::BadInput)?;
            let mut snapshot = Snapshot::default();
            for change in changes {
                snapshot.take(change);
            }
            Ok(snapshot)
        }
        Source::Cluster { kubeconfig, master } => {
            let connection = Connection { kubeconfig: kubeconfig.clone(), master: master.clone() };
            let (changes, mut receiver) = channel();
            let cluster = Cluster::start(connection, node_name, options, changes)
                .await
                .map_err(|problem| Unread::BadInput(vec![problem]))?;
            let snapshot = tokio::time::timeout(PATIENCE, Snapshot::collect(&mut receiver)).await;
            drop(cluster);
            match snapshot {
                Ok(Some(snapshot)) => Ok(snapshot),
                _ => Err(Unread::NoAnswer(Problem::new(
                    "the API server",
                    format!("no complete answer in {} s; the log says why", PATIENCE.as_secs()),
                ))),
            }
        }
    }
}

/// The changes that make up a snapshot.
pub fn changes(snapshot: Snapshot) -> impl Iterator<Item = Change> {
    let services = snapshot.services.into_iter().map(|object| Change::UpsertService(Box::new(object)));
    let slices = snapshot.slices.into_iter().map(|object| Change::UpsertSlice(Box::new(object)));
    let node = snapshot.node.into_iter().map(|node| Change::Node(Box::new(node)));
    node.chain(services).chain(slices).chain([Change::Synced])
}
