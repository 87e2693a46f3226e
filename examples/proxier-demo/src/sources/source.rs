//! The source of Services: files or an API server.

use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinHandle, JoinSet};

use crate::message::Changes;
use crate::message::change::Change;
use crate::problem::Problem;
use crate::settings::cli::{Configured, Source};
use crate::sources::cluster::{Cluster, Options};
use crate::sources::manifests::Manifests;

/// The API client has its own thread, because it waits for programs that get credentials (`exec` in a kubeconfig),
/// which must not delay health checks and the kernel's thread.
/// It ends with the process: within another runtime, nothing may wait for it.
pub(crate) fn start_api() -> Result<&'static Handle, Problem> {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("api").enable_all().build();
    let runtime = runtime.map_err(|error| Problem::new("", format!("no thread for the API server ({error})")))?;
    Ok(Box::leak(Box::new(runtime)).handle())
}

#[expect(clippy::large_enum_variant, reason = "a process has one, at its start")]
pub(crate) enum StartingSource {
    Files { manifests: Manifests, first: Vec<Change>, changes: Changes },
    Cluster(JoinHandle<Result<Cluster, Problem>>),
}

impl StartingSource {
    /// Reads the files, or starts to request from the API server.
    pub(crate) fn begin(configured: &Configured, changes: Changes, api: &Handle) -> Result<Self, Vec<Problem>> {
        let node_name = configured.settings.node_name.clone();
        match &configured.source {
            Source::Manifests(paths) => {
                let (manifests, first) = Manifests::open(paths.clone(), &node_name)?;
                Ok(StartingSource::Files { manifests, first, changes })
            }
            Source::Cluster(connection) => {
                let connection = connection.clone();
                let options = Options::from_settings(&configured.settings);
                let start = async move { Cluster::start(connection, &node_name, options, changes).await };
                Ok(StartingSource::Cluster(api.spawn(start)))
            }
        }
    }

    /// Why it cannot run at all, if that shows within a second: reading a kubeconfig takes no longer.
    pub(crate) async fn refused(self) -> Option<Problem> {
        let StartingSource::Cluster(started) = self else { return None };
        match tokio::time::timeout(Duration::from_secs(1), started).await {
            Ok(Ok(Err(problem))) => Some(problem),
            _ => None,
        }
    }

    /// Waits until it is known whether it can run at all. The server need not answer for that, but a program that gets
    /// credentials must.
    /// The running source, if it is an API server. Dropping it ends it.
    pub(crate) async fn finish(self, tasks: &mut JoinSet<Result<(), Problem>>) -> Result<Option<Cluster>, Problem> {
        let mut started = match self {
            StartingSource::Files { manifests, first, changes } => {
                tasks.spawn(async move {
                    let closed = manifests.follow(first, &changes).await;
                    closed.map_err(|_closed| Problem::new("", "the kernel's thread has ended"))
                });
                return Ok(None);
            }
            StartingSource::Cluster(started) => started,
        };
        let started = match tokio::time::timeout(Duration::from_secs(10), &mut started).await {
            Ok(started) => started,
            Err(_elapsed) => {
                tracing::warn!("still waiting for the program that gets the credentials (exec in the kubeconfig)");
                started.await
            }
        };
        let ended = |error| Problem::new("", format!("the client of the API server has ended ({error})"));
        let mut cluster = started.map_err(ended)??;
        tasks.spawn(cluster.giving_up());
        Ok(Some(cluster))
    }
}
