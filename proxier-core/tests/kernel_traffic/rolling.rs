//! A rolling update under load: ten pods are replaced one by one while fifty clients connect and long connections stay open.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use proxier_core::net::Family;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport, Witness};
use testkit::{kernel_test, oracle};

use crate::traffic::NEEDS;
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::load::Load;
use crate::traffic::net::{FAMILIES, Net, POD_PORT, batch};
use crate::traffic::objects::{self, HERE, Vip};

const LIMIT: Duration = Duration::from_secs(10);
/// Time for which a pod that stops keeps its connections.
const DEADLINE: Duration = Duration::from_secs(12);
const PODS: usize = 10;
const CLIENTS: usize = 50;

fn address(pod: usize, family: Family) -> String {
    match family {
        Family::V4 => format!("10.244.1.{}", 100 + pod),
        Family::V6 => format!("fd00:244:1::{}", 100 + pod),
    }
}

/// The stage that a pod has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ready,
    /// Stopping, with its connections.
    Terminating,
}

fn publish(cluster: &mut Cluster, pods: &BTreeMap<usize, Stage>) {
    for family in FAMILIES {
        let endpoint = |(pod, stage): (&usize, &Stage)| {
            let ready = *stage == Stage::Ready;
            json!({
                "addresses": [address(*pod, family)],
                "nodeName": HERE,
                "conditions": { "ready": ready, "serving": true, "terminating": !ready },
            })
        };
        let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
        let ports = json!([{ "name": "tcp", "protocol": "TCP", "port": POD_PORT }]);
        let address_type = if family == Family::V4 { "IPv4" } else { "IPv6" };
        cluster.slice(&objects::slice("web", address_type, &ports, &json!(endpoints)));
    }
}

/// Connections that stay open, and the pod that serves each.
struct Long {
    open: Vec<(usize, Conversation)>,
    /// Time from the stop of its pod to the end of each finished connection.
    ended: Vec<Duration>,
}

impl Long {
    /// Every connection still works, unless its pod began to stop at least a deadline ago.
    fn check(&mut self, drained: &BTreeMap<usize, Instant>) {
        let ended = &mut self.ended;
        self.open.retain_mut(|(pod, connection)| {
            let answer = connection.ask();
            let age = drained.get(pod).map(Instant::elapsed);
            match answer {
                Ok(answer) => assert_eq!(answer.name, pod.to_string()),
                Err(error) => {
                    let late = age.filter(|age| *age >= DEADLINE);
                    ended.push(late.unwrap_or_else(|| panic!("to pod {pod}, stopping for {age:?}: {error}")));
                    return false;
                }
            }
            true
        });
    }
}

/// Runs the passes that are due in this time.
fn run(cluster: &mut Cluster, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        cluster.settle();
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_rolling_update_fails_no_connection_and_cuts_none_before_its_deadline() {
    kernel_test(&NEEDS, || {
        let net = Net::for_load();
        let mut lines = Vec::new();
        for family in FAMILIES {
            let bits = if family == Family::V4 { 32 } else { 128 };
            for pod in 0..2 * PODS {
                let nodad = if family == Family::V6 { " nodad" } else { "" };
                lines.push(format!("address add {}/{bits} dev eth0{nodad}", address(pod, family)));
            }
        }
        batch(&net.pod_a, &lines);
        let routes = (0..2 * PODS)
            .flat_map(|pod| FAMILIES.map(|family| format!("route add {} dev pod-a", address(pod, family))));
        batch(&net.node, &routes.collect::<Vec<_>>());
        let servers: Vec<Witness> = (0..2 * PODS)
            .map(|pod| {
                let place = |family| {
                    (Transport::Tcp, (address(pod, family).parse::<std::net::IpAddr>().unwrap(), POD_PORT).into())
                };
                Witness::start(&net.pod_a, &pod.to_string(), &FAMILIES.map(place)).unwrap()
            })
            .collect();

        let mut options = options(&json!({}));
        options.ipvs.drain.deadline = Some(DEADLINE);
        let mut cluster = Cluster::new(options);
        cluster.service(&objects::service("web", 10, &json!({})));
        let mut pods: BTreeMap<usize, Stage> = (0..PODS).map(|pod| (pod, Stage::Ready)).collect();
        publish(&mut cluster, &pods);
        cluster.settle();

        // Two long connections to each pod, one of each family.
        let vips = FAMILIES.map(|family| Vip::ClusterIp.of(10, family));
        let open = || {
            let one = |to| Conversation::open(Transport::Tcp, None, to, LIMIT).unwrap();
            vips.iter().flat_map(|vip| (0..PODS).map(|_| one(*vip))).collect()
        };
        let open: Vec<Conversation> = net.client.run_in(open).unwrap();
        let named = |mut long: Conversation| (long.ask().unwrap().name.parse().unwrap(), long);
        let mut long = Long { open: open.into_iter().map(named).collect(), ended: Vec::new() };
        let all = long.open.len();
        assert!((0..PODS).all(|pod| long.open.iter().any(|(held, _)| *held == pod)));

        let places: Vec<_> = vips.map(|vip| (Transport::Tcp, vip)).into();
        let load = Load::start(&net.client, CLIENTS, &places, Duration::from_millis(100));
        // A pod is added; an old one begins to stop, and is removed from the list a moment later.
        let mut drained = BTreeMap::new();
        for pod in 0..PODS {
            pods.insert(PODS + pod, Stage::Ready);
            publish(&mut cluster, &pods);
            cluster.settle();
            pods.insert(pod, Stage::Terminating);
            publish(&mut cluster, &pods);
            drained.insert(pod, Instant::now());
            cluster.settle();
            if pod > 0 {
                pods.remove(&(pod - 1));
                publish(&mut cluster, &pods);
                cluster.settle();
            }
            load.wait_for(CLIENTS);
            run(&mut cluster, Duration::from_millis(100));
            long.check(&drained);
        }
        pods.remove(&(PODS - 1));
        publish(&mut cluster, &pods);
        cluster.settle();
        load.wait_for(CLIENTS);
        let took = drained[&0].elapsed();
        println!("rolled in {took:?}");

        // Each long connection lasts until the deadline, and no longer.
        while !long.open.is_empty() {
            assert!(drained[&(PODS - 1)].elapsed() < DEADLINE * 3, "{} never ended", long.open.len());
            run(&mut cluster, Duration::from_millis(200));
            long.check(&drained);
        }
        assert_eq!(long.ended.len(), all);
        let served = load.finish(&net.node);
        println!("{served} connections, long ones ended after {:?}", long.ended.iter().max());
        drop(servers);
        let saved = oracle::ipvsadm_save().unwrap();
        for pod in 0..2 * PODS {
            let there = saved.contains(&format!("{}:{POD_PORT} ", address(pod, Family::V4)));
            assert_eq!(there, pod >= PODS, "pod {pod}: {saved}");
        }
    });
}
