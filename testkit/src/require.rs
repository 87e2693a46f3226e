//! Checks what a test needs from the kernel by trying it, and records skips.

use std::collections::HashMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::netns::NetnsGuard;
use crate::oracle::{self, run};

/// A file to which each skip is appended as one line: test, tab, reason.
const SKIPPED_VARIABLE: &str = "TESTKIT_SKIPPED";

/// With the value `all`, a missing need fails the test instead of skipping it.
const REQUIRE_VARIABLE: &str = "TESTKIT_REQUIRE";

/// Something that a test needs. Each is tried in a temporary network namespace, once per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Need {
    /// May create network namespaces.
    Root,
    /// Virtual servers. Loads `ip_vs` if it is a module.
    IpVs,
    /// A scheduler of IPVS by name, such as `rr`.
    Scheduler(&'static str),
    /// Dummy devices.
    Dummy,
    /// Virtual Ethernet pairs.
    Veth,
    /// A set type by name, such as `hash:ip,port`.
    Ipset(&'static str),
    /// `iptables-legacy` with the table `nat`.
    IptablesLegacy,
    /// `iptables-nft` with the table `nat`.
    IptablesNft,
    /// nf_tables, and the program `nft`.
    Nftables,
    /// A program `nft` whose lookups of ranges in a concatenation this kernel accepts. Linux 6.12.117 and 7.2 refuse
    /// what nft 1.0.6 sends. Without it the test is skipped everywhere.
    NftRanges,
    /// Flow tables of nf_tables (`nf_flow_table`).
    FlowTables,
    /// Connection tracking, and the program `conntrack`.
    Conntrack,
    /// Separate mount namespaces (`unshare --mount`), which are refused if the root is not a mount point, as in a
    /// chroot.
    Mounts,
    /// A program.
    Tool(&'static str),
    /// This many open files for the process; raises the limit if possible.
    OpenFiles(u64),
    /// A kernel of this version (major, minor) or newer. Otherwise the test is skipped everywhere.
    Kernel(u32, u32),
}

/// Needs of a service proxy in IPVS mode: a dummy device, virtual servers with scheduler `rr`, its set types, and
/// rules.
pub const PROXY: &[Need] = &[
    Need::Root,
    Need::IpVs,
    Need::Scheduler("rr"),
    Need::Dummy,
    Need::Ipset("hash:ip"),
    Need::Ipset("hash:ip,port"),
    Need::Ipset("hash:ip,port,ip"),
    Need::Ipset("hash:ip,port,net"),
    Need::Ipset("bitmap:port"),
    Need::IptablesNft,
];

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("network namespaces"),
            Self::IpVs => f.write_str("IPVS"),
            Self::Scheduler(name) => write!(f, "IPVS scheduler {name}"),
            Self::Dummy => f.write_str("dummy devices"),
            Self::Veth => f.write_str("veth devices"),
            Self::Ipset(name) => write!(f, "ipset type {name}"),
            Self::IptablesLegacy => f.write_str("iptables-legacy"),
            Self::IptablesNft => f.write_str("iptables-nft"),
            Self::Nftables => f.write_str("nf_tables"),
            Self::NftRanges => f.write_str("nft that this kernel takes ranges in concatenations from"),
            Self::FlowTables => f.write_str("flow tables of nf_tables"),
            Self::Conntrack => f.write_str("connection tracking"),
            Self::Mounts => f.write_str("mount namespaces"),
            Self::Tool(name) => write!(f, "program {name}"),
            Self::OpenFiles(count) => write!(f, "{count} open files"),
            Self::Kernel(major, minor) => write!(f, "kernel {major}.{minor} or newer"),
        }
    }
}

/// Runs a test in a new network namespace, or skips it if the kernel lacks one of `needs`.
///
/// A skip is printed to standard error and appended to the file named by the environment variable `TESTKIT_SKIPPED`.
/// With `TESTKIT_REQUIRE=all` it is a failure, except for [`Need::Kernel`] and [`Need::NftRanges`].
///
/// Reports name the thread: libtest names each test's thread after the test, unless it runs with `--test-threads=1`.
///
/// # Panics
/// If `body` panics; if no network namespace can be created although [`Need::Root`] is not among `needs`; if a need is
/// missing under `TESTKIT_REQUIRE=all`.
#[track_caller]
pub fn kernel_test(needs: &[Need], body: impl FnOnce()) {
    for need in needs {
        if let Some(reason) = missing(*need) {
            skip(*need, &reason);
            return;
        }
    }
    let uses_ipvs = needs.iter().any(|need| matches!(need, Need::IpVs | Need::Scheduler(_)));
    let _turn = uses_ipvs.then(|| IPVS_TURN.lock().unwrap_or_else(PoisonError::into_inner));
    let guard = NetnsGuard::new();
    assert!(guard.is_ok(), "no network namespace (Need::Root was not asked for): {guard:?}");
    body();
    drop(guard);
}

/// One test of IPVS at a time. Before Linux 7 all namespaces share one table of virtual servers, and a long listing
/// counts its way through all of it. Changes in another namespace make `ipvsadm` omit or repeat servers.
static IPVS_TURN: Mutex<()> = Mutex::new(());

#[track_caller]
fn skip(need: Need, reason: &str) {
    let current = thread::current();
    let test = current.name().unwrap_or("(unnamed)");
    let excused = matches!(need, Need::Kernel(..) | Need::NftRanges);
    let required = std::env::var_os(REQUIRE_VARIABLE).is_some_and(|value| value == "all");
    assert!(excused || !required, "{test} needs {need}, and {REQUIRE_VARIABLE}=all: {reason}");
    eprintln!("SKIPPED {test}: no {need}: {reason}");
    if let Some(path) = std::env::var_os(SKIPPED_VARIABLE) {
        let line = format!("{test}\tno {need}: {}\n", reason.replace(['\n', '\t'], " "));
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        // An uncounted skip would look like a test that passed.
        assert!(written.is_ok(), "cannot note the skip of {test} in {}: {written:?}", path.display());
    }
}

/// Why this machine lacks `need`; `None` if it has it. The answer is cached for the life of the process.
pub fn missing(need: Need) -> Option<String> {
    static ANSWERS: OnceLock<Mutex<HashMap<Need, Option<String>>>> = OnceLock::new();
    // Held while trying: several tests that ask at once wait for one answer.
    let mut answers = ANSWERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    answers.entry(need).or_insert_with(|| try_out(need).err()).clone()
}

fn try_out(need: Need) -> Result<(), String> {
    match need {
        Need::Tool(name) => return find(name),
        Need::OpenFiles(count) => return may_open(count),
        Need::Kernel(major, minor) => return kernel_is_at_least(major, minor),
        _ => {}
    }
    // `modprobe` first: some lookups, such as of the IPVS netlink family, do not load a module.
    if matches!(need, Need::IpVs | Need::Scheduler(_)) {
        run("modprobe", &["ip_vs"], None).map_or_else(drop, drop);
    }
    let _guard = NetnsGuard::new().map_err(|error| format!("no network namespace: {error}"))?;
    let attempt = |program: &str, arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        run(program, &arguments, None).map(drop).map_err(|error| error.to_string())
    };
    match need {
        Need::Root | Need::Tool(_) | Need::OpenFiles(_) | Need::Kernel(..) => Ok(()),
        Need::IpVs => attempt("ipvsadm", "-L -n"),
        Need::Scheduler(name) => attempt("ipvsadm", &format!("-A -t 192.0.2.1:80 -s {name}")),
        Need::Dummy => attempt("ip", "link add dummy0 type dummy"),
        Need::Veth => attempt("ip", "link add veth0 type veth peer name veth1"),
        Need::Ipset(name) => attempt("ipset", &format!("create testkit {name}{}", creation_options(name))),
        Need::IptablesLegacy => attempt("iptables-legacy", "-w -t nat -A POSTROUTING -j MASQUERADE"),
        Need::IptablesNft => attempt("iptables-nft", "-w -t nat -A POSTROUTING -j MASQUERADE"),
        Need::Nftables => attempt("nft", "add table inet testkit"),
        Need::NftRanges => attempt(
            "nft",
            "add table ip testkit; add chain ip testkit c; \
             add set ip testkit s { type ipv4_addr . inet_proto . ipv4_addr; flags interval; }; \
             add rule ip testkit c ip daddr . meta l4proto . ip saddr @s return",
        ),
        Need::FlowTables => attempt(
            "nft",
            "add table inet testkit; add flowtable inet testkit f { hook ingress priority 0; devices = { lo }; }",
        ),
        Need::Conntrack => attempt("conntrack", "-L"),
        Need::Mounts => attempt("unshare", "--mount --propagation private true"),
    }
}

/// Options that are required to create the type: bitmaps need a range.
fn creation_options(set_type: &str) -> &'static str {
    match set_type {
        "bitmap:port" => " range 1-1024",
        "bitmap:ip" | "bitmap:ip,mac" => " range 192.0.2.0/24",
        _ => "",
    }
}

fn find(program: &str) -> Result<(), String> {
    let path = oracle::search_path();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if found { Ok(()) } else { Err(format!("not in {}", Path::new(&path).display())) }
}

fn may_open(count: u64) -> Result<(), String> {
    let (now, most) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
    if now >= count {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, count, most.max(count)).map_err(|error| format!("{most} at most: {error}"))
}

fn kernel_is_at_least(major: u32, minor: u32) -> Result<(), String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").map_err(|error| error.to_string())?;
    let release = release.trim();
    match version(release) {
        Some(version) if version >= (major, minor) => Ok(()),
        _ => Err(format!("this is {release}")),
    }
}

/// Major and minor number at the start of a release such as `6.1.0-50-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::{Need, missing, version};

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.1.0-50-amd64"), Some((6, 1)));
        assert_eq!(version("7.2-rc1"), Some((7, 2)));
        assert_eq!(version("odd"), None);
        assert!(version("5.10.0") > version("5.9.1"));
    }

    #[test]
    fn answers_name_what_is_missing() {
        assert_eq!(missing(Need::Tool("sh")), None);
        assert!(missing(Need::Tool("no-such-program")).is_some_and(|reason| reason.starts_with("not in ")));
        assert_eq!(missing(Need::Kernel(3, 0)), None);
        assert!(missing(Need::Kernel(999, 0)).is_some_and(|reason| reason.starts_with("this is ")));
    }
}
