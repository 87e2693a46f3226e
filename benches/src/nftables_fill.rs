//! 100,000 elements into a map, in one transaction.

use std::fmt::Write as _;
use std::io;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipvs::Transport;
use nftables::{Client, DataType, Element, Family, FieldTypes, InvalidValue, Set, Table, TableKey, Transaction, Value};

use crate::compare::{Side, compare};
use crate::report::{Goal, Report};
use crate::{Failure, Options, namespace, program};

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    same_bytes()?;
    let elements = if options.smoke { "2000" } else { "100000" };
    let (c, ours, nft) = ("C program, one transaction", "nftables crate", "nft -f");
    let whole = "nftables crate, from making the elements";
    let side = |way: &'static str| move || namespace::measure(&["nftables-fill", way, elements]);
    let mut report = Report::new("nftables-fill", options);
    let group = ("Filling a map", Some(elements.parse()?));
    let sides = vec![
        Side::new(c, side("c")),
        Side::new(ours, side("ours")),
        Side::new(whole, side("whole")),
        Side::new(nft, side("nft")),
    ];
    compare(&mut report, options, group, sides)?;
    report.ratio("NF1: nftables crate / C program", group, ours, c, Goal::AtMost("<= 1.15", 1.15));
    report.ratio(
        "NF2: nft -f / nftables crate, from making the elements",
        group,
        nft,
        whole,
        Goal::AtLeast(">= 5", 5.0),
    );
    report.finish()
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

/// A transport that keeps what it is given and answers nothing.
struct Recorder(Arc<Mutex<Vec<u8>>>);

impl Transport for Recorder {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(datagram);
        Ok(())
    }

    fn receive(&mut self, _buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn port(&self) -> u32 {
        0
    }

    fn in_flight(&self) -> usize {
        1
    }
}

/// Whether the C program and the crate send the same bytes.
fn same_bytes() -> Result<(), Failure> {
    let count = 5000;
    let sent = Arc::new(Mutex::new(Vec::new()));
    let mut client = Client::with_transport(Recorder(Arc::clone(&sent)));
    if client.commit(&fill(count)?).is_ok() {
        return Err("a transport without answers gave one".into());
    }
    let ours = sent.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let theirs = Command::new(program::in_c("nft_fill")?).args([&count.to_string(), "--print"]).output()?.stdout;
    program::same_bytes(&ours, &theirs)
}

pub(crate) fn side(arguments: &[&str]) -> Result<Duration, Failure> {
    let [way, elements] = arguments else { return Err("WAY ELEMENTS".into()) };
    let count: u32 = elements.parse()?;
    let set = set()?;
    let mut transaction = Transaction::new();
    transaction.add_table(Table::new(set.key.table.clone()));
    transaction.add_set(set.clone().size(1 << 20));
    Client::open()?.commit(&transaction)?;
    let took = match *way {
        "c" => {
            let output = Command::new(program::in_c("nft_fill")?).arg(elements).stderr(Stdio::inherit()).output()?;
            Duration::from_nanos(String::from_utf8(output.stdout)?.trim().parse()?)
        }
        "ours" => {
            let transaction = fill(count)?;
            let start = Instant::now();
            Client::open()?.commit(&transaction)?;
            start.elapsed()
        }
        "whole" => {
            let start = Instant::now();
            let transaction = fill(count)?;
            Client::open()?.commit(&transaction)?;
            start.elapsed()
        }
        "nft" => {
            let mut text = String::from("add element inet bench filled { ");
            for number in 0..count {
                let _infallible = write!(text, "{} . tcp . 80 : {} . 8080, ", from(number), to(number));
            }
            text.push_str("}\n");
            program::feed("nft", &["-f", "-"], &text)?
        }
        other => return Err(format!("no such way: {other}").into()),
    };
    // The timed side must have done the whole work.
    let mut found = 0_u32;
    Client::open()?.for_each_element(&set.key, |_| found += 1)?;
    if found != count {
        return Err(format!("{way} left {found} elements instead of {count}").into());
    }
    Ok(took)
}
