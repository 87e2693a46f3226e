//! Kernels that lack a part of nf_tables: `probe --proxy-mode nftables` names the part, and leaves nothing behind.
//!
//! Removes each part by a line in `/etc/modprobe.d`, as `lacks` does, and only where `TESTKIT_REQUIRE=all` says that the machine is
//! for tests.

use serde_json::Value;
use testkit::modules::{Forbidden, turn, unload};
use testkit::{Need, kernel_test, missing};

use crate::program::world::web;
use crate::program::{Folder, configuration, demo, ok, set_up, text, tool};

/// Exit code, the report, and the words of `probe --proxy-mode nftables`.
fn probe() -> (Option<i32>, Value, String) {
    let output = demo(&["probe", "--proxy-mode", "nftables", "-o", "json"]);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let words = demo(&["probe", "--proxy-mode", "nftables"]);
    (output.status.code(), report, text(&words.stdout))
}

#[test]
fn probe_names_the_part_that_is_missing() {
    let _turn = turn();
    if std::env::var("TESTKIT_REQUIRE").is_ok_and(|value| value == "all") {
        for (module, named) in
            [("nft_fib", "fib"), ("nft_masq", "masq"), ("nft_numgen", "numgen"), ("nf_tables", "nf_tables")]
        {
            kernel_test(&[Need::Root, Need::Nftables, Need::Tool("modprobe")], || {
                // A user that no list of ours names.
                tool("modprobe nft_flow_offload");
                unload(module);
                let forbidden = Forbidden::new(&[module]);
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

/// `nft` knows whether this kernel has flow tables. Without them everything else is served, and a plan has nothing to do about it.
#[test]
fn probe_says_whether_the_kernel_takes_the_fast_path() {
    let _turn = turn();
    kernel_test(&[Need::Root, Need::Nftables, Need::Veth], || {
        set_up();
        let (folder, manifests) = (Folder::new("fast-path"), Folder::new("manifests"));
        manifests.put("web.yaml", &web());
        let config = configuration(&folder, "mode: nftables\nfastPath: {interfaces: all}\n");
        let manifests = manifests.0.display().to_string();
        let run = |command: &[&str]| ok(&demo(&[command, &["--config", &config]].concat()));
        let has_them = missing(Need::FlowTables).is_none();
        let says =
            if has_them { "the kernel takes the flow table\n" } else { "all packets to Services take the usual way: " };
        let words = run(&["probe"]);
        assert!(words.contains(&format!("\nfastPath: {says}")), "{words}");
        let report: Value = serde_json::from_str(&run(&["probe", "-o", "json"])).unwrap();
        let fast_path = &report["fastPath"];
        assert_eq!(
            (fast_path["works"].as_bool(), fast_path["reason"].is_null()),
            (Some(has_them), has_them),
            "{report:#}"
        );
        run(&["run", "--once", "--manifests", &manifests]);
        assert_eq!(tool("nft list flowtables").contains("services"), has_them);
        let plan = run(&["plan", "--manifests", &manifests]);
        assert!(plan.starts_with("nothing to do"), "{plan}");
    });
}
