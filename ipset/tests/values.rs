//! Values without a kernel: sets that are built step by step, what a type has, and what cannot be part of a set.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use ipset::{
    Comment, Entry, ErrorKind, Family, InvalidValue, IpSpan, MacAddr, PortRange, Ports, Position, Protocol, Range,
    SetFlags, SetName, SetSpec, SetType, Timeout, parse_save,
};

fn spec(line: &str) -> SetSpec {
    parse_save(line).unwrap_or_else(|error| panic!("{line}: {error}")).remove(0).spec
}

fn named(set_type: SetType) -> SetSpec {
    SetSpec::new(SetName::new("a").unwrap(), set_type)
}

/// The error of a line of text.
fn wrong(line: &str) -> InvalidValue {
    match parse_save(line).unwrap_err().kind() {
        ErrorKind::Line(1, error) => error.clone(),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn saved_text_creates_a_set_before_it_adds_to_it() {
    for text in ["add alowed 10.0.0.1", "create allowed hash:ip\nadd alowed 10.0.0.1"] {
        let error = parse_save(text).unwrap_err();
        let line = text.lines().count();
        assert!(
            matches!(error.kind(), ErrorKind::Line(at, InvalidValue::NotCreated(set)) if *at == line && set == "alowed")
        );
        assert!(error.to_string().contains(&format!("line {line}: set \"alowed\" is not created")), "{error}");
    }
}

#[test]
fn a_set_that_is_built_is_the_line_that_says_the_same() {
    for (built, line) in [
        (named(SetType::HashIp), "create a hash:ip"),
        (
            named(SetType::HashIp).with_family(Family::Inet6).with_hashsize(64),
            "create a hash:ip family inet6 hashsize 64",
        ),
        (named(SetType::HashIp).with_bitmask("255.0.255.0".parse().unwrap()), "create a hash:ip bitmask 255.0.255.0"),
        (named(SetType::HashIpPort).with_netmask(24).with_maxelem(9), "create a hash:ip,port netmask 24 maxelem 9"),
        (named(SetType::HashIpMark).with_markmask(0xff00), "create a hash:ip,mark markmask 0xff00"),
        (
            named(SetType::HashNet).with_timeout(Timeout::from_secs(60).unwrap()).with_flags(SetFlags::COUNTERS),
            "create a hash:net timeout 60 counters",
        ),
        (
            named(SetType::HashNet).with_flags(SetFlags::COMMENT).with_flags(SetFlags::SKBINFO),
            "create a hash:net comment skbinfo",
        ),
        (
            named(SetType::BitmapPort).with_range(Range::Ports("80-90".parse().unwrap())),
            "create a bitmap:port range 80-90",
        ),
        (named(SetType::HashIp).with_bucketsize(8).with_initval(0x2a), "create a hash:ip bucketsize 8 initval 0x2a"),
        (named(SetType::ListSet).with_size(4), "create a list:set size 4"),
        (
            named(SetType::HashMac).with_options(spec("create b hash:mac maxelem 5").options),
            "create a hash:mac maxelem 5",
        ),
    ] {
        let read = spec(line);
        assert_eq!(built, read, "{line}");
        assert_eq!(spec(&format!("create {}", built.to_string().trim_start_matches("create "))), read, "{line}");
        built.check().unwrap();
    }
}

/// ipset(8), and the revisions in net/netfilter/ipset/ip_set_*.c.
#[test]
fn types_have_what_the_manual_says() {
    let with = |has: fn(SetType) -> bool| {
        SetType::ALL
            .iter()
            .filter(|set_type| has(**set_type))
            .map(|set_type| set_type.name())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(with(SetType::has_netmask), "hash:ip hash:ip,port hash:net,net bitmap:ip");
    assert_eq!(with(SetType::has_bitmask), "hash:ip hash:ip,port hash:net,net");
    assert_eq!(with(SetType::is_bitmap), "bitmap:ip bitmap:ip,mac bitmap:port");
    assert_eq!(with(|set_type| !set_type.is_hash()), "bitmap:ip bitmap:ip,mac bitmap:port list:set");
    assert_eq!(with(|set_type| !set_type.has_family()), "hash:mac bitmap:ip bitmap:ip,mac bitmap:port list:set");
    assert_eq!(
        with(SetType::has_nomatch),
        "hash:ip,port,net hash:net hash:net,net hash:net,iface hash:net,port hash:net,port,net"
    );
    assert_eq!(with(SetType::has_zero_prefix), "hash:net,iface hash:net,port,net");
}

#[test]
fn options_of_other_types_are_refused() {
    for (line, option) in [
        ("bitmap:port range 1-2 hashsize 64", "hashsize"),
        ("list:set maxelem 5", "maxelem"),
        ("bitmap:ip range 10.0.0.0/24 bucketsize 4", "bucketsize"),
        ("list:set initval 0x1", "initval"),
        ("bitmap:port range 1-2 forceadd", "forceadd"),
        ("hash:net netmask 24", "netmask"),
        ("bitmap:ip range 10.0.0.0/24 bitmask 255.0.0.0", "bitmask"),
        ("hash:ip markmask 0x1", "markmask"),
        ("hash:ip range 10.0.0.0/24", "range"),
        ("hash:ip size 5", "size"),
        ("hash:ip netmask 24 bitmask 255.0.0.0", "bitmask together with netmask"),
    ] {
        let set_type = line.split(' ').next().unwrap();
        // The text may be refused, or the set that it says.
        let found = match parse_save(&format!("create a {line}")) {
            Ok(sets) => sets[0].spec.check().unwrap_err(),
            Err(_) => wrong(&format!("create a {line}")),
        };
        let expected = InvalidValue::Option { what: set_type.to_owned(), option: option.to_owned() };
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn values_at_their_limits() {
    let prefix = |family: Family, netmask: u8| named(SetType::HashIp).with_family(family).with_netmask(netmask).check();
    for (family, max) in [(Family::Inet, 32), (Family::Inet6, 128)] {
        assert_eq!((prefix(family, 1), prefix(family, max)), (Ok(()), Ok(())));
        for netmask in [0, max + 1] {
            let text = netmask.to_string();
            let expected = InvalidValue::Number { what: "netmask", text, min: 1, max: max.into() };
            assert_eq!(prefix(family, netmask), Err(expected));
        }
    }
    let mask = named(SetType::HashIp).with_bitmask("ffff::".parse().unwrap());
    assert!(matches!(mask.check(), Err(InvalidValue::EntryFamily { family: Family::Inet, .. })));
    assert_eq!(mask.with_family(Family::Inet6).check(), Ok(()));
    // A bitmap has a range, of what it holds.
    let missing = InvalidValue::OptionValue("range".to_owned());
    let addresses = Range::Addresses("10.0.0.0/24".parse().unwrap());
    let ports = Range::Ports("80-90".parse().unwrap());
    assert_eq!(named(SetType::BitmapIp).check(), Err(missing.clone()));
    assert_eq!(named(SetType::BitmapIp).with_range(ports).check(), Err(missing.clone()));
    assert_eq!(
        named(SetType::BitmapIp).with_range(Range::Addresses("fd00::/120".parse().unwrap())).check(),
        Err(missing.clone())
    );
    assert_eq!(named(SetType::BitmapPort).with_range(addresses).check(), Err(missing));
    assert_eq!(named(SetType::BitmapIpMac).with_range(addresses).check(), Ok(()));
    // `IPSET_MAXNAMELEN` is 32 with the NUL.
    assert!(SetName::new(&"x".repeat(31)).is_ok());
    for name in [String::new(), "x".repeat(32), "a b".to_owned(), "a\"b".to_owned(), "a\nb".to_owned()] {
        assert_eq!(SetName::new(&name), Err(InvalidValue::Name(name)));
    }
}

/// As the program does (`strtoull` with base 0).
#[test]
fn numbers_with_a_leading_zero_are_octal() {
    for (set_type, text, normal) in [
        (SetType::BitmapPort, "010", "8"),
        (SetType::HashIpPort, "10.0.0.1,021:0x50-0122", "10.0.0.1,udp:80-82"),
        (SetType::HashIpPort, "10.0.0.1,icmp:0115/0x4", "10.0.0.1,icmp:77/4"),
        (SetType::HashNet, "10.64.0.0/012", "10.64.0.0/10"),
        (SetType::HashIpMark, "10.0.0.1,010", "10.0.0.1,0x00000008"),
        (SetType::HashIp, "10.0.0.1 timeout 0144", "10.0.0.1 timeout 100"),
    ] {
        assert_eq!(Entry::parse(set_type, text).map(|entry| entry.to_string()), Ok(normal.to_owned()));
    }
    assert_eq!(spec("create a hash:ip netmask 030"), spec("create a hash:ip netmask 24"));
    for text in ["08", "0x", "00x1", "0+1", "0x+1", "1_0"] {
        assert!(Entry::parse(SetType::BitmapPort, text).is_err(), "{text}");
    }
}

#[test]
fn what_is_no_entry_says_why() {
    for (set_type, text) in [
        (SetType::HashIp, "10.0.0.1,tcp:80"),
        (SetType::HashIpPort, "10.0.0.1"),
        (SetType::HashIp, "10.0.0"),
        (SetType::HashIp, "10.0.0.0/33"),
        (SetType::HashNet, "fd00::/129"),
        (SetType::HashNet, "10.0.0.0/+8"),
        (SetType::HashIp, "10.0.0.1-fd00::1"),
        (SetType::HashIp, "::1-::2"),
        (SetType::BitmapPort, "+1"),
        (SetType::BitmapPort, "1-"),
        (SetType::HashIpPort, "10.0.0.1,tcp:65536"),
        (SetType::HashIpPort, "10.0.0.1,nosuch:80"),
        (SetType::HashIpPort, "10.0.0.1,icmp:nosuch"),
        (SetType::HashMac, "01:02:03:04:05"),
        (SetType::HashIpMark, "10.0.0.1,0x100000000"),
        (SetType::HashIp, "10.0.0.1 timeout"),
        (SetType::HashIp, "10.0.0.1 nosuch 5"),
        // IFNAMSIZ is 16 with the NUL.
        (SetType::HashNetIface, "10.0.0.0/8,abcdefghijklmnop"),
    ] {
        let read = Entry::parse(set_type, text).map(|entry| entry.to_string());
        assert!(read.is_err(), "{set_type} {text}: {read:?}");
    }
    assert_eq!(wrong("create a hash:nosuch"), InvalidValue::SetType("hash:nosuch".to_owned()));
    assert_eq!(wrong("create a hash:ip family inet7"), InvalidValue::Family("inet7".to_owned()));
    assert_eq!(wrong("add a 10.0.0.1"), InvalidValue::NotCreated("a".to_owned()));
    assert!(matches!(wrong("destroy a"), InvalidValue::Option { option, .. } if option == "destroy"));
}

#[test]
fn ranges_and_networks_hold_what_they_should() {
    let span = |text: &str| text.parse::<IpSpan>().unwrap();
    for (text, first, last, inside, outside) in [
        ("10.0.0.0/30", "10.0.0.0", "10.0.0.3", "10.0.0.3", "10.0.0.4"),
        ("10.0.0.5-10.0.0.9", "10.0.0.5", "10.0.0.9", "10.0.0.7", "10.0.0.4"),
        ("fd00::/126", "fd00::", "fd00::3", "fd00::3", "fd00::4"),
        ("fd00:1:2::/48", "fd00:1:2::", "fd00:1:2:ffff:ffff:ffff:ffff:ffff", "fd00:1:2:3::4", "fd00:1:3::"),
    ] {
        let span = span(text);
        assert_eq!((span.first().to_string().as_str(), span.last().to_string().as_str()), (first, last));
        assert!(span.contains(inside.parse().unwrap()) && !span.contains(outside.parse().unwrap()), "{text}");
        assert_eq!(String::from(span), text);
        assert_eq!(Family::from(span.first()), span.family());
    }
    assert!(!span("10.0.0.0/8").contains("::a00:1".parse().unwrap()), "another family");
    assert!(
        IpSpan::network("10.0.0.0".parse().unwrap(), 32).is_ok()
            && IpSpan::network("10.0.0.0".parse().unwrap(), 33).is_err()
    );
}

#[test]
fn values_are_the_text_that_they_were_read_from() {
    for text in ["tcp", "udp", "icmp", "sctp"] {
        assert_eq!(String::from(text.parse::<Protocol>().unwrap()), text);
    }
    assert_eq!(String::from("80-90".parse::<PortRange>().unwrap()), "80-90");
    assert_eq!(String::from("udp:80-90".parse::<Ports>().unwrap()), "udp:80-90");
    assert_eq!(String::from("01:23:45:67:89:ab".parse::<MacAddr>().unwrap()).to_lowercase(), "01:23:45:67:89:ab");
    assert_eq!(String::from(SetType::HashIpPort), "hash:ip,port");
    // IPSET_MAX_TIMEOUT is UINT_MAX / 1000 / 2 (linux/netfilter/ipset/ip_set_timeout.h).
    assert_eq!(Timeout::try_from(2_147_483).map(u32::from), Ok(2_147_483));
    assert!(matches!(Timeout::try_from(2_147_484), Err(InvalidValue::Number { max: 2_147_483, .. })));
    assert_eq!(Protocol::from_number(0), Err(InvalidValue::Protocol("0".to_owned())));
    assert_eq!(Protocol::from_number(132), Ok(Protocol::SCTP));
    assert!("+6".parse::<Protocol>().is_err() && "256".parse::<Protocol>().is_err());
    let with_ports: Vec<u8> = (1..=255).filter(|number| Protocol::from_number(*number).unwrap().has_ports()).collect();
    assert_eq!(with_ports, [6, 17, 132, 136], "ip_set_proto_with_ports");
    // IPSET_MAX_COMMENT_SIZE is 255.
    assert!(Comment::new(&"x".repeat(255)).is_ok());
    for comment in ["x".repeat(256), "a\"b".to_owned(), "a\nb".to_owned()] {
        assert_eq!(Comment::new(&comment), Err(InvalidValue::Comment(comment.clone())));
    }
}

#[test]
fn words_of_one_type_are_not_those_of_another() {
    for (set_type, text) in [
        (SetType::HashIp, "10.0.0.1 before b"),
        (SetType::HashIp, "10.0.0.1 after b"),
        (SetType::HashIp, "10.0.0.1 wildcard"),
        (SetType::HashIpMac, "10.0.0.1"),
    ] {
        assert!(Entry::parse(set_type, text).is_err(), "{set_type} {text}");
    }
    for (set_type, text) in [
        (SetType::ListSet, "b before c"),
        (SetType::ListSet, "b after c"),
        (SetType::HashNetIface, "10.0.0.0/8,eth wildcard"),
        (SetType::BitmapIpMac, "10.0.0.1"),
    ] {
        assert_eq!(Entry::parse(set_type, text).unwrap().to_string(), text, "{set_type}");
    }
}

/// `Debug` of an error, as a `main` that returns it prints, is its `Display`.
#[test]
fn debug_of_errors_prints_what_display_prints() {
    let invalid = SetName::new("").unwrap_err();
    assert_eq!(format!("{invalid:?}"), invalid.to_string());
    assert!(invalid.to_string().starts_with("set name \"\": "), "{invalid}");
    let error = ipset::Error::from(invalid);
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn an_entry_that_is_built_is_the_text_that_says_the_same() {
    let network = Entry::new("10.0.0.0/8".parse::<IpSpan>().unwrap().into());
    let built = network
        .clone()
        .with_timeout(Timeout::from_secs(60).unwrap())
        .with_counters(1, 60)
        .with_comment(Comment::new("web").unwrap())
        .with_skbmark("0x1/0xf".parse().unwrap())
        .with_skbprio("1:10".parse().unwrap())
        .with_skbqueue(3)
        .with_nomatch();
    let text =
        "10.0.0.0/8 timeout 60 nomatch packets 1 bytes 60 comment \"web\" skbmark 0x1/0xf skbprio 1:10 skbqueue 3";
    assert_eq!(built.to_string(), text);
    assert_eq!(network.with_options(built.options.clone()), built);
    let interface = Entry::parse(SetType::HashNetIface, "10.0.0.0/8,eth").unwrap();
    assert_eq!(interface.with_wildcard().to_string(), "10.0.0.0/8,eth wildcard");
    let member = Entry::parse(SetType::ListSet, "b").unwrap();
    assert_eq!(member.with_position(Position::Before("c".parse().unwrap())).to_string(), "b before c");
}

#[cfg(feature = "serde")]
mod serialised {
    use ipset::SavedSet;
    use serde_json::{from_str, json, to_string, to_value};

    use super::*;

    #[test]
    fn saved_sets_come_back() {
        let text = "\
create a hash:ip,port family inet hashsize 1024 maxelem 65536 timeout 60 counters comment skbinfo bucketsize 12 initval 0x0000002a
add a 10.0.0.1,tcp:80 timeout 9 packets 1 bytes 60 comment \"web\" skbmark 0x1/0xf skbprio 1:10 skbqueue 3
add a 10.0.0.2,udp:53
create b hash:net,iface family inet6 hashsize 64 maxelem 10
add b 2001:db8::/32,physdev:eth0 nomatch
create c bitmap:port range 1-1024
add c 80-90
create d list:set size 8
add d a
create e hash:mac hashsize 1024 maxelem 65536
add e 01:23:45:67:89:AB
create f hash:ip,mark family inet markmask 0x000000ff hashsize 1024 maxelem 65536
add f 10.0.0.1,0x00000001
create g hash:net,port,net family inet hashsize 1024 maxelem 65536
add g 10.0.0.0/8,icmp:echo-request,192.0.2.0/24
";
        let sets = parse_save(text).unwrap();
        let json = to_string(&sets).unwrap();
        let back: Vec<SavedSet> = from_str(&json).unwrap();
        assert_eq!(back, sets, "{json}");
        assert_eq!(ipset::save(&back), ipset::save(&sets));
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let saved: SavedSet = from_str(r#"{"spec": {"name": "a", "set_type": "hash:ip"}}"#).unwrap();
        assert_eq!(saved, SavedSet::new(named(SetType::HashIp), []));
        let entry: Entry = from_str(r#"{"element": {"Ip": "10.0.0.1"}}"#).unwrap();
        assert_eq!(entry, Entry::parse(SetType::HashIp, "10.0.0.1").unwrap());
        let report: ipset::SyncReport = from_str(&to_string(&ipset::SyncReport::default()).unwrap()).unwrap();
        assert_eq!(report, ipset::SyncReport::default());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(from_str::<SetName>("\"a b\"").is_err() && from_str::<SetType>("\"hash:web\"").is_err());
        assert!(from_str::<IpSpan>("\"10.0.0.0/33\"").is_err() && from_str::<Ports>("\"tcp:http:\"").is_err());
        assert!(from_str::<PortRange>("\"70000\"").is_err() && from_str::<Timeout>("4294967295").is_err());
    }

    #[test]
    fn kinds_of_errors_are_written() {
        assert_eq!(to_value(ErrorKind::SetMissing).unwrap(), json!("SetMissing"));
        assert_eq!(to_value(ErrorKind::ExtensionMissing("timeout")).unwrap(), json!({"ExtensionMissing": "timeout"}));
        let line = parse_save("add alowed 10.0.0.1").unwrap_err();
        assert_eq!(to_value(line.kind()).unwrap(), json!({"Line": [1, {"NotCreated": "alowed"}]}));
    }
}
