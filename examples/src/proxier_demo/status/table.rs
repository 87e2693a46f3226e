//! Formats lines that fit a terminal.

/// The width of everything printed for people.
pub const COLUMNS: usize = 100;
/// The indent of a continued line.
const INDENT: &str = "    ";

/// Splits a line into pieces of at most [`COLUMNS`] columns, between words; a longer word is split too. Every piece but the
/// first is indented.
pub fn wrapped(line: &str) -> Vec<String> {
    if line.chars().count() <= COLUMNS {
        return vec![line.to_owned()];
    }
    let mut pieces = Vec::new();
    let start: String = line.chars().take_while(|c| *c == ' ').collect();
    let mut piece = start;
    // Blanks within a line are part of the table; drop them only at a break.
    for word in line.trim_start().split_inclusive(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if piece.chars().count() + word.iter().collect::<String>().trim_end().chars().count() > COLUMNS {
            if !piece.trim().is_empty() {
                pieces.push(piece.trim_end().to_owned());
                INDENT.clone_into(&mut piece);
            }
            while word.len() > COLUMNS - INDENT.len() {
                let rest = word.split_off(COLUMNS - piece.chars().count());
                piece.extend(word);
                pieces.push(std::mem::replace(&mut piece, INDENT.to_owned()));
                word = rest;
            }
        }
        piece.extend(word);
    }
    if !piece.trim().is_empty() {
        pieces.push(piece.trim_end().to_owned());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lines_stay_as_they_are() {
        let line = "+ virtual server TCP 10.96.0.10:53 rr  (kube-system/kube-dns:dns-tcp)";
        assert_eq!(wrapped(line), [line]);
        assert_eq!(wrapped(""), [""]);
    }

    #[test]
    fn long_ones_are_broken_between_words_and_nothing_is_lost() {
        let name = "n".repeat(63);
        let line = format!("  + virtual server TCP [2001:db8::1]:443 rr  ({name}/{name}:a-name-of-a-port)");
        let pieces = wrapped(&line);
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.chars().count() <= COLUMNS), "{pieces:#?}");
        assert_eq!(pieces[0], "  + virtual server TCP [2001:db8::1]:443 rr");
        let without = |text: &str| text.replace(' ', "");
        assert_eq!(without(&pieces.concat()), without(&line));
        assert!(pieces[1..].iter().all(|piece| piece.starts_with(INDENT)), "{pieces:#?}");
        let words = vec!["word"; 60].join(" ");
        assert_eq!(wrapped(&words).join(" ").split_whitespace().count(), 60);
        assert_eq!(without(&wrapped(&"ü".repeat(450)).concat()), "ü".repeat(450));
    }
}
