//! Shows the statistics of all virtual servers continuously: connections and bytes per second.
//!
//! `cargo run -p examples --example ipvs_stats -- [SECONDS [ROUNDS]]` (as root)

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use examples::Failure;
use ipvs::Client;

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let rounds: u64 = arguments.next().map_or(Ok(u64::MAX), |text| text.parse())?;
    let mut ipvs = Client::open()?;
    let mut before = BTreeMap::new();
    for _ in 0..rounds {
        let now: BTreeMap<_, _> =
            ipvs.list_virtual_servers()?.into_iter().map(|observed| (observed.server.key, observed.stats)).collect();
        let rows: Vec<Vec<String>> = now
            .iter()
            .map(|(key, stats)| {
                // Counters that decreased were reset, or the virtual server is new.
                let old = before.get(key).copied().unwrap_or(ipvs::model::Stats::default());
                let rate = |new: u64, old: u64| (new.saturating_sub(old) / seconds.max(1)).to_string();
                vec![
                    key.to_string(),
                    stats.connections.to_string(),
                    rate(stats.connections, old.connections),
                    rate(stats.bytes_in, old.bytes_in),
                    rate(stats.bytes_out, old.bytes_out),
                ]
            })
            .collect();
        examples::print(&["VIRTUAL SERVER", "CONNECTIONS", "CONN/S", "IN B/S", "OUT B/S"], &rows);
        println!();
        before = now;
        std::thread::sleep(Duration::from_secs(seconds));
    }
    Ok(())
}
