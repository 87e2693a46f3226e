//! Files as a source: Services, EndpointSlices and Nodes in YAML or JSON, followed while they change.
//!
//! A file counts when it is complete: closed after writing, or moved into place. What cannot be read keeps what it said
//! before: a file that is no YAML or is empty, as a whole; an object with a field of another type, by itself. To take
//! objects away, remove them from their file, or the file.

mod read;

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proxier_core::snapshot::ObjectKind;

use self::read::Id;
use super::change::{Change, unannounced};
use super::files::{FileWatch, Fingerprint};
use super::message::{Changes, Closed};
use super::problem::Problem;
use super::progress::Counted;

/// Files and directories that hold manifests.
#[derive(Debug)]
pub struct Manifests {
    paths: Vec<PathBuf>,
    node_name: String,
    files: BTreeMap<PathBuf, File>,
    /// What was reported, each with a digest of what it said.
    reported: BTreeMap<Id, u64>,
    /// Problems of the last look, so that each is told once.
    told: BTreeSet<Problem>,
    counted: Counted,
}

#[derive(Debug, Default)]
struct File {
    /// Of the content that was read last.
    read: Option<Fingerprint>,
    /// Of a content that was seen but may not be complete. The second sight counts.
    seen: Option<Fingerprint>,
    missing: bool,
    objects: BTreeMap<Id, Change>,
    problems: Vec<Problem>,
}

/// What one look at the files brings.
#[derive(Debug, Default)]
pub struct Look {
    /// In this order: what cannot be read, what is gone, what is new or changed.
    pub changes: Vec<Change>,
    /// Whether something may be incomplete, so that it is worth to look again soon.
    pub again_soon: bool,
}

/// Larger files are taken for something else.
const FILE_BYTES: u64 = 256 << 20;
/// Until something that looked incomplete is looked at again.
const SOON: Duration = Duration::from_millis(200);

impl Manifests {
    /// Reads files, and the files of directories (those that end in `.yaml`, `.yml` or `.json`, without those below), as
    /// seen from the node of this name: of Nodes, only that one is reported.
    ///
    /// Of two objects of one kind and name, the one in the first file counts, in the order given and then by name.
    ///
    /// # Errors
    ///
    /// Nothing at all could be read. When something could, the rest is among the changes, as
    /// [`Change::Unreadable`].
    pub fn open(paths: Vec<PathBuf>, node_name: &str) -> Result<(Self, Vec<Change>), Vec<Problem>> {
        Self::open_counting(paths, node_name, &Counted::default())
    }

    /// As [`open`](Self::open), and counts the objects while it reads.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open).
    pub fn open_counting(
        paths: Vec<PathBuf>,
        node_name: &str,
        counted: &Counted,
    ) -> Result<(Self, Vec<Change>), Vec<Problem>> {
        let mut manifests = Manifests {
            paths,
            node_name: node_name.to_owned(),
            files: BTreeMap::new(),
            reported: BTreeMap::new(),
            told: BTreeSet::new(),
            counted: counted.clone(),
        };
        let look = manifests.look(&[]);
        let nothing = manifests.files.values().all(|file| file.objects.is_empty());
        if nothing && !manifests.told.is_empty() {
            return Err(manifests.told.into_iter().collect());
        }
        Ok((manifests, look.changes))
    }

    /// Reports what [`open`](Self::open) has brought, that this is all, and from then on every change.
    ///
    /// # Errors
    ///
    /// Nobody takes the changes any more.
    pub async fn follow(mut self, first: Vec<Change>, changes: &Changes) -> Result<(), Closed> {
        // From before the first look: `open` was called before, so there is one more look to come at once.
        let mut watch = FileWatch::new(&self.paths);
        let mut pending = first;
        pending.push(Change::Synced);
        let mut wait = Duration::ZERO;
        loop {
            for change in pending {
                changes.send(change).await?;
            }
            let completed = watch.next(wait).await;
            // Reading a large cluster's files takes long enough to be in others' way.
            let (manifests, look) = tokio::task::spawn_blocking(move || {
                let look = self.look(&completed);
                (self, look)
            })
            .await
            .map_err(|_panicked| Closed)?;
            self = manifests;
            pending = look.changes;
            wait = if look.again_soon { SOON } else { FileWatch::POLL };
        }
    }

    /// Looks at all files. `completed` are those that are known to be complete; others count when they look the same
    /// twice.
    pub fn look(&mut self, completed: &[PathBuf]) -> Look {
        let mut problems = BTreeSet::new();
        let mut again_soon = false;
        let mut unlisted = Vec::new();
        let mut present = BTreeSet::new();
        let completed: BTreeSet<&PathBuf> = completed.iter().collect();
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
            again_soon |= file.look(path, completed.contains(path), &self.counted);
        }
        self.files.retain(|path, file| {
            if present.contains(path)
                || unlisted.iter().any(|directory| path.starts_with(directory) && path != directory)
            {
                return true;
            }
            // Editors take a file away before they put the new one in its place.
            again_soon |= !file.missing;
            !std::mem::replace(&mut file.missing, true)
        });
        problems.extend(self.files.values().flat_map(|file| file.problems.iter().cloned()));
        let changes = self.report(problems);
        Look { changes, again_soon }
    }

    /// What differs from what was reported.
    fn report(&mut self, mut problems: BTreeSet<Problem>) -> Vec<Change> {
        let mut wanted: BTreeMap<&Id, (&Path, &Change)> = BTreeMap::new();
        for path in self.order() {
            for (id, change) in self.files.get(path).into_iter().flat_map(|file| &file.objects) {
                let first = wanted.entry(id).or_insert((path, change));
                // A file that was renamed is there twice for a moment.
                let renamed = self.files.get(first.0).is_some_and(|file| file.missing);
                if first.0 != path && !renamed {
                    let reason = format!("is in {} too, which counts", first.0.display());
                    problems.insert(Problem::new(path.display().to_string(), reason).of(format!("{} {}", id.0, id.1)));
                }
            }
        }
        wanted.retain(|(kind, key), _| *kind != ObjectKind::Node || *key.name == *self.node_name);
        let gone = self.reported.keys().filter(|id| !wanted.contains_key(id));
        let mut changes: Vec<Change> = problems.difference(&self.told).cloned().map(Change::Unreadable).collect();
        // That nothing at all is left may be a directory that is not mounted: nobody has taken all of that away.
        let all = !wanted.keys().any(|(kind, _)| *kind == ObjectKind::Service);
        let gone = gone.map(gone_change);
        if all {
            changes.extend(unannounced(gone));
        } else {
            changes.extend(gone);
        }
        let mut reported = BTreeMap::new();
        for (id, (_, change)) in wanted {
            let digest = digest(change);
            if self.reported.get(id) != Some(&digest) {
                changes.push(change.clone());
            }
            reported.insert(id.clone(), digest);
        }
        self.reported = reported;
        self.told = problems;
        changes
    }

    /// Files in the order of the paths given, then by name.
    fn order(&self) -> Vec<&Path> {
        let rank = |path: &Path| self.paths.iter().position(|given| path.starts_with(given));
        let mut order: Vec<&Path> = self.files.keys().map(PathBuf::as_path).collect();
        order.sort_by_key(|path| rank(path));
        order
    }
}

impl File {
    /// Reads the file if it says something else than before; whether it should be looked at again soon.
    fn look(&mut self, path: &Path, complete: bool, counted: &Counted) -> bool {
        self.missing = false;
        let origin = path.display().to_string();
        let fingerprint = match Fingerprint::of(path) {
            Ok(fingerprint) => fingerprint,
            Err(error) => {
                self.problems = vec![Problem::new(origin, format!("cannot be read ({error})"))];
                return false;
            }
        };
        if self.read == Some(fingerprint) {
            return false;
        }
        // At the start there is nothing that an incomplete file could take away.
        let first = self.read.is_none();
        if !first && !complete && self.seen != Some(fingerprint) {
            self.seen = Some(fingerprint);
            return true;
        }
        if fingerprint.size() > FILE_BYTES {
            self.problems = vec![Problem::new(origin, format!("larger than {FILE_BYTES} bytes"))];
            return false;
        }
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                self.problems = vec![Problem::new(origin, format!("cannot be read ({error})"))];
                return false;
            }
        };
        if Fingerprint::of(path).ok() != Some(fingerprint) {
            return true;
        }
        self.read = Some(fingerprint);
        self.take(&text, &origin, counted);
        false
    }

    fn take(&mut self, text: &str, origin: &str, counted: &Counted) {
        let contents = read::read(text, origin, counted);
        let emptied = text.trim().is_empty() && !self.objects.is_empty();
        self.problems = contents.problems;
        if emptied {
            self.problems.push(Problem::new(origin, "empty"));
        }
        if (contents.broken || emptied) && !self.objects.is_empty() {
            for problem in &mut self.problems {
                problem.reason.push_str("; what the file said before stays");
            }
            return;
        }
        let mut objects = BTreeMap::new();
        for (id, change) in contents.objects {
            match objects.entry(id) {
                Entry::Vacant(place) => drop(place.insert(change)),
                Entry::Occupied(first) => {
                    let (kind, key) = first.key();
                    let reason = "is there twice; the first counts";
                    self.problems.push(Problem::new(origin, reason).of(format!("{kind} {key}")));
                }
            }
        }
        for id in contents.unreadable {
            if let Some(before) = self.objects.remove(&id) {
                objects.entry(id).or_insert(before);
            }
        }
        self.objects = objects;
    }
}

fn files_of(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
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

fn gone_change((kind, key): &Id) -> Change {
    match kind {
        ObjectKind::Service => Change::DeleteService(key.clone()),
        ObjectKind::EndpointSlice => Change::DeleteSlice(key.clone()),
        _ => Change::NodeGone,
    }
}

fn digest(change: &Change) -> u64 {
    let mut hasher = DefaultHasher::new();
    let text = match change {
        Change::UpsertService(object) => serde_json::to_string(object),
        Change::UpsertSlice(object) => serde_json::to_string(object),
        Change::Node(node) => {
            node.leaving.hash(&mut hasher);
            serde_json::to_string(&node.object)
        }
        _ => Ok(String::new()),
    };
    text.unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
