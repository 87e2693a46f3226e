//! A client, a node and backends in network namespaces of their own, with veth pairs between them.

use std::io::Read as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use crate::Failure;

/// A packet that is lost is sent again after 1, 3, 7 and 15 seconds.
const PATIENCE: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own that does what it is given.
struct Room {
    jobs: mpsc::Sender<Job>,
    /// The namespace, as a file.
    path: String,
}

impl Room {
    fn new() -> Result<Self, Failure> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (ready, made) = mpsc::channel();
        std::thread::spawn(move || {
            let place = std::fs::read_link("/proc/thread-self").map_err(|error| error.to_string());
            let entered = unshare(CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string());
            let path = entered.and(place).map(|place| format!("/proc/{}/ns/net", place.display()));
            if ready.send(path).is_ok() {
                for job in todo {
                    job();
                }
            }
        });
        let path = made.recv()?.map_err(|error| format!("a network namespace: {error}"))?;
        let room = Room { jobs, path };
        room.ip("link set lo up")?;
        Ok(room)
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
        let (done, result) = mpsc::channel();
        let job: Job = Box::new(move || {
            let _nobody_waits = done.send(work());
        });
        self.jobs.send(job).map_err(|_gone| "the thread of a namespace is gone")?;
        Ok(result.recv()?)
    }

    fn ip(&self, words: &'static str) -> Result<(), Failure> {
        self.run(move || ip(words).map_err(|error| error.to_string()))?.map_err(Failure::from)
    }
}

/// Runs `ip` in the namespace of the calling thread.
pub(crate) fn ip(words: &str) -> Result<(), Failure> {
    let output = Command::new("ip").args(words.split_whitespace()).stdout(Stdio::null()).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {}", told.trim()).into()) }
}

/// The namespace of the calling thread is the node: 192.168.1.1 to the client, 192.168.2.1 to the backends, which answer
/// at every address of 10.128.0.0/9, port 8080.
pub(crate) struct Network {
    client: Room,
    /// Lives as long as the network does.
    _backends: Room,
}

/// Connections to one place.
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    /// Each one's time from SYN to the client's ACK, in microseconds.
    pub(crate) micros: Vec<f64>,
    /// Time of all of them together, closing included.
    pub(crate) took: Duration,
}

impl Network {
    pub(crate) fn new() -> Result<Self, Failure> {
        let (client, backends) = (Room::new()?, Room::new()?);
        ip(&format!("link add to-client type veth peer name eth0 netns {}", client.path))?;
        ip(&format!("link add to-backends type veth peer name eth0 netns {}", backends.path))?;
        for words in [
            "addr add 192.168.1.1/24 dev to-client",
            "link set to-client up",
            "addr add 192.168.2.1/24 dev to-backends",
            "link set to-backends up",
            "route add 10.128.0.0/9 via 192.168.2.2",
        ] {
            ip(words)?;
        }
        for words in ["addr add 192.168.1.2/24 dev eth0", "link set eth0 up", "route add default via 192.168.1.1"] {
            client.ip(words)?;
        }
        for words in [
            "addr add 192.168.2.2/24 dev eth0",
            "link set eth0 up",
            "route add default via 192.168.2.1",
            "route add local 10.128.0.0/9 dev lo",
        ] {
            backends.ip(words)?;
        }
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        backends
            .run(|| {
                let listener = TcpListener::bind("0.0.0.0:8080")?;
                std::thread::spawn(move || {
                    // Reads what comes, one connection after the other; the kernel takes the others meanwhile.
                    for mut stream in listener.incoming().flatten() {
                        let _client_gone = std::io::copy(&mut stream, &mut std::io::sink());
                    }
                });
                Ok::<(), std::io::Error>(())
            })?
            .map_err(|error| format!("listening: {error}"))?;
        Ok(Network { client, _backends: backends })
    }

    /// Opens and closes connections, by several clients at a time; gives the time until the last one has done its part.
    pub(crate) fn connect_by(&self, clients: usize, to: SocketAddr, number: usize) -> Result<Duration, Failure> {
        let connections = move || {
            let all = Instant::now();
            let client = || (0..number / clients).try_for_each(|_| TcpStream::connect_timeout(&to, PATIENCE).map(drop));
            let done = std::thread::scope(|scope| {
                let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
                clients.into_iter().all(|client| client.join().is_ok_and(|result| result.is_ok()))
            });
            done.then(|| all.elapsed()).ok_or_else(|| format!("connecting to {to} failed"))
        };
        self.client.run(connections)?.map_err(Failure::from)
    }

    /// Sends so many bytes in one connection; gives the time until the other side has read them.
    pub(crate) fn send(&self, to: SocketAddr, bytes: u64) -> Result<Duration, Failure> {
        let sending = move || {
            let start = Instant::now();
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            std::io::copy(
                &mut std::io::repeat(0).take(bytes),
                &mut std::io::BufWriter::with_capacity(1 << 20, &stream),
            )?;
            stream.shutdown(Shutdown::Write)?;
            // Its end comes when it has read ours.
            stream.read_to_end(&mut Vec::new())?;
            Ok(start.elapsed())
        };
        self.client.run(sending)?.map_err(|error: std::io::Error| format!("sending to {to}: {error}").into())
    }

    /// Opens and closes connections, one after the other.
    pub(crate) fn connect(&self, to: SocketAddr, number: usize) -> Result<Connected, Failure> {
        let connections = move || {
            let mut micros = Vec::with_capacity(number);
            let all = Instant::now();
            for _ in 0..number {
                let start = Instant::now();
                let connection = TcpStream::connect_timeout(&to, PATIENCE);
                micros.push(start.elapsed().as_secs_f64() * 1e6);
                connection.map_err(|error| format!("connecting to {to}: {error}"))?;
            }
            Ok(Connected { micros, took: all.elapsed() })
        };
        self.client.run(connections)?.map_err(|error: String| error.into())
    }
}
