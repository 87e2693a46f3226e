//! Normalises the values of options.

use std::net::{IpAddr, Ipv4Addr};

use super::{Extension, Opt};

/// Protocol names that programs print or accept, and their numbers: those of Debian's `/etc/protocols`, and programs'
/// own.
const PROTOCOLS: &[(&str, u8)] = &[
    ("all", 0),
    ("ip", 0),
    ("hopopt", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ggp", 3),
    ("ipencap", 4),
    ("st", 5),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("pup", 12),
    ("udp", 17),
    ("hmp", 20),
    ("xns-idp", 22),
    ("rdp", 27),
    ("iso-tp4", 29),
    ("dccp", 33),
    ("xtp", 36),
    ("ddp", 37),
    ("idpr-cmtp", 38),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("idrp", 45),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ipv6-crypt", 50),
    ("ah", 51),
    ("ipv6-auth", 51),
    ("skip", 57),
    ("ipv6-icmp", 58),
    ("icmpv6", 58),
    ("icmp6", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("rspf", 73),
    ("vmtp", 81),
    ("eigrp", 88),
    ("ospf", 89),
    ("ax.25", 93),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", 132),
    ("fc", 133),
    ("mobility-header", 135),
    ("ipv6-mh", 135),
    ("mh", 135),
    ("udplite", 136),
    ("mpls-in-ip", 137),
    ("manet", 138),
    ("hip", 139),
    ("shim6", 140),
    ("wesp", 141),
    ("rohc", 142),
    ("ethernet", 143),
];

const ICMP: &[(&str, &str)] = &[
    ("echo-reply", "0"),
    ("pong", "0"),
    ("destination-unreachable", "3"),
    ("network-unreachable", "3/0"),
    ("host-unreachable", "3/1"),
    ("protocol-unreachable", "3/2"),
    ("port-unreachable", "3/3"),
    ("fragmentation-needed", "3/4"),
    ("source-route-failed", "3/5"),
    ("network-unknown", "3/6"),
    ("host-unknown", "3/7"),
    ("network-prohibited", "3/9"),
    ("host-prohibited", "3/10"),
    ("tos-network-unreachable", "3/11"),
    ("tos-host-unreachable", "3/12"),
    ("communication-prohibited", "3/13"),
    ("host-precedence-violation", "3/14"),
    ("precedence-cutoff", "3/15"),
    ("source-quench", "4"),
    ("redirect", "5"),
    ("network-redirect", "5/0"),
    ("host-redirect", "5/1"),
    ("tos-network-redirect", "5/2"),
    ("tos-host-redirect", "5/3"),
    ("echo-request", "8"),
    ("ping", "8"),
    ("router-advertisement", "9"),
    ("router-solicitation", "10"),
    ("time-exceeded", "11"),
    ("ttl-exceeded", "11"),
    ("ttl-zero-during-transit", "11/0"),
    ("ttl-zero-during-reassembly", "11/1"),
    ("parameter-problem", "12"),
    ("ip-header-bad", "12/0"),
    ("required-option-missing", "12/1"),
    ("timestamp-request", "13"),
    ("timestamp-reply", "14"),
    ("address-mask-request", "17"),
    ("address-mask-reply", "18"),
];

const ICMPV6: &[(&str, &str)] = &[
    ("destination-unreachable", "1"),
    ("no-route", "1/0"),
    ("communication-prohibited", "1/1"),
    ("beyond-scope", "1/2"),
    ("address-unreachable", "1/3"),
    ("port-unreachable", "1/4"),
    ("failed-policy", "1/5"),
    ("reject-route", "1/6"),
    ("packet-too-big", "2"),
    ("time-exceeded", "3"),
    ("ttl-exceeded", "3"),
    ("ttl-zero-during-transit", "3/0"),
    ("ttl-zero-during-reassembly", "3/1"),
    ("parameter-problem", "4"),
    ("bad-header", "4/0"),
    ("unknown-header-type", "4/1"),
    ("unknown-option", "4/2"),
    ("echo-request", "128"),
    ("ping", "128"),
    ("echo-reply", "129"),
    ("pong", "129"),
    ("router-solicitation", "133"),
    ("router-advertisement", "134"),
    ("neighbour-solicitation", "135"),
    ("neighbor-solicitation", "135"),
    ("neighbour-advertisement", "136"),
    ("neighbor-advertisement", "136"),
    ("redirect", "137"),
];

const LOG_LEVELS: &[(&str, &str)] = &[
    ("emerg", "0"),
    ("panic", "0"),
    ("alert", "1"),
    ("crit", "2"),
    ("err", "3"),
    ("error", "3"),
    ("warning", "4"),
    ("warn", "4"),
    ("notice", "5"),
    ("info", "6"),
    ("debug", "7"),
];

const REJECTS: &[(&str, &str)] = &[
    ("net-unreach", "icmp-net-unreachable"),
    ("host-unreach", "icmp-host-unreachable"),
    ("proto-unreach", "icmp-proto-unreachable"),
    ("port-unreach", "icmp-port-unreachable"),
    ("net-prohib", "icmp-net-prohibited"),
    ("host-prohib", "icmp-host-prohibited"),
    ("tcp-rst", "tcp-reset"),
    ("admin-prohib", "icmp-admin-prohibited"),
    ("no-route", "icmp6-no-route"),
    ("adm-prohibited", "icmp6-adm-prohibited"),
    ("addr-unreach", "icmp6-addr-unreachable"),
    ("policy-fail", "icmp6-policy-fail"),
    ("reject-route", "icmp6-reject-route"),
];

const TCP_FLAGS: [&str; 6] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];

fn renamed(table: &[(&str, &str)], word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    table.iter().find(|(name, _)| *name == lower).map_or(lower, |(_, value)| (*value).to_owned())
}

/// The match that `-p PROTOCOL` (canonical) implies.
pub(super) fn protocol_match(protocol: &str) -> Option<&'static str> {
    Some(match protocol {
        "tcp" => "tcp",
        "udp" => "udp",
        "sctp" => "sctp",
        "dccp" => "dccp",
        "udplite" => "udplite",
        "icmp" => "icmp",
        "ipv6-icmp" => "icmp6",
        _ => return None,
    })
}

pub(super) fn is_protocol_match(name: &str) -> bool {
    matches!(name, "tcp" | "udp" | "sctp" | "dccp" | "udplite" | "icmp" | "icmp6" | "icmpv6")
}

/// Normalises one option of an extension (empty name: of the packet itself).
pub(super) fn normal(extension: &str, mut opt: Opt) -> Opt {
    if opt.name == "--syn" {
        "--tcp-flags".clone_into(&mut opt.name);
        opt.args = vec!["SYN,RST,ACK,FIN".to_owned(), "SYN".to_owned()];
    }
    let each: fn(&str) -> String = match (extension, opt.name.as_str()) {
        (_, "-s" | "-d" | "--vaddr" | "--ctorigsrc" | "--ctorigdst" | "--ctreplsrc" | "--ctrepldst") => network,
        (_, "-p" | "--vproto" | "--ctproto") => protocol,
        (_, "--sport" | "--dport" | "--ctorigsrcport" | "--ctorigdstport" | "--ctreplsrcport" | "--ctrepldstport") => {
            ports
        }
        (_, "--mark") | ("realm", "--realm") => mark,
        (_, "--tcp-flags") => tcp_flags,
        (_, "--ctstate" | "--state" | "--ctstatus" | "--src-type" | "--dst-type") => word_set,
        ("limit", "--limit") => |w| rate(w, 10_000).unwrap_or_else(|| w.to_owned()),
        (_, "--icmp-type") => |w| renamed(ICMP, w),
        (_, "--icmpv6-type") => |w| renamed(ICMPV6, w),
        ("LOG", "--log-level") => |w| renamed(LOG_LEVELS, w),
        ("REJECT", "--reject-with") => |w| renamed(REJECTS, w),
        ("MARK" | "CONNMARK", "--nfmask" | "--ctmask" | "--mask") | ("dscp", "--dscp") | ("DSCP", "--set-dscp") => {
            |w| number(w).map_or_else(|| w.to_owned(), hex)
        }
        ("tos", "--tos") | ("TOS", "--set-tos") => type_of_service,
        ("CLASSIFY", "--set-class") => class,
        ("mac", "--mac-source") => str::to_ascii_lowercase,
        ("pkttype", "--pkt-type") => |w| renamed(&[("host", "unicast")], w),
        ("statistic", "--probability") => probability,
        ("u32", "--u32") => u32_test,
        ("set", "--match-set") => str::to_owned,
        _ => return opt,
    };
    for arg in &mut opt.args {
        *arg = each(arg);
    }
    if matches!(opt.name.as_str(), "--sport" | "--dport") {
        unnegate_ports(&mut opt);
    }
    opt
}

/// `! --dport :1023` is `--dport 1024:65535`, which is what the `nf_tables` programs print.
fn unnegate_ports(opt: &mut Opt) {
    let Some(range) = opt.args.first_mut().filter(|_| opt.negated) else { return };
    let (low, high) = range.split_once(':').unwrap_or((range, range));
    let (Ok(low), Ok(high)) = (low.parse::<u16>(), high.parse::<u16>()) else { return };
    let rest = match (low.checked_sub(1), high.checked_add(1)) {
        (None, Some(above)) => format!("{above}:{}", u16::MAX),
        (Some(below), None) => format!("0:{below}"),
        _ => return,
    };
    *range = ports(&rest);
    opt.negated = false;
}

/// Whether a packet option matches everything.
pub(super) fn matches_everything(opt: &Opt) -> bool {
    let Some(arg) = opt.args.first() else { return false };
    !opt.negated
        && match opt.name.as_str() {
            "-s" | "-d" => arg == "0.0.0.0/0" || arg == "::/0",
            "-i" | "-o" => arg == "+",
            "-p" => arg == "all",
            _ => false,
        }
}

/// Removes options that state the extension's defaults.
pub(super) fn drop_defaults(extension: &mut Extension) {
    let (name, options) = (extension.name.as_str(), &mut extension.options);
    options.retain(|o| {
        let arg = o.args.first().map_or("", String::as_str);
        o.negated
            || !matches!(
                (name, o.name.as_str(), arg),
                ("REJECT", "--reject-with", "icmp-port-unreachable" | "icmp6-port-unreachable")
                    | ("LOG", "--log-level", "4")
                    | ("limit", "--limit-burst", "5" | "0")
                    | ("hashlimit", "--hashlimit-burst", "5")
                    | ("connlimit", "--connlimit-mask", "128")
                    | ("connlimit", "--connlimit-saddr", _)
                    | ("recent", "--name", "DEFAULT")
                    | ("recent", "--mask", "255.255.255.255" | "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
                    | ("recent", "--rsource", _)
                    | ("TPROXY", "--on-ip", "0.0.0.0" | "::")
                    | ("TPROXY", "--tproxy-mark", "0x0/0x0")
                    | ("limit", "--limit", "3/hour")
                    | ("tcp" | "udp", "--sport" | "--dport", "0:65535")
            )
    });
}

/// The kernel has a single operation for all changes of a mark: new = (old & !mask) ^ value.
pub(super) fn unify_target(target: &mut Extension) {
    if !matches!(target.name.as_str(), "MARK" | "CONNMARK") {
        return;
    }
    for opt in &mut target.options {
        let Some((value, mask)) = opt.args.first().and_then(|w| value_and_mask(w)) else { continue };
        let (value, mask) = match opt.name.as_str() {
            "--set-xmark" => (value, mask.unwrap_or(u32::MAX)),
            "--set-mark" => (value, mask.map_or(u32::MAX, |m| m | value)),
            "--or-mark" => (value, value),
            "--xor-mark" => (value, 0),
            "--and-mark" => (0, !value),
            _ => continue,
        };
        "--set-xmark".clone_into(&mut opt.name);
        opt.args = vec![format!("{}/{}", hex(value), hex(mask))];
    }
    let transfers = target.options.iter().any(|o| o.name == "--save-mark" || o.name == "--restore-mark");
    if target.name == "CONNMARK" && transfers {
        let both = target.options.iter().find(|o| o.name == "--mask").and_then(|o| o.args.first().cloned());
        target.options.retain(|o| o.name != "--mask");
        for name in ["--nfmask", "--ctmask"] {
            if !target.options.iter().any(|o| o.name == name) {
                let mask = both.clone().unwrap_or_else(|| hex(u32::MAX));
                target.options.push(Opt { name: name.to_owned(), negated: false, args: vec![mask] });
            }
        }
    }
}

fn hex(value: u32) -> String {
    format!("{value:#x}")
}

/// Decimal, hexadecimal (`0x`) or octal (leading zero), as `strtoul` with base 0 reads it.
fn number(word: &str) -> Option<u32> {
    if let Some(digits) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        return u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
    }
    if word.starts_with('+') {
        return None;
    }
    match word.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => word.parse().ok(),
    }
}

fn value_and_mask(word: &str) -> Option<(u32, Option<u32>)> {
    match word.split_once('/') {
        Some((value, mask)) => Some((number(value)?, Some(number(mask)?))),
        None => Some((number(word)?, None)),
    }
}

fn mark(word: &str) -> String {
    match value_and_mask(word) {
        Some((value, mask)) => format!("{}/{}", hex(value), hex(mask.unwrap_or(u32::MAX))),
        None => word.to_owned(),
    }
}

/// Value and mask of the type of service; without a mask, all bits.
fn type_of_service(word: &str) -> String {
    match value_and_mask(word) {
        Some((value, mask)) => format!("{}/{}", hex(value), hex(mask.unwrap_or(0xff))),
        None => word.to_owned(),
    }
}

/// `MAJOR:MINOR`, hexadecimal without `0x`.
fn class(word: &str) -> String {
    let part = |digits: &str| u16::from_str_radix(digits, 16).ok();
    let parts = word.split_once(':').and_then(|(major, minor)| Some((part(major)?, part(minor)?)));
    parts.map_or_else(|| word.to_owned(), |(major, minor)| format!("{major:04x}:{minor:04x}"))
}

/// A probability as stored by the kernel, in units of 2^-31 (`xt_statistic_info`).
fn probability(word: &str) -> String {
    const ONE: f64 = 2_147_483_648.0;
    match word.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => format!("{:.11}", (p * ONE).round() / ONE),
        _ => word.to_owned(),
    }
}

/// An expression of the match `u32` with hexadecimal numbers and no blanks.
fn u32_test(word: &str) -> String {
    let mut out = String::new();
    let mut digits = String::new();
    for next in word.chars().map(Some).chain([None]) {
        match next {
            Some(c) if c.is_ascii_alphanumeric() => digits.push(c),
            _ => {
                out.push_str(&number(&digits).map_or_else(|| digits.clone(), hex));
                digits.clear();
                out.extend(next.filter(|c| !c.is_whitespace()));
            }
        }
    }
    out
}

fn protocol(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let wanted = number(&lower).and_then(|n| u8::try_from(n).ok());
    let wanted = wanted.or_else(|| PROTOCOLS.iter().find(|(name, _)| *name == lower).map(|(_, n)| *n));
    match wanted {
        Some(58) => "ipv6-icmp".to_owned(),
        Some(n) => {
            PROTOCOLS.iter().find(|(_, m)| *m == n).map_or_else(|| n.to_string(), |(name, _)| (*name).to_owned())
        }
        None => lower,
    }
}

fn ports(word: &str) -> String {
    // With a leading zero the number is octal for some extensions and decimal for others.
    let decimal = |w: &str| w.parse().ok().filter(|_| w == "0" || !w.starts_with(['0', '+']));
    let port = |w: &str, open: u16| if w.is_empty() { Some(open) } else { decimal(w) };
    let (low, high) = match word.split_once(':') {
        Some((low, high)) => (port(low, 0), port(high, u16::MAX)),
        None => (decimal(word), decimal(word)),
    };
    match (low, high) {
        (Some(low), Some(high)) if low == high => low.to_string(),
        (Some(low), Some(high)) => format!("{low}:{high}"),
        _ => word.to_owned(),
    }
}

fn word_set(word: &str) -> String {
    let upper = word.to_ascii_uppercase();
    let mut words: Vec<&str> = upper.split(',').collect();
    words.sort_unstable();
    words.dedup();
    words.join(",")
}

fn tcp_flags(word: &str) -> String {
    let upper = word.to_ascii_uppercase();
    if upper == "NONE" {
        return upper;
    }
    let words: Vec<&str> = if upper == "ALL" { TCP_FLAGS.to_vec() } else { upper.split(',').collect() };
    if words.iter().any(|w| !TCP_FLAGS.contains(w)) {
        return upper;
    }
    TCP_FLAGS.into_iter().filter(|f| words.contains(f)).collect::<Vec<_>>().join(",")
}

/// Time units as programs print them, and their seconds.
const UNITS: [(&str, u64); 4] = [("sec", 1), ("min", 60), ("hour", 3600), ("day", 86_400)];

/// Number and unit (seconds) of a rate. Units may be abbreviated.
fn count_and_unit(word: &str) -> Option<(u64, u64)> {
    let (count, unit) = word.split_once('/').unwrap_or((word, "second"));
    let names = ["second", "minute", "hour", "day"];
    let at = names.iter().position(|name| !unit.is_empty() && name.starts_with(unit))?;
    Some((count.parse().ok()?, UNITS.get(at)?.1))
}

/// A rate as programs print it. The kernel stores the time between two packets, in units of which a second has
/// `second`; all rates with the same time are the same. `None` for rates in bytes.
fn rate(word: &str, second: u64) -> Option<String> {
    let (count, unit) = count_and_unit(word)?;
    let time = second.checked_mul(unit)?.checked_div(count)?;
    UNITS.iter().find_map(|(name, seconds)| {
        let unit = second.checked_mul(*seconds)?;
        let count = unit.checked_div(time)?;
        (unit.checked_div(count)? == time).then(|| format!("{count}/{name}"))
    })
}

/// The rate of `hashlimit`. Its entries expire after the unit that the rate was given in, so a program that prints
/// another unit prints the time as well.
pub(super) fn unify_hashlimit(extension: &mut Extension) {
    const EXPIRE: &str = "--hashlimit-htable-expire";
    let options = &mut extension.options;
    let is_rate = |o: &Opt| matches!(o.name.as_str(), "--hashlimit-above" | "--hashlimit-upto");
    // `--hashlimit-rate-match` counts in the unit of the rate.
    if extension.name != "hashlimit" || options.iter().any(|o| o.name == "--hashlimit-rate-match") {
        return;
    }
    let expires: Vec<u64> =
        options.iter().filter(|o| o.name == EXPIRE).filter_map(|o| o.args.first()?.parse().ok()).collect();
    let mut rates = options.iter_mut().filter(|o| is_rate(o)).filter_map(|o| o.args.first_mut());
    let (Some(word), None) = (rates.next(), rates.next()) else { return };
    let millis = |word: &str| count_and_unit(word).map(|(_, unit)| unit.saturating_mul(1000));
    let (Some(given), Some(printed)) = (millis(word), rate(word, 1_000_000)) else { return };
    let kept = match expires.as_slice() {
        [] => given,
        [one] => *one,
        _ => return,
    };
    let implied = millis(&printed);
    *word = printed;
    options.retain(|o| o.name != EXPIRE);
    if implied != Some(kept) {
        options.push(Opt { name: EXPIRE.to_owned(), negated: false, args: vec![kept.to_string()] });
    }
}

fn network(word: &str) -> String {
    let (address, length) = match word.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (word, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return word.to_owned() };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => Some(bits),
        Some(text) => match number(text) {
            Some(length) if length <= bits => Some(length),
            _ => text.parse::<IpAddr>().ok().and_then(netmask_length),
        },
    };
    let Some(length) = length else { return word.to_owned() };
    let masked = match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
            IpAddr::V6((a.to_bits() & mask).into())
        }
    };
    format!("{masked}/{length}")
}

/// The prefix length of a contiguous mask.
fn netmask_length(mask: IpAddr) -> Option<u32> {
    match mask {
        IpAddr::V4(m) => {
            let ones = m.to_bits().leading_ones();
            (m.to_bits().count_ones() == ones).then_some(ones)
        }
        IpAddr::V6(m) => {
            let ones = m.to_bits().leading_ones();
            (m.to_bits().count_ones() == ones).then_some(ones)
        }
    }
}
