//! Moves data from one TCP socket to another: small amounts by a copy, more through pipes.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, SpliceFFlags, splice};
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::descriptors::{Descriptors, Use};
use super::server::Shared;

/// Bytes to copy before a direction gets a pipe. A copy takes two system calls, a pipe three.
const FIRST: usize = 16 << 10;
/// The most data moved at once: a pipe holds sixteen parts of up to 64 KiB.
const AT_ONCE: usize = 1 << 20;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; 64 << 10].into());
}

/// Lends this thread's buffer, which has room for every datagram.
pub(super) fn with_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| work(buffer))
}

/// A pipe, through which data moves between sockets without being copied.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _descriptors: Descriptors,
}

impl Pipe {
    /// `None`: no descriptors are available.
    pub(super) fn new(shared: &Shared) -> Option<Self> {
        let descriptors = shared.reserve(Use::Pipe)?;
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
        Some(Pipe { read, write, _descriptors: descriptors })
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

/// Received data that is not yet sent.
enum Received {
    Bytes(Vec<u8>),
    /// A pipe, and the number of bytes in it.
    Piped(Pipe, usize),
    /// The source has ended.
    End,
}

/// Moves data until the source ends, and then ends the destination. `false`: the destination accepts no more.
///
/// What was received is sent before more is received, so what a slow reader has not taken stays with the sender.
///
/// # Errors
/// If the source was reset. All earlier data was sent.
pub(super) async fn forward(from: &TcpStream, to: &TcpStream, shared: &Shared) -> io::Result<bool> {
    let mut is_bulk = false;
    loop {
        let received = from.async_io(Interest::READABLE, || receive(from, to, shared, &mut is_bulk)).await?;
        let sent = match received {
            Received::Bytes(bytes) => {
                send(to, bytes.len(), |sent| to.try_write(bytes.get(sent..).unwrap_or_default())).await
            }
            Received::Piped(pipe, length) => {
                let empty =
                    |sent| Ok(splice(&pipe.read, None, to.as_fd(), None, length.saturating_sub(sent), flags())?);
                let sent = send(to, length, empty).await;
                if sent.is_ok() {
                    shared.give_back(pipe);
                }
                sent
            }
            Received::End => {
                // It only fails if the other end has already failed, which a read from there reports.
                let _is_told = shutdown(to.as_raw_fd(), Shutdown::Write);
                return Ok(true);
            }
        };
        if sent.is_err() {
            return Ok(false);
        }
    }
}

/// Receives some data. Sends it at once as far as possible, unless it is in a pipe.
///
/// # Errors
/// `WouldBlock` if there is none.
fn receive(from: &TcpStream, to: &TcpStream, shared: &Shared, is_bulk: &mut bool) -> io::Result<Received> {
    // Without descriptors for a pipe, data is copied.
    if *is_bulk && let Some(pipe) = shared.take_pipe() {
        match splice(from.as_fd(), None, &pipe.write, None, AT_ONCE, flags()) {
            // The end, no data, or the mark of urgent data, which pipes do not pass: a read tells which. Or a sandbox
            // refuses the call (seccomp), and data is copied.
            Ok(0) | Err(Errno::EAGAIN | Errno::EPERM | Errno::EACCES | Errno::ENOSYS | Errno::EINVAL) => {
                shared.give_back(pipe);
            }
            Ok(length) => return Ok(Received::Piped(pipe, length)),
            Err(errno) => return Err(errno.into()),
        }
    }
    with_buffer(|buffer| {
        let buffer = buffer.get_mut(..FIRST).unwrap_or_default();
        let length = match recv(from.as_raw_fd(), buffer, MsgFlags::empty()) {
            // At the mark of urgent data, a signal at this moment looks the same.
            Err(Errno::EAGAIN) => recv(from.as_raw_fd(), buffer, MsgFlags::empty())?,
            length => length?,
        };
        if length == 0 {
            return Ok(Received::End);
        }
        *is_bulk |= length == FIRST;
        let bytes = buffer.get(..length).unwrap_or_default();
        // What fails here fails again when the rest is sent.
        let sent = to.try_write(bytes).unwrap_or(0);
        Ok(Received::Bytes(bytes.get(sent..).unwrap_or_default().to_vec()))
    })
}

/// Sends this many bytes. `write` sends some of those after the number that it gets, and returns how many.
async fn send(to: &TcpStream, length: usize, mut write: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut sent = 0_usize;
    while sent < length {
        match to.async_io(Interest::WRITABLE, || write(sent)).await {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => sent = sent.saturating_add(more),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
