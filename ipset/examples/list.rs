//! Prints all sets of the network namespace, or one named set, in the format of `ipset save`.
//!
//! `cargo run -p ipset --example list -- [NAME]` (needs `CAP_NET_ADMIN`)

use ipset::{Client, SavedSet, SetName, save};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut client = Client::open()?;
    let sets = match std::env::args().nth(1) {
        Some(name) => vec![client.get_set(&SetName::new(&name)?)?],
        None => client.list_sets()?,
    };
    for set in &sets {
        eprintln!(
            "{}: {} entries, {} references, {} bytes, revision {}",
            set.spec.name,
            set.entries.len(),
            set.references,
            set.memory,
            set.revision
        );
    }
    let saved: Vec<SavedSet> = sets.into_iter().map(SavedSet::from).collect();
    print!("{}", save(&saved));
    Ok(())
}
