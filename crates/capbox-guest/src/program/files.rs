//! Files, for clients outside.
//!
//! Every path is resolved inside the sandbox's root with the ids of the code's user and without capabilities, so
//! that nothing can be reached through here that the code could not reach itself. What the path leads to is held by
//! an `O_PATH` descriptor and looked at before it is opened: only regular files and folders are, and none of
//! `/proc` and its like, where a file can be a door to something else.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use crate::job;
use crate::os::{self, Fd, Path, resolve};
use crate::proto::{self, Boot, FileReply, FileRequest, Malformed, Stat, open};
use crate::setup::Sandbox;
use crate::sys::{self, Errno, Result, nr};
use crate::{remove, wire};

/// What became of a request.
pub(crate) enum Served {
    /// There was none.
    Idle,
    /// It has been answered.
    Answered,
    /// A child of this number is at work; its end is the answer.
    Helper(i32),
    /// The client has gone.
    Gone,
}

/// Why a request is not served.
enum Refused {
    Errno(Errno),
    Outside,
    Special(u32),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

type Checked<T> = core::result::Result<T, Refused>;

/// Serves what there is on a file channel, up to some requests.
pub(crate) fn serve(boot: &Boot, sandbox: &Sandbox, channel: &Fd, buffer: &mut [u8]) -> Served {
    let files = Files { boot, sandbox, last_folder: RefCell::new(None) };
    let served = os::as_user(sandbox.place.user(), sandbox.place.rights(), || {
        for _ in 0..REQUESTS_IN_A_TURN {
            match files.serve_one(channel, buffer) {
                Served::Answered => {}
                other => return other,
            }
        }
        Served::Answered
    });
    served.unwrap_or(Served::Gone)
}

/// Tells the client how a helper ended, from its wait status.
pub(crate) fn helper_ended(channel: &Fd, status: i32) -> Result<()> {
    let reply = match status {
        0 => FileReply::Done,
        exited if exited.trailing_zeros() >= 7 => FileReply::Failed { errno: exited >> 8 & 0xff },
        _ => FileReply::Failed { errno: Errno::INTR.0 },
    };
    wire::send(channel.raw(), &reply.encode(), &[])
}

/// Requests that are served in one turn.
const REQUESTS_IN_A_TURN: usize = 16;

/// Files, for one turn of a channel.
struct Files<'a> {
    boot: &'a Boot,
    sandbox: &'a Sandbox,
    /// The folder of the last request, by its path: copies come folder by folder.
    last_folder: RefCell<Option<(Vec<u8>, Rc<Fd>)>>,
}

impl Files<'_> {
    fn serve_one(&self, channel: &Fd, buffer: &mut [u8]) -> Served {
        let packet = match wire::receive(channel.raw(), buffer, false) {
            Ok(Some(packet)) => packet,
            Err(Errno::AGAIN) => return Served::Idle,
            _ => return Served::Gone,
        };
        let (reply, fd) = match FileRequest::decode(&packet.bytes) {
            Ok(FileRequest::RemoveTree { path }) => match self.remove_tree(&path) {
                Ok(pid) => return Served::Helper(pid),
                Err(errno) => (FileReply::Failed { errno: errno.0 }, None),
            },
            Ok(request) => match self.request(&request) {
                Ok(answer) => answer,
                Err(Refused::Errno(errno)) => (FileReply::Failed { errno: errno.0 }, None),
                Err(Refused::Outside) => (FileReply::Outside, None),
                Err(Refused::Special(mode)) => (FileReply::Special { mode }, None),
            },
            Err(Malformed::Version(_)) => (FileReply::Version { version: proto::VERSION }, None),
            Err(_) => (FileReply::Failed { errno: Errno::PROTO.0 }, None),
        };
        let fds = fd.as_ref().map(Fd::raw);
        match wire::send(channel.raw(), &reply.encode(), fds.as_slice()) {
            Ok(()) => Served::Answered,
            Err(_) => Served::Gone,
        }
    }

    fn request(&self, request: &FileRequest) -> Checked<(FileReply, Option<Fd>)> {
        let done = Ok((FileReply::Done, None));
        match request {
            FileRequest::Open { path, flags, mode } => {
                let fd = self.open(path, *flags, *mode)?;
                Ok((FileReply::Done, Some(fd)))
            }
            FileRequest::Stat { path, follow } => {
                let stat = os::statx(self.find(path, *follow)?.raw(), c"", sys::AT_EMPTY_PATH)?;
                Ok((FileReply::Stat { stat: stat_reply(&stat) }, None))
            }
            FileRequest::Mkdir { path, mode, parents } => {
                self.mkdir(path, *mode, *parents)?;
                done
            }
            FileRequest::Rename { from, to, no_replace } => {
                self.last_folder.take();
                let ((from, old), (to, new)) = (self.parent(from)?, self.parent(to)?);
                let flags = if *no_replace { os::RENAME_NOREPLACE } else { 0 };
                os::renameat2(from.raw(), &old, to.raw(), &new, flags)?;
                done
            }
            FileRequest::Remove { path, directory } => {
                self.last_folder.take();
                let (parent, name) = self.parent(path)?;
                os::unlinkat(parent.raw(), &name, if *directory { sys::AT_REMOVEDIR } else { 0 })?;
                done
            }
            FileRequest::RemoveTree { .. } => Err(Errno::INVAL.into()), // not served as the code's user at once
            FileRequest::Symlink { target, path } => {
                self.last_folder.take();
                let (parent, name) = self.parent(path)?;
                os::symlinkat(&os::path(target)?, parent.raw(), &name)?;
                done
            }
            FileRequest::Readlink { path } => {
                let (parent, name) = self.parent(path)?;
                let mut buffer = [0; 4096];
                let target = os::readlinkat(parent.raw(), &name, &mut buffer)?;
                Ok((FileReply::Link { target: target.into() }, None))
            }
            FileRequest::Chmod { path, mode } => {
                let file = self.find(path, true)?;
                checked(&file)?;
                let kept = if self.boot.deny_set_id { 0o1777 } else { 0o7777 };
                os::fchmodat(self.sandbox.proc.raw(), &reopened(&file), mode & kept)?;
                done
            }
            FileRequest::SetTimes { path, follow, seconds, nanos } => {
                let file = self.find(path, *follow)?;
                on_a_file_system(&file)?;
                os::utimensat(file.raw(), c"", *seconds, *nanos, sys::AT_EMPTY_PATH)?;
                done
            }
        }
    }

    fn open(&self, path: &[u8], flags: u32, mode: u32) -> Checked<Fd> {
        let access = match (flags & open::READ != 0, flags & open::WRITE != 0) {
            (true, true) => sys::O_RDWR,
            (false, true) => sys::O_WRONLY,
            _ => sys::O_RDONLY,
        };
        let append = if flags & open::APPEND == 0 { 0 } else { sys::O_APPEND };
        // A FIFO that takes a regular file's place in between must not keep this process.
        let how = access | append | sys::O_NONBLOCK | sys::O_NOCTTY;
        let create = flags & open::CREATE != 0;
        let exclusive = flags & open::EXCLUSIVE != 0;
        loop {
            // What must be new need not be looked for.
            let found = if create && exclusive {
                Err(Errno::NOENT)
            } else {
                self.find(path, flags & open::NO_FOLLOW == 0)
            };
            match found {
                Ok(file) => {
                    let is_folder = checked(&file)? == os::S_IFDIR;
                    if is_folder && access != sys::O_RDONLY {
                        return Err(Errno::ISDIR.into());
                    }
                    if !is_folder && flags & open::DIRECTORY != 0 {
                        return Err(Errno::NOTDIR.into());
                    }
                    let truncate = if flags & open::TRUNCATE == 0 { 0 } else { sys::O_TRUNC };
                    return Ok(os::openat(self.sandbox.proc.raw(), &reopened(&file), how | truncate, 0)?);
                }
                Err(Errno::NOENT) if create => {
                    let (parent, name) = self.parent(path)?;
                    let how = how | sys::O_CREAT | sys::O_EXCL | sys::O_NOFOLLOW;
                    match os::openat(parent.raw(), &name, how, mode & 0o1777) {
                        // Somebody was faster: look again; but a link to nothing is not going to change.
                        Err(Errno::EXIST) if !exclusive && !self.is_link(path) => {}
                        other => return Ok(other?),
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn is_link(&self, path: &[u8]) -> bool {
        self.find(path, false)
            .and_then(|file| os::statx(file.raw(), c"", sys::AT_EMPTY_PATH))
            .is_ok_and(|stat| stat.format() == os::S_IFLNK)
    }

    fn mkdir(&self, path: &[u8], mode: u32, parents: bool) -> Checked<()> {
        if !parents {
            let (parent, name) = self.parent(path)?;
            return Ok(os::mkdirat(parent.raw(), &name, mode & 0o1777)?);
        }
        let whole = job::absolute(&self.boot.cwd, path)?;
        let bytes = whole.to_bytes();
        let ends = (1..=bytes.len()).filter(|end| bytes.get(*end).is_none_or(|byte| *byte == b'/'));
        for end in ends {
            let prefix = &bytes[..end];
            match self.find(prefix, true) {
                Err(Errno::NOENT) => {
                    let (parent, name) = self.parent(prefix)?;
                    match os::mkdirat(
                        parent.raw(),
                        &name,
                        if end == bytes.len() { mode & 0o1777 } else { 0o755 },
                    ) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                other => drop(other?),
            }
        }
        let found = os::statx(self.find(bytes, true)?.raw(), c"", sys::AT_EMPTY_PATH)?;
        if found.format() == os::S_IFDIR { Ok(()) } else { Err(Errno::EXIST.into()) }
    }

    /// Starts a child that removes a tree: how long that takes is up to whoever made the tree.
    fn remove_tree(&self, path: &[u8]) -> Result<i32> {
        // SAFETY: a plain fork; this process has one thread. The child has its own copy of all memory.
        let pid = unsafe { raw!(nr::CLONE, sys::SIGCHLD, 0, 0, 0, 0) }?;
        if pid != 0 {
            return Ok(pid as i32);
        }
        let result = (|| -> Checked<()> {
            let (parent, name) = self.parent(path)?;
            match os::unlinkat(parent.raw(), &name, sys::AT_REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCES) => {}
                Err(Errno::NOTDIR) => return Ok(os::unlinkat(parent.raw(), &name, 0)?),
                other => return Ok(other?),
            }
            let _removed = remove::contents(&remove::open(&parent, &name)?);
            Ok(os::unlinkat(parent.raw(), &name, sys::AT_REMOVEDIR)?)
        })();
        sys::exit_group(match result {
            Ok(()) => 0,
            Err(Refused::Errno(errno)) => errno.0,
            Err(Refused::Outside | Refused::Special(_)) => Errno::PERM.0,
        })
    }

    /// What a path leads to, unopened.
    fn find(&self, path: &[u8], follow: bool) -> Result<Fd> {
        let path = job::absolute(&self.boot.cwd, path)?;
        let flags = sys::O_PATH | if follow { 0 } else { sys::O_NOFOLLOW };
        os::openat2(self.sandbox.root.raw(), &path, flags, 0, INSIDE)
    }

    /// The folder that a path's last name is in, and that name.
    fn parent(&self, path: &[u8]) -> Checked<(Rc<Fd>, Path)> {
        let path = job::absolute(&self.boot.cwd, path)?;
        let mut path = path.to_bytes();
        while let [shorter @ .., b'/'] = path {
            path = shorter;
        }
        let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (folder, name) = path.split_at(at);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL.into());
        }
        let mut last = self.last_folder.borrow_mut();
        if let Some((path, known)) = last.as_ref()
            && path == folder
        {
            return Ok((known.clone(), os::path(name)?));
        }
        let flags = sys::O_PATH | sys::O_DIRECTORY;
        let opened = os::openat2(self.sandbox.root.raw(), &os::path(folder)?, flags, 0, INSIDE)?;
        on_a_file_system(&opened)?;
        let opened = Rc::new(opened);
        *last = Some((folder.to_vec(), opened.clone()));
        Ok((opened, os::path(name)?))
    }
}

const INSIDE: u64 = resolve::IN_ROOT | resolve::NO_MAGICLINKS;

/// The way to open what a descriptor holds, from `/proc`.
fn reopened(file: &Fd) -> Path {
    os::numbered("self/fd/", file.raw() as u32, "")
}

/// Refuses all but regular files and folders of proper file systems. Answers with the type.
fn checked(file: &Fd) -> Checked<u32> {
    on_a_file_system(file)?;
    let stat = os::statx(file.raw(), c"", sys::AT_EMPTY_PATH)?;
    match stat.format() {
        format @ (os::S_IFREG | os::S_IFDIR) => Ok(format),
        os::S_IFLNK => Err(Errno::LOOP.into()),
        _ => Err(Refused::Special(u32::from(stat.mode))),
    }
}

/// File systems whose files are not files of the sandbox, but handles of the kernel.
const KERNEL: [u64; 12] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x1cd1,      // devpts
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6e73_6673, // nsfs
    0x1980_0202, // mqueue
    0x6265_6570, // configfs
];

fn on_a_file_system(file: &Fd) -> Checked<()> {
    if KERNEL.contains(&os::fs_type(file.raw())?) { Err(Refused::Outside) } else { Ok(()) }
}

pub(crate) fn stat_reply(stat: &os::Statx) -> Stat {
    Stat {
        mode: u32::from(stat.mode),
        size: stat.size,
        uid: stat.uid,
        gid: stat.gid,
        mtime: stat.modified_seconds,
        mtime_nanos: stat.modified_nanos,
        links: stat.links,
        inode: stat.inode,
    }
}
