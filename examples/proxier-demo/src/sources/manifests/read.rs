//! Reads objects from the text of manifests, one at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::message::change::{Change, NodeState};
use crate::problem::Problem;
use crate::sources::cluster::{is_leaving, without_notes_of_service, without_notes_of_slice};
use crate::yaml;

pub(super) type Id = (ObjectKind, ObjectKey);

#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) objects: Vec<(Id, Change)>,
    pub(super) problems: Vec<Problem>,
    /// Objects that exist but cannot be read.
    pub(super) unreadable: Vec<Id>,
    /// Number of objects of each kind that is ignored.
    pub(super) ignored: BTreeMap<String, usize>,
    /// Whether a document is not YAML or JSON, possibly because it is still being written.
    pub(super) broken: bool,
    pub(super) blank: bool,
}

/// A state of the contents to which to return: the lengths of the first three, and the rest.
type Mark = ([usize; 3], BTreeMap<String, usize>, bool);

impl Contents {
    /// Further kinds are counted together.
    const KINDS: usize = 20;

    fn mark(&self) -> Mark {
        ([self.objects.len(), self.problems.len(), self.unreadable.len()], self.ignored.clone(), self.broken)
    }

    fn back_to(&mut self, ([objects, problems, unreadable], ignored, broken): Mark) {
        self.objects.truncate(objects);
        self.problems.truncate(problems);
        self.unreadable.truncate(unreadable);
        (self.ignored, self.broken) = (ignored, broken);
    }

    fn ignore(&mut self, kind: &str) {
        let is_room = self.ignored.len() < Self::KINDS || self.ignored.contains_key(kind);
        let kind = if is_room { kind } else { "other kinds" };
        *self.ignored.entry(kind.to_owned()).or_default() += 1;
    }
}

/// Reads a file of several documents, YAML or JSON, as printed by `kubectl get -o yaml` and `-o json`. Holds one object
/// of a JSON file, or one document of a YAML file, at a time.
pub(super) fn read<R: Read + Seek>(file: &mut R, origin: &str) -> io::Result<Contents> {
    let mut contents = Contents::default();
    let (start, looks_like_json) = sniff(file)?;
    if looks_like_json {
        file.seek(SeekFrom::Start(start))?;
        if read_json(file, origin, &mut contents) {
            return Ok(contents);
        }
        contents = Contents::default();
    }
    file.seek(SeekFrom::Start(start))?;
    read_yaml(BufReader::with_capacity(BUFFER, file), origin, &mut contents)?;
    Ok(contents)
}

const BUFFER: usize = 64 << 10;

/// The offset of the text's start, and whether it looks like JSON.
fn sniff(file: &mut impl Read) -> io::Result<(u64, bool)> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let mut head = Vec::new();
    file.take(BUFFER as u64).read_to_end(&mut head)?;
    let (start, text) = match head.strip_prefix(MARK) {
        Some(text) => (MARK.len() as u64, text),
        None => (0, head.as_slice()),
    };
    Ok((start, text.trim_ascii_start().starts_with(b"{")))
}

/// Reads a sequence of JSON values. Returns whether the file contains nothing else.
fn read_json(file: &mut impl Read, origin: &str, contents: &mut Contents) -> bool {
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(BUFFER, file));
    let mut number = 0_usize;
    while json.end().is_err() {
        number = number.saturating_add(1);
        let place = Problem { document: Some(number), ..Problem::new(origin, "") };
        if (Document { place: &place, contents: &mut *contents }).deserialize(&mut json).is_err() {
            return false;
        }
    }
    true
}

fn read_yaml(lines: impl BufRead, origin: &str, contents: &mut Contents) -> io::Result<()> {
    let mut number = 0_usize;
    contents.blank = yaml::documents(lines, |document, before| {
        number = number.saturating_add(1);
        take_document(document, before, Problem { document: Some(number), ..Problem::new(origin, "") }, contents);
    })?;
    Ok(())
}

fn take_document(mut document: String, before: usize, place: Problem, contents: &mut Contents) {
    let mark = contents.mark();
    let read =
        yaml::parse_into(&document, DuplicateKeyPolicy::Error, Document { place: &place, contents: &mut *contents });
    if read.is_err() {
        contents.back_to(mark);
        // Parse the document again with the lines before it, so that the error has the file's line number.
        document.insert_str(0, &"\n".repeat(before));
        let reason = yaml::parse(&document, DuplicateKeyPolicy::Error).err().unwrap_or_default();
        contents.problems.push(Problem { reason: format!("not YAML or JSON: {reason}"), ..place });
        contents.broken = true;
    }
}

/// Visitor methods for values that are neither a list nor an object, and for null.
macro_rules! of_scalars {
    ($visitor:ident => $made:expr, null => $null:expr) => {
        of_scalars!($visitor => $made; visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

        fn visit_unit<E>($visitor) -> Result<Self::Value, E> {
            Ok($null)
        }

        fn visit_none<E>($visitor) -> Result<Self::Value, E> {
            Ok($null)
        }
    };
    ($visitor:ident => $made:expr; $($visit:ident: $of:ty),*) => {$(
        fn $visit<E>($visitor, _: $of) -> Result<Self::Value, E> {
            Ok($made)
        }
    )*};
}

/// Collects the objects of a document while it is read.
struct Document<'a> {
    place: &'a Problem,
    contents: &'a mut Contents,
}

impl Document<'_> {
    fn refuse(self) {
        take_object(&Value::Bool(true), ("", ""), "", self.place, self.contents);
    }
}

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    of_scalars!(self => self.refuse(), null => ());

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        while all.next_element::<IgnoredAny>()?.is_some() {}
        self.refuse();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Document { place, contents } = self;
        let mark = contents.mark();
        let (mut fields, mut listed) = (serde_json::Map::new(), None);
        while let Some(field) = map.next_key::<String>()? {
            if field == "items" {
                let of_list = (text(&fields, "kind"), text(&fields, "apiVersion"));
                listed = Some(map.next_value_seed(Items { of_list, place, contents: &mut *contents })?);
            } else {
                fields.insert(field, map.next_value()?);
            }
        }
        let (kind, version) =
            (text(&fields, "kind").unwrap_or_default(), text(&fields, "apiVersion").unwrap_or_default());
        match (kind.strip_suffix("List"), listed) {
            (Some(_), Some(None)) => {
                contents.problems.push(Problem { reason: "not a list".to_owned(), ..place.clone() }.at("items"));
            }
            (Some(_), Some(Some(items))) => {
                for (index, item) in items {
                    take_item(&item, index, (kind, version), place, contents);
                }
            }
            // The document was not a list.
            (kind_of_items, _) => {
                if kind_of_items.is_none() {
                    contents.back_to(mark);
                }
                take_object(&Value::Object(fields), ("", ""), "", place, contents);
            }
        }
        Ok(())
    }
}

fn text<'a>(fields: &'a serde_json::Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

/// Items of a list that do not say their kind, each with its index: the list's was not known yet. `None`: not a list.
type Later = Option<Vec<(usize, Value)>>;

/// Collects the items of a list while it is read.
struct Items<'a> {
    /// Kind and version of the list, if they precede its items.
    of_list: (Option<&'a str>, Option<&'a str>),
    place: &'a Problem,
    contents: &'a mut Contents,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = Later;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Later, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = Later;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    of_scalars!(self => None, null => Some(Vec::new()));

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Later, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Later, A::Error> {
        let (mut later, mut index) = (Vec::new(), 0_usize);
        while let Some(item) = all.next_element::<Value>()? {
            let says = item["kind"].is_string() && item["apiVersion"].is_string();
            match self.of_list {
                (Some(kind), Some(version)) => take_item(&item, index, (kind, version), self.place, self.contents),
                _ if says => take_item(&item, index, ("List", ""), self.place, self.contents),
                _ => later.push((index, item)),
            }
            index = index.saturating_add(1);
        }
        Ok(Some(later))
    }
}

/// Takes an item of a list of this kind and version. The API server's own lists do not repeat them in items.
fn take_item(item: &Value, index: usize, (kind, version): (&str, &str), place: &Problem, contents: &mut Contents) {
    let kind = kind.strip_suffix("List").unwrap_or_default();
    let version = if kind.is_empty() { "" } else { version };
    take_object(item, (kind, version), &format!("items[{index}]"), place, contents);
}

/// Takes an object; kind and version are defaults.
fn take_object(object: &Value, (kind, version): (&str, &str), within: &str, place: &Problem, contents: &mut Contents) {
    let kind = object["kind"].as_str().unwrap_or(kind);
    let version = object["apiVersion"].as_str().unwrap_or(version);
    let of_metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let (namespace, name) = (of_metadata("namespace"), of_metadata("name"));
    let join = |field: &str| match (within, field) {
        ("", field) => field.to_owned(),
        (within, "") => within.to_owned(),
        (within, field) => format!("{within}.{field}"),
    };
    let mut problem = |field: &str, reason: String| {
        let mut problem = Problem { reason, ..place.clone() }.at(join(field));
        if !kind.is_empty() && !name.is_empty() {
            let namespace = if kind == "Node" { "" } else { namespace };
            problem.object = Some(format!("{kind} {}", ObjectKey::new(namespace, name)));
        }
        contents.problems.push(problem);
    };
    // A truncated file may still be valid YAML, so a document without a name may be incomplete.
    if !object.is_object() {
        problem("", "not an object with apiVersion, kind and metadata".to_owned());
        contents.broken |= within.is_empty();
        return;
    }
    if name.is_empty() && within.is_empty() {
        let field = if kind.is_empty() { "kind" } else { "metadata.name" };
        problem(field, "missing or empty; is the file complete?".to_owned());
        contents.broken = true;
        return;
    }
    let (known, expected) = match kind {
        "Service" => (ObjectKind::Service, "v1"),
        "EndpointSlice" => (ObjectKind::EndpointSlice, "discovery.k8s.io/v1"),
        "Node" => (ObjectKind::Node, "v1"),
        "" => return problem("kind", "missing; should be Service, EndpointSlice, Node or List".to_owned()),
        // Files for kubectl also contain Deployments and other kinds.
        _ => return contents.ignore(kind),
    };
    if version != expected {
        return problem("apiVersion", format!("{version:?}; {kind} is read as {expected}"));
    }
    if name.is_empty() {
        return problem("metadata.name", "missing or empty".to_owned());
    }
    let key = match (kind, namespace) {
        ("Node", _) => ObjectKey::new("", name),
        (_, "") => ObjectKey::new("default", name),
        (_, namespace) => ObjectKey::new(namespace, name),
    };
    // Vectors that were read have room for four, and all objects are stored at once.
    let change = match known {
        ObjectKind::Service => yaml::read(object).map(|mut object: Box<ServiceObject>| {
            without_notes_of_service(&mut object);
            object.spec.ports.shrink_to_fit();
            Change::UpsertService(object)
        }),
        ObjectKind::EndpointSlice => yaml::read(object).map(|mut object: Box<EndpointSliceObject>| {
            without_notes_of_slice(&mut object);
            object.ports.shrink_to_fit();
            object.endpoints.shrink_to_fit();
            Change::UpsertSlice(object)
        }),
        _ => yaml::read(object)
            .map(|node: NodeObject| Change::Node(Box::new(NodeState { object: node, leaving: is_leaving(object) }))),
    };
    match change {
        Ok(change) => contents.objects.push(((known, key), change)),
        Err((field, reason)) => {
            problem(&field, reason);
            contents.unreadable.push((known, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, origin: &str) -> Contents {
        super::read(&mut io::Cursor::new(text), origin).unwrap()
    }

    fn problems(text: &str) -> Vec<String> {
        read(text, "f").problems.iter().map(ToString::to_string).collect()
    }

    fn names(text: &str) -> Vec<String> {
        read(text, "f").objects.iter().map(|((kind, key), _)| format!("{kind} {key}")).collect()
    }

    const WEB: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: demo}\n";

    #[test]
    fn documents_of_all_forms_are_read() {
        let text = format!(
            "# a comment\n---\n{WEB}---\n# nothing\n--- # said\n{WEB}\n...\n%YAML 1.2\n---\r\n{}\r\n",
            r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}"#
        );
        assert_eq!(names(&text), ["Service demo/web", "Service demo/web", "Node n1"]);
        assert_eq!(problems(&text), Vec::<String>::new());
        let json = "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n\t\"metadata\":{\"name\":\"a\"}}";
        assert_eq!(names(&format!("\u{feff}{json}\n{json}")), ["Service default/a", "Service default/a"]);
    }

    #[test]
    fn of_other_kinds_only_some_are_counted_by_name() {
        let item = |kind: &str| format!("{{apiVersion: v1, kind: {kind}, metadata: {{name: x}}}}");
        let many: String = (0..30).map(|number| item(&format!("K{number}")) + "\n---\n").collect();
        let contents = read(&many, "f");
        assert_eq!((contents.ignored.len(), contents.ignored["other kinds"]), (Contents::KINDS + 1, 10));
    }

    /// The kind and version of a list may come before, between or after its items.
    #[test]
    fn items_get_the_kind_of_their_list() {
        let (kind, version) = ("\"kind\": \"EndpointSliceList\"", "\"apiVersion\": \"discovery.k8s.io/v1\"");
        let items = "\"items\": [{\"metadata\": {\"name\": \"a\"}}, {\"metadata\": {\"name\": \"b\"}}]";
        for fields in [[kind, version, items], [kind, items, version], [items, version, kind], [version, items, kind]] {
            let json = format!("{{{}}}", fields.join(", "));
            for text in [json.clone(), format!("# YAML\n{json}")] {
                assert_eq!(names(&text), ["EndpointSlice default/a", "EndpointSlice default/b"], "{text}");
                assert_eq!(problems(&text), Vec::<String>::new());
            }
        }
        // A field of another kind.
        let service = "{\"items\": [{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"a\"}}], \
                       \"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"b\"}}";
        assert_eq!(names(service), ["Service default/b"]);
        assert_eq!(problems(&format!("{{{version}, {kind}, \"items\": {{}}}}")), ["f: document 1: items: not a list"]);
        assert_eq!(problems(&format!("{{{version}, {kind}, \"items\": null}}")), Vec::<String>::new());
        // A truncated text yields no objects, in JSON as in YAML.
        let whole = format!("{{{kind}, {version}, {items}}}");
        let broken = read(&whole[..whole.len() - 3], "f");
        assert!(broken.broken && broken.objects.is_empty());
    }
}
