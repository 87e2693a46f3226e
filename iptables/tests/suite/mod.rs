//! One suite for every world: real kernels through both back ends, and the fake.

#![allow(dead_code, reason = "each test binary uses a part of the suite")]

pub(crate) mod kube;

use iptables::{
    Backend, Canary, CanaryState, ChainName, Counters, Dump, Edit, Ensured, Error, ErrorKind, Family, Iptables, Policy,
    Position, Rule, Runner, TableName, Transaction,
};

/// Runs each case by `super::on` in all four cells.
macro_rules! suite_tests {
    () => {
        suite_tests! {
            kube_rules_are_read_back_as_they_were_written,
            dumps_are_printed_byte_for_byte,
            hostile_comments_stay_comments,
            failures_name_the_line_and_change_nothing,
            tables_before_a_failure_stay,
            others_are_left_alone,
            chains_and_rules_are_ensured,
            counters_are_set_and_read,
            names_at_their_limit,
            a_line_too_long_is_refused,
            many_chains_are_written_in_parts,
            the_kernel_is_checked_without_a_change,
            an_empty_transaction_does_nothing,
        }
    };
    ($($name:ident,)*) => {
        suite_tests! { @cell nf_tables_v4, Ipv4, NfTables, $($name)* }
        suite_tests! { @cell nf_tables_v6, Ipv6, NfTables, $($name)* }
        suite_tests! { @cell legacy_v4, Ipv4, Legacy, $($name)* }
        suite_tests! { @cell legacy_v6, Ipv6, Legacy, $($name)* }
    };
    (@cell $cell:ident, $family:ident, $backend:ident, $($name:ident)*) => {
        mod $cell {
            $(
                #[test]
                fn $name() {
                    super::on(iptables::Family::$family, iptables::Backend::$backend, super::suite::$name);
                }
            )*
        }
    };
}

/// Where the suite runs.
pub(crate) trait World {
    type Runner: Runner;

    fn iptables(&self) -> &Iptables<Self::Runner>;

    /// Creates ipsets, given by name and type, by other means than ours.
    fn create_sets(&self, sets: &[(String, &str)]);

    /// Output of the save program, run without this crate.
    fn saved(&self, args: &[&str]) -> String;

    /// Whether the restore program sets counters at all: `ip6tables-nft-restore` 1.8.9 does not.
    fn keeps_counters(&self) -> bool {
        true
    }

    fn family(&self) -> Family {
        self.iptables().family()
    }

    fn backend(&self) -> Backend {
        self.iptables().backend()
    }

    /// Output of the save program without the comment lines.
    fn rules(&self) -> String {
        self.saved(&[]).split_inclusive('\n').filter(|l| !l.starts_with('#')).collect()
    }
}

pub(crate) fn chain(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

pub(crate) fn rule(text: &str) -> Rule {
    Rule::parse(text).unwrap()
}

/// All sets and chains of the Kubernetes proxy, in one transaction.
pub(crate) fn write_kube_rules(world: &impl World) {
    world.create_sets(&kube::sets(world.family()));
    let mut change = Transaction::new();
    for (table, name, rules) in kube::chains(world.family()) {
        change.table(table).replace_chain(&name, rules);
    }
    world.iptables().restore(&change).unwrap();
    for (table, from, rules) in kube::jumps() {
        assert_eq!(world.iptables().ensure_leading(&table, &from, &rules).unwrap(), Ensured::Added);
    }
}

pub(crate) fn kube_rules_are_read_back_as_they_were_written(world: &impl World) {
    write_kube_rules(world);
    let before = world.rules();
    let dump = Dump::parse(&before).unwrap();
    for (table, name, rules) in kube::chains(world.family()) {
        let seen = &dump.table(&table).unwrap().chain(name.as_str()).unwrap().rules;
        assert_eq!(seen.len(), rules.len(), "{table} {name}");
        for (seen, wanted) in seen.iter().zip(&rules) {
            assert_eq!(seen.canonical().to_string(), wanted.canonical().to_string());
            assert_eq!(seen.canonical(), wanted.canonical());
        }
        // So nothing is written a second time.
        assert_eq!(world.iptables().ensure_chain_rules(&table, &name, &rules).unwrap(), Ensured::AlreadyThere);
    }
    for (table, from, rules) in kube::jumps() {
        assert!(dump.table(&table).unwrap().chain(from.as_str()).unwrap().same_rules(&rules), "{before}");
        assert_eq!(world.iptables().ensure_leading(&table, &from, &rules).unwrap(), Ensured::AlreadyThere);
    }
    assert_eq!(world.rules(), before);
}

pub(crate) fn dumps_are_printed_byte_for_byte(world: &impl World) {
    write_kube_rules(world);
    let mut change = Transaction::new();
    let table = change.table(TableName::FILTER);
    table.chain(chain("QUOTES"));
    for comment in ["plain", "with space", "it's \"quoted\" \\ back", "", "ünïcode", "a,b;c|d&e", "#hash", "[1:2]"] {
        table.edit(Edit::Append(chain("QUOTES"), Rule::builder().comment(comment).target("ACCEPT").build().unwrap()));
    }
    table.edit(Edit::Append(chain("QUOTES"), rule("-p tcp --dport 80 -j LOG --log-prefix \"a b \" --log-level 6")));
    table.edit(Edit::Append(
        chain("QUOTES"),
        rule("-p tcp -m multiport --dports 80,443 -m limit --limit 3/min -j ACCEPT"),
    ));
    // A rule that only counts.
    table.edit(Edit::Append(chain("QUOTES"), Rule::from_args([""; 0]).unwrap()));
    world.iptables().restore(&change).unwrap();
    for args in [&[][..], &["-c"], &["-t", "nat"]] {
        let text = world.saved(args);
        assert!(text.contains("*nat\n"), "{text}");
        assert_eq!(Dump::parse(&text).unwrap().to_string(), text);
    }
}

/// Texts that would mean something if anything read them as more than a comment.
pub(crate) const HOSTILE: &[&str] = &[
    "\"",
    "\\",
    "\\\"",
    "\" -j DROP",
    "\\\" -j DROP",
    "a\" -j DROP -m comment --comment \"b",
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "; rm -rf / #",
    "'",
    "' -j DROP '",
    "-j DROP",
    "-t nat",
    "--table=nat",
    "!",
    "--",
    "-",
    "COMMIT",
    "*filter",
    ":INPUT DROP [0:0]",
    "# comment",
    " leading and trailing ",
    "tab\there",
    "carriage\rreturn",
    "%s%n%d",
    "\u{1b}[31mred",
    "..\u{202e}override",
    "\u{7f}",
    "a\\",
    "\\n",
    "[5:6]",
];

pub(crate) fn hostile_comments_stay_comments(world: &impl World) {
    let iptables = world.iptables();
    let long = "x".repeat(255);
    let many_quotes = "\"".repeat(255);
    let texts: Vec<&str> = HOSTILE.iter().copied().chain([long.as_str(), many_quotes.as_str()]).collect();
    let rules: Vec<Rule> = texts.iter().map(|t| Rule::builder().comment(t).target("ACCEPT").build().unwrap()).collect();
    let mut change = Transaction::new();
    change.table(TableName::FILTER).replace_chain(&chain("HOSTILE"), rules.clone());
    iptables.restore(&change).unwrap();
    let dump = iptables.dump().unwrap();
    let seen = &dump.table(&TableName::FILTER).unwrap().chain("HOSTILE").unwrap().rules;
    assert_eq!(seen.len(), texts.len());
    for (seen, text) in seen.iter().zip(&texts) {
        assert_eq!((seen.comment(), seen.target()), (Some(*text), Some("ACCEPT")));
    }
    assert_eq!(dump.rule_count(), texts.len(), "no rule anywhere else");
    // Found and deleted by their meaning.
    for rule in &rules {
        assert_eq!(iptables.delete_rule(&TableName::FILTER, &chain("HOSTILE"), rule).unwrap(), 1, "{rule}");
    }
    assert_eq!(iptables.dump().unwrap().rule_count(), 0);
}

/// Applies a transaction that must fail: the failure names this line, shows it, and the tables are as before.
#[track_caller]
fn fails(world: &impl World, kind: ErrorKind, line: usize, change: &Transaction) -> Error {
    let before = world.rules();
    let text = change.to_string();
    let error = world.iptables().restore(change).unwrap_err();
    let failure = error.failure().unwrap_or_else(|| panic!("no failure in {error:?}"));
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(failure.line, Some(line), "{error}");
    assert_eq!(failure.text.as_deref(), text.lines().nth(line - 1), "{error}");
    assert!(error.to_string().contains(&format!("line {line}")), "{error}");
    if failure.committed.is_empty() {
        let strip = |text: &str| text.replace(" [0:0]", "");
        // A failed run may have brought an empty table into being, never a rule or chain.
        let mine = |text: &str| {
            strip(text)
                .lines()
                .filter(|l| l.starts_with('-') || l.ends_with(" -"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(mine(&world.rules()), mine(&before), "{error}");
    }
    error
}

/// The line that a back end names when it finds the error only at commit: ours, or that of `COMMIT`.
fn commit_line(world: &impl World, ours: usize, commit: usize) -> usize {
    if world.backend() == Backend::Legacy { commit } else { ours }
}

pub(crate) fn failures_name_the_line_and_change_nothing(world: &impl World) {
    let edits = |edits: &[Edit]| {
        let mut change = Transaction::new();
        let table = change.table(TableName::FILTER);
        table.chain(chain("ONE")).chain(chain("TWO"));
        for edit in edits {
            table.edit(edit.clone());
        }
        change
    };
    let append = |to: &str, text: &str| Edit::Append(chain(to), rule(text));
    // Lines: 1 table, 2 and 3 chains, 4 first edit.
    fails(
        world,
        ErrorKind::ChainMissing,
        5,
        &edits(&[append("ONE", "-j ACCEPT"), append("ONE", "-j NO-SUCH-CHAIN"), append("TWO", "-j ACCEPT")]),
    );
    fails(
        world,
        ErrorKind::ChainMissing,
        5,
        &edits(&[append("ONE", "-j ACCEPT"), append("NO-SUCH-CHAIN", "-j ACCEPT")]),
    );
    fails(world, ErrorKind::ExtensionMissing, 4, &edits(&[append("ONE", "-m nosuchmatch -j ACCEPT")]));
    fails(world, ErrorKind::SetMissing, 4, &edits(&[append("ONE", "-m set --match-set nosuchset dst -j ACCEPT")]));
    fails(world, ErrorKind::RuleMissing, 4, &edits(&[Edit::Delete(chain("ONE"), rule("-j ACCEPT"))]));
    // A table is changed only if a rule is there.
    let checked = |text: &str| edits(&[append("ONE", "-p 6 -j ACCEPT"), Edit::Check(chain("ONE"), rule(text))]);
    fails(world, ErrorKind::RuleMissing, 5, &checked("-j ACCEPT"));
    world.iptables().restore(&checked("-p tcp -j ACCEPT")).unwrap();
    assert!(world.rules().contains("-A ONE -p "), "{}", world.rules());
    fails(world, ErrorKind::ChainInUse, 5, &edits(&[append("ONE", "-j TWO"), Edit::DeleteChain(chain("TWO"))]));
    fails(world, ErrorKind::ChainInUse, 5, &edits(&[append("ONE", "-j ACCEPT"), Edit::DeleteChain(chain("ONE"))]));
    fails(world, ErrorKind::ChainMissing, 4, &edits(&[Edit::DeleteChain(chain("THREE"))]));
    fails(world, ErrorKind::ChainMissing, 4, &edits(&[Edit::Flush(chain("THREE"))]));
    fails(world, ErrorKind::Rejected, 4, &edits(&[Edit::Insert(chain("ONE"), 3, rule("-j ACCEPT"))]));
    fails(world, ErrorKind::Rejected, 4, &edits(&[Edit::NewChain(chain("ONE"))]));
    fails(world, ErrorKind::Rejected, 4, &edits(&[Edit::SetPolicy(chain("ONE"), Policy::Drop)]));
    // A loop of chains. Found at commit.
    let error = fails(
        world,
        ErrorKind::Rejected,
        commit_line(world, 6, 7),
        &edits(&[append("INPUT", "-j ONE"), append("ONE", "-j TWO"), append("TWO", "-j ONE")]),
    );
    assert_eq!(error.failure().unwrap().table, Some(TableName::FILTER));
    // No masquerading outside nat. Found at commit.
    fails(world, ErrorKind::Rejected, commit_line(world, 4, 5), &edits(&[append("ONE", "-j MASQUERADE")]));
    // No such table.
    let mut change = Transaction::new();
    change.table(TableName::new("nosuchtable").unwrap()).chain(chain("ONE"));
    fails(world, ErrorKind::NoKernelSupport, 1, &change);
    assert_eq!(
        world.iptables().dump_table(&TableName::new("nosuchtable").unwrap()).unwrap_err().kind(),
        ErrorKind::NoKernelSupport
    );
}

pub(crate) fn tables_before_a_failure_stay(world: &impl World) {
    let mut change = Transaction::new();
    change.table(TableName::NAT).replace_chain(&chain("KEPT"), [rule("-j RETURN")]);
    change.table(TableName::FILTER).replace_chain(&chain("LOST"), [rule("-j RETURN"), rule("-j NO-SUCH-CHAIN")]);
    change.table(TableName::MANGLE).replace_chain(&chain("NEVER"), [rule("-j RETURN")]);
    let error = fails(world, ErrorKind::ChainMissing, 8, &change);
    let failure = error.failure().unwrap();
    assert_eq!((&failure.table, &failure.committed), (&Some(TableName::FILTER), &vec![TableName::NAT]));
    let dump = world.iptables().dump().unwrap();
    assert!(dump.has_chain(&TableName::NAT, "KEPT"));
    assert!(!dump.has_chain(&TableName::FILTER, "LOST"));
    assert!(!dump.has_chain(&TableName::MANGLE, "NEVER"));
}

pub(crate) fn others_are_left_alone(world: &impl World) {
    let iptables = world.iptables();
    let mut theirs = Transaction::new();
    theirs
        .table(TableName::FILTER)
        .replace_chain(&chain("THEIRS"), [rule("-p tcp --dport 22 -j ACCEPT")])
        .replace_chain(&chain("OURS"), [rule("-j RETURN"), rule("-j DROP")])
        .edit(Edit::Append(chain("INPUT"), rule("-j THEIRS")))
        .edit(Edit::SetPolicy(chain("FORWARD"), Policy::Drop));
    iptables.restore(&theirs).unwrap();
    let mut ours = Transaction::new();
    ours.table(TableName::FILTER).replace_chain(&chain("OURS"), [rule("-j ACCEPT")]);
    iptables.restore(&ours).unwrap();
    let dump = iptables.dump().unwrap();
    let table = dump.table(&TableName::FILTER).unwrap();
    assert!(table.chain("THEIRS").unwrap().same_rules(&[rule("-p tcp --dport 22 -j ACCEPT")]));
    assert!(table.chain("OURS").unwrap().same_rules(&[rule("-j ACCEPT")]), "a chain line flushes the chain");
    assert!(table.chain("INPUT").unwrap().same_rules(&[rule("-j THEIRS")]));
    assert_eq!(table.chain("FORWARD").unwrap().policy, Some(Policy::Drop));
    assert_eq!(table.chain("INPUT").unwrap().policy, Some(Policy::Accept));
}

pub(crate) fn chains_and_rules_are_ensured(world: &impl World) {
    let iptables = world.iptables();
    let (filter, input, mine) = (TableName::FILTER, chain("INPUT"), chain("MINE"));
    let jump = rule("-m comment --comment \"my rules\" -j MINE");
    assert_eq!(
        iptables.ensure_rule(&filter, &input, &jump, Position::First).unwrap_err().kind(),
        ErrorKind::ChainMissing
    );
    assert_eq!(iptables.ensure_chain(&filter, &mine).unwrap(), Ensured::Added);
    assert_eq!(iptables.ensure_chain(&filter, &mine).unwrap(), Ensured::AlreadyThere);
    assert_eq!(
        iptables.ensure_rule(&filter, &input, &rule("-p udp -j ACCEPT"), Position::Last).unwrap(),
        Ensured::Added
    );
    assert_eq!(iptables.ensure_rule(&filter, &input, &jump, Position::Last).unwrap(), Ensured::Added);
    assert_eq!(
        iptables.ensure_rule(&filter, &input, &rule("-i lo -j ACCEPT"), Position::First).unwrap(),
        Ensured::Added
    );
    let order = || -> Vec<String> {
        let table = iptables.dump_table(&filter).unwrap();
        table.chain("INPUT").unwrap().rules.iter().map(|r| r.canonical().to_string()).collect()
    };
    let jump_text = jump.canonical().to_string();
    assert_eq!(order(), ["-i lo -j ACCEPT".to_owned(), "-p udp -j ACCEPT".to_owned(), jump_text.clone()]);
    // Present means: of the same meaning. It keeps its place.
    let spelled = rule("--jump MINE -m comment --comment \"my rules\" -s 0.0.0.0/0");
    assert_eq!(iptables.ensure_rule(&filter, &input, &spelled, Position::First).unwrap(), Ensured::AlreadyThere);
    assert_eq!(order().last(), Some(&jump_text));
    // Unless it must lead; doubles go.
    let mut change = Transaction::new();
    change.table(filter.clone()).edit(Edit::Append(input.clone(), jump.clone()));
    iptables.restore(&change).unwrap();
    assert_eq!(order().len(), 4);
    assert_eq!(iptables.ensure_leading(&filter, &input, std::slice::from_ref(&jump)).unwrap(), Ensured::Added);
    assert_eq!(order(), [jump_text.clone(), "-i lo -j ACCEPT".to_owned(), "-p udp -j ACCEPT".to_owned()]);
    assert_eq!(iptables.ensure_leading(&filter, &input, std::slice::from_ref(&jump)).unwrap(), Ensured::AlreadyThere);
    // With counters, as `iptables -S -v` prints them.
    let counted = rule("-c 5 6 -p sctp -j ACCEPT");
    assert_eq!(iptables.ensure_rule(&filter, &input, &counted, Position::Last).unwrap(), Ensured::Added);
    assert_eq!(iptables.ensure_rule(&filter, &input, &counted, Position::Last).unwrap(), Ensured::AlreadyThere);
    assert_eq!(iptables.delete_rule(&filter, &input, &counted).unwrap(), 1);
    assert_eq!(iptables.delete_rule(&filter, &input, &counted).unwrap(), 0);
    // A chain in use cannot go, and the error says whose jumps hold it.
    let error = iptables.delete_chain(&filter, &mine).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainInUse);
    assert!(error.to_string().contains("INPUT"), "{error}");
    assert_eq!(iptables.delete_rule(&filter, &input, &spelled).unwrap(), 1);
    assert_eq!(iptables.delete_rule(&filter, &input, &spelled).unwrap(), 0);
    assert_eq!(iptables.delete_rule(&filter, &chain("NOWHERE"), &spelled).unwrap(), 0);
    assert!(iptables.delete_chain(&filter, &mine).unwrap());
    assert!(!iptables.delete_chain(&filter, &mine).unwrap());
    assert_eq!(order(), ["-i lo -j ACCEPT", "-p udp -j ACCEPT"]);
}

pub(crate) fn counters_are_set_and_read(world: &impl World) {
    let iptables = world.iptables();
    let (one, two) = (Counters { packets: 12, bytes: 3456 }, Counters { packets: 1, bytes: 40 });
    let mut change = Transaction::new();
    change
        .table(TableName::FILTER)
        .replace_chain(&chain("COUNTED"), [rule("-s 192.0.2.1 -j ACCEPT").with_counters(one)])
        .edit(Edit::Insert(chain("COUNTED"), 1, rule("-j RETURN").with_counters(two)))
        .edit(Edit::Append(chain("COUNTED"), rule("-j DROP")));
    if world.family() == Family::Ipv6 {
        change = Transaction::new();
        change
            .table(TableName::FILTER)
            .replace_chain(&chain("COUNTED"), [rule("-s 2001:db8::1 -j ACCEPT").with_counters(one)])
            .edit(Edit::Insert(chain("COUNTED"), 1, rule("-j RETURN").with_counters(two)))
            .edit(Edit::Append(chain("COUNTED"), rule("-j DROP")));
    }
    iptables.restore(&change).unwrap();
    let counters = |dump: Dump| -> Vec<Option<Counters>> {
        dump.table(&TableName::FILTER).unwrap().chain("COUNTED").unwrap().rules.iter().map(|r| r.counters).collect()
    };
    let zero = Counters::default();
    let (one, two) = if world.keeps_counters() { (one, two) } else { (zero, zero) };
    assert_eq!(counters(iptables.dump_with_counters().unwrap()), [Some(two), Some(one), Some(zero)]);
    assert_eq!(counters(iptables.dump().unwrap()), [None, None, None]);
}

pub(crate) fn names_at_their_limit(world: &impl World) {
    let iptables = world.iptables();
    let longest = chain(&"C".repeat(28));
    assert_eq!(iptables.ensure_chain(&TableName::FILTER, &longest).unwrap(), Ensured::Added);
    assert_eq!(ChainName::new("C".repeat(29)).unwrap_err().kind(), ErrorKind::InvalidName);
    let odd = chain("a.b:c/d$e'f[g]#h");
    let jump = Rule::builder().jump(&odd).build().unwrap();
    assert_eq!(iptables.ensure_chain(&TableName::FILTER, &odd).unwrap(), Ensured::Added);
    assert_eq!(iptables.ensure_rule(&TableName::FILTER, &longest, &jump, Position::Last).unwrap(), Ensured::Added);
    assert!(
        iptables
            .dump()
            .unwrap()
            .table(&TableName::FILTER)
            .unwrap()
            .chain(longest.as_str())
            .unwrap()
            .same_rules(&[jump])
    );
    assert_eq!(Rule::builder().comment(&"c".repeat(256)).build().unwrap_err().kind(), ErrorKind::InvalidToken);
}

pub(crate) fn a_line_too_long_is_refused(world: &impl World) {
    // Would be cut at 10,239 bytes, and the rest be taken for a command.
    let args: Vec<String> = (0..11)
        .flat_map(|_| ["-m".to_owned(), "comment".to_owned(), "--comment".to_owned(), "y".repeat(1000)])
        .collect();
    let mut change = Transaction::new();
    change.table(TableName::FILTER).replace_chain(&chain("LONG"), [Rule::from_args(args).unwrap()]);
    assert_eq!(world.iptables().restore(&change).unwrap_err().kind(), ErrorKind::InvalidToken);
    assert!(!world.iptables().dump().unwrap().has_chain(&TableName::FILTER, "LONG"));
}

pub(crate) fn many_chains_are_written_in_parts(world: &impl World) {
    let mut whole = Transaction::new();
    let nat = whole.table(TableName::NAT);
    let services: Vec<String> = (0..7).map(|service| format!("SVC-{service}")).collect();
    nat.replace_chain(&chain("HUB"), services.iter().map(|service| rule(&format!("-j {service}"))));
    nat.replace_chain(&chain("MASQ"), [rule("-j MARK --set-xmark 0x4000/0x4000")]);
    for service in &services {
        // It leads to later chains, with goto too, and to an earlier one.
        let ends = [format!("{service}-A"), format!("{service}-B")];
        nat.replace_chain(
            &chain(service),
            [format!("-g {}", ends[0]), format!("-j {}", ends[1])].map(|text| rule(&text)),
        );
        for end in &ends {
            nat.replace_chain(&chain(end), [rule("-j MASQ"), rule("-j RETURN")]);
        }
    }
    nat.edit(Edit::Append(chain("OUTPUT"), rule("-j HUB")));
    whole.table(TableName::FILTER).replace_chain(&chain("OTHER"), []);
    let divide = |most| whole.clone().divide(most, |_, chain| chain.as_str() != "HUB" && chain.as_str() != "OTHER");
    assert_eq!(divide(22), [whole.clone()]);
    assert_eq!(Transaction::new().divide(0, |_, _| true), []);
    let parts = divide(5);
    let chains: Vec<usize> = parts.iter().flat_map(Transaction::tables).map(|table| table.chains().count()).collect();
    // The mark and a Service, then two each; targets such as RETURN count. The last part connects them.
    assert_eq!(chains, [4, 6, 6, 6, 1, 1]);
    let (last, first) = parts.split_last().unwrap();
    for part in first {
        world.iptables().restore(part).unwrap();
    }
    assert!(!world.rules().contains("HUB"), "{}", world.rules());
    world.iptables().restore(last).unwrap();
    let divided = world.rules();
    let mut again = whole.clone();
    again.table(TableName::NAT).edit(Edit::Delete(chain("OUTPUT"), rule("-j HUB")));
    world.iptables().restore(&again).unwrap();
    assert_eq!(world.rules(), divided);

    // Chains that exist count too if a rule jumps to them. What is deleted comes last: rules that lead there, its own,
    // the chains.
    let mut change = Transaction::new();
    let nat = change.table(TableName::NAT);
    for service in &services[..6] {
        nat.replace_chain(&chain(service), [rule(&format!("-j {service}-B"))]);
        nat.chain(chain(&format!("{service}-A"))).edit(Edit::DeleteChain(chain(&format!("{service}-A"))));
    }
    let parts = change.clone().divide(4, |_, _| true);
    let edits: Vec<usize> = parts.iter().flat_map(Transaction::tables).map(|table| table.edits().len()).collect();
    assert_eq!(edits, [2, 2, 2, 4, 2, 4, 2]);
    for part in &parts {
        world.iptables().restore(part).unwrap();
    }
    let divided = world.rules();
    let mut gone = Transaction::new();
    let nat = gone.table(TableName::NAT);
    for service in &services[..5] {
        let (service, end) = (chain(service), chain(&format!("{service}-B")));
        nat.edit(Edit::Delete(chain("HUB"), rule(&format!("-j {service}"))));
        nat.delete_chain(end.clone()).delete_chain(service);
    }
    nat.edit(Edit::Append(chain("HUB"), rule("-j RETURN")));
    let parts = gone.clone().divide(4, |_, chain| chain.as_str() != "SVC-4");
    let edits: Vec<usize> = parts.iter().flat_map(Transaction::tables).map(|table| table.edits().len()).collect();
    // What is not free is in the first.
    assert_eq!(edits, [4, 4, 4, 4, 1, 4, 4, 1]);
    for part in &parts {
        world.iptables().restore(part).unwrap();
    }
    let hub: Vec<String> = world.rules().lines().filter(|line| line.contains("SVC-4")).map(str::to_owned).collect();
    assert_eq!(hub, [""; 0]);
    world.iptables().restore(&whole).unwrap();
    world.iptables().restore(&change).unwrap();
    assert_eq!(world.rules().replace("-A OUTPUT -j HUB\n-A OUTPUT -j HUB\n", "-A OUTPUT -j HUB\n"), divided);

    // A chain that is made again after its deletion stays.
    let mut anew = Transaction::new();
    let nat = anew.table(TableName::NAT);
    for service in services[..5].iter().map(|service| chain(service)) {
        nat.edit(Edit::Delete(chain("HUB"), rule(&format!("-j {service}")))).delete_chain(service);
    }
    nat.edit(Edit::NewChain(chain("SVC-0"))).edit(Edit::Append(chain("SVC-0"), rule("-j RETURN")));
    let parts = anew.divide(4, |_, _| true);
    assert!(parts.len() > 2, "{parts:?}");
    for part in &parts {
        world.iptables().restore(part).unwrap();
    }
    let rules = world.rules();
    assert!(rules.contains("-A SVC-0 -j RETURN\n") && !rules.contains("-j SVC-1\n"), "{rules}");
}

pub(crate) fn the_kernel_is_checked_without_a_change(world: &impl World) {
    world.iptables().check_kernel().unwrap();
    assert!(!world.rules().lines().any(|l| l.starts_with('-')));
}

pub(crate) fn an_empty_transaction_does_nothing(world: &impl World) {
    let mut change = Transaction::new();
    change.table(TableName::FILTER);
    assert!(change.is_empty());
    world.iptables().restore(&change).unwrap();
    assert_eq!(world.rules(), "");
}

/// `flush` deletes all tables by other means than ours.
pub(crate) fn a_canary_tells_of_a_flush<W: World>(world: &W, flush: impl Fn(&W)) {
    let iptables = world.iptables();
    let canary = Canary::new(chain("MY-CANARY"));
    assert_eq!(canary.check(iptables).unwrap(), CanaryState::Flushed, "not planted yet");
    assert_eq!(canary.plant(iptables).unwrap(), Ensured::Added);
    assert_eq!(canary.plant(iptables).unwrap(), Ensured::AlreadyThere);
    assert_eq!(canary.check(iptables).unwrap(), CanaryState::Intact);
    let mut one = Transaction::new();
    one.table(TableName::NAT).edit(Edit::Flush(chain("MY-CANARY")));
    iptables.restore(&one).unwrap();
    assert_eq!(
        canary.check(iptables).unwrap(),
        CanaryState::Partial(vec![TableName::NAT]),
        "a flush that leaves chains"
    );
    flush(world);
    assert_eq!(canary.check(iptables).unwrap(), CanaryState::Flushed);
    assert_eq!(canary.plant(iptables).unwrap(), Ensured::Added);
    assert_eq!(canary.check(iptables).unwrap(), CanaryState::Intact);
    canary.remove(iptables).unwrap();
    canary.remove(iptables).unwrap();
    assert!(!world.rules().contains("MY-CANARY"));
}
