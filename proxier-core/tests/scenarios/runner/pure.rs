//! Runs a scenario through the functions on values: store, compile, compare. The kernel is the value compared with.

use ipset::{Element, Entry};
use ipvs::text::{Ruleset, Statement};
use ipvs::{Operation, RealServer, VirtualServer, VirtualServerKey};
use proxier_core::config::NamePrefix;
use proxier_core::modes::ipvs::diff::{Scope, diff};
use proxier_core::modes::ipvs::index::{Index, Recorded};
use proxier_core::modes::ipvs::observed::Observed;
use proxier_core::modes::ipvs::rules::{Capabilities, Inputs};
use proxier_core::modes::ipvs::servers::RealServers;
use proxier_core::modes::ipvs::sets::SetKey;
use proxier_core::net::Family;
use proxier_core::service::{Desired, Indexed, NodeFacts};
use proxier_core::snapshot::{Node, Rejection, Store};

use super::format::KernelEdit;
use super::world::World;
use super::{Change, Printed, Subject, printed};

/// The functions on values, and a kernel that is a value too.
pub(crate) struct Pure {
    store: Store,
    facts: NodeFacts,
    all: Indexed<Recorded>,
    observed: Observed,
    rejections: Vec<Rejection>,
    wrote: bool,
    trouble: Vec<String>,
}

impl Pure {
    pub(crate) fn boxed(world: &World) -> Box<dyn Subject> {
        let (facts, rejections) = facts(world);
        Box::new(Pure {
            store: Store::new(world.node_name()),
            all: Indexed::new(Recorded::new(facts.config())),
            facts,
            observed: Observed::new(),
            rejections,
            wrote: false,
            trouble: Vec::new(),
        })
    }
}

fn facts(world: &World) -> (NodeFacts, Vec<Rejection>) {
    let (config, mut rejections) = world.config();
    let node = Node::check(&world.node(), &mut rejections);
    (NodeFacts::new(&config, &node, &world.host()), rejections)
}

impl Subject for Pure {
    fn change(&mut self, change: &Change<'_>) {
        let mut full = edit(&mut self.observed, change.kernel);
        let mut changed = Vec::new();
        if change.restart {
            self.store = Store::new(change.world.node_name());
            self.all = Indexed::new(Recorded::new(self.facts.config()));
            full = true;
        }
        for slice in change.world.slices.values().filter(|_| change.restart) {
            self.store.upsert_slice(slice);
        }
        for service in change.world.services.values().filter(|_| change.restart) {
            changed.extend(self.store.upsert_service(service));
        }
        changed.extend(change.services.iter().flat_map(|service| self.store.upsert_service(service)));
        changed.extend(change.slices.iter().flat_map(|slice| self.store.upsert_slice(slice)));
        changed.extend(change.deleted_services.iter().flat_map(|key| self.store.delete_service(key)));
        changed.extend(change.deleted_slices.iter().flat_map(|key| self.store.delete_slice(key)));
        changed.sort();
        changed.dedup();
        self.all.refresh(&self.store, &self.facts, &changed);
        let mut noted = self.all.take_changed();
        let (facts, rejections) = facts(&change.world);
        if facts != self.facts {
            if facts.config() != self.facts.config() {
                // The process starts again.
                self.all.index = Recorded::new(facts.config());
                self.all.desired = Desired::new();
            }
            self.facts = facts;
            self.all.refresh_all(&self.store, &self.facts);
            noted = self.all.take_changed();
            full = true;
        }
        self.rejections = rejections;
        self.observed.host_addresses =
            proxier_core::modes::other_addresses(&change.world.host(), &self.facts.config().names).collect();
        let config = self.facts.config();
        let everything = diff(&self.all.wanted(), &self.observed, Scope::All, config);
        let small = diff(&self.all.wanted(), &self.observed, Scope::Changed(&noted), config);
        let mut expected = everything.clone();
        // The first pass, a full one, creates all sets.
        expected.create_sets.retain(|set| small.create_sets.contains(set));
        let first = self.observed.sets.is_empty();
        if !full && !first && small != expected {
            self.trouble.push(format!("what was changed is not what differs: {small:?} is not {expected:?}"));
        }
        self.wrote = !everything.is_empty();
        self.observed.apply(&everything);
        if !diff(&self.all.wanted(), &self.observed, Scope::All, config).is_empty() {
            self.trouble.push("the changes leave something to change".to_owned());
        }
        if self.all.wanted() != Indexed::build(&self.store, &self.facts, Index::new(self.facts.config())).wanted() {
            self.trouble.push("step by step is not the same as at once".to_owned());
        }
    }

    fn printed(&mut self, rules: bool) -> Printed {
        let mut servers = Ruleset::default();
        for (key, server) in &self.observed.virtual_servers {
            servers.push(VirtualServer { key: *key, config: server.config }, server.real_servers.to_vec());
        }
        let entries = self.observed.sets.iter().flat_map(|(set, elements)| {
            elements.iter().map(move |element| format!("add {} {element}", set.named(NamePrefix::KUBE)))
        });
        let prefix = |address: &std::net::IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let addresses = self.observed.addresses.iter().map(|address| format!("{address}/{}", prefix(address)));
        let wanted = |family: Family| {
            if !rules {
                return Vec::new();
            }
            let inputs = Inputs::new(family, &self.all.wanted(), &self.facts, Capabilities::default());
            printed::wanted_rules(&inputs)
        };
        let mut printed = Printed {
            ipvsadm: printed::virtual_servers(&servers.to_string()),
            ipset: printed::sorted(entries),
            addresses: printed::sorted(addresses),
            iptables: wanted(Family::V4),
            ip6tables: wanted(Family::V6),
            trouble: std::mem::take(&mut self.trouble),
            wrote: self.wrote,
            ..Printed::default()
        };
        printed.report(&self.all.wanted(), self.store.rejections().chain(&self.rejections));
        printed
    }
}

/// Makes foreign changes to the kernel. Returns whether anything changed.
fn edit(observed: &mut Observed, edit: &KernelEdit) -> bool {
    for statement in ipvs::text::parse(&edit.ipvsadm).unwrap() {
        match statement {
            Statement::Clear => observed.virtual_servers.clear(),
            Statement::Operation(operation) => operate(observed, operation),
            other => panic!("{other:?}"),
        }
    }
    let sets: Vec<SetKey> = [Family::V4, Family::V6].into_iter().flat_map(SetKey::all).collect();
    for line in edit.ipset.lines() {
        let mut words = line.split(' ');
        let (command, name) = (words.next().unwrap(), words.next().unwrap());
        let set = *sets
            .iter()
            .find(|set| set.named(NamePrefix::KUBE).name() == name)
            .unwrap_or_else(|| panic!("{line}: not a set of ours"));
        let rest = words.next();
        let element = || -> Element { Entry::parse(set.kind.set_type(), rest.unwrap()).unwrap().element };
        let elements = observed.sets.entry(set).or_default();
        match command {
            "create" => {}
            "add" => assert!(elements.insert(element()), "{line}: is there"),
            "del" => assert!(elements.remove(&element()), "{line}: is not there"),
            "flush" => elements.clear(),
            other => panic!("ipset {other}"),
        }
    }
    for line in edit.addresses.lines() {
        match line.split_once(' ').unwrap() {
            ("add", address) => assert!(observed.addresses.insert(address.parse().unwrap()), "{line}: is there"),
            ("del", address) => assert!(observed.addresses.remove(&address.parse().unwrap()), "{line}: is not there"),
            (other, _) => panic!("addresses: {other}"),
        }
    }
    !edit.is_empty()
}

fn operate(observed: &mut Observed, operation: Operation) {
    let mut real = |key: VirtualServerKey, change: &dyn Fn(&mut Vec<RealServer>)| {
        let server = observed.virtual_servers.get_mut(&key).unwrap();
        let mut servers = server.real_servers.to_vec();
        change(&mut servers);
        server.real_servers = RealServers::new(servers, None);
    };
    match operation {
        Operation::AddVirtualServer(server) => observed.insert(&server, []),
        Operation::UpdateVirtualServer(server) => {
            observed.virtual_servers.get_mut(&server.key).unwrap().config = server.config;
        }
        Operation::DeleteVirtualServer(key) => assert!(observed.virtual_servers.remove(&key).is_some()),
        Operation::AddRealServer(key, server) => real(key, &|servers| servers.push(server)),
        Operation::UpdateRealServer(key, new) => real(key, &|servers| {
            *servers.iter_mut().find(|of| of.key == new.key).unwrap() = new;
        }),
        Operation::DeleteRealServer(key, gone) => real(key, &|servers| servers.retain(|of| of.key != gone)),
        other => panic!("{other:?}"),
    }
}
