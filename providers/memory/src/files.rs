//! Files of a sandbox, straight from its disk.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use capbox_core::provider::*;

use crate::disk::{Kind, Node, Outcome, Route, Seen, Watch};
use crate::error::gone;
use crate::session::Session;
use crate::shell::HOME;

/// The mode of a new file.
const FILE_MODE: u32 = 0o644;

impl Session {
    /// Do something at `path`, while the sandbox is alive.
    fn at<T>(&self, path: &SandboxPath, call: impl FnOnce(&Route) -> Outcome<T>) -> Result<T> {
        self.machine().alive()?;
        call(&route(path)).map_err(|fault| fault.at(path))
    }
}

fn route(path: &SandboxPath) -> Route {
    Route::new(path.as_bytes(), HOME.as_bytes())
}

#[async_trait]
impl FilesRead for Session {
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes> {
        let content = self.at(path, |route| self.machine().disk.read(route))?;
        let bound = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(content.len());
        let from = bound(range.offset);
        let to = range.length.map_or(content.len(), |length| bound(range.offset.saturating_add(length)));
        Ok(Bytes::copy_from_slice(&content[from..to]))
    }
}

#[async_trait]
impl FilesWrite for Session {
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()> {
        let disk = &self.machine().disk;
        if options.parents
            && let Some(folder) = path.parent()
        {
            self.at(&folder, |route| disk.mkdir(route, true))?;
        }
        let mode = options.mode.unwrap_or(FILE_MODE) & 0o7777;
        self.at(path, |route| disk.write(route, content.into(), mode))
    }
}

#[async_trait]
impl FilesList for Session {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.at(path, |route| {
            let node = self.machine().disk.node(route, true)?;
            let children = node.children().ok_or(crate::disk::Fault::NotADirectory)?;
            Ok(children.iter().map(|(name, node)| entry(SandboxPath::from(&**name), node)).collect())
        })
    }

    async fn stat(&self, path: &SandboxPath, follow: bool) -> Result<Entry> {
        let node = self.at(path, |route| self.machine().disk.node(route, follow))?;
        Ok(entry(SandboxPath::from(path.file_name()), &node))
    }
}

fn entry(name: SandboxPath, node: &Node) -> Entry {
    let mut entry = Entry::new(name, EntryKind::Other);
    entry.size = node.size();
    entry.mode = node.mode;
    entry.modified = Some(node.modified);
    entry.kind = match &node.kind {
        Kind::File(_) => EntryKind::File,
        Kind::Directory(_) => EntryKind::Directory,
        Kind::Link(target) => {
            entry.target = Some(SandboxPath::from(target.as_slice()));
            EntryKind::Symlink
        }
        Kind::Device(_) => EntryKind::Other,
    };
    entry
}

#[async_trait]
impl FilesModify for Session {
    async fn mkdir(&self, path: &SandboxPath, parents: bool) -> Result<()> {
        self.at(path, |route| self.machine().disk.mkdir(route, parents))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.at(from, |source| self.machine().disk.rename(source, &route(to)))
    }

    async fn remove(&self, path: &SandboxPath, recursive: bool) -> Result<()> {
        self.at(path, |route| self.machine().disk.remove(route, recursive))
    }

    async fn symlink(&self, target: &SandboxPath, path: &SandboxPath) -> Result<()> {
        self.at(path, |route| self.machine().disk.symlink(target.as_bytes().to_vec(), route))
    }
}

#[async_trait]
impl FilesPermissions for Session {
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.at(path, |route| self.machine().disk.set_mode(route, mode))
    }
}

#[async_trait]
impl FilesWatch for Session {
    async fn watch(&self, path: &SandboxPath, recursive: bool) -> Result<Box<dyn FileEvents>> {
        let watch = self.at(path, |route| self.machine().disk.watch(route, recursive))?;
        Ok(Box::new(Watching { watch, folder: path.clone(), sandbox: self.machine().id.clone() }))
    }
}

struct Watching {
    watch: Watch,
    folder: SandboxPath,
    sandbox: String,
}

#[async_trait]
impl FileEvents for Watching {
    async fn next(&mut self) -> Result<Option<FileEvent>> {
        match self.watch.next().await {
            Seen::Change(kind, path) => {
                let path = path.iter().fold(self.folder.clone(), |path, name| path.join(&**name));
                Ok(Some(FileEvent::new(kind, path)))
            }
            Seen::FolderGone => Ok(None),
            Seen::SandboxGone => Err(gone(&self.sandbox)),
        }
    }
}

#[async_trait]
impl FilesUpload for Session {
    async fn upload(&self, source: &Path, target: &SandboxPath) -> Result<Transferred> {
        self.machine().alive()?;
        let free = self.machine().disk.free();
        let content = on_host(source, move |source| {
            let info = std::fs::metadata(source)?;
            if info.is_dir() {
                return Ok(Err(ErrorKind::IsADirectory));
            }
            if !info.is_file() {
                return Ok(Err(ErrorKind::NotARegularFile));
            }
            if info.len() > free {
                return Ok(Err(ErrorKind::StorageFull));
            }
            std::fs::read(source).map(Ok)
        })
        .await?;
        let bytes = content.len() as u64;
        FilesWrite::write(self, target, content.into(), WriteOptions::default()).await?;
        Ok(one_file(bytes))
    }

    async fn download(&self, source: &SandboxPath, target: &Path) -> Result<Transferred> {
        let content = self.at(source, |route| self.machine().disk.read(route))?;
        let bytes = content.len() as u64;
        on_host(target, move |target| save(target, &content).map(Ok)).await?;
        Ok(one_file(bytes))
    }
}

fn one_file(bytes: u64) -> Transferred {
    let mut transferred = Transferred::none();
    transferred.files = 1;
    transferred.bytes = bytes;
    transferred
}

/// Replace the file `target` of this machine, all or nothing.
fn save(target: &Path, content: &[u8]) -> io::Result<()> {
    let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut beside = std::ffi::OsString::from(".capbox-");
    beside.push(name);
    let part = target.with_file_name(beside);
    let written = std::fs::File::create(&part)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| std::fs::rename(&part, target));
    if written.is_err() {
        std::fs::remove_file(&part).ok();
    }
    written
}

/// Do something with a path of this machine, where it may block.
async fn on_host<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce(&Path) -> io::Result<Result<T, ErrorKind>> + Send + 'static,
) -> Result<T> {
    let owned: PathBuf = path.to_owned();
    let done = tokio::task::spawn_blocking(move || call(&owned)).await;
    let failed = |kind, why: String| Error::new(kind, format!("`{}` on this machine: {why}", path.display()));
    match done {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(kind))) => Err(failed(kind, kind.to_string())),
        Ok(Err(error)) => {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                io::ErrorKind::NotADirectory => ErrorKind::NotADirectory,
                io::ErrorKind::IsADirectory => ErrorKind::IsADirectory,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
                _ => ErrorKind::Provider,
            };
            Err(failed(kind, error.to_string()).with_source(error))
        }
        Err(error) => Err(failed(ErrorKind::Provider, "the copy did not end".into()).with_source(error)),
    }
}

#[async_trait]
impl FilesSearch for Session {
    async fn search(&self, path: &SandboxPath, query: &SearchQuery) -> Result<Vec<Match>> {
        let node = self.at(path, |route| self.machine().disk.node(route, true))?;
        let mut found = Vec::new();
        below(path, &node, query, &mut found);
        Ok(found)
    }
}

/// Add what matches below the folder `node`, which is at `path`.
fn below(path: &SandboxPath, node: &Node, query: &SearchQuery, found: &mut Vec<Match>) {
    for (name, node) in node.children().into_iter().flatten() {
        let here = path.join(&**name);
        if query.takes_name(name) {
            matches(&here, node, query, found);
        }
        below(&here, node, query, found);
        if found.len() >= query.limit {
            return found.truncate(query.limit);
        }
    }
}

fn matches(path: &SandboxPath, node: &Arc<Node>, query: &SearchQuery, found: &mut Vec<Match>) {
    let Some(text) = &query.text else { return found.push(Match::name(path)) };
    let Kind::File(content) = &node.kind else { return };
    let room = query.limit.saturating_sub(found.len());
    let lines = (1..).zip(content.split(|b| *b == b'\n'));
    let hits = lines.filter(|(_, line)| holds(line, text.as_bytes()));
    found.extend(
        hits.take(room).map(|(number, line)| Match::line(path, number, Bytes::copy_from_slice(line))),
    );
}

fn holds(line: &[u8], text: &[u8]) -> bool {
    text.is_empty() || line.windows(text.len()).any(|part| part == text)
}
