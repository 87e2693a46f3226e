//! The ports' suite on the fake kernel, and cases for parts that only the fake has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use iptables::Backend;
use proxier_core::fake::{FakeKernel, Flow};
use proxier_core::net::Family;
use proxier_core::ports::Ports;

use crate::ports;

impl ports::World for FakeKernel {
    fn ports(&mut self) -> Ports<'_> {
        self.ports()
    }

    fn saved_ipvs(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.state().ipvs.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.sort();
        lines
    }

    fn saved_set(&self, name: &str) -> Option<(String, BTreeSet<String>)> {
        let (line, entries) = self.state().sets.remove(name)?;
        Some((line.split(" bucketsize").next().unwrap().to_owned(), entries))
    }

    fn set_size(&self, name: &str) -> usize {
        self.state().sets[name].1.len()
    }

    fn create_set(&mut self, line: &str) {
        self.ipset().unwrap().create_set(&line.parse().unwrap()).unwrap();
    }

    fn saved_rules(&self, family: Family, table: &str) -> String {
        let family = iptables::Family::from(family);
        let all = self.state().rules.remove(&(family, Backend::NfTables)).unwrap_or_default();
        let begin = all.find(&format!("*{table}\n")).unwrap_or(all.len());
        all[begin..].split_inclusive("COMMIT\n").next().unwrap_or_default().to_owned()
    }

    fn devices(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        self.state().devices.into_iter().map(|(name, addresses)| (name, addresses.into_iter().collect())).collect()
    }

    fn add_interface(&mut self, name: &str, addresses: &[IpAddr]) {
        self.set_interface(name, addresses);
    }

    fn remove_address(&mut self, name: &str, address: IpAddr) {
        let left: Vec<IpAddr> = self.state().devices[name].iter().copied().filter(|of| *of != address).collect();
        self.set_interface(name, &left);
    }

    fn local_routes(&self) -> BTreeSet<String> {
        let routes = self.state().routes.into_iter();
        routes.map(|(owner, route)| format!("{route} proto {0} metric {0}", owner.number())).collect()
    }

    fn sysctl(&self, path: &str) -> String {
        self.state().sysctls[path].clone()
    }

    fn send_udp(&mut self, client: SocketAddr, destination: SocketAddr, endpoint: SocketAddr) {
        self.add_flow(Flow::udp(client, destination, endpoint));
    }

    fn flows(&self) -> BTreeSet<(SocketAddr, SocketAddr, SocketAddr)> {
        FakeKernel::flows(self).iter().map(|flow| (flow.client, flow.destination, flow.endpoint)).collect()
    }
}

macro_rules! on_the_fake {
    ($($module:ident { $($case:ident,)* })*) => { $(
        mod $module {
            $(
                #[test]
                fn $case() {
                    crate::ports::$module::$case(&mut proxier_core::fake::FakeKernel::new());
                }
            )*
        }
    )* };
}
ports::for_each_case!(on_the_fake);

mod only_fake;
