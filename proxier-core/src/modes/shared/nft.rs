//! Parts that modes with nf_tables tables share.

use std::fmt;
use std::net::IpAddr;

use iptables::TableName;
use nftables::expr::{CmpOp, MetaKey, Reject};
use nftables::{
    ChainKey, ChainType, DataType, Expression, Family as NftFamily, FieldTypes, Hook, L4Protocol, Name, Policy,
    Register, Rule, RuleBuilder, Table, TableKey, Transaction, Value, Verdict,
};

use crate::compat;
use crate::config::InterfaceName;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::networks::PodTraffic;
use crate::net::{Family, FrontendKey, Protocol};
use crate::plan::report::Unread;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{NotCommitted, PortError, PortErrorKind, Ports, Result, Tables};

/// An empty chain that identifies the table as this program's.
pub(crate) const OWNED: &str = "made-by-proxier-core";
/// Comment of nftables mode's table. A comment cannot be removed without the table.
pub(crate) const COMMENT: &str = "Services";
pub(crate) const COMMENT_OF_IPVS: &str = "Services by IPVS";
pub(crate) const COMMENT_OF_FAST_PATH: &str = "Fast path of Services";

/// Whether a table with this program's name was created by this program: it has the chain or a comment. Any other one
/// is another program's.
pub(crate) fn is_marked(table: &Table, has_chain: bool) -> bool {
    const COMMENTS: [&str; 3] = [COMMENT, COMMENT_OF_IPVS, COMMENT_OF_FAST_PATH];
    has_chain || table.comment.as_deref().is_some_and(|comment| COMMENTS.contains(&comment))
}

pub(crate) fn is_ours(key: &TableKey, tables: &mut dyn Tables) -> Result<bool> {
    Ok(tables.has_chain(key, OWNED)? || tables.table(key)?.is_some_and(|table| is_marked(&table, false)))
}

/// `RTN_LOCAL` (linux/rtnetlink.h): an address of this host.
pub(crate) const RTN_LOCAL: u32 = 2;

/// Has the kernel check tables of families under a name that is not in use, without creating any: all at once, and each
/// family's if it refuses that. `add` adds a family's. Each check waits for the kernel's readers (`synchronize_rcu` in
/// `__nf_tables_abort`), which adds about ten milliseconds to a start. An error names what the kernel lacks.
pub(crate) fn trials(
    families: impl IntoIterator<Item = Family>,
    tables: &mut dyn Tables,
    add: impl Fn(&mut Transaction, Family, &Name),
) -> Vec<(Family, Result<()>)> {
    let mut check = |families: &[Family]| {
        let trial = name(format_args!("proxier-trial-{}", std::process::id()));
        let mut transaction = Transaction::new();
        for family in families {
            add(&mut transaction, *family, &trial);
        }
        tables.check(&transaction).map_err(|refused| refused.error)
    };
    let families: Vec<Family> = families.into_iter().collect();
    if families.len() > 1 && check(&families).is_ok() {
        return families.into_iter().map(|family| (family, Ok(()))).collect();
    }
    families.into_iter().map(|family| (family, check(&[family]))).collect()
}

/// A name that this program defines.
pub(crate) fn name(name: impl fmt::Display) -> Name {
    // Own names are all valid; the kernel would refuse an invalid one.
    Name::new(&name.to_string()).unwrap_or_else(|_| unnamed())
}

fn unnamed() -> Name {
    #[expect(clippy::unwrap_used, reason = "a constant name that a test makes")]
    Name::new("unnamed").unwrap()
}

/// Rules that refuse the packets that `matching` matches: TCP by a reset, since the kernel limits ICMP for each client
/// (`icmp_ratelimit`), other protocols by the code "port unreachable" of RFC 792 and RFC 4443.
pub(crate) fn rejections(family: Family, matching: impl Fn() -> RuleBuilder) -> [Rule; 2] {
    let port_unreachable = match family {
        Family::V4 => 3,
        Family::V6 => 4,
    };
    [
        built(matching().meta_l4proto(L4Protocol::TCP).reject(Reject::TcpReset)),
        built(matching().reject(Reject::Icmp(port_unreachable))),
    ]
}

/// Compares the name of the interface where a packet arrives, or its prefix. A name that no interface can have makes a
/// rule that cannot be built ([`built`]).
pub(crate) fn interface(rule: RuleBuilder, name: &str, is_prefix: bool, op: CmpOp) -> RuleBuilder {
    let register = Register::FIRST;
    let mut bytes = name.as_bytes().to_vec();
    if !is_prefix {
        bytes.resize(bytes.len().max(16), 0);
    }
    match Value::new(&bytes) {
        Ok(value) if bytes.len() <= 16 => {
            let rule = rule.expression(Expression::Meta { key: MetaKey::IifName, register });
            rule.expression(Expression::Cmp { register, op, value })
        }
        _ => rule.iifname(name),
    }
}

/// Matches packets of this node's pods, with [`CmpOp::Ne`] all others; `None` if pods are not told apart, or nothing
/// else exists.
pub(crate) fn of_pods(rule: RuleBuilder, pods: &PodTraffic, op: CmpOp) -> Option<RuleBuilder> {
    match (pods, op) {
        (PodTraffic::Unknown, _) => None,
        (PodTraffic::Network(network), CmpOp::Eq) if network.prefix_len() == 0 => Some(rule),
        (PodTraffic::Network(network), _) if network.prefix_len() == 0 => None,
        (PodTraffic::Network(network), CmpOp::Eq) => Some(rule.saddr_in(network.network(), network.prefix_len())),
        (PodTraffic::Network(network), _) => Some(rule.saddr_not_in(network.network(), network.prefix_len())),
        (PodTraffic::Interface(name), _) => Some(interface(rule, name.as_str(), false, op)),
        (PodTraffic::Prefix(name), _) => {
            // A prefix of maximum length matches only the name itself.
            Some(interface(rule, name.as_str(), name.as_str().len() < InterfaceName::MAX_LEN, op))
        }
    }
}

pub(crate) fn no_fields() -> FieldTypes {
    #[expect(clippy::unwrap_used, reason = "a constant type that a test makes")]
    FieldTypes::of(&[DataType::INET_SERVICE]).unwrap()
}

pub(crate) fn address(bytes: &[u8], family: Family) -> Option<(IpAddr, &[u8])> {
    Some(match family {
        Family::V4 => {
            let (address, rest) = bytes.split_first_chunk::<4>()?;
            (IpAddr::from(*address), rest)
        }
        Family::V6 => {
            let (address, rest) = bytes.split_first_chunk::<16>()?;
            (IpAddr::from(*address), rest)
        }
    })
}

pub(crate) fn protocol_and_port(bytes: &[u8]) -> Option<(Protocol, u16, &[u8])> {
    let (protocol, rest) = bytes.split_first_chunk::<4>()?;
    let protocol = Protocol::ALL.into_iter().find(|of| ipset::Protocol::from(*of).number() == protocol[0])?;
    // Each field fills whole words.
    let (port, rest) = match rest.split_first_chunk::<4>() {
        Some(([high, low, ..], rest)) => ([*high, *low], rest),
        None => (*rest.first_chunk::<2>()?, <&[u8]>::default()),
    };
    Some((protocol, u16::from_be_bytes(port), rest))
}

/// The Frontend at the start of a key, and the rest.
pub(crate) fn leading_frontend(bytes: &[u8], family: Family) -> Option<(FrontendKey, &[u8])> {
    let (address, rest) = address(bytes, family)?;
    let (protocol, port, rest) = protocol_and_port(rest)?;
    Some((FrontendKey::new(protocol, address, port), rest))
}

/// A chain that no table has.
const UNBUILDABLE: &str = "a-rule-that-cannot-be-built";

/// A rule that this program defines. One with an impossible value jumps to a chain that does not exist. The kernel then
/// refuses the whole transaction, so that a guard is never written without its rule, or with one that matches
/// everything.
pub(crate) fn built(rule: RuleBuilder) -> Rule {
    rule.build().unwrap_or_else(|error| {
        let mut refused = Rule::default();
        refused.expressions.push(Expression::Verdict(Verdict::Goto(name(UNBUILDABLE))));
        refused.comment = Some(error.to_string());
        refused
    })
}

/// The base chains of IPv4 and IPv6 at this hook, and their policies. What cannot be read is left out.
pub(crate) fn base_chains(hook: Hook, kind: &ChainType, tables: &mut dyn Tables) -> Vec<(ChainKey, Policy)> {
    let sees_packets = |table: &TableKey| matches!(table.family, NftFamily::Ip | NftFamily::Ip6 | NftFamily::Inet);
    let mut found = Vec::new();
    for table in tables.list().unwrap_or_default().into_iter().filter(sees_packets) {
        for observed in tables.chains(&table).unwrap_or_default() {
            let base = observed.chain.base.filter(|base| base.hook == hook && base.kind == *kind);
            found.extend(base.map(|base| (observed.chain.key, base.policy)));
        }
    }
    found
}

/// Whether this is iptables' chain of that name in table filter.
pub(crate) fn is_of_iptables(chain: &ChainKey, name: &str) -> bool {
    let is_filter = |family| compat::table_key(family, &TableName::FILTER).is_ok_and(|key| key == chain.table);
    chain.name.as_str() == name && Family::ALL.into_iter().any(is_filter)
}

const TABLES_OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

/// Whether iptables may have tables of this family, determined without a program.
pub(crate) fn may_have_iptables(family: Family, ports: &mut Ports<'_>) -> bool {
    let of_nft = |of: &&str| {
        let table = TableKey { family: family.into(), name: name(of) };
        ports.tables.table(&table).is_ok_and(|table| table.is_some())
    };
    ports.rules.has_tables(family) != Some(false) || TABLES_OF_IPTABLES.iter().any(of_nft)
}

/// Whether a refusal of this kind means that the kernel's state is not the expected one, so that writing fewer elements
/// would not help.
pub(crate) fn is_of_the_state(error: &PortError) -> bool {
    use PortErrorKind::{AlreadyExists, NotFound, Unknown};
    matches!(error.kind(), NotFound | AlreadyExists | Unknown)
}

/// Whether a single element may be what the kernel refuses.
pub(crate) fn is_of_an_element(error: &PortError) -> bool {
    use PortErrorKind::{Busy, Permission, Unavailable};
    !is_of_the_state(error) && !matches!(error.kind(), Busy | Permission | Unavailable)
}

/// Advice about a table with this program's name but without its mark.
pub(crate) fn made_by_others(table: &TableKey) -> String {
    format!("another program made it; rename it there, or delete it with 'nft delete table {table}'")
}

/// Removes a table if it is this program's. A missing table, or a kernel without nf_tables, counts as done.
///
/// All rules go in one transaction, the table in a second one. In a transaction that deletes a chain, the kernel leaves
/// the chain's rules as they are and takes its hook away after the new generation has begun, one hook after the other
/// (`nf_tables_commit_chain_prepare` and `nf_tables_commit` in nf_tables_api.c). Meanwhile a new connection would no
/// longer be translated, but still be refused by the chain for addresses of Services.
pub(crate) fn remove_table(
    table: &TableKey,
    is_ours: impl FnOnce(&TableKey, &mut dyn Tables) -> Result<bool>,
    tables: &mut dyn Tables,
    cleaned: &mut Cleaned,
) {
    match is_ours(table, tables) {
        Ok(true) => {
            let (mut emptied, mut deleted) = (Transaction::new(), Transaction::new());
            emptied.flush_table(table);
            deleted.delete_table(table);
            let outcome = match tables.commit(&emptied).and_then(|()| tables.commit(&deleted)) {
                Err(NotCommitted { error, .. }) if error.kind() != PortErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
            cleaned.applied.note(Step::new(Action::Delete, Part::Table, table), outcome);
        }
        Ok(false) => {}
        Err(error) if matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::NotFound) => {}
        Err(error) => cleaned.unread.push(Unread::new(format_args!("table {table}"), error)),
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use nftables::{BaseChain, Chain, ChainKey, ChainType, Hook, Priority, rule};

    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn a_rule_that_cannot_be_built_is_never_written() {
        let table = TableKey { family: NftFamily::Ip, name: name("proxier") };
        let key = ChainKey { table: table.clone(), name: name("guard") };
        let hook = BaseChain::new(ChainType::Filter, Hook::Input, Priority(0));
        let write = |rule: Rule| {
            let mut transaction = Transaction::new();
            transaction.create_table(Table::new(table.clone())).add_chain(Chain::base(key.clone(), hook.clone()));
            transaction.add_rule(&key, rule);
            FakeKernel::new().ports().tables.commit(&transaction).map_err(|refused| refused.error.kind())
        };
        let of_interface = |name: &str| built(interface(rule(NftFamily::Ip), name, false, CmpOp::Eq).drop_packet());
        assert_eq!(write(of_interface("a-name-of-15-by")), Ok(()));
        assert_eq!(write(of_interface("a-name-of-17-bytes")), Err(PortErrorKind::NotFound));
        let mixed = rule(NftFamily::Inet).saddr([192, 0, 2, 1].into()).daddr("2001:db8::1".parse().unwrap());
        assert_eq!(write(built(mixed.drop_packet())), Err(PortErrorKind::NotFound));
    }
}
