//! A small HTTP server: short answers to short questions.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections at once. More wait.
const CONNECTIONS: usize = 64;
/// Longest time for a request's head, and between two requests.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(status: StatusCode, body: String) -> Self {
        Answer { status, kind: "application/json", headers: Vec::new(), body }
    }

    pub(super) fn text(body: &str) -> Self {
        Answer { status: StatusCode::OK, kind: "text/plain; charset=utf-8", headers: Vec::new(), body: body.to_owned() }
    }

    pub(super) fn not_found() -> Self {
        Answer { status: StatusCode::NOT_FOUND, ..Answer::text("404 page not found\n") }
    }

    fn response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.extend(self.headers);
        response
    }
}

/// Answers every request on a listener, whatever its method, by its path. Ends when it is dropped, with all connections.
pub(super) async fn serve(listener: TcpListener, answer: impl Fn(&str) -> Answer + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, or a connection that is gone already.
                tracing::debug!("a connection was not accepted: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let response = answer(request.uri().path()).response();
                async move { Ok::<_, Infallible>(response) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(16 * 1024);
            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                tracing::trace!("a connection ended: {error}");
            }
            drop(place);
        });
    }
}
