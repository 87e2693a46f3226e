//! `/flagz`, `/statusz` and `/metrics/slis`, as in Kubernetes components (component-base's zpages; KEP-4828, KEP-4827,
//! KEP-3466).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;

use http::{StatusCode, header};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::gather::Gather as _;
use crate::settings::cli::flags_of;
use crate::status::metrics::Metrics;
use crate::status::server::{Answer, HttpRequest, text};
use crate::status::text::Page;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
                       and is for debugging purposes only.";

/// A text page, for clients that request text or have no preference.
fn page(name: &str, lines: &str, asked: &HttpRequest) -> Answer {
    let is_text = |media: &str| {
        let kind = media.split(';').next().unwrap_or_default().trim();
        matches!(kind, "" | "*/*" | "text/*" | "text/plain")
    };
    if !asked.header(header::ACCEPT).split(',').any(is_text) {
        return text(StatusCode::NOT_ACCEPTABLE, "there is text/plain only\n");
    }
    text(StatusCode::OK, format!("\nproxier-demo {name}\n{WARNING}\n\n{lines}"))
}

/// `/flagz`: each flag with the value in effect, including those from a file.
pub(super) fn flags(configuration: &Value, asked: &HttpRequest) -> Answer {
    let flags: BTreeMap<&str, String> = flags_of(configuration).gather();
    let lines: Vec<String> = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    page("flagz", &lines.concat(), asked)
}

/// `/statusz`: start, age and build of this process. `paths`: the paths that the server answers.
pub(super) fn status(started: SystemTime, paths: &[&str], asked: &HttpRequest) -> Answer {
    let up = started.elapsed().unwrap_or_default().as_secs();
    let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
    let since = Timestamp::try_from(started).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut lines = String::new();
    let _cannot_fail = writeln!(
        lines,
        "Started: {since:.0}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nBinary version: {}\nPaths: {}",
        env!("CARGO_PKG_VERSION"),
        paths.join(" "),
    );
    page("statusz", &lines, asked)
}

/// `/metrics/slis`: the health checks, now and as answered so far.
pub(super) fn slis(metrics: &Metrics, healthy: bool, live: bool) -> String {
    let mut page = Page::new("kubernetes_");
    let checks = [("healthz", healthy, metrics.healthz), ("livez", live, metrics.livez)];
    let labels = |kind: &str| vec![("name", "proxier".to_owned()), ("type", kind.to_owned())];
    let now = checks.iter().map(|(kind, good, _)| (labels(kind), u8::from(*good)));
    page.family("healthcheck", "gauge", "The result of a health check, now", now);
    let answers = checks.iter().flat_map(|(kind, _, [success, error])| {
        [("success", *success), ("error", *error)].map(|(status, number)| {
            let mut labels = labels(kind);
            labels.push(("status", status.to_owned()));
            (labels, number)
        })
    });
    page.family("healthchecks_total", "counter", "The results of all health checks so far", answers);
    page.text
}
