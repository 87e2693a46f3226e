//! The source `manifests`: files that are written, renamed, broken and removed while they are followed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use proxier_core::objects::Metadata;
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use proxier_demo::message::change::{Change, Snapshot};
use proxier_demo::message::{Event, channel};
use proxier_demo::sources::files::RewriteWatch;
use proxier_demo::sources::manifests::Manifests;
use testkit::apiserver::recorded;
use tokio::sync::mpsc::Receiver;

use crate::program::Folder;

/// Writes a file piece by piece, as careless programs do.
fn write(dir: &Folder, name: &str, text: &str) {
    fs::write(dir.path(name), text).unwrap();
}

fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: demo}}\n\
         spec: {{clusterIP: 10.96.0.1, ports: [{{port: {port}}}]}}\n"
    )
}

fn node(name: &str) -> String {
    format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n")
}

fn joined(keys: &[ObjectKey]) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn line(change: &Change) -> String {
    match change {
        Change::UpsertService(object) => format!("+{} {}", object.metadata.name, object.spec.ports[0].port),
        Change::UpsertSlice(object) => format!("+slice {}", object.metadata.name),
        Change::DeleteService(key) => format!("-{key}"),
        Change::Lost(ObjectKind::Service, keys) => format!("lost Services {}", joined(keys)),
        Change::Lost(_, keys) => format!("lost slices {}", joined(keys)),
        Change::DeleteSlice(key) => format!("-slice {key}"),
        Change::Node(node) => format!("+node {}", node.object.metadata.name),
        Change::NodeGone => "-node".to_owned(),
        Change::ClusterNode(node) => {
            let Metadata { name, annotations, labels, .. } = &node.metadata;
            let weight = annotations.get("proxier/weight").or_else(|| labels.get("proxier/weight")).unwrap_or("1");
            format!("+weight {weight} of {name}")
        }
        Change::ClusterNodeGone(name) => format!("-weight of {name}"),
        Change::Synced => "synced".to_owned(),
        Change::Unreadable(of) => format!("! {}", of.problem),
        Change::Readable(kind, key) => format!("readable {kind} {key}"),
        _ => "other".to_owned(),
    }
}

fn open(path: &Path) -> Result<Vec<String>, Vec<String>> {
    match Manifests::open(vec![path.to_owned()], "n1") {
        Ok((_, changes)) => Ok(changes.iter().map(line).collect()),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
    }
}

fn follow(path: &Path) -> Receiver<Event> {
    let (sender, receiver) = channel();
    let (manifests, first) = Manifests::open(vec![path.to_owned()], "n1").unwrap();
    tokio::spawn(async move { manifests.follow(first, &sender).await });
    receiver
}

async fn next(changes: &mut Receiver<Event>) -> String {
    let event = tokio::time::timeout(Duration::from_secs(5), changes.recv()).await;
    line(&event.expect("a change within 5 s").expect("a source that runs").change)
}

async fn nothing(changes: &mut Receiver<Event>) {
    let event = tokio::time::timeout(Duration::from_millis(600), changes.recv()).await;
    assert!(event.is_err(), "{event:?}");
}

#[test]
fn a_directory_is_read_in_the_order_of_names() {
    let dir = Folder::with("b.yaml", &format!("{}---\n{}", service("web", 2), service("other", 3)));
    write(&dir, "a.yml", &format!("{}---\n{}---\n{}", service("web", 1), node("n1"), node("n2")));
    write(&dir, ".hidden.yaml", "not: [yaml");
    write(&dir, "README.md", "not yaml either: [");
    fs::create_dir(dir.path("sub.yaml")).unwrap();
    let (a, b) = (dir.path("a.yml"), dir.path("b.yaml"));
    assert_eq!(
        open(&dir.0).unwrap(),
        [
            format!("! {}: Service demo/web: is in {} too, which counts", b.display(), a.display()),
            "+other 3".to_owned(),
            "+web 1".to_owned(),
            "+node n1".to_owned(),
            "+weight 1 of n1".to_owned(),
            "+weight 1 of n2".to_owned(),
        ]
    );
    // Callers that do not follow the files get the same.
    let once = Manifests::once(vec![dir.0.clone()], "n1").unwrap();
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(once.iter().map(line).collect()), sorted(open(&dir.0).unwrap()));
}

#[test]
fn what_kubectl_and_the_api_server_print_is_read() {
    let dir = Folder::with("services.json", recorded::SERVICES);
    write(&dir, "slices.json", recorded::ENDPOINT_SLICES);
    write(&dir, "node.json", recorded::NODE);
    let (_, changes) = Manifests::open(vec![dir.0.clone()], "n1").unwrap();
    let mut snapshot = Snapshot::default();
    for change in changes {
        snapshot.apply(change);
    }
    let count = |text: &str| {
        let list: serde_json::Value = serde_json::from_str(text).unwrap();
        list["items"].as_array().unwrap().len()
    };
    assert_eq!(snapshot.services.len(), count(recorded::SERVICES));
    assert_eq!(snapshot.slices.len(), count(recorded::ENDPOINT_SLICES));
    assert_eq!(snapshot.node.unwrap().object.spec.pod_cidrs, ["10.244.1.0/24"]);
    assert_eq!(snapshot.unreadable, []);
}

#[test]
fn only_when_nothing_can_be_read_is_that_the_end() {
    let dir = Folder::new("manifests-nothing");
    assert_eq!(open(&dir.0).unwrap(), Vec::<String>::new(), "an empty directory is a cluster without Services");
    let missing = dir.path("missing.yaml");
    let problem =
        format!("{}: cannot be read (No such file or directory (os error 2)); see --manifests", missing.display());
    assert_eq!(open(&missing).unwrap_err(), [problem]);
    write(&dir, "bad.yaml", "a: [");
    let problems = open(&dir.0).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with(&format!("{}: document 1: not YAML or JSON: ", dir.path("bad.yaml").display())));
    fs::write(dir.path("bad.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    assert!(open(&dir.0).unwrap_err()[0].contains("cannot be read (stream did not contain valid UTF-8)"));
    write(&dir, "good.yaml", &service("web", 80));
    let lines = open(&dir.0).unwrap();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("! ") && lines[1] == "+web 80", "{lines:?}");
}

/// The rest of the file is read.
#[test]
fn errors_are_named_and_stop_nothing() {
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
            "Service y/x: spec.ports[0].port: invalid type: string \"http\", expected a whole number",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service, metadata: {name: x}, spec: 5}]",
            "Service x: items[0].spec: invalid type: integer `5`",
        ),
        ("apiVersion: v1\nkind: List\nitems: {}", "items: not a list"),
    ] {
        let dir =
            Folder::with("f.yaml", &format!("{}---\n{document}\n---\n{}", service("web", 1), service("other", 2)));
        let file = dir.path("f.yaml");
        let lines = open(&file).unwrap();
        assert_eq!(lines[1..], ["+other 2", "+web 1"], "{document}");
        assert!(lines[0].starts_with(&format!("! {}: document 2: {expected}", file.display())), "{lines:?}");
    }
    // Lines are those of the file.
    let dir = Folder::with("f.yaml", &format!("{}---\n{}---\nkey: [1,\n", service("web", 1), service("other", 2)));
    let problem = &open(&dir.0).unwrap()[0];
    assert!(problem.contains("document 3"), "{problem}");
    assert!(problem.contains("line 11") || problem.contains("line 12"), "{problem}");
}

#[test]
fn small_texts_that_become_large_are_refused() {
    let mut aliases = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let of = vec![format!("*a{}", level - 1); 9].join(",");
        aliases.extend(["a", &level.to_string(), ": &a", &level.to_string(), " [", &of, "]\n"]);
    }
    let objects = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    for text in [aliases, "[".repeat(100_000), objects] {
        let problems = open(&Folder::with("f.yaml", &text).0).unwrap_err();
        assert!(problems[0].contains(": document 1: not YAML or JSON: "), "{problems:?}");
    }
}

#[tokio::test]
async fn changes_are_followed() {
    let dir = Folder::with("a.yaml", &format!("{}---\n{}", service("web", 80), service("other", 1)));
    let mut changes = follow(&dir.0);
    assert_eq!([next(&mut changes).await, next(&mut changes).await], ["+other 1", "+web 80"]);
    assert_eq!(next(&mut changes).await, "synced");
    write(&dir, "a.yaml", &format!("{}---\n{}", service("web", 81), service("other", 1)));
    assert_eq!(next(&mut changes).await, "+web 81");
    dir.put("a.yaml", &service("web", 81));
    assert_eq!(next(&mut changes).await, "-demo/other");
    dir.put("b.yaml", &node("n1"));
    assert_eq!([next(&mut changes).await, next(&mut changes).await], ["+node n1", "+weight 1 of n1"]);
    let weighted =
        |place: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: n1, {place}: {{proxier/weight: '3'}}}}\n");
    for place in ["labels", "annotations"] {
        dir.put("b.yaml", &weighted(place));
        assert_eq!([next(&mut changes).await, next(&mut changes).await], ["+node n1", "+weight 3 of n1"]);
    }
    dir.put("b.yaml", &node("n2"));
    let three = [next(&mut changes).await, next(&mut changes).await, next(&mut changes).await];
    assert_eq!(three, ["-node", "-weight of n1", "+weight 1 of n2"]);
    dir.put("b.yaml", &node("n2").replace("name: n2", "name: n2, annotations: {proxier/weight: '0'}"));
    assert_eq!(next(&mut changes).await, "+weight 0 of n2");
    fs::remove_file(dir.path("b.yaml")).unwrap();
    assert_eq!(next(&mut changes).await, "-weight of n2");
    fs::rename(dir.path("a.yaml"), dir.path("c.yaml")).unwrap();
    nothing(&mut changes).await;
    fs::remove_file(dir.path("c.yaml")).unwrap();
    assert_eq!(next(&mut changes).await, "lost Services demo/web");
}

/// A file that is removed deletes its objects. Where no Service or no EndpointSlice is left, the directory may be
/// unmounted: the objects are missing, all in one change, and the reconciler decides.
#[tokio::test]
async fn when_all_files_vanish_at_once_their_objects_are_missing_rather_than_deleted() {
    let slice =
        |name: &str| format!("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}}}\n");
    let files =
        [("a", service("a", 1)), ("b", service("b", 1)), ("c", service("c", 1)), ("s", slice("s")), ("t", slice("t"))];
    let cases: [(&[&str], &[&str]); 5] = [
        (&["c"], &["-demo/c"]),
        (&["s"], &["-slice default/s"]),
        (&["a", "b", "c"], &["lost Services demo/a demo/b demo/c"]),
        (&["s", "t"], &["lost slices default/s default/t"]),
        (&["a", "b", "c", "s"], &["lost Services demo/a demo/b demo/c", "lost slices default/s"]),
    ];
    for (removed, expected) in cases {
        let dir = Folder::new("manifests-vanish");
        for (name, text) in &files {
            write(&dir, &format!("{name}.yaml"), text);
        }
        let mut changes = follow(&dir.0);
        while next(&mut changes).await != "synced" {}
        for name in removed {
            fs::remove_file(dir.path(&format!("{name}.yaml"))).unwrap();
        }
        for expected in expected {
            assert_eq!(next(&mut changes).await, *expected, "{removed:?}");
        }
        nothing(&mut changes).await;
    }
}

#[tokio::test]
async fn one_file_is_followed_too() {
    let dir = Folder::with("a.yaml", &service("web", 80));
    write(&dir, "b.yaml", &service("other", 80));
    let mut changes = follow(&dir.path("a.yaml"));
    assert_eq!([next(&mut changes).await, next(&mut changes).await], ["+web 80", "synced"]);
    dir.put("b.yaml", &service("other", 81));
    dir.put("a.yaml", &service("web", 81));
    assert_eq!(next(&mut changes).await, "+web 81");
}

/// kubelet's way to update a mounted ConfigMap: `..data` is a link to a directory, and is replaced.
#[tokio::test]
async fn config_maps_are_followed() {
    let dir = Folder::new("manifests-configmap");
    let version = |number: u16| {
        let directory = dir.path(&format!("..version-{number}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("web.yaml"), service("web", number)).unwrap();
        std::os::unix::fs::symlink(&directory, dir.path("..data_tmp")).unwrap();
        fs::rename(dir.path("..data_tmp"), dir.path("..data")).unwrap();
    };
    version(1);
    std::os::unix::fs::symlink("..data/web.yaml", dir.path("web.yaml")).unwrap();
    let mut changes = follow(&dir.0);
    assert_eq!([next(&mut changes).await, next(&mut changes).await], ["+web 1", "synced"]);
    version(2);
    assert_eq!(next(&mut changes).await, "+web 2");
}

/// The first half of a file is YAML too, and lacks half of the Services.
#[tokio::test]
async fn a_file_counts_when_it_is_complete() {
    let dir = Folder::new("manifests-half");
    let whole = format!("{}---\n{}", service("a", 1), service("b", 1));
    write(&dir, "web.yaml", &whole);
    let mut changes = follow(&dir.0);
    for expected in ["+a 1", "+b 1", "synced"] {
        assert_eq!(next(&mut changes).await, expected);
    }
    let mut file = fs::File::create(dir.path("web.yaml")).unwrap();
    file.write_all(service("a", 2).as_bytes()).unwrap();
    dir.put("other.yaml", &service("c", 1));
    assert_eq!(next(&mut changes).await, "+c 1", "another file does not wait");
    file.write_all(format!("---\n{}", service("b", 1)).as_bytes()).unwrap();
    drop(file);
    assert_eq!(next(&mut changes).await, "+a 2");
    nothing(&mut changes).await;
}

#[tokio::test]
async fn what_cannot_be_read_keeps_what_it_said() {
    let dir = Folder::with("web.yaml", &format!("{}---\n{}", service("a", 1), service("b", 1)));
    let mut changes = follow(&dir.0);
    for expected in ["+a 1", "+b 1", "synced"] {
        assert_eq!(next(&mut changes).await, expected);
    }
    let path = dir.path("web.yaml").display().to_string();
    write(&dir, "web.yaml", "kind: Service\nmetadata: {name: a");
    let problem = next(&mut changes).await;
    assert!(problem.starts_with(&format!("! {path}: document 1: not YAML or JSON: ")), "{problem}");
    assert!(problem.ends_with("; its last readable content stays in use"), "{problem}");
    write(&dir, "web.yaml", "");
    assert_eq!(next(&mut changes).await, format!("! {path}: empty; its last readable content stays in use"));
    let bad = service("a", 2).replace("port: 2", "port: two");
    write(&dir, "web.yaml", &format!("{bad}---\n{}", service("b", 2)));
    let problem = next(&mut changes).await;
    assert!(problem.starts_with(&format!("! {path}: document 1: Service demo/a: spec.ports[0].port: ")), "{problem}");
    assert_eq!(next(&mut changes).await, "+b 2");
    write(&dir, "web.yaml", &format!("{}---\n{}", service("a", 3), service("b", 2)));
    assert_eq!(next(&mut changes).await, format!("readable file {path}"));
    assert_eq!(next(&mut changes).await, "+a 3");
    fs::rename(&dir.0, dir.0.with_extension("away")).unwrap();
    let problem = loop {
        // Polling finds the change, which is slow: no event reports that a directory goes away.
        if let Ok(event) = tokio::time::timeout(Duration::from_secs(15), changes.recv()).await {
            break line(&event.unwrap().change);
        }
    };
    assert!(problem.starts_with("! ") && problem.contains("cannot be read"), "{problem}");
    nothing(&mut changes).await;
    fs::rename(dir.0.with_extension("away"), &dir.0).unwrap();
}

/// A link into a volume that is unmounted for a while.
#[tokio::test]
async fn a_file_that_comes_back_unchanged_can_be_read_again() {
    let (volume, dir) = (Folder::with("web.yaml", &service("a", 1)), Folder::new("manifests-link"));
    std::os::unix::fs::symlink(volume.path("web.yaml"), dir.path("web.yaml")).unwrap();
    let mut changes = follow(&dir.0);
    assert_eq!([next(&mut changes).await, next(&mut changes).await], ["+a 1", "synced"]);
    let (path, away) = (dir.path("web.yaml").display().to_string(), volume.0.with_extension("away"));
    for _ in 0..2 {
        fs::rename(&volume.0, &away).unwrap();
        // Nothing in the folder changes then, but another file of it makes the source look at once.
        dir.put("README", "");
        let unread = format!("! {path}: cannot be read (No such file or directory (os error 2))");
        assert_eq!(next(&mut changes).await, unread);
        fs::rename(&away, &volume.0).unwrap();
        dir.put("README", "");
        assert_eq!(next(&mut changes).await, format!("readable file {path}"));
    }
    nothing(&mut changes).await;
}

/// Files written line by line, closed after each; removed before the new one comes; and replaced at once.
#[tokio::test]
async fn a_file_that_is_rewritten_counts_once_it_is_still() {
    let dir = Folder::new("manifests-still");
    let path = dir.path("config.conf");
    write(&dir, "config.conf", "a");
    let mut rewritten = RewriteWatch::new(&path);
    rewritten.next().await;
    let started = Instant::now();
    let seen = tokio::spawn(async move {
        rewritten.next().await;
        rewritten
    });
    write(&dir, "other.conf", "b");
    fs::remove_file(&path).unwrap();
    for line in 0..4 {
        tokio::time::sleep(RewriteWatch::STILL / 2).await;
        let mut file = fs::File::options().append(true).create(true).open(&path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
    assert!(!seen.is_finished(), "it is being written");
    let mut rewritten = tokio::time::timeout(RewriteWatch::STILL * 3, seen).await.expect("when it is still").unwrap();
    assert!(started.elapsed() >= RewriteWatch::STILL * 3, "{:?}", started.elapsed());
    let nothing = tokio::time::timeout(RewriteWatch::STILL * 2, rewritten.next()).await;
    assert!(nothing.is_err(), "each change counts once");
    dir.put("config.conf", "c");
    tokio::time::timeout(RewriteWatch::STILL * 3, rewritten.next()).await.expect("a file that was replaced");
}
