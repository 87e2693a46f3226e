//! Kernels that lack a part of nf_tables: `probe --proxy-mode nftables` names the part, and leaves nothing behind.
//!
//! Removes each part by a line in `/etc/modprobe.d`, as `lacks` does, and only where `TESTKIT_REQUIRE=all` says that the machine is
//! for tests.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{Need, kernel_test};

use crate::program::{demo, text, tool};

const POLICY: &str = "/etc/modprobe.d/proxier-demo-nf-tables-test.conf";

/// Modules of nf_tables, users before the modules that they use.
const MODULES: &[&str] = &[
    "nft_compat",
    "nft_fib_inet",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_fib",
    "nft_masq",
    "nft_numgen",
    "nft_nat",
    "nft_redir",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_reject",
    "nft_hash",
    "nft_ct",
    "nft_chain_nat",
    "nf_tables",
];

/// A line of `modprobe.d` that is removed on drop.
struct Forbidden;

impl Forbidden {
    fn new(module: &str) -> Self {
        fs::create_dir_all("/etc/modprobe.d").unwrap();
        fs::write(POLICY, format!("install {module} /bin/false\n")).unwrap();
        Forbidden
    }
}

impl Drop for Forbidden {
    fn drop(&mut self) {
        fs::remove_file(POLICY).unwrap();
    }
}

/// Unloads a module, and all that use it. The last users are namespaces that end a little later.
fn unload(module: &str) {
    let start = Instant::now();
    while Path::new("/sys/module").join(module).exists() {
        assert!(start.elapsed() < Duration::from_secs(120), "{module} stays:\n{}", tool("lsmod"));
        let _some_are_in_use = Command::new("modprobe").args(["-r", "-q", "-a"]).args(MODULES).output().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Exit code, the report, and the words of `probe --proxy-mode nftables`.
fn probe() -> (Option<i32>, Value, String) {
    let output = demo(&["probe", "--proxy-mode", "nftables", "-o", "json"]);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let words = demo(&["probe", "--proxy-mode", "nftables"]);
    (output.status.code(), report, text(&words.stdout))
}

#[test]
fn probe_names_the_part_that_is_missing() {
    if std::env::var("TESTKIT_REQUIRE").is_ok_and(|value| value == "all") {
        for (module, named) in
            [("nft_fib", "fib"), ("nft_masq", "masq"), ("nft_numgen", "numgen"), ("nf_tables", "nf_tables")]
        {
            kernel_test(&[Need::Root, Need::Nftables, Need::Tool("modprobe")], || {
                unload(module);
                let forbidden = Forbidden::new(module);
                let (code, report, words) = probe();
                println!("without {module}: {words}");
                assert_eq!((code, &report["works"]), (Some(1), &Value::from(false)), "{module}: {report:#}");
                assert!(words.starts_with("nftables mode: no\n"), "{words}");
                for family in report["families"].as_array().unwrap() {
                    let reason = family["reason"].as_str().unwrap();
                    assert!(reason.contains(named) && words.contains(named), "{module}: {reason}\n{words}");
                }
                drop(forbidden);
                // And all of it works again.
                let (code, report, words) = probe();
                assert_eq!((code, &report["works"]), (Some(0), &Value::from(true)), "{module}: {words}");
                assert_eq!(tool("nft list tables"), "");
            });
        }
    } else {
        eprintln!("SKIPPED: modules are taken away only where TESTKIT_REQUIRE=all");
    }
}
