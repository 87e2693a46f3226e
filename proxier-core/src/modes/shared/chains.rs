//! Removes iptables chains: over nf_tables if iptables-nft stores them there, which needs no program, otherwise with
//! the programs.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Backend, Dump, Edit, TableEdit, TableName, Transaction};
use nftables::Transaction as NftTransaction;

use crate::compat;
use crate::modes::shared::cleaned::{Cleaned, IsKeptIn};
use crate::net::Family;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{PortError, PortErrorKind, Ports, Tables};

/// Largest number of chains named in a sentence.
const NAMED: usize = 4;
/// The tables in which modes have chains.
const TABLES: [TableName; 2] = [TableName::NAT, TableName::FILTER];

/// The removal of a mode's chains.
pub(in crate::modes) struct Removal<'a> {
    /// Whether a chain with this name may be removed. If there is none, nothing else is read.
    pub(in crate::modes) may_go: IsKeptIn<'a>,
    /// Edits that delete rules, empty chains and delete chains. If chains that may be removed are in nf_tables, their
    /// rules are unknown, and of other programs' rules only targets and comments are known.
    pub(in crate::modes) edits: &'a dyn Fn(Backend, &Dump) -> Result<Transaction, PortError>,
}

impl Removal<'_> {
    /// Removes them in both families and both back ends, whether in use or not. A family without iptables tables has
    /// none.
    pub(in crate::modes) fn carry_out(&self, ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
        for family in Family::ALL {
            for (backend, edits) in self.by_programs(family, ports) {
                note(family, edits, cleaned, |edits| ports.rules.restore_to(backend, family, edits));
            }
            // Read afterwards, so that nothing is removed twice.
            match self.read(family, ports.tables) {
                Ok(Some((dump, generation))) => {
                    note(family, (self.edits)(Backend::NfTables, &dump), cleaned, |edits| {
                        let mut transaction = as_nft(family, edits, ports.tables)?;
                        transaction.expect_generation(generation);
                        ports.tables.commit(&transaction).map_err(|refused| refused.error)
                    });
                }
                Ok(None) => {}
                Err(error) => cleaned.miss(what(family), error),
            }
        }
    }

    /// Adds the chains that [`Removal::carry_out`] would empty or delete, and what cannot be read. Changes nothing.
    pub(in crate::modes) fn find(&self, ports: &mut Ports<'_>, found: &mut Found) {
        for family in Family::ALL {
            let mut all = self.by_programs(family, ports);
            match self.read(family, ports.tables) {
                Ok(Some((dump, _))) => all.push((Backend::NfTables, (self.edits)(Backend::NfTables, &dump))),
                Ok(None) => {}
                Err(error) => all.push((Backend::NfTables, Err(error))),
            }
            for (backend, edits) in all {
                let edits = match edits {
                    Ok(edits) => edits,
                    Err(error) if error.kind() == PortErrorKind::Unavailable => continue,
                    Err(error) => {
                        found.unread.insert(Unread::new(what(family), error).to_string());
                        continue;
                    }
                };
                let chains = edits.tables().iter().flat_map(TableEdit::edits).filter_map(|edit| match edit {
                    Edit::Flush(chain) | Edit::DeleteChain(chain) => Some(chain.to_string()),
                    _ => None,
                });
                found.chains.entry((family, backend)).or_default().extend(chains);
            }
        }
    }

    /// Edits both back ends as the programs show them. No program is started if there is nothing.
    fn by_programs(&self, family: Family, ports: &mut Ports<'_>) -> Vec<(Backend, Result<Transaction, PortError>)> {
        if ports.rules.has_tables(family) == Some(false) {
            return Vec::new();
        }
        let edits = |backend| ports.rules.dump_of(backend, family).and_then(|dump| (self.edits)(backend, &dump));
        Backend::ALL.map(edits).into_iter().zip(Backend::ALL).map(|(edits, backend)| (backend, edits)).collect()
    }

    /// The iptables tables in nf_tables with chains that may be removed, and their generation.
    fn read(&self, family: Family, tables: &mut dyn Tables) -> Result<Option<(Dump, u32)>, PortError> {
        let generation = tables.generation()?;
        let mut dump = Dump::default();
        for name in TABLES {
            let key = compat::table_key(family, &name)?;
            let may_go = |chain: &str| (self.may_go)(Backend::NfTables, &name, chain);
            if tables.chains(&key)?.iter().any(|of| may_go(of.chain.key.name.as_str())) {
                dump.tables.extend(compat::read(&key, &name, &|chain| !may_go(chain), tables)?);
            }
        }
        Ok((!dump.tables.is_empty()).then_some((dump, generation)))
    }
}

fn what(family: Family) -> String {
    format!("rules of {}", family.name())
}

/// Chains of modes that do not serve here, by family and back end.
#[derive(Default)]
pub(crate) struct Found {
    chains: BTreeMap<(Family, Backend), BTreeSet<String>>,
    unread: BTreeSet<String>,
}

impl Found {
    /// One sentence for each back end of a family that has some, and for what cannot be read.
    pub(in crate::modes) fn sentences(self) -> impl Iterator<Item = String> {
        let sentence = |((family, backend), chains): ((Family, Backend), BTreeSet<String>)| {
            let named: Vec<&str> = chains.iter().take(NAMED).map(String::as_str).collect();
            let more = chains.len().saturating_sub(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            (!chains.is_empty()).then(|| {
                format!(
                    "{} of the {backend} back end of iptables are a kube-proxy's or another mode's: chains {}{more}; they are \
                     removed once this mode serves, or by cleanup",
                    what(family),
                    named.join(", ")
                )
            })
        };
        self.chains.into_iter().filter_map(sentence).chain(self.unread)
    }
}

/// Applies edits, if any, and records the outcome.
fn note(
    family: Family,
    edits: Result<Transaction, PortError>,
    cleaned: &mut Cleaned,
    write: impl FnOnce(&Transaction) -> Result<(), PortError>,
) {
    match edits {
        Ok(edits) if edits.is_empty() => {}
        Ok(edits) => {
            let outcome = write(&edits);
            cleaned.applied.note(|| Step::new(Action::Delete, Part::Rules, family.name()), outcome);
        }
        Err(error) => cleaned.miss(what(family), error),
    }
}

/// Converts the edits to nf_tables.
fn as_nft(family: Family, edits: &Transaction, tables: &mut dyn Tables) -> Result<NftTransaction, PortError> {
    let mut transaction = NftTransaction::new();
    for table in edits.tables() {
        let key = compat::table_key(family, table.name())?;
        let mut deleted = BTreeSet::new();
        for edit in table.edits() {
            match edit {
                Edit::Delete(chain, rule) => {
                    let chain = compat::chain_key(&key, chain)?;
                    let rules = tables.rules(&chain)?;
                    let same = |of: &&nftables::ObservedRule| compat::rule(of).is_some_and(|of| of == *rule);
                    let found = rules.iter().filter(same).find(|of| deleted.insert(of.handle));
                    if let Some(found) = found {
                        transaction.delete_rule(&chain, found.handle);
                    }
                }
                Edit::Flush(chain) => drop(transaction.flush_chain(&compat::chain_key(&key, chain)?)),
                Edit::DeleteChain(chain) => drop(transaction.delete_chain(&compat::chain_key(&key, chain)?)),
                other => {
                    let why = format!("{other} removes nothing");
                    return Err(PortError::new(PortErrorKind::Invalid, why));
                }
            }
        }
    }
    Ok(transaction)
}

/// Tables that no program here can read, with what to do.
pub(in crate::modes) fn unreadable(ports: &mut Ports<'_>) -> Vec<String> {
    let said = |family: Family| {
        let (names, program) = match family {
            Family::V4 => ("ip_tables_names", "iptables-legacy"),
            Family::V6 => ("ip6_tables_names", "ip6tables-legacy"),
        };
        format!(
            "rules of {} in the tables of /proc/net/{names} may be another mode's, and decide about packets: no program here reads them; \
             install {program} beside this program, or look with '{program}-save' on the node and remove chains KUBE-…",
            family.name()
        )
    };
    Family::ALL.into_iter().filter(|family| ports.rules.has_unreadable_tables(*family)).map(said).collect()
}
