//! Help, completion, standard input and JSON lines of `proxier-demo`, as a shell sees them.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use proxier_core::modes::Kind;
use proxier_demo::build;
use proxier_demo::exit::MEANINGS;
use proxier_demo::output::Output as Form;
use proxier_demo::problem::Stopped;
use proxier_demo::settings::cli::{Command as Asked, Configured, Connection, Ending, Invocation, Source, parse};
use serde_json::Value;

use crate::configuration::in_file;
use crate::program::{Folder, ok, service, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_proxier-demo");

fn program(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).output().unwrap()
}

/// Output of the program with this text on its standard input.
fn fed(words: &[&str], input: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let help = ok(&program(&["--help"]));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    listed.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn help_of_a_command_is_that_of_its_option_and_has_examples() {
    let commands = commands();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands.iter().filter(|command| !matches!(command.as_str(), "help" | "completion")) {
        let help = ok(&program(&["help", command]));
        assert_eq!(help, ok(&program(&[command, "--help"])));
        // Each example is a line that the program takes.
        for example in help.lines().filter_map(|line| line.split_once("  proxier-demo ")) {
            let words = example.1.split("      ").next().unwrap();
            let words: Vec<&str> = words.split_whitespace().collect();
            let usage = Command::new(PROGRAM).args(&words).arg("--help").output().unwrap();
            assert!(usage.status.success(), "{words:?}");
        }
        assert!(help.contains("Examples:") || command == "cleanup", "{command}");
    }
}

#[test]
fn a_shell_completes_commands_and_options() {
    let folder = Folder::new("completion");
    let script = folder.put("script", &ok(&program(&["completion", "bash"])));
    // Of each line, what bash offers for its last word. A file and a folder are there to be offered.
    let completed = |lines: &[String]| -> Vec<String> {
        let asks = lines.iter().map(|line| {
            let last = line.split(' ').count() - 1;
            format!(
                "COMP_WORDS=({line}); COMP_CWORD={last}; COMPREPLY=()\n\
                 $function proxier-demo \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; echo \"${{COMPREPLY[@]}}\"\n"
            )
        });
        let start = "source \"$0\"\nfunction=$(complete -p proxier-demo | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n";
        let asks = folder.put("asks", &format!("{start}{}", asks.collect::<String>()));
        let line = "cd \"${0%/*}\" && source \"$1\"";
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", line]).arg(&script).arg(asks);
        ok(&bash.output().unwrap()).lines().map(|line| line.trim().to_owned()).collect()
    };
    let one = |line: &str| completed(&[format!("proxier-demo {line}")]).remove(0);
    assert_eq!(one("ex"), "explain");
    assert_eq!(one("show --wat"), "--watch");
    assert_eq!(one("plan --output j"), "json");
    for (option, words) in [
        ("detect-local-mode", "ClusterCIDR NodeCIDR BridgeInterface InterfaceNamePrefix"),
        ("logging-format", "text json"),
        ("proxy-mode", "auto ipvs nftables iptables userspace"),
        ("status-page", "off localhost on"),
    ] {
        assert_eq!(one(&format!("run --{option} ''")), words);
    }
    assert_eq!(one("run --proxy-mode n"), "nftables");
    // Names of files are offered only where an option takes one.
    let mut options = Vec::new();
    for command in commands().iter().filter(|command| !matches!(command.as_str(), "help" | "completion")) {
        let help = ok(&program(&[command, "--help"]));
        for line in help.lines().filter(|line| line.trim_start().starts_with('-') && line.contains(" <")) {
            let option = line.split_whitespace().find(|word| word.starts_with("--")).unwrap();
            options.push((format!("proxier-demo {command} {option} ''"), line.contains(" <FILE")));
        }
    }
    assert!(options.len() > 100, "{options:?}");
    let lines: Vec<String> = options.iter().map(|(line, _)| line.clone()).collect();
    for ((line, takes_a_file), offered) in options.iter().zip(completed(&lines)) {
        assert_eq!(offered.split(' ').any(|word| word == "script"), *takes_a_file, "{line}: {offered}");
    }
    for shell in ["zsh", "fish"] {
        assert!(ok(&program(&["completion", shell])).contains("explain"), "{shell}");
    }
    assert_eq!(program(&["completion", "tcsh"]).status.code(), Some(2));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for (to, code) in [(">&-", 1), (">/dev/full", 1), (">/dev/null", 0), ("<>/dev/null >&0", 0)] {
        for words in ["--version", "render --manifests - --hostname-override n1", "completion bash"] {
            let line = format!("exec \"$0\" {words} </dev/null {to}");
            let ended = Command::new("sh").args(["-c", &line, PROGRAM]).output().unwrap();
            let said = text(&ended.stderr);
            assert_eq!(ended.status.code(), Some(code), "{words} {to}: {said}");
            assert_eq!(said.contains("standard output cannot be written ("), code == 1, "{words} {to}: {said}");
        }
    }
}

#[test]
fn exit_codes_are_in_the_help_and_the_manual() {
    let manual = include_str!("../../../deploy/debian/proxier-demo.8");
    let status = manual.split(".Sh EXIT STATUS").nth(1).unwrap().split(".Sh ").next().unwrap();
    assert!(status.contains(".Cm diff\n3 if something differs"), "{status}");
    assert!(ok(&program(&["diff", "--help"])).contains("Exit codes: 0 nothing differs, 3 something does"));
    let help = ok(&program(&["--help"]));
    for (code, meaning) in MEANINGS {
        assert!(help.contains(&format!("  {code}  {meaning}\n")), "{help}");
    }
}

#[test]
fn standard_input_is_a_source() {
    let web = service("demo", "web", "10.96.0.10", "{addresses: [10.244.0.5]}");
    let explain = |input: &str| fed(&["explain", "demo/web", "--manifests", "-", "--hostname-override", "n1"], input);
    let explained = ok(&explain(&web));
    assert!(explained.starts_with("Service demo/web;") && explained.contains("10.244.0.5:8080"), "{explained}");
    for (input, said) in
        [("a: [", "standard input: document 1: not YAML or JSON"), ("", "there is no Service demo/web")]
    {
        let refused = explain(input);
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
    }
    // A file of that name is another thing.
    let folder = Folder::with("-", &web);
    let of_file = Command::new(PROGRAM)
        .args(["explain", "demo/web", "--manifests", "./-", "--hostname-override", "n1"])
        .current_dir(&folder.0)
        .output();
    assert!(ok(&of_file.unwrap()).starts_with("Service demo/web;"));
}

#[test]
fn lines_on_standard_error_are_json_where_the_log_is() {
    let said = fed(&["explain", "demo/web", "--manifests", "-", "--logging-format", "json"], "");
    let lines: Vec<Value> = text(&said.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"].as_str().unwrap().contains("no Service demo/web")), "{lines:?}");
}

fn parsed(line: &str) -> Result<Invocation, Ending> {
    parse(std::iter::once("proxier-demo").chain(line.split_whitespace()).map(OsString::from))
}

fn configured(line: &str) -> Configured {
    parsed(line).unwrap().configure().unwrap_or_else(|stopped| panic!("{line}: {stopped:?}"))
}

fn refused(line: &str) -> String {
    let (code, text) = match parsed(line).map(|invocation| invocation.configure().expect_err(line)) {
        Err(ending) => (ending.code, ending.text),
        Ok(Stopped { problems, code }) => (code, format!("proxier-demo: {}", problems[0])),
    };
    assert_eq!(code, 2, "{line}");
    text
}

#[test]
fn every_command_is_parsed() {
    let command = |line| parsed(line).unwrap().command;
    assert_eq!(command("run --manifests x"), Asked::Run { once: false, init_only: false });
    assert_eq!(command("run --once --manifests x"), Asked::Run { once: true, init_only: false });
    assert_eq!(command("plan"), Asked::Plan { detailed: false });
    assert_eq!(command("plan --detailed-exitcode"), Asked::Plan { detailed: true });
    assert_eq!(command("diff --from ipvs"), Asked::Diff { from: Some(Kind::Ipvs), to: None });
    assert_eq!(command("diff --to nftables"), Asked::Diff { from: None, to: Some(Kind::Nftables) });
    let rendered = configured("render --hostname-override n --node-address 192.0.2.1 --node-address fd00::1");
    assert_eq!(rendered.node_addresses, ["192.0.2.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    for (line, output, millis) in [
        ("show -o json", Form::Json, None),
        ("show --watch", Form::Text, Some(2000)),
        ("show --watch 0.5 -o json", Form::Json, Some(500)),
    ] {
        assert_eq!(command(line), Asked::Show(millis.map(Duration::from_millis)));
        assert_eq!(configured(line).output, output);
    }
    for wrong in ["0", "-1", "x", "1e9", "NaN"] {
        assert!(refused(&format!("show --watch={wrong}")).contains("--watch"), "{wrong}");
    }
    assert_eq!((command("probe"), configured("probe --output=json").output), (Asked::Probe, Form::Json));
    assert_eq!(command("cleanup"), Asked::Cleanup(None));
    assert_eq!(command("cleanup --keep iptables"), Asked::Cleanup(Some(Kind::Iptables)));
    assert_eq!(command("cleanup --keep nftables"), Asked::Cleanup(Some(Kind::Nftables)));
    assert_eq!(command("cleanup --keep ipvs"), Asked::Cleanup(Some(Kind::Ipvs)));
    assert!(parsed("cleanup --keep userspace").is_err());
    assert_eq!(command("run --write-config-to out.yaml"), Asked::WriteConfig("out.yaml".into()));
}

#[test]
fn the_wait_for_an_api_server_is_parsed() {
    let limit = |line: &str| configured(line).input_timeout;
    assert_eq!(limit("plan --hostname-override n"), Some(Duration::from_secs(60)));
    assert_eq!(limit("plan --hostname-override n --input-timeout 5m"), Some(Duration::from_secs(300)));
    assert_eq!(limit("run --once --hostname-override n --input-timeout=0s"), None);
    assert!(refused("plan --input-timeout 5").contains("input-timeout"), "{}", refused("plan --input-timeout 5"));
}

#[test]
fn a_node_is_named_only_where_one_is_needed() {
    for line in ["cleanup", "probe", "show", "--cleanup", "--init-only"] {
        configured(&format!("{line} --hostname-override=a_b"));
    }
    for line in ["run --once", "run", "plan"] {
        assert!(refused(&format!("{line} --hostname-override=a_b")).contains("cannot be a Node's name"), "{line}");
    }
}

#[test]
fn kube_proxys_command_line_is_accepted() {
    let line = "--cluster_cidr=10.244.0.0/16 --hostname-override=Node-A --v=4 --proxy-mode=ipvs";
    let configured = configured(line);
    assert_eq!(parsed(line).unwrap().command, Asked::Run { once: false, init_only: false });
    assert_eq!(configured.settings.object.cluster_cidr, "10.244.0.0/16");
    assert_eq!(configured.settings.node_name, "node-a");
    assert_eq!(configured.settings.verbosity, 4);
    assert_eq!(configured.warnings, Vec::<String>::new());
    assert_eq!(parsed("--cleanup").unwrap().command, Asked::Cleanup(None));
    assert_eq!(parsed("--cleanup=").unwrap_err().code, 2);
    assert_eq!(parsed("--write-config-to=c").unwrap().command, Asked::WriteConfig("c".into()));
    assert_eq!(parsed("--init-only").unwrap().command, Asked::Run { once: false, init_only: true });
}

#[test]
fn help_and_version_are_no_failures() {
    for line in ["--help", "run --help", "-h", "--version", "-V", "run --version"] {
        assert_eq!(parsed(line).unwrap_err().code, 0, "{line}");
    }
    assert_eq!(parsed("run --version").unwrap_err().text, format!("proxier-demo {}", build::LINE));
    let help = parsed("run --help").unwrap_err().text;
    for flag in ["--manifests", "--once", "--config", "--nodeport-addresses", "--ipvs-scheduler", "--masquerade-all"] {
        assert!(help.contains(flag), "{flag} is not in the help");
    }
}

#[test]
fn bad_usage_is_one_line_that_says_what_to_do() {
    for (line, expected) in [
        ("", "say what to do: run, plan, render"),
        ("explain", "the following required arguments were not provided: <SERVICE|ADDRESS:PORT[/PROTOCOL]>; see"),
        ("frob", "unrecognized subcommand 'frob'"),
        ("run --manifest x", "unexpected argument '--manifest' found; a similar argument exists: '--manifests'"),
        ("plan --once", "unexpected argument '--once' found"),
        ("show -o yaml", "invalid value 'yaml' for '--output <FORMAT>'; [possible values: text, json]"),
        (
            "run --ipvs-sync-period 30",
            "invalid value '30' for '--ipvs-sync-period <DURATION>': \"30\" is not a duration; write",
        ),
        ("run --oom-score-adj much", "invalid value 'much' for '--oom-score-adj <N>': write a whole number"),
        ("run --masquerade-all=maybe", "invalid value 'maybe' for '--masquerade-all[=<BOOL>]': write true or false"),
        ("run --feature-gates A", "invalid value 'A' for '--feature-gates <A=true,…>': write NAME=true"),
        ("run --manifests x --kubeconfig y", "the argument '--manifests <FILE|DIR>' cannot be used with"),
        ("run stray", "unexpected argument 'stray' found"),
        ("run --manifests", "a value is required for '--manifests <FILE|DIR>' but none was supplied"),
    ] {
        let text = refused(line);
        assert!(text.starts_with(&format!("proxier-demo: {expected}")), "{line}: {text}");
        let command = line.split(' ').next().filter(|command| !["", "frob"].contains(command));
        let help = command.map_or_else(String::new, |command| format!(" {command}"));
        assert!(text.ends_with(&format!("; see proxier-demo{help} --help")), "{line}: {text}");
        assert_eq!(text.lines().count(), 1, "{line}: {text}");
    }
}

#[test]
fn every_error_is_1_with_a_detailed_exit_code() {
    let code = |line: &str| program(&line.split(' ').collect::<Vec<_>>()).status.code();
    for (line, expected) in [("plan --detailed-exitcode", 1), ("plan", 2)] {
        assert_eq!(code(&format!("{line} --stray")), Some(expected));
        assert_eq!(code(&format!("{line} --hostname-override n --cluster-cidr x")), Some(expected));
    }
}

#[test]
fn flags_set_the_fields_of_a_configuration_file() {
    let configured = configured(
        "run --ipvs-scheduler wlc --ipvs-min-sync-period 200ms --ipvs-sync-period=1m --ipvs-strict-arp \
         --ipvs-exclude-cidrs 10.0.0.0/8,fd00::/8 --ipvs-exclude-cidrs 192.0.2.0/24 --nodeport-addresses primary \
         --masquerade-all=true --iptables-masquerade-bit 20 --bind-address :: --oom-score-adj -500 \
         --ipvs-tcp-timeout 15m --conntrack-min 0 --feature-gates A=true,B=false --detect-local-mode InterfaceNamePrefix \
         --pod-interface-name-prefix cali",
    );
    let (settings, object) = (&configured.settings, &configured.settings.object);
    assert_eq!(object.ipvs.scheduler, "wlc");
    assert_eq!(settings.min_sync_period, Duration::from_millis(200));
    assert_eq!(settings.sync_period, Duration::from_secs(60));
    assert!(settings.host.strict_arp && object.iptables.masquerade_all);
    assert_eq!(object.ipvs.exclude_cidrs, ["10.0.0.0/8", "fd00::/8", "192.0.2.0/24"]);
    assert_eq!(settings.core.node_port_addresses, proxier_core::config::NodePortAddresses::Primary);
    assert_eq!(object.iptables.masquerade_bit, Some(20));
    assert_eq!(settings.healthz, Some("[::]:10256".parse().unwrap()));
    assert_eq!(settings.metrics, Some("[::1]:10249".parse().unwrap()));
    assert_eq!(settings.oom_score_adj, -500);
    assert_eq!(settings.timeouts.tcp_secs, Some(900));
    assert_eq!(object.conntrack.min, Some(0));
    assert_eq!(object.feature_gates.len(), 2);
    assert_eq!(object.detect_local.interface_name_prefix, "cali");
    assert_eq!(configured.warnings, ["feature gates without effect here: A, B"]);
}

#[test]
fn unserved_localhost_node_ports_are_reported() {
    let any = "node ports are served on 127.0.0.1 in nftables, iptables and userspace mode, on ::1 in nftables and userspace mode";
    let not = |what: &str| format!("node ports are not served on {what} mode");
    for (line, said) in [
        ("--nodeport-addresses primary,localhost", any.to_owned()),
        ("--nodeport-addresses localhost --proxy-mode ipvs", not("127.0.0.1 and ::1 in ipvs")),
        ("--nodeport-addresses localhost --proxy-mode nftables", String::new()),
        ("--nodeport-addresses 127.0.0.1/32 --proxy-mode nftables", String::new()),
        ("--nodeport-addresses localhost --proxy-mode iptables", not("::1 in iptables")),
        (
            "--nodeport-addresses localhost --proxy-mode iptables --iptables-localhost-nodeports=false",
            not("127.0.0.1 and ::1 in iptables"),
        ),
        ("--nodeport-addresses localhost --proxy-mode userspace", String::new()),
        ("--nodeport-addresses all --proxy-mode ipvs", String::new()),
        ("--nodeport-addresses primary,10.0.0.0/8", String::new()),
        ("", String::new()),
    ] {
        let warnings = configured(&format!("run {line}")).warnings;
        let expected = Some(said).filter(|said| !said.is_empty());
        let expected: Vec<String> =
            expected.map(|said| format!("nodePortAddresses localhost: {said}")).into_iter().collect();
        assert_eq!(warnings, expected, "{line}");
    }
}

/// A feature gate without effect causes a warning, both as a flag and in a file.
#[test]
fn a_feature_gate_has_an_effect_or_a_warning() {
    let folder = std::env::temp_dir().join(format!("proxier-gates-{}", std::process::id()));
    let file = |gates: &str| {
        std::fs::write(&folder, in_file(&format!("featureGates: {{{gates}}}\n"))).unwrap();
        format!("run --config {}", folder.display())
    };
    for (gates, leaves_out, warned) in [
        ("AllowServiceExternalIPs", true, ""),
        ("AllowServiceExternalIPs,NewGate", true, "NewGate"),
        ("KubeProxyDrainingTerminatingNodes,A", false, "A, KubeProxyDrainingTerminatingNodes"),
    ] {
        let written =
            |between: &str| gates.split(',').map(|gate| format!("{gate}{between}false")).collect::<Vec<_>>().join(",");
        for line in [format!("run --feature-gates {}", written("=")), file(&written(": "))] {
            let configured = configured(&line);
            assert_eq!(configured.settings.core.without_external_ips, leaves_out, "{line}");
            let expected = (!warned.is_empty()).then(|| format!("feature gates without effect here: {warned}"));
            assert_eq!(configured.warnings, Vec::from_iter(expected), "{line}");
        }
    }
    assert!(!configured("run --feature-gates AllowServiceExternalIPs=true").settings.core.without_external_ips);
    assert_eq!(
        refused(&file("allowServiceExternalIPs: false")),
        format!(
            "proxier-demo: {}: featureGates: \"allowServiceExternalIPs\" is not a feature gate; write AllowServiceExternalIPs",
            folder.display()
        )
    );
    std::fs::remove_file(&folder).unwrap();
}

#[test]
fn of_two_values_the_last_counts() {
    assert_eq!(configured("run --ipvs-scheduler rr --ipvs-scheduler sh").settings.object.ipvs.scheduler, "sh");
}

#[test]
fn only_an_empty_address_or_port_0_switches_a_server_off() {
    let servers = |args: &[&str]| {
        let args = ["proxier-demo", "run"].iter().chain(args).map(OsString::from);
        let settings = parse(args).unwrap().configure().unwrap().settings;
        (settings.healthz.map(|address| address.to_string()), settings.metrics.map(|address| address.to_string()))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(servers(&[]), (some("0.0.0.0:10256"), some("127.0.0.1:10249")));
    assert_eq!(servers(&["--healthz-bind-address=", "--metrics-bind-address", ""]), (None, None));
    assert_eq!(servers(&["--healthz-port=0", "--metrics-port=9"]), (None, some("127.0.0.1:9")));
    assert_eq!(servers(&["--healthz-bind-address", "::1", "--healthz-port=0"]).0, some("[::1]:10256"));
}

#[test]
fn sources_are_parsed() {
    let source = |line| configured(line).source;
    assert_eq!(source("run --manifests a --manifests b"), Source::Manifests(vec!["a".into(), "b".into()]));
    assert_eq!(source("run"), Source::Cluster(Connection::default()));
    assert_eq!(
        source("plan --kubeconfig k --master http://192.0.2.1:8080"),
        Source::Cluster(Connection { kubeconfig: Some("k".into()), master: Some("http://192.0.2.1:8080".into()) })
    );
}

#[test]
fn kube_proxy_flags_without_effect_are_reported_once() {
    let given = configured("--logtostderr --vmodule=a=1 --kube-api-qps 50 --v 2");
    assert_eq!(given.warnings, ["accepted, without effect: --kube-api-qps, --logtostderr, --vmodule"]);
    let given = configured("--ipvs-mark-node-ports --proxy-mode ipvs");
    let instead = "each node port has one virtual server for each address of the node, as kube-proxy's";
    assert_eq!(given.warnings, [format!("accepted, without effect: --ipvs-mark-node-ports; {instead}")]);
}
