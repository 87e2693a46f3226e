//! Facts about this host that matter for direct return and tunnels, read from files below a root. Unreadable facts are
//! omitted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kmod_probe::{BuiltinModules, KernelRelease, LoadableModules, LoadedModules, ModuleName};

/// IPv4 settings of a device, or of `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) rp_filter: Option<u8>,
    pub(super) accept_local: Option<u8>,
    pub(super) arp_ignore: Option<u8>,
    pub(super) arp_announce: Option<u8>,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) settings: Settings,
    /// Largest packet that it carries, in bytes.
    pub(super) mtu: Option<u32>,
    /// Whether it has a default route.
    pub(super) is_uplink: bool,
}

/// Whether the kernel has a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    /// Loaded, or built into the kernel.
    There,
    /// Module on disk that is not loaded.
    Loadable,
    Missing,
    /// The lists of modules cannot be read.
    Unknown,
}

/// Facts of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Settings of `all`, which apply to each device in addition to its own.
    pub(super) all: Settings,
    /// Devices by name, without `lo` and the device of Services' addresses.
    pub(super) devices: BTreeMap<String, Device>,
    /// Modules by name.
    pub(super) modules: BTreeMap<&'static str, Module>,
    pub(super) release: Option<KernelRelease>,
}

/// Reads everything, except for devices of these names.
pub(super) fn read(root: &Path, modules: &[&'static str], without: &[&str]) -> Facts {
    let release = read_bytes(&root.join("proc/sys/kernel/osrelease"));
    let release = release.and_then(|bytes| KernelRelease::parse(&bytes).ok());
    let uplinks = uplinks(root);
    let names = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let devices = names.filter(|name| !without.contains(&name.as_str())).map(|name| {
        let device = Device {
            settings: settings(root, &name),
            mtu: number(&root.join("sys/class/net").join(&name).join("mtu")),
            is_uplink: uplinks.contains(&name),
        };
        (name, device)
    });
    let devices = devices.filter(|(_, device)| device.mtu.is_some()).collect();
    let lists = Lists::read(root, release.as_ref());
    let modules = modules.iter().map(|name| (*name, lists.find(root, name))).collect();
    Facts { all: settings(root, "all"), devices, modules, release }
}

fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn settings(root: &Path, device: &str) -> Settings {
    let of = |name: &str| number(&root.join("proc/sys/net/ipv4/conf").join(device).join(name));
    Settings {
        rp_filter: of("rp_filter"),
        accept_local: of("accept_local"),
        arp_ignore: of("arp_ignore"),
        arp_announce: of("arp_announce"),
    }
}

/// Devices with a default route, of both families.
fn uplinks(root: &Path) -> Vec<String> {
    let lines = |name: &str| fs::read_to_string(root.join("proc/net").join(name)).unwrap_or_default();
    let v4 = lines("route");
    // Iface Destination Gateway Flags RefCnt Use Metric Mask …
    let v4 = v4.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [device, "00000000", _, _, _, _, _, "00000000", ..] = words.as_slice() else { return None };
        Some((*device).to_owned())
    });
    let v6 = lines("ipv6_route");
    // Destination and its length, source and its length, next hop, metric, references, use, flags, device.
    let v6 = v6.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, "00", .., device] = words.as_slice() else { return None };
        let is_default = destination.bytes().all(|byte| byte == b'0') && *device != "lo";
        is_default.then(|| (*device).to_owned())
    });
    v4.chain(v6).collect()
}

/// The kernel's lists of modules.
struct Lists {
    loaded: Option<LoadedModules>,
    builtin: Option<BuiltinModules>,
    loadable: Option<LoadableModules>,
}

impl Lists {
    fn read(root: &Path, release: Option<&KernelRelease>) -> Self {
        let folder: Option<PathBuf> = release.map(|release| root.join("lib/modules").join(release.as_str()));
        let of_release = |name: &str| read_bytes(&folder.as_ref()?.join(name));
        Lists {
            loaded: read_bytes(&root.join("proc/modules")).and_then(|bytes| LoadedModules::parse(&bytes).ok()),
            builtin: of_release("modules.builtin").and_then(|bytes| BuiltinModules::parse(&bytes).ok()),
            loadable: of_release("modules.dep").and_then(|bytes| LoadableModules::parse(&bytes).ok()),
        }
    }

    fn find(&self, root: &Path, name: &str) -> Module {
        let Ok(module) = ModuleName::new(name) else { return Module::Unknown };
        let is_loaded = self.loaded.as_ref().is_some_and(|list| list.get(&module).is_some());
        let is_builtin = self.builtin.as_ref().is_some_and(|list| list.get(&module).is_some());
        // A built-in module only shows there if it has parameters.
        if is_loaded || is_builtin || root.join("sys/module").join(name).exists() {
            return Module::There;
        }
        match (&self.loadable, &self.builtin) {
            (Some(list), _) if list.get(&module).is_some() => Module::Loadable,
            (Some(loadable), Some(builtin)) if loadable.complete() && builtin.complete() => Module::Missing,
            _ => Module::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("proxier-demo-forwarding-{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = path.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone_already = fs::remove_dir_all(&self.0);
        }
    }

    /// Files of a node with Linux 6.1, as captured.
    const NODE: &[(&str, &str)] = &[
        ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
        ("proc/sys/net/ipv4/conf/all/rp_filter", "1\n"),
        ("proc/sys/net/ipv4/conf/all/accept_local", "0\n"),
        ("proc/sys/net/ipv4/conf/all/arp_ignore", "1\n"),
        ("proc/sys/net/ipv4/conf/all/arp_announce", "2\n"),
        ("proc/sys/net/ipv4/conf/eth0/rp_filter", "2\n"),
        ("proc/sys/net/ipv4/conf/eth0/accept_local", "0\n"),
        ("sys/class/net/eth0/mtu", "1500\n"),
        ("sys/class/net/lo/mtu", "65536\n"),
        ("sys/class/net/veth12/mtu", "1450\n"),
        ("sys/class/net/bonding_masters", "bond0\n"),
        (
            "proc/net/route",
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
             eth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
             eth0\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n",
        ),
        (
            "proc/net/ipv6_route",
            "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 \
             00000100 00000001 00000000 00000001     eth0\n\
             00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 \
             ffffffff 00000001 00000000 00200200       lo\n",
        ),
        ("proc/modules", "ipip 20480 0 - Live 0x0000000000000000\nip_vs 200704 0 - Live 0x0000000000000000\n"),
        ("lib/modules/6.1.0-18-amd64/modules.builtin", "kernel/net/ipv4/netfilter/nf_defrag_ipv4.ko\n"),
        ("lib/modules/6.1.0-18-amd64/modules.dep", "kernel/net/ipv4/ip_gre.ko: kernel/net/ipv4/gre.ko\n"),
        ("sys/module/fou/parameters/x", ""),
    ];

    #[test]
    fn facts_of_a_node_are_read() {
        let folder = Folder::new("node", NODE);
        let facts = read(&folder.0, &["ipip", "ip_gre", "fou", "sit"], &["lo", "kube-ipvs0"]);
        let all = Settings { rp_filter: Some(1), accept_local: Some(0), arp_ignore: Some(1), arp_announce: Some(2) };
        assert_eq!(facts.all, all);
        assert_eq!(facts.devices.keys().collect::<Vec<_>>(), ["eth0", "veth12"]);
        let (eth0, veth) = (&facts.devices["eth0"], &facts.devices["veth12"]);
        assert_eq!((eth0.mtu, eth0.is_uplink, eth0.settings.rp_filter), (Some(1500), true, Some(2)));
        assert_eq!((veth.mtu, veth.is_uplink, veth.settings), (Some(1450), false, Settings::default()));
        let expected =
            [("fou", Module::There), ("ip_gre", Module::Loadable), ("ipip", Module::There), ("sit", Module::Missing)];
        assert_eq!(facts.modules.into_iter().collect::<Vec<_>>(), expected);
        assert!(facts.release.unwrap().at_least(6, 1));
    }

    #[test]
    fn unreadable_facts_are_unknown() {
        let folder = Folder::new("bare", &[("sys/class/net/eth0/mtu", "1500\n")]);
        let facts = read(&folder.0, &["ipip"], &[]);
        assert_eq!((facts.all, facts.release), (Settings::default(), None));
        assert_eq!(facts.modules["ipip"], Module::Unknown);
        assert!(!facts.devices["eth0"].is_uplink);
    }
}
