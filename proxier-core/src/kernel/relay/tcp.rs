//! TCP: accepts connections, finds an endpoint for each, and moves their data.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::server::{Refusal, Server, Shared, Ticket, lock, spare};
use super::socket::{dial, is_exhausted, reset};
use super::splice::forward;

/// How long to wait for each endpoint in turn, as in kube-proxy's userspace mode.
const PATIENCE: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// How long a listener is ignored if its connections can be neither served nor reset.
const REST: Duration = Duration::from_millis(100);

/// Accepts connections.
pub(super) async fn accept(listener: &TcpListener, server: &Arc<Server>, shared: &Arc<Shared>) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((client, address)) => match Ticket::take(shared, server) {
                Ok(ticket) => drop(tokio::spawn(serve(ticket, client, address.ip()))),
                Err(refusal) => {
                    shared.refuse(server.key, refusal);
                    reset(client);
                }
            },
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if !(is_exhausted(&error) && reset_next(listener, server, shared).await) {
                    sleep(REST).await;
                }
            }
        }
    }
}

/// Accepts the next client on the spare descriptor and resets it, since it would otherwise stay in the queue. Returns
/// whether that was possible; also if no client waits.
async fn reset_next(listener: &TcpListener, server: &Server, shared: &Shared) -> bool {
    lock(&shared.spare).take();
    let accepted = timeout(Duration::ZERO, listener.accept()).await;
    let is_possible = !matches!(accepted, Ok(Err(_)));
    if let Ok(Ok((client, _))) = accepted {
        reset(client);
        shared.refuse(server.key, Refusal::Exhausted);
    }
    let mut kept = lock(&shared.spare);
    *kept = kept.take().or_else(spare);
    is_possible
}

/// Serves a client to the end of its connection.
async fn serve(ticket: Ticket, client: TcpStream, address: IpAddr) {
    let shared = &ticket.shared;
    let dialled = tokio::select! {
        dialled = reach(&ticket, address) => dialled.map_err(Some),
        // The client has reset its connection.
        _error = client.ready(Interest::ERROR) => Err(None),
    };
    match dialled {
        Ok(endpoint) => {
            // A reset in one direction resets both, once earlier data was sent.
            let ends = tokio::try_join!(forward(&client, &endpoint, shared), forward(&endpoint, &client, shared));
            if matches!(ends, Ok((true, true))) {
                return;
            }
            reset(endpoint);
        }
        Err(Some(refusal)) => shared.refuse(ticket.server.key, refusal),
        Err(None) => {}
    }
    reset(client);
}

/// Connects to the next endpoint in rotation that answers.
async fn reach(ticket: &Ticket, client: IpAddr) -> Result<TcpStream, Refusal> {
    // Endpoints that cannot be reached, and those that did not answer in time. The latter may get another attempt with
    // more time.
    let (mut refused, mut slow) = (Vec::new(), Vec::new());
    while let Some(patience) = PATIENCE.get(slow.len()) {
        let endpoint = ticket.choose(client, &mut refused, &slow)?;
        match timeout(*patience, dial(endpoint.into())).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if is_exhausted(&error) => return Err(Refusal::Exhausted),
            Ok(Err(_)) => refused.push(endpoint),
            Err(_late) => slow.push(endpoint),
        }
        ticket.shared.count_failed_dial();
    }
    Err(Refusal::Unanswered)
}
