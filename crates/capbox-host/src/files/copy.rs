//! Whole trees, in and out.
//!
//! Inwards, the guest makes every file, and below the source no link of the host is followed. Outwards, every name is made in a folder that was opened below the target
//! without following a link, so whatever the sandbox holds, nothing is written outside of the target.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use capbox_guest::proto::open;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};

use super::{Entry, Files, Kind, WriteOptions};
use crate::error::{Context, Error, Result};

/// What was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Regular files.
    pub files: u64,
    /// Folders, the first one included.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// What was left out, since it is neither of these: paths at the source.
    pub skipped: Vec<PathBuf>,
}

impl Files {
    /// Copies a file or a whole folder of the host into the sandbox, to exactly the path `target`.
    ///
    /// Missing folders on the way to it are made; a folder that is there is added to, and a file replaced. Links in a
    /// folder stay links, modes and times are kept, set-id bits are not. A link as the source is followed.
    pub fn upload(&self, source: &Path, target: &Path) -> Result<Copied> {
        let mut copied = Copied::default();
        let source = named(source)?;
        let meta = fs::metadata(&source).on(&source)?;
        if let Some(parent) = target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.mkdir(parent, true, 0o755)?;
        }
        if meta.is_file() {
            let from = rustix::fs::open(&source, FILE, Mode::empty()).on(&source)?;
            self.upload_files(vec![(from.into(), source, target.to_owned())], &mut copied)?;
            return Ok(copied);
        }
        if !meta.is_dir() {
            return Err(Error::NotRegular { path: source.display().to_string(), kind: "special file" });
        }
        self.upload_tree(&source, target, &mut copied)?;
        Ok(copied)
    }

    fn upload_tree(&self, source: &Path, target: &Path, copied: &mut Copied) -> Result<()> {
        let root = rustix::fs::open(source, FOLDER, Mode::empty()).on(source)?;
        let mut folders = vec![(PathBuf::new(), target.to_owned())];
        let mut modes = Vec::new();
        while let Some((relative, target)) = folders.pop() {
            let shown = source.join(&relative);
            // Whoever can write there, code that sees it through a mount included, may put a link in its place.
            let folder = match below(&root, &relative, source) {
                Err(Error::OutsideSandbox { .. }) => {
                    copied.skipped.push(shown);
                    continue;
                }
                result => result?,
            };
            let mode = rustix::fs::fstat(&folder).on(&shown)?.st_mode & 0o777;
            self.mkdir(&target, true, mode | 0o700)?;
            if mode & 0o700 != 0o700 {
                // It may be there, from a copy before.
                self.chmod(&target, mode | 0o700)?;
                modes.push((target.clone(), mode));
            }
            copied.directories += 1;
            let mut files = Vec::new();
            for entry in Dir::read_from(&folder).on(&shown)? {
                let entry = entry.on(&shown)?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                let (shown, target) = (shown.join(name), target.join(name));
                let kind = match entry.file_type() {
                    FileType::Unknown => {
                        let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).on(&shown)?;
                        FileType::from_raw_mode(stat.st_mode)
                    }
                    kind => kind,
                };
                match kind {
                    FileType::Directory => folders.push((relative.join(name), target)),
                    FileType::RegularFile => {
                        let flags = FILE | OFlags::NOFOLLOW;
                        let from = rustix::fs::openat(&folder, name, flags, Mode::empty()).on(&shown)?;
                        files.push((from.into(), shown, target));
                    }
                    FileType::Symlink => {
                        let says = rustix::fs::readlinkat(&folder, name, Vec::new()).on(&shown)?;
                        self.upload_link(Path::new(OsStr::from_bytes(says.to_bytes())), &target)?;
                        copied.links += 1;
                    }
                    _ => copied.skipped.push(shown),
                }
                if files.len() >= BATCH {
                    self.upload_files(std::mem::take(&mut files), copied)?;
                }
            }
            self.upload_files(files, copied)?;
        }
        // Folders that could not be written to come last, the deepest first.
        for (target, mode) in modes.into_iter().rev() {
            self.chmod(&target, mode)?;
        }
        Ok(())
    }

    /// Copies files of the host, opened, with their paths there and inside.
    fn upload_files(&self, files: Vec<(File, PathBuf, PathBuf)>, copied: &mut Copied) -> Result<()> {
        let mut sources = Vec::with_capacity(files.len());
        let mut targets = Vec::with_capacity(files.len());
        for (from, source, target) in files {
            let meta = from.metadata().on(&source)?;
            if !meta.is_file() {
                copied.skipped.push(source);
                continue;
            }
            targets.push((target, meta.permissions().mode() & 0o777));
            sources.push((from, meta));
        }
        // New files, mostly, which need no replacing.
        let opened = self.open_many(&targets, open::WRITE | open::CREATE | open::EXCLUSIVE);
        for (((mut from, meta), (target, mode)), to) in sources.into_iter().zip(&targets).zip(opened) {
            match to {
                Ok(mut to) => {
                    let done = transfer(&mut from, &mut to, meta.len()).on(target);
                    copied.bytes += done.inspect_err(|_| drop(self.remove(target)))?;
                    if let Ok(modified) = meta.modified() {
                        to.set_times(FileTimes::new().set_modified(modified)).on(target)?;
                    }
                }
                Err(Error::AlreadyExists { .. }) => {
                    let options = WriteOptions { mode: Some(*mode), ..WriteOptions::default() };
                    copied.bytes += self.write(target, &mut from, &options)?;
                    if let Ok(modified) = meta.modified() {
                        self.set_modified(target, modified)?;
                    }
                }
                Err(error) => return Err(error),
            }
            copied.files += 1;
        }
        Ok(())
    }

    fn upload_link(&self, says: &Path, target: &Path) -> Result<()> {
        match self.symlink(says, target) {
            Err(Error::AlreadyExists { .. }) => {
                self.remove(target)?;
                self.symlink(says, target)
            }
            result => result,
        }
    }

    /// Copies a file or a whole folder out of the sandbox, to exactly the path `target` on the host.
    ///
    /// The folder that `target` is in must be there; a folder that is there is added to, and a file replaced. Links in a
    /// folder stay links and are never followed, neither inside nor at the target (nor as the target itself); modes and times are kept, set-id bits
    /// and owners are not. A link as the source is followed, inside.
    pub fn download(&self, source: &Path, target: &Path) -> Result<Copied> {
        let mut copied = Copied::default();
        let target = named(target)?;
        let found = self.stat(source, true)?;
        match found.kind {
            Kind::File => {
                let Some((folder, name)) = parent(&target)? else {
                    return Err(Error::IsADirectory { path: target.display().to_string() });
                };
                let from = self.open(source)?;
                download_file(from, source, &folder, name, &target, &mut copied)?;
                Ok(copied)
            }
            Kind::Directory => {
                let root = match parent(&target)? {
                    Some((folder, name)) => {
                        match rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
                            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                            Err(error) => return Err(error).on(&target),
                        }
                        below(&folder, Path::new(name), target.parent().unwrap_or(Path::new("")))?
                    }
                    None => rustix::fs::open(&target, FOLDER, Mode::empty()).on(&target)?,
                };
                self.download_tree(source, &root, &target, &mut copied)?;
                Ok(copied)
            }
            other => Err(super::not_regular(source, other)),
        }
    }

    fn download_tree(&self, source: &Path, root: &OwnedFd, target: &Path, copied: &mut Copied) -> Result<()> {
        let mut folders = vec![PathBuf::new()];
        let mut modes = Vec::new();
        while let Some(relative) = folders.pop() {
            let inner = source.join(&relative);
            let from = match self.open_with(&inner, open::READ | open::DIRECTORY, 0) {
                Ok(from) => from,
                Err(Error::OutsideSandbox { .. }) => {
                    copied.skipped.push(inner);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let to = below(root, &relative, target)?;
            copied.directories += 1;
            let mut files = Vec::new();
            for Entry { name, metadata } in self.entries(from, &inner)? {
                check_name(&name, &inner)?;
                let (path, shown) = (inner.join(&name), target.join(&relative).join(&name));
                match metadata.kind {
                    Kind::Directory => {
                        let mode = metadata.mode & 0o777;
                        match rustix::fs::mkdirat(&to, &*name, Mode::from_raw_mode(mode | 0o700)) {
                            Err(rustix::io::Errno::EXIST) => {}
                            result => result.on(&shown)?,
                        }
                        if mode & 0o700 != 0o700 {
                            let folder = below(&to, Path::new(&name), &shown)?;
                            rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode | 0o700)).on(&shown)?;
                            modes.push((relative.join(&name), mode));
                        }
                        folders.push(relative.join(&name));
                    }
                    Kind::File => files.push((path, 0)),
                    Kind::Symlink => {
                        let says = self.read_link(&path)?;
                        replacing(&to, &name, || rustix::fs::symlinkat(&says, &to, &*name)).on(&shown)?;
                        copied.links += 1;
                    }
                    _ => copied.skipped.push(path),
                }
            }
            for batch in files.chunks(BATCH) {
                let opened = self.open_many(batch, open::READ | open::NO_FOLLOW);
                for ((path, _), from) in batch.iter().zip(opened) {
                    let name = path.file_name().unwrap_or_default();
                    let shown = target.join(&relative).join(name);
                    match from {
                        Ok(from) => download_file(from, path, &to, name, &shown, copied)?,
                        Err(Error::OutsideSandbox { .. } | Error::NotRegular { .. }) => {
                            copied.skipped.push(path.clone());
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        for (relative, mode) in modes.into_iter().rev() {
            let folder = below(root, &relative, target)?;
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)).on(&target.join(relative))?;
        }
        Ok(())
    }
}

/// Writes one file to the host. `from` is open and regular, or a folder that has come in its place.
fn download_file(
    mut from: File,
    source: &Path,
    folder: &OwnedFd,
    name: &OsStr,
    shown: &Path,
    copied: &mut Copied,
) -> Result<()> {
    let meta = from.metadata().on(source)?;
    if !meta.is_file() {
        return Err(Error::IsADirectory { path: source.display().to_string() });
    }
    let mode = Mode::from_raw_mode(meta.permissions().mode() & 0o777);
    let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let to = replacing(folder, name, || rustix::fs::openat(folder, name, how, mode)).on(shown)?;
    rustix::fs::fchmod(&to, mode).on(shown)?;
    let mut to = File::from(to);
    copied.bytes += transfer(&mut from, &mut to, meta.len()).on(shown)?;
    if let Ok(modified) = meta.modified() {
        to.set_times(FileTimes::new().set_modified(modified)).on(shown)?;
    }
    copied.files += 1;
    Ok(())
}

/// Copies a file. Small ones by hand: asking the kernel for a better way takes longer than copying.
fn transfer(from: &mut File, to: &mut File, size: u64) -> io::Result<u64> {
    const SMALL: usize = 64 * 1024;
    let Some(size) = usize::try_from(size).ok().filter(|size| *size < SMALL) else {
        // No more than there was when it was opened: it may be growing, faster than it is copied.
        return io::copy(&mut from.take(size), to);
    };
    // As much as there was when it was opened, without asking for more.
    let mut content = vec![0; size];
    let mut len = 0;
    while len < size {
        match from.read(&mut content[len..])? {
            0 => break,
            read => len += read,
        }
    }
    to.write_all(&content[..len])?;
    Ok(len as u64)
}

/// Files that are opened at a time.
const BATCH: usize = 64;

/// A FIFO that takes a file's place must not keep this process.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The folder of the host that a path's last name is in, and that name; nothing for `/`, `.` and what ends in `..`.
fn parent(path: &Path) -> Result<Option<(OwnedFd, &OsStr)>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Ok(Some((rustix::fs::open(parent, FOLDER, Mode::empty()).on(parent)?, name)))
}

/// A folder below the target: no link on the way, whoever put it there.
fn below(root: &OwnedFd, relative: &Path, target: &Path) -> Result<OwnedFd> {
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(root, relative, FOLDER, Mode::empty(), resolve) {
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::XDEV) => {
            Err(Error::OutsideSandbox { path: target.join(relative).display().to_string() })
        }
        result => result.on(&target.join(relative)),
    }
}

/// Makes a name, in place of a file or link that has it.
fn replacing<T>(
    folder: &OwnedFd,
    name: &OsStr,
    make: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match make() {
        Err(rustix::io::Errno::EXIST) => {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
            make()
        }
        result => result,
    }
}

/// The kernel gives no other names; but what writes to the host does not rely on it.
fn check_name(name: &OsStr, folder: &Path) -> Result<()> {
    if matches!(name.as_bytes(), b"" | b"." | b"..") || name.as_bytes().contains(&b'/') {
        return Err(Error::OutsideSandbox { path: folder.join(name).display().to_string() });
    }
    Ok(())
}

/// A path on the host that names something. A slash at the end is no matter.
fn named(path: &Path) -> Result<PathBuf> {
    if path.as_os_str().is_empty() {
        return Err(Error::InvalidArgument { name: "path", reason: "it is empty".into() });
    }
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_grows_by_is_left_out() {
        let make = || {
            File::from(
                rustix::fs::memfd_create(c"file", rustix::fs::MemfdFlags::CLOEXEC).expect("make a file"),
            )
        };
        for size in [10, 100_000] {
            let (mut from, mut to) = (make(), make());
            from.set_len(size + 5).expect("size it");
            assert_eq!(transfer(&mut from, &mut to, size).expect("copy"), size);
            assert_eq!(to.metadata().expect("size").len(), size);
        }
    }
}
