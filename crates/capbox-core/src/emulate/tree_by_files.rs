//! Folders, entry by entry.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use tokio::task::JoinSet;

use super::walk::{Walk, below};
use super::{host, shell};
use crate::api::{EntryKind, Files, Sandbox, Transferred};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::{
    HasFilesList, HasFilesModify, HasFilesPermissions, HasFilesRead, HasFilesUpload,
};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{self as spi, Table};
use crate::spec::SandboxPath;

/// `files.tree` over `files.upload`, `files.list`, `files.modify`, `files.permissions` and `files.read`: folders,
/// files with their permission bits, and links as links, whatever they say.
///
/// On the way out the whole tree is listed first, and nothing is written if a name in it is none; then everything
/// is written beneath the target folder and nowhere else, through no link, with links made last. Set-id bits are
/// dropped.
///
/// # Loss
///
/// "one or more calls for each entry; not a picture of one moment"
pub enum TreeByFiles {}

impl<P> Emulate<cap::FilesTree, P> for TreeByFiles
where
    P: Table + HasFilesRead + HasFilesUpload + HasFilesList + HasFilesModify + HasFilesPermissions,
{
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn spi::FilesTree> {
        Arc::new(ByFiles(sandbox))
    }
}

/// How many files are copied at a time.
const AT_ONCE: usize = 16;

/// The most entries of a tree that a sandbox may claim.
const MOST_ENTRIES: usize = 1_000_000;

struct ByFiles<P>(Sandbox<P>);

#[async_trait]
impl<P> spi::FilesTree for ByFiles<P>
where
    P: Table + HasFilesRead + HasFilesUpload + HasFilesList + HasFilesModify + HasFilesPermissions,
{
    async fn upload_tree(&self, source: &Path, target: &SandboxPath) -> Result<Transferred> {
        let files = Arc::new(self.0.files());
        let source = source.to_owned();
        let (root_mode, entries) = host::blocking(move || read_tree(&source)).await?;
        let is_new = !files.exists(target).await?;
        files.mkdir(target).await?;
        let mut done = Transferred { directories: 1, ..Transferred::none() };
        let mut copies = Copies::default();
        let mut modes = Vec::new();
        if is_new {
            modes.push((target.clone(), root_mode));
        }
        for Outgoing { path, what } in entries {
            let path = target.join(path);
            match what {
                Content::Folder { mode } => {
                    files.mkdir(&path).await?;
                    done.directories += 1;
                    modes.push((path, mode));
                }
                Content::File { source, mode } => {
                    let files = files.clone();
                    let copy = async move {
                        let bytes = files.upload(source, &path).await?.bytes;
                        files.set_mode(&path, mode).await?;
                        Ok(bytes)
                    };
                    copies.add(copy).await?;
                }
                Content::Link { target } => {
                    link(&files, &target, &path).await?;
                    done.symlinks += 1;
                }
                Content::Other => done.skipped += 1,
            }
        }
        (done.files, done.bytes) = copies.all().await?;
        // Last and innermost first, since a folder may forbid what has to be done in it.
        for (path, mode) in modes.into_iter().rev() {
            files.set_mode(path, mode).await?;
        }
        Ok(done)
    }

    async fn download_tree(&self, source: &SandboxPath, target: &Path) -> Result<Transferred> {
        let files = Arc::new(self.0.files());
        let entries = list_tree(&files, source).await?;
        let place = {
            let target = target.to_owned();
            Arc::new(host::blocking(move || Place::open(target)).await?)
        };
        let mut done = Transferred { directories: 1, ..Transferred::none() };
        let mut copies = Copies::default();
        let mut links = Vec::new();
        let mut modes = Vec::new();
        for (number, Incoming { path, inside, kind, mode, target }) in entries.into_iter().enumerate() {
            let place = place.clone();
            match kind {
                EntryKind::Directory => {
                    modes.push((path.clone(), mode));
                    host::blocking(move || place.folder(&path)).await?;
                    done.directories += 1;
                }
                EntryKind::File => {
                    let (files, inside) = (files.clone(), below(source, &inside));
                    let copy = async move {
                        let bytes = files.download(inside, place.staged(number)).await?.bytes;
                        host::blocking(move || place.file(number, &path, mode)).await?;
                        Ok(bytes)
                    };
                    copies.add(copy).await?;
                }
                EntryKind::Symlink => links.extend(target.map(|target| (path, target))),
                EntryKind::Other => done.skipped += 1,
            }
        }
        (done.files, done.bytes) = copies.all().await?;
        done.symlinks = links.len() as u64;
        host::blocking(move || {
            for (path, target) in links {
                place.link(&path, &target)?;
            }
            place.root.remove_dir_all(&place.staging).map_err(|e| host::error(&place.target, e))?;
            for (path, mode) in modes.into_iter().rev() {
                place.set_mode(&path, mode)?;
            }
            Ok(done)
        })
        .await
    }
}

/// Files that are being copied, a few at a time. Dropping it ends those that are on their way.
#[derive(Default)]
struct Copies {
    running: JoinSet<Result<u64>>,
    files: u64,
    bytes: u64,
}

impl Copies {
    /// Copy one more, which says how many bytes that were. An error may be about one that came before.
    async fn add(&mut self, copy: impl Future<Output = Result<u64>> + Send + 'static) -> Result<()> {
        if self.running.len() >= AT_ONCE {
            self.next().await?;
        }
        self.running.spawn(copy);
        Ok(())
    }

    /// How many files and bytes there were in all.
    async fn all(mut self) -> Result<(u64, u64)> {
        while self.next().await? {}
        Ok((self.files, self.bytes))
    }

    /// Wait for one of them, unless there is none.
    async fn next(&mut self) -> Result<bool> {
        match self.running.join_next().await {
            None => return Ok(false),
            Some(Ok(copied)) => self.bytes += copied?,
            Some(Err(stopped)) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => {
                    return Err(Error::new(ErrorKind::ConnectionLost, "the runtime is shutting down"));
                }
            },
        }
        self.files += 1;
        Ok(true)
    }
}

/// Something in a tree of this machine.
struct Outgoing {
    path: SandboxPath,
    what: Content,
}

enum Content {
    Folder { mode: u32 },
    File { source: PathBuf, mode: u32 },
    Link { target: SandboxPath },
    Other,
}

/// The permission bits of a folder of this machine, and all that is in it: folders before what is in them.
fn read_tree(source: &Path) -> Result<(u32, Vec<Outgoing>)> {
    let failed = |path: &Path, e| host::error(path, e);
    let root = std::fs::metadata(source).map_err(|e| failed(source, e))?;
    let mut entries = Vec::new();
    let mut ahead = vec![(source.to_owned(), SandboxPath::from(""))];
    while let Some((folder, path)) = ahead.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|e| failed(&folder, e))? {
            let entry = entry.map_err(|e| failed(&folder, e))?;
            let (source, path) = (entry.path(), path.join(host::bytes(entry.file_name())?));
            let metadata = entry.metadata().map_err(|e| failed(&source, e))?;
            let mode = host::mode(&metadata);
            let what = if metadata.is_dir() {
                ahead.push((source, path.clone()));
                Content::Folder { mode }
            } else if metadata.is_symlink() {
                let target = std::fs::read_link(&source).map_err(|e| failed(&source, e))?;
                Content::Link { target: host::bytes(target.into_os_string())?.into() }
            } else if metadata.is_file() {
                Content::File { source, mode }
            } else {
                Content::Other
            };
            entries.push(Outgoing { path, what });
        }
    }
    Ok((host::mode(&root), entries))
}

/// Make a link, in the place of a link or file that is there.
async fn link<P>(files: &Files<P>, target: &SandboxPath, path: &SandboxPath) -> Result<()>
where
    P: HasFilesModify + HasFilesList,
{
    match files.symlink(target, path).await {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = files.stat(path).await?;
            if there.kind == EntryKind::Directory {
                return Err(error);
            }
            if there.target.as_ref() == Some(target) {
                return Ok(());
            }
            files.remove(path).await?;
            files.symlink(target, path).await
        }
        other => other,
    }
}

/// Something in a tree of the sandbox.
struct Incoming {
    /// Below the target; every part of it is a mere name.
    path: PathBuf,
    /// Below the source.
    inside: SandboxPath,
    kind: EntryKind,
    mode: u32,
    target: Option<PathBuf>,
}

/// All that is in a folder of the sandbox, folders before what is in them. A name that is none is refused.
async fn list_tree<P: HasFilesList>(files: &Files<P>, source: &SandboxPath) -> Result<Vec<Incoming>> {
    let mut all = Vec::new();
    let mut walk = Walk::new(files, source);
    while let Some((folder, listed)) = walk.next(|_| true).await {
        let mut names = HashSet::new();
        for entry in listed? {
            let inside = folder.join(&entry.name);
            let hostile = |what: &str| {
                Error::new(ErrorKind::PermissionDenied, format!("`{inside}` {what}; nothing was written"))
            };
            let name =
                host::name(entry.name.as_bytes()).ok_or_else(|| hostile("is not a name for a file"))?;
            if !names.insert(name) {
                return Err(hostile("is there twice"));
            }
            if all.len() == MOST_ENTRIES {
                return Err(hostile("is one entry too many"));
            }
            let target = entry.target.map(|target| shell::word(target.as_bytes())).transpose()?;
            all.push(Incoming {
                path: shell::word(inside.as_bytes())?.into(),
                inside,
                kind: entry.kind,
                mode: entry.mode,
                target: target.map(PathBuf::from),
            });
        }
    }
    Ok(all)
}

/// A folder of this machine that a tree is written to, and nothing outside of it.
struct Place {
    target: PathBuf,
    root: Dir,
    /// A new folder in it, where files are until they are whole.
    staging: OsString,
}

impl Place {
    fn open(target: PathBuf) -> Result<Self> {
        let open = || -> io::Result<_> {
            std::fs::create_dir_all(&target)?;
            let root = Dir::open_ambient_dir(&target, ambient_authority())?;
            let staging = format!(".capbox-{}", shell::token());
            root.create_dir(&staging)?;
            Ok((root, staging.into()))
        };
        let (root, staging) = open().map_err(|e| host::error(&target, e))?;
        Ok(Self { target, root, staging })
    }

    /// Where a file is while it comes in.
    fn staged(&self, number: usize) -> PathBuf {
        self.target.join(&self.staging).join(number.to_string())
    }

    /// Make a folder, unless there is one. A link is none, wherever it leads.
    fn folder(&self, path: &Path) -> Result<()> {
        self.at(path, || match self.root.create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let is_folder = self.root.symlink_metadata(path)?.is_dir();
                if is_folder { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
            }
            other => other,
        })
    }

    /// Put the file that came in where it belongs, in the place of a file or link.
    fn file(&self, number: usize, path: &Path, mode: u32) -> Result<()> {
        let staged = Path::new(&self.staging).join(number.to_string());
        self.at(path, || {
            host::set_mode(&self.root, &staged, mode)?;
            self.root.rename(&staged, &self.root, path)
        })
    }

    /// Make a link, in the place of a file or link.
    fn link(&self, path: &Path, target: &Path) -> Result<()> {
        self.at(path, || {
            match self.root.symlink_metadata(path) {
                Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
                Ok(_) => self.root.remove_file(path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            host::symlink(&self.root, target, path)
        })
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        self.at(path, || host::set_mode(&self.root, path, mode))
    }

    fn at(&self, path: &Path, work: impl FnOnce() -> io::Result<()>) -> Result<()> {
        work().map_err(|e| host::error(&self.target.join(path), e))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.root.remove_dir_all(&self.staging).ok();
    }
}
