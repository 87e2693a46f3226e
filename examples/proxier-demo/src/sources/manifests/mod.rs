//! Files as a source: reads Services, EndpointSlices and Nodes in YAML or JSON, and follows changes.
//!
//! A file is read when it is complete: closed after writing, or moved into place. If it cannot be read, its last
//! readable content is kept. That is the whole file if it is not YAML or empty, and one object if a field has the wrong
//! type. To delete objects, remove them from their file, or remove the file.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proxier_core::snapshot::{ObjectKey, ObjectKind};

use self::read::{Contents, Id};
use crate::gather::Gather as _;
use crate::message::change::{Change, Unreadable, unannounced};
use crate::message::{Changes, Closed};
use crate::problem::Problem;
use crate::sources::files::{FileWatch, Fingerprint};

#[derive(Debug, Default)]
pub struct Manifests {
    paths: Vec<PathBuf>,
    node_name: String,
    files: BTreeMap<PathBuf, File>,
    /// Reported objects, each with a digest of its content.
    reported: BTreeMap<Id, u64>,
    /// Problems of the last check, so that each is reported once.
    told: BTreeSet<Problem>,
    /// Files and directories that may contain more than could be read, as of the last report.
    unread: BTreeSet<String>,
    unlisted: Vec<PathBuf>,
    /// Last log message about all files.
    summary: String,
}

#[derive(Debug, Default)]
struct File {
    /// Fingerprint of the content that was last read.
    read: Option<Fingerprint>,
    /// Fingerprint of possibly incomplete content. It is read when seen twice.
    seen: Option<Fingerprint>,
    missing: bool,
    is_stdin_read: bool,
    /// Sorted by kind and name. A vector, since a map would waste half of its memory.
    objects: Vec<(Id, Change)>,
    problems: Vec<Problem>,
    /// Whether it may contain objects that could not be read.
    is_unread: bool,
    /// Number of objects of each kind that is ignored.
    ignored: BTreeMap<String, usize>,
}

/// Objects with the file that each is from.
type WantedObjects<'a> = BTreeMap<&'a Id, (&'a Path, &'a File, &'a Change)>;

/// Stands for standard input.
const STDIN: &str = "-";
/// Larger files are not manifests.
const FILE_BYTES: u64 = 256 << 20;
/// Pause before checking something incomplete again.
const SOON: Duration = Duration::from_millis(200);

impl Manifests {
    /// Reads files, and the files of directories (names that end in `.yaml`, `.yml` or `.json`, not in subdirectories).
    /// It reads them as seen from the node of this name: of other Nodes only addresses are reported. `-` is standard
    /// input, which is read once to its end.
    ///
    /// If two files have objects of one kind and name, the first counts, in the given order and then by name.
    /// Errors: nothing could be read at all. If something could, the problems are among the changes, as
    /// [`Change::Unreadable`].
    pub fn open(paths: Vec<PathBuf>, node_name: &str) -> Result<(Self, Vec<Change>), Vec<Problem>> {
        let (mut manifests, problems) = Self::read_all(paths, node_name)?;
        let changes = manifests.report(problems);
        Ok((manifests, changes))
    }

    /// Changes of [`open`](Self::open), for callers that do not follow the files: each object once.
    pub fn once(paths: Vec<PathBuf>, node_name: &str) -> Result<Vec<Change>, Vec<Problem>> {
        let (mut manifests, mut problems) = Self::read_all(paths, node_name)?;
        problems.extend(manifests.wanted().1);
        let unread = manifests.unread();
        let order: Vec<PathBuf> = manifests.order().into_iter().map(|(path, _)| path.to_owned()).collect();
        let is_one = order.len() == 1;
        let (mut changes, mut seen) = (Vec::new(), BTreeSet::new());
        for path in order {
            for (id, change) in manifests.files.remove(&path).unwrap_or_default().objects {
                if is_one || seen.insert(id) {
                    changes.extend(manifests.seen_from_here(change));
                }
            }
        }
        changes.extend(problems.into_iter().map(|problem| unreadable(problem, &unread)));
        Ok(changes)
    }

    fn read_all(paths: Vec<PathBuf>, node_name: &str) -> Result<(Self, BTreeSet<Problem>), Vec<Problem>> {
        let mut manifests = Manifests { paths, node_name: node_name.to_owned(), ..Manifests::default() };
        let (problems, _) = manifests.read(&[]);
        if manifests.has_nothing() && !problems.is_empty() {
            return Err(problems.into_iter().collect());
        }
        manifests.summarize();
        Ok((manifests, problems))
    }

    /// Reports the changes of [`open`](Self::open), then that the initial list is complete, and then every change.
    /// Errors: the receiver of changes was dropped.
    pub async fn follow(mut self, first: Vec<Change>, changes: &Changes) -> Result<(), Closed> {
        // `open` read the files before this watch began, so check once more at once.
        let files: Vec<PathBuf> = self.paths.iter().filter(|path| *path != Path::new(STDIN)).cloned().collect();
        let mut watch = FileWatch::new(&files);
        let mut pending = first;
        pending.push(Change::Synced);
        let mut wait = Duration::ZERO;
        loop {
            for change in pending {
                changes.send(change).await?;
            }
            let completed = watch.next(wait).await;
            // A separate thread reads: a large cluster's files would block other tasks.
            let (manifests, (changes, again_soon)) = tokio::task::spawn_blocking(move || {
                let checked = self.poll(&completed);
                (self, checked)
            })
            .await
            .map_err(|_panicked| Closed)?;
            self = manifests;
            pending = changes;
            wait = if again_soon { SOON } else { FileWatch::POLL };
        }
    }

    /// Checks all files. `completed` are known to be complete; others are read when two checks see the same. Returns the
    /// changes in this order: unreadable, missing, new or changed; and whether something may be incomplete, so that
    /// another check is due soon.
    fn poll(&mut self, completed: &[PathBuf]) -> (Vec<Change>, bool) {
        let (problems, again_soon) = self.read(completed);
        // If nothing can be read, the problems say everything.
        if problems.is_empty() || !self.has_nothing() {
            self.summarize();
        }
        (self.report(problems), again_soon)
    }

    /// Reads the files that have changed. Returns the problems, and whether another check is due soon.
    fn read(&mut self, completed: &[PathBuf]) -> (BTreeSet<Problem>, bool) {
        let mut problems = BTreeSet::new();
        let mut again_soon = false;
        let mut unlisted = Vec::new();
        let mut present = BTreeSet::new();
        let completed: BTreeSet<&PathBuf> = completed.iter().gather();
        for path in &self.paths {
            match files_of(path) {
                Ok(files) => present.extend(files),
                Err(error) => {
                    let path_text = path.display().to_string();
                    problems.insert(Problem::new(path_text, format!("cannot be read ({error}); see --manifests")));
                    unlisted.push(path.clone());
                }
            }
        }
        for path in &present {
            let file = self.files.entry(path.clone()).or_default();
            again_soon |= file.poll(path, completed.contains(path));
        }
        self.files.retain(|path, file| {
            if present.contains(path)
                || unlisted.iter().any(|directory| path.starts_with(directory) && path != directory)
            {
                return true;
            }
            // Editors remove a file before they replace it.
            again_soon |= !file.missing;
            !std::mem::replace(&mut file.missing, true)
        });
        problems.extend(self.files.values().flat_map(|file| file.problems.iter().cloned()));
        self.unlisted = unlisted;
        (problems, again_soon)
    }

    /// Files and directories that may contain more than could be read.
    fn unread(&self) -> BTreeSet<String> {
        let files = self.files.iter().filter(|(_, file)| file.is_unread).map(|(path, _)| path);
        files.chain(&self.unlisted).map(|path| path.display().to_string()).collect()
    }

    fn has_nothing(&self) -> bool {
        self.files.values().all(|file| file.objects.is_empty())
    }

    /// Logs the number of objects that were read, if it has changed. It is a warning if there is nothing to serve, or
    /// if an object that looks relevant is of an ignored kind.
    fn summarize(&mut self) {
        let all = || self.files.values();
        let count = |kind| all().flat_map(|file| &file.objects).filter(|((of, _), _)| *of == kind).count();
        let (services, slices) = (count(ObjectKind::Service), count(ObjectKind::EndpointSlice));
        let mut ignored = BTreeMap::new();
        for (kind, count) in all().flat_map(|file| &file.ignored) {
            *ignored.entry(kind).or_insert(0) += count;
        }
        let files = all().count();
        let has_endpoints = ignored.keys().any(|kind| *kind == "Endpoints");
        let each: Vec<String> = ignored.iter().map(|(kind, count)| format!("{count} of kind {kind}")).collect();
        let ignored = if each.is_empty() { String::new() } else { format!("; ignored {}", each.join(", ")) };
        let advice = match (files, has_endpoints) {
            (0, _) => "; the files of a directory must end in .yaml, .yml or .json; its subdirectories are not read",
            (_, true) => "; endpoints are read from EndpointSlices only",
            _ => "",
        };
        let said = format!("read {services} Services, {slices} EndpointSlices in {files} files{ignored}{advice}");
        if said == self.summary {
            return;
        }
        if has_endpoints || services == 0 {
            tracing::warn!("{said}");
        } else {
            tracing::debug!("{said}");
        }
        self.summary = said;
    }

    /// The objects that count, and problems of those that an earlier file has too.
    fn wanted(&self) -> (WantedObjects<'_>, Vec<Problem>) {
        let (mut wanted, mut repeated) = (BTreeMap::new(), Vec::new());
        for (path, file) in self.order() {
            for (id, change) in &file.objects {
                let (first, of_first, _) = *wanted.entry(id).or_insert((path, file, change));
                // A renamed file briefly exists twice.
                if first != path && !of_first.missing {
                    let reason = format!("is in {} too, which counts", first.display());
                    let problem = Problem::new(path.display().to_string(), reason);
                    repeated.push(problem.about(format!("{} {}", id.0, id.1)));
                }
            }
        }
        (wanted, repeated)
    }

    /// A Node is one of the cluster's, and may also be this node.
    fn seen_from_here(&self, change: Change) -> impl Iterator<Item = Change> {
        let of_cluster = match &change {
            Change::Node(node) => Some(Change::cluster_node(node.object.clone())),
            _ => None,
        };
        let is_other = matches!(&change, Change::Node(node) if node.object.metadata.name != self.node_name);
        Some(change).filter(|_| !is_other).into_iter().chain(of_cluster)
    }

    /// Reports the differences from the objects that were reported before.
    fn report(&mut self, mut problems: BTreeSet<Problem>) -> Vec<Change> {
        let (wanted, repeated) = self.wanted();
        problems.extend(repeated);
        let gone = self.reported.keys().filter(|id| !wanted.contains_key(id));
        let unread = self.unread();
        let readable =
            self.unread.difference(&unread).map(|origin| Change::Readable(ObjectKind::File, file_key(origin)));
        let new = problems.difference(&self.told).cloned().map(|problem| unreadable(problem, &unread));
        let mut changes: Vec<Change> = new.chain(readable).collect();
        // If no Service or no EndpointSlice is left, a directory may not be mounted: do not report deletions.
        let is_emptied =
            |kind| self.reported.keys().any(|(of, _)| *of == kind) && !wanted.keys().any(|(of, _)| *of == kind);
        let gone = gone.flat_map(|id| gone_changes(id, &self.node_name));
        if is_emptied(ObjectKind::Service) || is_emptied(ObjectKind::EndpointSlice) {
            changes.extend(unannounced(gone));
        } else {
            changes.extend(gone);
        }
        let mut reported = BTreeMap::new();
        for (id, (_, _, change)) in wanted {
            let digest = digest(change);
            if self.reported.get(id) != Some(&digest) {
                changes.extend(self.seen_from_here(change.clone()));
            }
            reported.insert(id.clone(), digest);
        }
        self.reported = reported;
        (self.told, self.unread) = (problems, unread);
        changes
    }

    /// Files in the order of the given paths, then by name.
    fn order(&self) -> Vec<(&Path, &File)> {
        let rank = |path: &Path| self.paths.iter().position(|given| path.starts_with(given));
        let mut order: Vec<_> = self.files.iter().map(|(path, file)| (path.as_path(), file)).collect();
        order.sort_unstable_by_key(|(path, _)| (rank(path), *path));
        order
    }
}

impl File {
    /// Reads the file if its content changed; returns whether to check again soon.
    fn poll(&mut self, path: &Path, complete: bool) -> bool {
        self.missing = false;
        let is_stdin = path == Path::new(STDIN);
        let origin = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let read = if is_stdin { self.read_stdin(&origin) } else { self.read_changed(path, complete, &origin) };
        read.unwrap_or_else(|reason| {
            // Nothing of it can be read: its objects are kept. The content of before is read again if it comes back.
            self.read = None;
            (self.problems, self.is_unread) = (vec![Problem::new(origin, reason)], true);
            false
        })
    }

    fn read_changed(&mut self, path: &Path, complete: bool, origin: &str) -> Result<bool, String> {
        let fingerprint = Fingerprint::of(path).map_err(unread)?;
        if self.read == Some(fingerprint) {
            return Ok(false);
        }
        // At the start, an incomplete file cannot delete anything.
        let may_delete = self.read.is_some() || !self.objects.is_empty();
        if may_delete && !complete && self.seen != Some(fingerprint) {
            self.seen = Some(fingerprint);
            return Ok(true);
        }
        if fingerprint.size > FILE_BYTES {
            return Err(format!("larger than {FILE_BYTES} bytes"));
        }
        let contents = fs::File::open(path).and_then(|mut file| read::read(&mut file, origin)).map_err(unread)?;
        if Fingerprint::of(path).ok() != Some(fingerprint) {
            return Ok(true);
        }
        self.read = Some(fingerprint);
        self.apply_contents(contents, origin);
        Ok(false)
    }

    fn read_stdin(&mut self, origin: &str) -> Result<bool, String> {
        if !std::mem::replace(&mut self.is_stdin_read, true) {
            let mut text = Vec::new();
            io::stdin().lock().take(FILE_BYTES.saturating_add(1)).read_to_end(&mut text).map_err(unread)?;
            if text.len() as u64 > FILE_BYTES {
                return Err(format!("cannot be read (larger than {FILE_BYTES} bytes)"));
            }
            let contents = read::read(&mut io::Cursor::new(text), origin).map_err(unread)?;
            self.apply_contents(contents, origin);
        }
        Ok(false)
    }

    fn apply_contents(&mut self, contents: Contents, origin: &str) {
        let emptied = contents.blank && !self.objects.is_empty();
        self.is_unread = contents.broken || emptied || !contents.unreadable.is_empty();
        self.problems = contents.problems;
        if emptied {
            self.problems.push(Problem::new(origin, "empty"));
        }
        if (contents.broken || emptied) && !self.objects.is_empty() {
            for problem in &mut self.problems {
                problem.reason.push_str("; its last readable content stays in use");
            }
            return;
        }
        let mut objects = contents.objects;
        // Equal objects keep their order.
        objects.sort_by(|(one, _), (other, _)| one.cmp(other));
        objects.dedup_by(|(id, _), (first, _)| {
            let is_same = id == first;
            if is_same {
                let (kind, key) = id;
                let reason = "appears twice; the first counts";
                self.problems.push(Problem::new(origin, reason).about(format!("{kind} {key}")));
            }
            is_same
        });
        let unreadable: BTreeSet<Id> = contents.unreadable.into_iter().gather();
        let is_kept = |id: &Id| unreadable.contains(id) && objects.binary_search_by(|(of, _)| of.cmp(id)).is_err();
        let kept: Vec<_> = self.objects.drain(..).filter(|(id, _)| is_kept(id)).collect();
        objects.extend(kept);
        objects.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.objects = objects;
        self.ignored = contents.ignored;
    }
}

fn unread(error: impl std::fmt::Display) -> String {
    format!("cannot be read ({error})")
}

/// A problem; one of a file that may contain more than could be read is reported for that file.
fn unreadable(problem: Problem, unread: &BTreeSet<String>) -> Change {
    let object = unread.contains(&problem.origin).then(|| (ObjectKind::File, file_key(&problem.origin)));
    Change::Unreadable(Box::new(Unreadable { object, service: None, problem }))
}

fn file_key(origin: &str) -> ObjectKey {
    ObjectKey::new("", origin)
}

fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path == Path::new(STDIN) || !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = file.extension().and_then(|extension| extension.to_str());
        if !hidden && matches!(extension, Some("yaml" | "yml" | "json")) && !file.is_dir() {
            files.push(file);
        }
    }
    Ok(files)
}

fn gone_changes((kind, key): &Id, node_name: &str) -> impl Iterator<Item = Change> {
    let gone = match kind {
        ObjectKind::Service => Change::DeleteService(key.clone()),
        ObjectKind::EndpointSlice => Change::DeleteSlice(key.clone()),
        _ => Change::ClusterNodeGone(key.name().to_owned()),
    };
    let is_this = *kind == ObjectKind::Node && key.name() == node_name;
    is_this.then_some(Change::NodeGone).into_iter().chain([gone])
}

fn digest(change: &Change) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{change:?}").hash(&mut hasher);
    hasher.finish()
}
