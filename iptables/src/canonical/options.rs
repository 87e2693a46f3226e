//! Known options: names, numbers of arguments, and the match or target of each.

/// Canonical name and arity of an option.
pub(super) struct Known {
    /// The name used in canonical rules.
    pub(super) name: &'static str,
    /// Number of arguments that follow.
    pub(super) arity: usize,
}

/// Where an option belongs.
pub(super) enum Place {
    /// The target, or the match named last as long as a target is missing.
    Target,
    /// The latest match of one of these names.
    Match(&'static [&'static str]),
    /// The extension named last, for unknown options.
    Last,
}

const PORTS: &[&str] = &["tcp", "udp", "udplite", "sctp", "dccp"];

/// Spelling, canonical name, number of arguments, and the matches that have it (none: a packet or target option).
const OPTIONS: &[(&[&str], usize, &[&str])] = &[
    (&["-s", "--source", "--src"], 1, &[]),
    (&["-d", "--destination", "--dst"], 1, &[]),
    (&["-i", "--in-interface"], 1, &[]),
    (&["-o", "--out-interface"], 1, &[]),
    (&["-p", "--protocol", "--proto"], 1, &[]),
    (&["-f", "--fragment"], 0, &[]),
    (&["-4", "--ipv4"], 0, &[]),
    (&["-6", "--ipv6"], 0, &[]),
    (&["-c", "--set-counters"], 2, &[]),
    (&["-m", "--match"], 1, &[]),
    (&["-j", "--jump"], 1, &[]),
    (&["-g", "--goto"], 1, &[]),
    (&["--sport", "--source-port"], 1, PORTS),
    (&["--dport", "--destination-port"], 1, PORTS),
    (&["--tcp-flags"], 2, &["tcp"]),
    (&["--syn"], 0, &["tcp"]),
    (&["--tcp-option"], 1, &["tcp"]),
    (&["--chunk-types"], 2, &["sctp"]),
    (&["--icmp-type"], 1, &["icmp"]),
    (&["--icmpv6-type"], 1, &["icmp6", "icmpv6"]),
    (&["--sports", "--source-ports"], 1, &["multiport"]),
    (&["--dports", "--destination-ports"], 1, &["multiport"]),
    (&["--ports"], 1, &["multiport"]),
    (&["--comment"], 1, &["comment"]),
    (&["--match-set", "--set"], 2, &["set"]),
    (&["--return-nomatch"], 0, &["set"]),
    (&["--update-counters"], 0, &["set"]),
    (&["--update-subcounters"], 0, &["set"]),
    (&["--packets-eq"], 1, &["set"]),
    (&["--packets-lt"], 1, &["set"]),
    (&["--packets-gt"], 1, &["set"]),
    (&["--bytes-eq"], 1, &["set"]),
    (&["--bytes-lt"], 1, &["set"]),
    (&["--bytes-gt"], 1, &["set"]),
    (&["--mark"], 1, &["mark", "connmark"]),
    (&["--ctstate"], 1, &["conntrack"]),
    (&["--ctproto"], 1, &["conntrack"]),
    (&["--ctorigsrc"], 1, &["conntrack"]),
    (&["--ctorigdst"], 1, &["conntrack"]),
    (&["--ctreplsrc"], 1, &["conntrack"]),
    (&["--ctrepldst"], 1, &["conntrack"]),
    (&["--ctorigsrcport"], 1, &["conntrack"]),
    (&["--ctorigdstport"], 1, &["conntrack"]),
    (&["--ctreplsrcport"], 1, &["conntrack"]),
    (&["--ctrepldstport"], 1, &["conntrack"]),
    (&["--ctstatus"], 1, &["conntrack"]),
    (&["--ctexpire"], 1, &["conntrack"]),
    (&["--ctdir"], 1, &["conntrack"]),
    (&["--state"], 1, &["state"]),
    (&["--src-type"], 1, &["addrtype"]),
    (&["--dst-type"], 1, &["addrtype"]),
    (&["--limit-iface-in"], 0, &["addrtype"]),
    (&["--limit-iface-out"], 0, &["addrtype"]),
    (&["--physdev-in"], 1, &["physdev"]),
    (&["--physdev-out"], 1, &["physdev"]),
    (&["--physdev-is-in"], 0, &["physdev"]),
    (&["--physdev-is-out"], 0, &["physdev"]),
    (&["--physdev-is-bridged"], 0, &["physdev"]),
    (&["--ipvs"], 0, &["ipvs"]),
    (&["--vproto"], 1, &["ipvs"]),
    (&["--vaddr"], 1, &["ipvs"]),
    (&["--vport"], 1, &["ipvs"]),
    (&["--vdir"], 1, &["ipvs"]),
    (&["--vmethod"], 1, &["ipvs"]),
    (&["--vportctl"], 1, &["ipvs"]),
    (&["--limit"], 1, &["limit"]),
    (&["--limit-burst"], 1, &["limit"]),
    (&["--mac-source"], 1, &["mac"]),
    (&["--src-range"], 1, &["iprange"]),
    (&["--dst-range"], 1, &["iprange"]),
    (&["--probability"], 1, &["statistic"]),
    (&["--string"], 1, &["string"]),
    (&["--hex-string"], 1, &["string"]),
    // Options of targets.
    (&["--to-ports"], 1, &[]),
    (&["--to-destination"], 1, &[]),
    (&["--to-source"], 1, &[]),
    (&["--random"], 0, &[]),
    (&["--random-fully"], 0, &[]),
    (&["--persistent"], 0, &[]),
    (&["--reject-with"], 1, &[]),
    (&["--log-prefix"], 1, &[]),
    (&["--log-level"], 1, &[]),
    (&["--nflog-prefix"], 1, &[]),
    (&["--set-mark"], 1, &[]),
    (&["--set-xmark"], 1, &[]),
    (&["--and-mark"], 1, &[]),
    (&["--or-mark"], 1, &[]),
    (&["--xor-mark"], 1, &[]),
    (&["--save-mark"], 0, &[]),
    (&["--restore-mark"], 0, &[]),
    (&["--nfmask"], 1, &[]),
    (&["--ctmask"], 1, &[]),
    (&["--mask"], 1, &[]),
    (&["--set-mss"], 1, &[]),
    (&["--clamp-mss-to-pmtu"], 0, &[]),
];

static BY_SPELLING: std::sync::LazyLock<std::collections::HashMap<&str, (Known, &[&str])>> =
    std::sync::LazyLock::new(|| {
        let rows = OPTIONS.iter().flat_map(|(spellings, arity, owners)| {
            let name = spellings.first().copied().unwrap_or_default();
            spellings.iter().map(move |spelling| (*spelling, (Known { name, arity: *arity }, *owners)))
        });
        rows.collect()
    });

/// Looks up an option by spelling; `None` if unknown.
pub(super) fn lookup(spelling: &str) -> Option<&'static Known> {
    BY_SPELLING.get(spelling).map(|(known, _)| known)
}

/// Where the option of this canonical name belongs.
pub(super) fn place(name: &str) -> Place {
    match BY_SPELLING.get(name).filter(|(known, _)| known.name == name) {
        Some((_, [])) => Place::Target,
        Some((_, owners)) => Place::Match(owners),
        None => Place::Last,
    }
}

/// Packet options that were followed by the exclamation mark before iptables 1.4.3.
pub(super) fn takes_inner_negation(name: &str) -> bool {
    matches!(
        name,
        "-s" | "-d"
            | "-i"
            | "-o"
            | "-p"
            | "--sport"
            | "--dport"
            | "--sports"
            | "--dports"
            | "--mark"
            | "--match-set"
            | "--ctstate"
    )
}
