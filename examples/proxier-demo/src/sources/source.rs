//! The source of Services: files or an API server.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinHandle, JoinSet};

use crate::message::Changes;
use crate::message::change::Change;
use crate::problem::Problem;
use crate::settings::cli::{Configured, Source};
use crate::sources::cluster::{Cluster, Options};
use crate::sources::manifests::Manifests;

/// The API client has its own thread, because it waits for programs that get credentials (`exec` in a kubeconfig),
/// which must not delay health checks and the kernel's thread.
pub(crate) struct Api(Option<Runtime>);

impl Api {
    pub(crate) fn start() -> Result<Self, Problem> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("api").enable_all().build();
        let problem = |error| Problem::new("", format!("no thread for the API server ({error})"));
        runtime.map(|runtime| Api(Some(runtime))).map_err(problem)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // Blocking is not allowed within another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "a process has one, at its start")]
pub(crate) enum StartingSource {
    Files { manifests: Manifests, first: Vec<Change>, changes: Changes },
    Cluster(JoinHandle<Result<Cluster, Problem>>),
}

impl StartingSource {
    /// Reads the files, or starts to request from the API server.
    pub(crate) fn begin(configured: &Configured, changes: Changes, api: &Api) -> Result<Self, Vec<Problem>> {
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
                Ok(StartingSource::Cluster(api.handle().spawn(start)))
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
