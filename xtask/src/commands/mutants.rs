//! `cargo xtask mutants`: which changes of the code no test would notice.
//!
//! cargo-mutants makes the changes, each alone, in a copy of the sources: another operator, a missing arm of a match, a function that
//! gives a fixed value. Here is what it is started with: for each part of the code the tests that have to notice. They need neither
//! root nor a kernel, but for modes whose rules only packets can judge. `.cargo/mutants.toml` says what is left out, and why.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::cargo;
use crate::error::{Context as _, Error, Result};
use crate::tools;
use crate::turns::SEED;

pub(crate) const HELP: &str = "\
Usage: cargo xtask mutants [OPTIONS] [PART]...

Changes the code in many small ways, each alone and in a copy, and runs its tests: a change that none of them notices is a survivor.
Prints the survivors, and how many changes were noticed, of those that compile. Needs cargo-mutants (cargo install cargo-mutants
--locked); nftables-mode and iptables-mode need root too, because packets through this machine's kernel judge their rules. Parts,
or packages for all of their parts; everything unless told:

  netlink-batch ipvs ipset iptables
  proxier-core: service ipvs-mode nftables-mode iptables-mode userspace-mode

  --sample N   at least so many changes (or all there are), spread evenly over the sources; 600 unless told, 0 for all
  --seed S     which of them: each seed takes others, until all were taken; 0 unless told
  --again      only changes that survived the last run, or ran out of time

A change after which the tests do not end counts as noticed. What cargo-mutants writes is kept in target/mutants/PART.
Exit codes: 0 nothing survived, 1 something did, 2 bad usage, 125 the tests fail without any change, or could not run.
";

/// Code that the same tests have to notice changes of.
#[derive(Debug)]
struct Part {
    name: &'static str,
    package: &'static str,
    /// Globs; none is the whole package.
    files: &'static [&'static str],
    /// Cargo's options that select the tests. Few programs make it fast: each is linked for each change.
    tests: &'static [&'static str],
}

const PARTS: [Part; 9] = [
    Part {
        name: "netlink-batch",
        package: "netlink-batch",
        files: &[],
        tests: &["--lib", "--test=simulated", "--test=captured", "--test=genl", "--test=prop"],
    },
    Part {
        name: "ipvs",
        package: "ipvs",
        files: &[],
        tests: &[
            "--lib",
            "--test=fake",
            "--test=proc",
            "--test=proc_sysctl",
            "--test=text",
            "--test=values",
            "--test=sync_prop",
        ],
    },
    Part {
        name: "ipset",
        package: "ipset",
        files: &[],
        tests: &[
            "--lib",
            "--test=captured",
            "--test=fake",
            "--test=refusals",
            "--test=values",
            "--test=trouble",
            "--test=prop",
        ],
    },
    Part {
        name: "iptables",
        package: "iptables",
        files: &[],
        tests: &["--lib", "--test=fake", "--test=runner", "--test=canonical", "--test=prop"],
    },
    Part {
        name: "service",
        package: "proxier-core",
        files: &["proxier-core/src/service/**", "proxier-core/src/snapshot/**", "proxier-core/src/config/**"],
        tests: &[
            "--lib",
            "--test=services",
            "--test=oracle",
            "--test=oracle_iptables",
            "--test=policy",
            "--test=trace",
            "--test=frontends",
            "--test=neighbours",
            "--test=balancing",
            "--test=ipvs_split",
            "--test=ipvs_node_ports",
        ],
    },
    Part {
        name: "ipvs-mode",
        package: "proxier-core",
        files: &[
            "proxier-core/src/modes/ipvs/{lower,wanted,diff,sets,servers,steps,binding}.rs",
            "proxier-core/src/modes/ipvs/{plan,rules}/**",
            "proxier-core/src/modes/ipvs/guards/nft/{layout,element,change}.rs",
        ],
        tests: &[
            "--lib",
            "--test=proxier",
            "--test=diff",
            "--test=rules",
            "--test=ipvs_nft",
            "--test=binding",
            "--test=ipvs_split",
            "--test=ipvs_node_ports",
            "--test=services",
            "--test=policy",
            "--test=frontends",
            "--test=incremental",
        ],
    },
    Part {
        name: "nftables-mode",
        package: "proxier-core",
        files: &["proxier-core/src/modes/nftables/{lower,wanted,layout,pick,slots,plan,observed}.rs"],
        tests: &["--lib", "--test=nftables_mode", "--test=kernel_flows_nftables", "--test=kernel_affinity_nftables"],
    },
    Part {
        name: "iptables-mode",
        package: "proxier-core",
        files: &[
            "proxier-core/src/modes/iptables/{service,lines,tables,names,settings,spelling,wanted}.rs",
            "proxier-core/src/modes/iptables/{diff,render,observed,plan,count}.rs",
        ],
        tests: &[
            "--lib",
            "--test=iptables_rules",
            "--test=iptables_mode",
            "--test=oracle_iptables",
            "--test=kernel_flows_iptables",
        ],
    },
    Part {
        name: "userspace-mode",
        package: "proxier-core",
        files: &["proxier-core/src/modes/userspace/{lower,wanted,plan}.rs"],
        tests: &["--lib", "--test=userspace_mode"],
    },
];

/// The options of the command line.
#[derive(Debug)]
struct Options {
    sample: usize,
    seed: u64,
    again: bool,
    parts: Vec<&'static Part>,
}

/// One in so many changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shard {
    first: u64,
    one_in: u64,
}

impl Shard {
    /// The one that takes at least `sample` (0: all) of `total` changes; seeds one after the other take everything once.
    fn of(total: usize, sample: usize, seed: u64) -> Self {
        let one_in = total.checked_div(sample).map_or(1, |times| u64::try_from(times).unwrap_or(u64::MAX)).max(1);
        Self { first: seed % one_in, one_in }
    }
}

/// Outcome of the changes of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    caught: usize,
    /// The tests did not end.
    hung: usize,
    unviable: usize,
    missed: Vec<String>,
}

impl Outcome {
    /// Number of changes that compile.
    fn viable(&self) -> usize {
        self.caught + self.hung + self.missed.len()
    }

    fn line(&self, name: &str) -> String {
        let (noticed, viable) = (self.caught + self.hung, self.viable());
        let tenths = (noticed * 1000).checked_div(viable).unwrap_or(1000);
        format!(
            "{name:<16}{noticed:>6} of {viable:>5}  {:>3}.{} %   {} hung, {} do not compile",
            tenths / 10,
            tenths % 10,
            self.hung,
            self.unviable
        )
    }

    fn add(&mut self, other: &Self) {
        self.caught += other.caught;
        self.hung += other.hung;
        self.unviable += other.unviable;
        self.missed.extend_from_slice(&other.missed);
    }
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let options = parse(arguments)?;
    if tools::find("cargo-mutants").is_none() {
        return Err(Error::new("no cargo-mutants: cargo install cargo-mutants --locked"));
    }
    if let Some(part) = options.parts.iter().find(|part| part.is_on_kernel() && !tools::is_root()) {
        return Err(Error::new(format!("{}: needs root, for packets through this machine's kernel", part.name)));
    }
    let root = super::test::repository()?;
    // A folder of its own: what is built of changed sources must never pass for what a developer builds.
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("mutants");
    let mut plans = Vec::new();
    for part in options.parts {
        let mut filters = part.filters();
        if options.again {
            let survivors = survivors(&target.join(part.name))?;
            if survivors.is_empty() {
                continue;
            }
            filters.extend(survivors.iter().map(|name| format!("--re={}", pattern(name))));
        }
        let count = count(&mut mutants(&root, &target, &filters))?;
        plans.push((part, filters, count));
    }
    let total = plans.iter().map(|(_, _, count)| count).sum();
    let shard = Shard::of(total, if options.again { 0 } else { options.sample }, options.seed);
    println!("{total} changes, of which one in {} is tried, from number {} on", shard.one_in, shard.first);
    let mut outcomes = Vec::new();
    for (part, filters, _) in &plans {
        let start = Instant::now();
        let mut command = mutants(&root, &target, filters);
        command.args(part.selection()).arg("--sharding=round-robin");
        command.arg(format!("--shard={}/{}", shard.first, shard.one_in)).env(SEED, options.seed.to_string());
        if part.is_on_kernel() {
            command.env("TESTKIT_REQUIRE", "all");
        }
        let folder = target.join(part.name);
        fs::create_dir_all(&folder).context(|| format!("cannot create {}", folder.display()))?;
        command.arg("--output").arg(&folder);
        let status = command.status().context(|| "cannot start cargo mutants".to_owned())?;
        // 2: something survived; 3: something hung.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            return Err(Error::new(format!("cargo mutants, {}: {status}; see {}", part.name, folder.display())));
        }
        println!("{}: {} s", part.name, start.elapsed().as_secs());
        outcomes.push((part.name, outcome(&folder)?));
    }
    print!("{}", table(&outcomes));
    let survived = outcomes.iter().any(|(_, outcome)| !outcome.missed.is_empty());
    Ok(if survived { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Part {
    /// Whether some of the tests send packets through this machine's kernel, in namespaces of their own.
    fn is_on_kernel(&self) -> bool {
        self.tests.iter().any(|option| option.starts_with("--test=kernel"))
    }

    fn filters(&self) -> Vec<String> {
        let files = self.files.iter().map(|glob| format!("--file={glob}"));
        [format!("--package={}", self.package)].into_iter().chain(files).collect()
    }

    /// Given to every run of cargo's, so that no other test is even built.
    fn selection(&self) -> Vec<String> {
        self.tests.iter().map(|option| format!("--cargo-arg={option}")).collect()
    }
}

/// `cargo mutants` with what every run has.
fn mutants(root: &Path, target: &Path, filters: &[String]) -> Command {
    let mut command = cargo::command();
    command.current_dir(root).env("CARGO_TARGET_DIR", target).env("CARGO_INCREMENTAL", "1");
    command.args(["mutants", "--all-features", "--profile=mutants"]).args(filters);
    command
}

/// Number of changes.
fn count(command: &mut Command) -> Result<usize> {
    let output = command.arg("--list").output().context(|| "cannot start cargo mutants".to_owned())?;
    if !output.status.success() {
        return Err(Error::new(format!(
            "cargo mutants --list: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}

/// A file of cargo-mutants, a change a line.
fn lines(folder: &Path, name: &str) -> Result<Vec<String>> {
    let path = folder.join("mutants.out").join(name);
    let text = fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn outcome(folder: &Path) -> Result<Outcome> {
    Ok(Outcome {
        caught: lines(folder, "caught.txt")?.len(),
        hung: lines(folder, "timeout.txt")?.len(),
        unviable: lines(folder, "unviable.txt")?.len(),
        missed: lines(folder, "missed.txt")?,
    })
}

/// Changes that the tests of the last run missed or that made them hang; empty where there was no run.
fn survivors(folder: &Path) -> Result<Vec<String>> {
    if !folder.join("mutants.out").is_dir() {
        return Ok(Vec::new());
    }
    Ok([lines(folder, "missed.txt")?, lines(folder, "timeout.txt")?].concat())
}

/// A regular expression for a change's name, `FILE:LINE:COLUMN: WHAT`, at any line.
fn pattern(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    let (file, what) = (parts.next().unwrap_or_default(), parts.nth(2).unwrap_or_default());
    format!(r"^{}:\d+:\d+:{}$", escaped(file), escaped(what))
}

fn escaped(text: &str) -> String {
    let special = |letter: char| r"\.+*?()|[]{}^$#&-~".contains(letter).then_some('\\');
    text.chars().flat_map(|letter| special(letter).into_iter().chain([letter])).collect()
}

/// The survivors, and a line for each part.
fn table(outcomes: &[(&str, Outcome)]) -> String {
    let mut text = String::new();
    let mut all = Outcome::default();
    for (_, outcome) in outcomes {
        all.add(outcome);
    }
    for name in &all.missed {
        let _never_fails = writeln!(text, "survived: {name}");
    }
    for (name, outcome) in outcomes {
        let _never_fails = writeln!(text, "{}", outcome.line(name));
    }
    let _never_fails = writeln!(text, "{}", all.line("all"));
    text
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options { sample: 600, seed: 0, again: false, parts: Vec::new() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || -> Result<u64> {
            let value = rest.next().and_then(|value| value.to_str()).and_then(|value| value.parse().ok());
            value.ok_or_else(|| Error::usage(format!("mutants: {} takes a whole number", argument.display())))
        };
        match argument.to_str() {
            Some("--sample") => options.sample = usize::try_from(number()?).unwrap_or(usize::MAX),
            Some("--seed") => options.seed = number()?,
            Some("--again") => options.again = true,
            Some(name) if PARTS.iter().any(|part| part.is_called(name)) => {
                options.parts.extend(PARTS.iter().filter(|part| part.is_called(name)));
            }
            _ => {
                return Err(Error::usage(format!("mutants: {}: no option, and no part\n\n{HELP}", argument.display())));
            }
        }
    }
    if options.parts.is_empty() {
        options.parts.extend(&PARTS);
    }
    Ok(options)
}

impl Part {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.package == name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_sample_is_at_least_as_large_as_asked_for_and_seeds_take_turns() {
        assert_eq!(Shard::of(6000, 600, 13), Shard { first: 3, one_in: 10 });
        assert_eq!(Shard::of(1199, 600, 13), Shard { first: 0, one_in: 1 }, "one in two would be 599");
        assert_eq!(Shard::of(6000, 0, 13), Shard { first: 0, one_in: 1 }, "0 is all");
        assert_eq!(Shard::of(5, 600, 13), Shard { first: 0, one_in: 1 });
    }

    #[test]
    fn a_package_is_all_of_its_parts() {
        let names =
            |line: &str| parsed(line).map(|options| options.parts.iter().map(|part| part.name).collect::<Vec<_>>());
        assert_eq!(names("ipset service").unwrap(), ["ipset", "service"]);
        let core = names("proxier-core").unwrap();
        assert!(core.len() > 1 && core.contains(&"service") && !core.contains(&"ipvs"), "{core:?}");
        assert_eq!(names("").unwrap().len(), PARTS.len());
        assert!(names("nothing").is_err() && names("--sample x").is_err());
    }

    #[test]
    fn a_survivor_is_found_again_in_another_line() {
        assert_eq!(
            pattern("ipset/src/a.rs:12:5: replace Set::len -> usize with 0"),
            r"^ipset/src/a\.rs:\d+:\d+: replace Set::len \-> usize with 0$"
        );
    }

    #[test]
    fn what_does_not_compile_is_no_part_of_the_figure() {
        let outcome = Outcome { caught: 8, hung: 1, unviable: 5, missed: vec!["x".to_owned()] };
        assert_eq!(outcome.line("ipset"), "ipset                9 of    10   90.0 %   1 hung, 5 do not compile");
        let text = table(&[("ipset", outcome.clone()), ("ipvs", Outcome { missed: Vec::new(), ..outcome })]);
        assert!(text.starts_with("survived: x\nipset "), "{text}");
        assert!(text.ends_with("all                 18 of    19   94.7 %   2 hung, 10 do not compile\n"), "{text}");
    }

    #[test]
    fn the_files_and_tests_of_every_part_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for part in &PARTS {
            for test in part.tests.iter().filter_map(|option| option.strip_prefix("--test=")) {
                assert!(root.join(part.package).join(format!("tests/{test}.rs")).is_file(), "{}: {test}", part.name);
            }
            for glob in part.files {
                let folder = glob.split(['*', '{']).next().unwrap_or_default();
                assert!(root.join(folder).is_dir(), "{}: {glob}", part.name);
                let names =
                    glob.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(names, _)| names);
                for name in names.split(',').filter(|name| !name.is_empty()) {
                    let path = root.join(folder).join(name);
                    assert!(path.is_dir() || path.with_extension("rs").is_file(), "{}: {name}", part.name);
                }
            }
        }
    }
}
