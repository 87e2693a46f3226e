//! Kubernetes Events, for operators who run `kubectl describe` on the Node or the Service.
//!
//! Sent in sequence, never waited for, and dropped if there are too many. While the server is unavailable or busy, an
//! Event is retried for ten minutes, with the time when it was recorded.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use proxier_core::snapshot::ObjectKey;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::sources::cluster::{Connection, Failure, FailureKind, Session, post, uid_of};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Regarding {
    Node,
    Service(ObjectKey),
}

/// The reason of an Event, the action, and whether it is a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(&'static str, &'static str, bool);

impl Reason {
    // kube-proxy's own.
    pub const STARTING: Reason = Reason("Starting", "StartKubeProxy", false);
    pub const FAILED_HEALTH: Reason = Reason("FailedToStartProxierHealthcheck", "StartKubeProxy", true);
    pub const FAILED_METRICS: Reason = Reason("FailedToStartMetricServer", "StartKubeProxy", true);
    pub const FAILED_SERVICE_HEALTH: Reason = Reason("FailedToStartServiceHealthcheck", "Listen", true);
    // Others.
    /// A field of a Service or of its slices is impossible and ignored.
    pub const INVALID_FIELD: Reason = Reason("InvalidField", "ReadService", true);
    pub const UNREADABLE: Reason = Reason("Unreadable", "ReadService", true);
    pub const ADDRESS_CONFLICT: Reason = Reason("AddressConflict", "ProgramService", true);
    /// A Service has an address of another Node, which serves it.
    pub const ADDRESS_OF_NODE: Reason = Reason("AddressOfNode", "ProgramService", false);
    pub const FAILED_TO_PROGRAM: Reason = Reason("FailedToProgram", "ProgramService", true);
    pub const MODE_UNAVAILABLE: Reason = Reason("ModeUnavailable", "StartKubeProxy", true);
    pub const LEFTOVERS: Reason = Reason("Leftovers", "ProgramService", true);
    pub const NOT_AS_CONFIGURED: Reason = Reason("NotAsConfigured", "ProgramService", true);
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Report {
    regarding: Regarding,
    reason: Reason,
    note: String,
}

/// Sends Events in the background. Does nothing without a cluster.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    queue: Option<mpsc::Sender<(Report, SystemTime)>>,
}

/// How long the same Event is not repeated.
const AGAIN: Duration = Duration::from_secs(600);
/// Largest number of Events per minute.
const A_MINUTE: usize = 60;
/// Longest note in bytes (the API's limit).
const NOTE: usize = 1024;
/// Longest name of an object, and longest text about who sends an Event, in bytes.
const NAME: usize = 253;
const SENDER: usize = 128;
/// Longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first pause after a failure; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Recorder {
    /// A recorder for a cluster that sends within this runtime. Events are sent as soon as there are credentials.
    pub fn start(runtime: &Handle, connection: Connection, node_name: &str) -> Self {
        let (queue, reports) = mpsc::channel(128);
        let node_name = node_name.to_owned();
        runtime.spawn(async move {
            let session = Session::new(connection);
            match session.current().await {
                Ok(_) => {
                    let sender = Sender { session, node_name, sent: HashMap::new(), forbidden: false };
                    sender.run(reports).await;
                }
                // The watch uses the same credentials, and reports what is wrong with them.
                Err(problem) => tracing::debug!("no Events are sent: {problem}"),
            }
        });
        Recorder { queue: Some(queue) }
    }

    /// Records an Event. Returns at once.
    pub fn record(&self, regarding: Regarding, reason: Reason, note: impl Into<String>) {
        let Some(queue) = &self.queue else { return };
        if queue.try_send((Report { regarding, reason, note: note.into() }, SystemTime::now())).is_err() {
            tracing::debug!("too many Events at once; one is dropped");
        }
    }
}

struct Sender {
    session: Session,
    node_name: String,
    sent: HashMap<Report, Instant>,
    /// Whether this was logged.
    forbidden: bool,
}

impl Sender {
    async fn run(mut self, mut reports: mpsc::Receiver<(Report, SystemTime)>) {
        while let Some((report, told)) = reports.recv().await {
            let now = Instant::now();
            self.sent.retain(|_, at| now.saturating_duration_since(*at) < AGAIN);
            let lately = |at: &&Instant| now.saturating_duration_since(**at) < Duration::from_secs(60);
            if self.sent.contains_key(&report) || self.sent.values().filter(lately).count() >= A_MINUTE {
                continue;
            }
            self.deliver(&report, told).await;
            self.sent.insert(report, Instant::now());
        }
    }

    /// Sends an Event until the server accepts or refuses it, or was unavailable for too long. Later Events wait.
    async fn deliver(&mut self, report: &Report, told: SystemTime) {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut before = None;
        while let Err(failure) = self.send(report, told, before.as_ref()).await {
            let may_pass = failure.code.is_none_or(|code| {
                code.is_server_error() || [StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS].contains(&code)
            });
            if failure.kind == FailureKind::Forbidden && !std::mem::replace(&mut self.forbidden, true) {
                tracing::warn!("Events are forbidden; allow create of events.events.k8s.io to see them");
            }
            if !may_pass || start.elapsed() > AGAIN {
                tracing::debug!("an Event was not sent: {}", failure.message);
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            before = Some(failure);
        }
    }

    /// `before`: why the previous attempt failed, if this is not the first.
    async fn send(&self, report: &Report, told: SystemTime, before: Option<&Failure>) -> Result<(), Failure> {
        let current = self.session.current().await.map_err(|problem| Failure::other(problem.to_string()))?;
        let mut event = event(report, &self.node_name, told);
        if let Regarding::Service(key) = &report.regarding
            && let Some(uid) = uid_of(key, &current, PATIENCE).await
        {
            event["regarding"]["uid"] = uid.into();
        }
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default");
        let target = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let outcome = post(&current, &target, &event, before, PATIENCE).await;
        if outcome.as_ref().is_err_and(|failure| failure.kind == FailureKind::Unauthorized) {
            self.session.judge(&current, false).await;
        }
        outcome
    }
}

/// The object in the form of `events.k8s.io/v1`.
fn event(report: &Report, node_name: &str, now: SystemTime) -> Value {
    let Reason(reason, action, warning) = report.reason;
    let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
    let (name, namespace, regarding) = match &report.regarding {
        // kube-proxy also uses the Node's name as its UID, and `kubectl describe node` searches for that.
        Regarding::Node => {
            (node_name, "default", json!({"kind": "Node", "apiVersion": "v1", "name": node_name, "uid": node_name}))
        }
        Regarding::Service(key) => {
            let object =
                json!({"kind": "Service", "apiVersion": "v1", "namespace": key.namespace(), "name": key.name()});
            (key.name(), key.namespace(), object)
        }
    };
    let unique = format!(".{:x}", now.as_nanosecond());
    let name = cut(name, NAME.saturating_sub(unique.len())).trim_end_matches(['-', '.']);
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": format!("{name}{unique}"), "namespace": namespace},
        "eventTime": format!("{now:.6}"),
        "reportingController": "kube-proxy",
        "reportingInstance": cut(&format!("kube-proxy-{node_name}"), SENDER),
        "type": if warning { "Warning" } else { "Normal" },
        "reason": reason, "action": action, "regarding": regarding, "note": cut(&report.note, NOTE),
    })
}

/// The start of a text, at most this many bytes, cut between characters.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use testkit::apiserver::ApiServer;

    use super::*;

    #[test]
    fn notes_are_cut_to_the_limit_of_the_server() {
        assert_eq!(cut("äöü", 5), "äö");
        assert_eq!(cut("abc", 5), "abc");
        let report = Report { regarding: Regarding::Node, reason: Reason::STARTING, note: "ä".repeat(2000) };
        let event = event(&report, "n1", SystemTime::UNIX_EPOCH);
        assert_eq!(event["note"].as_str().unwrap().len(), NOTE);
        assert_eq!(event["eventTime"], "1970-01-01T00:00:00.000000Z");
    }

    /// A server refuses longer ones. A name ends with a letter or a digit before each dot.
    #[test]
    fn long_names_of_nodes_are_cut() {
        for long in [format!("{}.c", "a".repeat(251)), "a-".repeat(126) + "c"] {
            let report = Report { regarding: Regarding::Node, reason: Reason::STARTING, note: String::new() };
            let event = event(&report, &long, SystemTime::now());
            let name = event["metadata"]["name"].as_str().unwrap();
            assert!(name.len() <= 253 && !name.contains("-.") && !name.contains(".."), "{name}");
            assert!(event["reportingInstance"].as_str().unwrap().len() <= 128);
            assert_eq!(event["regarding"]["name"], *long);
        }
    }

    /// No permission would help, so none is asked for.
    #[tokio::test]
    async fn a_namespace_that_is_being_deleted_takes_no_events() {
        let server = ApiServer::start();
        let connection = Connection { master: Some(server.url()), ..Connection::default() };
        let mut sender = Sender {
            session: Session::new(connection),
            node_name: "n1".into(),
            sent: HashMap::new(),
            forbidden: false,
        };
        let about = |namespace| Report {
            regarding: Regarding::Service(ObjectKey::new(namespace, "web")),
            reason: Reason::INVALID_FIELD,
            note: String::new(),
        };
        sender.deliver(&about("ending"), SystemTime::now()).await;
        assert!(!sender.forbidden && server.requests().len() == 1, "{:?}", server.requests());
        server.forbid_events(true);
        sender.deliver(&about("demo"), SystemTime::now()).await;
        assert!(sender.forbidden);
    }
}
