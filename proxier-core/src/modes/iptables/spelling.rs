//! Whether two rules mean the same, where the kernel prints them in another way than kube-proxy writes them.

use iptables::{Rule, Token};

/// Whether both rules mean the same. `comments`: whether they must have the same comments too.
pub(super) fn same(a: &Rule, b: &Rule, comments: bool) -> bool {
    a == b || plain(a, comments).zip(plain(b, comments)).is_some_and(|(a, b)| a.same_as(&b))
}

/// Whether two lists of rules mean the same.
pub(super) fn same_rules(a: &[Rule], b: &[Rule], comments: bool) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, comments))
}

/// The rule as text that is equal for rules of the same meaning.
pub(super) fn key(rule: &Rule) -> String {
    plain(rule, true).map_or_else(|| rule.to_string(), |rule| rule.canonical().to_string())
}

/// The rule without what the kernel adds to the matches `recent` and `statistic`; `None` if it cannot be written.
fn plain(rule: &Rule, comments: bool) -> Option<Rule> {
    let mut words = rule.tokens().iter().map(Token::as_str).peekable();
    let mut plain: Vec<String> = Vec::with_capacity(rule.tokens().len());
    while let Some(word) = words.next() {
        match word {
            "-m" if !comments && words.peek() == Some(&"comment") => drop(words.next()),
            "--comment" => {
                let text = words.next();
                if comments {
                    plain.push(word.to_owned());
                    plain.extend(text.map(str::to_owned));
                }
            }
            // Defaults of `recent`: the whole source address.
            "--rsource" => {}
            "--mask" if words.peek().is_some_and(|mask| is_all_ones(mask)) => drop(words.next()),
            "--probability" => {
                plain.push(word.to_owned());
                plain.extend(words.next().map(|text| fixed_point(text).unwrap_or_else(|| text.to_owned())));
            }
            word => plain.push(word.to_owned()),
        }
    }
    Rule::from_args(plain).ok()
}

fn is_all_ones(mask: &str) -> bool {
    matches!(mask, "255.255.255.255" | "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
}

/// A probability as the kernel keeps it: in units of 2⁻³¹, rounded (`statistic_parse` in `libxt_statistic.c` of the iptables
/// sources).
fn fixed_point(text: &str) -> Option<String> {
    let probability: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&probability).then(|| format!("{:.0}", (probability * 2_147_483_648.0).round()))
}
