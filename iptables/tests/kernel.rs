//! The suite on the real kernel, through both back ends and both families, each test in its own network namespace. Also
//! what only a real kernel can show: what the programs write and read, locks, privilege, and packets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may stop at the first surprise, in its helper functions as well"
)]

mod ground;
#[macro_use]
mod suite;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ground::{Real, in_namespace, run};
use iptables::{
    Backend, BackendChoice, Dump, Ensured, ErrorKind, Family, Invocation, Iptables, Limits, Output, Position, Rule,
    Runner, Survey, System, TableName, Transaction,
};
use suite::{World, chain, kube, rule};
use testkit::Need;

fn on(family: Family, backend: Backend, test: impl FnOnce(&Real)) {
    in_namespace(&[backend], &SETS, || test(&Real::new(family, backend)));
}

/// The set types that the suite uses.
const SETS: [Need; 2] = [Need::Ipset("hash:ip,port"), Need::Ipset("bitmap:port")];

/// The same test in all four cells.
fn everywhere(test: impl Fn(&Real)) {
    everywhere_with(&SETS, test);
}

fn everywhere_with(needs: &[Need], test: impl Fn(&Real)) {
    for family in Family::ALL {
        for backend in Backend::ALL {
            in_namespace(&[backend], needs, || test(&Real::new(family, backend)));
        }
    }
}

suite_tests!();

/// nft has put into FORWARD, and into a chain of iptables', what iptables has no words for.
#[test]
fn chains_are_read_one_by_one_where_the_table_cannot_be_shown() {
    for (family, nft) in [(Family::Ipv4, "ip"), (Family::Ipv6, "ip6")] {
        in_namespace(&[Backend::NfTables], &[Need::Nftables], || {
            let (real, filter) = (Real::new(family, Backend::NfTables), TableName::FILTER);
            let iptables = real.iptables();
            for args in [
                "-N KUBE-A",
                "-N KUBE-B",
                "-N KUBE-EMPTY",
                "-A KUBE-A -m conntrack --ctstate NEW -j KUBE-B",
                "-A KUBE-B -j ACCEPT",
                "-A INPUT -j KUBE-A",
                "-P INPUT DROP",
                "-A FORWARD -j KUBE-A",
            ] {
                real.command(&args.split(' ').collect::<Vec<_>>());
            }
            let names = ["INPUT", "FORWARD", "KUBE-A", "KUBE-B", "KUBE-EMPTY", "KUBE-NONE"].map(chain);
            let whole = iptables.dump_table(&filter).unwrap();
            let read = iptables.dump_chains(&filter, &names).unwrap();
            assert_eq!(iptables.dump_chains(&filter, &[]).unwrap().chains(), []);
            for chain in ["INPUT", "FORWARD", "KUBE-A", "KUBE-B", "KUBE-EMPTY"] {
                let parts = |table: &iptables::Table| {
                    let chain = table.chain(chain).unwrap();
                    (chain.policy.clone(), chain.rules.clone())
                };
                assert_eq!(parts(&read), parts(&whole), "{chain}");
            }
            assert!(read.chain("KUBE-NONE").is_none());
            for hidden in ["FORWARD", "KUBE-B"] {
                run("nft", &["add", "rule", nft, "filter", hidden, "ct state vmap { established : accept }"], "");
            }
            assert_eq!(iptables.dump_table(&filter).unwrap_err().kind(), ErrorKind::UnsupportedProgram);
            let read = iptables.dump_chains(&filter, &names).unwrap();
            let shown: Vec<&str> = read.chains().iter().map(|chain| chain.name.as_str()).collect();
            assert_eq!(shown, ["INPUT", "KUBE-A", "KUBE-EMPTY"]);
            assert_eq!(read.chain("KUBE-A").unwrap().rules, whole.chain("KUBE-A").unwrap().rules);
        });
    }
}

#[test]
fn a_canary_tells_of_a_flush() {
    everywhere(|world| {
        suite::a_canary_tells_of_a_flush(world, |w| {
            for table in ["mangle", "nat", "filter"] {
                w.command(&["-t", table, "-F"]);
                w.command(&["-t", table, "-X"]);
            }
        });
    });
}

/// A newline in a comment, which only the command-line program can write, is read as part of it and refused when written.
#[test]
fn a_comment_over_several_lines_is_read() {
    everywhere(|world| {
        let evil = "x\nCOMMIT\n*nat\n-A OUTPUT -j DROP\n\ny\"z";
        world.command(&["-A", "FORWARD", "-m", "comment", "--comment", evil, "-j", "ACCEPT"]);
        world.command(&["-A", "FORWARD", "-j", "DROP"]);
        let text = world.saved(&[]);
        let dump = Dump::parse(&text).unwrap();
        assert_eq!(dump.to_string(), text);
        let rules = &dump.table(&TableName::FILTER).unwrap().chain("FORWARD").unwrap().rules;
        assert_eq!((rules.len(), rules[0].comment(), rules[0].target()), (2, Some(evil), Some("ACCEPT")));
        assert_eq!(dump.tables.len(), 1);
        let mut change = Transaction::new();
        change.table(TableName::FILTER).replace_chain(&chain("COPY"), rules.clone());
        assert_eq!(world.iptables().restore(&change).unwrap_err().kind(), ErrorKind::InvalidToken);
    });
}

/// Interfaces may be named so that the dump has a lone quotation mark.
#[test]
fn an_interface_with_a_quotation_mark_is_read() {
    everywhere(|world| {
        world.command(&["-A", "FORWARD", "-i", "a\"b", "-j", "DROP"]);
        world.command(&["-A", "FORWARD", "-o", "c\"d", "-j", "DROP"]);
        let text = world.saved(&[]);
        let dump = Dump::parse(&text).unwrap();
        assert_eq!(dump.to_string(), text);
        let rules = [rule("-i \"a\\\"b\" -j DROP"), rule("-o \"c\\\"d\" -j DROP")];
        assert!(dump.table(&TableName::FILTER).unwrap().chain("FORWARD").unwrap().same_rules(&rules), "{text}");
        let mut change = Transaction::new();
        change.table(TableName::FILTER).replace_chain(&chain("COPY"), rules.clone());
        world.iptables().restore(&change).unwrap();
        let copy = world.iptables().dump_table(&TableName::FILTER).unwrap();
        assert!(copy.chain("COPY").unwrap().same_rules(&rules), "{copy}");
    });
}

/// Names of the extensions that the programs have on this machine, by the files that they load.
fn installed_extensions() -> Vec<String> {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path().join("xtables"));
    let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let name = |file: String| {
        let stem = file.strip_suffix(".so")?;
        ["libxt_", "libipt_", "libip6t_"].iter().find_map(|of| stem.strip_prefix(of)).map(str::to_owned)
    };
    // One holds verdicts, the other the targets of NAT under their own names.
    names.filter_map(name).filter(|name| !matches!(name.as_str(), "standard" | "NAT")).collect()
}

#[test]
fn every_installed_extension_has_a_rule() {
    in_namespace(&Backend::ALL, &[], || {
        let rules = include_str!("fixtures/extensions.txt").replace("-p icmpv6", "-p icmp6");
        let missing: Vec<String> = installed_extensions()
            .into_iter()
            .filter(|name| !["-m", "-j", "-p"].iter().any(|of| rules.contains(&format!(" {of} {name}"))))
            .collect();
        assert_eq!(missing, [""; 0]);
        assert!(installed_extensions().len() > 90);
    });
}

/// A chain is left alone only when each rule is in its place, as the program itself compares them; whatever it finds, nothing of that stays.
#[test]
fn rules_in_unknown_spellings_are_compared_in_their_places() {
    let test = |world: &Real| {
        let (iptables, filter, name) = (world.iptables(), TableName::FILTER, chain("SPELLED"));
        let spelled = |texts: &[&str]| texts.iter().map(|text| rule(text)).collect::<Vec<_>>();
        let class = "-m dscp --dscp-class EF";
        let u32 = "-m u32 --u32 \" 0 >> 22 & 0x3C @ 0 >> 8\t& 0xFF = 010 : 0x1F , 64 && 6&0xFF=1\" -j ACCEPT";
        let limit = "-m limit --limit 90/minute";
        let wanted = spelled(&[class, u32, limit]);
        let ensure = |rules: &[Rule]| iptables.ensure_chain_rules(&filter, &name, rules).unwrap();
        assert_eq!([ensure(&wanted), ensure(&wanted)], [Ensured::Added, Ensured::AlreadyThere]);
        for other in [
            spelled(&[u32, class, limit]),
            spelled(&[class, u32]),
            spelled(&["-m dscp --dscp-class AF11", u32, limit]),
            spelled(&[class, "-m u32 --u32 \"0x0 & 0xff = 0x2\" -j ACCEPT", limit]),
        ] {
            assert_eq!([ensure(&other), ensure(&other)], [Ensured::Added, Ensured::AlreadyThere], "{other:?}");
        }
        let there = world.command(&["-S"]);
        assert!(!there.contains("IPTABLES-EMPTY"), "{there}");
        assert_eq!(there.matches("-A SPELLED").count(), 3, "{there}");
    };
    everywhere(test);
}

/// Every match and target of `iptables-extensions(8)`, in words of people: abbreviated, with names for numbers, without defaults.
#[test]
fn rules_of_every_extension_are_found_again() {
    let test = |world: &Real| {
        world.create_sets(&[("SOME".to_owned(), "hash:ip,port")]);
        let family = if world.family() == Family::Ipv4 { '4' } else { '6' };
        let name = chain("EXTENSION");
        let (mut refused, mut unknown) = (Vec::new(), Vec::new());
        let lines: Vec<&str> = include_str!("fixtures/extensions.txt").lines().collect();
        for line in &lines {
            let [families, table, text] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
            if !families.contains(family) {
                continue;
            }
            let (table, rule) = (TableName::new(table).unwrap(), rule(text));
            let iptables = world.iptables();
            assert_eq!(iptables.ensure_chain_rules(&table, &name, &[]).unwrap(), Ensured::Added);
            let listed = || {
                let lines = world.command(&["-t", table.as_str(), "-S", name.as_str()]);
                lines.lines().filter(|line| line.starts_with("-A")).map(str::to_owned).collect::<Vec<_>>()
            };
            match iptables.ensure_rule(&table, &name, &rule, Position::Last) {
                Ok(done) => assert_eq!((done, listed().len()), (Ensured::Added, 1), "{line}"),
                Err(e) => {
                    refused.push(format!("{line}: {e}"));
                    assert!(iptables.delete_chain(&table, &name).unwrap());
                    continue;
                }
            }
            let printed = listed();
            assert_eq!(
                iptables.ensure_rule(&table, &name, &rule, Position::First).unwrap(),
                Ensured::AlreadyThere,
                "{line}"
            );
            let rules = std::slice::from_ref(&rule);
            assert_eq!(iptables.ensure_chain_rules(&table, &name, rules).unwrap(), Ensured::AlreadyThere, "{line}");
            assert_eq!(listed(), printed, "{line}");
            let leads = iptables.ensure_leading(&table, &name, rules).unwrap();
            assert_eq!(listed(), printed, "{line}");
            let read = printed[0].strip_prefix("-A EXTENSION ").unwrap();
            if leads != Ensured::AlreadyThere {
                unknown.push(format!("{line} => {read}"));
            }
            assert_eq!(iptables.delete_rule(&table, &name, &rule).unwrap(), 1, "{line}");
            assert_eq!(listed(), [""; 0], "{line}");
            assert_eq!(iptables.delete_rule(&table, &name, &rule).unwrap(), 0, "{line}");
            assert!(iptables.delete_chain(&table, &name).unwrap());
        }
        // SELinux is rare, and some kernels have fewer extensions. The rest is names, abbreviations and values that only the program reads.
        assert!(refused.len() < 12, "{refused:#?}");
        assert!(unknown.len() < 30, "{unknown:#?}");
        // What the program prints is found and deleted as well, also where the program itself does not know it again.
        let iptables = world.iptables();
        let filter = TableName::FILTER;
        assert_eq!(iptables.ensure_chain(&filter, &name).unwrap(), Ensured::Added);
        let printed = |rule: &str| {
            world.command(&[&["-A", name.as_str()][..], &rule.split(' ').collect::<Vec<_>>()].concat());
            let printed = world.command(&["-S", name.as_str()]);
            suite::rule(printed.lines().last().unwrap().strip_prefix("-A EXTENSION ").unwrap())
        };
        let limit = printed("-m connlimit --connlimit-above 2 -j DROP");
        assert_eq!(iptables.ensure_rule(&filter, &name, &limit, Position::Last).unwrap(), Ensured::AlreadyThere);
        let plain = suite::rule("-m connlimit --connlimit-above 2 -j DROP");
        assert_eq!(iptables.ensure_leading(&filter, &name, &[plain]).unwrap(), Ensured::AlreadyThere);
        assert_eq!(iptables.delete_rule(&filter, &name, &limit).unwrap(), 1);
        // It does not know `recent` by what it prints, and gets the rule without its defaults.
        let printed = printed(
            "-m limit --limit 90/minute -m hashlimit --hashlimit-upto 120/min --hashlimit-name one -m recent --set -j DROP",
        );
        assert_eq!(iptables.ensure_rule(&filter, &name, &printed, Position::Last).unwrap(), Ensured::AlreadyThere);
        let other = suite::rule("-m recent --set -j RETURN");
        let leading = [other.clone(), printed.clone()];
        assert_eq!(iptables.ensure_leading(&filter, &name, &leading).unwrap(), Ensured::Added);
        assert_eq!(iptables.ensure_leading(&filter, &name, &leading).unwrap(), Ensured::AlreadyThere);
        assert_eq!(world.command(&["-S", name.as_str()]).lines().count(), 3);
        assert_eq!(iptables.delete_rule(&filter, &name, &printed).unwrap(), 1);
        // In no chain is what names things that do not exist; what the program cannot read is an error.
        for absent in ["-m set --match-set NONE dst", "-j NO-SUCH-CHAIN"] {
            assert_eq!(iptables.delete_rule(&filter, &name, &suite::rule(absent)).unwrap(), 0, "{absent}");
        }
        let error = iptables.delete_rule(&filter, &name, &suite::rule("-p tcp --dport no-such-service")).unwrap_err();
        assert!(error.kind() == ErrorKind::Rejected && error.to_string().contains("no-such-service"), "{error}");
        assert_eq!(iptables.delete_rule(&filter, &name, &other).unwrap(), 1);
    };
    on(Family::Ipv4, Backend::Legacy, test);
    on(Family::Ipv6, Backend::NfTables, test);
}

/// The `ipvs` match comes with IPVS, which not every kernel has.
#[test]
fn the_ipvs_match_is_understood() {
    everywhere_with(&[Need::IpVs], |world| {
        let rule = kube::ipvs_rule(world.family());
        let name = chain("KUBE-IPVS-OUT-FILTER");
        let mut change = Transaction::new();
        change.table(TableName::FILTER).replace_chain(&name, [rule.clone()]);
        world.iptables().restore(&change).unwrap();
        let seen = world.iptables().dump_table(&TableName::FILTER).unwrap();
        assert!(seen.chain(name.as_str()).unwrap().same_rules(&[rule]), "{seen}");
    });
}

#[test]
fn the_back_end_in_use_is_found() {
    for backend in Backend::ALL {
        in_namespace(&Backend::ALL, &[], || {
            let (ours, other) = (Real::new(Family::Ipv4, backend), Real::new(Family::Ipv6, backend.other()));
            let before = Survey::take(&System::new()).unwrap();
            assert_eq!((before.legacy.in_use(), before.nf_tables.in_use()), (false, false));
            assert!(before.choose(BackendChoice::Detect).is_ok());
            ours.command(&["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
            let survey = Survey::take(&System::new()).unwrap();
            assert!(survey.presence(backend).kubelet_hint && !survey.presence(backend.other()).kubelet_hint);
            let found = Iptables::detect(System::new(), Family::Ipv6, BackendChoice::Detect).unwrap();
            assert_eq!(found.backend(), backend);
            let error =
                Iptables::detect(System::new(), Family::Ipv4, BackendChoice::Expect(backend.other())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::MixedBackends);
            // Foreign rules in the other one change nothing as long as the kubelet's hint is there.
            other.command(&["-A", "INPUT", "-j", "ACCEPT"]);
            let survey = Survey::take(&System::new()).unwrap();
            assert_eq!(survey.presence(backend.other()).rules, 1);
            assert_eq!(survey.choose(BackendChoice::Detect).unwrap(), backend);
            ours.command(&["-t", "mangle", "-X", "KUBE-IPTABLES-HINT"]);
            ours.command(&["-A", "INPUT", "-j", "ACCEPT"]);
            let error = Survey::take(&System::new()).unwrap().choose(BackendChoice::Detect).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::MixedBackends, "{error}");
            assert_eq!(Survey::take(&System::new()).unwrap().choose(BackendChoice::Force(backend)).unwrap(), backend);
        });
    }
}

#[test]
fn versions_are_those_the_programs_print() {
    everywhere(|world| {
        let says = run(&world.program(""), &["--version"], "");
        let (version, backend) = says.split_once(" v").and_then(|(_, v)| v.trim().split_once(' ')).unwrap();
        assert_eq!(world.iptables().version().version.to_string(), version);
        assert_eq!(format!("({})", world.backend()), backend);
    });
}

#[test]
fn a_held_lock_is_an_error_that_names_the_holder() {
    in_namespace(&Backend::ALL, &[], || {
        let path = std::env::temp_dir().join(format!("xtables-lock-{}", std::process::id()));
        let runner = System::new().with_lock_file(&path);
        let limits = Limits::default().with_lock_wait(Duration::from_secs(1));
        let iptables = Iptables::open(runner, Family::Ipv4, Backend::Legacy).unwrap().with_limits(limits);
        let mut change = Transaction::new();
        change.table(TableName::FILTER).chain(chain("WAITS"));
        let file = File::create(&path).unwrap();
        file.lock().unwrap();
        let start = Instant::now();
        let error = iptables.restore(&change).unwrap_err();
        assert!(start.elapsed() >= Duration::from_millis(900), "it waits");
        assert_eq!(error.kind(), ErrorKind::LockTimeout, "{error}");
        assert_eq!(error.lock_holders().first().map(|h| h.pid), Some(std::process::id()), "{error}");
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        // So is a program that would wait longer than its time limit.
        let forever =
            Limits::default().with_lock_wait(Duration::from_millis(1)).with_program(Duration::from_millis(300));
        let runner = System::new().with_lock_file(&path);
        let impatient = Iptables::open(runner, Family::Ipv4, Backend::Legacy).unwrap().with_limits(forever);
        let error = impatient.restore(&change).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LockTimeout, "{error}");
        assert!(std::error::Error::source(&error).is_some(), "it was killed: {error:?}");
        file.unlock().unwrap();
        iptables.restore(&change).unwrap();
        // The other back end knows no lock.
        file.lock().unwrap();
        let nft = Iptables::open(System::new().with_lock_file(&path), Family::Ipv4, Backend::NfTables).unwrap();
        nft.restore(&change).unwrap();
        std::fs::remove_file(&path).unwrap();
    });
}

/// Runs everything as the user `nobody`.
struct Unprivileged(System);

impl Runner for Unprivileged {
    fn find(&self, program: &str) -> Option<PathBuf> {
        self.0.find(program)
    }

    fn run(&self, invocation: &Invocation) -> Result<Output, iptables::Error> {
        let program = invocation.program.to_str().unwrap().to_owned();
        let fixed = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"].map(str::to_owned);
        let args = fixed.into_iter().chain([program]).chain(invocation.args.iter().cloned());
        let wrapped = Invocation::new(&self.0.find("setpriv").unwrap(), args, invocation.time_limit);
        self.0.run(&wrapped.with_stdin(invocation.stdin.clone()))
    }
}

#[test]
fn without_privilege_the_error_says_so() {
    in_namespace(&Backend::ALL, &[Need::Tool("setpriv")], || {
        for backend in Backend::ALL {
            let iptables = Iptables::open(Unprivileged(System::new()), Family::Ipv4, backend).unwrap();
            let mut change = Transaction::new();
            change.table(TableName::FILTER).chain(chain("NEVER"));
            let error = iptables.restore(&change).unwrap_err();
            assert!(error.is_permission(), "{backend}: {error}");
            assert_eq!(iptables.check_kernel().unwrap_err().kind(), ErrorKind::Permission);
        }
        let error = Survey::take(&Unprivileged(System::new())).unwrap_err();
        assert!(error.is_permission(), "{error}");
    });
}

/// A rule with a set really decides about packets.
#[test]
fn packets_obey_rules_with_sets() {
    everywhere(|world| {
        let (address, kind) = match world.family() {
            Family::Ipv4 => ("127.0.0.1", "hash:ip,port"),
            Family::Ipv6 => ("::1", "hash:ip,port"),
        };
        let blocked = ground::listen(address);
        let open = ground::listen(address);
        world.create_sets(&[("BLOCKED".to_owned(), kind)]);
        let mut change = Transaction::new();
        let name = chain("GUARD");
        let reject = rule(
            "-m comment --comment \"no \\\"entry\\\"\" -m set --match-set BLOCKED dst,dst -p tcp -j REJECT --reject-with tcp-reset",
        );
        change.table(TableName::FILTER).replace_chain(&name, [reject.clone(), rule("-j RETURN")]).lead_with(
            &chain("INPUT"),
            None,
            &[rule("-i lo -j GUARD")],
        );
        world.iptables().restore(&change).unwrap();
        assert!(ground::connects(&blocked) && ground::connects(&open), "the set is empty");
        let port = blocked.local_addr().unwrap().port();
        run("ipset", &["add", "BLOCKED", &format!("{address},tcp:{port}")], "");
        assert!(!ground::connects(&blocked));
        assert!(ground::connects(&open));
        // The kernel counted the packet that it refused, and the counters come with the dump.
        let dump = world.iptables().dump_with_counters().unwrap();
        let guard = dump.table(&TableName::FILTER).unwrap().chain("GUARD").unwrap();
        assert!(guard.rules[0].counters.unwrap().packets >= 1, "{dump}");
        assert!(guard.rules[1].counters.unwrap().packets >= 6, "{dump}");
        // Unchanged chains are not rewritten, so their counters go on.
        assert!(!Transaction::new().table(TableName::FILTER).replace_chain_if_different(
            dump.table(&TableName::FILTER),
            &name,
            &[reject, rule("-j RETURN")]
        ));
        run("ipset", &["del", "BLOCKED", &format!("{address},tcp:{port}")], "");
        assert!(ground::connects(&blocked));
    });
}

/// Another network namespace by its file: what is written there is there, and not here.
#[test]
fn another_namespace_by_its_file() {
    everywhere_with(&[], |world| {
        let (family, backend) = (world.family(), world.backend());
        let other = testkit::Netns::new().unwrap();
        let file = other.run_in(|| File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        let system = System::open_in(file.as_fd()).unwrap();
        // The namespace stays with the value after its file is closed.
        drop(file);
        // A legacy table appears when it is first read; before that the kernel reports none.
        assert_eq!(system.has_legacy_tables(family), Some(false));
        let there = Iptables::open(system.clone(), family, backend).unwrap();
        let name = chain("ELSEWHERE");
        assert_eq!(there.ensure_chain(&TableName::FILTER, &name).unwrap(), Ensured::Added);
        let mut change = Transaction::new();
        change.table(TableName::FILTER).replace_chain(&name, [rule("-j RETURN")]);
        there.restore(&change).unwrap();
        let is_legacy = backend == Backend::Legacy;
        assert_eq!(system.has_legacy_tables(family), Some(is_legacy));

        // The program itself, started there and here.
        let has = || world.saved(&[]).contains("-A ELSEWHERE -j RETURN");
        assert!(other.run_in(has).unwrap());
        assert!(!has());
        assert!(there.dump().unwrap().has_chain(&TableName::FILTER, "ELSEWHERE"));
        assert!(!world.iptables().dump().unwrap().has_chain(&TableName::FILTER, "ELSEWHERE"));

        // The survey's threads look there too.
        let survey = Survey::take(&system).unwrap();
        assert_eq!((survey.presence(backend).chains, survey.presence(backend).rules), (1, 1));
        assert!(!survey.presence(backend.other()).in_use());
        assert_eq!(Iptables::detect(&system, family, BackendChoice::Detect).unwrap().backend(), backend);

        // The abstract socket of the old lock belongs to the namespace: taken there, it is free here.
        let path = std::env::temp_dir().join(format!("xtables-{}-{family:?}-{backend:?}.lock", std::process::id()));
        let short = Duration::from_millis(60);
        let lock = system.clone().with_lock_file(&path).lock(short).unwrap();
        let elsewhere = path.with_extension("other");
        assert!(system.clone().with_lock_file(&elsewhere).lock(short).is_err());
        drop(System::new().with_lock_file(&elsewhere).lock(short).unwrap());
        drop(lock);
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(elsewhere).unwrap();

        let error = System::open_in(File::open("/dev/null").unwrap().as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    });
}
