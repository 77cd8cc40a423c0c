//! Watches: told by the disk itself, so that nothing is missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use capbox_core::provider::FileEventKind;
use tokio::sync::Notify;

use super::tree::Name;

/// How many changes wait for a slow reader before they are dropped, which the reader is told.
const QUEUE: usize = 4096;

/// Everybody who watches a disk.
#[derive(Debug, Default)]
pub(super) struct Watchers(Vec<Weak<Shared>>);

impl Watchers {
    pub(super) fn add(&mut self, folder: Vec<Name>, recursive: bool) -> Watch {
        let shared = Arc::new(Shared { folder, recursive, queue: Mutex::default(), changed: Notify::new() });
        self.0.retain(|watcher| watcher.strong_count() > 0);
        self.0.push(Arc::downgrade(&shared));
        Watch(shared)
    }

    /// Tell those whom it concerns that `path` changed.
    pub(super) fn tell(&self, kind: FileEventKind, path: &[Name]) {
        for watcher in self.0.iter().filter_map(Weak::upgrade) {
            watcher.tell(kind, path);
        }
    }

    pub(super) fn close(&mut self) {
        for watcher in self.0.drain(..).filter_map(|watcher| watcher.upgrade()) {
            watcher.end(End::SandboxGone);
        }
    }
}

/// One watch. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Shared>);

/// What a watch tells.
#[derive(Debug)]
pub(crate) enum Seen {
    /// Something below the folder changed: how, and its path from there.
    Change(FileEventKind, Vec<Name>),
    /// The folder is gone.
    FolderGone,
    /// The sandbox is gone.
    SandboxGone,
}

impl Watch {
    /// The next change. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Seen {
        loop {
            let changed = self.0.changed.notified();
            {
                let mut queue = self.0.lock();
                if let Some((kind, path)) = queue.changes.pop_front() {
                    return Seen::Change(kind, path);
                }
                match queue.end {
                    Some(End::FolderGone) => return Seen::FolderGone,
                    Some(End::SandboxGone) => return Seen::SandboxGone,
                    None => {}
                }
            }
            changed.await;
        }
    }
}

#[derive(Debug)]
struct Shared {
    folder: Vec<Name>,
    recursive: bool,
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    changes: VecDeque<(FileEventKind, Vec<Name>)>,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    FolderGone,
    SandboxGone,
}

impl Shared {
    fn tell(&self, kind: FileEventKind, path: &[Name]) {
        if kind == FileEventKind::Removed && self.folder.starts_with(path) {
            return self.end(End::FolderGone);
        }
        let Some(below) = path.strip_prefix(self.folder.as_slice()) else { return };
        if below.is_empty() || (below.len() > 1 && !self.recursive) {
            return;
        }
        let mut queue = self.lock();
        if queue.end.is_some() {
            return;
        }
        if queue.changes.len() == QUEUE {
            queue.changes.clear();
            queue.changes.push_back((FileEventKind::Overflow, Vec::new()));
        }
        queue.changes.push_back((kind, below.to_vec()));
        drop(queue);
        self.changed.notify_one();
    }

    fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
