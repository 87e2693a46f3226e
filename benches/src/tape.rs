//! Conversations with a fake kernel, recorded once and played back: what is counted then is the library alone.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipvs::Transport;

/// Answers by send.
type Answers = Vec<Vec<Vec<u8>>>;

/// Answers of a fake kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tape {
    answers: Arc<Mutex<Answers>>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tape {
    /// Notes every answer of another transport.
    pub(crate) fn record<T: Transport>(&self, inner: T) -> Recorder<T> {
        Recorder { inner, tape: self.clone() }
    }

    /// Datagrams sent so far.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives the same answers to the same sends.
    pub(crate) fn play(&self, port: u32) -> Player {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Player { answers, sent: 0, taken: 0, port }
    }
}

pub(crate) struct Recorder<T> {
    inner: T,
    tape: Tape,
}

impl<T: Transport> Transport for Recorder<T> {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.tape.answers.lock().unwrap_or_else(PoisonError::into_inner).push(Vec::new());
        self.tape.sent.lock().unwrap_or_else(PoisonError::into_inner).push(datagram.to_vec());
        self.inner.send(datagram)
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let length = self.inner.receive(buffer, timeout)?;
        if let (Some(last), Some(bytes)) =
            (self.tape.answers.lock().unwrap_or_else(PoisonError::into_inner).last_mut(), buffer.get(..length))
        {
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
