//! Checks whether the kernel supports what this mode needs.

use nftables::{Set, TableKey, Transaction};

use super::layout::Layout;
use super::pick::{Affinity, Draw, Marks, Pick, SharedChain, Split};
use crate::modes::shared::nft;
use crate::modes::shared::table::{Fate, Layout as _, write_layout};
use crate::net::Family;
use crate::ports::{Result, Tables};
use crate::service::NodeFacts;

/// Has the kernel check each family's table with every kind of set, chain and rule that this mode may write, without
/// creating any. One check is enough if all pass. The kernel loads the modules that it needs for that.
///
/// # Errors
/// The kernel lacks nf_tables, the family, or a kind of chain, set or expression, which the message names.
pub fn trials(
    families: impl IntoIterator<Item = Family>,
    facts: &NodeFacts,
    tables: &mut dyn Tables,
) -> Vec<(Family, Result<()>)> {
    nft::trials(families, tables, |transaction, family, name| {
        let table = TableKey { family: family.into(), name: name.clone() };
        add(transaction, &Layout::of_table(table, family, facts));
    })
}

/// Adds a family's table with everything that it may have.
fn add(transaction: &mut Transaction, layout: &Layout) {
    let mut sets: Vec<Set> = Vec::new();
    let mut chains = layout.chains();
    for draw in [Draw::Random, Draw::Sticky(Affinity { secs: 10, width: 1 })] {
        let pick = Pick { marks: Marks::Everything, is_local: false, most: 1, draw };
        if pick.has_set() {
            chains.push(layout.services([pick]));
        }
        let split = Split { anywhere: Some(pick), only_here: Some(pick) };
        for chain in pick.slots().map(SharedChain::Slot).chain([SharedChain::Pick(pick), SharedChain::Split(split)]) {
            sets.extend(
                layout.entering_set(&chain).into_iter().chain(chain.clients().map(|of| layout.clients_set(of))),
            );
            chains.push(layout.regular(&chain.to_string(), layout.rules(&chain)));
        }
    }
    write_layout(transaction, (Fate::Make, false), layout, sets, &chains);
}
