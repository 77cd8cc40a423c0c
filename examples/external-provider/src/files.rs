//! Files: a map from paths to contents.

use bytes::Bytes;
use capbox_core::provider::v1::*;

use crate::{Kept, Node, Session};

/// The path as the map has it: no slash in front, no `.`, no `..`. The default folder is the root.
fn key(path: &SandboxPath) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.as_bytes().split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

fn parent(key: &[u8]) -> &[u8] {
    key.iter().rposition(|byte| *byte == b'/').map_or(&[], |at| &key[..at])
}

fn failed(kind: ErrorKind, path: &SandboxPath) -> Error {
    let what = match kind {
        ErrorKind::NotFound => "is not there",
        ErrorKind::IsADirectory => "is a folder",
        _ => "is no folder",
    };
    Error::new(kind, format!("`{path}` {what}"))
}

impl Kept {
    /// What is at `key`.
    fn at(&self, key: &[u8]) -> Option<&Node> {
        if key.is_empty() { Some(&Node::Folder) } else { self.nodes.get(key) }
    }

    /// Refuse what is not in a folder.
    fn check_parent(&self, key: &[u8], path: &SandboxPath) -> Result<()> {
        match self.at(parent(key)) {
            Some(Node::Folder) => Ok(()),
            Some(Node::File(_)) => Err(failed(ErrorKind::NotADirectory, path)),
            None => Err(failed(ErrorKind::NotFound, path)),
        }
    }

    fn entry(&self, key: &[u8], name: &[u8], path: &SandboxPath) -> Result<Entry> {
        let (kind, mode, size) = match self.at(key) {
            None => return Err(failed(ErrorKind::NotFound, path)),
            Some(Node::Folder) => (EntryKind::Directory, 0o755, 0),
            Some(Node::File(content)) => (EntryKind::File, 0o644, content.len() as u64),
        };
        let mut entry = Entry::new(SandboxPath::from_bytes(name), kind);
        (entry.mode, entry.size) = (mode, size);
        Ok(entry)
    }
}

#[async_trait]
impl FilesRead for Session {
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes> {
        let kept = self.kept()?;
        let key = key(path);
        match kept.at(&key) {
            Some(Node::File(content)) => {
                let cut = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
                let end = range.length.map_or(u64::MAX, |length| range.offset.saturating_add(length));
                Ok(content.slice(cut(range.offset)..cut(end)))
            }
            Some(Node::Folder) => Err(failed(ErrorKind::IsADirectory, path)),
            None => {
                kept.check_parent(&key, path)?;
                Err(failed(ErrorKind::NotFound, path))
            }
        }
    }
}

#[async_trait]
impl FilesWrite for Session {
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()> {
        let mut kept = self.kept()?;
        let key = key(path);
        if matches!(kept.at(&key), Some(Node::Folder)) {
            return Err(failed(ErrorKind::IsADirectory, path));
        }
        if options.parents {
            let mut above = parent(&key);
            while !above.is_empty() {
                if matches!(kept.at(above), Some(Node::File(_))) {
                    return Err(failed(ErrorKind::NotADirectory, path));
                }
                kept.nodes.insert(above.to_vec(), Node::Folder);
                above = parent(above);
            }
        }
        kept.check_parent(&key, path)?;
        kept.nodes.insert(key, Node::File(content));
        Ok(())
    }
}

#[async_trait]
impl FilesList for Session {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let kept = self.kept()?;
        let folder = key(path);
        match kept.at(&folder) {
            Some(Node::Folder) => {}
            Some(Node::File(_)) => return Err(failed(ErrorKind::NotADirectory, path)),
            None => return Err(failed(ErrorKind::NotFound, path)),
        }
        let below = kept.nodes.keys().filter(|key| parent(key) == folder && !key.is_empty());
        below.map(|key| kept.entry(key, SandboxPath::from_bytes(&**key).file_name(), path)).collect()
    }

    async fn stat(&self, path: &SandboxPath, _: bool) -> Result<Entry> {
        self.kept()?.entry(&key(path), path.file_name(), path)
    }
}
