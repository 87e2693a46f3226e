//! What modes with tables of nf_tables share.

use nftables::expr::{CmpOp, MetaKey};
use nftables::{Expression, Family as NftFamily, Name, Register, Rule, RuleBuilder, TableKey, Transaction, Value};

use crate::modes::shared::cleaned::Cleaned;
use crate::net::Family;
use crate::ports::{NotCommitted, PortError, PortErrorKind, Tables};
use crate::reconciler::report::Unread;
use crate::reconciler::step::{Action, Part, Step};

/// An empty chain: the table is this program's. A table of our name without it is somebody else's.
pub(crate) const OWNED: &str = "made-by-proxier-core";

/// `RTN_LOCAL` (linux/rtnetlink.h): an address of this host.
pub(crate) const RTN_LOCAL: u32 = 2;

/// A name of ours.
pub(crate) fn name(name: &str) -> Name {
    // Ours are all possible; the kernel refuses an impossible one by itself.
    Name::new(name).unwrap_or_else(|_| unnamed())
}

fn unnamed() -> Name {
    #[expect(clippy::unwrap_used, reason = "a constant name that a test makes")]
    Name::new("unnamed").unwrap()
}

impl From<Family> for NftFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => NftFamily::Ip,
            Family::V6 => NftFamily::Ip6,
        }
    }
}

/// The code "port unreachable" of RFC 792 and RFC 4443, as iptables' REJECT answers.
pub(crate) fn port_unreachable(family: Family) -> u8 {
    match family {
        Family::V4 => 3,
        Family::V6 => 4,
    }
}

/// Compares the name of the interface that a packet came in by, or its beginning.
pub(crate) fn interface(rule: RuleBuilder, name: &str, is_prefix: bool, op: CmpOp) -> RuleBuilder {
    let register = Register::FIRST;
    let mut bytes = name.as_bytes().to_vec();
    if !is_prefix {
        bytes.resize(16, 0);
    }
    let rule = rule.expression(Expression::Meta { key: MetaKey::IifName, register });
    match Value::new(&bytes) {
        Ok(value) => rule.expression(Expression::Cmp { register, op, value }),
        Err(_) => rule,
    }
}

/// A rule of ours: all its values are possible, and a test makes every one.
pub(crate) fn built(rule: RuleBuilder) -> Rule {
    rule.build().unwrap_or_default()
}

/// Removes a table if it is ours, and notes what came of it. What is gone already counts as done, and so does a kernel without nf_tables.
pub(in crate::modes) fn remove_table(
    table: &TableKey,
    is_ours: impl FnOnce(&TableKey, &mut dyn Tables) -> Result<bool, PortError>,
    tables: &mut dyn Tables,
    cleaned: &mut Cleaned,
) {
    match is_ours(table, tables) {
        Ok(true) => {
            let mut transaction = Transaction::new();
            transaction.delete_table(table);
            let outcome = match tables.commit(&transaction) {
                Err(NotCommitted { error, .. }) if error.kind() != PortErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
            cleaned.applied.note(|| Step::new(Action::Delete, Part::Table, table), outcome);
        }
        Ok(false) => {}
        Err(error) if matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::NotFound) => {}
        Err(error) => cleaned.unread.push(Unread::new(format_args!("table {table}"), error)),
    }
}
