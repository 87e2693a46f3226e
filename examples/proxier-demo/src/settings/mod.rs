//! The checked configuration.

pub mod cli;
pub mod duration;
pub mod kubeproxyconfig;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipvs::model::TimeoutsUpdate;
use proxier_core::config::{Config, EXTERNAL_IPS_GATE, Reserved, ReservedPort, User, parse_service_cidr};
use proxier_core::modes::iptables::{self, RandomFully};
use proxier_core::modes::select::RequestedMode;
use proxier_core::modes::{HostSettings, Kind, userspace};
use proxier_core::net::Network;
use proxier_core::objects::ConfigObject;
use serde_json::Value;

use crate::problem::Problem;
use crate::settings::duration::GoDuration;
use crate::settings::kubeproxyconfig::{END_TIMEOUT, KubeProxyConfiguration};

/// All settings, checked. `core` contains those for compiling Services.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Settings for compiling Services.
    pub core: Config,
    pub asked: RequestedMode,
    /// The mode that serves: the configured one, or the one that was chosen.
    pub mode: Kind,
    /// Address of `/healthz`, `/livez` and `/readyz`; `None`: no server.
    pub healthz: Option<SocketAddr>,
    /// Address of `/metrics`; `None`: no server.
    pub metrics: Option<SocketAddr>,
    /// Which clients may see the status page of the metrics server.
    pub status_page: Exposure,
    /// The node's name: trimmed, in lower case. Checked where needed ([`Origin::nameless`]).
    pub node_name: String,
    /// Whether protobuf is requested from the API server, which may answer in JSON.
    pub protobuf: bool,
    /// Interval between full comparisons with the kernel; greater than 0.
    pub sync_period: Duration,
    /// Shortest time between two passes; at most `sync_period`.
    pub min_sync_period: Duration,
    pub userspace: userspace::UserspaceOptions,
    /// How long connections of userspace mode may continue when the process ends.
    pub end_timeout: Duration,
    /// Whether masqueraded connections get random ports. For iptables mode; IPVS mode only uses `Never`.
    pub random_fully: RandomFully,
    pub timeouts: TimeoutsUpdate,
    pub host: HostSettings,
    /// Value for this process's `oom_score_adj`: −1000 to 1000.
    pub oom_score_adj: i16,
    /// Verbosity of logs: 0 to 10.
    pub verbosity: u8,
    pub log_json: bool,
    /// The configuration as an object, defaults filled in: `--write-config-to`, `/configz`.
    pub object: KubeProxyConfiguration,
}

/// Which clients may see the status page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// No clients: the page does not exist. Default.
    #[default]
    Off,
    /// Clients on this host, by an address or the name `localhost`. Excludes web pages under another name that a name
    /// server could resolve to this host.
    Localhost,
    /// All clients that reach the metrics server.
    On,
}

/// Where a configuration comes from, with the parts that only flags can set.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The file's name, or empty for flags.
    pub origin: String,
    pub no_healthz: bool,
    pub no_metrics: bool,
    /// The chosen mode, which overrides the configured one.
    pub mode: Option<Kind>,
    /// Whether the command needs no Node: any host name is then accepted.
    pub nameless: bool,
    /// Returns the flag behind a field, if fields were set by flags.
    pub flag_of: Option<fn(&str) -> Option<&'static str>>,
}

impl Origin {
    /// A problem of this field, under the name by which it was given: the flag's, or the file's and the field's.
    pub(crate) fn problem(&self, field: &str, reason: impl Into<String>) -> Problem {
        match self.flag_of.and_then(|flag_of| flag_of(field)) {
            Some(flag) => Problem::new(format!("--{flag}"), reason),
            None => Problem::new(&self.origin, reason).at(field),
        }
    }
}

impl Settings {
    /// The addresses and ports that no Service gets, as configured.
    pub(crate) fn reserved(&self) -> Reserved {
        let mut reserved = self.core.reserved.clone();
        for (address, user) in [(self.healthz, User::Health), (self.metrics, User::Metrics)] {
            if let Some(address) = address {
                reserved.reserve(ReservedPort::tcp_here(address.port()), user);
            }
        }
        reserved
    }

    pub(crate) fn iptables(&self) -> iptables::IptablesOptions {
        let mut options = iptables::IptablesOptions::default();
        options.localhost_node_ports = self.object.iptables.localhost_node_ports.unwrap_or(true);
        options.random_fully = self.random_fully;
        options.reject_with_reset = self.object.iptables.reject_with_reset;
        options
    }

    /// One line for the log of the start: how to choose another mode, where nobody may have chosen this one or other programs warn about it. `None`
    /// where there is nothing to add.
    pub(crate) fn how_to_choose(&self, is_by_flags: bool) -> Option<String> {
        let field = if is_by_flags { "--proxy-mode" } else { "mode" };
        match self.object.mode.as_str() {
            "" => Some(format!("no mode is set, which means auto; to choose, set {field} to ipvs, nftables, iptables or userspace")),
            "iptables" if !is_by_flags => Some(
                "mode iptables, which kubeadm 1.37 and later write where nobody chose a mode; to choose, set mode to auto, ipvs, nftables or userspace"
                    .to_owned(),
            ),
            "ipvs" => Some(format!(
                "mode ipvs, which proxier-demo goes on serving when kube-proxy no longer does (off in 1.40, removed in 1.43); to choose, set {field} to \
                 auto, nftables, iptables or userspace"
            )),
            _ => None,
        }
    }

    pub fn check(mut object: KubeProxyConfiguration, given: &Origin) -> Result<Self, Vec<Problem>> {
        object.set_defaults();
        let mut check = Check { given, errors: Vec::new() };
        let settings = check.all(object);
        if check.errors.is_empty() { Ok(settings) } else { Err(check.errors) }
    }

    /// Writes the effective configuration to a file, as YAML.
    pub fn write(&self, path: &std::path::Path) -> Result<(), Problem> {
        std::fs::write(path, self.object.to_yaml()?)
            .map_err(|error| Problem::new(path.display().to_string(), format!("cannot be written ({error})")))
    }
}

struct Check<'a> {
    given: &'a Origin,
    errors: Vec<Problem>,
}

impl Check<'_> {
    fn error(&mut self, field: &str, reason: impl Into<String>) {
        let problem = self.given.problem(field, reason);
        self.errors.push(problem);
    }

    fn all(&mut self, object: KubeProxyConfiguration) -> Settings {
        if object.bind_address.parse::<IpAddr>().is_err() {
            self.error("bindAddress", format!("{:?} is not an IP address", object.bind_address));
        }
        let asked = self.asked(&object.mode);
        let mode = match (self.given.mode, asked) {
            (Some(chosen), _) => chosen,
            (None, RequestedMode::Mode(mode)) => mode,
            (None, RequestedMode::Auto) => Kind::default(),
        };
        let (section, least, most) = match &object.nftables {
            Some(nftables) if mode == Kind::Nftables => ("nftables", nftables.min_sync_period, nftables.sync_period),
            _ if mode == Kind::Iptables => ("iptables", object.iptables.min_sync_period, object.iptables.sync_period),
            _ => ("ipvs", object.ipvs.min_sync_period, object.ipvs.sync_period),
        };
        let (min_sync_period, sync_period) = (least.0, most.0);
        if min_sync_period > sync_period {
            self.error(&format!("{section}.minSyncPeriod"), format!("longer than {section}.syncPeriod ({most})"));
        }
        let oom_score_adj = object.oom_score_adj.unwrap_or(-999);
        let end_timeout = object.userspace.as_ref().and_then(|section| section.end_timeout);
        let connection = &object.client_connection;
        let accepted = Some(&connection.accept_content_types).filter(|types| !types.is_empty());
        let protobuf = accepted.unwrap_or(&connection.content_type).contains("protobuf");
        Settings {
            asked,
            mode,
            core: self.core(&object, mode),
            healthz: self.listen("healthzBindAddress", &object.healthz_bind_address, self.given.no_healthz),
            metrics: self.listen("metricsBindAddress", &object.metrics_bind_address, self.given.no_metrics),
            status_page: self.status_page(&object),
            node_name: self.node_name(&object.hostname_override),
            protobuf,
            sync_period,
            min_sync_period,
            userspace: self.userspace(&object),
            end_timeout: end_timeout.map_or(END_TIMEOUT, |given| given.0),
            random_fully: self.random_fully(&object),
            timeouts: self.timeouts(&object),
            host: self.host(&object),
            oom_score_adj: self.number("oomScoreAdj", oom_score_adj, -1000, 1000),
            verbosity: self.number("logging.verbosity", object.logging.verbosity.min(10), 0, 10),
            log_json: self.log_format(&object.logging.format),
            object,
        }
    }

    fn asked(&mut self, mode: &str) -> RequestedMode {
        if matches!(mode, "" | "auto") {
            return RequestedMode::Auto;
        }
        if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == mode) {
            return RequestedMode::Mode(kind);
        }
        let reason = if mode == "kernelspace" { "is for Windows only" } else { "is not a mode" };
        self.error("mode", format!("{mode:?} {reason}; write auto, ipvs, nftables, iptables or userspace"));
        RequestedMode::Auto
    }

    /// Reads proxier-core's part, which uses the same object and reports what is wrong.
    fn core(&mut self, object: &KubeProxyConfiguration, mode: Kind) -> Config {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        let masquerade = match (mode, &object.nftables) {
            (Kind::Nftables, Some(of)) => Some(("nftables.masqueradeBit", of.masquerade_all, of.masquerade_bit)),
            (Kind::Iptables, _) => {
                Some(("iptables.masqueradeBit", object.iptables.masquerade_all, object.iptables.masquerade_bit))
            }
            _ => None,
        };
        if let Some((_, all, bit)) = masquerade {
            // proxier-core reads both from the section `ipvs` in every mode.
            value["ipvs"]["masqueradeAll"] = all.into();
            value["ipvs"]["masqueradeBit"] = bit.into();
        }
        if !mode.facts().has_virtual_servers {
            // Only IPVS mode has its own firewall marks, which must not include the bit of its section.
            value["ipvs"]["markSplit"] = false.into();
        }
        let part: ConfigObject = match serde_json::from_value(value) {
            Ok(part) => part,
            Err(error) => {
                self.error("", error.to_string());
                return Config::default();
            }
        };
        let mut rejections = Vec::new();
        let config = Config::check(&part, &mut rejections);
        // The gate is a safeguard: a typo must not leave it off.
        let is_slip = |name: &&String| *name != EXTERNAL_IPS_GATE && name.eq_ignore_ascii_case(EXTERNAL_IPS_GATE);
        if let Some(name) = object.feature_gates.keys().find(is_slip) {
            self.error("featureGates", format!("{name:?} is not a feature gate; write {EXTERNAL_IPS_GATE}"));
        }
        for rejection in rejections {
            // Nothing of a configuration is ignored: only keep the first part, such as "not a network
            // (ADDRESS/PREFIX)".
            let reason = rejection.reason.split("; ").next().unwrap_or_default();
            let own = masquerade.map(|(field, ..)| field).filter(|_| rejection.field == "ipvs.masqueradeBit");
            let said = match rejection.value.as_str() {
                // An empty value, in quotes.
                "\"\"" => format!("is empty, {reason}"),
                value => format!("{value:?} is {reason}"),
            };
            self.error(own.unwrap_or(&rejection.field), said);
        }
        config
    }

    /// The meaning of a value; the first one without a value.
    fn one_of<T: Copy + Default>(&mut self, field: &str, given: Option<&Value>, all: &[(Value, T)], reason: &str) -> T {
        let Some(given) = given else { return all.first().map(|(_, meaning)| *meaning).unwrap_or_default() };
        let found = all.iter().find(|(value, _)| value == given);
        if found.is_none() {
            self.error(field, format!("{given} {reason}"));
        }
        found.map(|(_, meaning)| *meaning).unwrap_or_default()
    }

    fn random_fully(&mut self, object: &KubeProxyConfiguration) -> RandomFully {
        let all = [
            ("auto".into(), RandomFully::Auto),
            (true.into(), RandomFully::Always),
            (false.into(), RandomFully::Never),
        ];
        let given = object.iptables.random_fully.as_ref();
        self.one_of("iptables.randomFully", given, &all, "is neither auto, true nor false")
    }

    fn userspace(&mut self, object: &KubeProxyConfiguration) -> userspace::UserspaceOptions {
        let mut options = userspace::UserspaceOptions::default();
        let Some(section) = &object.userspace else { return options };
        options.udp_idle = section.udp_idle_timeout.0;
        for (index, text) in section.service_cidrs.iter().enumerate() {
            match service_cidr(text) {
                Ok(network) => options.service_cidrs.push(network),
                Err(reason) => self.error(&format!("userspace.serviceCIDRs[{index}]"), reason),
            }
        }
        options
    }

    fn listen(&mut self, field: &str, text: &str, off: bool) -> Option<SocketAddr> {
        if off {
            return None;
        }
        // A port that the kernel chooses is one that no probe finds.
        let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
        if address.is_none() {
            self.error(field, format!("{text:?} is not ADDRESS:PORT, such as 0.0.0.0:10256 or [::]:10256"));
        }
        address
    }

    fn status_page(&mut self, object: &KubeProxyConfiguration) -> Exposure {
        use Exposure::{Localhost, Off, On};
        // YAML may read `on` and `off` as booleans.
        let words = [("off", Off), ("localhost", Localhost), ("on", On)].map(|(word, meaning)| (word.into(), meaning));
        let all: Vec<_> = words.into_iter().chain([(false.into(), Off), (true.into(), On)]).collect();
        let exposure = self.one_of("statusPage", object.status_page.as_ref(), &all, "is not off, localhost or on");
        if exposure != Off && self.given.no_metrics {
            self.error("statusPage", "needs the metrics server, which is off; set --metrics-bind-address");
        }
        exposure
    }

    fn node_name(&mut self, asked: &str) -> String {
        let own = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = if asked.trim().is_empty() { own() } else { asked.to_owned() };
        let name = name.trim().to_lowercase();
        // RFC 1123, which the API server requires of a Node's name.
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if self.given.nameless {
            return name;
        }
        if name.is_empty() {
            self.error("hostnameOverride", "this host has no name; set --hostname-override to the Node's");
        } else if name.len() > 253 || !name.chars().all(good) {
            self.error("hostnameOverride", format!("{name:?} cannot be a Node's name (a-z, 0-9, '-', '.')"));
        }
        name
    }

    fn timeouts(&mut self, object: &KubeProxyConfiguration) -> TimeoutsUpdate {
        let mut timeouts = TimeoutsUpdate::new();
        timeouts.tcp_secs = self.secs("ipvs.tcpTimeout", object.ipvs.tcp_timeout);
        timeouts.tcp_fin_secs = self.secs("ipvs.tcpFinTimeout", object.ipvs.tcp_fin_timeout);
        timeouts.udp_secs = self.secs("ipvs.udpTimeout", object.ipvs.udp_timeout);
        timeouts
    }

    fn host(&mut self, object: &KubeProxyConfiguration) -> HostSettings {
        let asked = &object.conntrack;
        let mut host = HostSettings::default();
        host.strict_arp = object.ipvs.strict_arp;
        let most = i64::from(i32::MAX);
        let each: u32 = self.number("conntrack.maxPerCore", asked.max_per_core.unwrap_or(0), 0, most);
        let min: u32 = self.number("conntrack.min", asked.min.unwrap_or(0), 0, most);
        host.conntrack_max = (each > 0).then(|| each.saturating_mul(processors()).min(MOST_BY_PROCESSORS).max(min));
        host.tcp_be_liberal = asked.tcp_be_liberal;
        let timeout = |asked: Option<GoDuration>| asked.unwrap_or_default();
        host.tcp_established_secs =
            self.secs("conntrack.tcpEstablishedTimeout", timeout(asked.tcp_established_timeout));
        host.tcp_close_wait_secs = self.secs("conntrack.tcpCloseWaitTimeout", timeout(asked.tcp_close_wait_timeout));
        host.udp_secs = self.secs("conntrack.udpTimeout", asked.udp_timeout);
        host.udp_stream_secs = self.secs("conntrack.udpStreamTimeout", asked.udp_stream_timeout);
        host
    }

    /// Whole seconds; 0 leaves the kernel's value. Less than a second is rejected, because rounding would make it 0.
    fn secs(&mut self, field: &str, duration: GoDuration) -> Option<u32> {
        let secs = duration.0.as_secs();
        if secs == 0 && !duration.0.is_zero() {
            self.error(field, format!("{duration} is less than a second, which the kernel cannot do"));
        }
        let fits = u32::try_from(secs).ok().filter(|secs| i32::try_from(*secs).is_ok());
        if fits.is_none() {
            self.error(field, format!("{duration} is more than the kernel takes ({} s)", i32::MAX));
        }
        fits.filter(|secs| *secs > 0)
    }

    fn number<T: TryFrom<i64> + Default>(&mut self, field: &str, number: i64, least: i64, most: i64) -> T {
        let fits = Some(number).filter(|number| (least..=most).contains(number)).and_then(|n| n.try_into().ok());
        if fits.is_none() {
            self.error(field, format!("{number} is not from {least} to {most}"));
        }
        fits.unwrap_or_default()
    }

    fn log_format(&mut self, format: &str) -> bool {
        if !matches!(format, "text" | "json") {
            self.error("logging.format", format!("{format:?} is neither text nor json"));
        }
        format == "json"
    }
}

/// Most tracked connections that follow from the number of processors, as in kube-proxy from 1.36: with hundreds of them
/// the table could take gigabytes.
const MOST_BY_PROCESSORS: u32 = 1 << 20;

/// Number of the host's processors that are online. The connection table is the host's, so the share of them that this
/// process may use (affinity, a container's limit) does not count.
fn processors() -> u32 {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = |range: &str| -> Option<u32> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    let usable = || std::thread::available_parallelism().map_or(1, |all| u32::try_from(all.get()).unwrap_or(u32::MAX));
    online.trim().split(',').map(count).sum::<Option<u32>>().unwrap_or_else(usable)
}

pub(crate) fn service_cidr(text: &str) -> Result<Network, String> {
    let reason = || format!("{text:?} is not a network of Services (ADDRESS/PREFIX, not all addresses)");
    parse_service_cidr(text).ok_or_else(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(object: KubeProxyConfiguration) -> Settings {
        Settings::check(object, &Origin::default()).unwrap()
    }

    #[test]
    fn no_service_gets_the_ports_of_the_servers() {
        let metrics_bind_address = "127.0.0.1:9000".to_owned();
        let reserved = check(KubeProxyConfiguration { metrics_bind_address, ..Default::default() }).reserved();
        let ports: Vec<u16> = reserved.iter().map(|(place, _)| place.port).collect();
        assert!(ports.contains(&9000) && ports.contains(&10256), "{ports:?}");
    }

    #[test]
    fn the_start_names_the_choice_where_nobody_may_have_chosen() {
        for (mode, by_flags, by_file) in [
            (
                "",
                Some("set --proxy-mode to ipvs, nftables"),
                Some("no mode is set, which means auto; to choose, set mode to "),
            ),
            ("iptables", None, Some("mode iptables, which kubeadm 1.37 and later write where nobody chose a mode; ")),
            ("ipvs", Some("set --proxy-mode to auto, nftables"), Some("; to choose, set mode to auto, nftables")),
            ("auto", None, None),
            ("nftables", None, None),
            ("userspace", None, None),
        ] {
            let settings = check(KubeProxyConfiguration { mode: mode.to_owned(), ..Default::default() });
            for (is_by_flags, expected) in [(true, by_flags), (false, by_file)] {
                let said = settings.how_to_choose(is_by_flags);
                assert_eq!(said.is_some(), expected.is_some(), "{mode}: {said:?}");
                assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()), "{mode}");
            }
        }
    }
}
