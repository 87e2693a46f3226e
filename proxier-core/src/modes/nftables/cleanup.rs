//! Removes all tables of this mode.

use nftables::{ChainKey, TableKey};

use super::layout::{self, ARRIVING_GUARD, Layout, localhost_guard};
use super::mode::read;
use crate::config::Config;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::localhost;
use crate::modes::shared::nft::{is_ours, name, remove_table};
use crate::modes::shared::served::ServedFrontends;
use crate::net::Family;
use crate::plan::names::Names;
use crate::plan::operation::Operation;
use crate::ports::{PortErrorKind, Ports, Tables};
use crate::service::NodeFacts;

/// Frontends that the tables of both families serve.
pub(crate) fn served(facts: &NodeFacts, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    for family in Family::ALL {
        let layout = Layout::new(family, &layout::table_name(&facts.config().names), facts, false);
        match read(ports.tables, &layout) {
            Ok(observed) => {
                let frontends = observed.iter().flat_map(|observed| observed.frontends(family));
                frontends.for_each(|(key, has_endpoints)| served.add(key, has_endpoints));
            }
            // The table is foreign.
            Err(error) if error.kind() == PortErrorKind::AlreadyExists => {}
            Err(error) => served.miss(format_args!("table {}", layout.table()), error),
        }
    }
    served
}

/// Whether it is this mode's table and keeps other hosts off programs that listen at loopback addresses.
fn guards_localhost(table: &TableKey, tables: &mut dyn Tables) -> bool {
    let chain = ChainKey { table: table.clone(), name: name(ARRIVING_GUARD) };
    let rules = is_ours(table, tables).and_then(|is_ours| if is_ours { tables.rules(&chain) } else { Ok(vec![]) });
    // A table that cannot be read cannot be removed either, which says why.
    rules.is_ok_and(|rules| rules.iter().any(|observed| observed.rule == localhost_guard()))
}

/// Removes the tables of both families that this mode has made, and nothing else. Where the table guarded programs that listen at loopback
/// addresses and nothing else does, `route_localnet` gets the kernel's default back, 0. It uses only the names of
/// the configuration. What is gone already counts as done, and so does a kernel without nf_tables.
pub fn cleanup(config: &Config, ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for family in Family::ALL {
        let table = layout::table(family, &layout::table_name(&config.names));
        if guards_localhost(&table, ports.tables) {
            let (changes, unmet) = localhost::close(ports);
            cleaned.applied.carry_out(changes.iter().map(Operation::Sysctl), &Names::NONE, ports);
            let told = unmet.iter().map(|unmet| {
                let (path, to) = (&unmet.path, &unmet.to);
                format!("{path} cannot be written from here: set it to {to}, or other hosts reach what listens on 127.0.0.1 only")
            });
            cleaned.left.extend(told);
        }
        remove_table(&table, is_ours, ports.tables, &mut cleaned);
    }
    cleaned
}
