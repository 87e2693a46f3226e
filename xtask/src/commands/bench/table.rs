//! `cargo xtask bench table`: the tables of figures in the two READMEs, made from the result files.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use crate::error::{Context as _, Error, Result};

/// Between these lines a README belongs to this command.
const START: &str = "<!-- made by `cargo xtask bench table` -->";
const END: &str = "<!-- end of what `cargo xtask bench table` made -->";

/// A figure in a result file.
#[derive(Clone, Copy, Debug)]
enum Part {
    Text(&'static str),
    /// A figure that is held against a goal, by its name.
    Goal(&'static str, Unit),
    /// A median: of what, at which size, of which side.
    Median(&'static str, u64, &'static str, Unit),
}

/// Format of a figure.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Times,
    Millis,
    Micros,
    Mega,
    Bytes,
    Instructions,
}

/// A row of the table in `benches/README.md`.
#[derive(Debug)]
struct Row {
    id: &'static str,
    what: &'static str,
    against: &'static str,
    goal: &'static str,
    bench: &'static str,
    /// The result's name in `benches/results`, without the ending.
    result: &'static str,
    figures: &'static [Part],
}

/// A row of the short table in `README.md`: this proxy and what people run today.
#[derive(Debug)]
struct Compared {
    what: &'static str,
    ours: &'static [Part],
    today: &'static [Part],
    /// The result's name in `benches/results`, without the ending.
    result: &'static str,
}

use Part::{Goal, Median, Text};

const PROGRAM: &str = "Virtual servers with 10 real servers each, from nothing";
const ONE_CHANGE: &str = "One changed Service";
const CONNECTING: &str = "Connecting";
const NFTABLES_MODE: &str = "nftables mode (Proxier)";
const FROM_NOTHING: &str = "All Services from nothing";
const IPVS: &str = "IPVS (Proxier)";
const LEGACY: &str = "iptables-legacy";
const NFT: &str = "iptables-nft";
const WHOLE_START: &str = "From the process's start until everything is served";
const END_TO_END: &str = "end-to-end-linux-6.1";
const VERSUS: &str = "versus-iptables-linux-6.1";

const COMPARED: [Compared; 7] = [
    Compared {
        what: "1,000 Services × 10 endpoints: from the program's start until the kernel has everything",
        ours: &[Goal("P4: start, 1,000 x 10, empty kernel, ms", Unit::Millis)],
        today: &[Text("kube-proxy 66 s")],
        result: END_TO_END,
    },
    Compared {
        what: "the same cluster: from the API server's event about one endpoint until the kernel has it",
        ours: &[Goal("P5: one change, 1,000 x 10, ms", Unit::Millis)],
        today: &[Text("kube-proxy 10.6 s")],
        result: END_TO_END,
    },
    Compared {
        what: "the same cluster: resident memory",
        ours: &[Goal("P6: resident memory, 1,000 x 10, MB", Unit::Mega)],
        today: &[Text("kube-proxy 80 MB")],
        result: END_TO_END,
    },
    Compared {
        what: "5,000 Services × 2 endpoints: one changed Service",
        ours: &[Median(ONE_CHANGE, 5_000, IPVS, Unit::Millis)],
        today: &[
            Text("iptables "),
            Median(ONE_CHANGE, 5_000, LEGACY, Unit::Millis),
            Text(" (legacy), "),
            Median(ONE_CHANGE, 5_000, NFT, Unit::Millis),
            Text(" (nft)"),
        ],
        result: VERSUS,
    },
    Compared {
        what: "the same Services: a new connection through the last one",
        ours: &[Median(CONNECTING, 5_000, "IPVS (Proxier), last", Unit::Micros)],
        today: &[
            Text("iptables "),
            Median(CONNECTING, 5_000, "iptables-legacy, last", Unit::Micros),
            Text(" (legacy), "),
            Median(CONNECTING, 5_000, "iptables-nft, last", Unit::Micros),
            Text(" (nft)"),
        ],
        result: VERSUS,
    },
    Compared {
        what: "the same Services: all from nothing",
        ours: &[Median(FROM_NOTHING, 5_000, IPVS, Unit::Millis)],
        today: &[
            Text("iptables "),
            Median(FROM_NOTHING, 5_000, LEGACY, Unit::Millis),
            Text(" (legacy), "),
            Median(FROM_NOTHING, 5_000, NFT, Unit::Millis),
            Text(" (nft)"),
        ],
        result: VERSUS,
    },
    Compared {
        what: "10 Services: all from nothing",
        ours: &[Median(FROM_NOTHING, 10, IPVS, Unit::Millis)],
        today: &[
            Text("iptables "),
            Median(FROM_NOTHING, 10, LEGACY, Unit::Millis),
            Text(" (legacy), "),
            Median(FROM_NOTHING, 10, NFT, Unit::Millis),
            Text(" (nft)"),
        ],
        result: VERSUS,
    },
];

const ROWS: [Row; 20] = [
    Row {
        id: "P1",
        what: "1,000 virtual servers × 10 real servers through `ipvs`",
        against: "a minimal C program that sends the same bytes in the same batches",
        goal: "≤ 1.15 × its time",
        bench: "ipvs-program",
        result: "ipvs-program-linux-6.1",
        figures: &[
            Goal("P1: ipvs crate / C program", Unit::Times),
            Text(" ("),
            Median(PROGRAM, 1_000, "ipvs crate, one batch", Unit::Millis),
            Text(" to "),
            Median(PROGRAM, 1_000, "C program, batches of 128", Unit::Millis),
            Text(")"),
        ],
    },
    Row {
        id: "P2",
        what: "the same",
        against: "`ipvsadm --restore`",
        goal: "≥ 20 × faster",
        bench: "ipvs-program",
        result: "ipvs-program-linux-6.1",
        figures: &[
            Goal("P2: ipvsadm --restore / ipvs crate", Unit::Times),
            Text(" ("),
            Median(PROGRAM, 1_000, "ipvsadm --restore", Unit::Millis),
            Text(")"),
        ],
    },
    Row {
        id: "P3",
        what: "20,000 entries into a set through `ipset`, on the host kernel",
        against: "`ipset restore`",
        goal: "≥ 25 × faster",
        bench: "ipset-fill",
        result: "ipset-fill-host",
        figures: &[
            Goal("P3: ipset restore / ipset crate", Unit::Times),
            Text(" ("),
            Median("Filling a set", 20_000, "ipset crate", Unit::Millis),
            Text(" to "),
            Median("Filling a set", 20_000, "ipset restore", Unit::Millis),
            Text(")"),
        ],
    },
    Row {
        id: "P4",
        what: "`proxier-demo`, from its start until the kernel has everything: 1,000 Services × 10 endpoints, an API server",
        against: "kube-proxy 1.23 in IPVS mode: 66 s in the emulated machine",
        goal: "≤ 1 s there",
        bench: "end-to-end",
        result: "end-to-end-linux-6.1",
        figures: &[
            Text("empty kernel "),
            Goal("P4: start, 1,000 x 10, empty kernel, ms", Unit::Millis),
            Text("; everything there "),
            Goal("P4: start, 1,000 x 10, everything there, ms", Unit::Millis),
        ],
    },
    Row {
        id: "P4 nft",
        what: "the start of P4 with `ipvs.rules: nftables`: no program, no ipset; also with no module loaded",
        against: "with the programs of iptables, in the same run",
        goal: "≤ 0.7 × its time; with no module loaded ≤ 1.4 × (1 s and 2 s where that takes 1.43 s)",
        bench: "cold-start",
        result: "cold-start-linux-6.1",
        figures: &[
            Text("empty kernel "),
            Goal("P4 nft: ipvs.rules nftables, empty kernel, ms", Unit::Millis),
            Text(" (programs "),
            Median(WHOLE_START, 1_000, "10 endpoints each, empty kernel", Unit::Millis),
            Text("): "),
            Goal("P4 nft: rules nftables / by programs", Unit::Times),
            Text("; everything there "),
            Goal("P4 nft: ipvs.rules nftables, everything there, ms", Unit::Millis),
            Text("; no module loaded "),
            Goal("P4 nft: ipvs.rules nftables, no module loaded, ms", Unit::Millis),
            Text(": "),
            Goal("P4 nft: the same with no module loaded / by programs with all", Unit::Times),
        ],
    },
    Row {
        id: "P5",
        what: "one endpoint changes, from the API server's event until the kernel has it",
        against: "kube-proxy: 10.6 s",
        goal: "≤ 20 ms with 1,000 Services; the same ± 20 % with 100 and 50,000",
        bench: "end-to-end",
        result: "end-to-end-linux-6.1",
        figures: &[
            Goal("P5: one change, 1,000 x 10, ms", Unit::Millis),
            Text("; 100 Services "),
            Goal("P5: one change, 100 x 10 / 1,000 x 10", Unit::Times),
            Text("; 50,000, against 1,000 as small, "),
            Goal("P5: one change, 50000 x 2 / 1,000 x 2", Unit::Times),
        ],
    },
    Row {
        id: "P15",
        what: "a Service gets another scheduler, or persistence, by its annotation, from the API server's event until the kernel has it",
        against: "one changed endpoint, in the same run",
        goal: "≤ 20 ms with 1,000 Services; beside the kernel's own part no longer than a changed endpoint",
        bench: "policy",
        result: "policy-linux-6.1",
        figures: &[
            Goal("P15: one changed scheduler, ms", Unit::Millis),
            Text("; "),
            Median("That change of a virtual server, alone", 1_000, "one request of the crate ipvs", Unit::Millis),
            Text(" of it the kernel's request alone; the rest "),
            Goal("P15: the rest / a changed endpoint", Unit::Times),
            Text("; persistence "),
            Goal("P15: persistence / a changed endpoint", Unit::Times),
        ],
    },
    Row {
        id: "P6",
        what: "resident memory of `proxier-demo` at 1,000 × 10, and per endpoint beyond",
        against: "kube-proxy: 80 MB",
        goal: "≤ 16 MB, ≤ 300 bytes an endpoint",
        bench: "end-to-end",
        result: "end-to-end-linux-6.1",
        figures: &[
            Goal("P6: resident memory, 1,000 x 10, MB", Unit::Mega),
            Text("; "),
            Goal("P6: bytes per endpoint, 1,000 Services x 50 endpoints", Unit::Bytes),
            Text(" an endpoint of larger Services, "),
            Goal("P6: bytes per endpoint, 5,000 Services x 10 endpoints", Unit::Bytes),
            Text(" of more Services"),
        ],
    },
    Row {
        id: "P7",
        what: "full check of 10,000 Services × 10 endpoints, nothing changed",
        against: "the kernel's own dumps by a C program, and `iptables-save`",
        goal: "≤ 1.5 × their time, no writes",
        bench: "drift",
        result: "drift-linux-6.1",
        figures: &[
            Goal("P7: full pass / the kernel's own dumps", Unit::Times),
            Text(" ("),
            Median("Whole check", 10_000, "Proxier, full pass", Unit::Millis),
            Text(" to "),
            Median("Whole check", 10_000, "C program and the two iptables-save", Unit::Millis),
            Text("), no writes"),
        ],
    },
    Row {
        id: "P8",
        what: "compile, diff and plan, 10,000 Services × 10 endpoints; the same for one changed EndpointSlice",
        against: "",
        goal: "≤ 400 M instructions; ≤ 60 k for the slice, 100 to 50,000 Services",
        bench: "reconcile",
        result: "reconcile-host",
        figures: &[
            Goal("P8: all of 10,000 x 10", Unit::Instructions),
            Text("; slice "),
            Goal("P8: one changed slice of 100 Services", Unit::Instructions),
            Text(" to "),
            Goal("P8: one changed slice of 50000 Services", Unit::Instructions),
        ],
    },
    Row {
        id: "P9",
        what: "one changed Service, and a new connection through the last Service, as Services grow",
        against: "`iptables-restore` of kube-proxy's rules, legacy and nft",
        goal: "curves: IPVS flat, iptables growing",
        bench: "versus-iptables",
        result: "versus-iptables-linux-6.1",
        figures: &[
            Text("from 10 to 10,000 Services, a change: IPVS "),
            Goal("P9: IPVS (Proxier), one change, 10000 / 10 Services", Unit::Times),
            Text(" ("),
            Median(ONE_CHANGE, 10_000, "IPVS (Proxier)", Unit::Millis),
            Text("), legacy "),
            Goal("P9: iptables-legacy, one change, 10000 / 10 Services", Unit::Times),
            Text(" ("),
            Median(ONE_CHANGE, 10_000, "iptables-legacy", Unit::Millis),
            Text("), nft (to 5,000) "),
            Goal("P9: iptables-nft, one change, 5000 / 10 Services", Unit::Times),
            Text(" ("),
            Median(ONE_CHANGE, 5_000, "iptables-nft", Unit::Millis),
            Text("); a connection: "),
            Goal("P9: IPVS (Proxier), connecting, 10000 / 10 Services", Unit::Times),
            Text(" ("),
            Median(CONNECTING, 10_000, "IPVS (Proxier), last", Unit::Micros),
            Text("), "),
            Goal("P9: iptables-legacy, connecting, 10000 / 10 Services", Unit::Times),
            Text(" ("),
            Median(CONNECTING, 10_000, "iptables-legacy, last", Unit::Micros),
            Text("), "),
            Goal("P9: iptables-nft, connecting, 5000 / 10 Services", Unit::Times),
            Text(" ("),
            Median(CONNECTING, 5_000, "iptables-nft, last", Unit::Micros),
            Text(")"),
        ],
    },
    Row {
        id: "P10",
        what: "nftables mode: 44,125 Services × 2 endpoints from nothing, on the host kernel",
        against: "`nft -f` of the same table",
        goal: "≤ 0.5 × its time; ≤ 3 s",
        bench: "nftables-services",
        result: "nftables-services-host",
        figures: &[
            Goal("P10: nftables mode / nft -f", Unit::Times),
            Text(" ("),
            Median("All Services from nothing", 44_125, NFTABLES_MODE, Unit::Millis),
            Text(" to "),
            Median("All Services from nothing", 44_125, "nft -f", Unit::Millis),
            Text(")"),
        ],
    },
    Row {
        id: "P11",
        what: "nftables mode: one endpoint changes among 50,000 Services",
        against: "`nft -f` of its elements",
        goal: "≤ 0.5 × its time; the same ± 20 % with 100",
        bench: "nftables-services",
        result: "nftables-services-host",
        figures: &[
            Goal("P11: nftables mode / nft -f, 50000 Services", Unit::Times),
            Text(" ("),
            Median("One changed endpoint", 50_000, NFTABLES_MODE, Unit::Millis),
            Text(" to "),
            Median("One changed endpoint", 50_000, "nft -f", Unit::Millis),
            Text("); 50,000 against 100 Services "),
            Goal("P11: one change, 50000 / 100 Services", Unit::Times),
            Text("; one endpoint more or less "),
            Median("One endpoint more or less", 50_000, NFTABLES_MODE, Unit::Millis),
            Text(", with 100 "),
            Median("One endpoint more or less", 100, NFTABLES_MODE, Unit::Millis),
        ],
    },
    Row {
        id: "P12",
        what: "nftables mode: a new connection through the last Service",
        against: "directly; `iptables-restore` of kube-proxy's rules",
        goal: "50,000 against 10 Services: the same ± 10 %",
        bench: "nftables-services",
        result: "nftables-services-host",
        figures: &[
            Goal("P12: connecting, 50000 / 10 Services", Unit::Times),
            Text(" ("),
            Median(CONNECTING, 50_000, "nftables mode (Proxier), last", Unit::Micros),
            Text("; directly "),
            Median(CONNECTING, 50_000, "directly, no Service", Unit::Micros),
            Text("; through iptables-legacy with 10,000 "),
            Median(CONNECTING, 10_000, "iptables-legacy, last", Unit::Micros),
            Text(", iptables-nft with 1,000 "),
            Median(CONNECTING, 1_000, "iptables-nft, last", Unit::Micros),
            Text(")"),
        ],
    },
    Row {
        id: "P13",
        what: "iptables mode, 1,000, 5,000 and 10,000 Services × 10 endpoints: all from nothing; one change",
        against: "`iptables-restore` of the very texts that the pass writes to both families",
        goal: "≤ 1.1 × its time",
        bench: "iptables-services",
        result: "iptables-services-host",
        figures: &[
            Text("legacy: all "),
            Goal("P13: full restore / iptables-restore, legacy, 1000 Services", Unit::Times),
            Text(", "),
            Goal("P13: full restore / iptables-restore, legacy, 5000 Services", Unit::Times),
            Text(", "),
            Goal("P13: full restore / iptables-restore, legacy, 10000 Services", Unit::Times),
            Text("; a change "),
            Goal("P13: one change / iptables-restore, legacy, 1000 Services", Unit::Times),
            Text(", "),
            Goal("P13: one change / iptables-restore, legacy, 5000 Services", Unit::Times),
            Text(", "),
            Goal("P13: one change / iptables-restore, legacy, 10000 Services", Unit::Times),
            Text(". nft (to 1,000): all "),
            Goal("P13: full restore / iptables-restore, nft, 1000 Services", Unit::Times),
            Text(", a change "),
            Goal("P13: one change / iptables-restore, nft, 1000 Services", Unit::Times),
            Text(". With chains in the order of Services the same texts take the programs "),
            Median("All Services from nothing", 10_000, "iptables-restore, legacy, unsorted", Unit::Millis),
            Text(" instead of "),
            Median("All Services from nothing", 10_000, "iptables-restore, legacy", Unit::Millis),
            Text(" (legacy, 10,000), "),
            Median("All Services from nothing", 1_000, "iptables-restore, nft, unsorted", Unit::Millis),
            Text(" instead of "),
            Median("All Services from nothing", 1_000, "iptables-restore, nft", Unit::Millis),
            Text(" (nft)"),
        ],
    },
    Row {
        id: "P16",
        what: "what iptables mode keeps in memory, 1,000 and 10,000 Services × 10 endpoints",
        against: "IPVS mode with the same Services",
        goal: "≤ 2 × its memory",
        bench: "memory",
        result: "memory-host",
        figures: &[
            Goal("P16: iptables mode / IPVS mode, 1000 x 10", Unit::Times),
            Text(" and "),
            Goal("P16: iptables mode / IPVS mode, 10000 x 10", Unit::Times),
        ],
    },
    Row {
        id: "NF1",
        what: "100,000 elements into a map through `nftables`, in one transaction, on the host kernel",
        against: "a minimal C program that sends the same bytes",
        goal: "≤ 1.15 × its time",
        bench: "nftables-fill",
        result: "nftables-fill-host",
        figures: &[
            Goal("NF1: nftables crate / C program", Unit::Times),
            Text(" ("),
            Median("Filling a map", 100_000, "nftables crate", Unit::Millis),
            Text(" to "),
            Median("Filling a map", 100_000, "C program, one transaction", Unit::Millis),
            Text(")"),
        ],
    },
    Row {
        id: "NF2",
        what: "the same, with making the elements",
        against: "`nft -f`",
        goal: "≥ 5 × faster",
        bench: "nftables-fill",
        result: "nftables-fill-host",
        figures: &[
            Goal("NF2: nft -f / nftables crate, from making the elements", Unit::Times),
            Text(" ("),
            Median("Filling a map", 100_000, "nftables crate, from making the elements", Unit::Millis),
            Text(" to "),
            Median("Filling a map", 100_000, "nft -f", Unit::Millis),
            Text(")"),
        ],
    },
    Row {
        id: "U1",
        what: "userspace mode: 4 GiB in one TCP stream",
        against: "a loop of `splice(2)` with one pipe, in that direction only",
        goal: "≥ 0.8 × its throughput",
        bench: "userspace",
        result: "userspace-host",
        figures: &[Goal("U1: a loop of splice(2) / userspace mode", Unit::Times)],
    },
    Row {
        id: "U2",
        what: "userspace mode: 20,000 connections by 8 clients",
        against: "HAProxy on the same host",
        goal: "≥ 0.8 × its rate",
        bench: "userspace",
        result: "userspace-host",
        figures: &[Goal("U2: HAProxy / userspace mode", Unit::Times)],
    },
];

/// Pictures below the table: what they show, and their names in `benches/results`.
const CURVES: [(&str, &str); 12] = [
    ("Time of one change as Services grow", "versus-iptables-linux-6.1-change"),
    ("Time to connect through the last Service", "versus-iptables-linux-6.1-connect"),
    ("Time to program all Services from nothing", "versus-iptables-linux-6.1-program"),
    ("nftables mode: time of one change as Services grow", "nftables-services-host-change"),
    ("nftables mode: time to connect through the last Service", "nftables-services-host-connect"),
    ("Three modes on the host kernel: time to program all Services from nothing", "modes-host-program"),
    ("Three modes on the host kernel: time of one change as Services grow", "modes-host-change"),
    ("Three modes on the host kernel: time to connect through the last Service", "modes-host-connect"),
    ("All modes in the virtual machine: time to program all Services from nothing", "modes-linux-6.1-program"),
    ("All modes in the virtual machine: time of one change as Services grow", "modes-linux-6.1-change"),
    ("All modes in the virtual machine: time to connect through the last Service", "modes-linux-6.1-connect"),
    ("All modes in the virtual machine: kernel memory as Services grow", "modes-linux-6.1-memory"),
];

pub(super) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let check = match arguments {
        [] => false,
        [option] if option == "--check" => true,
        _ => return Err(Error::usage("bench table takes --check or nothing")),
    };
    let root = super::super::test::repository()?;
    let results = root.join("benches/results");
    let mut current = true;
    for (file, table) in [("README.md", short_table(&results)?), ("benches/README.md", table(&results)?)] {
        let path = root.join(file);
        let folder = path.parent().unwrap_or(&root);
        let text = std::fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
        let next =
            replaced(&text, &table).ok_or_else(|| Error::new(format!("{file} has no lines {START} and {END}")))?;
        if let Some(link) = links(&next).find(|link| !folder.join(link).is_file()) {
            return Err(Error::new(format!("{file} names {link}, which is not there")));
        }
        if text == next {
            println!("{file} has the figures of benches/results");
        } else if check {
            current = false;
            for (old, new) in text.lines().zip(next.lines()).filter(|(old, new)| old != new) {
                eprintln!("{file}: {old}\nresults: {new}");
            }
        } else {
            std::fs::write(&path, next).context(|| format!("cannot write {}", path.display()))?;
            println!("written: {}", path.display());
        }
    }
    if !current {
        eprintln!("xtask: the figures are not those of benches/results: cargo xtask bench table");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The text with another table; `None` without the lines around one.
fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}\n{table}{END}{after}"))
}

/// Result files that a text links to.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link)
        .filter(|link| link.starts_with("benches/results/") || link.starts_with("results/"))
}

/// The table of `README.md`.
fn short_table(results: &Path) -> Result<String> {
    let mut text = "\
| | `proxier-demo` | what people run today | result |
| --- | --- | --- | --- |
"
    .to_owned();
    for row in &COMPARED {
        let file = format!("{}.json", row.result);
        let path = results.join(&file);
        let json = std::fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
        let result: Value = serde_json::from_str(&json).map_err(|error| Error::new(format!("{file}: {error}")))?;
        let cell = |figures| {
            let cell = measured(&result, figures);
            cell.map(|(text, _)| text).map_err(|missing| Error::new(format!("{file} has no figure {missing}")))
        };
        let (what, name) = (row.what, row.result);
        let _infallible = writeln!(
            text,
            "| {what} | **{}** | {} | [{}](benches/results/{name}.md) |",
            cell(row.ours)?,
            cell(row.today)?,
            name.strip_suffix("-linux-6.1").unwrap_or(name)
        );
    }
    Ok(text)
}

/// The table of `benches/README.md`, with its curves.
fn table(results: &Path) -> Result<String> {
    let mut text = "\
| | what | against | goal | measured | load | command, result |
| --- | --- | --- | --- | --- | --- | --- |
"
    .to_owned();
    for row in &ROWS {
        let file = format!("{}.json", row.result);
        let path = results.join(&file);
        let Ok(json) = std::fs::read_to_string(&path) else {
            let _infallible = writeln!(
                text,
                "| {} | {} | {} | {} | not measured yet | | `cargo xtask bench {}` |",
                row.id, row.what, row.against, row.goal, row.bench
            );
            continue;
        };
        let result: Value = serde_json::from_str(&json).map_err(|error| Error::new(format!("{file}: {error}")))?;
        let (measured, reached) = measured(&result, row.figures).map_err(|missing| {
            Error::new(format!("{file} has no figure {missing}: cargo xtask bench {}", row.bench))
        })?;
        let reached = if reached { "" } else { " **not reached**" };
        let _infallible = writeln!(
            text,
            "| {} | {} | {} | {} | {measured}{reached} | {} | `cargo xtask bench {}` [{}](results/{}.md) |",
            row.id,
            row.what,
            row.against,
            row.goal,
            load(&result).ok_or_else(|| Error::new(format!("{file} does not say the machine's load")))?,
            row.bench,
            row.result,
            row.result
        );
    }
    for (title, name) in CURVES {
        let file = format!("{name}.svg");
        if results.join(&file).is_file() {
            let _infallible = writeln!(text, "\n![{title}](results/{file})");
        }
    }
    Ok(text)
}

/// The load of the machine, the emulator's host where there is one: at the start and at the end.
fn load(result: &Value) -> Option<String> {
    let machine = result.get("machine")?;
    let emulated = machine.get("cpu")?.as_str()?.contains("QEMU");
    if emulated && machine.get("host").is_none_or(Value::is_null) {
        // The guest's own load says nothing.
        return Some("unknown".to_owned());
    }
    let machine = machine.get("host").filter(|host| !host.is_null()).unwrap_or(machine);
    let average = |index: usize| machine.get("load")?.get(index)?.as_str();
    Some(format!("{} to {} of {}", average(0)?, average(1)?, machine.get("cpus")?.as_u64()?))
}

/// The text of a cell, and whether all goals in it are reached; else what is missing.
fn measured(result: &Value, figures: &[Part]) -> std::result::Result<(String, bool), String> {
    let mut text = String::new();
    let mut reached = true;
    for part in figures {
        match *part {
            Text(words) => text.push_str(words),
            Goal(name, unit) => {
                let goal = goal(result, name).ok_or_else(|| format!("{name:?}"))?;
                text.push_str(&unit.write(goal.0));
                reached &= goal.1;
            }
            Median(what, size, side, unit) => {
                let median = median(result, what, size, side).ok_or_else(|| format!("{side:?} of {what:?}"))?;
                text.push_str(&unit.write(median));
            }
        }
    }
    Ok((text, reached))
}

fn named<'a>(list: &'a Value, key: &str, name: &str) -> impl Iterator<Item = &'a Value> {
    list.as_array().into_iter().flatten().filter(move |item| item.get(key).and_then(Value::as_str) == Some(name))
}

fn goal(result: &Value, name: &str) -> Option<(f64, bool)> {
    let goal = named(result.get("ratios")?, "name", name).next()?;
    Some((goal.get("value")?.as_f64()?, goal.get("reached")?.as_bool()?))
}

fn median(result: &Value, what: &str, size: u64, side: &str) -> Option<f64> {
    let mut groups = named(result.get("groups")?, "what", what);
    let group = groups.find(|group| group.get("size").and_then(Value::as_u64) == Some(size))?;
    named(group.get("sides")?, "name", side).next()?.get("median")?.as_f64()
}

impl Unit {
    fn write(self, value: f64) -> String {
        match self {
            Unit::Times => format!("{} ×", digits(value)),
            Unit::Millis if value >= 1_000.0 => format!("{} s", digits(value / 1_000.0)),
            Unit::Millis => format!("{} ms", digits(value)),
            Unit::Micros if value >= 1_000.0 => format!("{} ms", digits(value / 1_000.0)),
            Unit::Micros => format!("{} µs", digits(value)),
            Unit::Mega => format!("{} MB", digits(value)),
            Unit::Bytes => format!("{value:.0} bytes"),
            Unit::Instructions if value >= 1e6 => format!("{} M", digits(value / 1e6)),
            Unit::Instructions => format!("{} k", digits(value / 1e3)),
        }
    }
}

/// Three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{END, ROWS, START, Unit, links, measured, replaced};

    #[test]
    fn figures_come_from_the_result_and_goals_are_judged_by_it() {
        let row = ROWS.iter().find(|row| row.id == "P2").unwrap();
        let result = |reached: bool, side: &str| {
            json!({
                "ratios": [{"name": "P2: ipvsadm --restore / ipvs crate", "value": 29.87, "reached": reached}],
                "groups": [{"what": super::PROGRAM, "size": 1000, "sides": [{"name": side, "median": 5432.1}]}],
            })
        };
        assert_eq!(measured(&result(true, "ipvsadm --restore"), row.figures), Ok(("29.9 × (5.43 s)".to_owned(), true)));
        assert_eq!(
            measured(&result(false, "ipvsadm --restore"), row.figures),
            Ok(("29.9 × (5.43 s)".to_owned(), false))
        );
        assert!(measured(&result(true, "another"), row.figures).unwrap_err().contains("ipvsadm --restore"));
    }

    #[test]
    fn only_what_is_between_the_lines_changes() {
        let readme = format!("before\n{START}\nold\n{END}\nafter\n");
        assert_eq!(replaced(&readme, "new\n").unwrap(), format!("before\n{START}\nnew\n{END}\nafter\n"));
        assert_eq!(replaced("neither", "new\n"), None);
    }

    #[test]
    fn links_to_results_are_found() {
        let text = "![a](benches/results/a.svg) [b](README.md) [c](results/c.md)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["benches/results/a.svg", "results/c.md"]);
    }

    #[test]
    fn units_are_those_that_read_well() {
        let texts = [
            Unit::Millis.write(11.93),
            Unit::Millis.write(4_422.0),
            Unit::Instructions.write(335_340_632.0),
            Unit::Instructions.write(47_937.0),
            Unit::Bytes.write(299.3),
        ];
        assert_eq!(texts, ["11.9 ms", "4.42 s", "335 M", "47.9 k", "299 bytes"]);
    }
}
