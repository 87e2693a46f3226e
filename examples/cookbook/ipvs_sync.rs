//! Starts the kernel's synchronisation daemons, which multicast connections to other nodes and receive theirs, so that
//! an address can move to another node without cutting connections. Real servers must reply to clients directly, since
//! masqueraded connections are cut regardless.
//!
//! As `ExecStart=` of systemd, after the device is up:
//!
//! ```text
//! cargo run -p examples --example ipvs_sync -- start eth0 7
//! cargo run -p examples --example ipvs_sync -- stop  eth0 7
//! ```
//!
//! Nodes with the same number exchange connections in clear text, so use a private network. With both daemons on every
//! node no election is needed. The kernel does not report who started a daemon, so one on another device or with
//! another number is not changed: keepalived's `lvs_sync_daemon` may have started it.
//!
//! Needs IPVS and `CAP_NET_ADMIN`.

use std::process::ExitCode;

use examples::Failure;
use ipvs::Client;
use ipvs::model::{DaemonState, SyncDaemon};

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [action, interface, number] = arguments.as_slice() else {
        return Err("usage: ipvs_sync start|stop DEVICE NUMBER".into());
    };
    let starts = match action.as_str() {
        "start" => true,
        "stop" => false,
        other => return Err(format!("{other:?} is neither start nor stop").into()),
    };
    let mut ipvs = Client::open()?;
    let running = ipvs.list_daemons()?;
    for state in [DaemonState::Master, DaemonState::Backup] {
        let wanted = SyncDaemon::new(state, interface.parse()?, number.parse()?);
        match running.iter().find(|daemon| daemon.state == state) {
            Some(there) if (there.interface, there.sync_id) != (wanted.interface, wanted.sync_id) => {
                return Err(format!(
                    "the {state} on {}, number {}, is another program's",
                    there.interface, there.sync_id
                )
                .into());
            }
            None if starts => ipvs.start_daemon(&wanted)?,
            Some(_) if !starts => ipvs.stop_daemon(state)?,
            _ => {}
        }
    }
    Ok(())
}
