//! Files of a sandbox, from outside.
//!
//! The guest resolves every path, inside, with the rights of the code's user, and passes what it opened as a
//! descriptor; data is then read and written directly. This side never opens a name in the sandbox by itself, believes
//! no type it did not ask of a descriptor it holds, and takes names for what they are: bytes.

mod copy;
mod search;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use capbox_guest::proto::{self, CODE_ID, FileReply, FileRequest, Malformed, open};
use rustix::fs::{AtFlags, Dir, FileType};

use crate::ended::ended_blocking;
use crate::error::{Context, Error, Result, from_errno};
use crate::host::bytes;
use crate::launch::{Ids, RANGE};
use crate::socket::{self, Identity};
use crate::state::random_name;

pub use copy::Copied;
pub use search::{Found, Hit, Search};

/// The user that ids without a counterpart inside are shown as.
const NOBODY: u32 = 65_534;
/// Links that are followed before it counts as a loop.
const MOST_LINKS: u32 = 40;

/// A channel to a sandbox's files. Its calls block, and take turns.
///
/// Paths are paths inside; relative ones begin at the sandbox's default folder. Links are followed inside, never out.
/// Everything is done as the code's default user.
#[derive(Debug)]
pub struct Files {
    channel: Mutex<Channel>,
    sandbox: Arc<Identity>,
    ids: Ids,
}

#[derive(Debug)]
struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// Requests that are sent before the first of them is answered. Each answer may hold a descriptor in flight.
const WINDOW: usize = 32;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
}

impl Kind {
    fn from_mode(mode: u32) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => Self::Device,
            _ => Self::File,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

/// What is known of a file without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// What it is.
    pub kind: Kind,
    /// Its size in bytes.
    pub size: u64,
    /// When its content last changed.
    pub modified: SystemTime,
    /// Its permission bits, set-id and sticky bits included.
    pub mode: u32,
    /// Its owner, as seen inside.
    pub uid: u32,
    /// Its group, as seen inside.
    pub gid: u32,
    /// How many names it has.
    pub links: u64,
    /// Its inode number.
    pub inode: u64,
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The name, byte for byte.
    pub name: OsString,
    /// What it names; links are not followed.
    pub metadata: Metadata,
}

/// How to write a file.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Permission bits; by default those of the file that was there, else 0644.
    pub mode: Option<u32>,
    /// Makes missing folders on the way.
    pub parents: bool,
    /// Writes at the end of what is there, rather than replacing it.
    pub append: bool,
}

impl Files {
    pub(crate) fn new(channel: OwnedFd, sandbox: Arc<Identity>, ids: Ids) -> Self {
        let channel = Channel { socket: channel, buffer: vec![0; proto::MAX_PACKET] };
        Self { channel: Mutex::new(channel), sandbox, ids }
    }

    /// The bytes of a regular file in a range, cut to its size; more than `limit` is [`Error::TooLarge`].
    pub fn read(&self, path: &Path, range: Range<u64>, limit: u64) -> Result<Vec<u8>> {
        let mut file = self.open(path)?;
        let size = file.metadata().on(path)?.len();
        let Range { start, end } = range;
        let wanted = end.min(size).saturating_sub(start);
        if wanted > limit {
            return Err(Error::TooLarge { path: path.display().to_string(), size: wanted, limit });
        }
        file.seek(SeekFrom::Start(start)).on(path)?;
        let mut content = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
        // It may be growing, too.
        file.take(end.saturating_sub(start).min(limit)).read_to_end(&mut content).on(path)?;
        Ok(content)
    }

    /// Opens a regular file to read it, at any size and pace.
    pub fn open(&self, path: &Path) -> Result<File> {
        let file = self.open_with(path, open::READ, 0)?;
        if file.metadata().on(path)?.is_dir() {
            return Err(Error::IsADirectory { path: path.display().to_string() });
        }
        Ok(file)
    }

    fn open_with(&self, path: &Path, flags: u32, mode: u32) -> Result<File> {
        match self.ask(path, &FileRequest::Open { path: bytes(path).into(), flags, mode })? {
            (FileReply::Done, Some(fd)) => Ok(fd.into()),
            _ => Err(self.unexpected()),
        }
    }

    /// Replaces a file's content, at once: it is written beside the file, which is then replaced. When that fails, a full
    /// disk included, the old content is still there. A link at the end of the path is written through. Answers with the
    /// number of bytes.
    pub fn write(&self, path: &Path, content: &mut dyn Read, options: &WriteOptions) -> Result<u64> {
        let WriteOptions { mode, parents, append } = options;
        if *parents && let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.mkdir(parent, true, 0o755)?;
        }
        let (path, old) = self.resolve(path)?;
        if *append {
            let flags = open::WRITE | open::APPEND | open::CREATE;
            let mut file = self.open_with(&path, flags, mode.unwrap_or(0o644))?;
            return io::copy(content, &mut file).on(&path);
        }
        let mode = mode.or(old.map(|old| old.mode)).unwrap_or(0o644);
        let beside = path.with_file_name(format!(".capbox-{}", random_name(16)));
        let flags = open::WRITE | open::CREATE | open::EXCLUSIVE;
        let mut file = self.open_with(&beside, flags, 0o600).map_err(|error| {
            // The caller knows nothing of a file beside the one that was asked for.
            let shown = |path: &Path| path.display().to_string();
            match error {
                Error::NotFound { .. } => {
                    let folder = path.parent().map(shown).unwrap_or_default();
                    Error::NotFound { what: "folder", name: folder }
                }
                Error::Permission { what } => {
                    Error::Permission { what: what.replace(&shown(&beside), &shown(&path)) }
                }
                other => other,
            }
        })?;
        let written = io::copy(content, &mut file)
            .and_then(|len| file.set_permissions(Permissions::from_mode(mode & 0o1777)).map(|()| len))
            .on(&path)
            .and_then(|len| self.rename(&beside, &path, true).map(|()| len));
        if written.is_err() {
            let _ = self.remove(&beside);
        }
        written
    }

    /// Follows links at the end of a path. Answers with the path of a regular file, or of nothing yet.
    fn resolve(&self, path: &Path) -> Result<(PathBuf, Option<Metadata>)> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let found = match self.stat(&path, false) {
                Ok(found) => found,
                Err(Error::NotFound { .. }) => return Ok((path, None)),
                Err(error) => return Err(error),
            };
            match found.kind {
                Kind::File => return Ok((path, Some(found))),
                Kind::Symlink => {
                    // Wherever it points: the guest keeps it inside.
                    let target = self.read_link(&path)?;
                    path = path.parent().unwrap_or(Path::new("/")).join(target);
                }
                Kind::Directory => return Err(Error::IsADirectory { path: path.display().to_string() }),
                other => return Err(not_regular(&path, other)),
            }
        }
        Err(from_errno(
            io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()),
            "file or folder",
            &path.to_string_lossy(),
        ))
    }

    /// What is in a folder, `.` and `..` left out, in no order.
    pub fn list(&self, path: &Path) -> Result<Vec<Entry>> {
        self.entries(self.open_folder(path)?, path)
    }

    pub(crate) fn open_folder(&self, path: &Path) -> Result<File> {
        self.open_with(path, open::READ | open::DIRECTORY, 0)
    }

    pub(crate) fn entries(&self, folder: File, path: &Path) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut names = Dir::new(OwnedFd::from(folder)).on(path)?;
        while let Some(entry) = names.read() {
            let entry = entry.on(path)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let stat = rustix::fs::statat(names.fd().on(path)?, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            match stat {
                Ok(stat) => {
                    let name = OsString::from_vec(name.to_vec());
                    found.push(Entry { name, metadata: self.metadata(&stat) });
                }
                // Gone since.
                Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error).on(path),
            }
        }
        Ok(found)
    }

    /// What is known of a file. With `follow`, of what a link at the end of the path leads to.
    pub fn stat(&self, path: &Path, follow: bool) -> Result<Metadata> {
        match self.ask(path, &FileRequest::Stat { path: bytes(path).into(), follow })? {
            (FileReply::Stat { stat }, _) => {
                let proto::Stat { mode, size, uid, gid, mtime, mtime_nanos, links, inode } = stat;
                Ok(Metadata {
                    kind: Kind::from_mode(mode),
                    size,
                    modified: system_time(mtime, mtime_nanos),
                    mode: mode & 0o7777,
                    uid,
                    gid,
                    links: links.into(),
                    inode,
                })
            }
            _ => Err(self.unexpected()),
        }
    }

    /// Makes a folder. With `parents`, also those missing on the way, and one that is there already is no error.
    pub fn mkdir(&self, path: &Path, parents: bool, mode: u32) -> Result<()> {
        self.order(path, &FileRequest::Mkdir { path: bytes(path).into(), mode, parents })
    }

    /// Gives a file or folder another name; with `replace`, in place of what has that name.
    pub fn rename(&self, from: &Path, to: &Path, replace: bool) -> Result<()> {
        let request =
            FileRequest::Rename { from: bytes(from).into(), to: bytes(to).into(), no_replace: !replace };
        // Whichever name it is about: the new one, if the old one is there.
        match self.order(to, &request) {
            Err(Error::NotFound { .. }) => {
                self.stat(from, false)?;
                Err(Error::NotFound { what: "file or folder", name: to.display().to_string() })
            }
            result => result,
        }
    }

    /// Removes a file, a link (not what it leads to), or an empty folder.
    pub fn remove(&self, path: &Path) -> Result<()> {
        match self.order(path, &FileRequest::Remove { path: bytes(path).into(), directory: false }) {
            Err(Error::IsADirectory { .. }) => {
                self.order(path, &FileRequest::Remove { path: bytes(path).into(), directory: true })
            }
            result => result,
        }
    }

    /// Removes a file or link, or a folder with all that is in it. What is mounted is left alone.
    pub fn remove_all(&self, path: &Path) -> Result<()> {
        self.order(path, &FileRequest::RemoveTree { path: bytes(path).into() })
    }

    /// Makes a symbolic link at `path` that says `target`.
    pub fn symlink(&self, target: &Path, path: &Path) -> Result<()> {
        self.order(path, &FileRequest::Symlink { target: bytes(target).into(), path: bytes(path).into() })
    }

    /// What a symbolic link says.
    pub fn read_link(&self, path: &Path) -> Result<PathBuf> {
        match self.ask(path, &FileRequest::Readlink { path: bytes(path).into() }) {
            Ok((FileReply::Link { target }, _)) => Ok(OsStr::from_bytes(&target).into()),
            Ok(_) => Err(self.unexpected()),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
                let reason = format!("`{}` is not a symbolic link", path.display());
                Err(Error::InvalidArgument { name: "path", reason })
            }
            Err(error) => Err(error),
        }
    }

    /// Sets the permission bits of a file or folder. The set-id bits are dropped where files of the host can be written.
    pub fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        self.order(path, &FileRequest::Chmod { path: bytes(path).into(), mode })
    }

    /// Sets when a file's content last changed.
    pub fn set_modified(&self, path: &Path, time: SystemTime) -> Result<()> {
        let (seconds, nanos) = since_epoch(time);
        self.order(path, &FileRequest::SetTimes { path: bytes(path).into(), follow: true, seconds, nanos })
    }

    fn order(&self, path: &Path, request: &FileRequest) -> Result<()> {
        match self.ask(path, request)? {
            (FileReply::Done, _) => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// Opens files of a folder, several at a time: that saves most of the waiting.
    fn open_many(&self, paths: &[(PathBuf, u32)], flags: u32) -> Vec<Result<File>> {
        let mut answers = Vec::with_capacity(paths.len());
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sent = 0;
        while answers.len() < paths.len() {
            while sent < paths.len() && sent < answers.len() + WINDOW {
                let (path, mode) = &paths[sent];
                let request = FileRequest::Open { path: bytes(path).into(), flags, mode: *mode };
                match self.send(&channel, path, &request) {
                    Ok(()) => sent += 1,
                    // All before it have been answered, so this one's answer comes next.
                    Err(error) if sent == answers.len() => {
                        answers.push(Err(error));
                        sent += 1;
                    }
                    Err(_) => break,
                }
            }
            if answers.len() < sent {
                let path = &paths[answers.len()].0;
                answers.push(self.receive(&mut channel, path).and_then(|answer| match answer {
                    (FileReply::Done, Some(fd)) => Ok(fd.into()),
                    _ => Err(self.unexpected()),
                }));
            }
        }
        answers
    }

    /// One request and its answer. `path` is what an error is about.
    fn ask(&self, path: &Path, request: &FileRequest) -> Result<(FileReply, Option<OwnedFd>)> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&channel, path, request)?;
        self.receive(&mut channel, path)
    }

    fn send(&self, channel: &Channel, path: &Path, request: &FileRequest) -> Result<()> {
        if bytes(path).is_empty() || bytes(path).contains(&0) {
            let reason = "give a path without a NUL".into();
            return Err(Error::InvalidArgument { name: "path", reason });
        }
        socket::send(channel.socket.as_fd(), &request.encode(), &[]).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                Error::InvalidArgument { name: "path", reason: "it is too long".into() }
            }
            io::ErrorKind::WouldBlock => Error::Io { what: "send a request".into(), source: error },
            _ => self.gone(),
        })
    }

    fn gone(&self) -> Error {
        ended_blocking(self.sandbox.guest);
        self.sandbox.gone()
    }

    fn receive(&self, channel: &mut Channel, path: &Path) -> Result<(FileReply, Option<OwnedFd>)> {
        let received = socket::receive(channel.socket.as_fd(), &mut channel.buffer)
            .context(|| "receive from the guest".into())?;
        let (packet, mut fds) = received.ok_or_else(|| self.gone())?;
        match FileReply::decode(packet) {
            Ok(FileReply::Failed { errno }) => Err(from_errno(
                io::Error::from_raw_os_error(errno),
                "file or folder",
                &path.to_string_lossy(),
            )),
            Ok(FileReply::Outside) => Err(Error::OutsideSandbox { path: path.display().to_string() }),
            Ok(FileReply::Special { mode }) => Err(not_regular(path, Kind::from_mode(mode))),
            Ok(FileReply::Version { version: guest }) | Err(Malformed::Version(guest)) => {
                Err(Error::Version { id: self.sandbox.id.clone(), guest, host: proto::VERSION })
            }
            Ok(reply) => Ok((reply, fds.pop())),
            Err(_) => Err(self.unexpected()),
        }
    }

    fn unexpected(&self) -> Error {
        let source = io::Error::new(io::ErrorKind::InvalidData, "unexpected answer");
        Error::Io { what: format!("understand sandbox `{}`", self.sandbox.id), source }
    }

    fn metadata(&self, stat: &rustix::fs::Stat) -> Metadata {
        Metadata {
            kind: Kind::from_mode(stat.st_mode),
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: system_time(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or_default()),
            mode: stat.st_mode & 0o7777,
            uid: self.inner_id(stat.st_uid, false),
            gid: self.inner_id(stat.st_gid, true),
            #[allow(clippy::useless_conversion)] // not everywhere as wide
            links: stat.st_nlink.into(),
            inode: stat.st_ino,
        }
    }

    /// An id of the host as it is seen inside.
    fn inner_id(&self, id: u32, group: bool) -> u32 {
        match self.ids {
            Ids::Range { base } if (base..base + RANGE).contains(&id) => id - base,
            Ids::Own { uid, gid } if id == if group { gid } else { uid } => CODE_ID,
            _ => NOBODY,
        }
    }
}

fn not_regular(path: &Path, kind: Kind) -> Error {
    Error::NotRegular { path: path.display().to_string(), kind: kind.name() }
}

fn system_time(seconds: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    time.and_then(|time| time.checked_add(Duration::from_nanos(nanos.into())))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let (seconds, nanos) =
                (i64::try_from(before.as_secs()).unwrap_or(i64::MAX), before.subsec_nanos());
            if nanos == 0 { (-seconds, 0) } else { (-seconds - 1, 1_000_000_000 - nanos) }
        }
    }
}
