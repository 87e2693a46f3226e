//! The relay of userspace mode with real clients and servers: the bytes they send and receive, and the addresses they see.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, listen, send, setsockopt,
    socket, sockopt,
};
use proxier_core::kernel::{Relay, RoutesPort};
use proxier_core::net::{EndpointKey, FrontendKey, Protocol};
use proxier_core::ports::{Listener, LocalNetworks, LocalRoute, PortErrorKind, Relays, RouteOwner, Settings};
use testkit::traffic::NameServer;
use testkit::{Need, Netns, kernel_test, oracle, veth_pair};

/// An emulated machine with other work ends 10,000 connections in a minute.
const LIMIT: Duration = Duration::from_secs(240);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn key(text: &str) -> FrontendKey {
    text.parse().unwrap()
}

fn ip(arguments: &str) {
    oracle::run("ip", &arguments.split(' ').collect::<Vec<_>>(), None).unwrap();
}

/// The current namespace is the node's: Services' networks and pods' addresses are local.
fn node() {
    let routes = ["10.96.0.0/16", "fd00:10::/112"].map(|network| LocalRoute::new(network.parse().unwrap()));
    assert_eq!(RoutesPort::default().add(RouteOwner::Userspace, &routes), [].into());
    for last in 1..=9 {
        ip(&format!("address add 10.244.0.{last}/32 dev lo"));
    }
    for last in 1..=2 {
        ip(&format!("-6 address add fd00:244::{last}/128 dev lo nodad"));
        // The kernel completes it later, in a work queue (net/ipv6/addrconf.c, addrconf_dad_work); until then datagrams to it may be lost.
        let socket = UdpSocket::bind(format!("[fd00:244::{last}]:0")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let itself = socket.local_addr().unwrap();
        until("it gets datagrams", || socket.send_to(b"?", itself).is_ok() && socket.recv(&mut [0]).is_ok());
    }
}

fn test(body: impl FnOnce()) {
    kernel_test(&[Need::Root], || {
        node();
        body();
    });
}

fn relay() -> Relay {
    relay_with(|_| {})
}

fn relay_with(change: impl FnOnce(&mut Settings)) -> Relay {
    let mut settings = Settings::default();
    change(&mut settings);
    Relay::new(settings)
}

/// A relay that serves `10.96.0.1:80` with these endpoints.
fn relay_to(endpoints: &[SocketAddr]) -> Relay {
    let mut relay = relay();
    relay.serve(&listener("TCP 10.96.0.1:80", endpoints)).unwrap();
    relay
}

/// A server, and a relay that serves it at `10.96.0.1:80`.
fn server_and_relay() -> (TcpListener, Relay) {
    let server = server_at("10.244.0.1:0");
    let relay = relay_to(&[server.local_addr().unwrap()]);
    (server, relay)
}

fn listener(at: &str, endpoints: &[SocketAddr]) -> Listener {
    Listener::new(key(at), "test/service").with_endpoints(endpoints.iter().copied().map(EndpointKey::from))
}

/// The only listener of its Service.
fn alone(at: &str, endpoints: &[SocketAddr]) -> Listener {
    Listener::new(key(at), at).with_endpoints(endpoints.iter().copied().map(EndpointKey::from))
}

/// Waits until this holds.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "waited for: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn client(to: SocketAddr) -> TcpStream {
    patient(TcpStream::connect_timeout(&to, LIMIT).unwrap())
}

fn try_from(from: &str, to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from.parse().unwrap(), 0))).unwrap();
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(patient(TcpStream::from(fd)))
}

/// A connection from this address.
fn client_from(from: &str, to: SocketAddr) -> TcpStream {
    try_from(from, to).unwrap()
}

/// A connection is reset: at once, or right after it is established.
#[track_caller]
fn assert_turned_away(connected: io::Result<TcpStream>) {
    match connected {
        Ok(stream) => assert_reset(&mut patient(stream)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

fn attempt(to: &str) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&at(to), LIMIT)
}

/// Listens at an address. A socket that is closed lives on for a moment in a program that another test starts.
fn when_free<T>(bind: impl Fn() -> io::Result<T>) -> T {
    let mut server = None;
    until("the address is free", || {
        server = bind().inspect_err(|error| assert_eq!(error.kind(), ErrorKind::AddrInUse)).ok();
        server.is_some()
    });
    server.unwrap()
}

/// A server at which as many connections may wait as the kernel allows.
fn server_at(address: &str) -> TcpListener {
    let server = when_free(|| TcpListener::bind(address));
    listen(&server, Backlog::MAXALLOWABLE).unwrap();
    server
}

fn accept(server: &TcpListener) -> TcpStream {
    patient(server.accept().unwrap().0)
}

fn reset(stream: TcpStream) {
    setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    drop(stream);
}

/// Reads to the end.
#[track_caller]
fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

/// Asserts that reading ends with a reset.
#[track_caller]
fn assert_reset(stream: &mut TcpStream) {
    let mut all = Vec::new();
    let error = stream.read_to_end(&mut all).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[track_caller]
fn assert_refused(to: SocketAddr) {
    let error = TcpStream::connect_timeout(&to, LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

/// A server that answers each line with its own address.
fn named(address: &str) -> NameServer {
    when_free(|| NameServer::tcp(&Netns::current().unwrap(), at(address), address))
}

/// The server at the other end, by its own words.
#[track_caller]
fn name(stream: &mut TcpStream) -> SocketAddr {
    stream.write_all(b"who\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    at(answer.split_once(' ').unwrap().0)
}

/// Bytes that repeat only after a long time.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend((state >> 8).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn much_goes_both_ways_at_once_unchanged() {
    for (service, pod) in [("10.96.0.1:80", "10.244.0.1:0"), ("[fd00:10::1]:80", "[fd00:244::1]:0")] {
        test(|| {
            let server = server_at(pod);
            let mut relay = relay();
            relay.serve(&listener(&format!("TCP {service}"), &[server.local_addr().unwrap()])).unwrap();
            let (up, down) = (noise(1, 48 << 20), noise(2, 32 << 20));
            let exchange = |stream: TcpStream, data: Vec<u8>| {
                let mut writer = stream.try_clone().unwrap();
                let sending = thread::spawn(move || {
                    // The data is written in pieces of all sizes.
                    let mut rest = &data[..];
                    for size in [1, 2, 100, 16_383, 16_384, 16_385, 70_000].into_iter().cycle() {
                        let (piece, more) = rest.split_at(size.min(rest.len()));
                        writer.write_all(piece).unwrap();
                        rest = more;
                        if rest.is_empty() {
                            break;
                        }
                    }
                    writer.shutdown(Shutdown::Write).unwrap();
                });
                let mut stream = stream;
                let received = read_all(&mut stream);
                sending.join().unwrap();
                received
            };
            let mine = client(at(service));
            let theirs = accept(&server);
            let other = {
                let down = down.clone();
                thread::spawn(move || exchange(theirs, down))
            };
            let received = exchange(mine, up.clone());
            assert!(received == down, "{} bytes of {} came back", received.len(), down.len());
            assert!(other.join().unwrap() == up, "the server got something else");
            until("the connection is over", || relay.counts().connections == 0);
        });
    }
}

#[test]
fn a_connection_half_closed_goes_on_the_other_way() {
    test(|| {
        let (server, relay) = server_and_relay();
        // The client ends first.
        let mut mine = client(at("10.96.0.1:80"));
        mine.write_all(b"question").unwrap();
        mine.shutdown(Shutdown::Write).unwrap();
        let mut theirs = accept(&server);
        assert_eq!(read_all(&mut theirs), b"question");
        let answer = noise(3, 5 << 20);
        let sending = {
            let answer = answer.clone();
            thread::spawn(move || theirs.write_all(&answer).unwrap())
        };
        assert!(read_all(&mut mine) == answer);
        sending.join().unwrap();
        // The server ends first.
        let mut mine = client(at("10.96.0.1:80"));
        let mut theirs = accept(&server);
        theirs.write_all(b"greeting").unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut mine), b"greeting");
        mine.write_all(b"still here").unwrap();
        mine.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut theirs), b"still here");
        drop((mine, theirs));
        until("both connections are over", || relay.counts().connections == 0);
    });
}

#[test]
fn a_reset_is_passed_on_after_what_came_before_it() {
    test(|| {
        let (server, relay) = server_and_relay();
        for client_resets in [true, false] {
            let mine = client(at("10.96.0.1:80"));
            let theirs = accept(&server);
            let (mut from, mut to) = if client_resets { (mine, theirs) } else { (theirs, mine) };
            from.write_all(b"last words").unwrap();
            let mut words = [0; 10];
            to.read_exact(&mut words).unwrap();
            assert_eq!(&words, b"last words");
            reset(from);
            assert_reset(&mut to);
            drop(to);
            until("it is over", || relay.counts().connections == 0);
        }
    });
}

/// Sends these pieces one after the other: length, and whether it is urgent. A piece's last byte is the urgent one.
fn send_pieces(stream: &TcpStream, pieces: &[(usize, bool)], data: &[u8]) {
    let mut rest = data;
    for (length, is_urgent) in pieces {
        let (mut piece, more) = rest.split_at(*length);
        let flags = if *is_urgent { MsgFlags::MSG_OOB } else { MsgFlags::empty() };
        while !piece.is_empty() {
            piece = &piece[send(stream.as_raw_fd(), piece, flags).unwrap()..];
        }
        rest = more;
    }
}

#[test]
fn urgent_data_ends_nothing() {
    const PIECES: [&[(usize, bool)]; 9] = [
        &[(200_000, false), (1, true), (100_000, false)],
        &[(10, false), (1, true), (10, false)],
        &[(1, true)],
        &[(1, true), (300_000, false)],
        &[(300_000, false), (1, true)],
        &[(16_384, false), (1, true), (16_384, false), (1, true), (16_383, false)],
        &[(1, true), (1, true), (1, true), (1, false)],
        &[(50_000, true), (50_000, true), (50_000, false)],
        &[(200_000, false), (1, true), (1, false), (1, true), (200_000, false), (1, true), (1, false)],
    ];
    test(|| {
        let (server, relay) = server_and_relay();
        for (number, pieces) in PIECES.into_iter().enumerate() {
            for (from_client, end_at_once) in [(true, true), (true, false), (false, true), (false, false)] {
                let case = format!("{pieces:?}, client {from_client}, end at once {end_at_once}");
                let data = noise(number as u64, pieces.iter().map(|(length, _)| length).sum());
                let (mine, theirs) = (client(at("10.96.0.1:80")), accept(&server));
                let (from, mut to) = if from_client { (mine, theirs) } else { (theirs, mine) };
                let sending = thread::spawn({
                    let data = data.clone();
                    move || {
                        send_pieces(&from, pieces, &data);
                        if end_at_once {
                            from.shutdown(Shutdown::Write).unwrap();
                        }
                        from
                    }
                });
                let mut received = vec![0; data.len()];
                to.read_exact(&mut received).unwrap_or_else(|error| panic!("{case}: {error}"));
                assert!(received == data, "{case}: something else");
                let from = sending.join().unwrap();
                from.shutdown(Shutdown::Write).unwrap();
                assert_eq!(read_all(&mut to).len(), 0, "{case}");
                // The other direction is as open as before.
                to.write_all(b"answer").unwrap();
                to.shutdown(Shutdown::Write).unwrap();
                assert_eq!(read_all(&mut patient(from)), b"answer", "{case}");
            }
        }
        // Both ways at once.
        let (mine, theirs) = (client(at("10.96.0.1:80")), accept(&server));
        let data = noise(77, PIECES[8].iter().map(|(length, _)| length).sum());
        let sending = [mine.try_clone().unwrap(), theirs.try_clone().unwrap()].map(|stream| {
            let data = data.clone();
            thread::spawn(move || {
                send_pieces(&stream, PIECES[8], &data);
                stream.shutdown(Shutdown::Write).unwrap();
            })
        });
        for mut stream in [mine, theirs] {
            assert!(read_all(&mut stream) == data);
        }
        for thread in sending {
            thread.join().unwrap();
        }
        until("all are over", || relay.counts().connections == 0);
    });
}

#[test]
fn an_endpoint_is_not_read_while_its_client_does_not_read() {
    test(|| {
        let (server, _relay) = server_and_relay();
        let mut mine = client(at("10.96.0.1:80"));
        let mut theirs = accept(&server);
        theirs.set_nonblocking(true).unwrap();
        let (piece, mut sent, mut stalled) = (noise(4, 64 << 10), Vec::new(), Instant::now());
        // The relay is full when it has taken nothing for a second.
        while stalled.elapsed() < Duration::from_secs(1) {
            let next = &piece[sent.len() % piece.len()..];
            match theirs.write(next) {
                Ok(length) => {
                    sent.extend_from_slice(&next[..length]);
                    stalled = Instant::now();
                    assert!(sent.len() < 256 << 20, "the sender is never stopped");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{error}"),
            }
        }
        theirs.shutdown(Shutdown::Write).unwrap();
        assert!(read_all(&mut mine) == sent, "all of it arrives in the end");
    });
}

/// Takes all connections that wait.
fn accept_all(servers: &[TcpListener], accepted: &mut Vec<TcpStream>) {
    for server in servers {
        while let Ok((stream, _)) = server.accept() {
            stream.set_nonblocking(false).unwrap();
            accepted.push(patient(stream));
        }
    }
}

#[test]
fn ten_thousand_connections_at_once_to_a_thousand_services() {
    let (count, services) = (10_000, 1_000);
    // Two of each connection's four ends are the relay's.
    kernel_test(&[Need::Root, Need::OpenFiles(65_536)], || {
        node();
        let servers: Vec<TcpListener> = (1..=4).map(|last| server_at(&format!("10.244.0.{last}:8080"))).collect();
        let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.local_addr().unwrap()).collect();
        let mut relay = relay();
        let service = |number: usize| {
            let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
            SocketAddr::from(([10, 96, 1 + high, low], 80))
        };
        for number in 0..services {
            let key = FrontendKey::new(Protocol::Tcp, service(number).ip(), 80);
            let endpoints = addresses.iter().copied().map(EndpointKey::from);
            relay.serve(&Listener::new(key, format!("test/service-{number}")).with_endpoints(endpoints)).unwrap();
        }
        let all_are_there = Arc::new(AtomicBool::new(false));
        let accepting = thread::spawn({
            let all_are_there = all_are_there.clone();
            move || {
                let mut accepted = Vec::new();
                for server in &servers {
                    server.set_nonblocking(true).unwrap();
                }
                while !all_are_there.load(Ordering::Relaxed) {
                    accept_all(&servers, &mut accepted);
                    thread::sleep(Duration::from_millis(1));
                }
                (servers, accepted)
            }
        });
        let mut clients: Vec<TcpStream> = (0..count).map(|number| client(service(number % services))).collect();
        until("all are there", || relay.counts().connections == count);
        all_are_there.store(true, Ordering::Relaxed);
        let (servers, mut fresh) = accepting.join().unwrap();
        for (number, stream) in clients.iter_mut().enumerate() {
            stream.write_all(&(number as u64).to_le_bytes()).unwrap();
        }
        let (mut seen, mut served) = (BTreeSet::new(), Vec::new());
        until("all are served", || {
            accept_all(&servers, &mut fresh);
            for mut stream in fresh.drain(..) {
                let mut bytes = [0; 8];
                match stream.read_exact(&mut bytes) {
                    Ok(()) => {
                        assert!(seen.insert(u64::from_le_bytes(bytes)), "twice");
                        stream.write_all(&bytes).unwrap();
                        served.push(stream);
                    }
                    // The relay has dialled the next endpoint meanwhile on a slow machine.
                    Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            seen.len() == count
        });
        for (number, stream) in clients.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), number as u64, "no connection got another's data");
        }
        drop((clients, served));
        until("all are over", || relay.counts().connections == 0);
        assert_eq!(relay.counts().limited, 0);
    });
}

#[test]
fn endpoints_change_under_load_and_no_connection_is_lost() {
    test(|| {
        let servers: Vec<NameServer> = (1..=4).map(|last| named(&format!("10.244.0.{last}:8080"))).collect();
        let addresses: Vec<SocketAddr> = servers.iter().map(NameServer::address).collect();
        let mut relay = relay_to(&addresses[..2]);
        let ends = Arc::new(AtomicBool::new(false));
        let seen: Arc<Mutex<BTreeMap<SocketAddr, u64>>> = Arc::default();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (ends, seen) = (ends.clone(), seen.clone());
                thread::spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let mut stream = client(at("10.96.0.1:80"));
                        let server = name(&mut stream);
                        *seen.lock().unwrap().entry(server).or_default() += 1;
                        stream.write_all(b"who\n").unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                        assert!(read_all(&mut stream).starts_with(server.to_string().as_bytes()));
                    }
                })
            })
            .collect();
        let mut old = client(at("10.96.0.1:80"));
        let first = name(&mut old);
        let mut change = |round: usize| {
            let chosen = [addresses[round % 4], addresses[(round + 1 + round / 4 % 3) % 4]];
            relay.serve(&listener("TCP 10.96.0.1:80", &chosen)).unwrap();
            if round.is_multiple_of(10) {
                thread::sleep(Duration::from_millis(3));
            }
        };
        (0..300).for_each(&mut change);
        let mut rounds = 300..;
        until("all endpoints are used", || {
            change(rounds.next().unwrap());
            seen.lock().unwrap().len() == 4
        });
        let last = *addresses.iter().find(|address| **address != first).unwrap();
        relay.serve(&listener("TCP 10.96.0.1:80", &[last])).unwrap();
        let mut fresh = client(at("10.96.0.1:80"));
        assert_eq!(name(&mut fresh), last, "a new connection reaches no endpoint that is gone");
        // An old one goes on, though its endpoint is gone.
        assert_eq!(name(&mut old), first);
        ends.store(true, Ordering::Relaxed);
        for thread in clients {
            thread.join().unwrap();
        }
        assert_eq!((relay.counts().unanswered, relay.counts().limited), (0, 0));
    });
}

#[test]
fn the_next_endpoint_answers_where_one_refuses_or_is_silent() {
    kernel_test(&[Need::Root, Need::Veth], || {
        node();
        let (here, there) = (Netns::current().unwrap(), Netns::new().unwrap());
        veth_pair((&here, "eth0"), (&there, "eth0")).unwrap();
        here.add_address("192.0.2.1/24", "eth0").unwrap();
        let server = named("10.244.0.1:8080");
        let refuses = at("10.244.0.2:9");
        // No host on the link has the address.
        let silent = at("192.0.2.99:8080");
        let mut relay = relay_to(&[server.address(), refuses]);
        for _ in 0..6 {
            assert_eq!(name(&mut client(at("10.96.0.1:80"))), server.address());
        }
        assert!(relay.counts().failed_dials >= 3, "{:?}", relay.counts());
        relay.serve(&listener("TCP 10.96.0.2:80", &[server.address(), silent])).unwrap();
        for _ in 0..2 {
            assert_eq!(name(&mut client(at("10.96.0.2:80"))), server.address());
        }
        assert_eq!(relay.counts().unanswered, 0);
        // No endpoint answers: all that refuse are tried at once, a silent one gets 250 ms, 500 ms, 1 s and 2 s.
        relay.serve(&listener("TCP 10.96.0.3:80", &[refuses, at("10.244.0.3:9")])).unwrap();
        let begin = Instant::now();
        assert_turned_away(attempt("10.96.0.3:80"));
        let refused_after = begin.elapsed();
        // The address was not asked for yet: the kernel gives up 3 s after its first question, from any connection.
        relay.serve(&listener("TCP 10.96.0.4:80", &[at("192.0.2.98:8080")])).unwrap();
        let begin = Instant::now();
        assert_turned_away(attempt("10.96.0.4:80"));
        assert!(begin.elapsed() >= Duration::from_millis(2500), "{:?}", begin.elapsed());
        assert!(refused_after < begin.elapsed(), "{refused_after:?}");
        assert_eq!(relay.counts().unanswered, 2);
        let notices = relay.notices().join("\n");
        assert!(
            notices.contains("TCP 10.96.0.4:80: 1 connections or flows reset or dropped: no endpoint"),
            "{notices}"
        );
        assert_eq!(relay.notices(), Vec::<String>::new(), "told once");
    });
}

#[test]
fn clients_take_turns_or_stay() {
    test(|| {
        let servers: Vec<NameServer> = (1..=3).map(|last| named(&format!("10.244.0.{last}:8080"))).collect();
        let addresses: Vec<SocketAddr> = servers.iter().map(NameServer::address).collect();
        let mut relay = relay_to(&addresses);
        let mut counts = BTreeMap::<SocketAddr, u32>::new();
        for _ in 0..9 {
            *counts.entry(name(&mut client(at("10.96.0.1:80")))).or_default() += 1;
        }
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [3, 3, 3]);
        let sticky = |at, addresses: &[SocketAddr], time| {
            let mut listener = listener(at, addresses);
            listener.affinity = Some(time);
            listener
        };
        // Two addresses of one Service port.
        relay.serve(&sticky("TCP 10.96.0.2:80", &addresses, LIMIT)).unwrap();
        relay.serve(&sticky("TCP 10.244.0.9:30080", &addresses, LIMIT)).unwrap();
        let reach = |from, to| name(&mut client_from(from, at(to)));
        let first = reach("10.244.0.5", "10.96.0.2:80");
        let others: BTreeSet<SocketAddr> =
            ["10.244.0.6", "10.244.0.7"].map(|from| reach(from, "10.96.0.2:80")).into_iter().collect();
        assert!(!others.contains(&first) && others.len() == 2, "{others:?}");
        for to in ["10.96.0.2:80", "10.244.0.9:30080", "10.96.0.2:80"] {
            assert_eq!(reach("10.244.0.5", to), first, "{to}");
        }
        // Affinity lasts for a short time only.
        let short = sticky("TCP 10.96.0.3:80", &addresses, Duration::from_millis(200));
        relay.serve(&Listener { group: "test/short".into(), ..short }).unwrap();
        let before = reach("10.244.0.5", "10.96.0.3:80");
        thread::sleep(Duration::from_millis(300));
        assert_ne!(reach("10.244.0.5", "10.96.0.3:80"), before, "its time is over");
        // Its endpoint goes.
        let stays = reach("10.244.0.5", "10.96.0.2:80");
        let rest: Vec<SocketAddr> = addresses.iter().copied().filter(|address| *address != stays).collect();
        relay.serve(&sticky("TCP 10.96.0.2:80", &rest, LIMIT)).unwrap();
        assert_ne!(reach("10.244.0.5", "10.96.0.2:80"), stays);
    });
}

#[test]
fn without_endpoints_connections_are_refused() {
    test(|| {
        let server = named("10.244.0.1:8080");
        let mut relay = relay();
        let (some, none) = (listener("TCP 10.96.0.1:80", &[server.address()]), listener("TCP 10.96.0.1:80", &[]));
        for _ in 0..3 {
            relay.serve(&none).unwrap();
            assert_refused(at("10.96.0.1:80"));
            let stranger = TcpListener::bind("10.96.0.1:80").map(drop).map_err(|error| error.kind());
            assert_eq!(stranger, Err(ErrorKind::AddrInUse), "the port is kept");
            relay.serve(&some).unwrap();
            assert_eq!(name(&mut client(at("10.96.0.1:80"))), server.address());
        }
        // An open connection does not mind.
        let mut open = client(at("10.96.0.1:80"));
        name(&mut open);
        relay.serve(&none).unwrap();
        assert_eq!(name(&mut open), server.address());
        // Nor when the Service is gone.
        relay.close(&key("TCP 10.96.0.1:80"));
        assert_refused(at("10.96.0.1:80"));
        assert_eq!(name(&mut open), server.address());
        assert_eq!(relay.busy(), BTreeSet::from([IpAddr::from([10, 96, 0, 1])]));
        drop(open);
        until("it is over", || relay.busy().is_empty());
        // UDP.
        let socket = UdpSocket::bind("10.244.0.5:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        relay.serve(&listener("UDP 10.96.0.1:53", &[])).unwrap();
        socket.connect("10.96.0.1:53").unwrap();
        socket.send(b"?").unwrap();
        assert_eq!(socket.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn only_allowed_clients_are_served() {
    test(|| {
        let server = named("10.244.0.1:8080");
        let settings = |own: &[&str]| Settings {
            own: Arc::new(own.iter().map(|text| text.parse().unwrap()).collect()),
            ..Settings::default()
        };
        let mut relay = Relay::new(settings(&[]));
        let mut guarded = listener("TCP 10.96.0.1:80", &[server.address()]);
        guarded.sources = Some(Arc::new(["10.244.0.4/30".parse().unwrap()]));
        relay.serve(&guarded).unwrap();
        assert_eq!(name(&mut client_from("10.244.0.5", at("10.96.0.1:80"))), server.address());
        assert_turned_away(try_from("10.244.0.9", at("10.96.0.1:80")));
        // The node's own connection has the Service's address.
        assert_turned_away(attempt("10.96.0.1:80"));
        guarded.node_may_use = true;
        relay.serve(&guarded).unwrap();
        assert_eq!(name(&mut client(at("10.96.0.1:80"))), server.address());
        assert_eq!(relay.counts().turned_away, 2);
        // A policy `Local` without a local endpoint: only for the node.
        let mut local = listener("TCP 10.96.0.2:80", &[server.address()]);
        local.outside = Arc::new([]);
        relay.serve(&local).unwrap();
        assert_turned_away(try_from("10.244.0.5", at("10.96.0.2:80")));
        relay.configure(&settings(&["10.244.0.5"])).unwrap();
        assert_eq!(name(&mut client_from("10.244.0.5", at("10.96.0.2:80"))), server.address());
    });
}

#[test]
fn limits_are_kept_and_reported() {
    test(|| {
        let server = named("10.244.0.1:8080");
        // The listener, three connections of its clients, and two that are left.
        let mut relay = relay_with(|settings| settings.max_descriptors = Some(9));
        relay.serve(&listener("TCP 10.96.0.1:80", &[server.address()])).unwrap();
        let mut open: Vec<TcpStream> = (0..3).map(|_| client(at("10.96.0.1:80"))).collect();
        for stream in &mut open {
            name(stream);
        }
        for _ in 0..2 {
            assert_turned_away(attempt("10.96.0.1:80"));
        }
        let expected = "TCP 10.96.0.1:80: 2 connections or flows reset or dropped: its clients have three times as many file descriptors as \
                        are left of 9 for all Services: raise the limit of open files";
        assert_eq!(relay.notices(), [expected]);
        assert_eq!((relay.counts().limited, relay.counts().connections), (2, 3));
        open.pop();
        until("there is room again", || relay.counts().connections == 2);
        open.push(client(at("10.96.0.1:80")));
        assert_eq!(name(open.last_mut().unwrap()), server.address());
    });
}

/// Clients that do not read hold their connections, with all the data that fits. They are as many as the relay has descriptors for.
#[test]
fn clients_that_do_not_read_leave_room_for_other_services_and_listeners() {
    test(|| {
        let (floods, server) = (server_at("10.244.0.1:0"), named("10.244.0.2:8080"));
        let mut relay = relay_with(|settings| settings.max_descriptors = Some(200));
        relay.serve(&alone("TCP 10.96.0.1:80", &[floods.local_addr().unwrap()])).unwrap();
        relay.serve(&alone("TCP 10.96.0.2:80", &[server.address()])).unwrap();
        thread::spawn(move || {
            let mut held = Vec::new();
            for stream in floods.incoming() {
                let mut stream = stream.unwrap();
                stream.set_nonblocking(true).unwrap();
                while stream.write(&vec![7; 1 << 16]).is_ok() {}
                held.push(stream);
            }
        });
        let _silent: Vec<TcpStream> = (0..120).filter_map(|_| attempt("10.96.0.1:80").ok()).collect();
        until("some are too many", || relay.counts().limited > 0);
        let mut others: Vec<TcpStream> = (0..6).map(|_| client(at("10.96.0.2:80"))).collect();
        for number in 3..9 {
            relay.serve(&alone(&format!("TCP 10.96.0.{number}:80"), &[server.address()])).unwrap();
            others.push(client(SocketAddr::from(([10, 96, 0, number], 80))));
        }
        for stream in &mut others {
            assert_eq!(name(stream), server.address());
        }
        relay.serve(&alone("UDP 10.96.0.9:53", &[server.address()])).unwrap();
    });
}

#[test]
fn listeners_clients_and_pipes_share_descriptors() {
    test(|| {
        let (echo, server) = (server_at("10.244.0.2:8080"), named("10.244.0.1:8080"));
        let mut relay = relay_with(|settings| settings.max_descriptors = Some(20));
        let service = |number: usize| {
            let endpoint = if number == 1 { echo.local_addr().unwrap() } else { server.address() };
            alone(&format!("TCP 10.96.0.{number}:80"), &[endpoint])
        };
        let udp = |number: usize| alone(&format!("UDP 10.96.0.{number}:53"), &[server.address()]);
        for number in 1..=9 {
            relay.serve(&service(number)).unwrap();
        }
        relay.serve(&udp(1)).unwrap();
        // Listeners get half of the descriptors: the other half is for clients.
        for one_more in [service(11), udp(2)] {
            let error = relay.serve(&one_more).unwrap_err();
            assert_eq!(error.kind(), PortErrorKind::Full);
            let expected = format!("listening on {}: no file descriptor is left for it: ", one_more.key);
            assert!(error.to_string().starts_with(&expected), "{error}");
            assert_eq!(relay.listeners().get(&one_more.key), None);
        }
        let reach = |number: u8| client(SocketAddr::from(([10, 96, 0, number], 80)));
        let mut open: Vec<TcpStream> = (1..=4).map(reach).collect();
        for stream in &mut open[1..] {
            assert_eq!(name(stream), server.address());
        }
        let theirs = accept(&echo);
        assert_turned_away(attempt("10.96.0.6:80"));
        // Much goes through without pipes.
        thread::spawn(move || io::copy(&mut &theirs, &mut &theirs).unwrap());
        let (data, stream) = (noise(5, 4 << 20), &mut open[0]);
        let sending = thread::spawn({
            let (mut stream, data) = (stream.try_clone().unwrap(), data.clone());
            move || {
                stream.write_all(&data).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }
        });
        assert!(read_all(stream) == data);
        sending.join().unwrap();
        // All pipes come back: connections that have ended leave their room.
        drop(open);
        until("all are over", || relay.counts().connections == 0);
        relay.close(&key("TCP 10.96.0.1:80"));
        relay.serve(&service(11)).unwrap();
        // A UDP listener without endpoints has no socket.
        relay.serve(&listener("UDP 10.96.0.1:53", &[])).unwrap();
        relay.serve(&udp(2)).unwrap();
        assert_eq!(relay.serve(&udp(1)).unwrap_err().kind(), PortErrorKind::Full);
        let mut open: Vec<TcpStream> = (2..=5).map(reach).collect();
        for stream in &mut open {
            assert_eq!(name(stream), server.address());
        }
    });
}

#[test]
fn what_this_process_listens_on_is_no_endpoint() {
    test(|| {
        let [one, other, node_port] = ["10.96.0.1:80", "10.96.0.2:80", "10.244.0.9:30080"].map(at);
        let mut relay = relay();
        for protocol in ["TCP", "UDP"] {
            // Each address leads to itself, or round in a circle.
            relay.serve(&listener(&format!("{protocol} {one}"), &[one, other])).unwrap();
            relay.serve(&listener(&format!("{protocol} {other}"), &[node_port])).unwrap();
            relay.serve(&listener(&format!("{protocol} {node_port}"), &[one])).unwrap();
        }
        for (number, to) in [one, other, node_port].into_iter().enumerate() {
            assert_turned_away(attempt(&to.to_string()));
            let mine = udp_client("10.244.0.5:0", &to.to_string());
            mine.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            mine.send(b"?").unwrap();
            assert_eq!(mine.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(relay.counts().begun, (number as u64 + 1) * 2, "a client's connection, and its flow");
        }
        until("nothing goes round", || (relay.counts().connections, relay.counts().flows) == (0, 0));
        // Other endpoints serve.
        let server = named("10.244.0.1:8080");
        relay.serve(&listener("TCP 10.96.0.1:80", &[one, other, server.address()])).unwrap();
        for _ in 0..6 {
            assert_eq!(name(&mut client(one)), server.address());
        }
        let echo = Echo::start("10.244.0.1:53");
        relay.serve(&listener("UDP 10.96.0.1:80", &[one, other, echo.address])).unwrap();
        assert_eq!(ask(&udp_client("10.244.0.5:0", "10.96.0.1:80"), "one").0, echo.address);
        // An address without a listener is an endpoint like any other.
        relay.close(&key("TCP 10.96.0.2:80"));
        let stranger = named("10.96.0.2:80");
        let reached: BTreeSet<SocketAddr> = (0..4).map(|_| name(&mut client(one))).collect();
        assert_eq!(reached, BTreeSet::from([server.address(), stranger.address()]));
    });
}

#[test]
fn the_end_waits_for_connections() {
    test(|| {
        let server = named("10.244.0.1:8080");
        let mut relay = relay_to(&[server.address()]);
        let mut open = client(at("10.96.0.1:80"));
        name(&mut open);
        let begin = Instant::now();
        assert_eq!(relay.finish(Duration::from_millis(100)), 1);
        assert!(begin.elapsed() >= Duration::from_millis(100));
        let ending = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            open.write_all(b"who\n").unwrap();
            open.shutdown(Shutdown::Write).unwrap();
            read_all(&mut open)
        });
        assert_eq!(relay.finish(LIMIT), 0);
        assert!(ending.join().unwrap().starts_with(b"10.244.0.1:8080 "));
    });
}

#[test]
fn what_is_left_at_the_end_is_closed_also_inside_asynchronous_code() {
    test(|| {
        let server = named("10.244.0.1:8080");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut open = runtime.block_on(async {
            let _relay = relay_to(&[server.address()]);
            let mut open = client(at("10.96.0.1:80"));
            assert_eq!(name(&mut open), server.address());
            open
        });
        let end = open.read_to_end(&mut Vec::new());
        assert!(end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
        assert_refused(at("10.96.0.1:80"));
    });
}

#[test]
fn a_port_of_another_program_is_named_and_all_else_goes_on() {
    test(|| {
        let server = named("10.244.0.1:8080");
        let mut relay = relay();
        for (stranger, service) in [("10.96.0.1:80", "TCP 10.96.0.1:80"), ("0.0.0.0:8081", "TCP 10.96.0.1:8081")] {
            let stranger = TcpListener::bind(stranger).unwrap();
            let taken = listener(service, &[server.address()]);
            let error = relay.serve(&taken).unwrap_err();
            assert_eq!(error.kind(), PortErrorKind::AlreadyExists);
            assert!(error.to_string().starts_with(&format!("listening on {service}: ")), "{error}");
            assert_eq!(relay.listeners().get(&taken.key), None);
            relay.serve(&listener("TCP 10.96.0.2:80", &[server.address()])).unwrap();
            assert_eq!(name(&mut client(at("10.96.0.2:80"))), server.address());
            drop(stranger);
            // A program that another test starts may have inherited the socket for a moment.
            until("the port is free", || relay.serve(&taken).is_ok());
            assert_eq!(name(&mut client(at(service.trim_start_matches("TCP ")))), server.address());
        }
        let stranger = UdpSocket::bind("10.96.0.1:53").unwrap();
        let taken = listener("UDP 10.96.0.1:53", &[at("10.244.0.1:53")]);
        assert_eq!(relay.serve(&taken).unwrap_err().kind(), PortErrorKind::AlreadyExists);
        drop(stranger);
        until("the port is free", || relay.serve(&taken).is_ok());
        relay.close(&taken.key);
        until("it is free again", || relay.serve(&taken).is_ok());
        let sctp = Listener::new(FrontendKey::new(Protocol::Sctp, [10, 96, 0, 1].into(), 80), "test/sctp");
        assert_eq!(relay.serve(&sctp).unwrap_err().kind(), PortErrorKind::Unavailable);
    });
}

/// A UDP server that answers each datagram with its own address, the client's, and the datagram.
struct Echo {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start(address: &str) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = socket.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let stop = ends.clone();
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; 65_535];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let mut answer = format!("{address} {from} ").into_bytes();
                    answer.extend(&buffer[..length]);
                    drop(socket.send_to(&answer, from));
                }
            }
        });
        Echo { address, ends, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.thread.take().unwrap().join());
    }
}

/// Server that answers, and the source that it saw. The answer has to come from the destination of the question.
#[track_caller]
fn ask(socket: &UdpSocket, text: &str) -> (SocketAddr, SocketAddr) {
    socket.send(text.as_bytes()).unwrap();
    let mut buffer = vec![0; 65_535];
    let length = socket.recv(&mut buffer).unwrap();
    let answer = String::from_utf8(buffer[..length].to_vec()).unwrap();
    let mut words = answer.splitn(3, ' ');
    let (server, from) = (at(words.next().unwrap()), at(words.next().unwrap()));
    assert_eq!(words.next().unwrap(), text);
    (server, from)
}

fn udp_client(from: &str, to: &str) -> UdpSocket {
    let socket = UdpSocket::bind(from).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.connect(to).unwrap();
    socket
}

#[test]
fn a_udp_flow_lives_while_it_is_used() {
    for (service, from, pods) in [
        ("10.96.0.1:53", "10.244.0.5:0", ["10.244.0.1:53", "10.244.0.2:53"]),
        ("[fd00:10::1]:53", "[fd00:244::1]:0", ["[fd00:244::1]:5353", "[fd00:244::2]:5353"]),
    ] {
        test(|| {
            let servers = pods.map(Echo::start);
            let mut settings = Settings { udp_idle: LIMIT, ..Settings::default() };
            let mut relay = Relay::new(settings.clone());
            let addresses = [servers[0].address, servers[1].address];
            relay.serve(&listener(&format!("UDP {service}"), &addresses)).unwrap();
            let mine = udp_client(from, service);
            let first = ask(&mine, "one");
            let long = "x".repeat(if from.contains("::") { 1 } else { 20_000 });
            for text in ["two", "", &long] {
                assert_eq!(ask(&mine, text), first);
            }
            let second = ask(&udp_client(from, service), "one");
            assert_ne!(second, first, "another flow");
            assert_eq!(relay.counts().flows, 2);
            // Flows that begin later live for a short time.
            settings.udp_idle = Duration::from_millis(300);
            relay.configure(&settings).unwrap();
            let other = udp_client(from, service);
            let begin = Instant::now();
            let third = ask(&other, "one");
            until("its flow is over", || relay.counts().flows == 2);
            assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
            assert_ne!(ask(&other, "again"), third, "a new flow");
            assert_eq!(ask(&mine, "still"), first);
            assert_eq!(relay.counts().begun, 4);
        });
    }
}

#[test]
fn udp_clients_move_when_their_endpoint_goes_or_refuses() {
    test(|| {
        let (one, other) = (Echo::start("10.244.0.1:53"), Echo::start("10.244.0.2:53"));
        let mut relay = relay_with(|settings| settings.udp_idle = LIMIT);
        let sticky = |endpoints: &[SocketAddr]| {
            let mut listener = listener("UDP 10.96.0.1:53", endpoints);
            listener.affinity = Some(LIMIT);
            listener
        };
        relay.serve(&sticky(&[one.address])).unwrap();
        let mine = udp_client("10.244.0.5:0", "10.96.0.1:53");
        assert_eq!(ask(&mine, "1").0, one.address);
        relay.serve(&sticky(&[one.address, other.address])).unwrap();
        assert_eq!(ask(&mine, "2").0, one.address, "it stays while it can");
        assert_eq!(ask(&udp_client("10.244.0.5:0", "10.96.0.1:53"), "3").0, one.address, "by affinity");
        let mut unselected = sticky(&[other.address]);
        unselected.unselected = Some([one.address.into()].into());
        relay.serve(&unselected).unwrap();
        assert_eq!(ask(&mine, "3").0, one.address, "it serves, though it is not selected");
        let new = udp_client("10.244.0.5:0", "10.96.0.1:53");
        assert_eq!(ask(&new, "3").0, other.address);
        drop(new);
        relay.serve(&sticky(&[other.address])).unwrap();
        assert_eq!(ask(&mine, "4").0, other.address);
        assert_eq!(relay.counts().flows, 2, "the flows to what is gone are over");
        // The endpoint refuses; the next datagrams go elsewhere.
        relay.serve(&sticky(&[one.address, other.address])).unwrap();
        assert_eq!(ask(&mine, "5").0, other.address);
        drop(other);
        mine.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        until("another endpoint answers", || {
            mine.send(b"6").unwrap();
            let mut buffer = [0; 100];
            mine.recv(&mut buffer).is_ok_and(|length| buffer[..length].starts_with(b"10.244.0.1:53 "))
        });
        // The Service goes.
        relay.close(&key("UDP 10.96.0.1:53"));
        assert_eq!(relay.counts().flows, 0);
        // The kernel limits how often it refuses, and a datagram may come before the socket is closed.
        until("it is refused", || {
            let answer = mine.send(b"7").and_then(|_| mine.recv(&mut [0; 100]));
            answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
    });
}

#[test]
fn udp_packets_of_other_clients_are_dropped() {
    test(|| {
        let server = Echo::start("10.244.0.1:53");
        let mut relay = relay();
        let mut local = listener("UDP 10.96.0.1:53", &[server.address]);
        local.outside = Arc::new([]);
        relay.serve(&local).unwrap();
        let mine = udp_client("10.244.0.5:0", "10.96.0.1:53");
        mine.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        mine.send(b"?").unwrap();
        assert_eq!(mine.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock, "neither answered nor refused");
        assert_eq!(relay.counts().turned_away, 1);
        relay.serve(&listener("UDP 10.96.0.1:53", &[server.address])).unwrap();
        mine.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(ask(&mine, "now").0, server.address);
    });
}
