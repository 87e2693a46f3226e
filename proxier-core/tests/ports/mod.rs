//! Cases for the kernel and for the fake one. Each starts in an empty network namespace, and checks results by other means than the ports.

pub(crate) mod conntrack;
pub(crate) mod ipvs;
pub(crate) mod links;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod sets;
pub(crate) mod sysctls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proxier_core::net::Family;
use proxier_core::ports::{ItemFailures, PortErrorKind, Ports};

/// A network namespace, with the field's own tools to inspect it and to change things behind the ports' back.
pub(crate) trait World {
    /// Ports under test.
    fn ports(&mut self) -> Ports<'_>;

    /// `ipvsadm --save --numeric`, sorted.
    fn saved_ipvs(&self) -> Vec<String>;

    /// A set's `create` line without the parts that differ between kernels, and its entries, as `ipset save` has them.
    fn saved_set(&self, name: &str) -> Option<(String, BTreeSet<String>)>;

    /// Number of entries of a set.
    fn set_size(&self, name: &str) -> usize;

    /// Creates a set as `ipset` would.
    fn create_set(&mut self, line: &str);

    /// `iptables-save` of a table.
    fn saved_rules(&self, family: Family, table: &str) -> String;

    /// Devices with their addresses, as `ip` lists them; link-local ones left out.
    fn devices(&self) -> BTreeMap<String, BTreeSet<IpAddr>>;

    /// Adds an interface other than a dummy device, with addresses.
    fn add_interface(&mut self, name: &str, addresses: &[IpAddr]);

    /// Takes an address from an interface.
    fn remove_address(&mut self, name: &str, address: IpAddr);

    /// Local routes of this project, as [`LocalRoute`](proxier_core::ports::LocalRoute) prints, with `proto` and `metric`.
    fn local_routes(&self) -> BTreeSet<String>;

    /// Reads below `/proc/sys`.
    fn sysctl(&self, path: &str) -> String;

    /// Lets a client send a UDP datagram that an endpoint gets.
    fn send_udp(&mut self, client: SocketAddr, destination: SocketAddr, endpoint: SocketAddr);

    /// Tracked UDP flows: client, destination, endpoint.
    fn flows(&self) -> BTreeSet<(SocketAddr, SocketAddr, SocketAddr)>;
}

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Indexes and kinds of failures; checks that each has a message.
pub(crate) fn kinds(failures: &ItemFailures) -> Vec<(usize, PortErrorKind)> {
    assert!(failures.values().all(|error| error.to_string().len() > 10), "{failures:?}");
    failures.iter().map(|(index, error)| (*index, error.kind())).collect()
}

/// Calls a macro with all cases, by module.
macro_rules! for_each_case {
    ($callback:ident) => {
        $callback! {
            ipvs {
                operations_are_carried_out_in_order,
                a_refused_operation_is_named_and_the_others_go_on,
                real_servers_of_one_virtual_server,
                a_thousand_operations,
                timeouts_are_read_and_set,
            }
            sets {
                a_set_is_created_filled_and_destroyed,
                every_set_is_created_as_kube_proxy_does,
                a_set_of_another_type_is_not_ours,
                a_set_with_options_that_lose_entries_is_not_used,
                what_is_missing_is_missing,
                a_full_set_is_replaced_by_a_roomier_one,
                a_set_is_made_with_room,
                a_set_is_replaced_by_few_changes,
                a_missing_set_comes_complete,
                what_a_killed_process_left_goes_with_the_set,
            }
            rules {
                rules_are_written_and_read,
                a_refused_transaction_changes_nothing,
                a_check_changes_nothing,
                both_families_at_once,
                rules_are_listed_while_other_work_is_done,
                a_rule_keeps_its_set,
                a_rule_needs_its_set,
                a_set_is_replaced_under_a_rule,
                programs_know_random_fully,
            }
            links {
                the_device_is_created_and_deleted,
                something_else_of_that_name_is_left_alone,
                addresses_are_bound_and_unbound,
                an_impossible_address_does_not_stop_the_others,
                without_the_device,
                every_interface_is_listed,
                a_thousand_addresses,
            }
            routes {
                networks_become_local_and_are_listed,
                owners_do_not_touch_each_others_routes,
                a_source_is_changed_in_place,
                a_source_is_an_address_of_this_host,
                an_ipv4_route_may_go_with_its_source,
                a_route_stands_beside_a_bound_address,
            }
            sysctls {
                values_are_read_and_written,
                what_is_wrong_with_a_value_is_told,
            }
            conntrack {
                stale_flows_are_forgotten_and_others_stay,
                nothing_to_forget,
            }
        }
    };
}
pub(crate) use for_each_case;
