//! One suite for two backends: the fake kernel (`tests/fake.rs`) and a real one (`tests/kernel.rs`).
//!
//! Each case reads back through the client everything that it wrote through it. On a real kernel it is also compared
//! with the output of `ipvsadm --save --numeric`, written here by hand.
#![allow(
    dead_code,
    clippy::expect_used,
    reason = "each test program uses what is its own; tests stop at the first surprise"
)]

pub(crate) mod batches;
pub(crate) mod errno;
pub(crate) mod real_servers;
pub(crate) mod restless;
pub(crate) mod settings;
pub(crate) mod sync;
pub(crate) mod virtual_servers;

use ipvs::{Client, RealServer, Scheduler, VirtualServer, VirtualServerKey};
use netlink_batch::Genl;

/// Differences between the backends.
pub(crate) trait World {
    /// Another client of the same table.
    fn client(&self) -> Client;
    /// The family below, for requests that a client cannot be brought to send.
    fn genl(&self) -> Genl;
    /// The table as another program sees it: the lines of `ipvsadm --save --numeric`, sorted. `None` if the program is
    /// not installed.
    fn saved(&self) -> Option<Vec<String>>;
    /// The real servers with their upper and lower thresholds, as `ipvsadm --list --thresholds` says: `10.1.0.1:80 100 50`.
    fn thresholds(&self) -> Option<Vec<String>>;
    /// Whether this kernel has the scheduler.
    fn has(&self, scheduler: Scheduler) -> bool;
    /// Whether this is a real kernel.
    fn is_real(&self) -> bool;

    /// Compares the table with what it should be in ipvsadm's words.
    #[track_caller]
    fn expect(&self, lines: &[&str]) {
        let Some(saved) = self.saved() else { return };
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        lines.sort();
        assert_eq!(saved, lines);
    }

    /// Compares the thresholds with what they should be.
    #[track_caller]
    fn expect_thresholds(&self, lines: &[&str]) {
        if let Some(thresholds) = self.thresholds() {
            assert_eq!(thresholds, lines);
        }
    }
}

/// Calls `$run` with the names of all cases, by module.
macro_rules! for_each_case {
    ($run:ident) => {
        $run! {
            virtual_servers {
                an_empty_table_is_an_empty_list,
                every_kind_of_key,
                every_scheduler,
                scheduler_flags_have_names,
                persistence_and_its_granularity,
                persistence_engine,
                long_persistence_wraps_in_the_kernel,
                an_update_changes_everything_and_keeps_real_servers,
                an_update_takes_flags_away,
                adding_twice_is_refused,
                what_does_not_exist_is_not_found,
                a_missing_module_is_named,
                the_family_of_a_granularity_is_checked,
                deleting_takes_the_real_servers_along,
                flush_empties_the_table,
            }
            real_servers {
                a_drain_ends_with_the_deletion,
                every_forwarding_method,
                tunnels,
                another_family_needs_a_tunnel,
                weights_and_thresholds,
                the_last_added_comes_first,
                an_update_keeps_the_place,
                adding_twice_is_refused,
                what_does_not_exist_is_not_found,
                addresses_the_kernel_refuses,
                a_removed_one_comes_back,
                the_list_of_an_absent_virtual_server_is_empty,
                lists_of_every_length,
                a_snapshot_is_still_so_or_not,
            }
            batches {
                failures_in_the_middle,
                impossible_operations_keep_their_place,
                a_batch_in_which_everything_fails,
                refusals_know_what_they_follow_from,
                a_later_addition_ends_the_blame,
                a_big_table,
            }
            sync {
                one_table_becomes_another,
                weights_of_a_health_check_stay,
                a_refusal_and_what_follows_from_it,
                mistakes_in_the_wanted_state_write_nothing,
                other_spellings_are_no_difference,
            }
            restless {
                lists_are_never_partial,
                snapshots_are_never_partial,
            }
            settings {
                timeouts_one_by_one,
                impossible_timeouts_change_nothing,
                version_and_size,
                daemons,
                daemons_with_everything_said,
                a_daemon_can_be_stopped_at_once,
                daemons_and_mixed_families_exclude_each_other,
                counters_can_be_zeroed,
            }
            errno {
                every_cell_of_the_table,
                malformed_requests,
            }
        }
    };
}
pub(crate) use for_each_case;

pub(crate) fn tcp(at: &str) -> VirtualServerKey {
    VirtualServerKey::tcp(at.parse().unwrap())
}

pub(crate) fn udp(at: &str) -> VirtualServerKey {
    VirtualServerKey::udp(at.parse().unwrap())
}

pub(crate) fn round_robin(key: VirtualServerKey) -> VirtualServer {
    VirtualServer::new(key, Scheduler::RoundRobin)
}

pub(crate) fn real(at: &str) -> RealServer {
    RealServer::new(at.parse().unwrap())
}

/// Adds a virtual server on 10.0.0.1:80.
pub(crate) fn with_server(client: &mut Client) -> VirtualServerKey {
    let key = tcp("10.0.0.1:80");
    client.add_virtual_server(&round_robin(key)).unwrap();
    key
}

/// A client of a table with only that virtual server.
pub(crate) fn served(world: &dyn World) -> (Client, VirtualServerKey) {
    let mut client = world.client();
    let key = with_server(&mut client);
    (client, key)
}

/// Adds a virtual server, which reads back equal.
#[track_caller]
pub(crate) fn add(client: &mut Client, server: &VirtualServer) {
    client.add_virtual_server(server).unwrap();
    assert_eq!(client.get_virtual_server(&server.key).unwrap().server, *server);
}

/// Changes a virtual server, which reads back equal.
#[track_caller]
pub(crate) fn update(client: &mut Client, server: &VirtualServer) {
    client.update_virtual_server(server).unwrap();
    assert_eq!(client.get_virtual_server(&server.key).unwrap().server, *server);
}

/// Adds a real server, which reads back equal.
#[track_caller]
pub(crate) fn add_real(client: &mut Client, key: &VirtualServerKey, server: &RealServer) {
    client.add_real_server(key, server).unwrap();
    assert_eq!(client.get_real_server(key, &server.key).unwrap().server, *server);
}
