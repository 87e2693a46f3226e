//! Restarts: the process that runs the reconciler is killed at any moment, again and again, while clients connect and
//! Services change; and restarted with nothing changed.
//!
//! `TRAFFIC_KILLS` is the number of kills, default 10 (100 with `cargo xtask test --full`). `PROPTEST_RNG_SEED` repeats the moments of an earlier
//! run.
//!
//! A first form of this test saw connections fail. The reconciler had no part in that:
//! * The machine had room for 8,192 tracked connections and dropped packets when all were used. The node now forgets ended
//!   connections after three seconds (`Net::for_load`), and `Load::finish` asserts that there was room.
//! * Clients came back to a port through another virtual server while IPVS still knew the first connection. It finds the
//!   connection of an answer by the real server and the client's address and port (`ip_vs_conn_out_get`): the younger gets
//!   all answers. Two conversations from one port show that without any restart. Clients now use each port once until all
//!   are used (`Load::start`).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use serde_json::json;
use testkit::oracle::{self, Backend, Family};
use testkit::tap::NetlinkTap;
use testkit::witness::{Conversation, Transport};
use testkit::{Need, Netns, kernel_test};

use crate::traffic::NEEDS;
use crate::traffic::cluster::{Cluster, options, troubles};
use crate::traffic::load::Load;
use crate::traffic::net::{FAMILIES, Net};
use crate::traffic::objects::{self, A, B, Pod, R, Vip};

const LIMIT: Duration = Duration::from_secs(10);

/// The manifests that the process follows. Set only for the process, not for the test that starts it.
const MANIFESTS: &str = "TRAFFIC_MANIFESTS";

/// Services that clients use; others are added and removed meanwhile.
const USED: [u16; 3] = [10, 11, 12];
const BESIDE: std::ops::Range<u16> = 20..28;

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Manifests {
    services: Vec<ServiceObject>,
    slices: Vec<EndpointSliceObject>,
}

impl Manifests {
    fn add(&mut self, number: u16, more: &serde_json::Value, pods: &[Pod]) {
        let name = format!("web-{number}");
        self.services.push(objects::service(&name, number, more));
        self.slices.extend(objects::slices(&name, pods));
    }

    /// The manifests of this round: Services that clients use change their pods, all of which answer at any time; the rest change in every way.
    fn of_round(round: u64) -> Self {
        let mut manifests = Self::default();
        let sets: [&[Pod]; 3] = [&[A, B, R], &[A, R], &[B, R]];
        for number in USED {
            manifests.add(number, &json!({}), sets[usize::try_from((round + u64::from(number)) % 3).unwrap()]);
        }
        for number in BESIDE {
            let (policy, ranges) = match (round + u64::from(number)) % 5 {
                0 => continue,
                1 => ("Cluster", json!(["192.0.2.0/24", "2001:db8:1::/64"])),
                2 => ("Local", json!([])),
                _ => ("Cluster", json!([])),
            };
            let mut more = json!({ "externalTrafficPolicy": policy, "loadBalancerSourceRanges": ranges });
            if policy == "Local" {
                more["healthCheckNodePort"] = (32_000 + number).into();
            }
            let pods = sets[usize::from(number) % 3];
            manifests.add(number, &more, if (round + u64::from(number)).is_multiple_of(7) { &[] } else { pods });
        }
        manifests
    }

    /// Replaces the file atomically.
    fn write(&self, path: &Path) {
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec(self).unwrap()).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn give_to(&self, cluster: &mut Cluster) {
        let now = cluster.now();
        cluster.proxier.replace_objects(&self.services, &self.slices, now);
        cluster.proxier.start(now);
    }
}

fn new_cluster() -> Cluster {
    let mut options = options(&json!({}));
    options.ipvs.drain.deadline = Some(Duration::from_secs(2));
    // Shorter than the time until clients use a port again.
    options.ipvs.timeouts.udp_secs = Some(30);
    Cluster::new(options)
}

/// The process: follows the manifests until it is killed, and logs the result of every pass on standard error.
fn follow(manifests: &Path) -> ! {
    let mut cluster = new_cluster();
    let mut seen = None;
    loop {
        let written = fs::metadata(manifests).and_then(|file| file.modified()).unwrap();
        if seen != Some(written) {
            let text = fs::read(manifests).unwrap();
            serde_json::from_slice::<Manifests>(&text).unwrap().give_to(&mut cluster);
            seen = Some(written);
        }
        if let Some(report) = cluster.pass() {
            let line = format!("pass: {} writes {:?}\n", report.writes(), troubles(&report));
            std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
}

struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts this program once more, in the current thread's namespace.
    fn start(manifests: &Path, log: &Path) -> Self {
        let test = thread::current().name().unwrap().to_owned();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(MANIFESTS, manifests)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        Process { child, log: log.to_owned() }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for the end of the first pass.
    fn wait_for_pass(&self) {
        let begin = Instant::now();
        while !self.log().contains("pass: ") {
            assert!(begin.elapsed() < Duration::from_secs(60), "no pass: {}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL. The process may have ended by itself, which its log shows.
        self.child.kill().unwrap_or_default();
        self.child.wait().map_or_else(drop, drop);
    }
}

/// Objects of the reconciler in this namespace, as the field's tools print them, sorted.
fn made() -> Vec<String> {
    let mut lines: Vec<String> = oracle::ipvsadm_save().unwrap().lines().map(|line| line.trim().to_owned()).collect();
    // Sets are compared by name and type: their sizes depend on earlier entries.
    lines.extend(oracle::ipset_save().unwrap().lines().map(|line| match line.strip_prefix("create ") {
        Some(create) => create.split(' ').take(2).collect::<Vec<_>>().join(" "),
        None => line.to_owned(),
    }));
    for family in [Family::V4, Family::V6] {
        let saved = oracle::iptables_save(Backend::Nft, family).unwrap();
        let rules = saved.lines().filter(|line| !line.starts_with('#'));
        lines.extend(rules.map(|line| format!("{family:?} {}", line.split(" [").next().unwrap_or(line))));
    }
    let addresses = oracle::run("ip", &["-oneline", "address", "show", "dev", "kube-ipvs0"], None).unwrap().stdout;
    let address = |line: &str| line.split_whitespace().skip(2).take(2).collect::<Vec<_>>().join(" ");
    lines.extend(addresses.lines().map(address));
    lines.sort();
    lines
}

/// Passes until nothing drains any more.
fn settle_for_good(cluster: &mut Cluster) {
    let begin = Instant::now();
    loop {
        cluster.settle();
        if cluster.proxier.drains().unwrap().is_empty() {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", cluster.proxier.drains());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Objects that one undisturbed pass makes for the manifests, on a host like this.
fn made_undisturbed(manifests: &Manifests) -> Vec<String> {
    let elsewhere = Netns::new().unwrap();
    elsewhere
        .run_in(|| {
            let _net = Net::new();
            let mut cluster = new_cluster();
            manifests.give_to(&mut cluster);
            cluster.settle();
            made()
        })
        .unwrap()
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// xorshift.
struct Random(u64);

impl Random {
    /// Neighbouring seeds begin far apart, none with 0, which xorshift never leaves.
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn killed_at_any_moment_it_fails_no_connection_and_converges() {
    if let Some(manifests) = std::env::var_os(MANIFESTS) {
        follow(Path::new(&manifests));
    }
    kernel_test(&NEEDS, || {
        let kills = number_of("TRAFFIC_KILLS").unwrap_or(10);
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let seed = number_of("PROPTEST_RNG_SEED").unwrap_or_else(|| u64::try_from(clock()).unwrap());
        println!("PROPTEST_RNG_SEED={seed}");
        let mut random = Random::new(seed);
        let folder = std::env::temp_dir().join(format!("traffic-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (manifests, log) = (folder.join("manifests.json"), folder.join("log"));

        let net = Net::for_load();
        let _pods = net.serve();
        Manifests::of_round(0).write(&manifests);
        // The first time, the kernel loads its modules.
        Process::start(&manifests, &log).wait_for_pass();
        Manifests::of_round(1).write(&manifests);
        let begin = Instant::now();
        Process::start(&manifests, &log).wait_for_pass();
        let whole = begin.elapsed();
        println!("undisturbed: {whole:?} from start to the end of the first pass");

        let mut places = Vec::new();
        for (number, family) in USED.into_iter().flat_map(|number| FAMILIES.map(|family| (number, family))) {
            for vip in Vip::ALL {
                places.push((Transport::Tcp, vip.of(number, family)));
            }
            places.push((Transport::Udp, Vip::ClusterIp.of(number, family)));
        }
        let load = Load::start(&net.client, 8, &places, Duration::from_millis(20));
        load.wait_for(places.len());
        let (mut early, mut troubled) = (0, Vec::new());
        for round in 1..=kills {
            Manifests::of_round(round).write(&manifests);
            let process = Process::start(&manifests, &log);
            let moment = Duration::from_micros(random.below(u64::try_from(whole.as_micros()).unwrap() * 2));
            thread::sleep(moment);
            drop(process);
            let said = fs::read_to_string(&log).unwrap();
            early += usize::from(!said.contains("pass: "));
            troubled.extend(
                said.lines().filter(|line| line.contains("pass: ") && !line.ends_with("[]")).map(str::to_owned),
            );
        }
        println!("{kills} kills, {early} of them in the first pass");
        assert!(troubled.is_empty(), "passes that did not do everything:\n{}", troubled.join("\n"));
        // Programs that the killed process had started have ended, too.
        thread::sleep(Duration::from_secs(1));
        let last = Manifests::of_round(kills);
        let mut cluster = new_cluster();
        last.give_to(&mut cluster);
        settle_for_good(&mut cluster);
        load.wait_for(places.len());
        let again = load.asked_again();
        println!("{} connections, {again} times asked again over UDP", load.finish(&net.node));
        assert_eq!(made(), made_undisturbed(&last));
        fs::remove_dir_all(folder).unwrap();
    });
}

#[test]
fn restarted_with_nothing_changed_it_writes_nothing() {
    if let Some(manifests) = std::env::var_os(MANIFESTS) {
        follow(Path::new(&manifests));
    }
    let needs = [&NEEDS[..], &[Need::Tool("ip")]].concat();
    kernel_test(&needs, || {
        let folder = std::env::temp_dir().join(format!("traffic-same-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (manifests, log) = (folder.join("manifests.json"), folder.join("log"));
        let net = Net::new();
        let _pods = net.serve();
        let mut objects = Manifests::of_round(0);
        objects.write(&manifests);
        let tap = NetlinkTap::start().unwrap();
        Process::start(&manifests, &log).wait_for_pass();
        let first = tap.writes();
        for name in ["IPVS NEW_SERVICE", "IPVS NEW_DEST", "ipset CREATE", "ipset ADD", "nf_tables", "rtnetlink 20"] {
            assert!(first.iter().any(|write| write.starts_with(name)), "the tap hears no {name}: {first:?}");
        }
        let before = made();
        let open = || {
            let one = |family| Conversation::open(Transport::Tcp, None, Vip::ClusterIp.of(10, family), LIMIT).unwrap();
            FAMILIES.map(one)
        };
        let mut long = net.client.run_in(open).unwrap();
        let held = long.each_mut().map(|long| long.ask().unwrap());
        tap.writes();

        for _ in 0..3 {
            let process = Process::start(&manifests, &log);
            process.wait_for_pass();
            let said = process.log();
            assert!(said.contains("pass: 0 writes []"), "{said}");
            assert_eq!(tap.writes(), <[String; 0]>::default());
            assert_eq!(long.each_mut().map(|long| long.ask().unwrap()), held);
        }
        assert_eq!(made(), before);

        // One more endpoint makes one more real server for each address, and only an endpoint's entries.
        objects.slices.retain(|slice| slice.metadata.name != "web-10-ipv4");
        let [more, _] = objects::slices("web-10", &[A, B, R]);
        let there =
            Manifests::of_round(0).slices.into_iter().find(|slice| slice.metadata.name == "web-10-ipv4").unwrap();
        assert_ne!(more.endpoints.len(), there.endpoints.len());
        objects.slices.push(more);
        objects.write(&manifests);
        let process = Process::start(&manifests, &log);
        process.wait_for_pass();
        let writes = tap.writes();
        assert!(!writes.is_empty(), "{}", process.log());
        let expected = ["IPVS NEW_DEST", "ipset ADD"];
        assert!(writes.iter().all(|write| expected.contains(&write.as_str())), "{writes:?}");
        fs::remove_dir_all(folder).unwrap();
    });
}
