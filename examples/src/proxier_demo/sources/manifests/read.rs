//! Reads objects from the texts of manifests.

use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::proxier_demo::message::change::{Change, NodeState};
use crate::proxier_demo::problem::Problem;
use crate::proxier_demo::sources::cluster::is_leaving;
use crate::proxier_demo::sources::counted::Counted;
use crate::proxier_demo::yaml;

/// Kind and name of an object.
pub(super) type Id = (ObjectKind, ObjectKey);

/// The contents of a text.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) objects: Vec<(Id, Change)>,
    pub(super) problems: Vec<Problem>,
    /// Objects that exist, but cannot be read.
    pub(super) unreadable: Vec<Id>,
    /// Whether a document is no YAML or JSON: perhaps it is still being written.
    pub(super) broken: bool,
    counted: Counted,
}

/// Reads a text of several documents, YAML or JSON, as `kubectl get -o yaml` and `-o json` print them. Counts the objects as
/// they come.
pub(super) fn read(text: &str, origin: &str, counted: &Counted) -> Contents {
    let text = text.trim_start_matches('\u{feff}');
    let mut contents = Contents { counted: counted.clone(), ..Contents::default() };
    if let Some(values) = json_documents(text) {
        for (index, value) in values.into_iter().enumerate() {
            take(&value, &Problem::new(origin, "").in_document(index + 1), &mut contents);
        }
        return contents;
    }
    for (index, (line, document)) in documents(text).into_iter().enumerate() {
        let place = Problem::new(origin, "").in_document(index + 1);
        match yaml::parse(&document, DuplicateKeyPolicy::Error) {
            Ok(value) => take(&value, &place, &mut contents),
            Err(_relative) => {
                // Parse again with the lines before it, so that the error has the file's line number.
                let padded = format!("{}{document}", "\n".repeat(line));
                let reason = yaml::parse(&padded, DuplicateKeyPolicy::Error).err().unwrap_or_default();
                contents.problems.push(Problem { reason: format!("not YAML or JSON: {reason}"), ..place });
                contents.broken = true;
            }
        }
    }
    contents
}

/// A sequence of JSON values, if the text is nothing else.
fn json_documents(text: &str) -> Option<Vec<Value>> {
    let starts = text.trim_start().starts_with('{');
    starts.then(|| serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().ok())?
}

/// The documents with content, each with the number of lines before it.
///
/// A line that begins with `---` or `...` ends a document anywhere (YAML 1.2.2, 9.1.2), so an unreadable document does not
/// spoil others.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut documents = Vec::new();
    let mut current = (0, String::new());
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marker = ["---", "..."].into_iter().find(|marker| {
            let after = line.strip_prefix(marker);
            after.is_some_and(|after| after.is_empty() || after.starts_with([' ', '\t', '\r', '\n']))
        });
        if marker.is_some() {
            documents.push(std::mem::replace(&mut current, (number, String::new())));
        }
        let directive = line.starts_with('%') && is_empty(&current.1);
        let content = match marker {
            Some("---") => line.get(3..).unwrap_or_default(),
            Some(_) => "\n",
            None if directive => "\n",
            None => line,
        };
        current.1.push_str(content);
    }
    documents.push(current);
    documents.retain(|(_, document)| !is_empty(document));
    documents
}

/// Whether there are only blanks and comments.
fn is_empty(document: &str) -> bool {
    document.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with('#'))
}

fn take(value: &Value, place: &Problem, contents: &mut Contents) {
    if value.is_null() {
        return;
    }
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let kind = text("kind");
    let of_items = kind.strip_suffix("List").filter(|_| value.get("items").is_some());
    let Some(kind_of_items) = of_items else {
        take_object(value, kind, text("apiVersion"), "", place, contents);
        return;
    };
    let version = if kind_of_items.is_empty() { "" } else { text("apiVersion") };
    match value.get("items") {
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                // The API server's own lists do not repeat the kind.
                let of_item = |name: &str| item.get(name).and_then(Value::as_str);
                let kind = of_item("kind").unwrap_or(kind_of_items);
                let version = of_item("apiVersion").unwrap_or(version);
                take_object(item, kind, version, &format!("items[{index}]"), place, contents);
            }
        }
        Some(Value::Null) | None => {}
        Some(_) => contents.problems.push(Problem { reason: "not a list".to_owned(), ..place.clone() }.at("items")),
    }
}

fn take_object(value: &Value, kind: &str, version: &str, within: &str, place: &Problem, contents: &mut Contents) {
    let join = |field: &str| match (within, field) {
        ("", field) => field.to_owned(),
        (within, "") => within.to_owned(),
        (within, field) => format!("{within}.{field}"),
    };
    let name_of = |name: &str| value["metadata"].get(name).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (name_of("namespace"), name_of("name"));
    let mut problem = |field: &str, reason: String| {
        let mut problem = Problem { reason, ..place.clone() }.at(join(field));
        if !kind.is_empty() && !name.is_empty() {
            let namespace = if kind == "Node" { "" } else { namespace };
            problem.object = Some(format!("{kind} {}", ObjectKey::new(namespace, name)));
        }
        contents.problems.push(problem);
    };
    // A truncated file may still be YAML: a document without a name may be incomplete.
    if !value.is_object() {
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
    let expected = match kind {
        "Service" | "Node" => "v1",
        "EndpointSlice" => "discovery.k8s.io/v1",
        "" => return problem("kind", "missing; should be Service, EndpointSlice, Node or List".to_owned()),
        // Files for kubectl also contain Deployments and more.
        _ => return,
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
    let (id, change) = match kind {
        "Service" => {
            let read = yaml::read::<Box<ServiceObject>>(value).map(Change::UpsertService);
            ((ObjectKind::Service, key), read)
        }
        "EndpointSlice" => {
            let read = yaml::read::<Box<EndpointSliceObject>>(value).map(Change::UpsertSlice);
            ((ObjectKind::EndpointSlice, key), read)
        }
        _ => {
            let node = |object| Change::Node(Box::new(NodeState { object, leaving: is_leaving(&value.to_string()) }));
            ((ObjectKind::Node, key), yaml::read::<NodeObject>(value).map(node))
        }
    };
    match change {
        Ok(change) => {
            contents.counted.saw(&change);
            contents.objects.push((id, change));
        }
        Err((field, reason)) => {
            problem(&field, reason);
            contents.unreadable.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, origin: &str) -> Contents {
        super::read(text, origin, &Counted::default())
    }

    fn problems(text: &str) -> Vec<String> {
        read(text, "f").problems.iter().map(ToString::to_string).collect()
    }

    fn names(text: &str) -> Vec<String> {
        read(text, "f").objects.iter().map(|((kind, key), _)| format!("{kind} {key}")).collect()
    }

    const WEB: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: demo}\n";

    #[test]
    fn several_documents_of_all_forms() {
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
    fn lists_of_kubectl_and_of_the_api_server() {
        let item = "{apiVersion: v1, kind: Service, metadata: {name: a}}";
        assert_eq!(names(&format!("apiVersion: v1\nkind: List\nitems: [{item}, {item}]")), ["Service default/a"; 2]);
        let list = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems: [{metadata: {name: s}}]";
        assert_eq!(names(list), ["EndpointSlice default/s"]);
        assert_eq!(names("apiVersion: v1\nkind: ServiceList\nitems: null"), Vec::<String>::new());
    }

    #[test]
    fn other_kinds_are_passed_over() {
        assert!(names("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}").is_empty());
        assert!(problems("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}").is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_and_stops_nothing() {
        for (document, expected) in [
            ("a: [", "not YAML or JSON: "),
            ("a: 1\na: 2", "not YAML or JSON: "),
            ("just text", "not an object with apiVersion"),
            ("[1, 2]", "not an object with apiVersion"),
            ("metadata: {name: x}", "kind: missing; should be Service"),
            ("kind: Service\nmetadata: {name: x}", "Service x: apiVersion: \"\"; Service is read as v1"),
            (
                "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: x, namespace: y}",
                "EndpointSlice y/x: apiVersion: \"discovery.k8s.io/v1beta1\"; EndpointSlice is read as discovery.k8s.io/v1",
            ),
            ("apiVersion: v1\nkind: Service\nspec: {}", "metadata.name: missing or empty"),
            ("apiVersion: v1\nkind: Service\nmetadata: {name: [a]}", "metadata.name: missing or empty"),
            (
                "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: y}\nspec: {ports: [{port: http}]}",
                "Service y/x: spec.ports[0].port: invalid type: string \"http\", expected i64",
            ),
            (
                "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service, metadata: {name: x}, spec: 5}]",
                "Service x: items[0].spec: invalid type: integer `5`",
            ),
            ("apiVersion: v1\nkind: List\nitems: {}", "items: not a list"),
        ] {
            let text = format!("{WEB}---\n{document}\n---\n{}", WEB.replace("web", "other"));
            assert_eq!(names(&text), ["Service demo/web", "Service demo/other"], "{document}");
            let problems = problems(&text);
            assert_eq!(problems.len(), 1, "{document}: {problems:?}");
            assert!(problems[0].starts_with(&format!("f: document 2: {expected}")), "{problems:?}");
        }
    }

    #[test]
    fn errors_count_lines_as_the_file_does() {
        let problem = &problems(&format!("{WEB}---\n{WEB}---\nkey: [1,\n"))[0];
        assert!(problem.contains("document 3"), "{problem}");
        assert!(problem.contains("line 9") || problem.contains("line 10"), "{problem}");
    }

    #[test]
    fn small_texts_that_become_large_are_refused() {
        let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(",");
            text.extend(["a", &level.to_string(), ": &a", &level.to_string(), " [", &aliases, "]\n"]);
        }
        assert!(read(&text, "f").broken);
        assert!(read(&"[".repeat(100_000), "f").broken);
        assert!(read(&format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000)), "f").broken);
    }
}
