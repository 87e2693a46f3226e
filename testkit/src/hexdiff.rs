//! Two byte strings side by side.

/// Bytes per line on each side.
const WIDTH: usize = 8;

/// Shows two byte strings side by side, eight bytes per line. Different lines are marked with `!` and different bytes
/// with `*`.
#[must_use]
pub fn hexdiff(left: &[u8], right: &[u8]) -> String {
    let mut text = String::new();
    let length = left.len().max(right.len());
    for start in (0..length).step_by(WIDTH) {
        let [mut a, mut b] = [String::new(), String::new()];
        let mut differs = false;
        for at in start..start + WIDTH {
            let pair = (left.get(at), right.get(at));
            differs |= pair.0 != pair.1;
            let mark = if pair.0 == pair.1 { ' ' } else { '*' };
            for (side, byte) in [(&mut a, pair.0), (&mut b, pair.1)] {
                match byte {
                    Some(byte) => side.extend([' ', mark, digit(byte >> 4), digit(byte & 15)]),
                    None => side.push_str("    "),
                }
            }
        }
        let flag = if differs { '!' } else { ' ' };
        let line = format!("{flag} {start:04x} {a} |{b}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number below 16 as a hexadecimal digit.
fn digit(number: u8) -> char {
    char::from_digit(number.into(), 16).unwrap_or('?')
}

#[cfg(test)]
mod tests {
    use super::hexdiff;

    #[test]
    fn equal_bytes_carry_no_mark() {
        let text = hexdiff(&[0xab; 9], &[0xab; 9]);
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains(['!', '*']), "{text}");
    }

    #[test]
    fn only_the_line_that_differs_is_marked() {
        let mut other = [7; 20];
        other[10] = 8;
        let text = hexdiff(&[7; 20], &other);
        let marked: Vec<bool> = text.lines().map(|line| line.starts_with('!')).collect();
        assert_eq!(marked, [false, true, false], "{text}");
        assert!(text.contains("*08"), "{text}");
    }

    #[test]
    fn nothing_against_nothing_is_empty() {
        assert_eq!(hexdiff(&[], &[]), "");
    }
}
