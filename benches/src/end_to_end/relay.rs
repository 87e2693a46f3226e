//! A relay out of a network namespace, which counts what a server sends.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::Failure;

/// A running relay. It accepts no more connections once it is dropped.
pub(super) struct Relay {
    task: AbortHandle,
    sent: Arc<AtomicU64>,
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, count: &AtomicU64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..length).unwrap_or_default()).await?;
        count.fetch_add(u64::try_from(length).unwrap_or_default(), Ordering::Relaxed);
    }
}

impl Relay {
    /// Relays connections to this listener, which may be in another network namespace, to a server by host and port.
    pub(super) fn start(runtime: &Runtime, listener: TcpListener, server: (String, u16)) -> Result<Self, Failure> {
        listener.set_nonblocking(true)?;
        let listener = {
            let _in_runtime = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let task = runtime.spawn(async move {
            while let Ok((here, _)) = listener.accept().await {
                let (server, count) = (server.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let there = TcpStream::connect((server.0.as_str(), server.1)).await?;
                    here.set_nodelay(true)?;
                    there.set_nodelay(true)?;
                    let ((from_client, to_client), (from_server, to_server)) = (here.into_split(), there.into_split());
                    let asked = AtomicU64::new(0);
                    tokio::try_join!(pass(from_client, to_server, &asked), pass(from_server, to_client, &count))
                });
            }
        });
        Ok(Relay { task: task.abort_handle(), sent })
    }

    /// Bytes that the server has sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}
