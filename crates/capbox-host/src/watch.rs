//! Changes of files, as they happen.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::{Context, Error, Result};
use crate::files::{Files, Kind};
use crate::socket;

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchEvent {
    /// What changed.
    pub kind: WatchKind,
    /// Where: the path that is watched and what follows.
    pub path: PathBuf,
    /// Whether it is a folder.
    pub directory: bool,
}

/// What a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatchKind {
    /// A name has come, be it made or moved here. A name may be told twice if it comes in a folder that has just come.
    Created,
    /// Content, mode or times have changed.
    Modified,
    /// A name has gone, be it removed or moved away.
    Removed,
    /// More changed than could be told: look again at everything.
    Overflow,
}

/// Changes below a path.
#[derive(Debug)]
pub struct Watch {
    inotify: AsyncFd<OwnedFd>,
    files: Files,
    root: PathBuf,
    recursive: bool,
    /// The folders that are watched: paths from the root.
    folders: HashMap<i32, PathBuf>,
    pending: VecDeque<WatchEvent>,
    buffer: Vec<MaybeUninit<u8>>,
}

/// Changes beyond these, not fetched yet, are given up for one [`WatchKind::Overflow`].
const PENDING: usize = 65_536;

impl Watch {
    /// Takes over the file channel: new folders have to be opened as they come.
    pub(crate) fn new(files: Files, path: &Path, recursive: bool) -> Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(limited)?;
        let inotify = socket::register(inotify, Interest::READABLE)?;
        let mut watch = Self {
            inotify,
            files,
            root: path.to_owned(),
            recursive,
            folders: HashMap::new(),
            pending: VecDeque::new(),
            buffer: vec![MaybeUninit::uninit(); 64 * 1024],
        };
        watch.add(PathBuf::new(), false)?;
        Ok(watch)
    }

    /// The next change; `None` once what is watched is gone. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            if self.folders.is_empty() {
                return Ok(None);
            }
            {
                let mut guard = self.inotify.readable().await.context(|| "wait for changes".into())?;
                // Read below until there is no more; then wait again.
                guard.clear_ready();
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> Result<()> {
        loop {
            let mut batch = Vec::new();
            let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut self.buffer);
            let end = loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| name.to_bytes().to_vec());
                        batch.push((event.wd(), event.events(), name));
                        if reader.is_buffer_empty() {
                            break false;
                        }
                    }
                    Err(rustix::io::Errno::AGAIN) => break true,
                    Err(error) => return Err(error).context(|| "read changes".into()),
                }
            };
            for (wd, flags, name) in batch {
                self.take(wd, flags, name.as_deref())?;
            }
            if end {
                return Ok(());
            }
        }
    }

    fn take(&mut self, wd: i32, flags: ReadFlags, name: Option<&[u8]>) -> Result<()> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.push(WatchKind::Overflow, Path::new(""), true);
            return Ok(());
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&wd);
            return Ok(());
        }
        let Some(folder) = self.folders.get(&wd).cloned() else { return Ok(()) };
        let directory = flags.contains(ReadFlags::ISDIR);
        let Some(name) = name else {
            if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF)
                && folder.as_os_str().is_empty()
            {
                self.push(WatchKind::Removed, Path::new(""), true);
                self.folders.clear();
            }
            return Ok(());
        };
        let path = folder.join(std::ffi::OsStr::from_bytes(name));
        if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.push(WatchKind::Created, &path, directory);
            if directory && self.recursive {
                self.add(path, true)?;
            }
        } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            if directory {
                // Moved away, it would go on telling changes under a name that is no longer its own.
                let gone: Vec<i32> = self
                    .folders
                    .iter()
                    .filter(|(_, other)| other.starts_with(&path))
                    .map(|(wd, _)| *wd)
                    .collect();
                for wd in gone {
                    self.folders.remove(&wd);
                    let _ = inotify::remove_watch(self.inotify.get_ref(), wd);
                }
            }
            self.push(WatchKind::Removed, &path, directory);
        } else {
            self.push(WatchKind::Modified, &path, directory);
        }
        Ok(())
    }

    fn push(&mut self, kind: WatchKind, relative: &Path, directory: bool) {
        let path = if relative.as_os_str().is_empty() { self.root.clone() } else { self.root.join(relative) };
        let event = WatchEvent { kind, path, directory };
        if self.pending.len() >= PENDING {
            self.pending.clear();
            self.pending.push_back(WatchEvent {
                kind: WatchKind::Overflow,
                path: self.root.clone(),
                directory: true,
            });
        } else if self.pending.back() != Some(&event) {
            self.pending.push_back(event);
        }
    }

    /// Watches a folder, and with `recursive` all below it. Only then looks at what is there, so that nothing comes
    /// unseen in between; with `tell`, what is there is told as having come.
    fn add(&mut self, relative: PathBuf, tell: bool) -> Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let mut folders = vec![relative];
        while let Some(relative) = folders.pop() {
            let first = self.folders.is_empty();
            let path =
                if relative.as_os_str().is_empty() { self.root.clone() } else { self.root.join(&relative) };
            let folder = match self.files.open_folder(&path) {
                Ok(folder) => folder,
                Err(error @ Error::Gone { .. }) => return Err(error),
                Err(error) if first => return Err(error),
                // Gone again, or none of the code's.
                Err(_) => continue,
            };
            // By descriptor: the name may lead elsewhere by now.
            let by_descriptor = format!("/proc/self/fd/{}", folder.as_raw_fd());
            let wd = inotify::add_watch(self.inotify.get_ref(), by_descriptor, flags).map_err(limited)?;
            self.folders.insert(wd, relative.clone());
            if !self.recursive {
                continue;
            }
            for entry in self.files.entries(folder, &path)? {
                let relative = relative.join(&entry.name);
                let directory = entry.metadata.kind == Kind::Directory;
                if tell {
                    self.push(WatchKind::Created, &relative, directory);
                }
                if directory {
                    folders.push(relative);
                }
            }
        }
        Ok(())
    }
}

fn limited(error: rustix::io::Errno) -> Error {
    if matches!(error, rustix::io::Errno::NOSPC | rustix::io::Errno::MFILE) {
        return Error::Unsupported {
            what: "watching more folders".into(),
            hint: "raise `sysctl fs.inotify.max_user_watches` and `fs.inotify.max_user_instances`".into(),
        };
    }
    Error::Io { what: "watch a folder".into(), source: io::Error::from(error) }
}
