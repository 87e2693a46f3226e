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

/// Options with several spellings, the canonical one first; number of arguments; the matches that have them (none: a
/// packet or target option).
const SPELLED: &[(&[&str], usize, &[&str])] = &[
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
    (&["--sports", "--source-ports"], 1, &["multiport"]),
    (&["--dports", "--destination-ports"], 1, &["multiport"]),
    (&["--match-set", "--set"], 2, &["set"]),
];

/// Options with one spelling, in the same way.
const OTHERS: &[(&str, usize, &[&str])] = &[
    ("--tcp-flags", 2, &["tcp"]),
    ("--syn", 0, &["tcp"]),
    ("--tcp-option", 1, &["tcp"]),
    ("--chunk-types", 2, &["sctp"]),
    ("--icmp-type", 1, &["icmp"]),
    ("--icmpv6-type", 1, &["icmp6", "icmpv6"]),
    ("--ports", 1, &["multiport"]),
    ("--comment", 1, &["comment"]),
    ("--return-nomatch --update-counters --update-subcounters", 0, &["set"]),
    ("--packets-eq --packets-lt --packets-gt --bytes-eq --bytes-lt --bytes-gt", 1, &["set"]),
    ("--mark", 1, &["mark", "connmark"]),
    (
        "--ctstate --ctproto --ctorigsrc --ctorigdst --ctreplsrc --ctrepldst --ctorigsrcport --ctorigdstport \
         --ctreplsrcport --ctrepldstport --ctstatus --ctexpire --ctdir",
        1,
        &["conntrack"],
    ),
    ("--state", 1, &["state"]),
    ("--src-type --dst-type", 1, &["addrtype"]),
    ("--limit-iface-in --limit-iface-out", 0, &["addrtype"]),
    ("--physdev-in --physdev-out", 1, &["physdev"]),
    ("--physdev-is-in --physdev-is-out --physdev-is-bridged", 0, &["physdev"]),
    ("--ipvs", 0, &["ipvs"]),
    ("--vproto --vaddr --vport --vdir --vmethod --vportctl", 1, &["ipvs"]),
    ("--limit --limit-burst", 1, &["limit"]),
    ("--mac-source", 1, &["mac"]),
    ("--src-range --dst-range", 1, &["iprange"]),
    ("--probability", 1, &["statistic"]),
    ("--string --hex-string", 1, &["string"]),
    // Options of targets.
    (
        "--to-ports --to-destination --to-source --reject-with --log-prefix --log-level --nflog-prefix \
         --set-mark --set-xmark --and-mark --or-mark --xor-mark --nfmask --ctmask --mask --set-mss",
        1,
        &[],
    ),
    ("--random --random-fully --persistent --save-mark --restore-mark --clamp-mss-to-pmtu", 0, &[]),
];

static BY_SPELLING: std::sync::LazyLock<std::collections::HashMap<&str, (Known, &[&str])>> =
    std::sync::LazyLock::new(|| {
        let spelled = SPELLED.iter().flat_map(|(spellings, arity, owners)| {
            let name = spellings.first().copied().unwrap_or_default();
            spellings.iter().map(move |spelling| (*spelling, (Known { name, arity: *arity }, *owners)))
        });
        let others = OTHERS.iter().flat_map(|(names, arity, owners)| {
            names.split(' ').map(|name| (name, (Known { name, arity: *arity }, *owners)))
        });
        spelled.chain(others).collect()
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
