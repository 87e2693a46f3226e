//! `Loader`: what is started, for how long, and what is believed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::Tree;
use kmod_probe::{LoadResult, Loader, ModuleName, RunOutcome, Runner, SystemRunner};

/// Notes what it is asked to run and "loads" a module by writing `/proc/modules` of a tree.
struct Scripted {
    modules: Option<PathBuf>,
    outcome: RunOutcome,
    ran: Vec<Vec<String>>,
}

impl Runner for &mut Scripted {
    fn run(&mut self, program: &Path, arguments: &[&str], _: Duration) -> RunOutcome {
        self.ran.push(
            std::iter::once(program.to_str().unwrap()).chain(arguments.iter().copied()).map(Into::into).collect(),
        );
        if let Some(path) = &self.modules {
            std::fs::write(path, format!("{} 1 0 - Live 0x0\n", arguments.last().unwrap())).unwrap();
        }
        self.outcome.clone()
    }
}

fn ended(code: i32, stderr: &str) -> RunOutcome {
    RunOutcome::Ended { code: Some(code), stderr: stderr.to_owned() }
}

fn load(tree: &Tree, writes: bool, outcome: RunOutcome, module: &str) -> (LoadResult, Vec<Vec<String>>) {
    let modules = writes.then(|| tree.root.join("proc/modules"));
    let mut runner = Scripted { modules, outcome, ran: Vec::new() };
    let outcomes = Loader::with_runner(&mut runner).root(&tree.root).load_all(&[ModuleName::new(module).unwrap()]);
    (outcomes[0].result.clone(), runner.ran)
}

#[test]
fn what_is_run_and_what_is_believed() {
    let tree = Tree::of("ubuntu-24.04-aws");
    let root = tree.root.to_str().unwrap();
    let (result, ran) = load(&tree, true, ended(0, ""), "ip-vs");
    assert_eq!(result, LoadResult::Loaded);
    let [command] = &ran[..] else { panic!("{ran:?}") };
    assert!(Path::new(&command[0]).is_absolute() && command[0].ends_with("/modprobe"), "{command:?}");
    assert_eq!(command[1..], ["-d", root, "--", "ip_vs"]);

    let (result, ran) = load(&tree, false, ended(0, ""), "ip_vs");
    assert_eq!((result, ran.len()), (LoadResult::AlreadyThere, 0), "nothing is started for a module that is there");

    let (result, _) = load(&tree, false, ended(0, ""), "ip_vs_rr");
    assert_eq!(result, LoadResult::NotSeen, "success is believed only when the module is there");
    let (result, _) = load(&tree, false, ended(1, "FATAL: Module ip_vs_rr not found"), "ip_vs_rr");
    assert_eq!(result, LoadResult::Failed { code: Some(1), message: "FATAL: Module ip_vs_rr not found".into() });
    let (result, _) = load(&tree, false, RunOutcome::TimedOut, "ip_vs_rr");
    assert_eq!(result, LoadResult::TimedOut);

    tree.remove("proc/modules").remove("proc/sys/kernel/modprobe");
    let (result, ran) = load(&tree, false, ended(0, ""), "ip_vs_rr");
    assert_eq!((result, ran.len()), (LoadResult::NotStarted("this kernel loads no modules".to_owned()), 0));
}

#[test]
fn several_modules_cost_one_program() {
    let tree = Tree::of("ubuntu-24.04-aws");
    let names = ["ip_vs", "ip_vs_rr", "no_such", "xt_set"].map(|name| ModuleName::new(name).unwrap());
    // A modprobe that loads the last module, and reports that another is missing.
    let modules = Some(tree.root.join("proc/modules"));
    let mut runner = Scripted { modules, outcome: ended(1, "no_such not found"), ran: Vec::new() };
    let outcomes = Loader::with_runner(&mut runner).root(&tree.root).load_all(&names);
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.module.as_str() == name).unwrap().result.clone();
    let failed = LoadResult::Failed { code: Some(1), message: "no_such not found".into() };
    assert_eq!(outcomes.len(), 4);
    assert_eq!(
        outcomes[1].to_string(),
        format!("{}: modprobe failed with code 1: no_such not found", outcomes[1].module)
    );
    assert_eq!([of("ip_vs_rr"), of("no_such"), of("xt_set")], [failed.clone(), failed, LoadResult::Loaded]);
    let [command] = &runner.ran[..] else { panic!("{:?}", runner.ran) };
    let missing = if of("ip_vs") == LoadResult::AlreadyThere { &names[1..] } else { &names[..] };
    let missing: Vec<&str> = missing.iter().map(ModuleName::as_str).collect();
    assert_eq!(command[3..], [["-a", "--"].as_slice(), missing.as_slice()].concat());

    let mut runner = Scripted { modules: None, outcome: ended(0, ""), ran: Vec::new() };
    let there = [ModuleName::new("xt_set").unwrap()];
    let outcomes = Loader::with_runner(&mut runner).root(&tree.root).load_all(&there);
    assert_eq!((outcomes[0].result.clone(), runner.ran.len()), (LoadResult::AlreadyThere, 0));
}

#[test]
fn programs_have_bounded_time_output_and_environment() {
    let sh = Path::new("/bin/sh");
    let minute = Duration::from_secs(60);
    let run = |script: &str, limit| SystemRunner.run(sh, &["-c", script], limit);

    let started = Instant::now();
    // The grandchild keeps the pipe open; it has to end with its parent.
    assert_eq!(run("sleep 100 & sleep 100", Duration::from_millis(200)), RunOutcome::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(20));

    assert_eq!(run("echo \"$LC_ALL:$HOME:$PATH\" >&2; exit 3", minute), ended(3, "C::/usr/sbin:/usr/bin:/sbin:/bin"));
    let RunOutcome::Ended { code: Some(0), stderr } = run("yes many | head -c 1000000 >&2", minute) else {
        panic!("a program that writes much has to come to its end");
    };
    assert_eq!(stderr.len(), 4096, "only the beginning is kept");
    assert_eq!(run("kill -9 $$", minute), RunOutcome::Ended { code: None, stderr: String::new() });
    assert!(matches!(SystemRunner.run(Path::new("/no/such/modprobe"), &[], minute), RunOutcome::NotStarted(_)));
}
