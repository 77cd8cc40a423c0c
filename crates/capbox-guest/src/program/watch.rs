//! Changes of files, for a client of a relay.
//!
//! Folders are opened by process 1, with the rights of the code's user, and watched by what was opened: their names may
//! lead elsewhere by then. Each is watched before it is looked at, so that nothing comes unseen in between.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::os::{self, Fd};
use crate::proto::{Bytes, Change, FileRequest, Stat, change, open};
use crate::sys::{AT_EMPTY_PATH, Errno, Result};
use crate::{files, wire};

/// Changes that are kept at the most. What is more is given up for one that says so.
const MOST: usize = 16_384;

/// A folder that is watched.
pub(crate) struct Watcher {
    /// A file channel to process 1.
    pub(crate) socket: Fd,
    pub(crate) inotify: Fd,
    path: Vec<u8>,
    recursive: bool,
    /// The folders that are watched: paths from the one that was asked for.
    folders: BTreeMap<i32, Vec<u8>>,
    /// Folders that are still to be opened, the first of them being so; and whether what is in them is told.
    opening: VecDeque<(Vec<u8>, bool)>,
    /// What is known of the folder that was asked for, until that has been told.
    pub(crate) opened: Option<Stat>,
    changes: Vec<Change>,
}

/// What became of a folder.
pub(crate) enum Watched {
    /// More are to come.
    Going,
    /// All that there are so far are watched.
    All,
}

impl Watcher {
    /// Asks for the folder.
    pub(crate) fn new(socket: Fd, path: &[u8], recursive: bool) -> Result<Self> {
        let mut watcher = Self {
            socket,
            inotify: os::inotify()?,
            path: path.to_vec(),
            recursive,
            folders: BTreeMap::new(),
            opening: VecDeque::new(),
            opened: None,
            changes: Vec::new(),
        };
        watcher.add(Vec::new(), false)?;
        Ok(watcher)
    }

    fn add(&mut self, path: Vec<u8>, tell: bool) -> Result<()> {
        self.opening.push_back((path, tell));
        if self.opening.len() == 1 { self.ask() } else { Ok(()) }
    }

    /// Asks for the first folder that is still to be opened.
    fn ask(&self) -> Result<()> {
        let Some((path, _)) = self.opening.front() else { return Ok(()) };
        let request = FileRequest::Open {
            path: Bytes(join(&self.path, path)),
            flags: open::READ | open::DIRECTORY,
            mode: 0,
        };
        match wire::send(self.socket.raw(), &request.encode(), &[]) {
            Err(Errno::MSGSIZE) => Err(Errno::NAMETOOLONG),
            result => result,
        }
    }

    /// Takes process 1's answer: a folder, or why there is none. An error is about all.
    pub(crate) fn take(&mut self, answer: Result<Fd>) -> Result<Watched> {
        let (path, tell) = self.opening.pop_front().ok_or(Errno::PROTO)?;
        let first = self.folders.is_empty() && path.is_empty();
        match answer {
            Ok(folder) => {
                if first {
                    self.opened = Some(files::stat_reply(&os::statx(folder.raw(), c"", AT_EMPTY_PATH)?));
                }
                match self.watch(&folder, &path, tell) {
                    // It has been removed since.
                    Err(Errno::NOENT) if !first => {}
                    result => result?,
                }
            }
            Err(errno) if first => return Err(errno),
            // Gone again, or none of the code's.
            Err(_) => {}
        }
        self.ask()?;
        Ok(if self.opening.is_empty() { Watched::All } else { Watched::Going })
    }

    fn watch(&mut self, folder: &Fd, path: &[u8], tell: bool) -> Result<()> {
        let wd = os::inotify_add(&self.inotify, &os::numbered("/proc/self/fd/", folder.raw() as u32, ""))?;
        self.folders.insert(wd, path.to_vec());
        if self.recursive { self.look(folder, path, tell) } else { Ok(()) }
    }

    /// Finds what is in a folder.
    fn look(&mut self, folder: &Fd, path: &[u8], tell: bool) -> Result<()> {
        let mut buffer = os::buffer(32 * 1024);
        loop {
            let len = os::getdents(folder.raw(), &mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            for (_, _, name) in os::entries(&buffer[..len]) {
                if name == c"." || name == c".." {
                    continue;
                }
                let Ok(stat) = os::statx(folder.raw(), name, crate::sys::AT_SYMLINK_NOFOLLOW) else {
                    continue;
                };
                let directory = stat.format() == os::S_IFDIR;
                let path = join(path, name.to_bytes());
                if tell {
                    self.push(change::CREATED, path.clone(), directory, 0);
                }
                if directory {
                    self.opening.push_back((path, tell));
                }
            }
        }
    }

    /// Reads some of what has happened; says whether what is watched is still there.
    pub(crate) fn read(&mut self) -> Result<bool> {
        let mut buffer = [0; 16 * 1024];
        let len = match os::read(self.inotify.raw(), &mut buffer) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno),
        };
        let mut rest = &buffer[..len];
        while let Some((header, after)) = rest.split_first_chunk::<16>() {
            let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
            let (wd, mask, cookie, len) = (word(0) as i32, word(4), word(8), word(12) as usize);
            let (name, after) = after.split_at_checked(len).ok_or(Errno::PROTO)?;
            rest = after;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if !self.happened(wd, mask, cookie, name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn happened(&mut self, wd: i32, mask: u32, cookie: u32, name: &[u8]) -> Result<bool> {
        use os::inotify::{
            CREATE, DELETE, DELETE_SELF, IGNORED, ISDIR, MOVE_SELF, MOVED_FROM, MOVED_TO, OVERFLOW,
        };
        if mask & OVERFLOW != 0 {
            self.push(change::OVERFLOW, Vec::new(), true, 0);
            return Ok(true);
        }
        if mask & IGNORED != 0 {
            self.folders.remove(&wd);
            return Ok(true);
        }
        let Some(folder) = self.folders.get(&wd).cloned() else { return Ok(true) };
        if name.is_empty() {
            if mask & (DELETE_SELF | MOVE_SELF) != 0 && folder.is_empty() {
                self.push(change::REMOVED, folder, true, 0);
                return Ok(false);
            }
            return Ok(true);
        }
        let (directory, path) = (mask & ISDIR != 0, join(&folder, name));
        if mask & (CREATE | MOVED_TO) != 0 {
            self.push(change::CREATED, path.clone(), directory, cookie);
            if directory && self.recursive {
                self.add(path, true)?;
            }
        } else if mask & (DELETE | MOVED_FROM) != 0 {
            if directory {
                // Moved away, it would go on telling changes under a name that is no longer its own.
                let below = join(&path, b"");
                let gone = |other: &[u8]| other == &path[..] || other.starts_with(&below);
                for wd in self
                    .folders
                    .iter()
                    .filter(|(_, other)| gone(other))
                    .map(|(wd, _)| *wd)
                    .collect::<Vec<_>>()
                {
                    self.folders.remove(&wd);
                    os::inotify_remove(&self.inotify, wd);
                }
            }
            self.push(change::REMOVED, path, directory, cookie);
        } else {
            self.push(change::MODIFIED, path, directory, 0);
        }
        Ok(true)
    }

    fn push(&mut self, kind: u16, path: Vec<u8>, directory: bool, cookie: u32) {
        let change = Change { kind, path: Bytes(path), directory, cookie };
        if self.changes.len() >= MOST {
            self.changes.clear();
            self.changes.push(Change { kind: change::OVERFLOW, directory: true, ..Change::default() });
        } else if self.changes.last() != Some(&change) {
            self.changes.push(change);
        }
    }

    /// Takes some of the changes that have been noticed, none if there are none.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        /// Bytes of a message, about.
        const SIZE: usize = 32 * 1024;
        let mut size = 0;
        let end = self.changes.iter().position(|change| {
            size += change.path.len() + 16;
            size > SIZE
        });
        let later = self.changes.split_off(end.map_or(self.changes.len(), |end| end.max(1)));
        core::mem::replace(&mut self.changes, later)
    }
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = folder.to_vec();
    if !folder.is_empty() && !folder.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
