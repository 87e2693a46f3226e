//! Removes chains of iptables: over nf_tables where iptables-nft keeps them, which takes no program, and else by programs.

use std::collections::BTreeSet;

use iptables::{Dump, Edit, TableName, Transaction};
use nftables::Transaction as NftTransaction;

use crate::compat;
use crate::modes::shared::cleaned::Cleaned;
use crate::net::Family;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{PortError, PortErrorKind, Ports, Tables};

/// The tables in which modes have chains.
const TABLES: [TableName; 2] = [TableName::NAT, TableName::FILTER];

/// A removal of chains of a mode.
pub(in crate::modes) struct Removal<'a> {
    /// Whether a chain of this name may go. Without one nothing else is read.
    pub(in crate::modes) may_go: &'a dyn Fn(&TableName, &str) -> bool,
    /// Edits that delete rules, empty chains and delete chains. Where chains that may go are in nf_tables, their rules are not known, and of
    /// foreign rules only their targets and comments are.
    pub(in crate::modes) edits: &'a dyn Fn(&Dump) -> Result<Transaction, PortError>,
}

impl Removal<'_> {
    /// Removes them in these families. A family without tables of iptables has none.
    pub(in crate::modes) fn carry_out(&self, families: &[Family], ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
        for family in families {
            let what = || format!("rules of {}", family.name());
            // No program is started where there is nothing; and nf_tables is read afterwards, so that nothing is removed twice.
            if ports.rules.has_tables(*family) != Some(false) {
                match ports.rules.dump(*family) {
                    Err(error) => cleaned.miss(what(), error),
                    Ok(dump) => {
                        note(*family, (self.edits)(&dump), cleaned, |edits| ports.rules.restore(*family, edits));
                    }
                }
            }
            match self.read(*family, ports.tables) {
                Ok(Some((dump, generation))) => note(*family, (self.edits)(&dump), cleaned, |edits| {
                    let mut transaction = as_nft(*family, edits, ports.tables)?;
                    transaction.expect_generation(generation);
                    ports.tables.commit(&transaction).map_err(|refused| refused.error)
                }),
                Ok(None) => {}
                Err(error) => cleaned.miss(what(), error),
            }
        }
    }

    /// The tables of iptables in nf_tables that have chains which may go, and their generation.
    fn read(&self, family: Family, tables: &mut dyn Tables) -> Result<Option<(Dump, u32)>, PortError> {
        let generation = tables.generation()?;
        let mut dump = Dump::default();
        for name in TABLES {
            let key = compat::table_key(family, &name)?;
            let may_go = |chain: &str| (self.may_go)(&name, chain);
            if tables.chains(&key)?.iter().any(|of| may_go(of.chain.key.name.as_str())) {
                dump.tables.extend(compat::read(&key, &name, &|chain| !may_go(chain), tables)?);
            }
        }
        Ok((!dump.tables.is_empty()).then_some((dump, generation)))
    }
}

/// Applies edits, if there are any, and records the outcome.
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
        Err(error) => cleaned.unread.push(Unread::new(format_args!("rules of {}", family.name()), error)),
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
