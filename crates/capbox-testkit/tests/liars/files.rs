//! The base's files: those of its folder, and nothing outside of it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use capbox_core::provider::*;

use crate::base::Session;

/// Where a path leads, before links.
pub(crate) fn host_path(home: &Path, path: &SandboxPath) -> PathBuf {
    home.join(OsStr::from_bytes(path.as_bytes()))
}

pub(crate) fn error(error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::NotADirectory => ErrorKind::NotADirectory,
        io::ErrorKind::IsADirectory => ErrorKind::IsADirectory,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::DirectoryNotEmpty => ErrorKind::Conflict,
        io::ErrorKind::StorageFull => ErrorKind::StorageFull,
        _ => ErrorKind::Provider,
    };
    Error::new(kind, error.to_string())
}

impl Session {
    /// Where a path leads inside, its last link followed if asked.
    fn place(&self, path: &SandboxPath, follow: bool) -> Result<PathBuf> {
        self.reach("file", path)?;
        let home = self.place.home.canonicalize().map_err(|failed| error(&failed))?;
        let mut at = host_path(&home, path);
        for _ in 0..40 {
            let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { break };
            let found = parent.canonicalize().map_err(|failed| error(&failed))?.join(name);
            match fs::read_link(&found) {
                Ok(target) if follow => at = found.parent().unwrap_or(&home).join(target),
                _ => {
                    at = found;
                    break;
                }
            }
        }
        Ok(at)
    }

    /// Refuse what is outside.
    fn inside(&self, at: PathBuf) -> Result<PathBuf> {
        let home = self.place.home.canonicalize().map_err(|failed| error(&failed))?;
        if at.starts_with(&home) {
            return Ok(at);
        }
        Err(Error::new(ErrorKind::PermissionDenied, "the path leads out of the sandbox"))
    }

    fn found(&self, path: &SandboxPath) -> Result<PathBuf> {
        self.inside(self.place(path, true)?)
    }

    fn itself(&self, path: &SandboxPath) -> Result<PathBuf> {
        self.inside(self.place(path, false)?)
    }
}

fn regular(at: &Path) -> Result<()> {
    match fs::metadata(at) {
        Ok(meta) if meta.is_dir() => Err(Error::new(ErrorKind::IsADirectory, "it is a folder")),
        Ok(meta) if !meta.is_file() => Err(Error::new(ErrorKind::NotARegularFile, "it is no regular file")),
        _ => Ok(()),
    }
}

#[async_trait]
impl FilesRead for Session {
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes> {
        let at = self.place(path, true)?;
        regular(&at)?;
        let mut file = File::open(self.inside(at)?).map_err(|failed| error(&failed))?;
        file.seek(SeekFrom::Start(range.offset)).map_err(|failed| error(&failed))?;
        let mut bytes = Vec::new();
        file.take(range.length.unwrap_or(u64::MAX))
            .read_to_end(&mut bytes)
            .map_err(|failed| error(&failed))?;
        Ok(bytes.into())
    }
}

#[async_trait]
impl FilesWrite for Session {
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()> {
        if options.parents
            && let Some(parent) = path.parent()
        {
            self.mkdir(&parent, true).await?;
        }
        let at = self.place(path, true)?;
        regular(&at)?;
        let at = self.inside(at)?;
        let parent = at.parent().unwrap_or(&at);
        let mut file = tempfile::NamedTempFile::new_in(parent).map_err(|failed| error(&failed))?;
        file.write_all(&content).map_err(|failed| error(&failed))?;
        let old = fs::metadata(&at).ok().map(|meta| meta.mode() & 0o7777);
        let mode = old.or(options.mode).unwrap_or(0o644);
        file.as_file().set_permissions(fs::Permissions::from_mode(mode)).map_err(|failed| error(&failed))?;
        file.persist(&at).map_err(|failed| error(&failed.error))?;
        Ok(())
    }
}

fn entry(at: &Path, name: &[u8], follow: bool) -> Result<Entry> {
    let meta =
        if follow { fs::metadata(at) } else { fs::symlink_metadata(at) }.map_err(|failed| error(&failed))?;
    let kind = match meta.file_type() {
        t if t.is_symlink() => EntryKind::Symlink,
        t if t.is_dir() => EntryKind::Directory,
        t if t.is_file() => EntryKind::File,
        _ => EntryKind::Other,
    };
    let mut entry = Entry::new(SandboxPath::from_bytes(name), kind);
    entry.size = if kind == EntryKind::File { meta.len() } else { 0 };
    entry.mode = meta.mode() & 0o7777;
    entry.modified = meta.modified().ok();
    if kind == EntryKind::Symlink {
        let target = fs::read_link(at).map_err(|failed| error(&failed))?;
        entry.target = Some(SandboxPath::from_bytes(target.into_os_string().into_vec()));
    }
    Ok(entry)
}

#[async_trait]
impl FilesList for Session {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let at = self.found(path)?;
        let mut entries = Vec::new();
        for found in fs::read_dir(&at).map_err(|failed| error(&failed))? {
            let found = found.map_err(|failed| error(&failed))?;
            entries.push(entry(&found.path(), found.file_name().as_bytes(), false)?);
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    async fn stat(&self, path: &SandboxPath, follow: bool) -> Result<Entry> {
        let at = if follow { self.found(path)? } else { self.itself(path)? };
        entry(&at, path.file_name(), follow)
    }
}

#[async_trait]
impl FilesModify for Session {
    async fn mkdir(&self, path: &SandboxPath, parents: bool) -> Result<()> {
        if parents
            && let Some(parent) = path.parent()
            && self.place(&parent, true).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            self.mkdir(&parent, true).await?;
        } else if parents
            && let Some(parent) = path.parent()
            && !self.place(&parent, true)?.exists()
        {
            self.mkdir(&parent, true).await?;
        }
        let at = self.itself(path)?;
        match fs::create_dir(&at) {
            Err(failed) if failed.kind() == io::ErrorKind::AlreadyExists && parents && at.is_dir() => Ok(()),
            other => other.map_err(|failed| error(&failed)),
        }
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        fs::rename(self.itself(from)?, self.itself(to)?).map_err(|failed| error(&failed))
    }

    async fn remove(&self, path: &SandboxPath, recursive: bool) -> Result<()> {
        let at = self.itself(path)?;
        let is_dir = fs::symlink_metadata(&at).map_err(|failed| error(&failed))?.is_dir();
        match (is_dir, recursive) {
            (false, _) => fs::remove_file(at),
            (true, false) => fs::remove_dir(at),
            (true, true) => fs::remove_dir_all(at),
        }
        .map_err(|failed| error(&failed))
    }

    async fn symlink(&self, target: &SandboxPath, path: &SandboxPath) -> Result<()> {
        let target = OsStr::from_bytes(target.as_bytes());
        std::os::unix::fs::symlink(target, self.itself(path)?).map_err(|failed| error(&failed))
    }
}

#[async_trait]
impl FilesPermissions for Session {
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        fs::set_permissions(self.found(path)?, fs::Permissions::from_mode(mode))
            .map_err(|failed| error(&failed))
    }
}
