//! The suite on a real kernel, each case in a network namespace of its own, with `ipvsadm` as the second opinion.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod suite;

use ipvs::{Client, Scheduler};
use netlink_batch::Genl;
use testkit::{Need, kernel_test, missing, oracle};

const IPVS: &[Need] = &[Need::Root, Need::IpVs, Need::Tool("ipvsadm")];

/// The calling thread's network namespace.
struct Real;

impl suite::World for Real {
    fn client(&self) -> Client {
        Client::open().unwrap()
    }

    fn genl(&self) -> Genl {
        Genl::open("IPVS").unwrap()
    }

    fn saved(&self) -> Option<Vec<String>> {
        let saved = oracle::ipvsadm_save().unwrap();
        let mut lines: Vec<String> = saved.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.sort();
        Some(lines)
    }

    fn thresholds(&self) -> Option<Vec<String>> {
        let listed = oracle::run("ipvsadm", &["-L", "-n", "--thresholds"], None).unwrap().stdout;
        let servers = listed.lines().filter_map(|line| line.trim_start().strip_prefix("-> "));
        // Columns: address, upper, lower, active, inactive.
        let mut lines: Vec<String> =
            servers.skip(1).map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect();
        lines.sort();
        Some(lines)
    }

    fn has(&self, scheduler: Scheduler) -> bool {
        // Every kernel here has every scheduler, but for the newest, which Debian left out for some years.
        scheduler != Scheduler::PowerOfTwoChoices || missing(Need::Scheduler("twos")).is_none()
    }

    fn is_real(&self) -> bool {
        true
    }
}

macro_rules! on_the_kernel {
    ($($module:ident { $($case:ident,)* })*) => { $(
        mod $module {
            $(
                #[test]
                fn $case() {
                    testkit::kernel_test(crate::IPVS, || crate::suite::$module::$case(&crate::Real));
                }
            )*
        }
    )* };
}
suite::for_each_case!(on_the_kernel);

/// Another network namespace has a table of its own, and a client opened there stays there.
#[test]
fn another_namespace_by_its_file() {
    kernel_test(IPVS, || {
        let other = testkit::Netns::new().unwrap();
        let file = other.run_in(|| std::fs::File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        let key = suite::tcp("10.0.0.1:80");
        let mut there = Client::open_in(std::os::fd::AsFd::as_fd(&file)).unwrap();
        there.add_virtual_server(&suite::round_robin(key)).unwrap();
        assert_eq!(oracle::ipvsadm_save().unwrap().trim(), "");
        assert_eq!(Client::open().unwrap().list_virtual_servers().unwrap(), []);
        let saved = other.run_in(oracle::ipvsadm_save).unwrap().unwrap();
        assert_eq!(saved.trim(), "-A -t 10.0.0.1:80 -s rr");
    });
}

/// Run in a process of its own by [`without_the_capability`]: says what the kernel answers there.
#[test]
fn report_permission() {
    if std::env::var_os("IPVS_TEST_REPORT_PERMISSION").is_none() {
        return;
    }
    let key = suite::tcp("10.0.0.1:80");
    let mut client = Client::open().unwrap();
    for result in [
        client.list_virtual_servers().map(drop),
        client.info().map(drop),
        client.add_virtual_server(&suite::round_robin(key)),
        client.delete_virtual_server(&key),
        client.list_daemons().map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(error.is_permission(), "{error}");
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    }
}

/// Root without `CAP_NET_ADMIN`, and root of a user namespace, may not even look.
#[test]
fn without_the_capability() {
    kernel_test(&[Need::Root, Need::IpVs, Need::Tool("setpriv"), Need::Tool("unshare")], || {
        let program = testkit::Executable::this().unwrap();
        let path = program.path();
        let program = path.to_str().unwrap();
        let again = ["env", "IPVS_TEST_REPORT_PERMISSION=1", program, "--exact", "report_permission"];
        for wrapper in [
            &["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"][..],
            &["unshare", "--user", "--map-root-user", "--net"],
        ] {
            let command: Vec<&str> = wrapper.iter().copied().chain(again).collect();
            let output = oracle::run(command[0], &command[1..], None).unwrap();
            assert!(output.stdout.contains("1 passed"), "{}", output.stdout);
        }
    });
}
