//! Reads the numbers in the kernel's C headers as a C compiler would.

use std::collections::BTreeMap;
use std::{fs, io};

/// Use it to compare an attribute table with its header. Returns names and values of the enumerations in headers below
/// `/usr/include/linux`, and of macros that are plain numbers.
///
/// A value may be a number, a name from an earlier header, or these combined with `|`, `+`, `-` or `<<`. Anything more
/// complex is left out.
///
/// # Errors
/// An I/O error that names the missing header.
pub fn header_numbers(headers: &[&str]) -> io::Result<BTreeMap<String, i64>> {
    let mut numbers = BTreeMap::new();
    for header in headers {
        let path = format!("/usr/include/linux/{header}");
        let text = fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}; install linux-libc-dev")))?;
        read(&without_comments(&text).replace("\\\n", " "), &mut numbers);
    }
    Ok(numbers)
}

fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
    }
    code + rest
}

fn read(text: &str, numbers: &mut BTreeMap<String, i64>) {
    let (macros, code): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.trim_start().starts_with('#'));
    // Enumerations use macros, and macros use enumerations, so macros are evaluated before and after.
    define(&macros, numbers);
    for block in code.join("\n").split("enum").skip(1) {
        // Without a brace this only uses the type.
        let Some((name, body)) = block.split_once('{') else { continue };
        if name.contains(';') {
            continue;
        }
        enumerate(body.split_once('}').map_or(body, |(body, _)| body), numbers);
    }
    define(&macros, numbers);
}

fn define(macros: &[&str], numbers: &mut BTreeMap<String, i64>) {
    for line in macros {
        let words =
            line.trim_start().strip_prefix("#define").and_then(|rest| rest.trim().split_once(char::is_whitespace));
        if let Some((name, value)) = words
            && let Some(value) = evaluate(value, numbers)
        {
            numbers.insert(name.to_owned(), value);
        }
    }
}

fn enumerate(body: &str, numbers: &mut BTreeMap<String, i64>) {
    let mut next = Some(0);
    for part in body.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim(), evaluate(value, numbers)),
            None => (part, next),
        };
        if let Some(value) = value {
            numbers.insert(name.to_owned(), value);
        }
        next = value.and_then(|value| value.checked_add(1));
    }
}

type Operation = fn(i64, i64) -> Option<i64>;

fn evaluate(text: &str, numbers: &BTreeMap<String, i64>) -> Option<i64> {
    let text = text.trim();
    let operations: [(&str, Operation); 4] = [
        ("|", |left, right| Some(left | right)),
        ("+", i64::checked_add),
        (" - ", i64::checked_sub),
        ("<<", |left, right| left.checked_shl(u32::try_from(right).ok()?)),
    ];
    for (sign, operation) in operations {
        if let Some((left, right)) = text.split_once(sign) {
            return operation(evaluate(left, numbers)?, evaluate(right, numbers)?);
        }
    }
    let text = text.trim_start_matches('(').trim_end_matches(')').trim();
    let digits = text.trim_end_matches(['U', 'L']);
    match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok().or_else(|| numbers.get(text).copied()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_compilers() {
        let text = "#define ONE 1 /* a\n comment */\n#define BOTH (A | B)\n#define MACRO(x) ((x) + 1)\n#define MAX (__MAX - 1)\n\
            enum one {\n\tFIRST,\n\tSECOND = ONE + 4,\n\tTHIRD,\n\t__MAX\n};\n\
            enum {\n\tA = (1 << 3), B = 0x10U, C =\n\t\t(A + 1),\n\tODD = sizeof(int), LOST,\n};\n\
            struct s {\n\tenum one member;\n\tint array[4];\n};\n#define LONG \\\n\t7\n";
        let mut numbers = BTreeMap::new();
        read(&without_comments(text).replace("\\\n", " "), &mut numbers);
        let wanted = [
            ("A", 8),
            ("B", 16),
            ("BOTH", 24),
            ("C", 9),
            ("FIRST", 0),
            ("LONG", 7),
            ("MAX", 6),
            ("ONE", 1),
            ("SECOND", 5),
            ("THIRD", 6),
            ("__MAX", 7),
        ];
        assert_eq!(numbers, wanted.map(|(name, number)| (name.to_owned(), number)).into());
    }

    #[test]
    fn a_missing_header_is_named() {
        let error = header_numbers(&["no/such.h"]).unwrap_err();
        assert!(error.to_string().contains("/usr/include/linux/no/such.h"), "{error}");
    }
}
