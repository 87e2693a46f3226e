//! Masquerading and source-range rules, in two variants: by iptables and ipset, or by a table of nf_tables.
//!
//! | | entries | rules |
//! |---|---|---|
//! | `programs` | ipsets ([`sets`](crate::modes::ipvs::sets)) | kube-proxy's chains, by the iptables programs ([`rules`](crate::modes::ipvs::rules)) |
//! | `nft` | sets of a table of nf_tables | chains of that table ([`Layout`]) |
//!
//! Both have the same entries, and packets mean the same to them; the order of a plan is the same as well. The variants differ in how
//! these are read and written: the programs' variant writes sets one by one and then the rules, which change with the first and
//! the last entry of a set; the table's variant writes everything that has to be there before virtual servers in one transaction a
//! family, and everything that has to go after them in another. Its rules do not depend on entries.
//!
//! nf_tables cannot overrule a drop in a foreign chain. kube-proxy's chains accept marked packets, answers to forwarded connections
//! and health checks; this proxy's also accept packets to Services where INPUT drops by default. Where another firewall drops those, the table of this
//! variant does not help ([`dropping_input`]).
//!
//! A node that changes from one to the other has both until a [cleanup](crate::modes::cleanup::cleanup): records of own
//! virtual servers are read from both, and guards of those that stay are carried over.

mod choose;
mod input;
pub(in crate::modes::ipvs) mod migrate_backend;
pub(in crate::modes::ipvs) mod nft;
pub(in crate::modes::ipvs) mod programs;

pub use choose::{Choice, choose, trials};
pub use input::dropping_input;
pub use nft::{Layout, TableChange, marks};

use std::collections::BTreeSet;

use crate::net::{Family, Network};

/// Known state of the variant that serves.
#[derive(Debug)]
pub(in crate::modes::ipvs) enum Guards {
    Programs(programs::Programs),
    Nft(nft::Tables),
}

impl Guards {
    pub(in crate::modes::ipvs) fn by_table(&self) -> bool {
        matches!(self, Guards::Nft(_))
    }

    /// The networks in which the kernel's rules refuse connections that no Service serves. `None`: that is not known.
    pub(in crate::modes::ipvs) fn guarded_networks(&self, family: Family) -> Option<&BTreeSet<Network>> {
        match self {
            Guards::Programs(programs) => programs.rules.get(&family).map(|inputs| &inputs.guarded_networks),
            Guards::Nft(tables) => tables.written.get(&family).map(|layout| &layout.guarded_networks),
        }
    }
}
