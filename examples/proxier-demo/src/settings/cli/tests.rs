use std::time::Duration;

use super::*;

fn read(line: &str) -> Result<Invocation, Ending> {
    parse(std::iter::once("proxier-demo").chain(line.split_whitespace()).map(OsString::from))
}

fn configured(line: &str) -> Configured {
    read(line).and_then(|invocation| invocation.configure()).unwrap_or_else(|ending| panic!("{line}: {ending}"))
}

fn refused(line: &str) -> String {
    let ending = read(line).and_then(|invocation| invocation.configure()).expect_err(line);
    assert_eq!(ending.code, 2, "{line}");
    ending.text
}

#[test]
fn claps_own_checks_pass() {
    clap().debug_assert();
}

#[test]
fn every_command_is_parsed() {
    let command = |line| read(line).unwrap().command;
    assert_eq!(command("run --manifests x"), Command::Run { once: false, init_only: false });
    assert_eq!(command("run --once --manifests x"), Command::Run { once: true, init_only: false });
    assert_eq!(command("plan"), Command::Plan { detailed: false });
    assert_eq!(command("plan --detailed-exitcode"), Command::Plan { detailed: true });
    assert_eq!(command("diff --from ipvs"), Command::Diff { from: Some(Kind::Ipvs), to: None });
    assert_eq!(command("diff --to nftables"), Command::Diff { from: None, to: Some(Kind::Nftables) });
    let rendered = read("render --node-address 192.0.2.1 --node-address fd00::1").unwrap();
    assert_eq!(rendered.node_addresses, ["192.0.2.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    for (line, output, millis) in [
        ("show -o json", Output::Json, None),
        ("show --watch", Output::Text, Some(2000)),
        ("show --watch 0.5 -o json", Output::Json, Some(500)),
    ] {
        let Invocation { command, output: given, .. } = read(line).unwrap();
        assert_eq!((command, given), (Command::Show(millis.map(Duration::from_millis)), output));
    }
    for wrong in ["0", "-1", "x", "1e9", "NaN"] {
        assert!(refused(&format!("show --watch={wrong}")).contains("--watch"), "{wrong}");
    }
    assert_eq!((command("probe"), read("probe --output=json").unwrap().output), (Command::Probe, Output::Json));
    assert_eq!(command("cleanup"), Command::Cleanup(None));
    assert_eq!(command("cleanup --keep iptables"), Command::Cleanup(Some(Kind::Iptables)));
    assert_eq!(command("cleanup --keep nftables"), Command::Cleanup(Some(Kind::Nftables)));
    assert_eq!(command("cleanup --keep ipvs"), Command::Cleanup(Some(Kind::Ipvs)));
    assert!(read("cleanup --keep userspace").is_err());
    assert_eq!(command("run --write-config-to out.yaml"), Command::WriteConfig("out.yaml".into()));
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
    assert_eq!(read(line).unwrap().command, Command::Run { once: false, init_only: false });
    assert_eq!(configured.settings.object.cluster_cidr, "10.244.0.0/16");
    assert_eq!(configured.settings.node_name, "node-a");
    assert_eq!(configured.settings.verbosity, 4);
    assert_eq!(configured.warnings, Vec::<String>::new());
    assert_eq!(read("--cleanup").unwrap().command, Command::Cleanup(None));
    assert_eq!(read("--cleanup=").unwrap_err().code, 2);
    assert_eq!(read("--write-config-to=c").unwrap().command, Command::WriteConfig("c".into()));
    assert_eq!(read("--init-only").unwrap().command, Command::Run { once: false, init_only: true });
}

#[test]
fn help_and_version_are_no_failures() {
    for line in ["--help", "run --help", "-h", "--version", "-V", "run --version"] {
        assert_eq!(read(line).unwrap_err().code, 0, "{line}");
    }
    assert_eq!(read("run --version").unwrap_err().text, format!("proxier-demo {}", build::LINE));
    let help = read("run --help").unwrap_err().text;
    for flag in ["--manifests", "--once", "--config", "--nodeport-addresses", "--ipvs-scheduler", "--masquerade-all"] {
        assert!(help.contains(flag), "{flag} is not in the help");
    }
}

#[test]
fn bad_usage_is_one_line_that_says_what_to_do() {
    for (line, expected) in [
        ("", "'proxier-demo' requires a subcommand but one was not provided"),
        ("frob", "unrecognized subcommand 'frob'"),
        ("run --manifest x", "unexpected argument '--manifest' found; a similar argument exists: '--manifests'"),
        ("plan --once", "unexpected argument '--once' found"),
        ("show -o yaml", "invalid value 'yaml' for '--output <output>'; [possible values: text, json]"),
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
        assert!(text.ends_with("see proxier-demo --help"), "{line}: {text}");
        assert_eq!(text.lines().count(), 1, "{line}: {text}");
    }
}

#[test]
fn every_error_is_1_with_a_detailed_exit_code() {
    let code = |line: &str| read(line).and_then(|invocation| invocation.configure()).unwrap_err().code;
    for (line, expected) in [("plan --detailed-exitcode", 1), ("plan", 2)] {
        assert_eq!(code(&format!("{line} --stray")), expected);
        assert_eq!(code(&format!("{line} --hostname-override n --cluster-cidr x")), expected);
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

/// The help shows `[X]` if X is the default.
#[test]
fn defaults_in_the_help_are_the_real_ones() {
    for arg in flags::args() {
        let (name, help) = (arg.get_id().as_str(), arg.get_help().map(ToString::to_string).unwrap_or_default());
        let Some((_, default)) = help.strip_suffix(']').and_then(|help| help.rsplit_once('[')) else { continue };
        for mode in Kind::ALL {
            let checked = |line: &str| {
                let settings = configured(&format!("run {line} --proxy-mode {mode}")).settings;
                let object = serde_json::to_value(&settings.object).unwrap();
                let of_flag = flags_of(&object).find(|(flag, _)| *flag == name).map(|(_, value)| value);
                (of_flag, format!("{:?}", Settings { object: KubeProxyConfiguration::default(), ..settings }))
            };
            let (without, given) = (checked(""), checked(&format!("--{name}={default}")));
            assert_eq!(without.1, given.1, "{name}");
            assert!(without.0 == Some(String::new()) || without.0 == given.0, "{name}: {:?}, {:?}", without.0, given.0);
        }
    }
}

/// A feature gate without effect causes a warning, both as a flag and in a file.
#[test]
fn a_feature_gate_has_an_effect_or_a_warning() {
    let folder = std::env::temp_dir().join(format!("proxier-gates-{}", std::process::id()));
    let file = |gates: &str| {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        std::fs::write(&folder, format!("{head}featureGates: {{{gates}}}\n")).unwrap();
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
        let settings = parse(args).and_then(|invocation| invocation.configure()).unwrap().settings;
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
