//! Small servers that answer with their own name, and clients that ask: who answers is what a load balancer decides.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::netns::Netns;

/// A client waits this long for a connection and for each answer. Emulated machines are slow.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Interval in which a server checks whether it is to stop.
const TICK: Duration = Duration::from_millis(20);

/// A server in a thread inside a namespace. It answers each line (TCP) or datagram (UDP) with its name and a line
/// feed. Dropping it stops it and closes its connections.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Listens on a TCP address; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address is not there or the port is taken.
    pub fn tcp(namespace: &Netns, address: SocketAddr, name: &str) -> io::Result<Self> {
        let listener = namespace.run_in(|| TcpListener::bind(address))??;
        listener.set_nonblocking(true)?;
        let (address, name) = (listener.local_addr()?, name.to_owned());
        Self::start(address, move |stop| serve_tcp(&listener, &name, stop))
    }

    /// Listens on a UDP address; port 0 takes a free one.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub fn udp(namespace: &Netns, address: SocketAddr, name: &str) -> io::Result<Self> {
        let socket = namespace.run_in(|| UdpSocket::bind(address))??;
        socket.set_read_timeout(Some(TICK))?;
        let (address, name) = (socket.local_addr()?, name.to_owned());
        Self::start(address, move |stop| {
            let mut buffer = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((_, client)) = socket.recv_from(&mut buffer) {
                    // A client that is gone asks no more: nothing to do about an error.
                    socket.send_to(format!("{name}\n").as_bytes(), client).map_or_else(drop, drop);
                }
            }
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    // The sockets belong to the namespace already: the thread may run anywhere.
    fn start(address: SocketAddr, body: impl FnOnce(&Arc<AtomicBool>) + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = thread::Builder::new().spawn(move || body(&theirs))?;
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

fn serve_tcp(listener: &TcpListener, name: &str, stop: &Arc<AtomicBool>) {
    let mut connections = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            let (name, stop) = (name.to_owned(), Arc::clone(stop));
            // An error here is a client that has gone away.
            connections.push(thread::spawn(move || answer(&stream, &name, &stop).unwrap_or_default()));
        } else {
            thread::sleep(TICK / 4);
        }
    }
    for connection in connections {
        connection.join().unwrap_or_default();
    }
}

fn answer(stream: &TcpStream, name: &str, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TICK))?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {
                line.clear();
                (&*stream).write_all(format!("{name}\n").as_bytes())?;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects by TCP from the current thread's namespace, asks once and disconnects: the name of who answered.
///
/// # Errors
/// No answer within [`TIME_LIMIT`].
pub fn connect_and_ask(address: SocketAddr) -> io::Result<String> {
    Connection::open(address)?.ask()
}

/// Asks by UDP from a new port of the current thread's namespace: the name of who answered.
///
/// # Errors
/// No answer within [`TIME_LIMIT`].
pub fn ask_udp(address: SocketAddr) -> io::Result<String> {
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(TIME_LIMIT))?;
    socket.connect(address)?;
    socket.send(b"who\n")?;
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).trim_end().to_owned())
}

/// A TCP connection that stays open.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects from the current thread's namespace; the connection stays there.
    ///
    /// # Errors
    /// When the connection is not made within [`TIME_LIMIT`].
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIME_LIMIT)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// The name of who is at the other end.
    ///
    /// # Errors
    /// When the connection is broken, or the answer does not come within [`TIME_LIMIT`].
    pub fn ask(&mut self) -> io::Result<String> {
        self.stream.get_mut().write_all(b"who\n")?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(name) => Ok(name.to_owned()),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::{Connection, NameServer, ask_udp, connect_and_ask};
    use crate::netns::Netns;

    // In the process's own namespace, entered by a handle to itself only where that is allowed: as root.
    #[test]
    fn servers_answer_with_their_name_and_stop() {
        crate::kernel_test(&[crate::Need::Root], || {
            let here = Netns::current().unwrap();
            let tcp = NameServer::tcp(&here, (Ipv4Addr::LOCALHOST, 0).into(), "blue").unwrap();
            let udp = NameServer::udp(&here, (Ipv4Addr::LOCALHOST, 0).into(), "green").unwrap();
            assert_eq!(connect_and_ask(tcp.address()).unwrap(), "blue");
            assert_eq!(ask_udp(udp.address()).unwrap(), "green");
            let mut long = Connection::open(tcp.address()).unwrap();
            assert_eq!(long.ask().unwrap(), "blue");
            assert_eq!(long.ask().unwrap(), "blue");
            let address = tcp.address();
            drop(tcp);
            assert!(long.ask().is_err(), "a stopped server closes its connections");
            assert!(connect_and_ask(address).is_err());
        });
    }
}
