//! The API server in its own process, so that its memory and work are not the proxy's.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::Value;
use testkit::apiserver::ApiServer;

use super::objects::{node, service, slice, with_annotation};
use crate::Failure;
use crate::program::Killed;

/// Interval in which a real server sends bookmarks to its watches.
pub(super) const BOOKMARKS: Duration = Duration::from_secs(60);

/// The clock that all processes of the machine share.
pub(super) fn monotonic() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into())
}

/// A server with this many Services and these additional objects. It sends bookmarks and has no history, like one that
/// has run for a while.
pub(super) fn filled(services: u32, endpoints: u32, more: &[Value]) -> Arc<ApiServer> {
    let server = Arc::new(ApiServer::start());
    server.put(&node());
    for number in 0..services {
        server.put(&service(number));
        server.put(&slice(number, endpoints, false));
    }
    for object in more {
        server.put(object);
    }
    server.compact();
    let bookmarks = Arc::downgrade(&server);
    std::thread::spawn(move || {
        while let Some(server) = bookmarks.upgrade() {
            server.bookmark();
            drop(server);
            std::thread::sleep(BOOKMARKS);
        }
    });
    server
}

/// The server's process: prints its kubeconfig. It then makes one change per line of standard input, and prints when it
/// started to send it. A line has a Service's number and 0 or 1 (see [`slice()`]), or an annotation (`NAME=VALUE`).
pub(crate) fn serve(arguments: &[&str]) -> Result<(), Failure> {
    let [services, endpoints] = arguments else { return Err("SERVICES ENDPOINTS".into()) };
    let (services, endpoints): (u32, u32) = (services.parse()?, endpoints.parse()?);
    let server = filled(services, endpoints, &[]);
    println!("{}", server.kubeconfig(None));
    for line in std::io::stdin().lines() {
        let line = line?;
        let (number, change) = line.split_once(' ').ok_or("NUMBER CHANGE")?;
        let number = number.parse()?;
        let object = match change {
            "0" | "1" => slice(number, endpoints, change == "1"),
            annotation => {
                let (name, value) = annotation.split_once('=').ok_or("NAME=VALUE")?;
                with_annotation(number, name, value)
            }
        };
        let told = monotonic()?;
        server.put(&object);
        println!("{}", told.as_nanos());
    }
    Ok(())
}

/// A running server. Dropping it stops it.
pub(super) struct Server {
    _child: Killed,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(super) kubeconfig: String,
}

impl Server {
    /// Starts a server; it has all objects when this returns.
    pub(super) fn start(services: u32, endpoints: u32) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["api-server", &services.to_string(), &endpoints.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take().ok_or("no standard input")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut server = Server { _child: Killed(child), orders, answers, kubeconfig: String::new() };
        server.kubeconfig = server.answer()?;
        Ok(server)
    }

    fn answer(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() { Err("the API server has ended".into()) } else { Ok(line) }
    }

    /// Changes a slice; returns when the server started to send it, by [`monotonic`].
    pub(super) fn change(&mut self, number: u32, changed: bool) -> Result<Duration, Failure> {
        self.order(number, if changed { "1" } else { "0" })
    }

    /// Annotates a Service; returns when the server started to send it.
    pub(super) fn annotate(&mut self, number: u32, name: &str, value: &str) -> Result<Duration, Failure> {
        self.order(number, &format!("{name}={value}"))
    }

    fn order(&mut self, number: u32, change: &str) -> Result<Duration, Failure> {
        writeln!(self.orders, "{number} {change}")?;
        self.orders.flush()?;
        Ok(Duration::from_nanos(self.answer()?.trim().parse()?))
    }
}
