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

/// Lines for the tool: every option of the type, spelt in ways that are not the normal form.
fn lines(set_type: SetType) -> impl Iterator<Item = &'static str> {
    let all = include_str!("fixtures/lines.txt").lines();
    let of_type = all.skip_while(move |line| line.strip_prefix("# ") != Some(set_type.name())).skip(1);
    of_type.take_while(|line| !line.starts_with('#'))
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
