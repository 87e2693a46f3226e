//! The connection list of `/proc/net/ip_vs_conn`, made up and read.

use std::fmt::Write as _;
use std::io::BufReader;

use ipvs::proc::Connections;

/// The kernel's list of so many TCP connections.
pub(crate) fn text(number: u32) -> String {
    let mut text = String::from("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n");
    for index in 0..number {
        let state = match index % 3 {
            0 => "ESTABLISHED",
            1 => "TIME_WAIT",
            _ => "FIN_WAIT",
        };
        let (client, port) = (0x0a80_0001 + index / 1000, 32_768 + index % 1000);
        let (service, real) = (0x0a60_0001 + index % 5000, 0x0a90_0001 + index % 50_000);
        let _infallible = writeln!(
            text,
            "TCP {client:08X} {port:04X} {service:08X} 0050 {real:08X} 1F90 {state:<11} {:>7}",
            index % 900
        );
    }
    text
}

/// Number of connections in such a text.
pub(crate) fn parse(text: &str) -> usize {
    Connections::new(BufReader::new(text.as_bytes()), "ip_vs_conn").flatten().count()
}
