//! Brings sets to the state in a file in the format of `ipset save`. No entry is missing at any moment.
//!
//! `cargo run -p ipset --example sync -- FILE` (needs `CAP_NET_ADMIN`)

use ipset::{Client, parse_save};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: sync FILE")?;
    let wanted = parse_save(&std::fs::read_to_string(file)?)?;
    let mut client = Client::open()?;
    for set in &wanted {
        let report = client.sync(&set.spec, &set.entries)?;
        println!(
            "{}: {} added, {} updated, {} deleted, {} unchanged{}",
            set.spec.name,
            report.added,
            report.updated,
            report.deleted,
            report.unchanged,
            if report.swapped { ", swapped" } else { "" }
        );
    }
    Ok(())
}
