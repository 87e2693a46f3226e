//! A network policy in nf_tables sets, replaced as a whole: which clients may connect to which pods.
//!
//! `cargo run -p examples --example network_policy -- FILE`
//!
//! Each line of FILE allows clients to connect by TCP: `POD NETWORK PORT`, for example `10.244.1.7 10.244.2.0/24 8080`.
//! Networks of one pod and port must not overlap. A listed pod accepts nothing else from other hosts and pods; a line
//! with only `POD` closes it. Other pods accept everything.
//!
//! There are three rules for any number of pods, since the differences are in the sets. The kernel applies a change in
//! one transaction, so no packet sees half of it. Replies to accepted connections still pass.
//!
//! Needs nf_tables (Linux 5.6 or later) and `CAP_NET_ADMIN`. `nft list table ip cookbook-policy` shows the result.

use std::fs;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use examples::Failure;
use nftables::{
    BaseChain, Chain, ChainType, Client, CtState, Element, Family, Hook, L4Protocol, Operand, Priority, Set, SetFlags,
    Table, TableKey, Transaction, Value, rule,
};

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("usage: network_policy FILE")?;
    let transaction = policy(&fs::read_to_string(&file)?).map_err(|error| format!("{file}: {error}"))?;
    Client::open()?.commit(&transaction)?;
    println!("{file} holds");
    Ok(())
}

/// Transaction that replaces the whole policy.
fn policy(text: &str) -> Result<Transaction, Failure> {
    let allowing = [Operand::IP_DADDR, Operand::IP_SADDR, Operand::DPORT];
    let table = TableKey::new(Family::Ip, "cookbook-policy")?;
    let forward = table.chain("forward")?;
    let closed = Set::typeof_set(table.set("closed")?, &[Operand::IP_DADDR])?;
    let allowed = Set::typeof_set(table.set("allowed")?, &allowing)?.flags(SetFlags::INTERVAL);

    let mut transaction = Transaction::new();
    // Adding an existing object is harmless; it is then emptied, so the first run and later ones are the same.
    transaction.add_table(Table::new(table));
    transaction
        .add_chain(Chain::base(forward.clone(), BaseChain::new(ChainType::Filter, Hook::Forward, Priority::FILTER)));
    transaction.add_set(closed.clone());
    transaction.add_set(allowed.clone());
    transaction.flush_chain(&forward).flush_set(&closed.key).flush_set(&allowed.key);

    let ip = || rule(Family::Ip);
    transaction.add_rule(&forward, ip().ct_state(CtState::ESTABLISHED | CtState::RELATED).accept().build()?);
    let by_policy = ip().meta_l4proto(L4Protocol::TCP).in_set(&allowing, &allowed.key).accept();
    transaction.add_rule(&forward, by_policy.build()?);
    let refused = ip().in_set(&[Operand::IP_DADDR], &closed.key).counter().drop_packet();
    transaction.add_rule(&forward, refused.build()?);

    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let entry = || -> Result<Option<(Ipv4Addr, Option<Element>)>, Failure> {
            Ok(match words.as_slice() {
                [] => None,
                [pod] => Some((pod.parse()?, None)),
                [pod, network, port] => {
                    let pod: Ipv4Addr = pod.parse()?;
                    let (first, last) = range(network)?;
                    let key = |client: Ipv4Addr| -> Result<Value, Failure> {
                        Ok(Value::concat(&[pod.into(), client.into(), Value::port(port.parse()?)])?)
                    };
                    Some((pod, Some(Element::range(key(first)?, key(last)?))))
                }
                _ => return Err("not POD, nor POD NETWORK PORT".into()),
            })
        };
        if let Some((pod, element)) = entry().map_err(|error| format!("line {number}: {error}"))? {
            transaction.add_elements(&closed, [Element::value(pod)]).add_elements(&allowed, element);
        }
    }
    Ok(transaction)
}

/// First and last address of a network.
fn range(network: &str) -> Result<(Ipv4Addr, Ipv4Addr), Failure> {
    let (address, prefix) = network.split_once('/').unwrap_or((network, "32"));
    let bits: u32 = address.parse::<Ipv4Addr>()?.into();
    let prefix: u32 = prefix.parse()?;
    if prefix > 32 {
        return Err(format!("{network} is not a network").into());
    }
    let host = u32::MAX.checked_shr(prefix).unwrap_or(0);
    Ok(((bits & !host).into(), (bits | host).into()))
}
