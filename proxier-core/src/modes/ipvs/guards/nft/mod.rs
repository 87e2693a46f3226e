//! The variant with an nf_tables table for each family.

mod change;
mod contents;
mod layout;

use std::collections::BTreeMap;
use std::sync::Arc;

use ipvs::VirtualServerKey;
use nftables::TableKey;

use crate::config::{Config, MarkRange};
use crate::modes::Pass;
use crate::modes::ipvs::binding::Routes;
use crate::modes::ipvs::observed::{Contents, Observed, records};
use crate::modes::ipvs::split;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::nft::{self, is_ours, remove_table};
use crate::modes::shared::table::{Fate, Layout as _, write_layout};
use crate::net::{Family, FrontendKey};
use crate::pack::Gather as _;
use crate::plan::operation::Whole;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Step};
use crate::ports::{PortErrorKind, Result, SetKey, SetKind, Tables as TablesPort};
use crate::service::NodeFacts;

pub use change::TableChange;
pub(crate) use change::{Basis, Entries, write};
pub(crate) use contents::{has_nftables_mode, read};
pub use layout::Layout;
pub(crate) use layout::table;

#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) written: BTreeMap<Family, Arc<Layout>>,
    /// The layouts that follow from the node facts, and from routes and marks in the kernel, until these change.
    wanted: BTreeMap<Family, Arc<Layout>>,
    /// The tables as just read, until a plan is carried out.
    pub(crate) basis: Option<Basis>,
    /// Families that nftables mode still serves.
    served_by_nftables_mode: Vec<Family>,
}

impl Tables {
    pub(crate) fn read(&mut self, config: &Config, tables: &mut dyn TablesPort) -> (Contents, Vec<Unread>) {
        self.served_by_nftables_mode.clear();
        let (mut contents, mut read_tables, mut failed) = (Contents::new(), BTreeMap::new(), Vec::new());
        let generation = tables.generation().ok();
        for family in config.families.iter() {
            match read(&table(family, &config.names), family, tables) {
                Ok(found) => {
                    contents.extend(found.iter().flat_map(|found| found.entries.clone()));
                    read_tables.insert(family, found);
                }
                Err(error) => failed.push(error),
            }
            match has_nftables_mode(family, config, tables) {
                Ok(true) => self.served_by_nftables_mode.push(family),
                Ok(false) => {}
                Err(error) => {
                    failed.push(Unread::new(format_args!("table {} of {family}", config.names.table), error));
                }
            }
        }
        self.basis = Some(Basis::new(generation, read_tables));
        (contents, failed)
    }

    /// Restores tables to their tracked state if another program has changed them. Source ranges are open to all
    /// clients until then, so nothing else is read or compared before. Returns the steps carried out. Failures are left
    /// to the next full pass.
    pub(crate) fn restore(&self, observed: &mut Observed, tables: &mut dyn TablesPort) -> Vec<Step> {
        let mut done = Vec::new();
        for (family, layout) in &self.written {
            let generation = tables.generation().ok();
            let Ok(found) = read(&layout.table, *family, tables) else { continue };
            let is_whole = found.as_ref().is_some_and(|found| {
                let mut known = observed.sets.iter().filter(|(set, _)| set.family == *family);
                let changes = TableChange::compared(layout, Some(found));
                changes == [None, None] && known.all(|(set, entries)| found.entries.get(set) == Some(entries))
            });
            if is_whole {
                continue;
            }
            let change = TableChange::full(layout, if found.is_some() { Fate::Remake } else { Fate::Make });
            let mut basis = Basis::new(generation, [(*family, found)].into());
            let written = write(layout, Some(&change), (Action::Add, Entries::new()), (observed, &mut basis), tables);
            if written.failed.is_none() && written.refused.is_empty() {
                done.push(change.step());
            }
        }
        done
    }

    /// The layouts that the kernel must have: for the desired state, and for existing objects until they are deleted.
    /// `is_new`: node facts or routes may have changed.
    pub(crate) fn layouts(
        &mut self,
        pass: &Pass<'_>,
        routes: Option<&Routes>,
        observed: &Observed,
        is_new: bool,
    ) -> BTreeMap<Family, Arc<Layout>> {
        // A split that is not configured ends with its last entry.
        let is_split = |layout: &Arc<Layout>| layout.split.is_some() && !pass.config().splits_local();
        if !is_new && !self.wanted.values().any(is_split) {
            return self.wanted.clone();
        }
        let layout = |family| {
            let mut layout = Layout::new(table(family, &pass.config().names), family, pass.facts);
            layout.keeps = !self.served_by_nftables_mode.contains(&family);
            let split = observed.sets.get(&SetKey::new(family, SetKind::LocalSplit));
            if split.is_some_and(|entries| !entries.is_empty()) {
                layout.split = Some(pass.config().ipvs.mark_range);
            }
            layout.by_routes = routes.is_some_and(|routes| routes.is_on) || observed.routes.has_family(family);
            let networks = routes.into_iter().flat_map(|routes| &routes.whole).chain(observed.routes.whole.keys());
            layout.guarded_networks = networks.filter(|of| Family::of(of.addr()) == family).copied().gather();
            (family, Arc::new(layout))
        };
        self.wanted = pass.families().map(layout).gather();
        self.wanted.clone()
    }

    /// Changes of the tables besides their elements: before virtual servers, and after their addresses are bound.
    pub(crate) fn changes(&self, layouts: &BTreeMap<Family, Arc<Layout>>, full: bool) -> [Vec<TableChange>; 2] {
        let [mut first, mut last] = [Vec::new(), Vec::new()];
        for (family, layout) in layouts {
            let found = self.basis.as_ref().and_then(|basis| basis.found(*family));
            let [before, after] = match (full, found, self.written.get(family)) {
                (true, Some(found), _) => TableChange::compared(layout, found.as_ref()),
                // Chains follow from the layout, so equal layouts have equal chains.
                (false, _, Some(written)) if written != layout => TableChange::changed(layout, written),
                _ => [None, None],
            };
            first.extend(before);
            last.extend(after);
        }
        [first, last]
    }
}

/// The Frontends of this proxy's virtual servers with firewall marks, as its tables record them; empty if a table is
/// missing.
///
/// # Errors
/// A table exists and could not be read.
pub fn marks(
    config: &Config,
    tables: &mut dyn TablesPort,
) -> Result<BTreeMap<VirtualServerKey, FrontendKey>, Vec<Unread>> {
    let (contents, unread) = read_contents(config.families.iter(), config, tables);
    let marks = records(&contents).filter_map(split::marked).map(|(frontend, server)| (server, frontend));
    if unread.is_empty() { Ok(marks.gather()) } else { Err(unread) }
}

/// The entries of these families' tables; none without the table, or without nf_tables.
pub(crate) fn read_contents(
    families: impl IntoIterator<Item = Family>,
    config: &Config,
    tables: &mut dyn TablesPort,
) -> (Contents, Vec<Unread>) {
    let (mut contents, mut unread) = (Contents::new(), Vec::new());
    for family in families {
        match read(&table(family, &config.names), family, tables) {
            Ok(found) => contents.extend(found.into_iter().flat_map(|found| found.entries)),
            Err(error) if error.error.kind() == PortErrorKind::Unavailable => {}
            Err(error) => unread.push(error),
        }
    }
    (contents, unread)
}

/// The virtual server of the mark that the kernel's table gives to packets of outside clients to an address and port.
pub(crate) fn marked(
    place: &FrontendKey,
    config: &Config,
    tables: &mut dyn TablesPort,
) -> Result<Option<VirtualServerKey>> {
    let (found, unread) = read_contents([place.family()], config, tables);
    if let Some(unread) = unread.into_iter().next() {
        return Err(unread.error);
    }
    let (set, entry) = split::active_entry(place);
    let is_split = found.get(&set).is_some_and(|entries| entries.contains(&entry));
    let mut marks = records(&found).filter_map(split::marked).filter(|(at, _)| is_split && at == place);
    Ok(marks.next().map(|(_, server)| server))
}

/// Has the kernel check each family's table with every set, chain and rule that this variant writes, without creating
/// any. The kernel loads the modules that it needs for that. An error names what it lacks.
pub fn trials(
    families: impl IntoIterator<Item = Family>,
    facts: &NodeFacts,
    tables: &mut dyn TablesPort,
) -> Vec<(Family, Result<()>)> {
    nft::trials(families, tables, |transaction, family, name| {
        let mut layout = Layout::new(TableKey { family: family.into(), name: name.clone() }, family, facts);
        layout.split = layout.split.or(Some(MarkRange::default()));
        layout.by_routes = true;
        write_layout(transaction, (Fate::Make, false), &layout, [], &layout.chains());
    })
}

/// Removes the tables of both families, configured or not.
pub(crate) fn cleanup(config: &Config, tables: &mut dyn TablesPort, cleaned: &mut Cleaned) {
    for family in Family::ALL {
        let table = table(family, &config.names);
        remove_table(&table, is_ours, tables, cleaned);
    }
}
