//! Against the tool `ipset`, both ways: what it writes we read, what we write it prints, byte for byte.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use ipset::{Client, Entry, ErrorKind, SavedSet, SetName, SetSpec, SetType, parse_save};
use testkit::{Need, kernel_test, oracle};

fn tool(arguments: &[&str], input: &str) -> Result<String, String> {
    oracle::run("ipset", arguments, Some(input)).map(|output| output.stdout).map_err(|error| error.to_string())
}

/// `ipset` 7.17 forgets `forceadd` when it prints.
fn without_forceadd(text: &str) -> String {
    text.replace(" forceadd", "")
}

/// The lines in order, without what differs each time: the tool takes the newest revision, which reports its random seed.
fn sorted(text: &str) -> Vec<String> {
    let steady = |line: &str| match line.split_once(" bucketsize 12 initval ") {
        Some((before, seed)) => format!("{before}{}", seed.get(10..).unwrap_or_default()),
        None => line.to_owned(),
    };
    let mut lines: Vec<String> = text.lines().map(steady).collect();
    lines.sort();
    lines
}

/// Both print the same, and what one prints the other restores.
fn compare(client: &mut Client) {
    let theirs = tool(&["save"], "").unwrap();
    let ours = client.save().unwrap();
    assert_eq!(without_forceadd(&ours), theirs);
    let listed: Vec<SavedSet> = client.list_sets().unwrap().into_iter().map(SavedSet::from).collect();
    assert_eq!(parse_save(&ours).unwrap(), listed, "text says all that the listing says");
    destroy(client, &listed);
    tool(&["restore"], &theirs).unwrap();
    assert_eq!(sorted(&without_forceadd(&client.save().unwrap())), sorted(&theirs));
    destroy(client, &listed);
    client.restore(&parse_save(&theirs).unwrap()).unwrap();
    assert_eq!(sorted(&tool(&["save"], "").unwrap()), sorted(&theirs));
    destroy(client, &listed);
}

/// Lists first, since they hold the others.
fn destroy(client: &mut Client, sets: &[SavedSet]) {
    for set in sets.iter().rev() {
        client.destroy_set(&set.spec.name).unwrap();
    }
}

fn need(set_type: SetType) -> [Need; 2] {
    [Need::Root, Need::Ipset(set_type.name())]
}

#[expect(clippy::too_many_lines, reason = "a table")]
/// Lines for the tool: every option of the type, spelt in ways that are not the normal form.
fn lines(set_type: SetType) -> &'static [&'static str] {
    match set_type {
        SetType::HashIp => &[
            "create a hash:ip hashsize 64 maxelem 100 netmask 24 timeout 100000 counters comment skbinfo",
            "add a 10.0.0.5 timeout 0 packets 5 bytes 7 comment \"two words\" skbmark 0x1234/0xff00 skbprio 1:10 skbqueue 9",
            "create b hash:ip family inet6",
            "add b 2001:DB8:0:0::1/128",
        ],
        SetType::HashIpMark => &[
            "create a hash:ip,mark markmask 0xff00 timeout 0 counters comment skbinfo",
            "add a 10.0.0.5,0x123456 comment x skbmark 0x1",
            "create b hash:ip,mark family inet6 forceadd",
            "add b ::1,7",
        ],
        SetType::HashIpPort => &[
            "create a hash:ip,port counters comment timeout 0 skbinfo",
            "add a 10.0.0.5,80 packets 1",
            "add a 10.0.0.6,icmp:ping",
            "add a 10.0.0.6,icmp:77/3",
            "add a 10.0.0.7,sctp:5-7 skbqueue 3",
            "add a 10.0.0.8,ospf:0",
            "add a 10.0.0.8,99:0",
            "create b hash:ip,port family inet6",
            "add b 2001:db8::0:1,udplite:9",
            "add b ::1,icmpv6:no-route",
            "add b ::1,icmpv6:137/0",
            "add b ::1,gre:0",
        ],
        SetType::HashIpPortIp => &[
            "create a hash:ip,port,ip timeout 0 comment",
            "add a 10.0.0.5,tcp:80,1.1.1.1 comment hello",
            "create b hash:ip,port,ip family inet6",
            "add b ::5,tcp:80,fd00::1",
        ],
        SetType::HashIpPortNet => &[
            "create a hash:ip,port,net timeout 0 comment",
            "add a 10.0.0.5,tcp:80,1.1.1.77/24 nomatch comment hello",
            "add a 10.0.0.5,tcp:80,1.1.1.77/32",
            "create b hash:ip,port,net family inet6",
            "add b ::5,tcp:80,fd00::7/64",
        ],
        SetType::HashIpMac => &[
            "create a hash:ip,mac timeout 0 comment counters",
            "add a 10.0.0.5,aa:bb:cc:00:0d:01 comment x",
            "create b hash:ip,mac family inet6",
            "add b ::5,aa:bb:cc:00:0d:01",
        ],
        SetType::HashMac => {
            &["create a hash:mac timeout 0 comment skbinfo", "add a aa:bb:cc:00:0d:01 skbmark 0x10/0x10"]
        }
        SetType::HashNet => &[
            "create a hash:net timeout 0 comment counters skbinfo",
            "add a 10.0.0.5/8 nomatch packets 5 comment x skbprio a:b",
            "add a 10.9.0.1-10.9.0.9",
            "add a 10.0.0.5/32",
            "create b hash:net family inet6",
            "add b 2001:db8::7/33",
            "add b ::1.2.3.4",
            "add b ::1.2.0.0/112",
            "add b ::0:102",
            "add b ::ffff:1.2.3.4",
            "add b ::ffff:0:0/96",
            "add b ::1:0:0:0/80",
            "add b 64:ff9b::1.2.3.4",
        ],
        SetType::HashNetNet => &[
            "create a hash:net,net timeout 0 comment",
            "add a 10.0.0.5/8,1.1.1.7/24 nomatch comment x",
            "add a 10.0.0.5,128.0.0.0/1",
            "create b hash:net,net family inet6",
            "add b ::1,fd00::/8",
        ],
        SetType::HashNetIface => &[
            "create a hash:net,iface timeout 0 comment",
            "add a 10.0.0.5/8,eth0 nomatch comment x",
            "add a 10.0.0.0/8,physdev:br0",
            "add a 0.0.0.0/0,veth wildcard",
            "create b hash:net,iface family inet6",
            "add b ::/0,lo",
        ],
        SetType::HashNetPort => &[
            "create a hash:net,port timeout 0 comment",
            "add a 10.0.0.5/8,udp:7 nomatch comment x",
            "create b hash:net,port family inet6",
            "add b fd00::/8,tcp:1-3",
        ],
        SetType::HashNetPortNet => &[
            "create a hash:net,port,net timeout 0 comment",
            "add a 10.0.0.5/8,udp:7,1.2.3.4/30 nomatch comment x",
            "create b hash:net,port,net family inet6",
            "add b 2001:db8::/33,tcp:1-3,::/0",
        ],
        SetType::BitmapIp => &[
            "create a bitmap:ip range 10.0.0.0/16 netmask 24 timeout 0 counters comment skbinfo",
            "add a 10.0.5.9 comment x skbmark 0x7",
            "create b bitmap:ip range 10.0.0.1-10.0.0.77",
            "add b 10.0.0.7-10.0.0.9",
        ],
        SetType::BitmapIpMac => &[
            "create a bitmap:ip,mac range 10.0.0.0/24 timeout 0 comment",
            "add a 10.0.0.3,aa:bb:cc:00:0d:01 comment x",
            "create b bitmap:ip,mac range 10.0.0.0/24",
            "add b 10.0.0.4",
        ],
        SetType::BitmapPort => &[
            "create a bitmap:port range 100-2000 timeout 0 counters comment skbinfo",
            "add a 100-102 packets 7 comment x",
            "create b bitmap:port range 0-65535",
            "add b 0",
            "add b tcp:65535",
        ],
        SetType::ListSet => &[
            "create x hash:ip",
            "create y bitmap:port range 0-5",
            "create l list:set size 9 timeout 0 counters comment skbinfo",
            "add l x packets 5 comment hello",
            "add l y before x",
            "create m list:set",
        ],
        _ => &[],
    }
}

fn both_ways(set_type: SetType) {
    kernel_test(&need(set_type), || {
        let mut client = Client::open().unwrap();
        for line in lines(set_type) {
            tool(&["restore"], &format!("{line}\n")).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        let theirs = sorted(&tool(&["save"], "").unwrap());
        compare(&mut client);
        let mut sets: Vec<SetSpec> = Vec::new();
        for line in lines(set_type) {
            if let Some(rest) = line.strip_prefix("add ") {
                let (name, text) = rest.split_once(' ').unwrap();
                let set = sets.iter().find(|set| set.name.as_str() == name).unwrap();
                let entry = Entry::parse(set.set_type, text).unwrap_or_else(|error| panic!("{line}: {error}"));
                client.add_entry(&set.name, &entry).unwrap_or_else(|error| panic!("{line}: {error}"));
            } else {
                let set: SetSpec = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
                client.create_set(&set).unwrap_or_else(|error| panic!("{line}: {error}"));
                sets.push(set);
            }
        }
        assert_eq!(sorted(&tool(&["save"], "").unwrap()), theirs, "both read the lines as the same");
        compare(&mut client);
    });
}

macro_rules! types {
    ($($module:ident = $set_type:ident;)*) => { $(
        mod $module {
            use super::*;
            #[test]
            fn what_one_writes_the_other_reads() {
                both_ways(SetType::$set_type);
            }
        }
    )* };
}
types! {
    hash_ip = HashIp;
    hash_ip_mark = HashIpMark;
    hash_ip_port = HashIpPort;
    hash_ip_port_ip = HashIpPortIp;
    hash_ip_port_net = HashIpPortNet;
    hash_ip_mac = HashIpMac;
    hash_mac = HashMac;
    hash_net = HashNet;
    hash_net_net = HashNetNet;
    hash_net_iface = HashNetIface;
    hash_net_port = HashNetPort;
    hash_net_port_net = HashNetPortNet;
    bitmap_ip = BitmapIp;
    bitmap_ip_mac = BitmapIpMac;
    bitmap_port = BitmapPort;
    list_set = ListSet;
}

/// Options that only newer kernels have, in the order in which the tool prints them.
#[test]
fn options_of_newer_kernels() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip")], || {
        let mut client = Client::open().unwrap();
        for line in [
            "create a hash:ip bucketsize 5 initval 0x1234abcd netmask 20",
            "create a hash:ip bitmask 255.0.255.0 timeout 0",
            "create a hash:ip family inet6 bitmask ffff::ffff:0",
            "create a hash:ip,port netmask 24 counters",
            "create a hash:ip,port bitmask 255.0.255.0 bucketsize 4",
            "create a hash:net,net netmask 24",
            "create a hash:net,net bitmask 255.255.0.0",
            "create a hash:net,net family inet6 netmask 40 timeout 0",
            "create a hash:net,net family inet6 bitmask ::ff:ffff comment",
            "create a hash:net initval 7 forceadd",
        ] {
            let set: SetSpec = line.parse().unwrap();
            match client.create_set(&set) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::OptionUnsupported(_) | ErrorKind::TypeUnsupported) => {
                    eprintln!("not on this kernel: {error}");
                    continue;
                }
                Err(error) => panic!("{line}: {error}"),
            }
            let text = match set.set_type {
                SetType::HashIpPort => "10.1.2.3,80",
                SetType::HashNetNet if line.contains("inet6") => "fd00:1:2::3:4/112,fd00::7:8",
                SetType::HashNetNet => "10.1.2.3/28,10.9.8.7",
                _ if line.contains("inet6") => "fd00::1:2:3",
                _ => "10.1.2.3",
            };
            let entry = Entry::parse(set.set_type, text).unwrap();
            client.add_entry(&set.name, &entry).unwrap();
            let stored = client.get_set(&set.name).unwrap().entries.remove(0);
            assert_eq!(stored.element, entry.expand(&set, 1).unwrap().remove(0).element, "{line}");
            let listed = client.get_header(&set.name).unwrap().spec.options;
            // The kernel takes even numbers.
            let asked = set.options.bucketsize.map(|size| size.next_multiple_of(2));
            assert!(asked.is_none() || listed.bucketsize == asked, "{line}: {:?}", listed.bucketsize);
            compare(&mut client);
        }
    });
}

/// Other programs may give sets names that no line of text can hold. They do not keep the others from being listed.
#[test]
fn odd_names_of_other_programs_are_listed() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip")], || {
        tool(&["create", "a b", "hash:ip"], "").unwrap();
        tool(&["add", "a b", "10.0.0.1"], "").unwrap();
        tool(&["create", "plain", "hash:ip"], "").unwrap();
        let mut client = Client::open().unwrap();
        let sets = client.list_sets().unwrap();
        let names: Vec<&str> = sets.iter().map(|set| set.spec.name.as_str()).collect();
        assert_eq!(names, ["a b", "plain"]);
        assert_eq!(sets[0].entries.len(), 1);
        assert!(SetName::new("a b").is_err());
        // The name as it was listed addresses the set.
        client.destroy_set(&sets[0].spec.name).unwrap();
        assert_eq!(tool(&["list", "-n"], "").unwrap(), "plain\n");
    });
}
