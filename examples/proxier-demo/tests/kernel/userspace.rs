//! `proxier-demo` in userspace mode, as a user starts it: answers to clients, the output of `ip`, and exit codes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::{Executable, Need, kernel_test};

use crate::program::{Folder, Running, command, configuration, demo, joined, ok, pair, status_of, text, tool};

const TCP: &str = "{name: http, port: 8080, protocol: TCP}";

/// `demo/web` with this endpoint, and a port of SCTP.
fn web_at(endpoint: &str) -> String {
    let spec = "type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [
        {name: http, port: 80, protocol: TCP, targetPort: 8080, nodePort: 30080},
        {name: signals, port: 132, protocol: SCTP, targetPort: 8132}]";
    pair("web", spec, TCP, &format!("{{addresses: [{endpoint}]}}"))
}

fn web() -> String {
    web_at("10.244.0.5")
}

/// Answers each connection with a greeting, then echoes.
fn serve() {
    let server = TcpListener::bind("10.244.0.5:8080").unwrap();
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 100];
                if stream.write_all(b"hello").is_err() {
                    return;
                }
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// A connection on which the server has said hello.
fn greeted(to: &str) -> Option<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting).ok()?;
    (greeting == *b"hello").then_some(stream)
}

fn routes() -> String {
    tool("ip route show table local proto 118")
}

fn set_up() {
    for address in ["192.0.2.1/32", "10.244.0.5/32"] {
        tool(&format!("ip address add {address} dev lo"));
    }
    serve();
}

fn userspace(manifests: &Folder) -> Vec<String> {
    ["--manifests", manifests.name(), "--proxy-mode", "userspace"].map(str::to_owned).to_vec()
}

fn start(manifests: &Folder) -> Running {
    Running::start(&joined(&[], &userspace(manifests)))
}

#[test]
fn run_serves_survives_a_kill_lets_connections_end_and_cleanup_leaves_nothing() {
    kernel_test(&[Need::Root], || {
        set_up();
        tool("ip route add local 198.51.100.0/24 dev lo");
        let manifests = Folder::with("web.yaml", &web());
        let running = start(&manifests);
        for place in ["10.96.0.10:80", "192.0.2.1:30080"] {
            running.until(place, || greeted(place).is_some());
        }
        running.until_logged("SCTP 10.96.0.10:132 of demo/web is not served: userspace mode serves TCP and UDP");
        assert!(routes().contains("local 10.96.0.10 dev lo"), "{}", routes());

        running.end_with("KILL");
        assert!(routes().contains("10.96.0.10"), "a route outlives the process");
        assert!(greeted("10.96.0.10:80").is_none());
        let running = start(&manifests);
        running.until("it is served again", || greeted("10.96.0.10:80").is_some());

        let mut open = greeted("192.0.2.1:30080").unwrap();
        running.signal("TERM");
        running.until_logged("ending: connections have 20 s to finish");
        running.until("nobody else is served", || greeted("10.96.0.10:80").is_none());
        let asked = ["healthz", "readyz", "livez"].map(|path| status_of(&format!("10256/{path}")));
        assert_eq!(asked, [503, 503, 200], "load balancers choose other nodes");
        open.write_all(b"still").unwrap();
        let mut answer = [0; 5];
        open.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"still");
        drop(open);
        let (status, log) = running.wait();
        assert!(status.success() && log.contains("all connections have ended"), "{log}");

        ok(&command(&["cleanup"]).output().unwrap());
        assert_eq!(routes(), "");
        assert!(tool("ip route show table local").contains("198.51.100.0/24"), "what is somebody else's stays");
    });
}

/// A pod has process numbers of its own.
#[test]
fn a_plan_on_the_node_sees_the_listeners_of_a_pod() {
    kernel_test(&[Need::Root, Need::Mounts, Need::Tool("setpriv")], || {
        set_up();
        let manifests = Folder::with("web.yaml", &web());
        let inner = command(&joined(&["run"], &userspace(&manifests)));
        let mut pod = Command::new("unshare");
        pod.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(inner.get_program()).args(inner.get_args());
        let running = Running::spawn(pod);
        running.until("it serves", || greeted("10.96.0.10:80").is_some());
        let plan = ok(&demo(&joined(&["plan"], &userspace(&manifests))));
        assert!(plan.starts_with("nothing to do: the kernel has the desired state\n"), "{plan}");

        let mut nobody = Command::new("setpriv");
        let capabilities = "+net_admin,+net_raw,+net_bind_service";
        nobody.args(["--reuid=65534", "--inh-caps", capabilities, "--ambient-caps", capabilities]);
        let inner = command(&joined(&["plan"], &userspace(&manifests)));
        let program = Executable::of(Path::new(inner.get_program())).unwrap();
        let plan = nobody.arg(program.path()).args(inner.get_args()).output().unwrap();
        let said = text(&plan.stderr);
        assert!(
            said.contains("cannot be found (Permission denied (os error 13)); ask as root: its listeners"),
            "{said}"
        );
    });
}

/// An endpoint that is gone keeps its connections, until the process ends and their time is over.
#[test]
fn open_connections_get_time_at_the_end() {
    kernel_test(&[Need::Root], || {
        set_up();
        let manifests = Folder::with("web.yaml", &web());
        let settings = Folder::new("userspace-end-config");
        let config = configuration(&settings, "mode: userspace\nuserspace: {endTimeout: 1s}\n");
        let running = Running::start(&["--config", &config, "--manifests", manifests.name()]);
        let mut open = None;
        running.until("it is served", || {
            open = greeted("10.96.0.10:80");
            open.is_some()
        });
        let mut open = open.unwrap();
        manifests.put("web.yaml", &web_at("10.244.0.6"));
        running.until("nobody answers", || greeted("10.96.0.10:80").is_none());
        let mut answer = [0; 5];
        open.write_all(b"still").unwrap();
        open.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"still");
        let start = Instant::now();
        running.signal("TERM");
        let (status, log) = running.wait();
        assert!(status.success() && log.contains("ending: connections have 1 s to finish"), "{log}");
        assert!(log.contains("1 connections are cut"), "{log}");
        assert!((1..15).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        drop(open);
    });
}

/// A sandbox may refuse to move data through pipes, which connections with much data use.
#[test]
fn much_data_is_copied_where_splice_is_refused() {
    kernel_test(&[Need::Root, Need::Tool("strace")], || {
        set_up();
        let manifests = Folder::with("web.yaml", &web());
        for refusal in ["EPERM", "ENOSYS"] {
            let mut strace = Command::new("strace");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=splice", "-e"]);
            strace.arg(format!("inject=splice:error={refusal}")).arg(env!("CARGO_BIN_EXE_proxier-demo"));
            strace.args(["run", "--hostname-override", "n1", "--healthz-bind-address", "127.0.0.1:10256"]);
            let running = Running::spawn({
                strace.args(userspace(&manifests));
                strace
            });
            let mut stream = None;
            running.until("it is served", || {
                stream = greeted("10.96.0.10:80");
                stream.is_some()
            });
            let mut stream = stream.unwrap();
            let sent: Vec<u8> = (0..1 << 20).map(|number: u32| number.to_ne_bytes()[number as usize / 7 % 3]).collect();
            let mut writer = stream.try_clone().unwrap();
            let data = sent.clone();
            let writing = std::thread::spawn(move || writer.write_all(&data));
            let mut received = vec![0; sent.len()];
            stream.read_exact(&mut received).unwrap_or_else(|error| panic!("{refusal}: {error}: {}", running.log()));
            assert!(writing.join().unwrap().is_ok() && received == sent);
            drop(stream);
            tool(&format!("pkill -TERM -P {}", running.pid()));
            running.wait();
        }
    });
}

/// Seconds of processor time that a process has taken.
fn processor_time(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

#[test]
fn with_few_files_the_rest_goes_on_and_all_comes_back() {
    kernel_test(&[Need::Root, Need::Tool("prlimit")], || {
        set_up();
        // This is about descriptors. With larger buffers, what nobody reads uses up the TCP memory of a small machine; the
        // kernel then resets connections that are closed before all is sent (tcp_check_oom), such as those of /metrics.
        for which in ["tcp_rmem", "tcp_wmem"] {
            std::fs::write(format!("/proc/sys/net/ipv4/{which}"), "4096 16384 65536").unwrap();
        }
        // Sends without end.
        let flood = TcpListener::bind("10.244.0.5:9090").unwrap();
        std::thread::spawn(move || {
            for stream in flood.incoming() {
                std::thread::spawn(
                    move || while stream.as_ref().is_ok_and(|mut of| of.write_all(&vec![7; 65_536]).is_ok()) {},
                );
            }
        });
        let manifests = Folder::with("web.yaml", &web());
        let spec = "clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], ports: [{name: http, port: 80, protocol: TCP}]";
        let flood = pair("flood", spec, "{name: http, port: 9090, protocol: TCP}", "{addresses: [10.244.0.5]}");
        manifests.put("flood.yaml", &flood);
        let mut limited = Command::new("prlimit");
        limited.args(["--nofile=512:512", env!("CARGO_BIN_EXE_proxier-demo"), "run"]).args(userspace(&manifests));
        limited.args(["--hostname-override", "n1", "--healthz-bind-address", "127.0.0.1:10256"]);
        let running = Running::spawn(limited);
        running.until("it is served", || greeted("10.96.0.10:80").is_some());
        let mut kept = greeted("10.96.0.10:80").unwrap();
        let mut goes_on = || {
            let mut answer = [0; 5];
            kept.write_all(b"still").is_ok() && kept.read_exact(&mut answer).is_ok() && &answer == b"still"
        };
        let both_answer = || {
            for page in ["10256/healthz", "10249/metrics"] {
                let answer = testkit::get(&format!("http://127.0.0.1:{page}")).map(|page| page.status);
                assert!(matches!(answer, Ok(200)), "{page}: {answer:?}: {}", running.log());
            }
        };

        // Many clients that do not read.
        let clients: Vec<_> = (0..120).map(|_| TcpStream::connect("10.96.0.20:80")).collect();
        running.until_logged("as are left of 256 for all Services: raise the limit of open files");
        assert!(goes_on() && greeted("10.96.0.10:80").is_some(), "other Services have room");
        both_answer();
        let open = std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count();
        assert!(open < 400, "{open} of 512 descriptors");
        drop(clients);
        running.until("there is room again", || greeted("10.96.0.10:80").is_some());

        // No descriptor is left at all: the process does not spin, and goes on when it can.
        let limit = |files: u32| tool(&format!("prlimit --pid {} --nofile={files}:512", running.pid()));
        limit(10);
        let waiting: Vec<_> = (0..20).map(|_| TcpStream::connect("10.96.0.10:80")).collect();
        let before = processor_time(running.pid());
        std::thread::sleep(Duration::from_secs(2));
        let taken = processor_time(running.pid()) - before;
        assert!(taken < 1.0, "{taken} s of processor time");
        assert!(goes_on());
        limit(512);
        drop(waiting);
        running.until("it is served again", || greeted("10.96.0.10:80").is_some());
        both_answer();
    });
}

#[test]
fn without_the_capability_for_low_ports_it_does_not_start() {
    kernel_test(&[Need::Root, Need::Tool("setpriv")], || {
        set_up();
        let manifests = Folder::with("web.yaml", &web());
        let without = |subcommand: &[&str]| {
            let mut setpriv = Command::new("setpriv");
            setpriv.args(["--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service"]);
            setpriv.arg(env!("CARGO_BIN_EXE_proxier-demo")).args(subcommand).args(userspace(&manifests));
            setpriv.args(["--hostname-override", "n1"]).output().unwrap()
        };
        for subcommand in ["run", "probe"] {
            let refused = without(&[subcommand]);
            let said = text(&refused.stdout) + &text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{subcommand}: {said}");
            let expected =
                "CAP_NET_BIND_SERVICE is missing, which ports below 1024 need; run as root, or let this program have";
            assert!(said.contains(expected), "{subcommand}: {said}");
        }
        assert_eq!(routes(), "");
        // No capability is missing if the node gives these ports to everybody.
        std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0").unwrap();
        ok(&without(&["probe"]));
        // A program that has the port does not matter.
        let _stranger = TcpListener::bind("127.0.0.1:1").unwrap();
        ok(&demo(&["probe", "--proxy-mode", "userspace"]));
    });
}

#[test]
fn plan_and_probe_say_what_run_would_do() {
    kernel_test(&[Need::Root], || {
        set_up();
        let manifests = Folder::with("web.yaml", &web());
        let with = |subcommand: &[&str]| demo(&joined(subcommand, &userspace(&manifests)));
        let plan = ok(&with(&["plan"]));
        for line in
            ["+ listener TCP 10.96.0.10:80 1 endpoints  (demo/web:http)\n", "+ route local 10.96.0.10/32 dev lo\n"]
        {
            assert!(plan.contains(line), "{plan}");
        }
        assert_eq!(routes(), "", "a plan writes nothing");
        let probe = ok(&demo(&["probe", "--proxy-mode", "userspace"]));
        assert!(probe.starts_with("userspace mode: yes\n  IPv4: this process can listen\n"), "{probe}");
        let once = with(&["run", "--once"]);
        assert_eq!(once.status.code(), Some(2), "{}", text(&once.stderr));
        assert!(text(&once.stderr).contains("serves only while the program runs"), "{}", text(&once.stderr));
        let networks = "mode: userspace\nuserspace: {serviceCIDRs: [10.96.0.0/12, 0.0.0.0/0], udpIdleTimeout: 5s}\n";
        let refused = demo(&["probe", "--config", &configuration(&Folder::new("userspace-bad"), networks)]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains("userspace.serviceCIDRs[1]"), "{}", text(&refused.stderr));
    });
}
