//! Compares the meaning of rules, because the kernel prints them in another form than kube-proxy writes them.

use std::borrow::Cow;

use iptables::{Rule, Token};

/// Whether both rules have the same meaning. `comments`: whether their comments must be equal too.
pub(super) fn same(a: &Rule, b: &Rule, comments: bool) -> bool {
    let quick = || words(a, comments).zip(words(b, comments)).is_some_and(|(a, b)| a == b);
    let meaning = |rule: &Rule| if comments { rule.canonical() } else { rule.canonical().without_comments() };
    quick() || meaning(a) == meaning(b)
}

pub(super) fn same_rules(a: &[Rule], b: &[Rule], comments: bool) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, comments))
}

pub(super) fn same_in_any_order(a: &[Rule], b: &[Rule]) -> bool {
    fn sorted<T: Ord>(keys: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
        let mut keys: Vec<T> = keys.collect::<Option<_>>()?;
        keys.sort_unstable();
        Some(keys)
    }
    let quick = || {
        let (a, b) = (a.iter().map(|rule| words(rule, true)), b.iter().map(|rule| words(rule, true)));
        sorted(a).zip(sorted(b)).is_some_and(|(a, b)| a == b)
    };
    let meanings = |rules: &[Rule]| sorted(rules.iter().map(|rule| Some(rule.canonical())));
    a.len() == b.len() && (quick() || meanings(a) == meanings(b))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Word<'r> {
    option: &'r str,
    negated: bool,
    value: Cow<'r, str>,
}

/// The arguments of a rule without the kernel's additions, sorted; `None` for arguments that no own rule has. Rules with
/// equal words mean the same if one of them is an own one: these never have two matches whose order counts. Speed
/// matters: a node may have a hundred thousand rules.
fn words(rule: &Rule, comments: bool) -> Option<Vec<Word<'_>>> {
    let mut tokens = rule.tokens().iter().map(Token::as_str).peekable();
    let mut words = Vec::with_capacity(8);
    let mut negated = false;
    while let Some(option) = tokens.next() {
        if option == "!" && !negated {
            negated = true;
            continue;
        }
        let is_value = |text: &&str| option == "--comment" || *text != "!" && !text.starts_with('-');
        let value = tokens.next_if(is_value).unwrap_or_default();
        let word = Word { option, negated, value: plain_value(option, value) };
        if !option.starts_with('-') {
            return None;
        }
        if !word.is_implied() && (comments || option != "--comment") {
            words.push(word);
        }
        negated = false;
    }
    words.sort_unstable();
    Some(words)
}

impl Word<'_> {
    /// Whether a match follows from another option, or is a default of `recent` (the whole source address).
    fn is_implied(&self) -> bool {
        let value = &*self.value;
        match self.option {
            "-m" => matches!(value, "comment" | "tcp" | "udp" | "sctp"),
            "--rsource" => true,
            "--mask" => is_all_ones(value),
            _ => false,
        }
    }
}

fn plain_value<'r>(option: &str, value: &'r str) -> Cow<'r, str> {
    match option {
        "-s" | "-d" => {
            let whole = if value.contains(':') { "/128" } else { "/32" };
            value.strip_suffix(whole).unwrap_or(value).into()
        }
        "--probability" => fixed_point(value).map_or(value.into(), Into::into),
        _ => value.into(),
    }
}

fn is_all_ones(mask: &str) -> bool {
    matches!(mask, "255.255.255.255" | "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
}

/// A probability as the kernel stores it: in units of 2⁻³¹, rounded (`statistic_parse` in `libxt_statistic.c` of the
/// iptables sources).
fn fixed_point(text: &str) -> Option<String> {
    let probability: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&probability).then(|| format!("{:.0}", (probability * 2_147_483_648.0).round()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways agree, with and without comments. The fast way recognizes the kernel's spelling of most own rules.
    #[track_caller]
    fn compare(a: &str, b: &str, expected: bool) {
        let (a, b) = (Rule::parse(a).unwrap(), Rule::parse(b).unwrap());
        let is_slow = a.target() == Some("MARK");
        assert_eq!(words(&a, true).unwrap() == words(&b, true).unwrap(), expected && !is_slow, "{a} / {b}");
        for comments in [true, false] {
            assert_eq!(same(&a, &b, comments), expected, "{a} / {b}");
        }
        assert_eq!(same_in_any_order(&[a], &[b]), expected);
    }

    #[test]
    fn the_kernels_spelling_is_recognised() {
        let ours = "-m comment --comment \"- a !\" -m tcp -p tcp -d 10.0.0.1 --dport 80 ! -s 10.244.0.0/16 -j X";
        compare(
            ours,
            "! -s 10.244.0.0/16 -d 10.0.0.1/32 -p tcp -m comment --comment \"- a !\" -m tcp --dport 80 -j X",
            true,
        );
        compare(
            ours,
            "-s 10.244.0.0/16 ! -d 10.0.0.1/32 -p tcp -m comment --comment \"- a !\" -m tcp --dport 80 -j X",
            false,
        );
        compare("-d fd00::1 -j X", "-d fd00::1/128 -j X", true);
        compare("-d fd00:: -j X", "-d fd00::/32 -j X", false);
        compare("-d 10.0.0.0 -j X", "-d 10.0.0.0/24 -j X", false);
        compare("-j X", "-g X", false);
        compare("-j MARK --or-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x4000", true);
        compare("-j MARK --xor-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x0", true);
        compare(
            "-m recent --name L --set -m tcp -p tcp -j DNAT --to-destination 10.0.0.1:80",
            "-p tcp -m recent --set --name L --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.0.0.1:80",
            true,
        );
        let random = |probability: &str| format!("-m statistic --mode random --probability {probability} -j X");
        compare(&random("0.0099009901"), &random("0.00990099000"), true);
        compare(&random("0.3333333333"), &random("0.33333333349"), true);
        compare(&random("0.3333333333"), &random("0.33333334349"), false);
        let known = "-m recent --name L --rcheck --seconds 10800 --reap -j X";
        for (kernels, is_same) in [
            ("-m recent --rcheck --seconds 10800 --reap --name L --mask 255.255.255.255 --rsource -j X", true),
            ("-m recent --rcheck --seconds 10800 --reap --name L --mask 255.255.255.0 --rsource -j X", false),
            ("-m recent --rcheck --seconds 10801 --reap --name L --mask 255.255.255.255 --rsource -j X", false),
            ("-m recent --set --seconds 10800 --reap --name L --mask 255.255.255.255 --rsource -j X", false),
        ] {
            compare(known, kernels, is_same);
        }
    }

    #[test]
    fn comments_may_be_ignored() {
        let [a, b] = ["-m comment --comment a -j X", "-j X"].map(|text| Rule::parse(text).unwrap());
        assert!(same(&a, &b, false) && !same(&a, &b, true));
    }
}
