//! The status page: the state and the work of the proxy. `/status` is one page without external resources; it requests
//! `/status.json` every two seconds. Nothing is stored or read without a viewer.
//!
//! For any number of clients, the kernel's thread is asked once per second, and IPVS for a limited number of counters.

mod body;
mod counters;
mod query;

use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderValue, StatusCode, header};
use k8s_openapi::jiff::Timestamp;
use proxier_core::modes::Kind;
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};

pub(crate) use self::body::kinds;
use self::counters::{Counters, of_kernel};
use crate::build;
use crate::message::view::View;
use crate::message::{Begun, Message};
use crate::settings::Exposure;
use crate::status::health::Health;
use crate::status::server::{self, Answer, HttpRequest};

fn admits(exposure: Exposure, asked: &HttpRequest) -> bool {
    match exposure {
        Exposure::Off => false,
        Exposure::Localhost => {
            asked.1.is_some_and(|peer| peer.is_loopback()) && is_of_this_host(asked.header(header::HOST))
        }
        Exposure::On => true,
    }
}

/// Whether a `Host` header contains an address, or the name `localhost`.
fn is_of_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Greatest age of the kernel thread's state in an answer.
const FRESH: Duration = Duration::from_secs(1);
/// Longest wait for the kernel's thread, which answers between two passes.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an unrequested state is kept.
const FORGOTTEN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct LastView {
    view: Option<(Instant, Arc<View>)>,
    /// A pending answer of the kernel's thread.
    awaited: Option<oneshot::Receiver<View>>,
    /// When the last wait timed out.
    in_vain: Option<Instant>,
}

#[derive(Debug)]
pub struct StatusPage {
    exposure: Exposure,
    mode: Kind,
    messages: mpsc::Sender<Message>,
    /// The state, locked while the kernel's thread is asked: clients that come meanwhile get the same answer.
    known: Arc<AsyncMutex<LastView>>,
    counters: Arc<Mutex<Counters>>,
}

impl StatusPage {
    /// The status page for clients that `exposure` admits. `messages` go to the kernel's thread.
    pub(crate) fn new(exposure: Exposure, mode: Kind, messages: mpsc::Sender<Message>) -> Self {
        let counters = Arc::new(Mutex::new(Counters::new(of_kernel())));
        StatusPage { exposure, mode, messages, known: Arc::default(), counters }
    }

    /// The answer to a request for `/status` or `/status.json`. `None` for other paths, and for clients that may not
    /// see it, for whom the page does not exist.
    pub(crate) async fn answer(&self, asked: &HttpRequest, health: &Health) -> Option<Answer> {
        if !admits(self.exposure, asked) {
            return None;
        }
        match asked.path() {
            "/status" => Some(page()),
            "/status.json" => Some(self.json(asked.0.uri.query().unwrap_or_default(), health).await),
            _ => None,
        }
    }

    /// Connections and UDP flows that userspace mode has started; empty while the kernel's thread is busy for long.
    pub(crate) async fn begun(&self) -> Vec<Begun> {
        let (answer, awaited) = oneshot::channel();
        if self.messages.try_send(Message::Begun(answer)).is_err() {
            return Vec::new();
        }
        tokio::time::timeout(PATIENCE, awaited).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn json(&self, query: &str, health: &Health) -> Answer {
        let mut body = health.board().json();
        body["mode"] = json!(self.mode.name());
        body["version"] = json!(build::LINE);
        body["process"] = json!(std::process::id());
        body["time"] = json!(Timestamp::try_from(SystemTime::now()).unwrap_or_default().to_string());
        body["health"] = health.summary(Instant::now());
        body["apiServer"] = json!(health.api_server());
        body["heldBackBecause"] = json!(health.board().stopped);
        let view = self.view().await;
        body["age"] = json!(view.as_ref().map(|(at, _)| at.elapsed().as_secs_f64()));
        if let Some((_, view)) = view {
            let (wanted, counters) = (query::PageQuery::read(query), self.counters.clone());
            let added = tokio::task::spawn_blocking(move || {
                let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
                body::add_view(&mut body, &view, &wanted, &mut counters);
                body
            });
            body = match added.await {
                Ok(body) => body,
                Err(_ended) => return server::text(StatusCode::SERVICE_UNAVAILABLE, "ending\n"),
            };
        }
        let mut answer = server::json(StatusCode::OK, body.to_string());
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    /// State of the kernel's thread within the last second; an older one while it is busy, and none if it was busy for
    /// long.
    async fn view(&self) -> Option<(Instant, Arc<View>)> {
        let mut known = self.known.lock().await;
        if known.view.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH) {
            return known.view.clone();
        }
        if known.awaited.is_none() {
            let (answer, awaited) = oneshot::channel();
            if self.messages.try_send(Message::View(answer)).is_err() {
                return known.view.clone();
            }
            known.awaited = Some(awaited);
        }
        // The next clients do not wait as long again.
        let is_busy = known.in_vain.is_some_and(|at| at.elapsed() < FRESH);
        let patience = if is_busy { Duration::ZERO } else { PATIENCE };
        let Some(awaited) = &mut known.awaited else { return known.view.clone() };
        match tokio::time::timeout(patience, awaited).await {
            Ok(answered) => {
                known.awaited = None;
                if let Ok(view) = answered {
                    known.view = Some((Instant::now(), Arc::new(view)));
                    self.forget_later();
                }
            }
            Err(_elapsed) if !is_busy => known.in_vain = Some(Instant::now()),
            Err(_elapsed) => {}
        }
        known.view.clone()
    }

    /// Drops the state later, unless a client requests it again.
    fn forget_later(&self) {
        let known = self.known.clone();
        tokio::spawn(async move {
            tokio::time::sleep(FORGOTTEN).await;
            let mut known = known.lock().await;
            if known.view.as_ref().is_some_and(|(at, _)| at.elapsed() >= FORGOTTEN) {
                known.view = None;
            }
        });
    }
}

/// The page, without the nonces for its style and its script.
const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page. Only the style and the script with this answer's nonce are run, and nothing is loaded from elsewhere.
fn page() -> Answer {
    let Ok(number) = random() else {
        return server::text(StatusCode::INTERNAL_SERVER_ERROR, "no random numbers\n");
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{number}'; style-src 'nonce-{number}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let body = HTML.replace("NUMBER", &number).replace("BUILD", build::LINE);
    let body = body.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
    let mut page = server::answer(StatusCode::OK, "text/html; charset=utf-8", body);
    let headers = page.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.extend(HeaderValue::try_from(policy).map(|policy| (header::CONTENT_SECURITY_POLICY, policy)));
    page
}

/// A random number of 128 bits, in hexadecimal.
fn random() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use proxier_core::config::Families;
    use serde_json::Value;

    use super::*;

    /// Names come from the API: the page shows them as text, never as markup or code.
    #[test]
    fn the_script_never_turns_data_into_markup() {
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"] {
            assert!(!SCRIPT.contains(word), "{word}");
        }
        assert!(!HTML.contains(" style=") && !HTML.contains(" on"), "the policy forbids both");
        assert!(!SCRIPT.contains("</script") && !STYLE.contains("</style"));
        assert!(!HTML.contains("http://") && !HTML.contains("https://"));
    }

    #[test]
    fn each_page_allows_its_own_style_and_script_only() {
        let [first, second] = [page(), page()];
        assert_ne!(first.body(), second.body());
        let policy = first.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        let number = policy.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert_eq!(number.len(), 32);
        assert_eq!(first.body().matches(&format!("nonce=\"{number}\"")).count(), 2);
        assert!(!first.body().contains("NUMBER") && !first.body().contains("/*S"), "everything is filled in");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }

    /// The kernel's thread is asked once for many clients. While it is busy, they get the parts that do not need it.
    #[tokio::test]
    async fn the_kernels_thread_is_asked_once_at_a_time() {
        let (messages, mut inbox) = mpsc::channel(4);
        let page = StatusPage::new(Exposure::On, Kind::Nftables, messages);
        let health = Health::new(Duration::from_secs(30), Families::V4);
        let ask = HttpRequest(http::Request::get("/status.json").body(()).unwrap().into_parts().0, None);
        let begun = Instant::now();
        let get = || page.answer(&ask, &health);
        let (a, b, c, d) = tokio::join!(get(), get(), get(), get());
        for answer in [a, b, c, d] {
            let body: Value = serde_json::from_str(answer.unwrap().body()).unwrap();
            assert_eq!((&body["age"], &body["mode"]), (&Value::Null, &json!("nftables")));
            assert_eq!((&body["health"]["healthy"], body.get("services")), (&json!(true), None));
        }
        assert!(begun.elapsed() < PATIENCE * 2, "they wait together");
        assert!(matches!(inbox.try_recv(), Ok(Message::View(_))));
        assert!(inbox.try_recv().is_err(), "asked again before it answered");
    }
}
