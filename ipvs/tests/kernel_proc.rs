//! `/proc` of real kernels: connections of real traffic against `ipvsadm -Lnc`, counters against `ipvsadm --stats`, settings
//! against the table of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use ipvs::model::Protocol;
use ipvs::proc::{Connection, Origin, Proc, Target};
use ipvs::sysctl::{ErrorKind, Knob, Requirement, Sysctl, Value, ValueType};
use testkit::{Need, Netns, kernel_test, oracle, traffic};

const NEEDS: &[Need] = &[Need::Root, Need::IpVs, Need::Tool("ipvsadm")];

fn ipvsadm(arguments: &[&str]) -> String {
    oracle::run("ipvsadm", arguments, None).unwrap().stdout
}

/// Addresses, virtual servers and the servers behind them; real clients can connect.
fn ground() -> Vec<traffic::NameServer> {
    let here = Netns::current().unwrap();
    for address in ["10.0.0.1/32", "10.0.0.2/32", "fd00::1/128", "fd00::2/128"] {
        here.add_address(address, "lo").unwrap();
    }
    oracle::ipvsadm_restore(
        "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.0.0.2:8080 -m\n\
         -A -t 10.0.0.1:81 -s rr -p 300 -M 255.255.255.0\n-a -t 10.0.0.1:81 -r 10.0.0.2:8080 -m\n\
         -A -u 10.0.0.1:53 -s rr\n-a -u 10.0.0.1:53 -r 10.0.0.2:5353 -m\n\
         -A -t [fd00::1]:80 -s rr -p 60\n-a -t [fd00::1]:80 -r [fd00::2]:8080 -m\n\
         -A -u 10.0.0.1:5060 -s rr -p 60 --pe sip -o\n-a -u 10.0.0.1:5060 -r 10.0.0.2:5060 -m\n",
    )
    .unwrap();
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    vec![
        traffic::NameServer::tcp(&here, at("10.0.0.2:8080"), "four").unwrap(),
        traffic::NameServer::tcp(&here, at("[fd00::2]:8080"), "six").unwrap(),
        traffic::NameServer::udp(&here, at("10.0.0.2:5353"), "names").unwrap(),
        traffic::NameServer::udp(&here, at("10.0.0.2:5060"), "calls").unwrap(),
    ]
}

/// A line of `ipvsadm -Lnc --persistent-conn` without the time.
fn line(connection: &Connection) -> String {
    let Target::Address(target) = connection.target else { panic!("no marks here: {connection:?}") };
    let Connection { protocol, client, real_server, state, .. } = connection;
    let mut line = format!("{protocol} {state} {client} {target} {real_server}");
    if let Some(persistence) = &connection.persistence {
        line = format!("{line} {} {}", persistence.engine, String::from_utf8_lossy(&persistence.data));
    }
    line
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

#[test]
fn connections_are_those_ipvsadm_lists() {
    kernel_test(NEEDS, || {
        let _servers = ground();
        let mut open = Vec::new();
        for (address, name) in
            [("10.0.0.1:80", "four"), ("10.0.0.1:81", "four"), ("[fd00::1]:80", "six"), ("10.0.0.1:80", "four")]
        {
            let mut connection = traffic::Connection::open(address.parse().unwrap()).unwrap();
            assert_eq!(connection.ask().unwrap(), name, "{address}");
            open.push(connection);
        }
        open.pop(); // One that is closing.
        assert_eq!(traffic::ask_udp("10.0.0.1:53".parse().unwrap()).unwrap(), "names");
        let call = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
        call.send_to(b"INVITE sip:b@x SIP/2.0\r\nCall-ID: 1234abc@10.0.0.9\r\n\r\n", "10.0.0.1:5060").unwrap();

        // States move while both are read: look until nothing moved in between.
        let mut last = (Vec::new(), Vec::new());
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(100));
            let ours = sorted(Proc::new().connections().unwrap().map(|connection| line(&connection.unwrap())));
            let theirs = sorted(ipvsadm(&["-L", "-n", "-c", "--persistent-conn"]).lines().skip(2).map(|line| {
                let words = line.split_ascii_whitespace().enumerate().filter(|(index, _)| *index != 1);
                words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
            }));
            last = (ours, theirs);
            if last.0 == last.1 && last.0.iter().any(|line| line.contains("1234abc")) {
                break;
            }
        }
        assert_eq!(last.0, last.1);
        // Four TCP, one UDP, two templates of addresses and one of a call.
        assert_eq!(last.0.len(), 8, "{:#?}", last.0);
        assert!(last.0.iter().any(|line| line.ends_with(" sip 1234abc@10.0.0.9")), "{:#?}", last.0);

        let synced: Vec<Connection> = Proc::new().synced_connections().unwrap().map(Result::unwrap).collect();
        assert_eq!(synced.len(), 8);
        assert!(synced.iter().all(|connection| connection.origin == Some(Origin::Local)));
        let udp = synced.iter().find(|connection| connection.target == Target::Address("10.0.0.1:53".parse().unwrap()));
        let seconds = udp.unwrap().expires_in.as_secs();
        assert!((200..=300).contains(&seconds), "{seconds}");
    });
}

#[test]
fn each_thread_reads_its_own_namespace() {
    kernel_test(NEEDS, || {
        let _servers = ground();
        assert_eq!(traffic::connect_and_ask("10.0.0.1:80".parse().unwrap()).unwrap(), "four");
        let here = Proc::new().connections().unwrap().count();
        let there = Netns::new().unwrap().run_in(|| Proc::new().connections().unwrap().count()).unwrap();
        assert_eq!((here > 0, there), (true, 0));
    });
}

#[test]
fn counters_are_those_of_ipvsadm() {
    kernel_test(NEEDS, || {
        let _servers = ground();
        for _ in 0..5 {
            assert_eq!(traffic::connect_and_ask("10.0.0.1:80".parse().unwrap()).unwrap(), "four");
        }
        assert_eq!(traffic::ask_udp("10.0.0.1:53".parse().unwrap()).unwrap(), "names");
        thread::sleep(Duration::from_millis(300));
        let per_cpu = Proc::new().stats_per_cpu().unwrap();
        assert_eq!(per_cpu.cpus.iter().map(|cpu| cpu.connections).sum::<u64>(), 6);

        // The kernel adds up its CPUs every two seconds.
        let mut last = ([0; 5], [1; 5]);
        for _ in 0..60 {
            let total = Proc::new().stats().unwrap();
            let ours = [total.connections, total.packets_in, total.packets_out, total.bytes_in, total.bytes_out];
            let mut theirs = [0_u64; 5];
            for line in ipvsadm(&["-L", "-n", "--stats", "--exact"]).lines().filter(|line| line.starts_with(['T', 'U']))
            {
                for (sum, word) in theirs.iter_mut().zip(line.split_ascii_whitespace().skip(2)) {
                    *sum += word.parse::<u64>().unwrap();
                }
            }
            last = (ours, theirs);
            let sums = Proc::new().stats_per_cpu().unwrap();
            let bytes = sums.cpus.iter().map(|cpu| cpu.bytes_in).sum::<u64>();
            if ours == theirs && ours[0] == 6 && bytes == ours[3] && sums.total == total {
                return;
            }
            thread::sleep(Duration::from_millis(250));
        }
        panic!("ours {:?}, ipvsadm's {:?}", last.0, last.1);
    });
}

#[test]
fn the_version_is_ipvsadms() {
    kernel_test(NEEDS, || {
        let info = Proc::new().info().unwrap();
        assert!(ipvsadm(&["-L", "-n"]).starts_with(&format!("IP Virtual Server version {info}\n")), "{info}");
        assert_eq!(info, ipvs::Client::open().unwrap().info().unwrap());
    });
}

/// Major and minor version of this kernel.
fn kernel() -> (u16, u16) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// The settings this kernel shows, by their files.
fn shown() -> BTreeSet<String> {
    let files = std::fs::read_dir("/proc/sys/net/ipv4/vs").unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

fn with_modules() {
    for module in ["ip_vs_lblc", "ip_vs_lblcr"] {
        oracle::run("modprobe", &[module], None).unwrap();
    }
}

#[test]
fn the_table_of_settings_is_the_kernels() {
    kernel_test(NEEDS, || {
        with_modules();
        let (kernel, shown, sysctl) = (kernel(), shown(), Sysctl::new());
        assert_eq!(sysctl.unknown().unwrap(), [""; 0]);
        let values = sysctl.read_all().unwrap();
        assert_eq!(values.keys().map(|knob| knob.name().to_owned()).collect::<BTreeSet<_>>(), shown);
        for knob in Knob::ALL {
            let description = knob.describe();
            let is_there = shown.contains(knob.name());
            let exists = description.since.is_none_or(|since| kernel >= since);
            match description.requires {
                // A kernel may be configured either way.
                Some(Requirement::Config(_)) => assert!(!is_there || exists, "{knob}"),
                _ => assert_eq!(is_there, exists, "{knob} on {kernel:?}"),
            }
            if !is_there {
                let error = sysctl.read(*knob).unwrap_err();
                assert_eq!(*error.kind(), ErrorKind::Absent, "{error}");
                continue;
            }
            // Namespaces made later have smaller tables (`ip_vs_conn_default_load_factor`, `ip_vs_svc_default_load_factor`).
            let is_load = matches!(knob, Knob::ConnLfactor | Knob::SvcLfactor);
            if let Some(default) = if is_load { Some("-2") } else { description.default } {
                assert_eq!(values[knob].to_string(), default, "{knob} in a fresh network namespace");
            }
            knob.check(&values[knob]).unwrap();
        }
    });
}

#[test]
fn each_setting_can_be_written_and_read_back() {
    kernel_test(NEEDS, || {
        with_modules();
        let sysctl = Sysctl::new();
        for (knob, before) in sysctl.read_all().unwrap() {
            if knob == Knob::DebugLevel {
                let error = sysctl.write(knob, &Value::Integer(1)).unwrap_err();
                assert_eq!(*error.kind(), ErrorKind::ReadOnly, "{error}");
                continue;
            }
            let values = match knob.describe().value_type {
                ValueType::Switch => vec![Value::ON, Value::OFF],
                // Negative numbers mean nothing to most of these, although the kernel takes them.
                ValueType::Integer { min: -0x8000_0000, max } => vec![Value::Integer(1), Value::Integer(max)],
                ValueType::Integer { min, max } => vec![Value::Integer(min), Value::Integer(max)],
                ValueType::PowerOfTwo => vec![Value::Integer(2), Value::Integer(64)],
                ValueType::Count => vec![Value::Count(1), Value::Count(1 << 33)],
                ValueType::Pair => vec![Value::Pair(0, 0), Value::Pair(5, 60), Value::Pair(3, 0)],
                ValueType::CpuList => vec![Value::CpuList("0".to_owned()), Value::CpuList(String::new())],
                other => panic!("{other:?}"),
            };
            for value in values {
                sysctl.write(knob, &value).unwrap_or_else(|error| panic!("{knob} {value}: {error}"));
                let read = sysctl.read(knob).unwrap();
                // Automatic modes may be found switched on already.
                let is_mode = matches!(knob, Knob::DropEntry | Knob::DropPacket | Knob::SecureTcp);
                assert!(read == value || is_mode, "{knob}: wrote {value}, read {read}");
            }
            sysctl.write(knob, &before).unwrap();
        }
    });
}

#[test]
fn what_we_call_out_of_range_the_kernel_refuses() {
    kernel_test(NEEDS, || {
        with_modules();
        let sysctl = Sysctl::new();
        for knob in sysctl.read_all().unwrap().into_keys() {
            let values = match knob.describe().value_type {
                ValueType::Integer { min, max } if min > -0x8000_0000 && max < 2_000_000 => vec![min - 1, max + 1],
                ValueType::Integer { max: 0x4000_0000, .. } => vec![-1, 0x4000_0001],
                ValueType::PowerOfTwo => vec![0, 3],
                _ => continue,
            };
            for value in values {
                assert!(knob.check(&Value::Integer(value)).is_err(), "{knob} {value}");
                let path = sysctl.root().join(knob.name());
                assert!(std::fs::write(path, format!("{value}\n")).is_err(), "the kernel takes {knob} = {value}");
            }
        }
        for pair in ["50\t50", "-1\t50"] {
            assert!(std::fs::write(sysctl.root().join("sync_threshold"), pair).is_err(), "{pair}");
        }
    });
}

#[test]
fn protocols_are_named_as_in_the_table() {
    kernel_test(NEEDS, || {
        let _servers = ground();
        assert_eq!(traffic::ask_udp("10.0.0.1:53".parse().unwrap()).unwrap(), "names");
        assert_eq!(traffic::connect_and_ask("[fd00::1]:80".parse().unwrap()).unwrap(), "six");
        let protocols: BTreeSet<Protocol> =
            Proc::new().connections().unwrap().map(|connection| connection.unwrap().protocol).collect();
        assert_eq!(protocols, BTreeSet::from([Protocol::Tcp, Protocol::Udp]));
    });
}
