//! Synchronisation daemons of IPVS ([`ConnectionSync`]), of which the kernel has at most one in each state.
//!
//! The kernel does not say who started a daemon. Interface and sync id name the proxy's own: one that runs with those of the configuration is adopted,
//! or started again where its other settings differ, since none can be changed while it runs. Any other is foreign and stays.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::model::{DaemonState, SyncDaemon};

use super::Kind;
use crate::config::{Config, ConnectionSync};
use crate::modes::shared::cleaned::Cleaned;
use crate::plan::execute::call_one;
use crate::plan::names::Names;
use crate::plan::operation::Operation;
use crate::plan::report::{Applied, Report};
use crate::plan::shown::ShownDaemon;
use crate::plan::step::{Action, Part};
use crate::ports::{Ipvs, Ports};
use crate::snapshot::HostAddresses;

/// Change of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    action: Action,
    /// The daemon to start; with [`Action::Delete`] the one that runs.
    daemon: SyncDaemon,
    /// Another program stopped it, or started it with other settings.
    pub(crate) is_drift: bool,
}

impl Change {
    pub(crate) fn operation(&self) -> Operation<'_> {
        Operation::SyncDaemon(self.action, &self.daemon)
    }
}

/// Daemons from pass to pass.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// States whose daemon ran as wanted when this process last looked.
    running: BTreeSet<DaemonState>,
    /// Reasons why daemons do not run as wanted, as last reported; `None`: of all of them.
    told: BTreeMap<Option<DaemonState>, String>,
    /// Devices of the host may have changed.
    is_stale: bool,
}

impl Tracker {
    /// The host's devices were read.
    pub(crate) fn host_changed(&mut self) {
        self.is_stale = true;
    }

    /// The changes that make the daemons as wanted. Reads them in a full pass, and where devices may differ; without the setting never.
    pub(crate) fn plan(
        &mut self,
        (mode, config, host): (Kind, &Config, &HostAddresses),
        report: &mut Report,
        ipvs: &mut dyn Ipvs,
    ) -> Vec<Change> {
        let Some(sync) = config.ipvs.connection_sync.filter(|_| report.full || self.is_stale) else {
            return Vec::new();
        };
        self.is_stale = false;
        if mode != Kind::Ipvs {
            let reason = format!(
                "not in {mode} mode: only IPVS tells other nodes of its connections; where a client is to keep its endpoint on each node, ask for \
                 scheduler sh or mh"
            );
            self.tell(None, reason, report);
            return Vec::new();
        }
        let running = match ipvs.sync_daemons() {
            Ok(running) => running,
            Err(error) => {
                self.tell(None, format!("no connection is synchronised: {error}"), report);
                return Vec::new();
            }
        };
        let has_device = host.interfaces.contains_key(sync.interface.as_str());
        if has_device {
            self.told.remove(&None);
        } else {
            // A daemon does not notice that its device went, and does not find one that comes back.
            let reason = format!("no connection is synchronised until there is a device {}", sync.interface);
            self.tell(None, reason, report);
        }
        let wanted: Vec<SyncDaemon> = sync.daemons().filter(|_| has_device).collect();
        let states = [DaemonState::Master, DaemonState::Backup].into_iter();
        states
            .filter_map(|state| {
                let is_of_state = |daemon: &&SyncDaemon| daemon.state == state;
                let (wanted, there) = (wanted.iter().find(is_of_state), running.iter().find(is_of_state));
                if wanted.is_none() {
                    self.running.remove(&state);
                }
                self.compare(&sync, wanted, there, report)
            })
            .collect()
    }

    fn compare(
        &mut self,
        sync: &ConnectionSync,
        wanted: Option<&SyncDaemon>,
        there: Option<&SyncDaemon>,
        report: &mut Report,
    ) -> Option<Change> {
        let (action, daemon) = match (wanted, there) {
            (Some(wanted), Some(there)) if wanted.is_met_by(there) => {
                self.note_running(wanted.state);
                return None;
            }
            (Some(wanted), Some(there)) if !sync.owns(there) => {
                let reason = format!(
                    "the {} of another program stays, {}, and connections are not synchronised {}; to have that, end it there (ipvsadm \
                     --stop-daemon {0})",
                    there.state,
                    ShownDaemon(there),
                    ShownDaemon(wanted)
                );
                self.tell(Some(there.state), reason, report);
                return None;
            }
            (Some(wanted), there) => (if there.is_some() { Action::Change } else { Action::Add }, wanted),
            (None, Some(there)) if sync.owns(there) => (Action::Delete, there),
            (None, _) => return None,
        };
        Some(Change { action, daemon: *daemon, is_drift: wanted.is_some() && self.running.contains(&daemon.state) })
    }

    /// Carries out changes. What the kernel refuses fails no pass: it is reported, and tried again in the next full one, and when devices change.
    pub(crate) fn apply(
        &mut self,
        changes: &[Change],
        applied: &mut Applied,
        report: &mut Report,
        ports: &mut Ports<'_>,
    ) {
        for change in changes {
            let Change { action, daemon, .. } = change;
            match call_one(&change.operation(), ports) {
                Ok(()) => {
                    applied.count(Part::SyncDaemon, *action, 1);
                    if *action != Action::Delete {
                        self.note_running(daemon.state);
                    }
                }
                Err(error) => {
                    self.running.remove(&daemon.state);
                    let reason = format!("{error}; tried again in each full pass, and when devices change");
                    self.tell(Some(daemon.state), reason, report);
                }
            }
        }
    }

    fn note_running(&mut self, state: DaemonState) {
        self.running.insert(state);
        self.told.remove(&Some(state));
    }

    /// Reports a reason once.
    fn tell(&mut self, of: Option<DaemonState>, reason: String, report: &mut Report) {
        if self.told.get(&of) != Some(&reason) {
            report.limited.push(format!("ipvs.connectionSync: {reason}"));
            self.told.insert(of, reason);
        }
    }
}

/// Stops the daemons that the configuration names. `tells`: names those that stay.
pub(super) fn cleanup(config: &Config, tells: bool, ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let sync = config.ipvs.connection_sync;
    if sync.is_none() && !tells {
        return cleaned;
    }
    match ports.ipvs.sync_daemons() {
        Ok(running) => {
            for daemon in running {
                if sync.is_some_and(|sync| sync.owns(&daemon)) {
                    let stop = Operation::SyncDaemon(Action::Delete, &daemon);
                    cleaned.applied.carry_out([stop], &Names::NONE, ports);
                } else if tells {
                    cleaned.left.push(format!(
                        "sync daemon {} {} stays: ipvs.connectionSync does not name it; if no program needs it, ipvsadm --stop-daemon {0}",
                        daemon.state,
                        ShownDaemon(&daemon)
                    ));
                }
            }
        }
        Err(error) => cleaned.miss("synchronisation daemons", error),
    }
    cleaned
}
