//! Counters of the whole network namespace.

use std::io::BufRead;

use super::Error;
use super::lines::Lines;
use crate::model::{Info, Rates, Stats};

/// Counters of one CPU since its start. They are never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CpuCounters {
    /// The CPU's number.
    pub cpu: u32,
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// Counters of each CPU and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PerCpuStats {
    /// Counters of each possible CPU.
    pub cpus: Vec<CpuCounters>,
    /// Counters of all CPUs together, with rates. Differs from the sum if counters were reset.
    pub total: Stats,
}

const COUNTERS: &str = "five hexadecimal numbers: connections, packets in and out, bytes in and out";

fn hex(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// Exactly five hexadecimal numbers.
fn five<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<[u64; 5]> {
    let mut numbers = [0; 5];
    for number in &mut numbers {
        *number = hex(words.next()?)?;
    }
    words.next().is_none().then_some(numbers)
}

fn total([connections, packets_in, packets_out, bytes_in, bytes_out]: [u64; 5], rates: [u64; 5]) -> Stats {
    let [rate, packets_in_rate, packets_out_rate, bytes_in_rate, bytes_out_rate] = rates;
    let rates = Rates {
        connections: rate,
        packets_in: packets_in_rate,
        packets_out: packets_out_rate,
        bytes_in: bytes_in_rate,
        bytes_out: bytes_out_rate,
    };
    Stats { connections, packets_in, packets_out, bytes_in, bytes_out, rates }
}

fn header<R: BufRead>(lines: &mut Lines<R>, ends: &str, expected: &'static str) -> Result<(), Error> {
    let fits = lines.text(expected)?.trim_end().ends_with(ends);
    if fits { Ok(()) } else { Err(lines.malformed(expected)) }
}

fn rates<R: BufRead>(lines: &mut Lines<R>) -> Result<[u64; 5], Error> {
    header(lines, "", "an empty line")?;
    header(lines, "Bytes/s", "the header of rates")?;
    let rates = five(lines.text(COUNTERS)?.split_ascii_whitespace());
    rates.ok_or_else(|| lines.malformed(COUNTERS))
}

/// Kernel: `ip_vs_stats_show` in net/netfilter/ipvs/ip_vs_ctl.c. Since 4.1 the numbers are 64 bits wide.
pub(super) fn stats<R: BufRead>(lines: &mut Lines<R>) -> Result<Stats, Error> {
    header(lines, "Outgoing", "the first header of counters")?;
    header(lines, "Bytes", "the second header of counters")?;
    let counters = five(lines.text(COUNTERS)?.split_ascii_whitespace());
    let counters = counters.ok_or_else(|| lines.malformed(COUNTERS))?;
    Ok(total(counters, rates(lines)?))
}

/// Kernel: `ip_vs_stats_percpu_show` in net/netfilter/ipvs/ip_vs_ctl.c.
pub(super) fn per_cpu<R: BufRead>(lines: &mut Lines<R>) -> Result<PerCpuStats, Error> {
    const ROW: &str = "the number of a CPU or ~, and five hexadecimal numbers";
    header(lines, "Outgoing", "the first header of counters")?;
    header(lines, "Bytes", "the second header of counters")?;
    let mut cpus = Vec::new();
    loop {
        let mut words = lines.text(ROW)?.split_ascii_whitespace();
        let first = words.next();
        let counters = five(words);
        match (first, counters) {
            (Some("~"), Some(counters)) => return Ok(PerCpuStats { cpus, total: total(counters, rates(lines)?) }),
            (Some(cpu), Some([connections, packets_in, packets_out, bytes_in, bytes_out])) => {
                let cpu = hex(cpu).and_then(|cpu| u32::try_from(cpu).ok());
                let cpu = cpu.ok_or_else(|| lines.malformed(ROW))?;
                cpus.push(CpuCounters { cpu, connections, packets_in, packets_out, bytes_in, bytes_out });
            }
            _ => return Err(lines.malformed(ROW)),
        }
    }
}

/// Kernel: `ip_vs_info_seq_show` in net/netfilter/ipvs/ip_vs_ctl.c.
pub(super) fn info<R: BufRead>(lines: &mut Lines<R>) -> Result<Info, Error> {
    const HEADER: &str = "IP Virtual Server version 1.2.1 (size=4096)";
    let info = parse_info(lines.text(HEADER)?);
    info.ok_or_else(|| lines.malformed(HEADER))
}

fn parse_info(line: &str) -> Option<Info> {
    let (version, size) = line.strip_prefix("IP Virtual Server version ")?.split_once(" (size=")?;
    let mut parts = version.split('.').map(|part| part.parse::<u8>().ok());
    let version = [0, parts.next()??, parts.next()??, parts.next()??];
    let connection_table_size = size.strip_suffix(')')?.parse().ok()?;
    parts.next().is_none().then_some(Info { version: u32::from_be_bytes(version), connection_table_size })
}
