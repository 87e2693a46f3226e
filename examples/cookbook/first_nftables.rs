//! A table with one chain and one rule, as nft prints it. docs/embed.md explains it.

use nftables::{
    BaseChain, Chain, ChainType, Client, Family, Hook, L4Protocol, Priority, Table, TableKey, Transaction, rule,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let table = TableKey::new(Family::Inet, "example")?;
    let input = table.chain("input")?;
    let mut transaction = Transaction::new();
    // A table of an earlier run is replaced, so the program can run again.
    transaction.remove_table(&table).add_table(Table::new(table.clone()));
    transaction.add_chain(Chain::base(input.clone(), BaseChain::new(ChainType::Filter, Hook::Input, Priority::FILTER)));
    transaction
        .add_rule(&input, rule(Family::Inet).meta_l4proto(L4Protocol::TCP).dport(80).counter().accept().build()?);
    let mut nftables = Client::open()?; // needs CAP_NET_ADMIN in this network namespace
    nftables.commit(&transaction)?;
    print!("{}", nftables.snapshot(&table)?);
    Ok(())
}
