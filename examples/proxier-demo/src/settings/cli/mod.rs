//! The command line: `proxier-demo run`, `plan`, `render`, `explain`, `trace`, `show`, `probe`, `cleanup`, and
//! kube-proxy's own form.

mod flags;
pub mod packet;

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command as Clap, ValueHint};
use clap_complete::Shell;
use proxier_core::config::EXTERNAL_IPS_GATE;
use proxier_core::modes::Kind;
use proxier_core::modes::select::{RequestedMode, candidates};
use proxier_core::net::Family;

pub use self::flags::flag_of;
pub(crate) use self::flags::flags_of;
use crate::output::{self, Output};
use crate::problem::{OneLine, Problem, Stopped};
use crate::settings::cli::packet::{Sender, To, TraceRequest};
use crate::settings::duration::GoDuration;
use crate::settings::kubeproxyconfig::{KubeProxyConfiguration, removed};
use crate::settings::{Origin, Settings};
use crate::{build, exit};

/// Ends the program before it starts: a text and an exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// 0: requested (help, version). 2: bad usage; 1 with `--detailed-exitcode`.
    pub code: u8,
    /// Text to print, one line per problem.
    pub text: String,
}

impl Ending {
    fn bad_usage(reason: impl fmt::Display) -> Self {
        Ending { code: exit::BAD_INPUT, text: format!("proxier-demo: {reason}") }
    }

    /// Prints it, to stdout if it was requested and to stderr otherwise.
    pub fn report(&self) -> ExitCode {
        if self.code != 0 {
            output::complain(&self.to_string());
            return ExitCode::from(self.code);
        }
        ExitCode::from(u8::from(!output::print(&format!("{self}\n"))))
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())
    }
}

/// The commands of `COMMANDS`, and what no command's name asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Run {
        once: bool,
        /// Write only the settings that need the host's root user (sysctls), then exit.
        init_only: bool,
    },
    Plan {
        /// Whether the exit code reports if there are changes.
        detailed: bool,
    },
    Render,
    Explain(String),
    Trace(TraceRequest),
    Diff {
        /// The mode before; `None`: that of a kube-proxy, whose objects the kernel has.
        from: Option<Kind>,
        /// The mode afterwards; `None`: the configured one.
        to: Option<Kind>,
    },
    /// Once, or at this interval with rates.
    Show(Option<Duration>),
    Probe,
    /// Except what a kube-proxy in this mode has.
    Cleanup(Option<Kind>),
    /// Write the effective configuration to a file.
    WriteConfig(PathBuf),
}

impl Command {
    /// Whether the command depends on this node's own endpoints and addresses, so that the Node's name must be right.
    /// `show` names Services without it.
    fn needs_node(&self) -> bool {
        use Command::{Diff, Explain, Plan, Render, Run, Trace};
        matches!(self, Run { init_only: false, .. } | Plan { .. } | Render | Explain(_) | Trace(_) | Diff { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Manifests(Vec<PathBuf>),
    Cluster(Connection),
}

/// Where the API server's address and the credentials come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// A kubeconfig. Without one, and without `master`, the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL instead of the kubeconfig's. Alone, it is used without credentials.
    pub master: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Invocation {
    pub command: Command,
    /// `--config`. If the file changes, `run` ends, so that its supervisor restarts it with the new file.
    pub config: Option<PathBuf>,
    matches: ArgMatches,
}

#[derive(Clone, Debug)]
pub struct Configured {
    pub source: Source,
    pub settings: Settings,
    pub output: Output,
    /// Addresses of the node that is simulated; empty: those of its Node object.
    pub node_addresses: Vec<IpAddr>,
    /// `--allow-mass-removal`: most of the Services may be removed at once.
    pub allow_mass_removal: bool,
    /// `--no-fallback`: only serve in the configured mode.
    pub no_fallback: bool,
    pub(crate) given: Origin,
    /// `--input-timeout`: how long `plan`, `render`, `explain`, `trace`, `show` and `run --once` wait for an API server
    /// that sends nothing new; `None`: indefinitely.
    pub input_timeout: Option<Duration>,
    pub warnings: Vec<String>,
}

impl Configured {
    /// The same configuration for this mode. Settings that several modes have come from the mode's own section.
    pub(crate) fn in_mode(&self, mode: Kind) -> Result<Configured, Vec<Problem>> {
        if mode == self.settings.mode {
            return Ok(self.clone());
        }
        let given = Origin { mode: Some(mode), ..self.given.clone() };
        let settings = Settings::check(self.settings.object.clone(), &given)?;
        Ok(Configured { settings, ..self.clone() })
    }

    /// Whether this mode may serve, first or as a fallback.
    pub(crate) fn may_serve_in(&self, mode: Kind) -> bool {
        candidates(self.settings.asked, !self.no_fallback, None).contains(&mode)
    }
}

/// Default of `--input-timeout`.
const INPUT_TIMEOUT: Duration = Duration::from_secs(60);

/// Parses a command line, which begins with the program's name.
///
/// kube-proxy has no commands: a line that starts with a flag means `run`, or `cleanup` with `--cleanup`. As in
/// kube-proxy, names may have `_` for `-`.
/// Errors: help or version were requested (code 0); bad usage (code 2).
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Ending> {
    let args: Vec<OsString> = args.into_iter().map(with_dashes).collect();
    let is_detailed = args.iter().any(|arg| arg.to_str() == Some("--detailed-exitcode"));
    parse_dashed(args)
        .map_err(|ending| if is_detailed { Ending { code: ending.code.min(1), ..ending } } else { ending })
}

fn parse_dashed(mut args: Vec<OsString>) -> Result<Invocation, Ending> {
    let first = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    if first.starts_with('-') && !matches!(first, "-h" | "--help" | "-V" | "--version" | "--version=true") {
        args.insert(1, "run".into());
    }
    let command = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default().to_owned();
    let mut matches = clap().try_get_matches_from(args).map_err(|error| ending(&error, &command))?;
    let Some((name, matches)) = matches.remove_subcommand() else {
        let reason =
            "say what to do: run, plan, render, explain, trace, diff, show, probe or cleanup; see proxier-demo --help";
        return Err(Ending::bad_usage(reason));
    };
    if name == "completion" {
        return Err(completion(matches.get_one("shell").copied()));
    }
    if matches.get_flag("version") {
        return Err(Ending { code: 0, text: format!("{NAME} {}", build::LINE) });
    }
    let mode = |name: &str| {
        Kind::ALL.into_iter().find(|mode| matches.get_one::<String>(name).is_some_and(|of| of == mode.name()))
    };
    let command = match (name.as_str(), matches.get_one::<PathBuf>("write-config-to")) {
        (_, Some(file)) => Command::WriteConfig(file.clone()),
        _ if matches.get_flag("cleanup") => Command::Cleanup(None),
        ("plan", _) => Command::Plan { detailed: matches.get_flag(DETAILED) },
        ("render", _) => Command::Render,
        ("explain", _) => Command::Explain(matches.get_one::<String>("what").cloned().unwrap_or_default()),
        ("trace", _) => match (matches.get_one("from"), matches.get_one("to")) {
            (Some(from), Some(to)) => {
                let device = matches.get_one::<String>("device").cloned();
                let live = matches.get_one::<Duration>("live").copied();
                Command::Trace(TraceRequest { from: *from, to: *to, device, live })
            }
            _ => return Err(Ending::bad_usage("trace takes FROM and TO")),
        },
        ("diff", _) => Command::Diff { from: mode("from"), to: mode("to") },
        ("show", _) => Command::Show(matches.get_one::<Duration>("watch").copied()),
        ("probe", _) => Command::Probe,
        ("cleanup", _) => Command::Cleanup(mode("keep")),
        _ => Command::Run { once: matches.get_flag("once"), init_only: matches.get_flag("init-only") },
    };
    Ok(Invocation { command, config: matches.get_one("config").cloned(), matches })
}

impl Invocation {
    /// Reads the configuration: the file of `--config`, otherwise the flags.
    ///
    /// With a file, configuration flags are ignored, as in kube-proxy, except `--hostname-override` and those of
    /// logging; a warning names the ignored ones. The flags that name the source always apply.
    /// Errors: all problems of the configuration at once.
    pub fn configure(&self) -> Result<Configured, Stopped> {
        let matches = &self.matches;
        let mut warnings = Vec::new();
        let (mut object, mut given) = match &self.config {
            Some(path) => {
                let (mut object, unknown) = KubeProxyConfiguration::read(path).map_err(Stopped::bad_input)?;
                warnings.extend(unknown.iter().map(ToString::to_string));
                flags::set_logging(matches, &mut object);
                (object, Origin { origin: path.display().to_string(), ..Origin::default() })
            }
            None => self.by_flags().map_err(Stopped::bad_input)?,
        };
        let unused = flags::without_effect(matches, self.config.is_some());
        if !unused.is_empty() {
            let why = if self.config.is_some() { " next to --config" } else { "" };
            let instead = removed("ipvs.markNodePorts").filter(|_| unused.contains(&"ipvs-mark-node-ports"));
            let instead = instead.map(|instead| format!("; {instead}")).unwrap_or_default();
            warnings.push(format!("accepted, without effect{why}: --{}{instead}", unused.join(", --")));
        }
        if let Some(name) = matches.get_one::<String>("hostname-override") {
            object.hostname_override.clone_from(name);
        }
        let gates: Vec<&str> =
            object.feature_gates.keys().map(String::as_str).filter(|name| *name != EXTERNAL_IPS_GATE).collect();
        if !gates.is_empty() {
            warnings.push(format!("feature gates without effect here: {}", gates.join(", ")));
        }
        given.nameless = !self.command.needs_node();
        let settings = Settings::check(object, &given).map_err(Stopped::bad_input)?;
        warnings.extend(localhost_not_served(&settings));
        let source = self.source(&settings);
        let input_timeout = matches.get_one::<GoDuration>("input-timeout").map_or(INPUT_TIMEOUT, |given| given.0);
        let input_timeout = Some(input_timeout).filter(|limit| !limit.is_zero());
        // Only some commands have these two options.
        let output = match matches.try_get_one::<String>("output").ok().flatten().map(String::as_str) {
            Some("json") => Output::Json,
            _ => Output::Text,
        };
        let node_addresses = matches.try_get_many::<IpAddr>("node-address").ok().flatten();
        let configured = Configured {
            source,
            settings,
            output,
            node_addresses: node_addresses.unwrap_or_default().copied().collect(),
            allow_mass_removal: matches.get_flag("allow-mass-removal"),
            no_fallback: matches.get_flag("no-fallback"),
            given,
            input_timeout,
            warnings,
        };
        // A bad value in the section of a fallback mode does not justify skipping that mode.
        for mode in Kind::ALL.into_iter().filter(|mode| configured.may_serve_in(*mode)) {
            configured.in_mode(mode).map_err(Stopped::bad_input)?;
        }
        Ok(configured)
    }

    fn by_flags(&self) -> Result<(KubeProxyConfiguration, Origin), Problem> {
        let mut given = Origin { flag_of: Some(flags::flag_of), ..Origin::default() };
        let mut object = flags::configuration(&self.matches, &given)?;
        for (name, host, field, off) in [
            ("healthz", "0.0.0.0", &mut object.healthz_bind_address, &mut given.no_healthz),
            ("metrics", "127.0.0.1", &mut object.metrics_bind_address, &mut given.no_metrics),
        ] {
            if let Some(address) = flags::server(&self.matches, name, host) {
                (*off, *field) = (address.is_empty(), address);
            }
        }
        if let Some(kubeconfig) = self.matches.get_one::<PathBuf>("kubeconfig") {
            object.client_connection.kubeconfig = kubeconfig.display().to_string();
        }
        Ok((object, given))
    }

    fn source(&self, settings: &Settings) -> Source {
        if let Some(manifests) = self.matches.get_many::<PathBuf>("manifests") {
            return Source::Manifests(manifests.cloned().collect());
        }
        let named = Some(&settings.object.client_connection.kubeconfig).filter(|path| !path.is_empty());
        let kubeconfig = self.matches.get_one("kubeconfig").cloned().or_else(|| named.map(PathBuf::from));
        let master = self.matches.get_one("master").cloned();
        Source::Cluster(Connection { kubeconfig, master })
    }
}

const NAME: &str = "proxier-demo";

/// Turns `--cluster_cidr=x` into `--cluster-cidr=x`.
fn with_dashes(arg: OsString) -> OsString {
    let Some(text) = arg.to_str().filter(|text| text.starts_with("--") && text.contains('_')) else { return arg };
    match text.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
        None => text.replace('_', "-").into(),
    }
}

/// Commands: name, what it does, and examples.
const COMMANDS: [(&str, &str, &str); 9] = [
    (
        "run",
        "Run the proxy until SIGTERM or SIGINT",
        "proxier-demo run --kubeconfig /etc/kubernetes/proxy.conf --proxy-mode nftables
  proxier-demo run --config /var/lib/kube-proxy/config.conf
  proxier-demo run --once --manifests services.yaml      one pass, then exit",
    ),
    (
        "plan",
        "Print what would change; write nothing",
        "proxier-demo plan --config /var/lib/kube-proxy/config.conf
  kubectl get svc,endpointslices -A -o yaml | proxier-demo plan --manifests - --proxy-mode nftables --detailed-exitcode",
    ),
    (
        "render",
        "Print what a node would hold, as ipvsadm, ipset, iptables-save and nft print it; needs no kernel",
        "proxier-demo render --manifests services.yaml --proxy-mode nftables --node-address 192.0.2.1",
    ),
    (
        "explain",
        "Print why a Service, or an address and port, is served as it is; needs no kernel",
        "proxier-demo explain shop/web --kubeconfig /etc/kubernetes/proxy.conf
  proxier-demo explain 192.0.2.1:30080 --manifests services.yaml",
    ),
    (
        "trace",
        "Print what becomes of the first packet of a connection; needs no kernel without --live",
        "proxier-demo trace outside 203.0.113.5:443 --kubeconfig /etc/kubernetes/proxy.conf
  proxier-demo trace 10.244.1.7 10.96.0.10:53/udp --live=5      counts for five seconds in this kernel",
    ),
    (
        "diff",
        "Print what clients will see differently in another mode; needs no kernel, but for --from kube-proxy",
        "proxier-demo diff --config /var/lib/kube-proxy/config.conf --to nftables      from what kube-proxy has left here
  proxier-demo diff --from ipvs --to nftables --manifests services.yaml --node-address 192.0.2.1

Exit codes: 0 nothing differs, 3 something does, 1 failed, 2 bad usage or bad input.",
    ),
    (
        "show",
        "Print what the kernel holds, with the Services it serves",
        "proxier-demo show --kubeconfig /etc/kubernetes/proxy.conf
  proxier-demo show --watch 1 --proxy-mode ipvs",
    ),
    (
        "probe",
        "Print what the mode needs and whether this machine has it",
        "proxier-demo probe --proxy-mode nftables
  proxier-demo probe -o json",
    ),
    (
        "cleanup",
        "Remove what it or a kube-proxy has created, in all modes and both families",
        "proxier-demo cleanup
  proxier-demo cleanup --keep nftables      back to a kube-proxy in nftables mode that serves again",
    ),
];

fn clap() -> Clap {
    // Options are only added to the requested command: a start needs no help texts of the other eight.
    let commands = COMMANDS.map(|(name, about, examples)| {
        Clap::new(name).about(about).after_help(format!("Examples:\n  {examples}")).defer(add_arguments)
    });
    let exit_codes = exit::MEANINGS.iter().map(|(code, meaning)| format!("\n  {code}  {meaning}"));
    Clap::new(NAME)
        .about("A Kubernetes service proxy, in place of kube-proxy")
        .version(build::LINE)
        .override_usage(format!("{NAME} <COMMAND>"))
        .after_help(format!("Exit codes:{}", exit_codes.collect::<String>()))
        .subcommands(commands)
        .subcommand(
            Clap::new("completion")
                .about("Print a script that completes commands and options in a shell")
                .arg(Arg::new("shell").value_name("SHELL").required(true).value_parser(clap::value_parser!(Shell))),
        )
}

fn completion(shell: Option<Shell>) -> Ending {
    let mut script = Vec::new();
    if let Some(shell) = shell {
        clap_complete::generate(shell, &mut clap(), NAME, &mut script);
    }
    Ending { code: 0, text: String::from_utf8_lossy(&script).into_owned() }
}

fn add_arguments(command: Clap) -> Clap {
    let name = command.get_name().to_owned();
    let is_one_of = |names: &[&str]| names.contains(&name.as_str());
    let mass_removal = switch("allow-mass-removal").help(
        "Delete at once even when more than half of the virtual servers would go, which otherwise waits for five minutes. SIGUSR1 \
         does it once in a running proxy",
    );
    let no_fallback = switch("no-fallback")
        .help("Fail when this machine cannot do the mode that is asked for, instead of serving in the next best one");
    let input_timeout = option("input-timeout")
        .value_name("DURATION")
        .value_parser(|text: &str| text.parse::<GoDuration>())
        .help("How long run --once, plan, render, explain, trace, diff and show wait while the API server sends nothing new, 0s: without limit [60s]");
    let command = command
        .args(sources_and_files().into_iter().chain(flags::args()))
        .args_override_self(true)
        .disable_version_flag(true)
        .arg(mass_removal.hide(!is_one_of(&["run", "plan"])))
        .arg(no_fallback.hide(!is_one_of(&["run", "plan"])))
        .arg(input_timeout.hide(!is_one_of(&["run", "plan", "render", "explain", "trace", "diff", "show"])));
    let command = if is_one_of(&["plan", "render", "explain", "trace", "diff", "show", "probe"]) {
        let output =
            option("output").short('o').value_name("FORMAT").value_parser(["text", "json"]).default_value("text");
        command.arg(output.help("How to print").display_order(0))
    } else {
        command
    };
    let once = "One full sync, then exit: 0 when the kernel serves all Services, 1 when something failed";
    let command = match name.as_str() {
        "run" => command.arg(switch("once").display_order(0).help(once)),
        "plan" => command.arg(switch(DETAILED).display_order(0).help(
            "Exit code 0: nothing to do, 2: something would change or is held back, 1: any error, bad usage and input too",
        )),
        "render" => command.arg(node_address()),
        "explain" => command.arg(node_address()).arg(
            Arg::new("what")
                .value_name("SERVICE|ADDRESS:PORT[/PROTOCOL]")
                .required(true)
                .help("NAMESPACE/NAME or NAMESPACE/NAME:PORT of a Service, or an address and port, tcp by default"),
        ),
        "trace" => command.args(of_trace()),
        "diff" => command.args(of_diff()).arg(node_address()),
        "cleanup" => command.long_about(CLEANUP).arg(
            own("keep", "MODE", "Keep the objects of a kube-proxy that serves in this mode again")
                .value_parser(["ipvs", "nftables", "iptables"]),
        ),
        "show" => command.arg(
            own("watch", "SECONDS", "Print it with rates at this interval in seconds, busiest first, until SIGINT [2]")
                .num_args(0..=1)
                .default_missing_value("2")
                .value_parser(interval),
        ),
        _ => command,
    };
    // Without a hint, a shell would complete file names.
    let is_unknown = |arg: &Arg| arg.get_action().takes_values() && arg.get_value_hint() == ValueHint::Unknown;
    command.mut_args(|arg| if is_unknown(&arg) { arg.value_hint(ValueHint::Other) } else { arg })
}

const CLEANUP: &str = "Remove what it or a kube-proxy has created, in all modes and both families:
  tables of nf_tables: proxier, proxier-ipvs, and kube-proxy's (kube-proxy)
  chains KUBE-… and the jumps to them, in both back ends of iptables (nft and legacy)
  virtual servers of IPVS, ipsets KUBE-…, the device kube-ipvs0, routes of its own
What other programs have created stays. So do the kubelet's chain KUBE-FIREWALL, which guards loopback addresses, and settings below /proc/sys, whose \
earlier values are unknown. If a kube-proxy serves already, name its mode with --keep: \
otherwise its objects are removed too, and Services fail until it writes them again.";

fn of_diff() -> [Arg; 2] {
    let modes = Kind::ALL.map(Kind::name);
    let from = "The mode to compare from, or kube-proxy: what it has left in this kernel";
    [
        own("from", "MODE|kube-proxy", from)
            .value_parser(PossibleValuesParser::new(modes.into_iter().chain(["kube-proxy"])))
            .default_value("kube-proxy"),
        own("to", "MODE", "The mode to compare with [the configured one]")
            .value_parser(PossibleValuesParser::new(modes)),
    ]
}

/// The option of `plan` that changes the meaning of exit code 2.
const DETAILED: &str = "detailed-exitcode";

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not from 0.1 to 3600 seconds".to_owned())
}

fn of_trace() -> [Arg; 5] {
    [
        node_address(),
        Arg::new("from")
            .value_name("FROM")
            .required(true)
            .value_parser(|text: &str| text.parse::<Sender>())
            .help("Who sends it: an address, node or outside"),
        Arg::new("to")
            .value_name("TO:PORT[/PROTOCOL]")
            .required(true)
            .value_parser(|text: &str| text.parse::<To>())
            .help("Where to, tcp by default"),
        own("device", "NAME", "The device by which it comes in, for detectLocalMode by devices"),
        own(
            "live",
            "SECONDS",
            "Compare with what this kernel holds for that address and port, and count packets for this many seconds; \
             send nothing. Exit code 1: it differs",
        )
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("0")
        .value_parser(|text: &str| if text == "0" { Ok(Duration::ZERO) } else { interval(text) }),
    ]
}

fn option(name: &'static str) -> Arg {
    Arg::new(name).long(name)
}

/// An option of this name without a value.
fn switch(name: &'static str) -> Arg {
    option(name).action(ArgAction::SetTrue)
}

/// An option of single commands, shown before those of all.
fn own(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    option(name).value_name(value).display_order(0).help(help)
}

fn node_address() -> Arg {
    own("node-address", "IP", "An address of the node; may be repeated [those of its Node object]")
        .value_parser(clap::value_parser!(IpAddr))
        .action(ArgAction::Append)
}

fn sources_and_files() -> [Arg; 9] {
    let path = |name| option(name).value_name("FILE").value_parser(clap::value_parser!(PathBuf));
    [
        path("manifests")
            .value_name("FILE|DIR")
            .action(ArgAction::Append)
            .conflicts_with_all(["kubeconfig", "master"])
            .help("No cluster: read Services, EndpointSlices and Nodes from YAML or JSON files, and follow them; -: standard input"),
        path("kubeconfig").help("The kubeconfig of the cluster [in-cluster]"),
        option("master").value_name("URL").help("The API server, in place of the kubeconfig's"),
        option("hostname-override").value_name("NAME").help("This Node's name [the host's]"),
        path("config").help("A KubeProxyConfiguration (v1alpha1), or kubeadm's ConfigMap with one"),
        path("write-config-to").help("Write the effective configuration to a file and exit"),
        switch("cleanup").hide(true),
        switch("init-only").hide(true),
        switch("version").hide(true),
    ]
}

/// Converts an error of the parser about this command, joining its lines into one.
fn ending(error: &clap::Error, command: &str) -> Ending {
    let text = error.to_string();
    if !error.use_stderr() {
        return Ending { code: 0, text };
    }
    let mut parts = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        let part = line.trim_start_matches("error: ").trim_start_matches("tip: ");
        if !part.is_empty() {
            parts.push(part.to_owned());
        }
    }
    let text = parts.join("; ").replace(":; ", ": ");
    let name = if COMMANDS.iter().any(|(name, ..)| *name == command) { format!(" {command}") } else { String::new() };
    Ending::bad_usage(format_args!("{}; see proxier-demo{name} --help", OneLine(&text)))
}

/// Warning that node ports are requested on loopback addresses on which the mode does not serve them.
fn localhost_not_served(settings: &Settings) -> Option<String> {
    let asked = &settings.core.node_port_addresses;
    let named: Vec<Family> = settings.core.families.iter().filter(|family| asked.names_localhost(*family)).collect();
    let options = settings.iptables();
    let RequestedMode::Mode(mode) = settings.asked else {
        let by_mode = "on 127.0.0.1 in nftables, iptables and userspace mode, on ::1 in nftables and userspace mode";
        return (!named.is_empty()).then(|| format!("nodePortAddresses localhost: node ports are served {by_mode}"));
    };
    let missing = named.iter().filter(|family| !mode.localhost(&options).contains(family));
    let missing: Vec<String> = missing.map(|family| family.localhost().to_string()).collect();
    (!missing.is_empty()).then(|| {
        let addresses = missing.join(" and ");
        format!("nodePortAddresses localhost: node ports are not served on {addresses} in {mode} mode")
    })
}

#[cfg(test)]
mod tests;
