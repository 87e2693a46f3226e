//! Files of `/proc` as real kernels wrote them, and as they never should.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::io::{BufReader, Read};
use std::net::SocketAddr;
use std::time::Duration;

use ipvs::model::Protocol;
use ipvs::proc::{Connection, Connections, ErrorKind, Origin, Proc, State, Target};
use proptest::prelude::*;

const KERNELS: [&str; 4] = ["5.10", "6.1", "6.12", "7.2"];

fn fixtures(kernel: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures-text/linux-{kernel}"))
}

fn proc(kernel: &str) -> Proc {
    Proc::at(fixtures(kernel))
}

/// An address and port as ipvsadm prints them.
fn at(addr: SocketAddr) -> String {
    addr.to_string()
}

/// The line of `ipvsadm -Lnc --persistent-conn` for a connection, blanks folded.
fn as_ipvsadm(connection: &Connection) -> String {
    let protocol = match connection.protocol {
        Protocol::Other(0) => "IP".to_owned(),
        other => other.to_string(),
    };
    let seconds = connection.expires_in.as_secs();
    let target = match connection.target {
        Target::Address(addr) => at(addr),
        // ipvsadm takes a mark for an address.
        Target::Fwmark(mark) if connection.client.is_ipv4() => {
            format!("{}:0", std::net::Ipv4Addr::from_bits(mark))
        }
        Target::Fwmark(mark) => format!("[{:x}:{:x}::]:0", mark >> 16, mark & 0xffff),
    };
    let mut line = format!(
        "{protocol} {:02}:{:02} {} {} {target} {}",
        seconds / 60,
        seconds % 60,
        connection.state,
        at(connection.client),
        at(connection.real_server),
    );
    if let Some(persistence) = &connection.persistence {
        line = format!("{line} {} {}", persistence.engine, String::from_utf8_lossy(&persistence.data));
    }
    line
}

fn recorded(kernel: &str, name: &str) -> String {
    std::fs::read_to_string(fixtures(kernel).join(name)).unwrap()
}

#[test]
fn connections_are_those_ipvsadm_listed() {
    for kernel in KERNELS {
        let listed: Vec<String> = recorded(kernel, "ipvsadm-Lnc")
            .lines()
            .skip(2)
            .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let read: Vec<String> =
            proc(kernel).connections().unwrap().map(|connection| as_ipvsadm(&connection.unwrap())).collect();
        assert!(read.len() > 8, "{kernel}: {read:#?}");
        // ipvsadm ran after the file was copied: a second may have passed.
        let untimed = |lines: &[String]| -> Vec<String> {
            let mut lines: Vec<String> = lines
                .iter()
                .map(|line| {
                    line.split(' ')
                        .enumerate()
                        .filter(|(index, _)| *index != 1)
                        .map(|(_, word)| word)
                        .collect::<Vec<_>>()
                        .join(" ")
                })
                .collect();
            lines.sort();
            lines
        };
        assert_eq!(untimed(&read), untimed(&listed), "{kernel}");
    }
}

#[test]
fn connections_come_back_from_json() {
    for kernel in KERNELS {
        for connection in proc(kernel).connections().unwrap().map(Result::unwrap) {
            let json = serde_json::to_string(&connection).unwrap();
            assert!(json.contains(&format!("\"state\":\"{}\"", connection.state)), "{json}");
            assert_eq!(serde_json::from_str::<Connection>(&json).unwrap(), connection);
        }
    }
}

#[test]
fn synchronised_connections_are_the_same_with_their_origin() {
    for kernel in KERNELS {
        let key = |connection: &Connection| {
            let Connection { protocol, client, target, real_server, state, .. } = connection.clone();
            format!("{protocol:?} {client} {target:?} {real_server} {state}")
        };
        let all: Vec<Connection> = proc(kernel).connections().unwrap().map(Result::unwrap).collect();
        let synced: Vec<Connection> = proc(kernel).synced_connections().unwrap().map(Result::unwrap).collect();
        assert_eq!(all.iter().map(key).collect::<Vec<_>>(), synced.iter().map(key).collect::<Vec<_>>(), "{kernel}");
        assert!(synced.iter().all(|connection| connection.origin == Some(Origin::Local)), "{kernel}");
        assert!(all.iter().all(|connection| connection.origin.is_none()), "{kernel}");
    }
}

#[test]
fn templates_name_marks_and_persistence_data() {
    for kernel in KERNELS {
        let all: Vec<Connection> = proc(kernel).connections().unwrap().map(Result::unwrap).collect();
        let target = |target| all.iter().filter(move |connection| connection.target == target).count();
        assert_eq!((target(Target::Fwmark(7)), target(Target::Fwmark(9))), (1, 1), "{kernel}");
        let sip: Vec<_> = all.iter().filter_map(|connection| connection.persistence.as_ref()).collect();
        assert_eq!(sip.len(), 1, "{kernel}");
        assert_eq!((sip[0].engine.as_str(), sip[0].data.as_slice()), ("sip", b"1234abc@10.0.0.9".as_slice()));
    }
}

#[test]
fn counters_and_the_version_are_read_from_every_kernel() {
    for kernel in KERNELS {
        let proc = proc(kernel);
        let info = proc.info().unwrap();
        let header = recorded(kernel, "ip_vs");
        assert!(header.starts_with(&format!("IP Virtual Server version {info}\n")), "{kernel}: {info}");
        proc.stats().unwrap();
        let per_cpu = proc.stats_per_cpu().unwrap();
        // The machine had two CPUs, and seven connections went through it: two for each mark and protocol.
        assert_eq!(per_cpu.cpus.iter().map(|cpu| cpu.cpu).collect::<Vec<_>>(), [0, 1], "{kernel}");
        assert!(per_cpu.cpus.iter().map(|cpu| cpu.connections).sum::<u64>() >= 7, "{kernel}: {per_cpu:?}");
        assert!(per_cpu.cpus.iter().all(|cpu| cpu.bytes_in >= cpu.packets_in), "{kernel}: {per_cpu:?}");
    }
}

fn read(text: &[u8]) -> Vec<Result<Connection, ipvs::proc::Error>> {
    Connections::new(text, "ip_vs_conn").collect()
}

const HEADER: &str = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n";

#[test]
fn every_column_arrives() {
    let text = format!(
        "{HEADER}SCTP C0000201 1234 CB007101 9018 fd00:0000:0000:0000:0000:0000:0000:0102 0050 SHUTDOWN_ACK_SENT     12 sip a b \u{e9}\n"
    );
    let all = read(text.as_bytes());
    let connection = all[0].as_ref().unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(connection.protocol, Protocol::Sctp);
    assert_eq!(connection.client, "192.0.2.1:4660".parse().unwrap());
    assert_eq!(connection.target, Target::Address("203.0.113.1:36888".parse().unwrap()));
    assert_eq!(connection.real_server, "[fd00::102]:80".parse().unwrap());
    assert_eq!(connection.state, State::ShutdownAckSent);
    assert_eq!(connection.expires_in, Duration::from_secs(12));
    assert_eq!(connection.persistence.as_ref().unwrap().data, "a b \u{e9}".as_bytes());
}

#[test]
fn an_overdue_connection_of_an_old_kernel_expires_now() {
    let text = format!("{HEADER}TCP C0000201 1234 CB007101 0050 C0000202 0050 BUG!        73786976294838206\n");
    let all = read(text.as_bytes());
    let connection = all[0].as_ref().unwrap();
    assert_eq!((connection.expires_in, connection.state.as_str()), (Duration::ZERO, "BUG!"));
}

#[test]
fn a_bad_line_is_reported_and_the_next_ones_are_read() {
    let good = "TCP C0000201 1234 CB007101 0050 C0000202 0050 NONE              9\n";
    for (bad, expected) in [
        ("\n", "a protocol"),
        ("RAW C0000201 1234 CB007101 0050 C0000202 0050 NONE 9\n", "a protocol"),
        ("TCP C000020 1234 CB007101 0050 C0000202 0050 NONE 9\n", "the client's address"),
        ("TCP C0000201 12345 CB007101 0050 C0000202 0050 NONE 9\n", "the client's port"),
        ("TCP C0000201 1234 CB00710g 0050 C0000202 0050 NONE 9\n", "the virtual address"),
        ("TCP C0000201 1234 CB007101 005 C0000202 0050 NONE 9\n", "the virtual port"),
        ("TCP C0000201 1234 CB007101 0050 fd00::g 0050 NONE 9\n", "the real server's address"),
        ("TCP C0000201 1234 CB007101 0050 C0000202 +050 NONE 9\n", "the real server's port"),
        ("TCP C0000201 1234 CB007101 0050 C0000202 0050\n", "a state"),
        ("TCP C0000201 1234 CB007101 0050 C0000202 0050 NONE soon\n", "seconds"),
        ("TCP C0000201 1234 CB007101 0050 C0000202 0050 NONE 9 engine-with-a-long-name x\n", "a persistence engine"),
    ] {
        let all = read(format!("{HEADER}{good}{bad}{good}").as_bytes());
        assert_eq!(all.len(), 3, "{bad}");
        assert!(all[0].is_ok() && all[2].is_ok(), "{bad}");
        let error = all[1].as_ref().expect_err(bad);
        assert_eq!((error.kind(), error.line()), (ErrorKind::Malformed, 3), "{bad}");
        assert!(error.to_string().contains(expected), "{bad}: {error}");
    }
}

#[test]
fn without_the_header_nothing_is_believed() {
    for text in ["", "\n", "hello\n", "TCP C0000201 1234 CB007101 0050 C0000202 0050 NONE 9\n"] {
        let all = read(text.as_bytes());
        assert_eq!(all.len(), 1, "{text}");
        assert_eq!(all[0].as_ref().expect_err(text).kind(), ErrorKind::Malformed);
    }
    assert!(read(HEADER.as_bytes()).is_empty());
}

#[test]
fn a_missing_folder_says_what_to_do() {
    let proc = Proc::at("/nonexistent/net");
    for error in [
        proc.connections().unwrap_err(),
        proc.synced_connections().unwrap_err(),
        proc.stats().unwrap_err(),
        proc.stats_per_cpu().unwrap_err(),
        proc.info().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Absent);
        assert!(error.to_string().contains("modprobe ip_vs"), "{error}");
    }
}

/// Counts what is taken from it, and makes lines as they are asked for.
struct Endless<'a> {
    taken: &'a std::cell::Cell<usize>,
    line: u32,
    lines: u32,
    rest: Vec<u8>,
}

impl Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() && self.line < self.lines {
            let client = 0x0a00_0000 + self.line;
            self.rest = if self.line == 0 {
                HEADER.into()
            } else {
                format!("TCP {client:08X} 1234 CB007101 0050 C0000202 0050 ESTABLISHED     899\n").into()
            };
            self.line += 1;
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest[..length]);
        self.rest.drain(..length);
        self.taken.set(self.taken.get() + length);
        Ok(length)
    }
}

#[test]
fn a_hundred_thousand_connections_are_read_one_by_one() {
    let taken = std::cell::Cell::new(0);
    let file = Endless { taken: &taken, line: 0, lines: 100_001, rest: Vec::new() };
    let mut connections = Connections::new(BufReader::with_capacity(4096, file), "ip_vs_conn");
    assert!(connections.next().unwrap().is_ok());
    assert!(taken.get() <= 4096, "{}", taken.get());
    let mut last = None;
    let mut count = 1;
    for connection in connections {
        count += 1;
        last = Some(connection.unwrap().client);
    }
    assert_eq!((count, last), (100_000, Some("10.1.134.160:4660".parse().unwrap())));
}

proptest! {
    #[test]
    fn no_file_panics(text in proptest::collection::vec(any::<u8>(), 0..400), header in any::<bool>()) {
        let mut file = if header { HEADER.as_bytes().to_vec() } else { Vec::new() };
        file.extend(text);
        let lines = file.split(|byte| *byte == b'\n').count();
        prop_assert!(read(&file).len() <= lines);
    }

    #[test]
    fn no_line_panics(line in "(TCP|IP|IP_[0-9]{1,4}|\\PC{0,4}) ([0-9A-F]{8}|[0-9a-f:]{2,39}) [0-9A-F]{4} [0-9A-F]{8} [0-9A-F]{4} [0-9A-F]{8} [0-9A-F]{4} \\PC{0,12} {1,8}[0-9]{1,21}( \\PC{0,16}){0,3}") {
        let all = read(format!("{HEADER}{line}\n").as_bytes());
        prop_assert!(all.len() == 1, "{all:?}");
    }
}
