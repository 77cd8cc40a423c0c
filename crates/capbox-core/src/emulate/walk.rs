//! Going through all folders below one.

use crate::api::{Entry, EntryKind, Files};
use crate::capability::rows::HasFilesList;
use crate::error::Result;
use crate::spec::SandboxPath;

/// Lists a folder and all below it, parents first. Links are not followed.
pub(super) struct Walk<'a, P> {
    files: &'a Files<P>,
    /// Folders to list, as paths below the first.
    ahead: Vec<SandboxPath>,
    root: SandboxPath,
}

impl<'a, P: HasFilesList> Walk<'a, P> {
    pub(super) fn new(files: &'a Files<P>, root: &SandboxPath) -> Self {
        Self { files, ahead: vec![SandboxPath::from("")], root: root.clone() }
    }

    /// The next folder, as a path below the first one (which is empty), and its entries.
    ///
    /// Only those folders are gone into later that `into` picks.
    pub(super) async fn next(
        &mut self,
        into: impl Fn(&SandboxPath) -> bool,
    ) -> Option<(SandboxPath, Result<Vec<Entry>>)> {
        let folder = self.ahead.pop()?;
        let listed = self.files.list(below(&self.root, &folder)).await;
        if let Ok(entries) = &listed {
            let folders = entries.iter().rev().filter(|entry| entry.kind == EntryKind::Directory);
            self.ahead.extend(folders.map(|entry| folder.join(&entry.name)).filter(into));
        }
        Some((folder, listed))
    }
}

/// `path` below `root`; `root` itself for an empty one.
pub(super) fn below(root: &SandboxPath, path: &SandboxPath) -> SandboxPath {
    if path.as_bytes().is_empty() { root.clone() } else { root.join(path) }
}
