//! Creates a small firewall in its own table, atomically, and prints it. With `check` it only asks the kernel whether
//! it would accept it.
//!
//! Run it in a throw-away network namespace: `unshare -rn cargo run -p nftables --example firewall`.

use nftables::expr::{IcmpCode, LimitUnit, Reject};
use nftables::{
    BaseChain, Chain, ChainType, Client, CtState, DataType, Element, Family, FieldTypes, Hook, L4Protocol, Operand,
    Policy, Priority, Set, SetFlags, Table, TableKey, Transaction, rule,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only_check = std::env::args().nth(1).is_some_and(|word| word == "check");
    let table = TableKey::new(Family::Inet, "example-firewall")?;
    let input = table.chain("input")?;
    let admins = Set::new(table.set("admins")?, FieldTypes::of(&[DataType::IPV4_ADDR])?).flags(SetFlags::INTERVAL);
    let inet = || rule(Family::Inet);

    let mut transaction = Transaction::new();
    // The table of an earlier run is replaced in the same transaction.
    transaction.remove_table(&table).add_table(Table::new(table));
    let base = BaseChain::new(ChainType::Filter, Hook::Input, Priority::FILTER);
    transaction.add_chain(Chain::base(input.clone(), base).policy(Policy::Drop));
    transaction.add_set(admins.clone());
    let first = "192.0.2.0".parse::<std::net::Ipv4Addr>()?;
    let last = "192.0.2.127".parse::<std::net::Ipv4Addr>()?;
    transaction.add_elements(&admins, [Element::range(first, last).comment("the office")]);
    for builder in [
        inet().ct_state(CtState::ESTABLISHED | CtState::RELATED).accept(),
        inet().ct_state(CtState::INVALID).drop_packet(),
        inet().iifname("lo").accept(),
        inet().meta_l4proto(L4Protocol::TCP).dport(80).counter().accept().comment("the web server"),
        inet().meta_l4proto(L4Protocol::TCP).dport(22).in_set(&[Operand::IP_SADDR], &admins.key).accept(),
        inet().limit(5, LimitUnit::Minute, 5).log("refused: "),
        inet().reject(Reject::Unreachable(IcmpCode::AdminProhibited)),
    ] {
        transaction.add_rule(&input, builder.build()?);
    }

    let mut client = Client::open()?;
    if only_check {
        client.check(&transaction)?;
        print!("{transaction}");
        return Ok(());
    }
    client.commit(&transaction)?;
    print!("{}", client.snapshot(&input.table)?);
    Ok(())
}
