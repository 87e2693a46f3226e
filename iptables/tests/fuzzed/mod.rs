//! Checks that the fuzz targets run on their bytes; `tests/corpus.rs` runs the same on the inputs that fuzzing has found.
//!
//! Each function panics when the library breaks a promise; any other outcome is fine.

use iptables::{ChainName, Dump, ErrorKind, Rule, TableName, Token, Transaction};

/// How `iptables-restore` takes a line apart (`add_param_to_argv`, `iptables/xshared.c`), written a second time and
/// over bytes, without the crate's own reader. `None` where a quotation stays open.
fn restore_reads(line: &str) -> Option<Vec<Vec<u8>>> {
    let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), Vec::new(), false, false);
    for byte in line.bytes() {
        match byte {
            _ if escaped => {
                word.push(byte);
                escaped = false;
            }
            b'\\' if quoted => escaped = true,
            b'"' if quoted => {
                quoted = false;
                words.push(std::mem::take(&mut word));
            }
            b'"' => quoted = true,
            b' ' | b'\t' | b'\n' if !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            other => word.push(other),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    (!quoted).then_some(words)
}

fn bytes(rule: &Rule) -> Vec<Vec<u8>> {
    rule.tokens().iter().map(|token| token.as_str().as_bytes().to_vec()).collect()
}

/// A rule that can be written is one line, which the program takes apart into the same arguments.
fn written(rule: &Rule) {
    let Ok(chain) = ChainName::new("FUZZ") else { return };
    let mut change = Transaction::new();
    change.table(TableName::FILTER).replace_chain(&chain, [rule.clone()]);
    match change.to_restore_text() {
        Ok(text) => {
            let lines: Vec<&str> = text.split('\n').collect();
            let [table, declared, line, commit, ""] = lines.as_slice() else { panic!("{text:?}") };
            assert_eq!((*table, *declared, *commit), ("*filter", ":FUZZ - [0:0]", "COMMIT"));
            let line = match line.split_once("] ") {
                Some((counters, line)) if counters.starts_with('[') => line,
                _ => line,
            };
            let mut words = vec![b"-A".to_vec(), b"FUZZ".to_vec()];
            words.extend(bytes(rule));
            assert_eq!(restore_reads(line).as_ref(), Some(&words), "{line}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidToken, "{error}"),
    }
}

/// The canonical form is that of the rule it prints as.
fn canonical(rule: &Rule) {
    let form = rule.canonical();
    assert!(rule.same_as(rule));
    let _answers = (rule.target().is_some(), rule.comment().is_some());
    // A rule whose arguments cannot be written cannot be read back.
    if let Ok(printed) = Rule::parse(&form.to_string()) {
        assert_eq!(printed.canonical(), form, "{rule} printed as {printed}");
    }
}

/// The lines of rules in their order.
fn rules(text: &str) -> Vec<&str> {
    text.split('\n').filter(|line| line.contains("-A ")).collect()
}

/// Text as `iptables-save` prints it: what is read, prints as text that reads the same.
pub(crate) fn save(data: &[u8]) {
    match Dump::parse(data) {
        Ok(dump) => {
            let printed = dump.to_string();
            match Dump::parse(&printed) {
                Ok(again) if again == dump => assert_eq!(again.to_string(), printed),
                // Where rules change places, a quotation left open finds another line to close it. No program leaves one open.
                other => assert_ne!(rules(&String::from_utf8_lossy(data)), rules(&printed), "{other:?} of {printed}"),
            }
            for rule in dump.tables.iter().flat_map(iptables::Table::chains).flat_map(|chain| &chain.rules) {
                written(rule);
                canonical(rule);
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Parse);
            assert!(error.to_string().contains("line "), "{error}");
        }
    }
}

/// Arguments with `0xff` between them, and the same bytes as a line.
pub(crate) fn rule(data: &[u8]) {
    let arguments: Vec<String> =
        data.split(|byte| *byte == 0xff).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    if let Ok(rule) = Rule::from_args(arguments.clone()) {
        assert!(rule.tokens().iter().map(Token::as_str).eq(arguments.iter().map(String::as_str)));
        written(&rule);
        canonical(&rule);
        assert_eq!(Rule::parse(&rule.to_string()).as_ref().ok(), Some(&rule), "{rule}");
    }
    let Ok(line) = std::str::from_utf8(data) else { return };
    match Rule::parse(line) {
        Ok(rule) => {
            assert_eq!(Some(bytes(&rule)), restore_reads(line), "{line:?}");
            written(&rule);
            canonical(&rule);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidToken, "{error}"),
    }
}
