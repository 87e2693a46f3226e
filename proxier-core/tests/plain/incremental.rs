//! The state equals that of a fresh start in any order of events, and the reported changes are the real ones. Objects come from the oracle corpus,
//! where the same names mean other things in each scenario; then from noise.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipset::Element;
use ipvs::VirtualServerKey;
use ipvs::model::{RealServer, VirtualServerConfig};
use proptest::prelude::*;
use proxier_core::modes::ipvs::index::{Changed, Index, Recorded};
use proxier_core::modes::ipvs::sets::{SetKey, SetKind};
use proxier_core::modes::ipvs::wanted::{Wanted, WantedServer};
use proxier_core::net::EndpointKey;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::service::Indexed;
use proxier_core::snapshot::{ObjectKey, Store};
use serde_json::json;

use crate::universe::{events, facts, happen};

/// State that the kernel and the health servers have to have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Programmed {
    /// Virtual servers, with the endpoints that keep flows of UDP although new flows get other endpoints: real servers for them may drain.
    virtual_servers: BTreeMap<VirtualServerKey, (VirtualServerConfig, Vec<RealServer>, Vec<EndpointKey>)>,
    addresses: BTreeSet<IpAddr>,
    elsewhere: BTreeSet<IpAddr>,
    entries: BTreeSet<(SetKey, Element)>,
}

impl Programmed {
    fn of(wanted: &Wanted<'_>) -> Self {
        let server = |of: WantedServer| {
            let unselected = wanted.frontend(&of.key).and_then(|frontend| frontend.unselected.as_deref());
            (of.key, (of.config, of.real_servers.to_vec(), unselected.unwrap_or_default().to_vec()))
        };
        Programmed {
            virtual_servers: wanted.servers().map(server).collect(),
            addresses: wanted.addresses().collect(),
            elsewhere: wanted
                .desired()
                .frontends()
                .map(|frontend| frontend.key.address)
                .filter(|address| wanted.is_elsewhere(*address))
                .collect(),
            entries: wanted.sets().flat_map(|set| wanted.entries(set).map(move |of| (set, of.clone()))).collect(),
        }
    }

    /// Differences, by name.
    fn changes(&self, after: &Self) -> Changed {
        let mut changed = Changed::default();
        changed.virtual_servers = changed_keys(&self.virtual_servers, &after.virtual_servers);
        changed.addresses = &self.addresses ^ &after.addresses;
        changed.elsewhere = &self.elsewhere ^ &after.elsewhere;
        changed.entries = &self.entries ^ &after.entries;
        changed
    }
}

fn changed_keys<K: Ord + Clone, V: PartialEq>(before: &BTreeMap<K, V>, after: &BTreeMap<K, V>) -> BTreeSet<K> {
    before.keys().chain(after.keys()).filter(|key| before.get(key) != after.get(key)).cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_in_any_order_end_where_a_fresh_start_ends(events in events()) {
        let facts = facts();
        let mut store = Store::new("node-a");
        let mut all = Indexed::new(Recorded::new(facts.config()));
        let mut before = Programmed::default();
        for event in &events {
            let services = happen(&mut store, event);
            all.refresh(&store, &facts, &services);
            let changed = all.take_changed();
            let after = Programmed::of(&all.wanted());
            // One Service changed, or the two between which a slice moved.
            if services.len() == 1 {
                prop_assert_eq!(&changed, &before.changes(&after));
            } else {
                prop_assert!(changed.virtual_servers.is_superset(&before.changes(&after).virtual_servers));
            }
            prop_assert!(happen(&mut store, event).is_empty(), "the same event again changes nothing");
            before = after;
        }
        let fresh = Indexed::build(&store, &facts, Index::new(facts.config()));
        prop_assert_eq!(all.wanted(), fresh.wanted());
        all.refresh_all(&store, &facts);
        prop_assert!(all.take_changed().is_empty());

        // Deleting every Service leaves nothing.
        let services: Vec<ObjectKey> = store.services().map(|service| service.key.clone()).collect();
        all.refresh(&Store::new("node-a"), &facts, &services);
        let nothing = Indexed::new(Index::new(facts.config()));
        prop_assert_eq!(all.wanted(), nothing.wanted());
        prop_assert_eq!(all.take_changed(), before.changes(&Programmed::default()));
    }

    /// Refreshing many Services at once has the same result as one at a time, and reports at least the real changes.
    #[test]
    fn events_may_be_gathered(events in events()) {
        let facts = facts();
        let mut store = Store::new("node-a");
        let mut all = Indexed::new(Recorded::new(facts.config()));
        for part in events.chunks(20) {
            let before = Programmed::of(&all.wanted());
            let services: BTreeSet<ObjectKey> = part.iter().flat_map(|event| happen(&mut store, event)).collect();
            all.refresh(&store, &facts, &services);
            let changed = all.take_changed();
            let exact = before.changes(&Programmed::of(&all.wanted()));
            prop_assert!(changed.virtual_servers.is_superset(&exact.virtual_servers));
            prop_assert_eq!((&changed.addresses, &changed.entries), (&exact.addresses, &exact.entries));
        }
        let fresh = Indexed::build(&store, &facts, Index::new(facts.config()));
        prop_assert_eq!(all.wanted(), fresh.wanted());
    }

    /// Texts that no API server accepts do no harm, and every object prints and reads back.
    #[test]
    fn noise_is_left_out(
        texts in proptest::collection::vec("[0-9a-f:./ %Z-]{0,12}|(?s).{0,80}|10\\.0\\.[0-9]{1,3}\\.1(/[0-9]{1,2})?", 10),
        numbers in proptest::collection::vec(any::<i64>(), 5),
    ) {
        let service = json!({
            "metadata": {"namespace": texts[0], "name": texts[1], "creationTimestamp": texts[2]},
            "spec": {
                "clusterIP": texts[3], "clusterIPs": [texts[3], texts[4]], "ipFamilies": ["IPv4", texts[5]], "type": texts[6],
                "externalIPs": [texts[4], texts[7]], "loadBalancerSourceRanges": texts,
                "ports": [{"name": texts[8], "port": numbers[0], "nodePort": numbers[1], "protocol": texts[9]}, {"port": 80}],
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": numbers[2]}},
                "externalTrafficPolicy": texts[9], "healthCheckNodePort": numbers[3],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": texts[3], "ipMode": texts[5]}, {"ip": texts[4]}]}},
        });
        let slice = json!({
            "metadata": {"namespace": texts[0], "name": "s", "labels": {"kubernetes.io/service-name": texts[1]}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": numbers[4]}, {"name": "", "port": 80}],
            "endpoints": [{"addresses": [texts[7]], "nodeName": "node-a"}, {"addresses": ["10.0.0.1"], "nodeName": texts[8]}],
        });
        let service: ServiceObject = serde_json::from_value(service).unwrap();
        let slice: EndpointSliceObject = serde_json::from_value(slice).unwrap();
        let again: ServiceObject = serde_json::from_str(&serde_json::to_string(&service).unwrap()).unwrap();
        prop_assert_eq!(&again, &service);
        let mut store = Store::new("node-a");
        store.upsert_service(&service);
        store.upsert_slice(&slice);
        let all = Indexed::build(&store, &facts(), Index::new(facts().config()));
        for rejection in store.rejections() {
            prop_assert_eq!(rejection.to_string().lines().count(), 1, "{}", rejection);
        }
        // A Service with a usable cluster IP serves its one valid port.
        let served = all.desired.frontends().filter(|frontend| frontend.key.port == 80).count();
        prop_assert!(served >= store.services().map(|service| service.cluster_ips.len()).sum::<usize>());
    }
}

#[test]
fn one_change_is_not_nothing() {
    let address = IpAddr::from([192, 0, 2, 1]);
    let set = SetKey::new(proxier_core::net::Family::V4, SetKind::NodePortTcp);
    let mut all: [Changed; 4] = std::array::from_fn(|_| Changed::default());
    all[0].virtual_servers.insert("TCP 192.0.2.1:80".parse().unwrap());
    all[1].addresses.insert(address);
    all[2].elsewhere.insert(address);
    all[3].entries.insert((set, Element::Port(30_000.into())));
    assert!(Changed::default().is_empty() && all.iter().all(|changed| !changed.is_empty()), "{all:?}");
}
