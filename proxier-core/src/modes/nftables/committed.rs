//! Which generations of the rule set are of this process's own transactions.
//!
//! The kernel counts all transactions of a network namespace, and does not tell the sender which number its own got. When others
//! wrote at the same time, an own one is among a few: whoever sees which of these wrote to our tables sees whether there are more than
//! our own.

use std::collections::VecDeque;

/// So many passes are remembered; nobody may be listening.
const MOST: usize = 1000;

/// Own transactions that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct Committed(VecDeque<Span>);

/// Some own transactions, among all from one generation to another.
#[derive(Debug)]
struct Span {
    /// The generation before them.
    before: u32,
    /// How many transactions there were.
    all: u32,
    /// How many of these were own ones, and not reported yet.
    own: u32,
}

impl Committed {
    /// Own transactions, `count` of them, were committed after the generation `before`; then it was `after`. Others may have been, too.
    pub(super) fn note(&mut self, before: u32, after: u32, count: u32) {
        self.0.push_back(Span { before, all: after.wrapping_sub(before), own: count });
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// Takes the own transaction that made this generation, if there is one.
    pub(super) fn forget(&mut self, generation: u32) -> bool {
        // From 1 for the first one.
        let of = |span: &Span| generation.wrapping_sub(span.before);
        let found = self.0.iter().position(|span| (1..=span.all).contains(&of(span)) && span.own > 0);
        let Some(span) = found.and_then(|place| self.0.get_mut(place)) else { return false };
        span.own = span.own.saturating_sub(1);
        self.0.retain(|span| span.own > 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_transactions_are_told_from_others() {
        let mut committed = Committed::default();
        committed.note(7, 9, 2);
        committed.note(9, 10, 1);
        assert!(committed.forget(8) && committed.forget(9) && committed.forget(10));
        assert!([8, 9, 10, 11, 7].into_iter().all(|generation| !committed.forget(generation)));
    }

    #[test]
    fn among_others_there_are_no_more_than_its_own() {
        let mut committed = Committed::default();
        // Two of three are its own.
        committed.note(u32::MAX - 1, 1, 2);
        assert!(committed.forget(u32::MAX) && committed.forget(1));
        assert!(!committed.forget(0), "a third one wrote to the tables");
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let mut committed = Committed::default();
        for pass in 0..5000 {
            committed.note(pass, pass + 1, 1);
        }
        assert_eq!(committed.0.len(), MOST);
        assert!(!committed.forget(1) && committed.forget(5000));
    }
}
