//! The tables of a family in memory, as the programs of iptables keep them.

use std::collections::BTreeMap;
use std::time::Duration;

use iptables::fake::FakeHost;
use iptables::{Backend, Dump, Invocation, Runner as _};
use proxier_core::config::NamePrefix;
use proxier_core::net::Family;
use proxier_core::ports::SetKey;

pub(crate) struct Host {
    host: FakeHost,
    family: iptables::Family,
}

impl Host {
    /// Tables without rules, and the sets that rules of IPVS mode name.
    pub(crate) fn new(family: Family) -> Self {
        let host = FakeHost::new();
        host.set_ipsets(SetKey::all(family).map(|set| set.named(NamePrefix::KUBE).name()).collect());
        Host { host, family: family.into() }
    }

    /// Takes a text as `iptables-restore --noflush` does.
    #[track_caller]
    pub(crate) fn restore(&self, text: &str) {
        let program = self.host.find(&format!("{}-nft-restore", self.family.program())).unwrap();
        let run = Invocation::new(&program, ["--noflush"], Duration::from_secs(1)).with_stdin(text.to_owned());
        let output = self.host.run(&run).unwrap();
        assert_eq!(output.code, Some(0), "{output:?}: {text}");
    }

    /// Output of `iptables-save`, without the counters of rules.
    pub(crate) fn text(&self) -> String {
        self.host.dump(self.family, Backend::NfTables).replace("[0:0] -A", "-A")
    }

    pub(crate) fn dump(&self) -> Dump {
        Dump::parse(self.text()).unwrap()
    }

    /// The rules of each chain, by table and chain.
    pub(crate) fn chains(&self) -> BTreeMap<(String, String), Vec<String>> {
        let (mut chains, mut table) = (BTreeMap::<_, Vec<String>>::new(), String::new());
        for line in self.text().lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            } else if let Some(declared) = line.strip_prefix(':') {
                let name = declared.split(' ').next().unwrap();
                chains.insert((table.clone(), name.to_owned()), Vec::new());
            } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|line| line.split_once(' ')) {
                chains.get_mut(&(table.clone(), chain.to_owned())).unwrap().push(rule.to_owned());
            }
        }
        chains
    }
}
