//! Files of this machine, for copies in and out.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, Permissions};
use tokio::sync::mpsc;

use super::shell;
use crate::error::{Error, ErrorKind, Result};

/// How many bytes go in one piece.
const PIECE: usize = 256 << 10;

/// Run `work`, which waits for the disk.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// What went wrong with `path` on this machine.
pub(super) fn error(path: &Path, error: io::Error) -> Error {
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
pub(super) fn name(name: &[u8]) -> Option<OsString> {
    let separator = |b: &u8| matches!(b, b'/' | 0) || (cfg!(windows) && matches!(b, b'\\' | b':'));
    if matches!(name, b"" | b"." | b"..") || name.iter().any(separator) {
        return None;
    }
    shell::word(name).ok()
}

/// A file of this machine that is being read.
pub(super) struct Outgoing {
    pub(super) size: u64,
    pub(super) mode: u32,
    file: File,
}

impl Outgoing {
    /// Open `path`, which must be a regular file.
    pub(super) async fn open(path: &Path) -> Result<Self> {
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
            Ok(Self { size: metadata.len(), mode: mode(&metadata), file })
        })
        .await
    }

    /// Its bytes, as many as it had when it was opened, piece by piece.
    pub(super) fn pieces(self) -> mpsc::Receiver<io::Result<Bytes>> {
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

/// A file of this machine that is being written: it takes its place when it is all there.
pub(super) struct Incoming {
    folder: Arc<Dir>,
    temporary: PathBuf,
    name: PathBuf,
    path: PathBuf,
    file: Option<cap_std::fs::File>,
    placed: bool,
}

impl Incoming {
    /// Begin a file that is to be at `path`.
    pub(super) async fn create(path: &Path) -> Result<Self> {
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
            Ok(Self { folder, temporary, name, file: Some(file), placed: false, path })
        })
        .await
    }

    /// Append `bytes`.
    pub(super) async fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        let mut file = self.file.take().expect("a file that failed to be written is not written again");
        let (file, written) = blocking(move || {
            let written = file.write_all(&bytes);
            (file, written)
        })
        .await;
        self.file = Some(file);
        written.map_err(|e| error(&self.path, e))
    }

    /// Put it in its place.
    pub(super) async fn place(mut self) -> Result<()> {
        blocking(move || {
            self.file = None;
            let placed = self.folder.rename(&self.temporary, &self.folder, &self.name);
            self.placed = placed.is_ok();
            placed.map_err(|e| error(&self.path, e))
        })
        .await
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.placed {
            self.file = None;
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
