//! Watches files: whether one is complete, and whether its content changed.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::net::unix::pipe;

/// Distinguishes contents of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    file: (u64, u64),
    pub size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    /// The fingerprint of the file at this path. Symbolic links are followed.
    /// Errors: the file does not exist, or it is a directory, a pipe or a device.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Fingerprint {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Files as they were when they were recorded, before they were read.
#[derive(Debug, Default)]
pub(crate) struct NotedFiles(Vec<(PathBuf, Option<Fingerprint>)>);

impl NotedFiles {
    /// Records a file, even if it does not exist.
    pub(crate) fn note(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        self.0.push((path.to_owned(), Fingerprint::of(path).ok()));
    }

    /// Whether none of the recorded files has changed.
    pub(crate) fn are_as_noted(&self) -> bool {
        self.0.iter().all(|(path, noted)| Fingerprint::of(path).ok() == *noted)
    }
}

/// Inotify, with a second descriptor that looks like a pipe's end, so that tokio can wait for it. tokio's own type for
/// this, `AsyncFd`, needs unsafe code.
#[derive(Debug)]
struct Events {
    inotify: Inotify,
    readiness: pipe::Receiver,
}

impl Events {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let second = fs::File::from(inotify.as_fd().try_clone_to_owned()?);
        Ok(Events { readiness: pipe::Receiver::from_file_unchecked(second)?, inotify })
    }

    async fn next(&mut self) -> io::Result<Vec<InotifyEvent>> {
        self.readiness.readable().await?;
        let mut events = Vec::new();
        loop {
            match self.inotify.read_events() {
                Ok(more) => events.extend(more),
                Err(nix::errno::Errno::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
            // The buffer is too small for an event, so this reads none. The kernel answers EINVAL if there is one, and
            // EAGAIN if there is none (`inotify_read`, fs/notify/inotify/inotify_user.c); after EAGAIN tokio waits
            // again.
            if self.readiness.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return Ok(events);
            }
        }
    }
}

/// Reports changes of files: by inotify on their directories, so that files replaced by renaming (editors, ConfigMaps)
/// are not missed; and by polling, for file systems without inotify events.
#[derive(Debug)]
pub struct FileWatch {
    events: Option<Events>,
    directories: Vec<PathBuf>,
    watches: BTreeMap<PathBuf, WatchDescriptor>,
}

impl FileWatch {
    /// Interval of checks without events.
    pub const POLL: Duration = Duration::from_secs(10);

    /// Watches directories, and files through their directories. Must be called within a tokio runtime.
    pub fn new(paths: &[PathBuf]) -> Self {
        let events = Events::new();
        if let Err(error) = &events {
            tracing::warn!("no inotify ({error}); files are checked every {} s", Self::POLL.as_secs());
        }
        let mut directories: Vec<PathBuf> = paths.iter().map(|path| directory_of(path)).collect();
        directories.sort_unstable();
        directories.dedup();
        let mut watch = FileWatch { events: events.ok(), directories, watches: BTreeMap::new() };
        watch.renew();
        watch
    }

    /// Adds missing watches: at first, and after a directory was replaced.
    fn renew(&mut self) {
        let Some(events) = &self.events else { return };
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO;
        for directory in &self.directories {
            // The same directory gets the same descriptor again; a new one of that name gets another.
            match events.inotify.add_watch(directory, flags) {
                Ok(descriptor) => drop(self.watches.insert(directory.clone(), descriptor)),
                Err(error) => {
                    tracing::debug!("{}: not watched ({error})", directory.display());
                    self.watches.remove(directory);
                }
            }
        }
    }

    /// Waits until something happens, but at most this long. Returns the files that were completed: closed after
    /// writing, or moved into place.
    pub async fn next(&mut self, longest: Duration) -> Vec<PathBuf> {
        let Some(events) = &mut self.events else {
            tokio::time::sleep(longest).await;
            return Vec::new();
        };
        let events = match tokio::time::timeout(longest, events.next()).await {
            Err(_elapsed) => Vec::new(),
            Ok(Ok(events)) => events,
            Ok(Err(error)) => {
                tracing::warn!("inotify does not work ({error}); files are checked every {} s", Self::POLL.as_secs());
                self.events = None;
                Vec::new()
            }
        };
        if events.is_empty() {
            self.renew();
        }
        let complete = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
        let mut completed = Vec::new();
        for event in events {
            let Some(name) = event.name.filter(|_| event.mask.intersects(complete)) else { continue };
            let directory = self.watches.iter().find(|(_, descriptor)| **descriptor == event.wd);
            completed.extend(directory.map(|(directory, _)| directory.join(name)));
        }
        completed
    }
}

fn directory_of(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.to_owned();
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Waits for changes of a file, and then until it has been unchanged for a moment: a program may rewrite it slowly, or
/// remove it before the new one appears.
#[derive(Debug)]
pub struct RewriteWatch {
    path: PathBuf,
    watch: FileWatch,
    seen: Option<Fingerprint>,
}

impl RewriteWatch {
    /// How long a file that is being rewritten must be unchanged.
    pub const STILL: Duration = Duration::from_secs(3);

    pub fn new(path: &Path) -> Self {
        RewriteWatch { path: path.to_owned(), watch: FileWatch::new(&[path.to_owned()]), seen: None }
    }

    /// Returns when the file appears, is replaced, has other times, or is removed; and is unchanged then.
    pub async fn next(&mut self) {
        while self.is_as_seen() {
            self.watch.next(FileWatch::POLL).await;
        }
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < Self::STILL {
            self.watch.next(Self::STILL.saturating_sub(quiet_since.elapsed())).await;
            if !self.is_as_seen() {
                quiet_since = Instant::now();
            }
        }
    }

    /// Whether the file is unchanged since the last check.
    fn is_as_seen(&mut self) -> bool {
        let now = Fingerprint::of(&self.path).ok();
        std::mem::replace(&mut self.seen, now) == now
    }
}
