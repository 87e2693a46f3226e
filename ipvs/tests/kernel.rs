//! The suite on a real kernel, each case in a network namespace of its own, with `ipvsadm` as the second opinion.

mod suite;

use ipvs::{Client, Scheduler};
use netlink_batch::Genl;
use testkit::{Need, missing, oracle};

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
