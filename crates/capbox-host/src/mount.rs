//! Folders of the host that are seen inside.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use capbox_guest::proto::{self, CODE_ID};
use capbox_guest::raw;
use capbox_guest::sys::{self, Errno, nr};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::error::{Context, Error, Result};
use crate::host::{Mount, bytes};
use crate::launch::{self, Ids};
use crate::state::SYSTEM_FOLDERS;

impl Mount {
    /// What stays read-only in a folder that can be written, if it is there when the sandbox is made: files that tools
    /// on the host execute or trust.
    ///
    /// The whole of `.git` is: beside hooks and configuration, `commondir`, the index with its submodules, and work
    /// trees all lead git to programs of their choosing.
    ///
    /// Not covered: what is not there yet (a program inside may make a `.envrc`, or a repository where there is none),
    /// the same deeper down, build scripts and anything else that somebody runs by hand. Look at what changed before
    /// using such a folder outside.
    pub const PROTECTED: &[&str] = &[
        ".git",   // hooks and configuration name programs; the rest leads to other hooks and configuration
        ".envrc", // run by direnv on entering the folder
        ".vscode/tasks.json", // may run on opening the folder
        ".vscode/settings.json", // names programs
        ".vscode/launch.json", // names programs
        ".idea",  // the same for JetBrains editors
        ".husky", // git hooks by another way
        ".devcontainer", // run on opening the folder
    ];
}

/// Mounts, ready for the guest.
pub(crate) struct Prepared {
    pub(crate) mounts: Vec<proto::Mount>,
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether a program inside can make files that belong to a user of the host.
    pub(crate) writes_host: bool,
}

/// `state` is the state folder: nobody inside may see it, for who reaches a control socket is that sandbox's master.
pub(crate) fn prepare(mounts: &[Mount], ids: Ids, state: &Path) -> Result<Prepared> {
    let mut prepared = Prepared { mounts: Vec::new(), fds: Vec::new(), writes_host: false };
    if mounts.len() >= proto::MAX_FDS {
        let reason = format!("at most {} at a time", proto::MAX_FDS - 1);
        return Err(Error::InvalidArgument { name: "mounts", reason });
    }
    let table = if mounts.is_empty() { Table(Vec::new()) } else { Table::read()? };
    for mount in mounts {
        let Mount { source, target, read_only, unprotected } = mount;
        check_target(target)?;
        let shown = source.display();
        let source = match fs::canonicalize(source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NotFound { what: "folder of this machine", name: shown.to_string() });
            }
            other => other.on(source)?,
        };
        let meta = fs::metadata(&source).on(&source)?;
        if !meta.is_dir() {
            return Err(Error::NotADirectory { path: shown.to_string() });
        }
        let hide = table.showing(&source, state)?;
        if hide.iter().any(|below| below.as_os_str().is_empty()) {
            let reason = format!("`{shown}` is in the folder that keeps sandboxes apart");
            return Err(Error::InvalidArgument { name: "mount source", reason });
        }
        let mut wire = proto::Mount {
            target: bytes(target).into(),
            source: bytes(&source).into(),
            identity: (split_device(meta.dev()), meta.ino()),
            read_only: *read_only,
            protect: Vec::new(),
            hide: hide.iter().map(|below| bytes(below).into()).collect(),
        };
        if let Ids::Range { base } = ids {
            wire.source = proto::Bytes::default();
            prepared.fds.push(clone_for_range(&source, &meta, base, *read_only)?);
        }
        if !read_only {
            prepared.writes_host = true;
            if !unprotected {
                wire.protect = Mount::PROTECTED.iter().map(|path| (*path).into()).collect();
            }
        }
        prepared.mounts.push(wire);
    }
    Ok(prepared)
}

/// What is mounted on the host.
struct Table(Vec<Mounted>);

struct Mounted {
    id: u64,
    /// The file system, and what of it shows.
    shows: Place,
    /// Where.
    point: PathBuf,
}

/// A place in a file system, whatever the paths are that lead there: bind mounts give it more than one.
#[derive(Clone)]
struct Place {
    device: Vec<u8>,
    path: PathBuf,
}

impl Table {
    fn read() -> Result<Self> {
        let file = Path::new("/proc/self/mountinfo");
        let text = fs::read(file).on(file)?;
        Ok(Self(text.split(|byte| *byte == b'\n').filter_map(Mounted::parse).collect()))
    }

    /// Where `folder` or something in it shows at or below `source`: paths relative to that. Both are real names.
    fn showing(&self, source: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
        let folder_meta = fs::metadata(folder).on(folder)?;
        let sought = self.place(folder)?;
        let below = self.0.iter().filter(|mounted| mounted.point != source);
        let below = below.filter_map(|mounted| {
            Some((mounted.point.strip_prefix(source).ok()?.to_owned(), mounted.shows.clone()))
        });
        let mut found = Vec::new();
        for (at, shown) in std::iter::once((PathBuf::new(), self.place(source)?)).chain(below) {
            if shown.device != sought.device {
                continue;
            }
            // Something of it, or all of it, unless something else is mounted over it.
            let is_there = |at: &Path, inode: Option<u64>| {
                let there = fs::metadata(source.join(at));
                there.is_ok_and(|there| {
                    there.dev() == folder_meta.dev() && inode.is_none_or(|inode| there.ino() == inode)
                })
            };
            if shown.path.starts_with(&sought.path) {
                found.extend(is_there(&at, None).then_some(at));
            } else if let Ok(rest) = sought.path.strip_prefix(&shown.path) {
                let at = at.join(rest);
                found.extend(is_there(&at, Some(folder_meta.ino())).then_some(at));
            }
        }
        Ok(found)
    }

    fn place(&self, path: &Path) -> Result<Place> {
        let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).on(path)?;
        let mounted = self.0.iter().find(|mounted| mounted.id == stat.stx_mnt_id);
        // The root of a caller that has changed it need not be listed.
        Ok(mounted
            .and_then(|mounted| mounted.place(path))
            .unwrap_or_else(|| Place { device: Vec::new(), path: path.to_owned() }))
    }
}

impl Mounted {
    /// A line of `mountinfo`: id, parent, device, what shows, where, …
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = fields.nth(1)?.to_vec();
        let path = unescape(fields.next()?);
        Some(Self { id, shows: Place { device, path }, point: unescape(fields.next()?) })
    }

    fn place(&self, path: &Path) -> Option<Place> {
        let rest = path.strip_prefix(&self.point).ok()?;
        Some(Place { device: self.shows.device.clone(), path: self.shows.path.join(rest) })
    }
}

/// A path of `mountinfo`: blanks and the like are three octal digits after a backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let escaped = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(path).into()
}

fn check_target(target: &Path) -> Result<()> {
    let invalid = |reason: &str| {
        let reason = format!("`{}`: {reason}", target.display());
        Err(Error::InvalidArgument { name: "mount target", reason })
    };
    if !target.is_absolute() || bytes(target).contains(&0) {
        return invalid("use an absolute path");
    }
    if target.components().any(|part| part == Component::ParentDir) {
        return invalid("leave out `..`");
    }
    let mut own = ["/proc", "/dev", "/sys"].iter().chain(SYSTEM_FOLDERS);
    if own.any(|own| target.starts_with(own) || Path::new(own).starts_with(target)) {
        return invalid(
            "the root is made of this place: choose another, such as one below `/work` or `/mnt`",
        );
    }
    if target == Path::new("/etc") {
        return invalid("the sandbox has users and settings of its own there: mount a folder below it");
    }
    Ok(())
}

/// Major and minor number as the guest compares them.
fn split_device(device: u64) -> u64 {
    u64::from(rustix::fs::major(device)) << 32 | u64::from(rustix::fs::minor(device))
}

/// A clone of a folder in which the owner's ids are those of the code's user, so that files keep their owner on the
/// host. Only root can make one, and only root needs it: other callers have the one id that is mapped.
fn clone_for_range(source: &Path, meta: &fs::Metadata, base: u32, read_only: bool) -> Result<OwnedFd> {
    const ATTR_IDMAP: u64 = 0x0010_0000;
    let path = std::ffi::CString::new(bytes(source)).context(|| "name a folder".into())?;
    let flags = 1 | sys::O_CLOEXEC | sys::AT_RECURSIVE; // OPEN_TREE_CLONE
    // SAFETY: the path ends with a NUL.
    let tree = unsafe { raw!(nr::OPEN_TREE, sys::AT_FDCWD, path.as_ptr(), flags) }
        .map_err(|errno| launch::failed("clone a mounted folder", os_error(errno)))?;
    // SAFETY: a new descriptor that nobody else knows.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // descriptors are small numbers
    let tree = unsafe { OwnedFd::from_raw_fd(tree as i32) };
    let namespace = id_mapping((meta.uid(), meta.gid()), base + CODE_ID)?;
    let attributes: [u64; 4] = [ATTR_IDMAP, 0, 0, u64::from(namespace.cast_unsigned())];
    let flags = sys::AT_EMPTY_PATH | sys::AT_RECURSIVE;
    // SAFETY: the path ends with a NUL; `struct mount_attr` is four 64-bit integers.
    let mapped = unsafe {
        raw!(
            nr::MOUNT_SETATTR,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            attributes.as_ptr(),
            size_of_val(&attributes)
        )
    };
    match mapped {
        Ok(_) => Ok(tree),
        // What everybody may read can be read all the same.
        Err(_) if read_only => Ok(tree),
        Err(errno) => Err(Error::Unsupported {
            what: format!(
                "a mount of `{}` that can be written (its file system, or one mounted below, cannot map ids: {})",
                source.display(),
                os_error(errno)
            ),
            hint: "mount it read-only, copy the files in and out, or run as the user that owns it".into(),
        }),
    }
}

/// Tries whether ids can be mapped on the file system of a folder.
pub(crate) fn try_id_mapping(folder: &Path, base: u32) -> Result<()> {
    let meta = fs::metadata(folder).on(folder)?;
    clone_for_range(folder, &meta, base, false).map(drop)
}

/// A user namespace that says that ids on disk `(user, group)` are `to`. Kept: there are few, and they cost nothing.
fn id_mapping(from: (u32, u32), to: u32) -> Result<i32> {
    type Known = HashMap<((u32, u32), u32), OwnedFd>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(namespace) = known.get(&(from, to)) {
        return Ok(namespace.as_raw_fd());
    }
    let namespace = make_id_mapping(from, to)
        .map_err(|error| launch::failed("map the ids of a mounted folder", error))?;
    let raw = namespace.as_raw_fd();
    known.insert((from, to), namespace);
    Ok(raw)
}

/// A namespace exists as long as a process or descriptor has it, so a process is started for it, and ended.
fn make_id_mapping((user, group): (u32, u32), to: u32) -> io::Result<OwnedFd> {
    let mut stack = vec![0u8; 16 * 1024];
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top as usize % 16);
    let mut pidfd = -1;
    // Without an exit signal, so that nobody else who waits for children meets it.
    let flags = sys::CLONE_VM | sys::CLONE_PIDFD | sys::CLONE_NEWUSER;
    // SAFETY: the stack is freed only after the process has been waited for, below; it touches nothing else.
    let pid = unsafe { sys::clone_onto(flags, top, &raw mut pidfd, sleep, std::ptr::null_mut()) }
        .map_err(os_error)?;
    // SAFETY: the kernel stored a new descriptor there, which nobody else knows.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let namespace = (|| {
        fs::write(format!("/proc/{pid}/uid_map"), format!("{user} {to} 1"))?;
        fs::write(format!("/proc/{pid}/gid_map"), format!("{group} {to} 1"))?;
        Ok(OwnedFd::from(fs::File::open(format!("/proc/{pid}/ns/user"))?))
    })();
    let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
    launch::reap(pid);
    drop(stack);
    namespace
}

unsafe extern "C" fn sleep(_: *mut u8) -> ! {
    loop {
        // SAFETY: no descriptors, no timeout, no mask: waits until killed.
        let _ = unsafe { raw!(nr::PPOLL, 0, 0, 0, 0, 8) };
    }
}

fn os_error(Errno(number): Errno) -> io::Error {
    io::Error::from_raw_os_error(number)
}
