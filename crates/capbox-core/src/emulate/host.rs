//! Files of this machine, for copies in and out: what emulations and providers share.
//!
//! What comes out of a sandbox is hostile, so a file comes to its place only when it is whole, and a tree is written
//! through no link.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, Permissions};
use tokio::sync::mpsc;

use super::shell;
use crate::error::{Error, ErrorKind, Result};

/// How many bytes go in one piece.
const PIECE: usize = 256 << 10;

/// How many bytes are written at a time.
const WRITTEN: usize = 1 << 20;

/// Run `work`, which waits for the disk.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// What went wrong with `path` on this machine.
pub fn error(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        io::ErrorKind::NotADirectory => ErrorKind::NotADirectory,
        io::ErrorKind::IsADirectory => ErrorKind::IsADirectory,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        _ => ErrorKind::Conflict,
    };
    Error::new(kind, format!("`{}` on this machine: {error}", path.display())).with_source(error)
}

/// The permission bits of a file of this machine.
#[cfg(unix)]
pub(super) fn mode(metadata: &Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o777
}

/// The permission bits of a file of this machine, which does not have them.
#[cfg(not(unix))]
pub(super) fn mode(metadata: &Metadata) -> u32 {
    if metadata.is_dir() { 0o755 } else { 0o644 }
}

/// The bytes of a name or path of this machine, as a sandbox has it.
#[cfg(unix)]
#[allow(clippy::unnecessary_wraps, reason = "fallible elsewhere")]
pub(super) fn bytes(text: OsString) -> Result<Vec<u8>> {
    use std::os::unix::ffi::OsStringExt;
    Ok(text.into_vec())
}

/// The bytes of a name or path of this machine, as a sandbox has it.
#[cfg(not(unix))]
pub(super) fn bytes(text: OsString) -> Result<Vec<u8>> {
    text.into_string()
        .map(String::into_bytes)
        .map_err(|text| Error::invalid_argument("source", format!("`{}` is not Unicode", text.display())))
}

/// A name of a sandbox as one of this machine, where it is nothing but a name.
pub fn name(name: &[u8]) -> Option<OsString> {
    let separator = |b: &u8| matches!(b, b'/' | 0) || (cfg!(windows) && matches!(b, b'\\' | b':'));
    if matches!(name, b"" | b"." | b"..") || name.iter().any(separator) {
        return None;
    }
    shell::word(name).ok()
}

/// A file of this machine that is being read.
#[derive(Debug)]
pub struct Outgoing {
    size: u64,
    mode: u32,
    modified: Option<SystemTime>,
    file: File,
}

impl Outgoing {
    /// Open `path`, which must be a regular file.
    pub async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let failed = |e| error(&path, e);
            // Before it is opened, since opening a pipe waits.
            let metadata = std::fs::metadata(&path).map_err(failed)?;
            let refused = |kind, what| Err(Error::new(kind, format!("`{}` {what}", path.display())));
            if metadata.is_dir() {
                return refused(ErrorKind::IsADirectory, "is a folder");
            }
            if !metadata.is_file() {
                return refused(ErrorKind::NotARegularFile, "is not a regular file");
            }
            let file = File::open(&path).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            let modified = metadata.modified().ok();
            Ok(Self { size: metadata.len(), mode: mode(&metadata), modified, file })
        })
        .await
    }

    /// How many bytes it had when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its permission bits.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// When its content changed last.
    pub fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// Its bytes, as many as it had when it was opened, piece by piece. Fewer where it has become shorter meanwhile.
    pub fn pieces(self) -> mpsc::Receiver<io::Result<Bytes>> {
        let (sender, receiver) = mpsc::channel(2);
        let mut file = self.file.take(self.size);
        tokio::task::spawn_blocking(move || {
            loop {
                let mut piece = vec![0; PIECE];
                let read = file.read(&mut piece);
                if matches!(read, Ok(0)) {
                    return;
                }
                let failed = read.is_err();
                let read = read.map(|n| {
                    piece.truncate(n);
                    Bytes::from(piece)
                });
                if sender.blocking_send(read).is_err() || failed {
                    return;
                }
            }
        });
        receiver
    }
}

/// A file of this machine that is being written: it takes its place when it is all there, and is gone when dropped before.
#[derive(Debug)]
pub struct Incoming {
    folder: Arc<Dir>,
    temporary: PathBuf,
    name: PathBuf,
    path: PathBuf,
    /// What is to be written next.
    ahead: Vec<Bytes>,
    /// What is being written; `None` after a failure.
    writing: Option<tokio::task::JoinHandle<io::Result<cap_std::fs::File>>>,
    placed: bool,
}

impl Incoming {
    /// Begin a file that is to be at `path`.
    pub async fn create(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let failed = |e| error(&path, e);
            let is_folder = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_dir());
            let name = match path.file_name() {
                Some(name) if !is_folder => PathBuf::from(name),
                _ => return Err(failed(io::ErrorKind::IsADirectory.into())),
            };
            let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let folder = Dir::open_ambient_dir(folder.unwrap_or(Path::new(".")), ambient_authority());
            let folder = Arc::new(folder.map_err(failed)?);
            let temporary = PathBuf::from(format!(".capbox-{}", shell::token()));
            let file = folder.create(&temporary).map_err(failed)?;
            let writing = Some(tokio::task::spawn_blocking(|| Ok(file)));
            Ok(Self { folder, temporary, name, path, ahead: Vec::new(), writing, placed: false })
        })
        .await
    }

    /// Append `bytes`. An error may be about bytes that came before.
    pub async fn write(&mut self, bytes: impl Into<Bytes>) -> Result<()> {
        self.ahead.push(bytes.into());
        if self.ahead.iter().map(Bytes::len).sum::<usize>() < WRITTEN {
            return Ok(());
        }
        let mut file = self.written().await?;
        let pieces = std::mem::take(&mut self.ahead);
        self.writing = Some(tokio::task::spawn_blocking(move || {
            write_all(&mut file, &pieces)?;
            Ok(file)
        }));
        Ok(())
    }

    /// Put it in its place, with these permission bits and this time where they are given.
    pub async fn place(mut self, mode: Option<u32>, modified: Option<SystemTime>) -> Result<()> {
        let mut file = self.written().await?;
        blocking(move || {
            let place = || {
                write_all(&mut file, &self.ahead)?;
                if let Some(mode) = mode {
                    set_mode(&self.folder, &self.temporary, mode)?;
                }
                if let Some(modified) = modified {
                    file.into_std().set_modified(modified)?;
                }
                self.folder.rename(&self.temporary, &self.folder, &self.name)
            };
            let placed = place();
            self.placed = placed.is_ok();
            placed.map_err(|e| error(&self.path, e))
        })
        .await
    }

    /// The file, when all is written that was begun.
    async fn written(&mut self) -> Result<cap_std::fs::File> {
        let failed = |e| error(&self.path, e);
        let writing = self.writing.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        match writing.await {
            Ok(written) => written.map_err(failed),
            Err(stopped) => Err(failed(io::Error::other(stopped))),
        }
    }
}

fn write_all(file: &mut cap_std::fs::File, pieces: &[Bytes]) -> io::Result<()> {
    pieces.iter().try_for_each(|piece| file.write_all(piece))
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.placed {
            self.folder.remove_file(&self.temporary).ok();
        }
    }
}

/// Set the permission bits of something below `dir`, but for the set-id bits, which no sandbox decides on.
#[cfg(unix)]
pub(super) fn set_mode(dir: &Dir, path: &Path, mode: u32) -> io::Result<()> {
    use cap_std::fs::PermissionsExt;
    dir.set_permissions(path, Permissions::from_mode(mode & 0o777))
}

/// Set whether something below `dir` is read-only, which is all that this system has.
#[cfg(not(unix))]
pub(super) fn set_mode(dir: &Dir, path: &Path, mode: u32) -> io::Result<()> {
    let mut permissions: Permissions = dir.metadata(path)?.permissions();
    permissions.set_readonly(mode & 0o200 == 0);
    dir.set_permissions(path, permissions)
}

/// Make a symbolic link below `dir` that says `target`.
#[cfg(unix)]
pub(super) fn symlink(dir: &Dir, target: &Path, path: &Path) -> io::Result<()> {
    dir.symlink_contents(target, path)
}

/// Links need a privilege on this system.
#[cfg(not(unix))]
pub(super) fn symlink(_: &Dir, _: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
