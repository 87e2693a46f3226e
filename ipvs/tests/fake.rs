//! The suite on the fake kernel, and cases that only a fake kernel can be brought into.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod suite;

use ipvs::fake::FakeIpvs;
use ipvs::{Client, Scheduler};
use netlink_batch::Genl;

/// Each case gets a kernel of its own.
struct Fake(FakeIpvs);

impl suite::World for Fake {
    fn client(&self) -> Client {
        self.0.client().unwrap()
    }

    fn genl(&self) -> Genl {
        Genl::with_transport("IPVS", self.0.transport()).unwrap()
    }

    fn saved(&self) -> Option<Vec<String>> {
        None
    }

    fn thresholds(&self) -> Option<Vec<String>> {
        None
    }

    fn has(&self, _scheduler: Scheduler) -> bool {
        true
    }

    fn is_real(&self) -> bool {
        false
    }
}

macro_rules! on_the_fake {
    ($($module:ident { $($case:ident,)* })*) => { $(
        mod $module {
            $(
                #[test]
                fn $case() {
                    crate::suite::$module::$case(&crate::Fake(ipvs::fake::FakeIpvs::new()));
                }
            )*
        }
    )* };
}
suite::for_each_case!(on_the_fake);

mod only_here;
