//! A relay out of a network namespace.

use std::net::TcpListener;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::Failure;

/// A running relay. It accepts no more connections once it is dropped.
pub(super) struct Relay(AbortHandle);

impl Relay {
    /// Relays connections to this listener, which may be in another network namespace, to a server by host and port.
    pub(super) fn start(runtime: &Runtime, listener: TcpListener, server: (String, u16)) -> Result<Self, Failure> {
        listener.set_nonblocking(true)?;
        let listener = {
            let _in_runtime = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let task = runtime.spawn(async move {
            while let Ok((mut here, _)) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move {
                    let mut there = TcpStream::connect((server.0.as_str(), server.1)).await?;
                    here.set_nodelay(true)?;
                    there.set_nodelay(true)?;
                    copy_bidirectional(&mut here, &mut there).await
                });
            }
        });
        Ok(Relay(task.abort_handle()))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}
