use ipvs::model::{Granularity, Persistence, Protocol, Tunnel, TunnelFlags, TunnelKind};
use ipvs::{
    Client, ErrorKind, ForwardingMethod, Ruleset, Scheduler, SyncPolicy, VirtualServer, VirtualServerKey, Weight,
    Weights,
};

use super::{World, real, round_robin, tcp};

const BEFORE: &str = "
    -A -t 10.0.0.1:80 -s rr
    -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1
    -a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 2
    -a -t 10.0.0.1:80 -r 10.1.0.3:8080 -m -w 3
    -A -u 10.0.0.2:53 -s wlc
    -a -u 10.0.0.2:53 -r 10.1.0.1:53 -m -w 1
    -A -t 192.0.2.1:25 -s lc
    -a -t 192.0.2.1:25 -r 10.1.0.9:25 -m -w 9
";
const AFTER: &str = "
    -A -t 10.0.0.1:80 -s wrr -p 300
    -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1
    -a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 0
    -a -t 10.0.0.1:80 -r 10.1.0.4:8080 -m -w 4
    -A -f 7 -s rr
    -a -f 7 -r 10.1.0.1:0 -g -w 1
";

fn rules(text: &str) -> Ruleset {
    text.parse().unwrap()
}

/// All of 10.0.0.0/24, and firewall marks.
fn ours() -> SyncPolicy<'static> {
    SyncPolicy::owning(|key| key.addr().is_none_or(|addr| addr.to_string().starts_with("10.0.0.")))
}

fn with_before(client: &mut Client) {
    let policy = SyncPolicy::owning_all();
    let report = client.sync(&rules(BEFORE), &policy).unwrap();
    assert_eq!(report.into_result().unwrap().to_string(), rules(BEFORE).to_string());
    assert!(!client.sync(&rules(BEFORE), &policy).unwrap().is_changed());
}

pub(crate) fn one_table_becomes_another(world: &dyn World) {
    let mut client = world.client();
    with_before(&mut client);
    let planned = rules(AFTER).diff(&client.snapshot().unwrap(), &ours()).unwrap();
    let report = client.sync(&rules(AFTER), &ours()).unwrap();
    assert!(report.is_done() && report.is_changed(), "{report:?}");
    assert_eq!(report.done, planned);
    assert_eq!(
        report.done.to_string(),
        "-a -t 10.0.0.1:80 -r 10.1.0.4:8080 -m -w 4\n\
         -A -f 7 -s rr\n\
         -a -f 7 -r 10.1.0.1:0 -g -w 1\n\
         -E -t 10.0.0.1:80 -s wrr -p 300\n\
         -e -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 0\n\
         -d -t 10.0.0.1:80 -r 10.1.0.3:8080\n\
         -D -u 10.0.0.2:53\n"
    );
    world.expect(&[
        "-A -t 10.0.0.1:80 -s wrr -p 300",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1",
        "-a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 0",
        "-a -t 10.0.0.1:80 -r 10.1.0.4:8080 -m -w 4",
        "-A -f 7 -s rr",
        "-a -f 7 -r 10.1.0.1:0 -g -w 1",
        "-A -t 192.0.2.1:25 -s lc",
        "-a -t 192.0.2.1:25 -r 10.1.0.9:25 -m -w 9",
    ]);
    let again = client.sync(&rules(AFTER), &ours()).unwrap();
    assert!(again.is_done() && !again.is_changed(), "{again:?}");
    // Nothing wanted: everything of ours goes, the rest stays.
    let nothing = client.sync(&Ruleset::new(), &ours()).unwrap().into_result().unwrap();
    assert_eq!(nothing.to_string(), "-D -t 10.0.0.1:80\n-D -f 7\n");
    world.expect(&["-A -t 192.0.2.1:25 -s lc", "-a -t 192.0.2.1:25 -r 10.1.0.9:25 -m -w 9"]);
}

/// A health check has set one weight to 0 and another one to 5.
pub(crate) fn weights_of_a_health_check_stay(world: &dyn World) {
    let mut client = world.client();
    with_before(&mut client);
    let key = tcp("10.0.0.1:80");
    let weight = |number| Weight::new(number).unwrap();
    client.update_real_server(&key, &real("10.1.0.1:8080").with_weight(Weight::DRAIN)).unwrap();
    client.update_real_server(&key, &real("10.1.0.2:8080").with_weight(weight(5))).unwrap();
    let mut weights = |weights| {
        let changed = client.sync(&rules(BEFORE), &SyncPolicy::owning_all().with_weights(weights)).unwrap();
        changed.into_result().unwrap().to_string()
    };
    assert_eq!(weights(Weights::Keep), "");
    assert_eq!(weights(Weights::KeepZero), "-e -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 2\n");
    assert_eq!(weights(Weights::KeepZero), "");
    assert_eq!(weights(Weights::Set), "-e -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1\n");
    // Another change of a real server leaves the weight of others alone too.
    let limited = BEFORE.replace("-r 10.1.0.1:8080 -m -w 1", "-r 10.1.0.1:8080 -m -w 7 -x 100 -y 50");
    let policy = SyncPolicy::owning_all().with_weights(Weights::Keep);
    let changed = client.sync(&rules(&limited), &policy).unwrap().into_result().unwrap();
    assert_eq!(changed.to_string(), "-e -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1 -x 100 -y 50\n");
}

/// A refusal by the kernel does not stop the rest, and failures that follow from it are marked as consequences.
pub(crate) fn a_refusal_and_what_follows_from_it(world: &dyn World) {
    let mut client = world.client();
    let wanted = rules(
        "-A -t 10.0.0.1:80 -s nosuch
         -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1
         -A -t 10.0.0.2:80 -s rr
         -a -t 10.0.0.2:80 -r 224.0.0.1:8080 -m -w 1
         -a -t 10.0.0.2:80 -r 10.1.0.1:8080 -m -w 1",
    );
    let report = client.sync(&wanted, &SyncPolicy::owning_all()).unwrap();
    assert!(!report.is_done() && report.is_changed() && report.stopped.is_none());
    assert_eq!(report.done.to_string(), "-A -t 10.0.0.2:80 -s rr\n-a -t 10.0.0.2:80 -r 10.1.0.1:8080 -m -w 1\n");
    let failures: Vec<(String, bool)> = report
        .failures
        .iter()
        .map(|failure| (failure.operation.subject().to_string(), failure.is_consequence))
        .collect();
    assert_eq!(
        failures,
        [
            ("virtual server TCP 10.0.0.1:80".to_owned(), false),
            ("real server 10.1.0.1:8080 of virtual server TCP 10.0.0.1:80".to_owned(), true),
            ("real server 224.0.0.1:8080 of virtual server TCP 10.0.0.2:80".to_owned(), false),
        ]
    );
    assert!(report.into_result().unwrap_err().module_missing().is_some());
    world.expect(&["-A -t 10.0.0.2:80 -s rr", "-a -t 10.0.0.2:80 -r 10.1.0.1:8080 -m -w 1"]);
}

pub(crate) fn mistakes_in_the_wanted_state_write_nothing(world: &dyn World) {
    let mut client = world.client();
    let good = round_robin(tcp("10.0.0.1:80"));
    let foreign = round_robin(tcp("192.0.2.1:80"));
    let web = real("10.1.0.1:8080");
    // The same key in another spelling.
    let tcp_by_number = VirtualServerKey::new(Protocol::Other(6), "10.0.0.1:80".parse().unwrap());
    let mut no_granularity = Persistence::new(300);
    no_granularity.granularity = Granularity::Prefix(33);
    let cases = [
        (vec![(good, vec![]), (good, vec![])], "virtual server TCP 10.0.0.1:80: it is wanted twice"),
        (vec![(good, vec![]), (round_robin(tcp_by_number), vec![])], "TCP 10.0.0.1:80: it is wanted twice"),
        (vec![(good, vec![web, web.with_weight(Weight::DRAIN)])], "real server 10.1.0.1:8080 of virtual server TCP"),
        (vec![(good, vec![web]), (foreign, vec![])], "TCP 192.0.2.1:80: it is wanted, but the policy says"),
        (vec![(good, vec![web]), (good.with_persistence(no_granularity), vec![])], "it is wanted twice"),
        (vec![(good.with_persistence(no_granularity), vec![])], "persistence granularity /33 is impossible"),
    ];
    for (entries, words) in cases {
        let mut wanted = Ruleset::new();
        for (server, reals) in entries {
            wanted.push(server, reals);
        }
        let error = client.sync(&wanted, &ours()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        let kind = wanted.diff(&client.snapshot().unwrap(), &ours()).unwrap_err().kind().clone();
        assert_eq!(kind, *error.kind());
        assert!(matches!(kind, ErrorKind::Repeated | ErrorKind::NotOwned | ErrorKind::OutOfRange(_)), "{kind:?}");
        world.expect(&[]);
        assert_eq!(client.list_virtual_servers().unwrap(), []);
    }
}

/// The kernel answers in one spelling; others are no difference.
pub(crate) fn other_spellings_are_no_difference(world: &dyn World) {
    let mut client = world.client();
    let scheduler = |name| Scheduler::Other(ipvs::model::Name::new(name).unwrap());
    let persistent = |server: VirtualServer, granularity| {
        let mut persistence = Persistence::new(300);
        persistence.granularity = granularity;
        server.with_persistence(persistence)
    };
    let tunnel = |kind, port| {
        let kind = TunnelKind::Other { kind, port };
        ForwardingMethod::Tunnel(Tunnel::new(kind, TunnelFlags::empty()))
    };
    let mut wanted = Ruleset::new();
    let by_number = VirtualServerKey::new(Protocol::Other(17), "10.0.0.1:53".parse().unwrap());
    wanted
        .push(VirtualServer::new(by_number, scheduler("rr")), [])
        .push(persistent(round_robin(tcp("10.0.0.1:80")), Granularity::Prefix(32)), [])
        .push(persistent(round_robin(tcp("10.0.0.2:80")), Granularity::Mask("255.255.255.0".parse().unwrap())), [])
        .push(persistent(round_robin(tcp("10.0.0.3:80")), Granularity::Mask("255.255.255.255".parse().unwrap())), [])
        .push(persistent(round_robin(tcp("[fd00::1]:80")), Granularity::Prefix(128)), [])
        .push(
            round_robin(tcp("10.0.0.4:80")),
            [
                real("10.1.0.1:80").with_forwarding_method(ForwardingMethod::Other(0)),
                real("10.1.0.2:80").with_forwarding_method(ForwardingMethod::Other(3)),
                real("10.1.0.3:80").with_forwarding_method(ForwardingMethod::Other(2)),
                real("10.1.0.4:80").with_forwarding_method(tunnel(0, 0)),
                real("10.1.0.5:80").with_forwarding_method(tunnel(1, 6080)),
                real("10.1.0.6:80").with_forwarding_method(tunnel(2, 0)),
            ],
        );
    let policy = SyncPolicy::owning_all();
    assert_eq!(client.sync(&wanted, &policy).unwrap().into_result().unwrap().len(), 12);
    assert_eq!(client.sync(&wanted, &policy).unwrap().into_result().unwrap().to_string(), "");
}
