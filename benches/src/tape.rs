//! Conversations with a fake kernel, recorded once and played back, so that only the library is measured.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipvs::Transport;

/// Answers by send.
type Answers = Vec<Vec<Vec<u8>>>;

/// Messages to a fake kernel, and its answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tape(Arc<Mutex<(Vec<Vec<u8>>, Answers)>>);

impl Tape {
    fn lock(&self) -> MutexGuard<'_, (Vec<Vec<u8>>, Answers)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes every answer of another transport.
    pub(crate) fn record<T: Transport>(&self, inner: T) -> Recorder<T> {
        Recorder { inner, tape: self.clone() }
    }

    /// Datagrams sent so far.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        self.lock().0.clone()
    }

    /// Plays back the same answers to the same sends.
    pub(crate) fn play(&self, port: u32) -> Player {
        Player { answers: self.lock().1.clone(), sent: 0, taken: 0, port }
    }
}

pub(crate) struct Recorder<T> {
    inner: T,
    tape: Tape,
}

impl<T: Transport> Transport for Recorder<T> {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let mut tape = self.tape.lock();
        tape.0.push(datagram.to_vec());
        tape.1.push(Vec::new());
        self.inner.send(datagram)
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let length = self.inner.receive(buffer, timeout)?;
        if let (Some(last), Some(bytes)) = (self.tape.lock().1.last_mut(), buffer.get(..length)) {
            last.push(bytes.to_vec());
        }
        Ok(length)
    }

    fn port(&self) -> u32 {
        self.inner.port()
    }

    fn in_flight(&self) -> usize {
        128
    }
}

pub(crate) struct Player {
    answers: Answers,
    sent: usize,
    taken: usize,
    port: u32,
}

impl Transport for Player {
    fn send(&mut self, _datagram: &[u8]) -> io::Result<()> {
        self.sent += 1;
        self.taken = 0;
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        let of_send = self.answers.get(self.sent.wrapping_sub(1));
        let Some(answer) = of_send.and_then(|answers| answers.get(self.taken)) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        self.taken += 1;
        let place = buffer.get_mut(..answer.len()).ok_or(io::ErrorKind::InvalidInput)?;
        place.copy_from_slice(answer);
        Ok(answer.len())
    }

    fn port(&self) -> u32 {
        self.port
    }

    fn in_flight(&self) -> usize {
        128
    }
}
