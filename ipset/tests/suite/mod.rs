//! Cases that hold for the kernel and for the fake one. Each starts in an empty namespace.

use ipset::{
    Client, Comment, Element, Entry, ErrorKind, Family, IfAbsent, IfPresent, InvalidValue, IpSpan, PortRange, Position,
    Range, SetFlags, SetName, SetSpec, SetType, SkbMark, SkbPriority, Timeout, parse_save, save,
};

pub(crate) fn name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}

pub(crate) fn spec(line: &str) -> SetSpec {
    line.parse().unwrap()
}

pub(crate) fn entry(set: &SetSpec, text: &str) -> Entry {
    Entry::parse(set.set_type, text).unwrap()
}

pub(crate) fn entries(set: &SetSpec, texts: &[&str]) -> Vec<Entry> {
    texts.iter().map(|text| entry(set, text)).collect()
}

/// The set's elements as text, sorted.
pub(crate) fn elements(client: &mut Client, set: &SetSpec) -> Vec<String> {
    let mut found: Vec<String> =
        client.get_set(&set.name).unwrap().entries.iter().map(|entry| entry.element.to_string()).collect();
    found.sort();
    found
}

fn create(client: &mut Client, line: &str) -> SetSpec {
    let set = spec(line);
    client.create_set(&set).unwrap();
    set
}

fn kind<T: std::fmt::Debug>(outcome: Result<T, ipset::Error>) -> ErrorKind {
    outcome.unwrap_err().kind().clone()
}

macro_rules! suite {
    ($($case:ident),* $(,)?) => {
        /// Makes a test of each case; `$run` gets its name and the case.
        macro_rules! suite_tests {
            ($run:path) => { $( #[test] fn $case() { $run(suite::$case); } )* };
        }
    };
}
suite! {
    an_empty_namespace_has_no_sets, a_set_is_created_listed_and_destroyed, options_come_back_as_they_were_asked_for,
    a_missing_set_is_reported_by_every_command, an_existing_set_is_reported, sets_are_renamed_and_swapped,
    a_set_in_a_list_is_in_use, indexes_stay_with_names_when_sets_are_swapped, an_entry_is_added_tested_and_deleted,
    an_update_changes_options_and_keeps_counters, options_need_their_extension, a_form_or_family_that_does_not_fit_is_not_sent,
    a_full_set_stops_the_work, a_refused_entry_is_named_and_the_others_are_carried_out, a_refused_entry_is_short_in_debug, bitmaps_have_a_range,
    ranges_become_their_entries, networks_hold_addresses_but_for_nomatch, members_of_a_list_have_places,
    entries_that_no_set_holds_are_refused, all_sets_are_flushed_and_destroyed, old_kernels_rules_for_masks,
    sync_creates_changes_and_then_writes_nothing, sync_swaps_when_options_differ, sync_grows_beyond_maxelem,
    sync_swaps_when_old_and_new_do_not_fit_together, sync_keeps_counters_and_timeouts, sync_keeps_what_is_wanted_without_a_timeout, sync_orders_lists, sync_changes_mac_addresses,
    sync_takes_the_last_of_two_spellings, sync_changes_wildcards, sync_takes_options_as_they_are_reported,
    sync_cuts_addresses_to_the_mask,
    sync_writes_nothing_when_an_entry_is_invalid, sync_writes_nothing_when_a_refusal_can_be_foreseen,
    sync_that_fails_leaves_no_new_set, a_network_of_all_addresses, sync_clears_what_an_interrupted_one_left, sync_of_a_type_that_cannot_be_swapped,
    saved_text_is_read_back, ten_thousand_entries,
}

pub(crate) fn an_empty_namespace_has_no_sets(client: &mut Client) {
    assert_eq!(client.list_sets().unwrap(), []);
    assert_eq!(client.list_names().unwrap(), []);
    assert_eq!(client.list_headers().unwrap(), []);
    assert_eq!(client.save().unwrap(), "");
    client.destroy_all_sets().unwrap();
    client.flush_all_sets().unwrap();
    assert!(client.protocols().unwrap().contains(&client.protocol()));
}

pub(crate) fn a_set_is_created_listed_and_destroyed(client: &mut Client) {
    let set = create(client, "create KUBE-CLUSTER-IP hash:ip,port maxelem 1000");
    let six = create(client, "create KUBE-6-CLUSTER-IP hash:ip,port family inet6");
    client.add_entry(&set.name, &entry(&set, "10.96.0.1,tcp:443")).unwrap();
    client.add_entry(&six.name, &entry(&six, "fd00::0:1,udp:53")).unwrap();
    assert_eq!(client.list_names().unwrap(), [set.name.clone(), six.name.clone()]);
    let headers = client.list_headers().unwrap();
    assert_eq!(headers.iter().map(|set| set.elements).collect::<Vec<_>>(), [Some(1), Some(1)]);
    assert!(headers.iter().all(|set| set.entries.is_empty()));
    let sets = client.list_sets().unwrap();
    assert_eq!(sets[0].spec.set_type, SetType::HashIpPort);
    assert_eq!(sets[0].spec.options.maxelem, Some(1000));
    assert_eq!(sets[0].references, 0);
    assert_eq!(sets[0].entries, [entry(&set, "10.96.0.1,443")]);
    assert_eq!(sets[1].spec.options.family, Family::Inet6);
    assert_eq!(sets[1].entries, [entry(&six, "fd00::1,udp:53")]);
    assert_eq!(client.set_header(&six.name).unwrap(), (SetType::HashIpPort, Family::Inet6, sets[1].revision));
    assert_ne!(sets[1].revision, 0);
    client.destroy_set(&set.name).unwrap();
    assert_eq!(client.list_names().unwrap(), [six.name]);
}

pub(crate) fn options_come_back_as_they_were_asked_for(client: &mut Client) {
    for line in [
        "create a hash:ip family inet hashsize 64 maxelem 100 netmask 24 timeout 100000 counters comment skbinfo",
        "create a hash:ip,port family inet6 hashsize 128 maxelem 7 timeout 0 comment forceadd",
        "create a hash:ip,port,ip family inet hashsize 64 maxelem 65536",
        "create a hash:ip,port,net family inet6 hashsize 64 maxelem 65536 counters",
        "create a hash:net family inet hashsize 64 maxelem 65536 forceadd skbinfo",
        "create a hash:net,iface family inet hashsize 64 maxelem 65536",
        "create a hash:net,port family inet hashsize 64 maxelem 65536",
        "create a bitmap:port range 100-2000 timeout 5 comment",
        "create a bitmap:ip range 10.0.0.0-10.0.255.255 netmask 24 timeout 100000 counters comment skbinfo",
        "create a bitmap:ip range 10.0.0.1-10.0.0.77",
        "create a bitmap:ip,mac range 10.0.0.0-10.0.0.255",
        "create a list:set size 8 timeout 9",
    ] {
        let set = create(client, line);
        let found = client.get_set(&set.name).unwrap();
        assert_eq!(found.spec, set, "{line}");
        assert_eq!(found.spec.to_string(), line);
        assert_eq!(found.type_name, set.set_type.name());
        client.destroy_set(&set.name).unwrap();
    }
}

pub(crate) fn old_kernels_rules_for_masks(client: &mut Client) {
    let mut set = spec("create a hash:ip");
    set.options.netmask = Some(33);
    assert!(matches!(kind(client.create_set(&set)), ErrorKind::Invalid(InvalidValue::Number { what: "netmask", .. })));
    set.options.netmask = None;
    set.options.range = Some(Range::Ports(PortRange::ALL));
    assert!(matches!(kind(client.create_set(&set)), ErrorKind::Invalid(InvalidValue::Option { .. })));
    set.options.range = None;
    // 6 is the first revision of hash:ip that knows bitmask.
    let revisions = client.type_revisions(SetType::HashIp, Family::Inet).unwrap();
    set.options.bitmask = Some("255.0.255.0".parse().unwrap());
    if *revisions.end() >= 6 {
        client.create_set(&set).unwrap();
        client.add_entry(&set.name, &entry(&set, "10.1.2.3")).unwrap();
        assert_eq!(elements(client, &set), ["10.0.2.0"]);
        assert_eq!(client.get_set(&set.name).unwrap().spec.options.bitmask, set.options.bitmask);
    } else {
        assert_eq!(kind(client.create_set(&set)), ErrorKind::OptionUnsupported("bitmask"));
    }
    let large = spec("create large bitmap:ip range 10.0.0.0/8");
    assert_eq!(kind(client.create_set(&large)), ErrorKind::OptionInvalid("range"));
}

pub(crate) fn a_missing_set_is_reported_by_every_command(client: &mut Client) {
    let set = spec("create absent hash:ip");
    let other = create(client, "create present hash:ip");
    let one = entry(&set, "10.0.0.1");
    let absent = set.name.clone();
    let outcomes = [
        client.get_set(&absent).map(|_| ()),
        client.get_header(&absent).map(|_| ()),
        client.set_header(&absent).map(|_| ()),
        client.destroy_set(&absent),
        client.flush_set(&absent),
        client.rename_set(&absent, &name("x")),
        client.swap_sets(&absent, &other.name),
        client.add_entry(&absent, &one),
        client.delete_entry(&absent, &one),
        client.test_entry(&absent, &one).map(|_| ()),
    ];
    for (place, outcome) in outcomes.into_iter().enumerate() {
        let Err(error) = outcome else { panic!("command {place} found a set that does not exist") };
        assert_eq!(*error.kind(), ErrorKind::SetMissing, "command {place}");
        assert!(error.is_not_found() && !error.is_already_exists());
    }
    assert_eq!(kind(client.swap_sets(&other.name, &absent)), ErrorKind::SecondSetMissing);
    let error = client.add_entry(&absent, &one).unwrap_err();
    assert_eq!(
        error.to_string(),
        "adding entries to set absent: there is no such set; create it first, or check the name"
    );
    let report = client.add_entries(&absent, &[&one, &one, &one], IfPresent::Update);
    assert_eq!((report.applied, report.failures.len()), (0, 1));
    assert_eq!(report.not_attempted.first(), Some(&(1..3)));
}

pub(crate) fn an_existing_set_is_reported(client: &mut Client) {
    let set = create(client, "create a hash:ip maxelem 10");
    let error = client.create_set(&set).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::SetExists);
    assert!(error.is_already_exists());
    client.ensure_set(&set).unwrap();
    for other in [
        "create a hash:ip maxelem 11",
        "create a hash:ip maxelem 10 comment",
        "create a hash:net maxelem 10",
        "create a hash:ip family inet6 maxelem 10",
    ] {
        assert_eq!(kind(client.ensure_set(&spec(other))), ErrorKind::SetExists, "{other}");
    }
    // The kernel's comparison leaves the hash size out.
    client.ensure_set(&spec("create a hash:ip maxelem 10 hashsize 4096")).unwrap();
    client.ensure_set(&spec("create b hash:ip")).unwrap();
    assert_eq!(client.list_names().unwrap().len(), 2);
}

pub(crate) fn sets_are_renamed_and_swapped(client: &mut Client) {
    let a = create(client, "create a hash:ip");
    let b = create(client, "create b hash:ip maxelem 5");
    let net = create(client, "create net hash:net");
    let six = create(client, "create six hash:ip family inet6");
    client.add_entry(&a.name, &entry(&a, "10.0.0.1")).unwrap();
    client.swap_sets(&a.name, &b.name).unwrap();
    assert_eq!(elements(client, &b), ["10.0.0.1"]);
    assert_eq!(client.get_header(&a.name).unwrap().spec.options.maxelem, Some(5));
    assert_eq!(kind(client.swap_sets(&a.name, &net.name)), ErrorKind::TypeMismatch);
    assert_eq!(kind(client.swap_sets(&a.name, &six.name)), ErrorKind::TypeMismatch);
    assert_eq!(kind(client.rename_set(&a.name, &b.name)), ErrorKind::SetExists);
    client.rename_set(&b.name, &name("c")).unwrap();
    assert_eq!(client.get_set(&name("c")).unwrap().entries.len(), 1);
    assert_eq!(kind(client.get_set(&b.name)), ErrorKind::SetMissing);
}

pub(crate) fn a_set_in_a_list_is_in_use(client: &mut Client) {
    let member = create(client, "create member hash:ip");
    let list = create(client, "create list list:set");
    client.add_entry(&list.name, &entry(&list, "member")).unwrap();
    assert_eq!(client.get_header(&member.name).unwrap().references, 1);
    assert_eq!(kind(client.destroy_set(&member.name)), ErrorKind::InUse);
    assert_eq!(kind(client.rename_set(&member.name, &name("x"))), ErrorKind::InUse);
    assert_eq!(kind(client.destroy_all_sets()), ErrorKind::InUse);
    client.delete_entry(&list.name, &entry(&list, "member")).unwrap();
    client.destroy_set(&member.name).unwrap();
}

pub(crate) fn indexes_stay_with_names_when_sets_are_swapped(client: &mut Client) {
    let a = create(client, "create a hash:ip");
    let b = create(client, "create b hash:ip");
    let [before, other] = [&a, &b].map(|set| client.get_header(&set.name).unwrap().index);
    assert!(before.is_some() && before != other);
    client.swap_sets(&a.name, &b.name).unwrap();
    assert_eq!([&a, &b].map(|set| client.get_header(&set.name).unwrap().index), [before, other]);
}

pub(crate) fn an_entry_is_added_tested_and_deleted(client: &mut Client) {
    let set = create(client, "create a hash:ip,port,ip");
    let one = entry(&set, "10.0.0.1,tcp:80,10.0.0.2");
    assert!(!client.test_entry(&set.name, &one).unwrap());
    client.add_entry(&set.name, &one).unwrap();
    assert!(client.test_entry(&set.name, &one).unwrap());
    assert!(!client.test_entry(&set.name, &entry(&set, "10.0.0.1,udp:80,10.0.0.2")).unwrap());
    let error = client.add_entry(&set.name, &one).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ElementExists);
    assert_eq!(error.to_string(), "adding 10.0.0.1,tcp:80,10.0.0.2 to set a: the entry is in the set already");
    assert!(std::error::Error::source(&error).is_some());
    client.delete_entry(&set.name, &one).unwrap();
    let error = client.delete_entry(&set.name, &one).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::ElementMissing);
    assert!(error.is_not_found());
    assert_eq!(client.delete_entries(&set.name, &[&one], IfAbsent::Ignore).into_result().unwrap(), 1);
    assert_eq!(client.add_entries::<Entry>(&set.name, &[], IfPresent::Refuse).into_result().unwrap(), 0);
}

pub(crate) fn an_update_changes_options_and_keeps_counters(client: &mut Client) {
    let set = create(client, "create a hash:ip timeout 1000 counters comment skbinfo");
    let mut one = entry(&set, "10.0.0.1 timeout 500 packets 5 bytes 7 comment \"hello world\"");
    one.options.skbmark = Some(SkbMark { mark: 0x1234, mask: 0xff00 });
    one.options.skbprio = Some(SkbPriority { major: 1, minor: 0x10 });
    one.options.skbqueue = Some(9);
    client.add_entry(&set.name, &one).unwrap();
    let found = client.get_set(&set.name).unwrap().entries.remove(0);
    let left = found.options.timeout.unwrap().secs();
    assert!((495..=500).contains(&left), "{left}");
    let mut expected = one.clone();
    expected.options.timeout = found.options.timeout;
    assert_eq!(found, expected);
    let update = entry(&set, "10.0.0.1 timeout 0 comment other");
    client.add_entries(&set.name, &[&update], IfPresent::Update).into_result().unwrap();
    let found = client.get_set(&set.name).unwrap().entries.remove(0);
    assert_eq!(found.options.timeout, Some(Timeout::PERMANENT));
    assert_eq!(found.options.comment, Some(Comment::new("other").unwrap()));
    assert_eq!((found.options.packets, found.options.bytes), (Some(5), Some(7)));
    assert_eq!(found.options.skbmark, None);
}

pub(crate) fn options_need_their_extension(client: &mut Client) {
    let set = create(client, "create a hash:ip");
    for (option, extension) in [
        ("timeout 5", "timeout"),
        ("packets 1", "counters"),
        ("comment x", "comment"),
        ("skbmark 1", "skbinfo"),
        ("skbprio 1:1", "skbinfo"),
        ("skbqueue 1", "skbinfo"),
    ] {
        let one = entry(&set, &format!("10.0.0.1 {option}"));
        assert_eq!(kind(client.add_entry(&set.name, &one)), ErrorKind::ExtensionMissing(extension));
    }
    let set = create(client, "create b hash:ip timeout 77");
    client.add_entry(&set.name, &entry(&set, "10.0.0.1")).unwrap();
    let left = client.get_set(&set.name).unwrap().entries[0].options.timeout.unwrap().secs();
    assert!((70..=77).contains(&left), "the set's default: {left}");
}

pub(crate) fn a_form_or_family_that_does_not_fit_is_not_sent(client: &mut Client) {
    let set = create(client, "create a hash:ip");
    let ports = spec("create x hash:ip,port");
    let good = entry(&set, "10.0.0.1");
    let wrong = entry(&ports, "10.0.0.2,tcp:80");
    let six = entry(&set, "fd00::1");
    let report = client.add_entries(&set.name, &[&wrong, &good, &six], IfPresent::Refuse);
    assert_eq!(report.applied, 1);
    assert_eq!(report.failures.iter().map(|failure| failure.index).collect::<Vec<_>>(), [0, 2]);
    assert!(matches!(report.failures[0].error.kind(), ErrorKind::Invalid(InvalidValue::Shape { .. })));
    assert!(matches!(report.failures[1].error.kind(), ErrorKind::Invalid(InvalidValue::EntryFamily { .. })));
    assert_eq!(elements(client, &set), ["10.0.0.1"]);
    assert!(matches!(kind(client.test_entry(&set.name, &wrong)), ErrorKind::Invalid(InvalidValue::Shape { .. })));
}

fn numbered(set: &SetSpec, range: std::ops::Range<u32>) -> Vec<Entry> {
    range.map(|number| entry(set, &format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255))).collect()
}

pub(crate) fn a_full_set_stops_the_work(client: &mut Client) {
    let set = create(client, "create a hash:ip maxelem 1000 hashsize 1024");
    let report = client.add_entries(&set.name, &numbered(&set, 0..3000), IfPresent::Refuse);
    assert_eq!(report.applied, 1000);
    assert_eq!(report.failures[0].index, 1000);
    assert_eq!(*report.failures[0].error.kind(), ErrorKind::SetFull);
    let left: usize = report.not_attempted.iter().map(ExactSizeIterator::len).sum();
    assert_eq!(report.applied + report.failures.len() + left, 3000);
    assert_eq!(client.get_set(&set.name).unwrap().entries.len(), 1000);
}

/// `Debug` of an error, as a `main` that returns it prints, leaves out the kernel's echo of hundreds of entries.
pub(crate) fn a_refused_entry_is_short_in_debug(client: &mut Client) {
    let set = create(client, "create a bitmap:ip range 10.0.0.0/16 comment");
    let comment = "c".repeat(200);
    let many: Vec<Entry> =
        (0..200).map(|last| entry(&set, &format!("10.{}.0.{last} comment {comment}", u8::from(last == 199)))).collect();
    let report = client.add_entries(&set.name, &many, IfPresent::Refuse);
    assert_eq!(report.failures.len(), 1);
    let shown = format!("{report:?} {report:#?}");
    assert!(shown.len() < 1500, "{shown}");
    let error = report.clone().into_result().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OutOfRange);
    let shown = format!("{error:?}");
    assert!(shown.starts_with(&format!("{error}: ")), "{shown}");
    assert!(shown.len() < 300 && shown.contains("10.1.0.199") && !shown.contains('\n'), "{shown}");
    assert!(error.errno().is_some() && error.kernel_text().is_none());
}

pub(crate) fn a_refused_entry_is_named_and_the_others_are_carried_out(client: &mut Client) {
    let set = create(client, "create a hash:ip");
    let all = numbered(&set, 0..2000);
    let places = [0, 255, 256, 257, 1000, 1001, 1999];
    for place in places {
        client.add_entry(&set.name, &all[place]).unwrap();
    }
    let report = client.add_entries(&set.name, &all, IfPresent::Refuse);
    assert_eq!(report.failures.iter().map(|failure| failure.index).collect::<Vec<_>>(), places);
    for failure in &report.failures {
        assert_eq!(*failure.error.kind(), ErrorKind::ElementExists);
        assert!(failure.error.action().contains(&all[failure.index].to_string()), "{}", failure.error);
    }
    assert_eq!(report.applied, 2000 - places.len());
    assert!(report.not_attempted.is_empty() && report.unknown.is_empty() && report.stopped.is_none());
    assert_eq!(client.get_set(&set.name).unwrap().entries.len(), 2000);
    let report = client.delete_entries(&set.name, &all[..500], IfAbsent::Refuse);
    assert!(report.is_done());
    let report = client.delete_entries(&set.name, &all[499..501], IfAbsent::Refuse);
    assert_eq!((report.applied, report.failures[0].index), (1, 0));
    assert_eq!(*report.failures[0].error.kind(), ErrorKind::ElementMissing);
}

pub(crate) fn bitmaps_have_a_range(client: &mut Client) {
    let set = create(client, "create a bitmap:port range 100-200");
    client.add_entry(&set.name, &entry(&set, "100-102")).unwrap();
    client.add_entry(&set.name, &entry(&set, "200")).unwrap();
    for outside in ["0", "99", "201", "65535"] {
        assert_eq!(kind(client.add_entry(&set.name, &entry(&set, outside))), ErrorKind::OutOfRange, "{outside}");
    }
    assert_eq!(elements(client, &set), ["100", "101", "102", "200"]);
    let set = create(client, "create b bitmap:ip range 10.0.0.0/24");
    assert_eq!(kind(client.add_entry(&set.name, &entry(&set, "10.0.1.0"))), ErrorKind::OutOfRange);
    let set = create(client, "create c bitmap:port range 0-65535");
    client.add_entries(&set.name, &entries(&set, &["0", "65535"]), IfPresent::Refuse).into_result().unwrap();
    assert_eq!(elements(client, &set), ["0", "65535"]);
}

pub(crate) fn ranges_become_their_entries(client: &mut Client) {
    for (line, text) in [
        ("create a hash:ip", "10.0.0.1-10.0.0.5"),
        ("create a hash:ip", "10.0.0.0/29"),
        ("create a hash:ip netmask 24", "10.0.0.0/21"),
        ("create a hash:ip netmask 24", "10.0.0.77"),
        ("create a hash:ip family inet6 netmask 64", "fd00::1:2:3:4:5"),
        ("create a hash:net", "10.0.0.1-10.0.1.77"),
        ("create a hash:net", "10.0.0.0-10.255.255.255"),
        ("create a hash:net family inet6", "fd00::7/64"),
        ("create a hash:ip,port", "10.0.0.0/30,sctp:5-7"),
        ("create a hash:ip,port", "10.0.0.1,gre:0"),
        ("create a hash:ip,port", "10.0.0.1,icmp:8/0"),
        ("create a hash:ip,port family inet6", "::1,icmpv6:ping"),
        ("create a hash:ip,port family inet6", "::1,udp:1-3"),
        ("create a hash:ip,port,ip", "10.0.0.2-10.0.0.3,udp:1,10.9.9.9"),
        ("create a hash:ip,port,net", "10.0.0.1,80,10.0.0.1-10.0.0.6"),
        ("create a hash:net,port", "10.0.0.1-10.0.0.6,80-81"),
        ("create a hash:net,iface", "10.0.0.1/8,physdev:eth0"),
        ("create a hash:net,iface", "0.0.0.0/0,eth0"),
        ("create a bitmap:ip range 10.0.0.0/16 netmask 24", "10.0.7.9"),
        ("create a bitmap:ip,mac range 10.0.0.0/24", "10.0.0.9,01:02:03:0a:0b:0c"),
        ("create a bitmap:ip,mac range 10.0.0.0/24", "10.0.0.9"),
    ] {
        let set = create(client, line);
        let one = entry(&set, text);
        client.add_entry(&set.name, &one).unwrap_or_else(|error| panic!("{line}, {text}: {error}"));
        let mut expected: Vec<String> =
            one.expand(&set, 100_000).unwrap().iter().map(|entry| entry.element.to_string()).collect();
        expected.sort();
        assert_eq!(elements(client, &set), expected, "{line}, {text}");
        assert!(client.test_entry(&set.name, &entry(&set, &expected[0])).unwrap());
        client.delete_entry(&set.name, &one).unwrap();
        assert_eq!(elements(client, &set), Vec::<String>::new());
        client.destroy_set(&set.name).unwrap();
    }
}

pub(crate) fn networks_hold_addresses_but_for_nomatch(client: &mut Client) {
    let set = create(client, "create a hash:net");
    let networks = entries(&set, &["10.0.0.0/8", "10.1.0.0/16 nomatch", "10.1.1.0/24"]);
    client.add_entries(&set.name, &networks, IfPresent::Refuse).into_result().unwrap();
    for (text, inside) in [("10.2.0.1", true), ("10.1.2.1", false), ("10.1.1.1", true), ("11.0.0.1", false)] {
        assert_eq!(client.test_entry(&set.name, &entry(&set, text)).unwrap(), inside, "{text}");
    }
    let stored = client.get_set(&set.name).unwrap().entries;
    assert!(stored.iter().any(|entry| entry.options.nomatch && entry.element.to_string() == "10.1.0.0/16"));
    let update = entry(&set, "10.1.0.0/16");
    client.add_entries(&set.name, &[update], IfPresent::Update).into_result().unwrap();
    assert!(client.test_entry(&set.name, &entry(&set, "10.1.2.1")).unwrap());
    // nomatch is not part of an entry's identity.
    assert_eq!(client.get_set(&set.name).unwrap().entries.len(), 3);
}

pub(crate) fn members_of_a_list_have_places(client: &mut Client) {
    for line in ["create a hash:ip", "create b hash:net", "create c bitmap:port range 0-10", "create other list:set"] {
        create(client, line);
    }
    let list = create(client, "create list list:set");
    let add = |client: &mut Client, text: &str| client.add_entry(&list.name, &entry(&list, text));
    add(client, "a").unwrap();
    let mut before = entry(&list, "b");
    before.options.position = Some(Position::Before(name("a")));
    client.add_entry(&list.name, &before).unwrap();
    add(client, "c after b").unwrap();
    let order = |client: &mut Client| {
        let members = client.get_set(&list.name).unwrap().entries;
        members.iter().map(|entry| entry.element.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(order(client), "b c a");
    assert_eq!(kind(add(client, "a")), ErrorKind::ElementExists);
    assert_eq!(kind(add(client, "absent")), ErrorKind::MemberMissing);
    assert_eq!(kind(add(client, "b after absent")), ErrorKind::MemberMissing);
    assert_eq!(kind(add(client, "other")), ErrorKind::MemberIsList);
    assert!(client.test_entry(&list.name, &entry(&list, "c")).unwrap());
    client.delete_entry(&list.name, &entry(&list, "c")).unwrap();
    assert_eq!(kind(client.delete_entry(&list.name, &entry(&list, "c"))), ErrorKind::ElementMissing);
    assert_eq!(order(client), "b a");
}

pub(crate) fn entries_that_no_set_holds_are_refused(client: &mut Client) {
    for (line, null) in [
        ("create a hash:ip", "0.0.0.0"),
        ("create b hash:ip", "0.0.0.0/30"),
        ("create c hash:ip netmask 8", "0.1.2.3"),
        ("create d hash:ip family inet6 netmask 64", "::1"),
        // Networks of IPv4 are their addresses.
        ("create e hash:ip family inet6", "fd00::/126"),
        ("create f hash:ip,port family inet6", "fd00::/126,tcp:1"),
    ] {
        let set = create(client, line);
        assert!(matches!(kind(client.add_entry(&set.name, &entry(&set, null))), ErrorKind::EntryInvalid(_)), "{line}");
        assert_eq!(elements(client, &set), [""; 0], "{line}");
    }
}

pub(crate) fn all_sets_are_flushed_and_destroyed(client: &mut Client) {
    let a = create(client, "create a hash:ip");
    let b = create(client, "create b bitmap:port range 0-10");
    client.add_entry(&a.name, &entry(&a, "10.0.0.1")).unwrap();
    client.add_entry(&b.name, &entry(&b, "7")).unwrap();
    client.flush_set(&a.name).unwrap();
    assert_eq!(elements(client, &a), Vec::<String>::new());
    assert_eq!(elements(client, &b), ["7"]);
    client.flush_all_sets().unwrap();
    assert_eq!(elements(client, &b), Vec::<String>::new());
    client.destroy_all_sets().unwrap();
    assert_eq!(client.list_names().unwrap(), []);
}

pub(crate) fn sync_creates_changes_and_then_writes_nothing(client: &mut Client) {
    let set = spec("create a hash:ip,port comment");
    let first = entries(&set, &["10.0.0.1,tcp:80 comment one", "10.0.0.2,tcp:80", "10.0.0.3,udp:53"]);
    let report = client.sync(&set, &first).unwrap();
    assert!(report.created && report.added == 3, "{report:?}");
    let report = client.sync(&set, &first).unwrap();
    assert!(!report.is_changed() && report.unchanged == 3, "{report:?}");
    let second = entries(&set, &["10.0.0.1,80 comment two", "10.0.0.2,tcp:80", "10.0.0.4/31,tcp:1-2"]);
    let report = client.sync(&set, &second).unwrap();
    assert_eq!((report.added, report.updated, report.deleted, report.unchanged), (4, 1, 1, 1));
    assert!(!report.swapped && !report.created);
    assert_eq!(
        elements(client, &set),
        ["10.0.0.1,tcp:80", "10.0.0.2,tcp:80", "10.0.0.4,tcp:1", "10.0.0.4,tcp:2", "10.0.0.5,tcp:1", "10.0.0.5,tcp:2"]
    );
    assert!(!client.sync(&set, &second).unwrap().is_changed());
    let report = client.sync::<Entry>(&set, &[]).unwrap();
    assert_eq!(report.deleted, 6);
    assert_eq!(client.list_names().unwrap(), [set.name]);
}

pub(crate) fn sync_swaps_when_options_differ(client: &mut Client) {
    let old = spec("create a hash:ip");
    client.sync(&old, &entries(&old, &["10.0.0.1", "10.0.0.2"])).unwrap();
    let list = create(client, "create list list:set");
    client.add_entry(&list.name, &entry(&list, "a")).unwrap();
    let index = client.get_header(&old.name).unwrap().index;
    for line in ["create a hash:ip timeout 100", "create a hash:ip counters", "create a hash:ip netmask 24"] {
        let new = spec(line);
        let wanted = entries(&new, &["10.0.0.2", "10.0.1.3"]);
        let report = client.sync(&new, &wanted).unwrap();
        assert!(report.swapped && report.leftover.is_none(), "{line}: {report:?}");
        assert!(!client.sync(&new, &wanted).unwrap().is_changed(), "{line}");
        let found = client.get_header(&new.name).unwrap();
        assert_eq!((found.index, found.references), (index, 1));
    }
    assert_eq!(elements(client, &old), ["10.0.0.0", "10.0.1.0"]);
    assert_eq!(client.list_names().unwrap().len(), 2, "nothing is left over");
}

/// A type without its module, or an option of newer kernels.
fn is_not_on_this_kernel(error: &ipset::Error) -> bool {
    matches!(error.kind(), ErrorKind::OptionUnsupported("netmask" | "bitmask") | ErrorKind::TypeUnsupported)
}

/// Options that the kernel reports in another form than asked for are no difference.
pub(crate) fn sync_takes_options_as_they_are_reported(client: &mut Client) {
    for (line, text) in [
        ("create a hash:ip netmask 32", "10.0.0.5"),
        ("create a hash:ip family inet6 netmask 128", "fd00::5"),
        ("create a bitmap:ip range 10.0.0.5-10.0.1.7 netmask 24", "10.0.1.9"),
        ("create a bitmap:ip range 10.0.0.0/24 netmask 32", "10.0.0.9"),
        ("create a hash:ip,mark markmask 0xffffffff", "10.0.0.5,7"),
        ("create a hash:ip bitmask 255.255.255.255", "10.0.0.5"),
        ("create a hash:ip family inet6 bitmask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fd00::5"),
        ("create a hash:ip bitmask 255.255.255.0", "10.0.0.5"),
        ("create a hash:ip,port netmask 32", "10.0.0.5,80"),
        ("create a hash:net,net netmask 32", "10.0.0.0/24,10.1.0.0/16"),
        ("create a hash:net,net family inet6 netmask 128", "fd00::/24,fd01::/16"),
    ] {
        let set = spec(line);
        let wanted = entries(&set, &[text]);
        let made = client.sync(&set, &wanted);
        if let Err(error) = &made {
            assert!(is_not_on_this_kernel(error), "{line}: {error}");
            continue;
        }
        assert!(made.unwrap().created);
        assert!(!client.sync(&set, &wanted).unwrap().is_changed(), "{line}");
        client.ensure_set(&set).unwrap();
        client.destroy_set(&set.name).unwrap();
    }
}

pub(crate) fn sync_cuts_addresses_to_the_mask(client: &mut Client) {
    let cases: [(&str, &[&str], &[&str]); 9] = [
        ("create a hash:ip netmask 24", &["10.0.0.77-10.0.2.3"], &["10.0.0.0", "10.0.1.0", "10.0.2.0"]),
        ("create a hash:ip bitmask 255.0.255.0", &["10.1.2.254-10.1.3.1", "10.9.2.7"], &["10.0.2.0", "10.0.3.0"]),
        (
            "create a bitmap:ip range 10.0.0.0/16 netmask 24",
            &["10.0.0.77-10.0.2.3"],
            &["10.0.0.0", "10.0.1.0", "10.0.2.0"],
        ),
        (
            "create a hash:ip,port netmask 24",
            &["10.0.0.255-10.0.1.0,7-8"],
            &["10.0.0.0,tcp:7", "10.0.0.0,tcp:8", "10.0.1.0,tcp:7", "10.0.1.0,tcp:8"],
        ),
        ("create a hash:ip,port family inet6 bitmask ffff::ffff", &["fd00::1:2,7"], &["fd00::2,tcp:7"]),
        (
            "create a hash:net,net netmask 16",
            &["10.1.2.0/28,10.9.8.7", "10.1.2.16/28,10.9.1.1"],
            &["10.1.0.0/28,10.9.0.0"],
        ),
        (
            "create a hash:net,net bitmask 255.0.255.0",
            &["10.1.2.0-10.1.2.9,10.9.8.7"],
            &["10.0.2.0/29,10.0.8.0", "10.0.2.0/31,10.0.8.0"],
        ),
        (
            "create a hash:net,net family inet6 netmask 32",
            &["fd00:1:2::/48,fd01:2:3::4 nomatch"],
            &["fd00:1::/48,fd01:2::"],
        ),
        ("create a hash:net,net family inet6 bitmask ffff::ffff", &["fd00:1::1:2,fd00::/8"], &["fd00::2,fd00::/8"]),
    ];
    for (line, texts, expected) in cases {
        let set = spec(line);
        let wanted = entries(&set, texts);
        if let Err(error) = client.sync(&set, &wanted) {
            assert!(is_not_on_this_kernel(&error), "{line}: {error}");
            continue;
        }
        assert_eq!(elements(client, &set), expected, "{line}");
        let found = client.get_header(&set.name).unwrap().spec.options;
        assert_eq!((found.netmask, found.bitmask), (set.options.netmask, set.options.bitmask), "{line}");
        assert!(!client.sync(&set, &wanted).unwrap().is_changed(), "{line}");
        assert_eq!(client.sync::<Entry>(&set, &[]).unwrap().deleted, expected.len(), "{line}");
        client.destroy_set(&set.name).unwrap();
    }
}

pub(crate) fn sync_grows_beyond_maxelem(client: &mut Client) {
    let set = spec("create a hash:ip maxelem 100");
    client.sync(&set, &numbered(&set, 0..100)).unwrap();
    assert_eq!(client.get_header(&set.name).unwrap().spec.options.maxelem, Some(100));
    let report = client.sync(&set, &numbered(&set, 0..150)).unwrap();
    assert!(report.swapped, "{report:?}");
    let found = client.get_set(&set.name).unwrap();
    assert_eq!(found.entries.len(), 150);
    assert!(found.spec.options.maxelem.unwrap() >= 150);
    // Fewer again: the greater set is left alone.
    let report = client.sync(&set, &numbered(&set, 0..50)).unwrap();
    assert!(!report.swapped && report.deleted == 100, "{report:?}");
}

pub(crate) fn sync_swaps_when_old_and_new_do_not_fit_together(client: &mut Client) {
    let set = spec("create a hash:ip maxelem 100");
    client.sync(&set, &numbered(&set, 0..80)).unwrap();
    let report = client.sync(&set, &numbered(&set, 60..140)).unwrap();
    assert!(report.swapped, "{report:?}");
    assert_eq!((report.added, report.deleted, report.unchanged), (60, 60, 20));
    let report = client.sync(&set, &numbered(&set, 70..150)).unwrap();
    assert!(!report.swapped, "90 fit: {report:?}");
    assert_eq!(client.get_set(&set.name).unwrap().entries.len(), 80);
}

pub(crate) fn sync_keeps_counters_and_timeouts(client: &mut Client) {
    let set = spec("create a hash:ip timeout 1000 counters");
    client.create_set(&set).unwrap();
    let running = entries(&set, &["10.0.0.1 timeout 500 packets 5 bytes 6", "10.0.0.2 timeout 0", "10.0.0.3"]);
    client.add_entries(&set.name, &running, IfPresent::Refuse).into_result().unwrap();
    let wanted = entries(&set, &["10.0.0.1", "10.0.0.2 timeout 0", "10.0.0.3 timeout 2000"]);
    assert!(!client.sync(&set, &wanted).unwrap().is_changed());
    // A new set, because of the room asked for, takes the running state over.
    let mut roomy = set.clone();
    roomy.options.maxelem = Some(100_000);
    let report = client.sync(&roomy, &wanted).unwrap();
    assert!(report.swapped && report.unchanged == 3, "{report:?}");
    let found = client.get_set(&set.name).unwrap().entries;
    let options = |text: &str| found.iter().find(|entry| entry.element.to_string() == text).unwrap().options.clone();
    assert_eq!((options("10.0.0.1").packets, options("10.0.0.1").bytes), (Some(5), Some(6)));
    assert!((490..=500).contains(&options("10.0.0.1").timeout.unwrap().secs()));
    assert_eq!(options("10.0.0.2").timeout, Some(Timeout::PERMANENT));
    let report =
        client.sync(&roomy, &entries(&set, &["10.0.0.1 timeout 0", "10.0.0.2", "10.0.0.3 timeout 10"])).unwrap();
    assert_eq!((report.updated, report.unchanged), (2, 1));
}

pub(crate) fn sync_keeps_what_is_wanted_without_a_timeout(client: &mut Client) {
    for (default, running, left, updated) in
        [(0, 30, 0, 1), (600, 30, 600, 1), (600, 400, 400, 0), (600, 0, 0, 0), (600, 5000, 5000, 0)]
    {
        for line in ["create t hash:ip", "create t bitmap:ip range 192.0.2.0/24", "create t hash:net family inet6"] {
            let set = spec(&format!("{line} timeout {default} counters comment skbinfo"));
            let element = if line.ends_with('6') { "2001:db8::/64" } else { "192.0.2.1" };
            client.create_set(&set).unwrap();
            let there = entries(&set, &[&format!("{element} timeout {running} packets 5 bytes 6")]);
            client.add_entries(&set.name, &there, IfPresent::Refuse).into_result().unwrap();
            // In place, with another comment, and in a new set because of the room asked for.
            let mut roomy = set.clone();
            roomy.options.maxelem = set.set_type.is_hash().then_some(100_000);
            for (spec, text, is_updated) in [
                (&set, element.to_owned(), updated),
                (&set, format!("{element} comment ours skbmark 0x1/0x1"), 1),
                (&roomy, format!("{element} comment ours skbmark 0x1/0x1"), 0),
            ] {
                let report = client.sync(spec, &entries(&set, &[&text])).unwrap();
                assert_eq!(
                    (report.updated, report.unchanged),
                    (is_updated, 1 - is_updated),
                    "{line} {default} {running}"
                );
                let found = client.get_set(&set.name).unwrap().entries[0].options.clone();
                let secs = found.timeout.unwrap().secs();
                assert!((left.max(5) - 5..=left).contains(&secs), "{line} {default} {running}: {secs}");
                assert_eq!((found.packets, found.bytes), (Some(5), Some(6)));
            }
            client.destroy_set(&set.name).unwrap();
        }
    }
}

pub(crate) fn sync_orders_lists(client: &mut Client) {
    for line in ["create a hash:ip", "create b hash:ip", "create c hash:ip"] {
        create(client, line);
    }
    let list = spec("create list list:set");
    let order = |client: &mut Client| {
        let members = client.get_set(&list.name).unwrap().entries;
        members.iter().map(|entry| entry.element.to_string()).collect::<Vec<_>>().join(" ")
    };
    client.sync(&list, &entries(&list, &["a", "b"])).unwrap();
    let report = client.sync(&list, &entries(&list, &["a", "b", "c"])).unwrap();
    assert!(!report.swapped, "appending needs no new set: {report:?}");
    let report = client.sync(&list, &entries(&list, &["c", "a"])).unwrap();
    assert!(report.swapped, "{report:?}");
    assert_eq!(order(client), "c a");
    assert!(!client.sync(&list, &entries(&list, &["c", "a"])).unwrap().is_changed());
    // The kernel does not report positions.
    let placed = entries(&list, &["a", "c before a", "b after c"]);
    client.sync(&list, &placed).unwrap();
    assert_eq!(order(client), "c b a");
    assert!(!client.sync(&list, &placed).unwrap().is_changed());
    let nowhere = client.sync(&list, &entries(&list, &["a before b", "c"])).unwrap_err();
    assert_eq!(*nowhere.kind(), ErrorKind::PositionMissing, "{nowhere}");
    assert_eq!(order(client), "c b a");
}

pub(crate) fn sync_takes_the_last_of_two_spellings(client: &mut Client) {
    let set = spec("create a hash:net family inet6 comment");
    let wanted = entries(&set, &["2001:DB8::7/64 comment one", "fd00::/8", "2001:db8:0:0::/64 comment two"]);
    let report = client.sync(&set, &wanted).unwrap();
    assert_eq!(report.added, 2);
    let found = client.get_set(&set.name).unwrap().entries;
    assert!(found.contains(&entry(&set, "2001:db8::/64 comment two")), "{found:?}");
    assert!(!client.sync(&set, &wanted).unwrap().is_changed());
}

/// Adding an existing entry does not change its wildcard, so a new set is needed.
pub(crate) fn sync_changes_wildcards(client: &mut Client) {
    let set = spec("create a hash:net,iface");
    client.sync(&set, &entries(&set, &["10.0.0.0/8,eth", "10.0.0.0/8,lo"])).unwrap();
    let wanted = entries(&set, &["10.0.0.0/8,eth wildcard", "10.0.0.0/8,lo"]);
    let report = client.sync(&set, &wanted).unwrap();
    assert!(report.swapped, "{report:?}");
    let found = client.get_set(&set.name).unwrap().entries;
    assert!(wanted.iter().all(|entry| found.contains(entry)) && found.len() == 2, "{found:?}");
    assert!(!client.sync(&set, &wanted).unwrap().is_changed());
}

/// The kernel deletes from bitmap:ip,mac by address alone, and keeps one MAC address for each.
pub(crate) fn sync_changes_mac_addresses(client: &mut Client) {
    let set = spec("create a bitmap:ip,mac range 10.0.0.0/24");
    client.sync(&set, &entries(&set, &["10.0.0.1,02:00:00:00:00:01", "10.0.0.2,02:00:00:00:00:02"])).unwrap();
    let wanted = entries(&set, &["10.0.0.1,02:00:00:00:00:0A", "10.0.0.2", "10.0.0.3"]);
    let report = client.sync(&set, &wanted).unwrap();
    assert_eq!((report.added, report.updated, report.deleted, report.unchanged), (1, 1, 0, 1));
    assert_eq!(elements(client, &set), ["10.0.0.1,02:00:00:00:00:0A", "10.0.0.2,02:00:00:00:00:02", "10.0.0.3"]);
    assert!(!client.sync(&set, &wanted).unwrap().is_changed());
    client.delete_entry(&set.name, &entry(&set, "10.0.0.1")).unwrap();
    assert_eq!(elements(client, &set), ["10.0.0.2,02:00:00:00:00:02", "10.0.0.3"]);
}

pub(crate) fn sync_writes_nothing_when_an_entry_is_invalid(client: &mut Client) {
    let set = spec("create a hash:ip");
    let six = entry(&set, "fd00::1");
    assert!(matches!(kind(client.sync(&set, &[&entry(&set, "10.0.0.1"), &six])), ErrorKind::Invalid(_)));
    assert_eq!(client.list_names().unwrap(), []);
    let huge = entry(&set, "0.0.0.0/0");
    assert!(matches!(kind(client.sync(&set, &[huge])), ErrorKind::Invalid(InvalidValue::TooMany { .. })));
}

pub(crate) fn sync_writes_nothing_when_a_refusal_can_be_foreseen(client: &mut Client) {
    let null = kind({
        let set = create(client, "create n hash:ip");
        let refused = client.add_entry(&set.name, &entry(&set, "0.0.0.0"));
        client.destroy_set(&set.name).unwrap();
        refused
    });
    for (line, text, refusal) in [
        ("create a hash:ip", "10.0.0.1 timeout 5", ErrorKind::ExtensionMissing("timeout")),
        ("create a hash:ip", "10.0.0.1 comment x", ErrorKind::ExtensionMissing("comment")),
        ("create a hash:ip", "10.0.0.1 packets 1", ErrorKind::ExtensionMissing("counters")),
        ("create a hash:ip", "10.0.0.1 bytes 1", ErrorKind::ExtensionMissing("counters")),
        ("create a hash:ip", "10.0.0.1 skbqueue 1", ErrorKind::ExtensionMissing("skbinfo")),
        ("create a hash:ip", "10.0.0.1 skbmark 0x1", ErrorKind::ExtensionMissing("skbinfo")),
        ("create a hash:ip", "10.0.0.1 skbprio 1:2", ErrorKind::ExtensionMissing("skbinfo")),
        ("create a hash:ip", "0.0.0.0/30", null.clone()),
        ("create a hash:ip netmask 24", "0.0.0.77", null.clone()),
        ("create a hash:ip family inet6", "::", null.clone()),
        ("create a hash:mac", "00:00:00:00:00:00", null.clone()),
        ("create a hash:ip,mac", "10.0.0.1,00:00:00:00:00:00", null.clone()),
        ("create a bitmap:ip range 10.0.0.0/24", "10.0.1.0", ErrorKind::OutOfRange),
        ("create a bitmap:ip,mac range 10.0.0.0/24", "10.0.1.0", ErrorKind::OutOfRange),
        ("create a bitmap:ip range 10.0.0.1-10.0.0.9", "10.0.0.0", ErrorKind::OutOfRange),
        ("create a bitmap:ip range 10.0.0.1-10.0.0.9", "10.0.0.9-10.0.0.10", ErrorKind::OutOfRange),
        ("create a bitmap:port range 100-200", "99", ErrorKind::OutOfRange),
        ("create a bitmap:port range 100-200", "200-201", ErrorKind::OutOfRange),
    ] {
        let set = spec(line);
        let wanted = entry(&set, text);
        let error = client.sync(&set, &[&wanted]).unwrap_err();
        assert_eq!(*error.kind(), refusal, "{line}, {text}: {error}");
        assert!(error.to_string().starts_with("adding "), "{error}");
        assert_eq!(client.list_names().unwrap(), [], "{line}, {text}");
        // The kernel says the same.
        match client.create_set(&set) {
            Err(error) if *error.kind() == ErrorKind::TypeUnsupported => continue,
            created => created.unwrap(),
        }
        let expanded = wanted.expand(&set, 10).unwrap();
        let refused = client.add_entries(&set.name, &expanded, IfPresent::Update).into_result();
        assert_eq!(kind(refused), refusal, "{line}, {text}");
        client.destroy_set(&set.name).unwrap();
    }
    for (line, texts, added) in [
        ("create a hash:ip counters", &["10.0.0.1 packets 5 bytes 6"][..], 1),
        ("create b hash:ip comment skbinfo timeout 5", &["10.0.0.1 comment x skbqueue 1 timeout 9"], 1),
        ("create c bitmap:ip range 10.0.0.1-10.0.0.9", &["10.0.0.1-10.0.0.9"], 9),
        ("create d bitmap:port range 5-9", &["5-9"], 5),
        ("create e bitmap:ip range 10.0.0.100-10.0.3.100 netmask 24", &["10.0.0.1", "10.0.3.255"], 2),
        ("create f hash:ip family inet6", &["fd00::/126", "fd00::3"], 4),
        ("create g hash:ip,port family inet6", &["fd00::/127,tcp:1-2"], 4),
    ] {
        let set = spec(line);
        assert_eq!(client.sync(&set, &entries(&set, texts)).unwrap().added, added, "{line}");
    }
}

/// Whether a list's member exists is known to the kernel alone.
pub(crate) fn sync_that_fails_leaves_no_new_set(client: &mut Client) {
    let list = spec("create list list:set");
    let wanted = entries(&list, &["nosuch"]);
    assert_eq!(kind(client.sync(&list, &wanted)), ErrorKind::MemberMissing);
    assert_eq!(client.list_names().unwrap(), []);
    create(client, "create a hash:ip");
    client.sync(&list, &entries(&list, &["a"])).unwrap();
    assert_eq!(kind(client.sync(&list, &wanted)), ErrorKind::MemberMissing);
    assert_eq!(elements(client, &list), ["a"]);
}

/// Four types refuse /0; a sync gives them its halves, which match the same packets.
pub(crate) fn a_network_of_all_addresses(client: &mut Client) {
    for (line, text, halves) in [
        ("create a hash:net", "0.0.0.0/0", &["0.0.0.0/1", "128.0.0.0/1"][..]),
        ("create a hash:net", "0.0.0.0-255.255.255.255", &["0.0.0.0/1", "128.0.0.0/1"]),
        ("create a hash:net family inet6", "::/0", &["8000::/1", "::/1"]),
        ("create a hash:net,port", "0.0.0.0/0,tcp:80", &["0.0.0.0/1,tcp:80", "128.0.0.0/1,tcp:80"]),
        (
            "create a hash:ip,port,net",
            "10.0.0.1,80,0.0.0.0/0",
            &["10.0.0.1,tcp:80,0.0.0.0/1", "10.0.0.1,tcp:80,128.0.0.0/1"],
        ),
        ("create a hash:net,iface", "0.0.0.0/0,eth0", &["0.0.0.0/0,eth0"]),
        ("create a hash:net,net", "0.0.0.0/0,10.0.0.0/8", &["0.0.0.0/1,10.0.0.0/8", "128.0.0.0/1,10.0.0.0/8"]),
        ("create a hash:net,net", "10.0.0.0/8,0.0.0.0/0", &["10.0.0.0/8,0.0.0.0/1", "10.0.0.0/8,128.0.0.0/1"]),
        (
            "create a hash:net,net family inet6",
            "::/0,::/0",
            &["8000::/1,8000::/1", "8000::/1,::/1", "::/1,8000::/1", "::/1,::/1"],
        ),
        ("create a hash:net,port,net", "0.0.0.0/0,80,0.0.0.0/0", &["0.0.0.0/0,tcp:80,0.0.0.0/0"]),
        ("create a hash:net,port,net family inet6", "::/0,80,::/0", &["::/0,tcp:80,::/0"]),
    ] {
        let set = spec(line);
        match client.type_revisions(set.set_type, set.options.family) {
            Err(error) if *error.kind() == ErrorKind::TypeUnsupported => continue,
            revisions => revisions.unwrap(),
        };
        let everything = entry(&set, text);
        assert!(client.sync(&set, &[&everything]).unwrap().created, "{line}, {text}");
        assert_eq!(elements(client, &set), halves, "{line}, {text}");
        assert!(!client.sync(&set, &[&everything]).unwrap().is_changed(), "{line}, {text}");
        // The kernel accepts or refuses exactly what is sent.
        client.flush_set(&set.name).unwrap();
        let added = client.add_entry(&set.name, &everything);
        assert_eq!(added.is_ok(), set.set_type.has_zero_prefix(), "{line}, {text}: {added:?}");
        client.destroy_set(&set.name).unwrap();
    }
}

pub(crate) fn sync_clears_what_an_interrupted_one_left(client: &mut Client) {
    let set = spec("create a-name-of-thirty-one-bytes-here hash:ip");
    client.sync(&set, &entries(&set, &["10.0.0.1"])).unwrap();
    let mut other = set.clone();
    other.options.flags |= SetFlags::COUNTERS;
    // The name that the sync gives its second set.
    let shadow = spec("create a-name-of-thirty-one-~6e35954f hash:net");
    client.create_set(&shadow).unwrap();
    let report = client.sync(&other, &entries(&set, &["10.0.0.2"])).unwrap();
    assert!(report.swapped);
    assert_eq!(elements(client, &set), ["10.0.0.2"]);
    assert_eq!(client.list_names().unwrap(), [set.name]);
}

pub(crate) fn sync_of_a_type_that_cannot_be_swapped(client: &mut Client) {
    let old = create(client, "create a hash:ip");
    let new = spec("create a hash:net");
    let list = create(client, "create list list:set");
    client.add_entry(&list.name, &entry(&list, "a")).unwrap();
    client.add_entry(&old.name, &entry(&old, "10.0.0.1")).unwrap();
    assert_eq!(kind(client.sync(&new, &entries(&new, &["10.0.0.0/8"]))), ErrorKind::TypeMismatch);
    assert_eq!(elements(client, &old), ["10.0.0.1"]);
    assert_eq!(client.list_names().unwrap().len(), 2, "the set built beside it is gone");
    client.flush_set(&list.name).unwrap();
    assert!(client.sync(&new, &entries(&new, &["10.0.0.0/8"])).unwrap().swapped);
    assert_eq!(client.set_header(&new.name).unwrap().0, SetType::HashNet);
    // Bitmap and hash of the same kind of entries can be swapped.
    let bitmap = create(client, "create b bitmap:ip range 10.0.0.0/24");
    client.add_entry(&list.name, &entry(&list, "b")).unwrap();
    let hash = spec("create b hash:ip");
    assert!(client.sync(&hash, &entries(&hash, &["10.9.0.1"])).unwrap().swapped);
    assert_eq!(client.get_header(&bitmap.name).unwrap().references, 1);
}

pub(crate) fn saved_text_is_read_back(client: &mut Client) {
    for (line, texts) in [
        (
            "create a hash:ip,port timeout 0 comment skbinfo",
            ["10.0.0.1,80 comment \"two words\"", "10.0.0.2,udp:1 skbmark 7"],
        ),
        ("create b hash:net,iface family inet6", ["::1/96,eth0", "fd00::/8,physdev:br0 nomatch"]),
        ("create c bitmap:port range 5-9 counters", ["5 packets 1 bytes 2", "6"]),
        ("create d list:set", ["a", "c"]),
    ] {
        let set = create(client, line);
        client.add_entries(&set.name, &entries(&set, &texts), IfPresent::Refuse).into_result().unwrap();
    }
    let text = client.save().unwrap();
    let sets = parse_save(&text).unwrap();
    assert_eq!(save(&sets), text);
    assert_eq!(sets.len(), 4);
    client.destroy_set(&name("d")).unwrap();
    client.destroy_all_sets().unwrap();
    client.restore(&sets).unwrap();
    // The order of a hash is random.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&client.save().unwrap()), lines(&text));
}

pub(crate) fn ten_thousand_entries(client: &mut Client) {
    let set = spec("create a hash:ip,port");
    let all: Vec<Entry> = (0..10_000_u32)
        .map(|number| {
            let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
            let port = ipset::Ports::port(ipset::Protocol::TCP, u16::try_from(number % 60_000).unwrap());
            Entry::new(Element::IpPort(IpSpan::from(address), port))
        })
        .collect();
    assert_eq!(client.sync(&set, &all).unwrap().added, 10_000);
    let found = client.get_set(&set.name).unwrap();
    assert_eq!(found.elements, Some(10_000));
    let found: std::collections::HashSet<Entry> = found.entries.into_iter().collect();
    assert!(all.iter().all(|entry| found.contains(entry)) && found.len() == all.len());
    assert_eq!(client.sync(&set, &all).unwrap().unchanged, 10_000);
}
