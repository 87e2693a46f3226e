//! Own rules in the output of `iptables-save`.

use std::collections::BTreeMap;

/// Own lines of each chain, with its table.
pub(crate) fn our_rules(text: &str) -> BTreeMap<(String, String), Vec<String>> {
    let mut chains: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut table = "";
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if line.starts_with('*') {
            table = line;
        } else if first.starts_with(":KUBE-") {
            chains.entry((table.to_owned(), first[1..].to_owned())).or_default();
        } else if first == "-A" && line.contains("KUBE-") && !line.contains("FOREIGN") {
            let chain = words.next().unwrap_or_default().to_owned();
            chains.entry((table.to_owned(), chain)).or_default().push(line.to_owned());
        } else if first == "-A" && words.next().is_some_and(|chain| chain.starts_with("KUBE-")) {
            chains.entry((table.to_owned(), "extra".to_owned())).or_default().push(line.to_owned());
        }
    }
    chains
}
