//! Removes everything that is ours.

use iptables::{ChainName, Dump, Edit, Transaction};

use super::apply::incomparable;
use super::diff::{Incomparable, cleanup};
use super::names;
use crate::net::Family;
use crate::ports::{PortErrorKind, Ports};
use crate::reconciler::report::{Applied, Unread};
use crate::reconciler::step::{Action, Part, Step};

/// Removes the chains and jumps of both families that this mode, or a kube-proxy in iptables mode, has made, and nothing else
/// ([`cleanup`]). Returns what was removed and what was not, and the families that could not be read. A family without programs
/// or tables has nothing of ours.
///
/// `net.ipv4.conf.all.route_localnet` stays: its earlier value is not known.
pub fn remove(ports: &mut Ports<'_>) -> (Applied, Vec<Unread>) {
    let mut applied = Applied::default();
    let mut unread = Vec::new();
    for family in Family::ALL {
        let what = format!("rules of {}", family.name());
        let dump = match ports.rules.dump(family) {
            Ok(dump) => dump,
            Err(error) if error.kind() == PortErrorKind::Unavailable => continue,
            Err(error) => {
                unread.push(Unread::new(what, error));
                continue;
            }
        };
        match everything(&dump) {
            Ok(transaction) if transaction.is_empty() => {}
            Ok(transaction) => {
                let outcome = ports.rules.restore(family, &transaction);
                applied.note(|| Step::new(Action::Delete, Part::Rules, family.name()), outcome);
            }
            Err(error) => unread.push(Unread::new(what, incomparable(&error))),
        }
    }
    (applied, unread)
}

fn everything(dump: &Dump) -> Result<Transaction, Incomparable> {
    let mut transaction = cleanup(dump)?;
    let canary = ChainName::new(names::CANARY)?;
    for table in names::TABLES {
        let Some(there) = dump.table(&table).filter(|there| there.chain(names::CANARY).is_some()) else { continue };
        if there.references(names::CANARY).next().is_none() {
            let edits = transaction.table(table);
            edits.edit(Edit::Flush(canary.clone())).edit(Edit::DeleteChain(canary.clone()));
        }
    }
    Ok(transaction)
}
