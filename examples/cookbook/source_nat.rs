//! Source NAT with a pool of addresses: a client always gets the same one.
//!
//! `cargo run -p examples --example source_nat -- DEVICE ADDRESS…`, for example `eth0 192.0.2.10 192.0.2.11`
//!
//! Connections that leave by DEVICE get a source from the pool, chosen by a hash of the client's address: one rule and
//! one map for any number of clients. Existing connections keep their source when the pool changes. The pool's
//! addresses must reach this host: assign them to DEVICE, or route them here.
//!
//! Needs nf_tables with NAT and `CAP_NET_ADMIN`; IPv4 only. `nft delete table ip cookbook-snat` undoes it.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use examples::Failure;
use nftables::{
    BaseChain, Chain, ChainType, Client, Element, Family, Hook, Operand, Priority, Set, Table, TableKey, Transaction,
    Value, rule,
};

/// Fixed seed of the hash: a client keeps its address after a restart.
const SEED: u32 = 0x5eed_0001;

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (device, pool) = match arguments.as_slice() {
        [device, pool @ ..] if !pool.is_empty() => (device, pool),
        _ => return Err("usage: source_nat DEVICE ADDRESS…".into()),
    };
    let pool = pool.iter().map(|word| word.parse()).collect::<Result<Vec<Ipv4Addr>, _>>()?;
    let transaction = source_nat(device, &pool)?;
    print!("{transaction}");
    Client::open()?.commit(&transaction)?;
    Ok(())
}

/// Our own table, replacing an earlier one atomically.
fn source_nat(device: &str, pool: &[Ipv4Addr]) -> Result<Transaction, Failure> {
    let table = TableKey::new(Family::Ip, "cookbook-snat")?;
    let postrouting = table.chain("postrouting")?;
    let modulus = u32::try_from(pool.len())?;
    let place = [Operand::Hash { of: vec![Operand::IP_SADDR], modulus, seed: Some(SEED), offset: 0 }];
    // A number below the size of the pool. nft has no type notes for hashes, but for random numbers of the same type.
    let addresses = Set::typeof_map(table.set("pool")?, &[Operand::random(modulus)], &[Operand::IP_SADDR])?;

    let mut transaction = Transaction::new();
    transaction.remove_table(&table).add_table(Table::new(table));
    let base = BaseChain::new(ChainType::Nat, Hook::Postrouting, Priority::SRCNAT);
    transaction.add_chain(Chain::base(postrouting.clone(), base));
    transaction.add_set(addresses.clone());
    for (number, address) in (0..).zip(pool) {
        transaction.add_elements(&addresses, [Element::value(Value::mark(number)).maps_to(*address)]);
    }
    // oifname DEVICE snat ip to jhash ip saddr mod N map @pool
    let translate = rule(Family::Ip).oifname(device).snat_to_address_map(Family::Ip, &place, &addresses.key);
    transaction.add_rule(&postrouting, translate.build()?);
    Ok(transaction)
}
