//! ipvsadm's text against ipvsadm: what we write it reads, what it prints we would have written, what people write means the
//! same to both.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use ipvs::text::{Ruleset, Statement, parse_batch};
use ipvs::{Batch, Client, Scheduler, SchedulerFlags};
use testkit::{Need, kernel_test, missing, oracle};

const NEEDS: &[Need] = &[Need::Root, Need::IpVs, Need::Tool("ipvsadm")];

/// Lines of `ipvsadm -S -n`, in an order of their own.
fn saved() -> Vec<String> {
    sorted(&oracle::ipvsadm_save().unwrap())
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn clear() {
    oracle::ipvsadm_restore("-C\n").unwrap();
}

/// Schedulers of this kernel: all, but `twos` only where the kernel was built with it, which is not everywhere.
fn schedulers() -> Vec<Scheduler> {
    let mut schedulers = Scheduler::KNOWN.to_vec();
    if missing(Need::Scheduler("twos")).is_some() {
        schedulers.retain(|scheduler| *scheduler != Scheduler::PowerOfTwoChoices);
    }
    schedulers
}

/// The lines that ipvsadm prints for a table: without thresholds and the third flag of two schedulers, and with a mark
/// above 2³¹ as a negative number.
fn printed_by_ipvsadm(rules: &Ruleset) -> Vec<String> {
    let mut rules = rules.clone();
    for entry in &mut rules.entries {
        let config = &mut entry.virtual_server.config;
        if matches!(config.scheduler, Scheduler::SourceHashing | Scheduler::MaglevHashing) {
            config.scheduler_flags.remove(SchedulerFlags::FLAG_3);
        }
        for real in &mut entry.real_servers {
            real.config.thresholds = ipvs::model::Thresholds::NONE;
        }
    }
    sorted(&rules.to_string().replace("-f 4000000000", "-f -294967296"))
}

fn in_order(mut rules: Ruleset) -> Ruleset {
    rules.sort();
    rules
}

fn kernel_has() -> Ruleset {
    in_order(Ruleset::from(&Client::open().unwrap().snapshot().unwrap()))
}

/// The kernel's table after a text, by ipvsadm and by this crate, as ipvsadm prints it with thresholds.
fn both(text: &str) -> [(Vec<String>, Ruleset); 2] {
    clear();
    oracle::ipvsadm_restore(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let theirs = (saved(), kernel_has());
    clear();
    let batch = parse_batch(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    Client::open().unwrap().run(&batch).into_result().unwrap_or_else(|error| panic!("{text}\n{error}"));
    [theirs, (saved(), kernel_has())]
}

#[test]
fn what_people_write_means_the_same_to_both() {
    kernel_test(NEEDS, || {
        let each_scheduler = schedulers().into_iter().map(|scheduler| format!("-A -t 10.0.0.1:80 -s {scheduler}"));
        let spaced = "ipvsadm -A -t 10.0.0.1:80 --scheduler=fo\r\n\n   \tipvsadm -a -t 10.0.0.1:80 -r 10.1.0.1:80 -x 5";
        let texts = include_str!("statements/taken.txt").split("\n\n").chain([spaced]);
        for text in texts.map(str::to_owned).chain(each_scheduler) {
            let [theirs, ours] = both(&format!("{text}\n"));
            assert_eq!(theirs, ours, "{text}");
            assert!(!ours.0.is_empty(), "{text}");
            // ipvsadm prints the table as we would, and reads what we write of it.
            let table = &ours.1;
            assert_eq!(ours.0, printed_by_ipvsadm(table), "{text}");
            clear();
            oracle::ipvsadm_restore(&table.to_string()).unwrap_or_else(|error| panic!("{table}\n{error}"));
            assert_eq!((saved(), kernel_has()), ours, "{text}");
        }
    });
}

#[test]
fn what_ipvsadm_refuses_we_refuse() {
    kernel_test(NEEDS, || {
        for text in include_str!("statements/refused.txt").lines() {
            let refused = oracle::ipvsadm_restore(&format!("{text}\n"));
            assert!(refused.is_err(), "ipvsadm takes it: {text}");
            assert!(text.parse::<Statement>().is_err(), "we take it: {text}");
        }
        assert!(saved().is_empty());
    });
}

#[test]
fn our_own_words_are_refused_loudly_by_ipvsadm() {
    kernel_test(NEEDS, || {
        for text in include_str!("statements/ours.txt").lines() {
            let statement: Statement = text.parse().unwrap();
            assert_eq!(statement.to_string(), text);
            assert!(oracle::ipvsadm_restore(&format!("{text}\n")).is_err(), "ipvsadm takes it: {text}");
        }
        assert!(saved().is_empty());
    });
}

#[test]
fn a_table_of_the_kernel_comes_back_exactly_through_our_text() {
    kernel_test(NEEDS, || {
        // Direct routing to another port: ipvsadm's own save and restore would lose it.
        let text = "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:81 --forward route -w 1\n-a -t 10.0.0.1:80 -r 10.1.0.2:80 --forward local -w 2\n";
        let rules: Ruleset = text.parse().unwrap();
        let mut client = Client::open().unwrap();
        client.run(&Batch::from(&rules)).into_result().unwrap();
        let read = kernel_has();
        assert_eq!(read, in_order(rules));
        clear();
        client.run(&Batch::from(&read.to_string().parse::<Ruleset>().unwrap())).into_result().unwrap();
        assert_eq!(kernel_has(), read);
    });
}
