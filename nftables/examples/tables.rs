//! Prints the tables of this network namespace in nft's syntax: all, or the one named `FAMILY NAME`.

use nftables::{Client, TableKey};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut client = Client::open()?;
    let keys = client.list_tables(None)?.into_iter().map(|found| found.table.key);
    let keys: Vec<TableKey> = keys.filter(|key| wanted.is_empty() || key.to_string() == wanted.join(" ")).collect();
    for key in keys {
        print!("{}", client.snapshot(&key)?);
    }
    Ok(())
}
