//! Checks that the fuzz targets run on their bytes; `tests/corpus.rs` runs the same on the inputs that fuzzing has found.
//!
//! Each function panics when the library breaks a promise; any other outcome is fine.

#[path = "../../../netlink-batch/tests/answers/mod.rs"]
mod answers;

use std::time::Duration;

use answers::{Answers, parts};
use ipset::fake::FakeIpset;
use ipset::{
    Client, Entry, EntryReport, Family, IfAbsent, IfPresent, SavedSet, SetName, SetSpec, SetType, parse_save, save,
};
use netlink_batch::Message;
use netlink_batch::header::NfGenHeader;
use netlink_batch::testing::{Reply, Responder, Simulated};

/// Checks that sets read from text are written as text that reads the same.
fn again(sets: &[SavedSet]) {
    let written = save(sets);
    match parse_save(&written) {
        Ok(read) => assert_eq!(read, sets, "{written}"),
        Err(error) => panic!("{error} in {written:?}, written from {sets:?}"),
    }
}

/// Text as a whole, as one `create` line, and as one entry of each type.
pub(crate) fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse_save(text) {
        Ok(sets) => again(&sets),
        Err(error) => assert!(error.to_string().contains("line "), "{error}"),
    }
    if let Ok(spec) = text.parse::<SetSpec>() {
        assert_eq!(spec.to_string().parse(), Ok(spec.clone()), "{spec}");
        again(&[SavedSet::new(spec, [])]);
    }
    for set_type in SetType::ALL {
        let Ok(entry) = Entry::parse(*set_type, text) else { continue };
        assert_eq!(Entry::parse(*set_type, &entry.to_string()), Ok(entry.clone()), "{set_type} {entry}");
        for family in [Family::Inet, Family::Inet6] {
            stored(*set_type, family, &entry);
        }
    }
}

/// Checks that each entry of an expansion expands to itself alone, and that an expansion keeps to the asked maximum.
fn stored(set_type: SetType, family: Family, entry: &Entry) {
    const MOST: usize = 300;
    let Ok(name) = SetName::new("fuzz") else { return };
    let mut set = SetSpec::new(name, set_type);
    set.options.family = family;
    let Ok(entries) = entry.expand(&set, MOST) else { return };
    assert!(!entries.is_empty() && entries.len() <= MOST, "{} of {entry}", entries.len());
    for one in entries {
        assert_eq!(one.expand(&set, 1), Ok(vec![one.clone()]), "{set_type} {entry}");
    }
}

const HEADER: NfGenHeader = NfGenHeader { family: 2, version: 0, resource: 0 };

fn with_header(attributes: &[u8]) -> Vec<u8> {
    [&HEADER.to_bytes(), attributes].concat()
}

/// Every entry given is in one place of the report.
fn accounted(report: &EntryReport, entries: usize) {
    let ranges = || report.not_attempted.iter().chain(&report.unknown);
    let named = report.failures.iter().map(|failure| failure.index..failure.index + 1).chain(ranges().cloned());
    let mut seen = vec![false; entries];
    for index in named.flatten() {
        assert!(index < entries && !seen[index], "{index} of {entries}: {report:?}");
        seen[index] = true;
    }
    let told = seen.iter().filter(|seen| **seen).count();
    assert_eq!(report.applied + told, entries, "{report:?}");
    assert_eq!(report.is_done(), report.applied == entries, "{report:?}");
}

/// A client reads answers that no kernel would give: it returns an error or a value, and never hangs.
pub(crate) fn replies(data: &[u8]) {
    listings(data);
    // Versions 6 to 7.
    let versions = with_header(&[5, 0, 1, 0, 7, 0, 0, 0, 5, 0, 10, 0, 6, 0, 0, 0]);
    let answers = Answers::new(data, HEADER.to_bytes(), versions);
    let Ok(mut client) = Client::with_transport(answers) else { return };
    let mut limits = client.limits();
    (limits.timeout, limits.dump_attempts) = (Duration::ZERO, 2);
    client.set_limits(limits);
    let Ok(name) = SetName::new("a") else { return };
    let set = SetSpec::new(name.clone(), SetType::HashIp);
    let entries: Vec<Entry> =
        (1..9).filter_map(|last| Entry::parse(set.set_type, &format!("10.0.0.{last}")).ok()).collect();
    accounted(&client.add_entries(&name, &entries, IfPresent::Refuse), entries.len());
    accounted(&client.delete_entries(&name, &entries, IfAbsent::Ignore), entries.len());
    let results = [
        client.list_sets().err(),
        client.list_headers().err(),
        client.list_names().err(),
        client.get_set(&name).err(),
        client.get_header(&name).err(),
        client.set_header(&name).err(),
        client.type_revisions(SetType::HashIp, Family::Inet).err(),
        client.save().err(),
        client.create_set(&set).err(),
        client.ensure_set(&set).err(),
        entries.first().and_then(|entry| client.test_entry(&name, entry).err()),
        client.swap_sets(&name, &name).err(),
        client.destroy_all_sets().err(),
    ];
    for error in results.iter().flatten() {
        assert!(!error.to_string().is_empty());
    }
}

/// The fake kernel, but for what it lists.
struct Liar {
    kernel: FakeIpset,
    lists: Vec<Vec<u8>>,
}

impl Responder for Liar {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        match self.kernel.respond(message) {
            Reply::Dump(_) => {
                Reply::Dump(self.lists.iter().map(|bytes| (message.header.kind, with_header(bytes))).collect())
            }
            other => other,
        }
    }
}

/// Attributes of a listing: what can be read can also be written as text and compared with what is wanted.
fn listings(data: &[u8]) {
    let lists = parts(data, 16);
    let Ok(mut client) = Client::with_transport(Simulated::new(Liar { kernel: FakeIpset::new(), lists })) else {
        return;
    };
    let Ok(sets) = client.list_sets() else { return };
    for set in sets {
        let _texts = (set.spec.to_string(), set.entries.iter().map(ToString::to_string).count());
        let spec = set.spec.clone();
        let saved = SavedSet::from(set);
        // Names and comments that no text can hold are listed all the same, and print as they are.
        if spec.check().is_ok() && parse_save(&save([&saved])).is_ok_and(|read| read.len() == 1) {
            again(&parse_save(&save([&saved])).unwrap_or_default());
        }
        if saved.entries.len() < 300 {
            let _report = client.sync(&spec, &saved.entries);
        }
    }
}
