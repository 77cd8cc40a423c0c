//! Files and folders of a sandbox.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::core::{Any, Core};
use crate::capability::rows::{
    HasFilesList, HasFilesModify, HasFilesPermissions, HasFilesRead, HasFilesSearch, HasFilesTree,
    HasFilesUpload, HasFilesWatch, HasFilesWrite,
};
use crate::capability::{Capability, cap};
use crate::error::{Error, ErrorKind, Result};
use crate::provider;
use crate::spec::SandboxPath;

/// Files and folders: what `sandbox.files()` gives. Paths resolve inside the sandbox, links included.
pub struct Files<K = Any> {
    core: Arc<Core>,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Files<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

impl<K> Clone for Files<K> {
    fn clone(&self) -> Self {
        Self::of(self.core.clone())
    }
}

impl<K> Files<K> {
    pub(super) fn of(core: Arc<Core>) -> Self {
        Self { core, kind: PhantomData }
    }

    /// The bytes of a file. Devices, pipes and sockets are refused.
    pub async fn read(&self, path: impl Into<SandboxPath>) -> Result<Bytes>
    where
        K: HasFilesRead,
    {
        self.read_range(path, ReadRange::default()).await
    }

    /// A part of a file.
    pub async fn read_range(&self, path: impl Into<SandboxPath>, range: ReadRange) -> Result<Bytes>
    where
        K: HasFilesRead,
    {
        let api = self.core.api::<cap::FilesRead>()?;
        let path = checked(path)?;
        self.core.op(Capability::FilesRead.as_str(), api.read(&path, range)).await
    }

    /// The text of a file. Content that is not UTF-8 is an error, never altered.
    pub async fn read_text(&self, path: impl Into<SandboxPath>) -> Result<String>
    where
        K: HasFilesRead,
    {
        let path = path.into();
        let bytes = self.read(&path).await?;
        String::from_utf8(bytes.into()).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::new(ErrorKind::InvalidArgument, format!("`{path}` is not UTF-8 text (byte {at})"))
                .with_hint("use `read`, which gives bytes")
        })
    }

    /// Replace or make a file, all or nothing: a write that fails leaves what was there.
    pub async fn write(&self, path: impl Into<SandboxPath>, content: impl Into<Bytes>) -> Result<()>
    where
        K: HasFilesWrite,
    {
        self.write_with(path, content, WriteOptions::default()).await
    }

    /// The same, with options.
    pub async fn write_with(
        &self,
        path: impl Into<SandboxPath>,
        content: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<()>
    where
        K: HasFilesWrite,
    {
        let api = self.core.api::<cap::FilesWrite>()?;
        let path = checked(path)?;
        self.core.op(Capability::FilesWrite.as_str(), api.write(&path, content.into(), options)).await
    }

    /// The entries of a folder, by name.
    pub async fn list(&self, path: impl Into<SandboxPath>) -> Result<Vec<Entry>>
    where
        K: HasFilesList,
    {
        let api = self.core.api::<cap::FilesList>()?;
        let path = checked(path)?;
        self.core.request(Capability::FilesList.as_str(), api.list(&path)).await
    }

    /// One entry; a link is described as a link.
    pub async fn stat(&self, path: impl Into<SandboxPath>) -> Result<Entry>
    where
        K: HasFilesList,
    {
        let api = self.core.api::<cap::FilesList>()?;
        let path = checked(path)?;
        self.core.request(Capability::FilesList.as_str(), api.stat(&path, false)).await
    }

    /// True where there is something at `path`, a link that leads nowhere included.
    pub async fn exists(&self, path: impl Into<SandboxPath>) -> Result<bool>
    where
        K: HasFilesList,
    {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Make a folder and those above it; no error where it is there.
    pub async fn mkdir(&self, path: impl Into<SandboxPath>) -> Result<()>
    where
        K: HasFilesModify,
    {
        let api = self.core.api::<cap::FilesModify>()?;
        let path = checked(path)?;
        self.core.request(Capability::FilesModify.as_str(), api.mkdir(&path, true)).await
    }

    /// Rename, replacing a file that is there.
    pub async fn rename(&self, from: impl Into<SandboxPath>, to: impl Into<SandboxPath>) -> Result<()>
    where
        K: HasFilesModify,
    {
        let api = self.core.api::<cap::FilesModify>()?;
        let (from, to) = (checked(from)?, checked(to)?);
        self.core.request(Capability::FilesModify.as_str(), api.rename(&from, &to)).await
    }

    /// Remove a file, a link or an empty folder.
    pub async fn remove(&self, path: impl Into<SandboxPath>) -> Result<()>
    where
        K: HasFilesModify,
    {
        let api = self.core.api::<cap::FilesModify>()?;
        let path = checked(path)?;
        self.core.request(Capability::FilesModify.as_str(), api.remove(&path, false)).await
    }

    /// Remove whatever is at `path`, a folder with all that is in it.
    pub async fn remove_all(&self, path: impl Into<SandboxPath>) -> Result<()>
    where
        K: HasFilesModify,
    {
        let api = self.core.api::<cap::FilesModify>()?;
        let path = checked(path)?;
        self.core.op(Capability::FilesModify.as_str(), api.remove(&path, true)).await
    }

    /// Make a symbolic link at `path` that says `target`.
    pub async fn symlink(&self, target: impl Into<SandboxPath>, path: impl Into<SandboxPath>) -> Result<()>
    where
        K: HasFilesModify,
    {
        let api = self.core.api::<cap::FilesModify>()?;
        let (target, path) = (checked(target)?, checked(path)?);
        self.core.request(Capability::FilesModify.as_str(), api.symlink(&target, &path)).await
    }

    /// Set the permission bits, such as `0o755`.
    pub async fn set_mode(&self, path: impl Into<SandboxPath>, mode: u32) -> Result<()>
    where
        K: HasFilesPermissions,
    {
        let api = self.core.api::<cap::FilesPermissions>()?;
        let path = checked(path)?;
        if mode & !0o7777 != 0 {
            return Err(Error::invalid_argument(
                "mode",
                format!("{mode:#o} has more than the permission bits"),
            ));
        }
        self.core.request(Capability::FilesPermissions.as_str(), api.set_mode(&path, mode)).await
    }

    /// Follow the changes in a folder and all that is below it.
    pub async fn watch(&self, path: impl Into<SandboxPath>) -> Result<FileEvents>
    where
        K: HasFilesWatch,
    {
        let api = self.core.api::<cap::FilesWatch>()?;
        let path = checked(path)?;
        let events = self.core.request(Capability::FilesWatch.as_str(), api.watch(&path, true)).await?;
        Ok(FileEvents { core: self.core.clone(), events })
    }

    /// Copy a file of this machine to exactly `target`, streamed.
    pub async fn upload(
        &self,
        source: impl AsRef<Path>,
        target: impl Into<SandboxPath>,
    ) -> Result<Transferred>
    where
        K: HasFilesUpload,
    {
        let api = self.core.api::<cap::FilesUpload>()?;
        let (source, target) = (checked_host(source.as_ref())?, checked(target)?);
        self.core.op(Capability::FilesUpload.as_str(), api.upload(source, &target)).await
    }

    /// Copy a file of the sandbox to exactly `target` on this machine, streamed.
    pub async fn download(
        &self,
        source: impl Into<SandboxPath>,
        target: impl AsRef<Path>,
    ) -> Result<Transferred>
    where
        K: HasFilesUpload,
    {
        let api = self.core.api::<cap::FilesUpload>()?;
        let (source, target) = (checked(source)?, checked_host(target.as_ref())?);
        self.core.op(Capability::FilesUpload.as_str(), api.download(&source, target)).await
    }

    /// Copy a folder of this machine, with all that is in it, to exactly `target`; what is there already is
    /// merged.
    pub async fn upload_tree(
        &self,
        source: impl AsRef<Path>,
        target: impl Into<SandboxPath>,
    ) -> Result<Transferred>
    where
        K: HasFilesTree,
    {
        let api = self.core.api::<cap::FilesTree>()?;
        let (source, target) = (checked_host(source.as_ref())?, checked(target)?);
        self.core.op(Capability::FilesTree.as_str(), api.upload_tree(source, &target)).await
    }

    /// Copy a folder of the sandbox, with all that is in it, to exactly `target` on this machine. Nothing is
    /// written outside of it, whatever the sandbox's names and links say.
    pub async fn download_tree(
        &self,
        source: impl Into<SandboxPath>,
        target: impl AsRef<Path>,
    ) -> Result<Transferred>
    where
        K: HasFilesTree,
    {
        let api = self.core.api::<cap::FilesTree>()?;
        let (source, target) = (checked(source)?, checked_host(target.as_ref())?);
        self.core.op(Capability::FilesTree.as_str(), api.download_tree(&source, target)).await
    }

    /// What matches below `path`.
    pub async fn search(&self, path: impl Into<SandboxPath>, query: &SearchQuery) -> Result<Vec<Match>>
    where
        K: HasFilesSearch,
    {
        let api = self.core.api::<cap::FilesSearch>()?;
        let path = checked(path)?;
        if query.name.is_none() && query.text.is_none() {
            return Err(Error::invalid_argument("query", "asks for neither a name nor a text"));
        }
        self.core.request(Capability::FilesSearch.as_str(), api.search(&path, query)).await
    }
}

fn checked(path: impl Into<SandboxPath>) -> Result<SandboxPath> {
    let path = path.into();
    path.check()?;
    Ok(path)
}

fn checked_host(path: &Path) -> Result<&Path> {
    if path.as_os_str().is_empty() {
        return Err(Error::invalid_argument("path", "is empty"));
    }
    Ok(path)
}

/// Which part of a file to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadRange {
    /// The first byte.
    pub offset: u64,
    /// The most bytes; all up to the end where unset.
    pub length: Option<u64>,
}

impl ReadRange {
    /// From `offset`, at most `length` bytes.
    pub const fn new(offset: u64, length: u64) -> Self {
        Self { offset, length: Some(length) }
    }
}

/// How to write a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// The permission bits of a new file; `0o644` where unset.
    pub mode: Option<u32>,
    /// Make the folders above it.
    pub parents: bool,
}

impl WriteOptions {
    /// With these permission bits.
    #[must_use]
    pub const fn with_mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Making the folders above.
    #[must_use]
    pub const fn with_parents(mut self) -> Self {
        self.parents = true;
        self
    }
}

/// What something in a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket.
    Other,
}

impl EntryKind {
    /// A stable word for output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The name in its folder, verbatim; for `stat`, the last part of the path that was asked for.
    pub name: SandboxPath,
    /// What it is.
    pub kind: EntryKind,
    /// The size in bytes, of a file.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// When the content changed last.
    pub modified: Option<SystemTime>,
    /// What a link says.
    pub target: Option<SandboxPath>,
}

impl Entry {
    /// An empty entry of this kind.
    pub fn new(name: impl Into<SandboxPath>, kind: EntryKind) -> Self {
        Self { name: name.into(), kind, size: 0, mode: 0, modified: None, target: None }
    }
}

/// How something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileEventKind {
    /// It is new.
    Created,
    /// Its content or metadata changed.
    Modified,
    /// It is gone.
    Removed,
    /// Changes came faster than they were read, and some are lost: look again.
    Overflow,
}

impl FileEventKind {
    /// A stable word for output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Modified => "modified",
            Self::Removed => "removed",
            Self::Overflow => "overflow",
        }
    }
}

/// A change. A rename shows as one thing removed and another created.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileEvent {
    /// How it changed.
    pub kind: FileEventKind,
    /// What changed: below the watched path, as that was given.
    pub path: SandboxPath,
}

impl FileEvent {
    /// `path` changed like this.
    pub fn new(kind: FileEventKind, path: impl Into<SandboxPath>) -> Self {
        Self { kind, path: path.into() }
    }
}

/// The changes of a watched folder. Dropping it ends the watch.
pub struct FileEvents {
    core: Arc<Core>,
    events: Box<dyn provider::FileEvents>,
}

impl FileEvents {
    /// The next change; `None` when the folder is gone. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<FileEvent>> {
        self.core.op(Capability::FilesWatch.as_str(), self.events.next()).await
    }
}

impl fmt::Debug for FileEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileEvents").finish_non_exhaustive()
    }
}

/// What to search for. Both conditions hold where both are set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchQuery {
    /// A pattern for the name: `*` and `?` as in a shell.
    pub name: Option<String>,
    /// A text that a line of the file holds.
    pub text: Option<String>,
    /// The most matches.
    pub limit: usize,
}

impl Default for SearchQuery {
    fn default() -> Self {
        Self { name: None, text: None, limit: 1000 }
    }
}

impl SearchQuery {
    /// Names that fit the pattern.
    #[must_use]
    pub fn with_name(mut self, pattern: impl Into<String>) -> Self {
        self.name = Some(pattern.into());
        self
    }

    /// Files with a line that holds `text`.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// At most `limit` matches.
    #[must_use]
    pub const fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// True where a file or folder of this name fits the pattern, or none is asked for: `*` is any text, `?` one
    /// character; a byte that is not UTF-8 counts as one.
    pub fn takes_name(&self, name: &[u8]) -> bool {
        self.name.as_ref().is_none_or(|pattern| fits(pattern.as_bytes(), name))
    }
}

fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last `*` does not fit: that `*`, taking one character more.
    let mut back = None;
    loop {
        match (pattern.get(p), name.get(n)) {
            (Some(b'*'), _) => {
                back = Some((p, n));
                p += 1;
                continue;
            }
            (Some(b'?'), Some(_)) => {
                n += character(&name[n..]);
                p += 1;
                continue;
            }
            (Some(a), Some(b)) if a == b => {
                n += 1;
                p += 1;
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        match back {
            Some((star, taken)) if taken < name.len() => {
                let taken = taken + character(&name[taken..]);
                back = Some((star, taken));
                (p, n) = (star + 1, taken);
            }
            _ => return false,
        }
    }
}

/// How long the first character is; a byte that is not UTF-8 counts as one.
fn character(bytes: &[u8]) -> usize {
    let chunk = bytes.utf8_chunks().next();
    chunk.and_then(|chunk| chunk.valid().chars().next()).map_or(1, char::len_utf8)
}

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Match {
    /// The file or folder.
    pub path: SandboxPath,
    /// The line, counted from 1, and its content without the line feed, where a text was searched.
    pub line: Option<(u64, Bytes)>,
}

impl Match {
    /// A match by name.
    pub fn name(path: impl Into<SandboxPath>) -> Self {
        Self { path: path.into(), line: None }
    }

    /// A match by text.
    pub fn line(path: impl Into<SandboxPath>, number: u64, line: impl Into<Bytes>) -> Self {
        Self { path: path.into(), line: Some((number, line.into())) }
    }
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transferred {
    /// Regular files.
    pub files: u64,
    /// Folders.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Bytes of file content.
    pub bytes: u64,
    /// Devices, pipes and sockets that were left out.
    pub skipped: u64,
}

impl Transferred {
    /// Nothing yet.
    pub const fn none() -> Self {
        Self { files: 0, directories: 0, symlinks: 0, bytes: 0, skipped: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("*.rs", "a.rs"),
            ("*", ""),
            ("a?c", "aéc"),
            ("**b*", "abab"),
            ("*a*b", "xaab"),
            ("[a]", "[a]"),
            ("a*b*c", "a-b-b-c"),
            ("?", "é"),
            ("a?c", "abc"),
            ("", ""),
        ] {
            assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.rs", "a.rsx"), ("?", ""), ("a?c", "ac"), ("", "a"), ("[a]", "a"), ("A", "a"), ("[ab]", "a")]
        {
            assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        assert!(fits(b"a?c", b"a\xffc"));
        assert!(!fits("*??".as_bytes(), "☕".as_bytes()), "a star takes whole characters");
    }
}
