//! The folder where sandboxes keep what they write, and the skeleton that they all begin with.
//!
//! ```text
//! STATE/                 0700, the caller's
//!   skeleton-HASH/       the lowest layer of every root, read-only, made once
//!   sandboxes/           0700, the guests'
//!     ID/                a sandbox's, locked by its guest; without a lock it is abandoned
//!       control          the socket to connect to
//!       guest            a link that says the number of its guest's process
//!       upper/ work/     what it wrote
//!     .new-RANDOM/       one that is being built
//! ```

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, Permissions};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use capbox_guest::proto::CODE_ID;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};

use crate::ended::ended_blocking;
use crate::error::{Context, Error, Result};
use crate::launch::{Ids, RANGE};

/// Where the ids of sandboxes begin if `/etc/subuid` gives root no range: far above what user databases hand out.
const DEFAULT_BASE: u32 = 0x7000_0000;
/// How long a sandbox may take to be built before its folder counts as abandoned.
const BUILDING: Duration = Duration::from_secs(10);

/// The state folder, opened.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) root: PathBuf,
    pub(crate) sandboxes: PathBuf,
    pub(crate) skeleton: PathBuf,
    /// Folders of the host that every sandbox sees.
    pub(crate) system: Vec<PathBuf>,
    pub(crate) ids: Ids,
}

impl State {
    pub(crate) fn open(chosen: Option<&Path>) -> Result<Self> {
        let ids = ids()?;
        let root = match chosen {
            Some(path) => path.to_owned(),
            None => default_root()?,
        };
        let unusable = |reason: String| Error::State { path: root.display().to_string(), reason };
        // By its real name, since mounts are compared with it. Whose folder a link leads to is checked below.
        fs::create_dir_all(&root).map_err(|error| unusable(error.to_string()))?;
        let root = fs::canonicalize(&root).map_err(|error| unusable(error.to_string()))?;
        let sandboxes = root.join("sandboxes");
        for (folder, owner) in [(&root, None), (&sandboxes, Some(ids))] {
            private_folder(folder, owner).map_err(|error| match error {
                Error::State { .. } => error,
                other => unusable(other.to_string()),
            })?;
        }
        let system = system_folders();
        let skeleton = skeleton(&root, ids, &system)?;
        Ok(Self { root, sandboxes, skeleton, system, ids })
    }

    /// The ids and folders of all that look like sandboxes, in no order.
    pub(crate) fn folders(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.sandboxes).on(&self.sandboxes)?;
        let mut names = Vec::new();
        for entry in entries {
            // What is not UTF-8 is not ours.
            names.extend(entry.on(&self.sandboxes)?.file_name().into_string().ok());
        }
        Ok(names)
    }

    /// Removes the folder `name` if it is one of ours and no guest holds it. Says whether it did.
    pub(crate) fn remove_abandoned(&self, name: &str) -> Result<bool> {
        let path = self.sandboxes.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                return Ok(false);
            }
            Err(error) => return Err(error).on(&path),
        };
        let stat = rustix::fs::fstat(&folder).on(&path)?;
        let ours = match self.ids {
            Ids::Range { base } => (base..base + RANGE).contains(&stat.st_uid),
            Ids::Own { uid, .. } => stat.st_uid == uid,
        };
        if !ours || rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        if name.starts_with('.') {
            // Not locked yet, perhaps: the lock comes right after the folder.
            let age = File::from(folder.try_clone().on(&path)?).metadata().and_then(|meta| meta.modified());
            let age = age.map(|modified| SystemTime::now().duration_since(modified).unwrap_or_default());
            if age.is_ok_and(|age| age < BUILDING) {
                return Ok(false);
            }
        }
        if !guest_has_ended(&folder) {
            return Ok(false);
        }
        remove_contents(&folder);
        rustix::fs::unlinkat(rustix::fs::CWD, &path, AtFlags::REMOVEDIR).on(&path)?;
        Ok(true)
    }
}

/// Whether the guest of a folder that is not locked any more, and with it all that ran in the sandbox, has ended. Waits for
/// one that is about to.
fn guest_has_ended(folder: &impl AsFd) -> bool {
    let number = rustix::fs::readlinkat(folder, "guest", Vec::new()).ok();
    let number = number.and_then(|number| number.to_str().ok()?.parse().ok());
    let Some(guest) = number.and_then(rustix::process::Pid::from_raw) else { return true };
    // Numbers are used again.
    let name = fs::read(format!("/proc/{guest}/comm"));
    name.is_ok_and(|name| name != b"capbox-guest\n") || ended_blocking(guest)
}

fn default_root() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = from("CAPBOX_STATE_DIR") {
        // Else the sandboxes that there are would depend on where the caller stands.
        if !path.is_absolute() {
            let reason = "`CAPBOX_STATE_DIR` is not an absolute path".into();
            return Err(Error::State { path: path.display().to_string(), reason });
        }
        return Ok(path);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/capbox".into());
    }
    from("XDG_STATE_HOME")
        .filter(|folder| folder.is_absolute())
        .or_else(|| from("HOME").map(|home| home.join(".local/state")))
        .map(|folder| folder.join("capbox"))
        .ok_or_else(|| Error::InvalidArgument {
            name: "state folder",
            reason: "neither `CAPBOX_STATE_DIR` nor `HOME` is set".into(),
        })
}

/// The ids that sandboxes get. Root gives them a range of their own, never its own id: much of the kernel asks for
/// nothing else.
fn ids() -> Result<Ids> {
    let uid = rustix::process::geteuid();
    let own = Ids::Own { uid: uid.as_raw(), gid: rustix::process::getegid().as_raw() };
    if !uid.is_root() {
        return Ok(own);
    }
    let mapped = fs::read_to_string("/proc/self/uid_map").context(|| "read /proc/self/uid_map".into())?;
    let covers = |base: u32| {
        mapped.lines().any(|line| {
            let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().unwrap_or(0));
            let (first, count) = (numbers.next().unwrap_or(0), numbers.nth(1).unwrap_or(0));
            first <= u64::from(base) && u64::from(base) + u64::from(RANGE) <= first + count
        })
    };
    let candidates = [subordinate_base(), Some(DEFAULT_BASE), Some(RANGE)];
    // Within another user namespace there may be no such range. Its root is not the host's.
    Ok(candidates.into_iter().flatten().find(|base| covers(*base)).map_or(own, |base| Ids::Range { base }))
}

/// The range that `/etc/subuid` and `/etc/subgid` both give root.
fn subordinate_base() -> Option<u32> {
    let base = |file| {
        let text = fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let user = fields.next()?;
            let (base, count) = (fields.next()?.parse().ok()?, fields.next()?.parse::<u32>().ok()?);
            (matches!(user, "root" | "0") && count >= RANGE).then_some(base)
        })
    };
    let base: Option<u32> = base("/etc/subuid").filter(|uids| base("/etc/subgid") == Some(*uids));
    base.filter(|base| *base > 0)
}

/// A folder for its owner alone: what is below may be set-user-id, and none of anybody else's business.
fn private_folder(path: &Path, ids: Option<Ids>) -> Result<()> {
    fs::create_dir_all(path).on(path)?;
    let meta = fs::symlink_metadata(path).on(path)?;
    let me = rustix::process::geteuid().as_raw();
    let owner = match ids {
        Some(Ids::Range { base }) => base,
        _ => me,
    };
    let unusable = |reason: &str| Error::State { path: path.display().to_string(), reason: reason.into() };
    if !meta.is_dir() {
        return Err(unusable("it is not a folder"));
    }
    if ![me, owner].contains(&meta.uid()) {
        return Err(unusable("it belongs to another user"));
    }
    if meta.permissions().mode() & 0o7777 != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(0o700)).on(path)?;
    }
    if meta.uid() != owner {
        chown(path, Some(owner), Some(owner)).on(path)?;
    }
    Ok(())
}

/// What of the host every sandbox sees, read-only: programs, and what they need of `/etc` that changes on its own.
pub(crate) const SYSTEM_FOLDERS: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ssl", "/etc/pki", "/etc/alternatives"];

/// Those that this host has. On one with a single `/usr`, some are links into it.
fn system_folders() -> Vec<PathBuf> {
    let is_folder = |path: &&&str| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    SYSTEM_FOLDERS.iter().filter(is_folder).map(PathBuf::from).collect()
}

/// Files and folders of the host's `/etc` that are copied, as far as everybody may read them.
const COPIED: &[&str] = &[
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "services",
    "protocols",
    "mime.types",
    "localtime",
    "timezone",
    "bash.bashrc",
    "inputrc",
    "ca-certificates.conf",
    "fonts",
    "perl",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "crypto-policies",
    "terminfo",
];
/// Larger files are not configuration.
const COPIED_SIZE: u64 = 1 << 20;

/// Bump when what [`fill`] makes changes.
const SKELETON_VERSION: u32 = 1;

fn skeleton(root: &Path, ids: Ids, system: &[PathBuf]) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (SKELETON_VERSION, system, format!("{ids:?}")).hash(&mut hasher);
    for name in COPIED {
        if let Ok(meta) = fs::metadata(Path::new("/etc").join(name)) {
            (name, meta.mtime(), meta.mtime_nsec(), meta.size()).hash(&mut hasher);
        }
    }
    let path = root.join(format!("skeleton-{:016x}", hasher.finish()));
    if path.is_dir() {
        return Ok(path);
    }
    let building = root.join(format!(".skeleton-{}", random_name(12)));
    fs::create_dir(&building).on(&building)?;
    fs::set_permissions(&building, Permissions::from_mode(0o755)).on(&building)?;
    Skeleton { root: &building, ids }.fill(system)?;
    match fs::rename(&building, &path) {
        Ok(()) => Ok(path),
        // Another process was faster; theirs is the same.
        Err(_) if path.is_dir() => {
            let _ = fs::remove_dir_all(&building);
            Ok(path)
        }
        Err(error) => Err(error).on(&path),
    }
}

struct Skeleton<'a> {
    root: &'a Path,
    ids: Ids,
}

impl Skeleton<'_> {
    fn fill(&self, system: &[PathBuf]) -> Result<()> {
        self.own(self.root, 0)?;
        for folder in [
            "dev", "dev/pts", "dev/shm", "etc", "home", "mnt", "opt", "proc", "srv", "sys", "usr", "var",
            "run",
        ] {
            self.folder(folder, 0o755, 0)?;
        }
        for folder in ["var/cache", "var/lib", "var/log", "var/spool"] {
            self.folder(folder, 0o755, 0)?;
        }
        self.folder("root", 0o700, 0)?;
        self.folder("tmp", 0o1777, 0)?;
        self.folder("var/tmp", 0o1777, 0)?;
        self.folder("home/user", 0o755, CODE_ID)?;
        self.folder("work", 0o755, CODE_ID)?;
        self.link("var/run", "/run")?;
        self.link("var/lock", "/run/lock")?;
        self.folder("run/lock", 0o1777, 0)?;
        for path in system {
            let relative = path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
            if !self.root.join(&relative).exists() {
                self.folder(&relative, 0o755, 0)?;
            }
        }
        for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
            // On a host with one `/usr` these are links into it.
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                self.link(name, &target.to_string_lossy())?;
            }
        }
        for device in ["null", "zero", "full", "random", "urandom", "tty"] {
            self.file(&format!("dev/{device}"), b"")?;
        }
        for (name, target) in [
            ("dev/fd", "/proc/self/fd"),
            ("dev/stdin", "/proc/self/fd/0"),
            ("dev/stdout", "/proc/self/fd/1"),
            ("dev/stderr", "/proc/self/fd/2"),
            ("dev/ptmx", "pts/ptmx"),
            ("etc/mtab", "/proc/self/mounts"),
            ("etc/os-release", "../usr/lib/os-release"),
        ] {
            self.link(name, target)?;
        }
        self.configuration()
    }

    fn configuration(&self) -> Result<()> {
        let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
        let passwd = format!(
            "root:x:0:0:root:/root:{shell}\nuser:x:{CODE_ID}:{CODE_ID}:user:/home/user:{shell}\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        let group = format!("root:x:0:\ntty:x:5:\nuser:x:{CODE_ID}:\nnogroup:x:65534:\n");
        for (name, text) in [
            ("etc/passwd", &*passwd),
            ("etc/group", &*group),
            ("etc/hostname", "sandbox\n"),
            ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
            (
                "etc/nsswitch.conf",
                "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
            ),
            ("etc/resolv.conf", "# There is no network.\n"),
            ("etc/host.conf", "multi on\n"),
            ("etc/shells", "/bin/sh\n/bin/bash\n"),
            ("etc/profile", "# The environment is set from outside.\n"),
        ] {
            self.file(name, text.as_bytes())?;
        }
        for name in COPIED {
            self.copy(&Path::new("/etc").join(name), &format!("etc/{name}"))?;
        }
        Ok(())
    }

    /// Copies what is public; anything else is left out.
    fn copy(&self, source: &Path, target: &str) -> Result<()> {
        let Ok(meta) = fs::symlink_metadata(source) else { return Ok(()) };
        let everybody = meta.permissions().mode() & 0o004 != 0;
        if meta.is_symlink() {
            let Ok(link) = fs::read_link(source) else { return Ok(()) };
            self.link(target, &link.to_string_lossy())
        } else if meta.is_dir() && everybody {
            self.folder(target, 0o755, 0)?;
            for entry in fs::read_dir(source).into_iter().flatten().flatten() {
                if let Ok(name) = entry.file_name().into_string() {
                    self.copy(&entry.path(), &format!("{target}/{name}"))?;
                }
            }
            Ok(())
        } else if meta.is_file() && everybody && meta.len() <= COPIED_SIZE {
            fs::read(source).map_or(Ok(()), |bytes| self.file(target, &bytes))
        } else {
            Ok(())
        }
    }

    fn folder(&self, name: &str, mode: u32, owner: u32) -> Result<()> {
        let path = self.root.join(name);
        fs::create_dir(&path).on(&path)?;
        self.own(&path, owner)?;
        fs::set_permissions(&path, Permissions::from_mode(mode)).on(&path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.root.join(name);
        fs::write(&path, bytes).on(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o644)).on(&path)?;
        self.own(&path, 0)
    }

    fn link(&self, name: &str, target: &str) -> Result<()> {
        let path = self.root.join(name);
        symlink(target, &path).on(&path)?;
        self.own(&path, 0)
    }

    fn own(&self, path: &Path, owner: u32) -> Result<()> {
        match self.ids {
            Ids::Range { base } => {
                std::os::unix::fs::lchown(path, Some(base + owner), Some(base + owner)).on(path)
            }
            Ids::Own { .. } => Ok(()),
        }
    }
}

/// Removes all that is in a folder, of any depth, without recursion: folders found in folders are moved to the top.
///
/// The guest does the same for itself; this is for what a killed one left behind.
fn remove_contents(top: &impl AsFd) {
    let mut counter = 0u64;
    while pass(top, top, &mut counter) {}
}

/// One pass over a folder; says whether anything was removed or moved.
fn pass(top: &impl AsFd, folder: &impl AsFd, counter: &mut u64) -> bool {
    let mut progress = false;
    let Ok(entries) = rustix::fs::Dir::read_from(folder) else { return false };
    let at_top = top.as_fd().as_raw_fd() == folder.as_fd().as_raw_fd();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let removed = rustix::fs::unlinkat(folder, name, AtFlags::empty()).is_ok()
            || rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR).is_ok();
        progress |=
            removed || if at_top { empty(top, name, counter) } else { hoist(top, folder, name, counter) };
    }
    progress
}

fn empty(top: &impl AsFd, name: &std::ffi::CStr, counter: &mut u64) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(top, name, flags, Mode::empty());
    // A folder that its owner may not read is still its owner's to remove.
    let folder = open().or_else(|_| {
        unlock(top, name)?;
        open()
    });
    let Ok(folder) = folder else { return false };
    let _ = rustix::fs::fchmod(&folder, Mode::RWXU);
    while pass(top, &folder, counter) {}
    rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR).is_ok()
}

fn hoist(top: &impl AsFd, folder: &impl AsFd, name: &std::ffi::CStr, counter: &mut u64) -> bool {
    // Moving a folder writes to it.
    let _ = unlock(folder, name);
    loop {
        *counter += 1;
        let new = format!(".removed-{counter}");
        match rustix::fs::renameat_with(folder, name, top, &new, rustix::fs::RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => {}
            result => return result.is_ok(),
        }
    }
}

/// Lets its owner into a folder. A link is an error: it may lead to any file of the host.
fn unlock(parent: &impl AsFd, name: &std::ffi::CStr) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    // What is open as a path only takes no `fchmod`.
    let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
    rustix::fs::chmodat(rustix::fs::CWD, path, Mode::RWXU, AtFlags::empty())
}

/// Letters and digits from the kernel's random numbers.
pub(crate) fn random_name(len: usize) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bytes = vec![0u8; len];
    let mut filled = 0;
    while filled < len {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .unwrap_or_default();
    }
    bytes.iter().map(|byte| char::from(DIGITS[usize::from(byte & 31)])).collect()
}

/// Checks a name that a caller chose for a sandbox.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let invalid = |reason: &str| Err(Error::InvalidArgument { name: "name", reason: reason.into() });
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    if !(1..=63).contains(&bytes.len())
        || !alphanumeric(bytes[0])
        || !bytes.iter().all(|byte| alphanumeric(*byte) || *byte == b'-')
    {
        return invalid("use 1 to 63 lower-case letters, digits and dashes, no dash first");
    }
    if name.starts_with("sb-") {
        return invalid("names that begin with `sb-` are for sandboxes without a name");
    }
    Ok(())
}

/// Whether an id can be that of a sandbox; anything else is not looked up at all.
pub(crate) fn is_id(id: &str) -> bool {
    id.strip_prefix("sb-").map_or(check_name(id).is_ok(), |rest| {
        !rest.is_empty()
            && rest.len() <= 60
            && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    })
}

/// Opens a folder of the state for connecting below it: a socket's path must be short, this folder's may be long.
pub(crate) fn open_path(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is removed was written by hostile code, and may still be: a link can come in a folder's place.
    #[test]
    fn removing_follows_no_link() {
        let place = std::env::temp_dir().join(format!("capbox-state-{}", random_name(12)));
        let (mode, outside) = (Permissions::from_mode(0o751), place.join("outside"));
        fs::create_dir_all(place.join("top/folder")).expect("make folders");
        fs::create_dir(&outside).expect("make a folder");
        fs::set_permissions(&outside, mode.clone()).expect("set its mode");
        symlink(&outside, place.join("top/empty")).expect("make a link");
        symlink(&outside, place.join("top/folder/hoist")).expect("make a link");
        let open = |path: &str| File::open(place.join(path)).expect("open a folder");
        let (top, folder) = (open("top"), open("top/folder"));
        assert!(!empty(&top, c"empty", &mut 0));
        assert!(hoist(&top, &folder, c"hoist", &mut 0));
        let after = fs::metadata(&outside).expect("look at it").permissions();
        assert_eq!(after.mode() & 0o7777, mode.mode());
        fs::remove_dir_all(&place).expect("remove what was made");
    }
}
