//! Watching by looking again and again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::walk::{Walk, below};
use crate::api::{Entry, EntryKind, FileEvent, FileEventKind, Files, Sandbox};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::{HasFilesList, HasFilesRead};
use crate::error::{ErrorKind, Result};
use crate::provider::{self as spi, Table};
use crate::spec::SandboxPath;

/// `files.watch` over `files.list`: every half second all that is watched is listed and compared.
///
/// With more than 10,000 entries it does not compare: each look gives an overflow.
///
/// # Loss
///
/// "what comes and goes within half a second is not seen; each look lists all folders; above 10,000 entries only
/// overflows"
pub enum Polling {}

impl<P: Table + HasFilesRead + HasFilesList> Emulate<cap::FilesWatch, P> for Polling {
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn spi::FilesWatch> {
        Arc::new(Poller(sandbox))
    }
}

const INTERVAL: Duration = Duration::from_millis(500);
const MOST_ENTRIES: usize = 10_000;

struct Poller<P>(Sandbox<P>);

#[async_trait]
impl<P: Table + HasFilesRead + HasFilesList> spi::FilesWatch for Poller<P> {
    async fn watch(&self, path: &SandboxPath, recursive: bool) -> Result<Box<dyn spi::FileEvents>> {
        let mut watch = Watch {
            files: self.0.files(),
            root: path.clone(),
            recursive,
            seen: None,
            events: VecDeque::new(),
            over: false,
        };
        watch.seen = watch.look().await?;
        if watch.seen.is_none() {
            watch.overflow();
        }
        Ok(Box::new(watch))
    }
}

/// What tells one state of an entry from another.
#[derive(Clone, PartialEq, Eq)]
struct State {
    kind: EntryKind,
    size: u64,
    mode: u32,
    modified: Option<SystemTime>,
    target: Option<SandboxPath>,
}

impl From<Entry> for State {
    fn from(entry: Entry) -> Self {
        let Entry { name: _, kind, size, mode, modified, target } = entry;
        // A folder's own time changes with what is in it, which has events of its own.
        let modified = modified.filter(|_| kind != EntryKind::Directory);
        Self { kind, size, mode, modified, target }
    }
}

/// All that is watched, by its path below the root: a folder comes before what is in it.
type Seen = BTreeMap<SandboxPath, State>;

struct Watch<P> {
    files: Files<P>,
    root: SandboxPath,
    recursive: bool,
    /// As of the last look; none where that was too much.
    seen: Option<Seen>,
    events: VecDeque<FileEvent>,
    over: bool,
}

impl<P: HasFilesList> Watch<P> {
    /// All that is there now; none where that is too much.
    async fn look(&self) -> Result<Option<Seen>> {
        let mut now = Seen::new();
        let mut walk = Walk::new(&self.files, &self.root);
        while let Some((folder, listed)) = walk.next(|_| self.recursive).await {
            let entries = match listed {
                Ok(entries) => entries,
                Err(error) if folder.as_bytes().is_empty() => return Err(error),
                // It has gone since its parent was listed.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    continue;
                }
                // It cannot be looked into: what was seen there before is not gone for that.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    now.extend(self.seen_below(&folder));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if now.len() + entries.len() > MOST_ENTRIES {
                return Ok(None);
            }
            now.extend(entries.into_iter().map(|entry| (folder.join(&entry.name), entry.into())));
        }
        Ok(Some(now))
    }

    fn seen_below(&self, folder: &SandboxPath) -> impl Iterator<Item = (SandboxPath, State)> {
        let inside = folder.join("").as_bytes().to_vec();
        let seen = self.seen.iter().flatten();
        seen.filter(move |(path, _)| path.as_bytes().starts_with(&inside))
            .map(|(path, state)| (path.clone(), state.clone()))
    }

    /// Look again, and note what is different.
    async fn poll(&mut self) -> Result<()> {
        let now = match self.look().await {
            Ok(now) => now,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                self.over = true;
                Some(Seen::new())
            }
            Err(error) => return Err(error),
        };
        match (&self.seen, &now) {
            (Some(before), Some(now)) => {
                let changes = changes(before, now);
                self.events.extend(changes.map(|(kind, path)| FileEvent::new(kind, below(&self.root, path))));
            }
            _ => self.overflow(),
        }
        self.seen = now;
        Ok(())
    }

    fn overflow(&mut self) {
        self.events.push_back(FileEvent::new(FileEventKind::Overflow, &self.root));
    }
}

#[async_trait]
impl<P: Table + HasFilesList> spi::FileEvents for Watch<P> {
    async fn next(&mut self) -> Result<Option<FileEvent>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.over {
                return Ok(None);
            }
            tokio::time::sleep(INTERVAL).await;
            self.poll().await?;
        }
    }
}

/// What is different: first what is gone, the innermost first; then what is new or changed, the outermost first.
fn changes<'a>(before: &'a Seen, now: &'a Seen) -> impl Iterator<Item = (FileEventKind, &'a SandboxPath)> {
    let same_kind = |a: &State, b: Option<&State>| b.is_some_and(|b| a.kind == b.kind);
    let removed = before.iter().rev().filter(move |(path, old)| !same_kind(old, now.get(*path)));
    let changed = now.iter().filter_map(move |(path, new)| match before.get(path) {
        old if !same_kind(new, old) => Some((FileEventKind::Created, path)),
        old if old != Some(new) => Some((FileEventKind::Modified, path)),
        _ => None,
    });
    removed.map(|(path, _)| (FileEventKind::Removed, path)).chain(changed)
}

#[cfg(test)]
mod tests {
    use EntryKind::{Directory, File};

    use super::*;

    #[test]
    fn differences() {
        let state = |kind, size| State::from(Entry { size, ..Entry::new("", kind) });
        let seen = |entries: &[(&str, EntryKind, u64)]| -> Seen {
            entries.iter().map(|(path, kind, size)| (SandboxPath::from(*path), state(*kind, *size))).collect()
        };
        let before = seen(&[("a", Directory, 0), ("a/b", File, 1), ("c", File, 1), ("d", File, 1)]);
        let now = seen(&[("c", File, 2), ("d", Directory, 0), ("d/e", File, 0)]);
        let changes: Vec<_> = changes(&before, &now).map(|(kind, path)| format!("{kind:?} {path}")).collect();
        assert_eq!(
            changes,
            ["Removed d", "Removed a/b", "Removed a", "Modified c", "Created d", "Created d/e"]
        );
    }
}
