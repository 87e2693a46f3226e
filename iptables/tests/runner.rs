//! Arguments given to the programs, and results made of their answers: a host that notes each run and may answer in its own words.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may stop at the first surprise, in its helper functions as well"
)]

#[allow(unused_macros, reason = "its cases run in other test programs")]
mod suite;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iptables::fake::FakeHost;
use iptables::{
    Backend, BackendChoice, Chain, Counters, Dump, Edit, Error, ErrorKind, Family, Invocation, Iptables, Limits,
    LockGuard, Output, Policy, ProgramVersion, Rule, Runner, Survey, TableName, Transaction,
};
use suite::{chain, rule};

#[derive(Default)]
struct Noted {
    host: FakeHost,
    runs: Mutex<Vec<Invocation>>,
    locked: Mutex<Vec<Duration>>,
    /// Answer of `iptables-restore` in place of the host's.
    words: Mutex<Option<Output>>,
    /// Answer of `iptables-save` in place of the host's.
    listing: Mutex<Option<Output>>,
    has_legacy: Option<bool>,
}

impl Noted {
    fn new(host: FakeHost) -> Self {
        Self { host, ..Self::default() }
    }

    /// The runs since the last call.
    fn runs(&self) -> Vec<Invocation> {
        std::mem::take(&mut self.runs.lock().unwrap())
    }
}

impl Runner for Noted {
    fn find(&self, program: &str) -> Option<PathBuf> {
        self.host.find(program)
    }

    fn run(&self, invocation: &Invocation) -> Result<Output, Error> {
        self.runs.lock().unwrap().push(invocation.clone());
        let program = invocation.program.to_string_lossy();
        let own = if program.ends_with("restore") {
            self.words.lock().unwrap().clone()
        } else if program.ends_with("save") {
            self.listing.lock().unwrap().clone()
        } else {
            None
        };
        own.map_or_else(|| self.host.run(invocation), Ok)
    }

    fn resolve(&self, program: &Path) -> PathBuf {
        self.host.resolve(program)
    }

    fn has_legacy_tables(&self, _family: Family) -> Option<bool> {
        self.has_legacy
    }

    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        self.locked.lock().unwrap().push(wait);
        Ok(LockGuard::none())
    }
}

const WAIT: Duration = Duration::from_secs(7);
const PROGRAM: Duration = Duration::from_secs(30);

fn open(host: &Noted, backend: Backend) -> Iptables<&Noted> {
    let limits = Limits::default().with_lock_wait(WAIT).with_program(PROGRAM);
    let iptables = Iptables::open(host, Family::Ipv4, backend).unwrap().with_limits(limits);
    host.runs();
    iptables
}

fn new_chain() -> Transaction {
    let mut change = Transaction::new();
    change.table(TableName::FILTER).edit(Edit::NewChain(chain("NEW")));
    change
}

fn arguments(runs: &[Invocation]) -> Vec<String> {
    runs.iter().map(|run| run.args.join(" ")).collect()
}

#[test]
fn each_program_gets_its_time() {
    for (backend, restore) in [(Backend::NfTables, "--noflush"), (Backend::Legacy, "--noflush -w 7")] {
        let host = Noted::new(FakeHost::new());
        let iptables = open(&host, backend);
        iptables.restore(&new_chain()).unwrap();
        iptables.dump().unwrap();
        iptables.dump_with_counters().unwrap();
        iptables.dump_table(&TableName::NAT).unwrap();
        let runs = host.runs();
        assert_eq!(arguments(&runs), [restore, "", "-c", "-t nat"], "{backend}");
        // Waiting for the lock is part of a restore, and each line takes a while; listing takes no lock.
        let lines = runs[0].time_limit.saturating_sub(WAIT + PROGRAM);
        assert!(lines > Duration::ZERO && lines < Duration::from_millis(100), "{lines:?}");
        assert!(runs[1..].iter().all(|run| run.time_limit == PROGRAM && run.stdin.is_empty()));
        assert_eq!(runs[0].stdin, "*filter\n-N NEW\nCOMMIT\n");
        assert!(host.locked.lock().unwrap().is_empty());
    }
    // `iptables-nft-restore` takes minutes for 100,000 rules, and must not be killed meanwhile.
    let host = Noted::new(FakeHost::new());
    let iptables = Iptables::open(&host, Family::Ipv4, Backend::NfTables).unwrap();
    for (rules, seconds) in [(1, 60..=70), (100_000, 500..=1_000)] {
        host.runs();
        let mut change = Transaction::new();
        change.table(TableName::FILTER).replace_chain(&chain("MANY"), vec![rule("-j RETURN"); rules]);
        iptables.restore(&change).unwrap();
        assert!(seconds.contains(&host.runs()[0].time_limit.as_secs()), "{rules} rules");
    }
}

#[test]
fn the_lock_is_taken_for_programs_that_do_not() {
    let host = Noted::new(FakeHost::new().with_version(Backend::Legacy, "v1.4.21"));
    let iptables = open(&host, Backend::Legacy);
    // Not even `--version` is answered.
    *host.words.lock().unwrap() = Some(Output::new(Some(0)));
    iptables.restore(&new_chain()).unwrap();
    assert_eq!(*host.locked.lock().unwrap(), [WAIT]);
}

fn says(code: i32, stderr: &str) -> Output {
    Output::new(Some(code)).with_stderr(stderr)
}

#[test]
fn a_check_fails_where_the_kernel_lacks_a_module() {
    let host = Noted::new(FakeHost::new());
    let iptables = open(&host, Backend::NfTables);
    *host.words.lock().unwrap() = Some(says(0, ""));
    iptables.check(&new_chain()).unwrap();
    assert_eq!(arguments(&host.runs()), ["--noflush --test"]);
    // The program's exit code says nothing of it.
    *host.words.lock().unwrap() =
        Some(says(0, "Warning: Extension physdev revision 0 not supported, missing kernel module?\n"));
    assert_eq!(iptables.check(&new_chain()).unwrap_err().kind(), ErrorKind::ExtensionMissing);
    *host.words.lock().unwrap() = Some(says(2, "iptables-nft-restore: line 2 failed\n"));
    assert!(iptables.check(&new_chain()).is_err());
}

#[test]
fn a_refusal_without_a_reason_is_looked_into() {
    let refused = "iptables-restore: line 2 failed\n";
    for (listing, kind) in [
        ("iptables-save v1.8.9 (legacy): Operation not permitted (you must be root)\n", ErrorKind::Permission),
        ("iptables-save v1.8.9 (legacy): Cannot initialize: iptables who?\n", ErrorKind::NoKernelSupport),
        // Looking fails too: the first failure stays the one that is told.
        ("iptables-save: something else\n", ErrorKind::Rejected),
    ] {
        let host = Noted::new(FakeHost::new());
        let iptables = open(&host, Backend::Legacy);
        *host.words.lock().unwrap() = Some(says(1, refused));
        *host.listing.lock().unwrap() = Some(says(1, listing));
        assert_eq!(iptables.restore(&new_chain()).unwrap_err().kind(), kind, "{listing}");
    }
}

#[test]
fn what_a_shared_runner_knows_is_asked_for() {
    fn asked(runner: impl Runner) -> Option<bool> {
        runner.has_legacy_tables(Family::Ipv4)
    }
    for known in [None, Some(false), Some(true)] {
        let host = Arc::new(Noted { has_legacy: known, ..Noted::default() });
        assert_eq!((asked(&*host), asked(Arc::clone(&host))), (known, known));
    }
}

/// The error made of an exit code and message of `iptables-restore`.
fn refused(code: Option<i32>, stderr: &str) -> Error {
    let host = Noted::new(FakeHost::new());
    let iptables = open(&host, Backend::NfTables);
    *host.words.lock().unwrap() = Some(Output::new(code).with_stderr(stderr));
    iptables.restore(&new_chain()).unwrap_err()
}

#[test]
fn an_error_says_what_the_caller_can_do() {
    let error =
        refused(Some(4), "iptables-nft-restore v1.8.9 (nf_tables): Operation not permitted (you must be root)\n");
    assert_eq!(error.kind(), ErrorKind::Permission);
    assert!(error.is_permission() && !error.is_not_found() && !error.is_retryable());
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    for words in [
        "iptables-nft-restore v1.8.9 (nf_tables): Chain 'BAR' does not exist\nError occurred at line: 2\n",
        "iptables-nft-restore v1.8.9 (nf_tables): Set nope doesn't exist.\n\nError occurred at line: 2\n",
        "iptables-nft-restore: line 2 failed: Bad rule (does a matching rule exist in that chain?).\n",
    ] {
        let error = refused(Some(2), words);
        assert!(error.is_not_found() && !error.is_permission() && !error.is_retryable(), "{words}: {:?}", error.kind());
        assert_eq!(error.failure().and_then(|failure| failure.line), Some(2), "{words}");
    }
    let error = refused(Some(4), "Another app is currently holding the xtables lock. Stopped waiting after 7s.\n");
    assert_eq!(error.kind(), ErrorKind::LockTimeout);
    assert!(error.is_retryable() && !error.is_not_found());
    let error =
        refused(Some(1), "iptables-nft-restore v1.8.9 (nf_tables): Failed to initialize nft: Protocol not supported\n");
    assert!(!error.is_retryable() && !error.is_permission() && !error.is_not_found());
    assert!(error.to_string().contains("since 6.17"), "{error}");
}

#[test]
fn advice_and_warnings_of_the_programs_are_left_out() {
    let error = refused(
        Some(2),
        "Ignoring deprecated --wait-interval option.\n# Warning: iptables-legacy tables present, use iptables-legacy to see them\n\
         Warning: never matched protocol: 9. use extension match instead.\n\niptables-nft-restore v1.8.9 (nf_tables): \
         unknown option \"--x\"\n  Error occurred at line: 2\nTry `iptables-nft-restore -h' for more information.\n",
    );
    assert_eq!(
        error.failure().unwrap().message,
        "iptables-nft-restore v1.8.9 (nf_tables): unknown option \"--x\"; Error occurred at line: 2"
    );
}

#[test]
fn words_that_only_begin_like_a_known_complaint_are_none() {
    for words in [
        "Table `x' is odd",
        "table name 'x' is odd",
        "value 'x' invalid",
        "Chain 'X' is odd",
        "Set X is odd",
        "y doesn't exist.",
    ] {
        let error =
            refused(Some(2), &format!("iptables-nft-restore v1.8.9 (nf_tables): {words}\nError occurred at line: 2\n"));
        assert_eq!(error.kind(), ErrorKind::Rejected, "{words}");
    }
    let error = refused(None, "");
    assert_eq!(error.kind(), ErrorKind::Io, "a signal ended it");
}

/// The other back end was chosen, or no back end was usable, because memory was short for a moment.
#[test]
fn a_program_that_was_killed_decides_no_back_end() {
    let host = Noted::new(FakeHost::new());
    *host.listing.lock().unwrap() = Some(Output::new(None));
    assert_eq!(Survey::take(&host).unwrap_err().kind(), ErrorKind::Io);
    *host.listing.lock().unwrap() = None;
    let survey = Survey::take(&host).unwrap();
    *host.words.lock().unwrap() = Some(Output::new(None));
    let error = survey.open(&host, Family::Ipv4, BackendChoice::Detect).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

#[test]
fn a_back_end_is_in_use_with_a_chain_or_with_a_rule() {
    let host = FakeHost::new();
    let in_use = |host: &FakeHost| {
        let survey = Survey::take(host).unwrap();
        (survey.legacy.in_use(), survey.nf_tables.in_use())
    };
    assert_eq!(in_use(&host), (false, false));
    Iptables::open(&host, Family::Ipv4, Backend::Legacy).unwrap().restore(&new_chain()).unwrap();
    assert_eq!(in_use(&host), (true, false));
    let input = chain("INPUT");
    let mut change = Transaction::new();
    change.table(TableName::FILTER).edit(Edit::Append(input, rule("-j RETURN")));
    Iptables::open(&host, Family::Ipv4, Backend::NfTables).unwrap().restore(&change).unwrap();
    let survey = Survey::take(&host).unwrap();
    assert_eq!((survey.nf_tables.rules, survey.nf_tables.chains, survey.nf_tables.in_use()), (1, 0, true));
}

#[test]
fn a_survey_hands_out_what_it_has_read() {
    let host = FakeHost::new();
    let iptables = Iptables::open(&host, Family::Ipv6, Backend::Legacy).unwrap();
    iptables.restore(&new_chain()).unwrap();
    let mut survey = Survey::take(&host).unwrap();
    assert_eq!((survey.legacy.chains, survey.legacy.rules, survey.nf_tables.chains), (1, 0, 0));
    let again = survey.reopen(&host, Family::Ipv6, Backend::Legacy).unwrap();
    assert_eq!((again.backend(), again.family()), (Backend::Legacy, Family::Ipv6));
    let dump = survey.take_dump(Backend::Legacy, Family::Ipv6).unwrap();
    assert!(dump.has_chain(&TableName::FILTER, "NEW"));
    assert_eq!(dump, again.dump().unwrap());
    assert_eq!(survey.take_dump(Backend::Legacy, Family::Ipv6), None, "it was taken before");
    let other = survey.take_dump(Backend::Legacy, Family::Ipv4).unwrap();
    assert!(!other.has_chain(&TableName::FILTER, "NEW"));
    let absent = Survey::take(&host.without_programs(Backend::NfTables)).unwrap();
    let error = absent.reopen(FakeHost::new(), Family::Ipv4, Backend::NfTables).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ProgramMissing);
}

#[test]
fn a_listing_that_would_be_empty_is_known_without_a_program() {
    let host = Noted { has_legacy: Some(false), ..Noted::default() };
    let mut survey = Survey::take(&host).unwrap();
    let saves = |run: &Invocation| run.program.to_string_lossy().ends_with("legacy-save");
    assert_eq!(host.runs().iter().filter(|run| saves(run)).count(), 0);
    for family in Family::ALL {
        assert_eq!(survey.take_dump(Backend::Legacy, family), Some(Dump::default()));
        assert_eq!(survey.take_dump(Backend::Legacy, family), None, "it was taken before");
    }
    assert!(!survey.legacy.in_use());
    // The kernel may lack the tables: that is still found out.
    let legacy = iptables::BackendChoice::Force(Backend::Legacy);
    survey.open(&host, Family::Ipv4, legacy).unwrap();
    let tries: Vec<Vec<String>> = host.runs().into_iter().map(|run| run.args).collect();
    assert_eq!(tries, [["--noflush", "--test", "-w", "5"]]);
}

#[test]
fn known_words_and_names_of_chains_are_arguments_like_others() {
    let there = chain("KUBE-SVC-X");
    let built = Rule::builder().args(["-p", "tcp", "--dport", "80"]).jump(&there).build().unwrap();
    let parsed = rule("-p tcp --dport 80 -j KUBE-SVC-X");
    assert_eq!(built, parsed);
    assert_eq!(built.cmp(&parsed), std::cmp::Ordering::Equal);
    assert!(built < rule("-p tcp --dport 81 -j KUBE-SVC-X"));
    let both: std::collections::HashSet<&Rule> = [&built, &parsed].into_iter().collect();
    assert_eq!(both.len(), 1);
    assert_eq!(format!("{:?}", built.tokens()), format!("{:?}", parsed.tokens()));
    // Jumps to chains that other tools have made are written, too.
    let odd = Dump::parse("*nat\n:A\"B - [0:0]\n:C - [0:0]\n-A C -j A\"B\nCOMMIT\n").unwrap();
    let odd = odd.table(&TableName::NAT).unwrap();
    let jump = Rule::builder().jump(&odd.chains()[0].name).build().unwrap();
    assert_eq!((jump.target(), jump.to_string().as_str()), (Some("A\"B"), "-j \"A\\\"B\""));
}

#[test]
fn tables_are_built_as_they_are_read() {
    let text = "*filter\n:INPUT DROP [0:0]\n:A - [0:0]\n:B - [0:0]\n-A INPUT -j A\n-A A -m set --match-set S dst,src -j B\nCOMMIT\n";
    let mut dump = Dump::parse(text).unwrap();
    let jump = Rule::builder().jump(&chain("A")).build().unwrap();
    let matching = Rule::builder().match_set("S", "dst,src").jump(&chain("B")).build().unwrap();
    let expected = [
        Chain::new(chain("INPUT")).with_policy(Policy::Drop).with_rules([jump.clone()]),
        Chain::new(chain("A")).with_rules([matching]),
        Chain::new(chain("B")),
    ];
    let table = dump.tables.first_mut().unwrap();
    assert_eq!(table.chains(), expected);
    assert_eq!((table.rule_count(), dump.rule_count()), (2, 2));
    let table = dump.tables.first_mut().unwrap();
    let users: Vec<_> = table.references("B").map(|(user, _)| user.name.as_str()).collect();
    assert_eq!(users, ["A"]);
    // Chains behind a removed one are still found by name.
    assert_eq!(table.remove("INPUT").map(|taken| taken.rules), Some(vec![jump]));
    assert_eq!(table.remove("INPUT"), None);
    assert_eq!(table.chain("B"), Some(&Chain::new(chain("B"))));
    table.chain_mut("B").unwrap().rules.push(rule("-j RETURN"));
    assert_eq!(table.chain("B").unwrap().rules.len(), 1);
    let replaced = table.insert(Chain::new(chain("B")).with_rules([rule("-j DROP")]));
    assert_eq!(replaced.map(|old| old.rules), Some(vec![rule("-j RETURN")]));
    assert_eq!(table.insert(Chain::new(chain("C"))), None);
    let names: Vec<&str> = table.chains().iter().map(|chain| chain.name.as_str()).collect();
    assert_eq!(names, ["A", "B", "C"]);
    assert!(table.chain("B").unwrap().same_rules(&[rule("-j DROP").with_counters(Counters { packets: 1, bytes: 60 })]));
    assert!(!table.chain("B").unwrap().same_rules(&[]));
    assert!(!table.chain("B").unwrap().same_rules(&[rule("-j RETURN")]));
}

#[test]
fn values_come_from_their_text() {
    let rule: Rule = "-s 10.0.0.0/8 -j ACCEPT".parse().unwrap();
    assert_eq!(rule, Rule::parse("-s 10.0.0.0/8 -j ACCEPT").unwrap());
    assert!("-j \"".parse::<Rule>().is_err() && "*nat".parse::<Dump>().is_err());
    let dump: Dump = "*nat\n:A - [0:0]\nCOMMIT\n".parse().unwrap();
    assert!(dump.has_chain(&TableName::NAT, "A"));
    // By arguments, as equality; counters take no part.
    let later = Rule::parse("-s 10.0.0.0/8 -j DROP").unwrap();
    let counted = rule.clone().with_counters(Counters { packets: 1, bytes: 60 });
    assert!(rule < later && counted < later && counted.cmp(&rule).is_eq());
    assert_eq!(Family::from(std::net::IpAddr::from([10, 0, 0, 1])), Family::Ipv4);
    assert_eq!(Family::from(std::net::IpAddr::from([0; 16])), Family::Ipv6);
    // Counters of the policy, as a restore sets them.
    let chain =
        Chain::new(chain("FORWARD")).with_policy(Policy::Drop).with_counters(Counters { packets: 2, bytes: 120 });
    let mut table = iptables::Table::new(TableName::FILTER);
    table.insert(chain);
    let mut dump = Dump::default();
    dump.tables.push(table);
    assert_eq!(dump.to_string(), "*filter\n:FORWARD DROP [2:120]\nCOMMIT\n");
}

/// `Debug` of an error, as a `main` that returns it prints, is its `Display`.
#[test]
fn debug_of_errors_prints_what_display_prints() {
    let error = Rule::parse("-j \"").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn a_policy_is_one_word() {
    assert_eq!("ACCEPT".parse::<Policy>().unwrap(), Policy::Accept);
    for word in ["", "-", "A B"] {
        assert!(word.parse::<Policy>().is_err(), "{word:?}");
    }
}

#[test]
fn random_ports_are_known_since_1_6_2() {
    for (version, known) in [("v1.6.1", false), ("v1.6.2", true), ("v1.8.9 (legacy)", true), ("v1.4.21", false)] {
        assert_eq!(ProgramVersion::parse(version).unwrap().has_random_fully(), known, "{version}");
    }
}
