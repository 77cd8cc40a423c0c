//! Files and folders: the file rows.
//!
//! The host library's file calls block, each on a channel of its own to the guest, so they run on the runtime's
//! blocking threads. Short calls share one channel; copies, searches and watches open their own, so that they hold
//! nobody up.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use capbox_core::provider::*;
use capbox_host::{Copied, Files, Kind, Metadata, Search, Watch, WatchKind};

use crate::error::from_host;
use crate::session::Session;

/// The channel that short calls share.
pub(crate) type Channel = tokio::sync::OnceCell<Arc<Mutex<Files>>>;

/// The path as the host library has it: the same bytes.
pub(crate) fn host_path(path: &SandboxPath) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path.as_bytes()))
}

/// Run a blocking call of the host library.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> capbox_host::Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result.map_err(from_host),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(ErrorKind::ConnectionLost, "the runtime is shutting down")),
        },
    }
}

impl Session {
    /// A short call, on the shared channel.
    async fn short<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Files) -> capbox_host::Result<T> + Send + 'static,
    ) -> Result<T> {
        let open = || async { self.guest.files().await.map(|files| Arc::new(Mutex::new(files))) };
        let files = self.files.get_or_try_init(open).await.map_err(from_host)?.clone();
        blocking(move || call(&files.lock().unwrap_or_else(PoisonError::into_inner))).await
    }

    /// A long call, on a channel of its own.
    async fn long<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Files) -> capbox_host::Result<T> + Send + 'static,
    ) -> Result<T> {
        let files = self.guest.files().await.map_err(from_host)?;
        blocking(move || call(&files)).await
    }
}

#[async_trait]
impl FilesRead for Session {
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes> {
        let path = host_path(path);
        let end = range.length.map_or(u64::MAX, |length| range.offset.saturating_add(length));
        self.short(move |files| files.read(&path, range.offset..end, u64::MAX)).await.map(Bytes::from)
    }
}

#[async_trait]
impl FilesWrite for Session {
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()> {
        let path = host_path(path);
        let WriteOptions { mode, parents, .. } = options;
        let mut how = capbox_host::WriteOptions::default();
        how.mode = mode;
        how.parents = parents;
        self.short(move |files| files.write(&path, &mut &content[..], &how)).await.map(drop)
    }
}

#[async_trait]
impl FilesList for Session {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let folder = host_path(path);
        self.short(move |files| {
            let mut entries = Vec::new();
            for found in files.list(&folder)? {
                let target = match found.metadata.kind {
                    Kind::Symlink => link_target(files, &folder.join(&found.name))?,
                    _ => None,
                };
                entries.push(entry(found.name.into_vec(), &found.metadata, target));
            }
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        })
        .await
    }

    async fn stat(&self, path: &SandboxPath, follow: bool) -> Result<Entry> {
        let name = path.file_name().to_vec();
        let path = host_path(path);
        self.short(move |files| {
            let metadata = files.stat(&path, follow)?;
            let target = match metadata.kind {
                Kind::Symlink => link_target(files, &path)?,
                _ => None,
            };
            Ok(entry(name, &metadata, target))
        })
        .await
    }
}

/// What a link says; `None` where it is gone by now.
fn link_target(files: &Files, path: &Path) -> capbox_host::Result<Option<SandboxPath>> {
    match files.read_link(path) {
        Ok(target) => Ok(Some(SandboxPath::from_bytes(target.into_os_string().into_vec()))),
        Err(capbox_host::Error::NotFound { .. } | capbox_host::Error::InvalidArgument { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn entry(name: Vec<u8>, metadata: &Metadata, target: Option<SandboxPath>) -> Entry {
    let kind = match metadata.kind {
        Kind::File => EntryKind::File,
        Kind::Directory => EntryKind::Directory,
        Kind::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let mut entry = Entry::new(name, kind);
    entry.size = if kind == EntryKind::File { metadata.size } else { 0 };
    entry.mode = metadata.mode & 0o7777;
    entry.modified = Some(metadata.modified);
    entry.target = target;
    entry
}

#[async_trait]
impl FilesModify for Session {
    async fn mkdir(&self, path: &SandboxPath, parents: bool) -> Result<()> {
        let path = host_path(path);
        self.short(move |files| files.mkdir(&path, parents, 0o755)).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let (from, to) = (host_path(from), host_path(to));
        self.short(move |files| files.rename(&from, &to, true)).await
    }

    async fn remove(&self, path: &SandboxPath, recursive: bool) -> Result<()> {
        let path = host_path(path);
        if recursive {
            self.long(move |files| files.remove_all(&path)).await
        } else {
            self.short(move |files| files.remove(&path)).await
        }
    }

    async fn symlink(&self, target: &SandboxPath, path: &SandboxPath) -> Result<()> {
        let (target, path) = (host_path(target), host_path(path));
        self.short(move |files| files.symlink(&target, &path)).await
    }
}

#[async_trait]
impl FilesPermissions for Session {
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        let path = host_path(path);
        self.short(move |files| files.chmod(&path, mode)).await
    }
}

#[async_trait]
impl FilesUpload for Session {
    async fn upload(&self, source: &Path, target: &SandboxPath) -> Result<Transferred> {
        if is_folder_here(source) {
            return Err(is_a_directory(source.display()));
        }
        self.copy_in(source, target).await
    }

    async fn download(&self, source: &SandboxPath, target: &Path) -> Result<Transferred> {
        if self.stat(source, true).await?.kind == EntryKind::Directory {
            return Err(is_a_directory(source));
        }
        self.copy_out(source, target).await
    }
}

#[async_trait]
impl FilesTree for Session {
    async fn upload_tree(&self, source: &Path, target: &SandboxPath) -> Result<Transferred> {
        if source.exists() && !is_folder_here(source) {
            return Err(is_no_directory(source.display()));
        }
        self.copy_in(source, target).await
    }

    async fn download_tree(&self, source: &SandboxPath, target: &Path) -> Result<Transferred> {
        if self.stat(source, true).await?.kind != EntryKind::Directory {
            return Err(is_no_directory(source));
        }
        self.copy_out(source, target).await
    }
}

impl Session {
    async fn copy_in(&self, source: &Path, target: &SandboxPath) -> Result<Transferred> {
        let (source, target) = (source.to_owned(), host_path(target));
        self.long(move |files| files.upload(&source, &target)).await.map(|copied| transferred(&copied))
    }

    async fn copy_out(&self, source: &SandboxPath, target: &Path) -> Result<Transferred> {
        let (source, target) = (host_path(source), target.to_owned());
        self.long(move |files| files.download(&source, &target)).await.map(|copied| transferred(&copied))
    }
}

fn is_folder_here(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

fn is_a_directory(path: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::IsADirectory, format!("`{path}` is a directory")).with_hint("copy it as a tree")
}

fn is_no_directory(path: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("`{path}` is not a directory"))
        .with_hint("copy it as a file")
}

fn transferred(copied: &Copied) -> Transferred {
    let mut done = Transferred::none();
    done.files = copied.files;
    done.directories = copied.directories;
    done.symlinks = copied.links;
    done.bytes = copied.bytes;
    done.skipped = copied.skipped.len() as u64;
    done
}

#[async_trait]
impl FilesSearch for Session {
    async fn search(&self, path: &SandboxPath, query: &SearchQuery) -> Result<Vec<Match>> {
        let mut search = Search::new(host_path(path));
        search.content = query.text.clone().map(String::into_bytes);
        search.hits = query.limit;
        let query = query.clone();
        let found =
            self.long(move |files| files.search(&search, |name| query.takes_name(name.as_bytes()))).await?;
        Ok(found
            .hits
            .into_iter()
            .map(|hit| {
                let path = hit.path.into_os_string().into_vec();
                match hit.line {
                    Some(number) => Match::line(path, number, hit.text),
                    None => Match::name(path),
                }
            })
            .collect())
    }
}

#[async_trait]
impl FilesWatch for Session {
    async fn watch(&self, path: &SandboxPath, recursive: bool) -> Result<Box<dyn FileEvents>> {
        let (guest, path) = (self.guest.clone(), host_path(path));
        let runtime = tokio::runtime::Handle::current();
        // Every folder below is opened before this returns, which may take a while.
        let watch = blocking(move || runtime.block_on(guest.watch(&path, recursive))).await?;
        Ok(Box::new(Watched(watch)))
    }
}

struct Watched(Watch);

#[async_trait]
impl FileEvents for Watched {
    async fn next(&mut self) -> Result<Option<FileEvent>> {
        let Some(event) = self.0.next().await.map_err(from_host)? else { return Ok(None) };
        let kind = match event.kind {
            WatchKind::Created => FileEventKind::Created,
            WatchKind::Modified => FileEventKind::Modified,
            WatchKind::Removed => FileEventKind::Removed,
            _ => FileEventKind::Overflow,
        };
        Ok(Some(FileEvent::new(kind, event.path.into_os_string().into_vec())))
    }
}
