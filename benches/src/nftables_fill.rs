//! 100,000 elements into a map, in one transaction.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use nftables::fake::FakeNftables;
use nftables::{Client, DataType, Element, Family, FieldTypes, InvalidValue, Set, Table, TableKey, Transaction, Value};

use crate::namespace::{compare, tell};
use crate::program::timed;
use crate::report::{Goal, Report, ms};
use crate::tape::Tape;
use crate::{Failure, Options, program};

const WHAT: &str = "Filling a map";
const C: &str = "C program, one transaction";
const OURS: &str = "nftables crate";
const WHOLE: &str = "nftables crate, from making the elements";
const NFT: &str = "nft -f";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    same_bytes()?;
    let elements = if options.smoke { "2000" } else { "100000" };
    let mut report = Report::new("nftables-fill", options);
    let ways = [("c", C), ("ours", OURS), ("whole", WHOLE), ("nft", NFT)];
    compare(&mut report, options, ("nftables-fill", elements), &ways)?;
    let group = (WHAT, Some(elements.parse()?));
    report.ratio("NF1: nftables crate / C program", group, OURS, C, Goal::AtMost("<= 1.15", 1.15));
    let goal = Goal::AtLeast(">= 5", 5.0);
    report.ratio("NF2: nft -f / nftables crate, from making the elements", group, NFT, WHOLE, goal);
    report.finish()
}

/// The map, empty, in a table.
fn empty() -> Result<Transaction, InvalidValue> {
    let set = set()?;
    let mut transaction = Transaction::new();
    transaction.add_table(Table::new(set.key.table.clone()));
    transaction.add_set(set.size(1 << 20));
    Ok(transaction)
}

fn set() -> Result<Set, InvalidValue> {
    let key = FieldTypes::of(&[DataType::IPV4_ADDR, DataType::INET_PROTO, DataType::INET_SERVICE])?;
    let data = FieldTypes::of(&[DataType::IPV4_ADDR, DataType::INET_SERVICE])?;
    Ok(Set::map(TableKey::new(Family::Inet, "bench")?.set("filled")?, key, data))
}

fn from(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + number)
}

fn to(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0b00_0000 + number)
}

fn element(number: u32) -> Result<Element, InvalidValue> {
    let key = Value::concat(&[from(number).into(), Value::byte(6), Value::port(80)])?;
    Ok(Element::value(key).maps_to(Value::concat(&[to(number).into(), Value::port(8080)])?))
}

fn fill(count: u32) -> Result<Transaction, InvalidValue> {
    let mut elements = Vec::with_capacity(usize::try_from(count).unwrap_or_default());
    for number in 0..count {
        elements.push(element(number)?);
    }
    let mut transaction = Transaction::new();
    transaction.add_elements(&set()?, elements);
    Ok(transaction)
}

/// Whether the C program and the crate send the same bytes.
fn same_bytes() -> Result<(), Failure> {
    let count = 5000;
    let (kernel, tape) = (FakeNftables::new(), Tape::default());
    Client::with_transport(kernel.transport()).commit(&empty()?)?;
    Client::with_transport(tape.record(kernel.transport())).commit(&fill(count)?)?;
    let theirs = program::in_c("nft_fill", &[&count.to_string(), "--print"])?;
    program::same_bytes(&tape.sent().concat(), &theirs)
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, elements] = arguments else { return Err("WAY ELEMENTS".into()) };
    let count: u32 = elements.parse()?;
    Client::open()?.commit(&empty()?)?;
    let (name, took) = match *way {
        "c" => (C, program::timed_in_c("nft_fill", &[elements])?),
        "ours" => {
            let transaction = fill(count)?;
            (OURS, timed(|| Client::open()?.commit(&transaction))?.1)
        }
        "whole" => (WHOLE, timed(|| Ok::<_, Failure>(Client::open()?.commit(&fill(count)?)?))?.1),
        "nft" => {
            let mut text = String::from("add element inet bench filled { ");
            for number in 0..count {
                let _infallible = write!(text, "{} . tcp . 80 : {} . 8080, ", from(number), to(number));
            }
            text.push_str("}\n");
            (NFT, program::feed("nft", &["-f", "-"], &text)?)
        }
        other => return Err(format!("no such way: {other}").into()),
    };
    // The timed side must have done the whole work.
    let mut found = 0_u32;
    Client::open()?.for_each_element(&set()?.key, |_| found += 1)?;
    if found != count {
        return Err(format!("{way} left {found} elements instead of {count}").into());
    }
    tell(WHAT, count, "ms", name, ms(took));
    Ok(())
}
