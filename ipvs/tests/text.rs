//! ipvsadm's text as people write it, with their mistakes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::net::{IpAddr, SocketAddr};

use ipvs::fake::FakeIpvs;
use ipvs::model::{DaemonState, Family, SyncDaemon};
use ipvs::text::{Ruleset, Statement, parse, parse_batch};
use ipvs::{Batch, ForwardingMethod, RealServer, VirtualServerKey, Weight};

/// The parsed text, one statement per line.
fn told(text: &str) -> String {
    let statements = parse(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    statements.iter().map(Statement::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn long_options_are_the_short_ones() {
    for (long, short) in [
        (
            "--add-service --tcp-service 10.0.0.1:80 --scheduler wrr --persistent 600 --netmask 255.255.0.0",
            "-A -t 10.0.0.1:80 -s wrr -p 600 -M 255.255.0.0",
        ),
        ("--edit-service --udp-service [fd00::1]:53 --ops --scheduler=rr", "-E -u [fd00::1]:53 -s rr -o"),
        ("--add-service --fwmark-service 7 --ipv6 --sched-flags sh-port --scheduler sh", "-A -f 7 -6 -s sh -b sh-port"),
        ("--delete-service --sctp-service 10.0.0.1:36412", "-D --sctp-service 10.0.0.1:36412"),
        ("--clear", "-C"),
        ("--zero", "-Z"),
        ("--zero --fwmark-service=9", "-Z -f 9"),
        (
            "--add-server --tcp-service 10.0.0.1:80 --real-server 10.1.0.1 --ipip --tun-type gue --tun-port 6080 --tun-csum",
            "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-csum",
        ),
        (
            "--edit-server --tcp-service 10.0.0.1:80 --real-server 10.1.0.1:81 --masquerading --weight 5 --u-threshold 9 --l-threshold 3",
            "-e -t 10.0.0.1:80 -r 10.1.0.1:81 -m -w 5 -x 9 -y 3",
        ),
        ("--delete-server --tcp-service 10.0.0.1:80 --real-server 10.1.0.1:81", "-d -t 10.0.0.1:80 -r 10.1.0.1:81"),
        ("--add-server -f 7 --real-server 10.1.0.1 --gatewaying", "-a -f 7 -r 10.1.0.1:0 -g -w 1"),
    ] {
        assert_eq!(told(long), short);
        assert_eq!(told(short), short);
    }
}

#[test]
fn what_is_left_out_has_ipvsadms_defaults() {
    assert_eq!(told("-A -t 10.0.0.1:80"), "-A -t 10.0.0.1:80 -s wlc");
    assert_eq!(told("-A -t 10.0.0.1 -p"), "-A -t 10.0.0.1:0 -s wlc -p 360");
    assert_eq!(told("-A -p -t 10.0.0.1:80 -o"), "-A -t 10.0.0.1:80 -s wlc -p 360 -o");
    assert_eq!(told("-a -t 10.0.0.1:80 -r 10.1.0.1"), "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g -w 1");
    assert_eq!(told("-a -t 10.0.0.1:80 -r 10.1.0.1 -i"), "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -i -w 1 --tun-type ipip");
    assert_eq!(
        told("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gre"),
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -i -w 1 --tun-type gre --tun-nocsum"
    );
    // IPv6 without brackets has no port.
    assert_eq!(told("-A -t fd00::1 -p 5"), "-A -t [fd00::1]:0 -s wlc -p 5");
}

#[test]
fn direct_routing_and_tunnels_keep_the_port_as_ipvsadm_does() {
    assert_eq!(told("-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -g"), "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g -w 1");
    assert_eq!(told("-a -f 7 -r 10.1.0.1:8080 -g"), "-a -f 7 -r 10.1.0.1:8080 -g -w 1");
    let other_port = "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 --forward route -w 1";
    assert_eq!(told(other_port), other_port);
}

#[test]
fn people_bundle_comment_indent_and_name_the_program() {
    let text = "# all of it\n\n  ipvsadm -At 10.0.0.1:80 -srr # the shop\r\n\tipvsadm -a -t10.0.0.1:80 -r=10.1.0.1:8080 -mw5\n";
    assert_eq!(told(text), "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 5");
}

#[test]
fn mistakes_are_named_with_their_line() {
    for (text, found, expected) in [
        ("-A -t www.example.org:80", "www.example.org:80", "host names"),
        ("-A -t 10.0.0.1:http", "10.0.0.1:http", "service names"),
        ("-a -t 10.0.0.1:80 -r web1:80 -m", "web1:80", "host names"),
        ("-A -t 10.0.0.1:99999", "10.0.0.1:99999", "0 to 65535"),
        ("-A -t 10.0.0.1:", "10.0.0.1:", "0 to 65535"),
        ("-A -t 10.0.0:80", "10.0.0:80", "an address"),
        ("-A -t [fd00::1:80", "[fd00::1:80", "an address"),
        ("-A -t [10.0.0.1]:80", "[10.0.0.1]:80", "an address"),
        ("-A -t 80", "80", "an address"),
        ("-A -t 10.0.0.1", "", "-p"),
        ("-A -s rr", "", "a virtual server"),
        ("-a -t 10.0.0.1:80 -m", "", "-r"),
        ("-t 10.0.0.1:80", "", "a command"),
        ("-D -6", "", "a virtual server"),
        ("-A -f 0", "0", "1 to 4294967295"),
        ("-A -f -1", "-1", "1 to 4294967295"),
        ("-A -t 10.0.0.1:80 -6", "-6", "only with -f"),
        ("-A -t 10.0.0.1:80 -s a-name-that-is-too-long", "a-name-that-is-too-long", "15"),
        ("-A -t 10.0.0.1:80 -p soon", "soon", "seconds"),
        ("-A -t 10.0.0.1:80 -p -M 24", "24", "mask"),
        ("-A -t [fd00::1]:80 -p -M 0", "0", "1 to 128"),
        ("-A -t [fd00::1]:80 -p -M 129", "129", "1 to 128"),
        ("-A -t 10.0.0.1:80 -M 255.0.0.0", "-M", "-p"),
        ("-A -t 10.0.0.1:80 --pe sip", "--pe", "-p"),
        ("-A -t 10.0.0.1:80 -b sh-port", "sh-port", "wlc"),
        ("-A -t 10.0.0.1:80 -s mh -b mh-port,nope", "nope", "mh-fallback"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -w -1", "-1", "2147483647"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -w 2147483648", "2147483648", "2147483647"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -x 5 -y 6", "6", "upper"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -y 6", "6", "upper"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -m --tun-type gre", "--tun-type", "-i"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gue", "", "--tun-port"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gue --tun-port 0", "0", "1 to 65535"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-port 9", "--tun-port", "gue"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type vxlan", "vxlan", "gre"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gre --tun-csum --tun-nocsum", "--tun-nocsum", "tun-nocsum"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -g -m", "-m", "gatewaying"),
        ("-A -t 10.0.0.1:80 -u 10.0.0.1:80", "-u", "tcp-service"),
        ("-A -t 10.0.0.1:80 -s rr -s wrr", "-s", "scheduler"),
        ("-A -D -t 10.0.0.1:80", "-D", "add-service"),
        ("-A -t 10.0.0.1:80 -w 1", "-w", "add-service"),
        ("-D -t 10.0.0.1:80 -s rr", "-s", "delete-service"),
        ("-C -t 10.0.0.1:80", "-t", "clear"),
        ("-L -n", "-L", "-A"),
        ("--start-daemon master", "--start-daemon", "-A"),
        ("-A -t 10.0.0.1:80 --schedular rr", "--schedular", "an option"),
        ("-A -t", "", "a value"),
        ("-A é", "é", "an option"),
        ("é -A", "é", "an option"),
    ] {
        let error = parse(&format!("-C\n{text}\n")).expect_err(text).to_string();
        let found = if found.is_empty() { "nothing more".to_owned() } else { format!("{found:?}") };
        assert!(error.starts_with(&format!("line 2: found {found}, expected ")), "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn what_was_found_is_shown_in_short() {
    let error = parse(&format!("-A {}", "x".repeat(100_000))).unwrap_err();
    assert!(error.to_string().len() < 300, "{error}");
}

#[test]
fn a_table_holds_additions_only() {
    let rules: Ruleset = "-C\n-A -t 10.0.0.1:80\n-A -t 10.0.0.2:80\n-a -t 10.0.0.1:80 -r 10.1.0.1\n".parse().unwrap();
    assert_eq!(rules.entries.len(), 2);
    assert_eq!(rules.entries[0].real_servers.len(), 1);
    for (text, line, expected) in [
        ("-A -t 10.0.0.1:80\n-A -t 10.0.0.1:80 -s rr", 2, "each virtual server once"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1", 1, "added by a line before"),
        ("-A -t 10.0.0.1:80\n-D -t 10.0.0.1:80", 2, "additions only"),
        ("-A -t 10.0.0.1:80\n-C", 2, "additions only"),
        (
            "-A -t 10.0.0.1:80\n-a -t 10.0.0.1:80 -r 10.1.0.1\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g",
            3,
            "each real server once",
        ),
    ] {
        let error = text.parse::<Ruleset>().expect_err(text);
        assert!(error.line() == line && error.to_string().contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_batch_has_no_commands_about_everything() {
    assert_eq!(parse_batch("-D -t 10.0.0.1:80\n-Z -f 7\n").unwrap().len(), 2);
    for text in ["-C", "-Z"] {
        assert!(parse_batch(text).unwrap_err().to_string().contains("about all of them"));
    }
    for text in ["", "-C\n-C"] {
        assert!(text.parse::<Statement>().unwrap_err().to_string().contains("one command"));
    }
}

/// As Python's `socket.inet_ntop` prints them.
#[test]
fn ipv6_addresses_are_written_as_the_c_library_does() {
    for addr in ["::", "::1", "::ffff", "::0.1.0.0", "::1.2.3.4", "::ffff:1.2.3.4", "1::", "::1:0:0", "fd00:0:1::2:0"] {
        let text = format!("-D -t [{addr}]:80");
        assert_eq!(told(&text), text);
    }
}

/// The output of `ipvsadm -S -n` on real kernels.
#[test]
fn what_ipvsadm_printed_comes_back_byte_for_byte() {
    for text in [
        include_str!("fixtures-text/linux-5.10/ipvsadm-Sn"),
        include_str!("fixtures-text/linux-6.1/ipvsadm-Sn"),
        include_str!("fixtures-text/linux-6.12/ipvsadm-Sn"),
        include_str!("fixtures-text/linux-7.2/ipvsadm-Sn"),
    ] {
        let rules: Ruleset = text.parse().unwrap();
        assert_eq!(rules.to_string(), text);
    }
}

#[test]
fn a_snapshot_is_a_table() {
    let mut rules: Ruleset = include_str!("fixtures-text/linux-6.1/ipvsadm-Sn").parse().unwrap();
    let fake = FakeIpvs::new();
    let mut client = fake.client().unwrap();
    client.run(&Batch::from(&rules)).into_result().unwrap();
    let mut read = Ruleset::from(&client.snapshot().unwrap());
    rules.sort();
    read.sort();
    assert_eq!(read, rules);
}

#[test]
fn words_of_the_model_come_back() {
    for text in [
        "masquerade",
        "local",
        "route",
        "bypass",
        "5",
        "tunnel",
        "tunnel gre csum",
        "tunnel gue:6080 csum remcsum",
        "tunnel 7:80 flags:21",
    ] {
        assert_eq!(text.parse::<ForwardingMethod>().unwrap().to_string(), text);
    }
    for text in ["", "8", "Masq", "tunnels", "tunnel gue", "tunnel gue:0", "tunnel csum gre", "tunnel 7", "-g"] {
        let error = text.parse::<ForwardingMethod>().unwrap_err();
        assert!(error.to_string().contains("tunnel [gre|gue:PORT]"), "{error}");
    }
    for text in ["-1", "2147483648", "one", ""] {
        assert!(text.parse::<Weight>().is_err(), "{text}");
    }
    for state in ["master", "backup"] {
        assert_eq!(state.parse::<DaemonState>().unwrap().to_string(), state);
    }
    for (family, addr) in [("IPv4", "10.0.0.1"), ("IPv6", "::1")] {
        assert_eq!(family.parse::<Family>().unwrap(), Family::from(addr.parse::<IpAddr>().unwrap()));
    }
    let at: SocketAddr = "10.1.0.1:80".parse().unwrap();
    assert_eq!(SocketAddr::from(RealServer::from(at).key), at);
    assert_eq!(VirtualServerKey::tcp(at).socket_addr(), Some(at));
    let mark = VirtualServerKey::fwmark(Family::V4, 7).unwrap();
    assert_eq!((mark.protocol(), mark.port(), mark.socket_addr()), (None, None, None));
    assert_eq!(ipvs::ErrorKind::VirtualServerExists.to_string(), "it exists already");
}

/// Fields omitted in a configuration file have their defaults, as in ipset.
#[test]
fn what_is_left_out_has_its_default() {
    let rules: Ruleset = serde_json::from_str(
        r#"{"entries": [{
            "virtual_server": {"key": "TCP 10.0.0.1:80", "config": {"scheduler": "rr"}},
            "real_servers": [{"key": "10.1.0.1:80"}, {"key": "10.1.0.2:80", "config": {"weight": 5}}]
        }, {
            "virtual_server": {"key": "FWM 7", "config": {"scheduler": "wlc", "persistence": {"timeout_secs": 300}}}
        }]}"#,
    )
    .unwrap();
    assert_eq!(
        rules.to_string(),
        "-A -t 10.0.0.1:80 -s rr\n\
         -a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1\n\
         -a -t 10.0.0.1:80 -r 10.1.0.2:80 -m -w 5\n\
         -A -f 7 -s wlc -p 300\n"
    );
    assert_eq!(serde_json::from_str::<Ruleset>("{}").unwrap(), Ruleset::new());
    let daemon: SyncDaemon = serde_json::from_str(r#"{"state": "master", "interface": "lo"}"#).unwrap();
    assert_eq!(daemon, SyncDaemon::new(DaemonState::Master, "lo".parse().unwrap(), 0));
}
