//! A client, a node and backends in separate network namespaces, connected by veth pairs.

use std::io::{BufWriter, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use testkit::{Netns, oracle, veth_pair};

use crate::Failure;
use crate::program::timed;

/// A lost packet is sent again after 1, 3, 7 and 15 seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that a client writes at a time.
const BUFFER: usize = 1 << 20;

/// Runs a command line in the namespace of the calling thread.
pub(crate) fn tool(line: &str) -> Result<String, Failure> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    Ok(oracle::run(program, &words.collect::<Vec<_>>(), None)?.stdout)
}

/// The calling thread's namespace is the node: 192.168.1.1 towards the client, 192.168.2.1 towards the backends. The
/// backends answer at every address of 10.128.0.0/9, port 8080.
pub(crate) struct Network {
    client: Netns,
    /// Lives as long as the network does.
    _backends: Netns,
}

/// Connections to one place.
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    /// The time of each from SYN to the client's ACK, in microseconds.
    pub(crate) micros: Vec<f64>,
    /// Total time, including closing.
    pub(crate) took: Duration,
}

/// Reads everything that a client sends. If its first byte is not zero, answers one byte for every that many bytes.
pub(crate) fn answer(mut stream: TcpStream) {
    let mut window = [0];
    let is_asked = stream.read_exact(&mut window).is_ok() && window != [0];
    let [window] = window;
    let _client_gone = if is_asked { answer_each(stream, window) } else { sink(stream) };
}

fn sink(mut stream: TcpStream) -> std::io::Result<()> {
    std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
}

fn answer_each(mut stream: TcpStream, window: u8) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut asked = vec![0; usize::from(window)];
    loop {
        stream.read_exact(&mut asked)?;
        stream.write_all(&[0])?;
    }
}

impl Network {
    /// Backends handle connections with `serve`, one after another.
    pub(crate) fn new(serve: fn(TcpStream)) -> Result<Self, Failure> {
        let (node, client, backends) = (Netns::current()?, Netns::new()?, Netns::new()?);
        for (other, device, network) in [(&client, "to-client", "192.168.1"), (&backends, "to-backends", "192.168.2")] {
            veth_pair((&node, device), (other, "eth0"))?;
            node.add_address(&format!("{network}.1/24"), device)?;
            other.add_address(&format!("{network}.2/24"), "eth0")?;
            other.add_route("default", &format!("{network}.1"))?;
        }
        node.add_route("10.128.0.0/9", "192.168.2.2")?;
        backends.ip(&["route", "add", "local", "10.128.0.0/9", "dev", "lo"])?;
        node.write_sysctl("net/ipv4/ip_forward", "1")?;
        let listener = backends.run_in(|| TcpListener::bind("0.0.0.0:8080"))??;
        std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
        Ok(Network { client, _backends: backends })
    }

    /// Runs `work` in the client's namespace; returns the total time and the microseconds that it reports.
    fn in_client(
        &self,
        to: SocketAddr,
        work: impl FnOnce() -> std::io::Result<Vec<f64>>,
    ) -> Result<Connected, Failure> {
        let done = self.client.run_in(|| timed(work))?;
        let (micros, took) = done.map_err(|error| format!("connecting to {to}: {error}"))?;
        Ok(Connected { micros, took })
    }

    /// Concurrent clients, each of which sends this many bytes per connection and waits until the backend has read
    /// them. The backends run [`answer`].
    pub(crate) fn exchange(
        &self,
        clients: usize,
        to: SocketAddr,
        number: usize,
        bytes: u64,
    ) -> Result<Connected, Failure> {
        let one = || {
            let (mut stream, took) = timed(|| TcpStream::connect_timeout(&to, PATIENCE))?;
            std::io::copy(&mut std::io::repeat(0).take(bytes), &mut BufWriter::with_capacity(BUFFER, &stream))?;
            stream.shutdown(Shutdown::Write)?;
            stream.read_to_end(&mut Vec::new())?;
            Ok(took.as_secs_f64() * 1e6)
        };
        let client = || (0..number / clients).map(|_| one()).collect::<std::io::Result<Vec<f64>>>();
        self.in_client(to, || {
            let done: std::io::Result<Vec<Vec<f64>>> = std::thread::scope(|scope| {
                let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
                let panicked = |_| Err(std::io::Error::other("a client panicked"));
                clients.into_iter().map(|client| client.join().unwrap_or_else(panicked)).collect()
            });
            Ok(done?.concat())
        })
    }

    /// One-byte segments in one connection, this many in flight, until the backend has answered them. The backends run
    /// [`answer`]. Returns the microseconds of each round.
    pub(crate) fn ask(&self, to: SocketAddr, window: u8, times: usize) -> Result<Connected, Failure> {
        let opened = self.client.run_in(|| TcpStream::connect_timeout(&to, PATIENCE))?;
        let mut stream = opened.map_err(|error| format!("asking {to}: {error}"))?;
        stream.set_nodelay(true)?;
        stream.write_all(&[window])?;
        let mut one = || {
            (0..window).try_for_each(|_| stream.write_all(&[1]))?;
            stream.read_exact(&mut [0])
        };
        self.in_client(to, || (0..times).map(|_| Ok(timed(&mut one)?.1.as_secs_f64() * 1e6)).collect())
    }

    /// Opens and closes connections, one after another.
    pub(crate) fn connect(&self, to: SocketAddr, number: usize) -> Result<Connected, Failure> {
        let one = |_| Ok(timed(|| TcpStream::connect_timeout(&to, PATIENCE))?.1.as_secs_f64() * 1e6);
        self.in_client(to, || (0..number).map(one).collect())
    }
}
