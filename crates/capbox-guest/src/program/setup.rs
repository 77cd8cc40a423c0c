//! From a bare process in new namespaces to a sandbox.
//!
//! The order matters. While the old root is there, all that will be seen of the host is cloned out of it; then
//! the new root is put together and takes its place; then the rights to do any of this are given up for good.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::job::{CODE, User};
use crate::os::{self, Fd, resolve};
use crate::proto::{self, Boot, Event, GUEST_ID, Malformed, Mount, Request};
use crate::sys::{self, AT_FDCWD, Errno, Result, cap, nr};
use crate::users::Account;
use crate::{remove, seccomp, wire};

/// What building failed at.
pub(crate) struct Failure {
    pub(crate) step: &'static str,
    pub(crate) errno: Errno,
}

pub(crate) trait At<T> {
    /// Names what was tried.
    fn at(self, step: &'static str) -> core::result::Result<T, Failure>;
}

impl<T> At<T> for Result<T> {
    fn at(self, step: &'static str) -> core::result::Result<T, Failure> {
        self.map_err(|errno| Failure { step, errno })
    }
}

/// What this program supervises.
pub(crate) enum Place {
    /// A sandbox that it has built itself.
    Own,
    /// A container that something else has made.
    Container(Container),
}

/// What is particular to a container.
pub(crate) struct Container {
    /// All that this process may.
    pub(crate) rights: u64,
    /// The user that code runs as unless it asks for another.
    pub(crate) account: Account,
}

impl Place {
    /// The user that code runs as unless it asks for another.
    pub(crate) fn user(&self) -> User {
        match self {
            Self::Own => CODE,
            Self::Container(container) => container.account.user,
        }
    }

    /// The capabilities of this process.
    pub(crate) fn rights(&self) -> u64 {
        match self {
            Self::Own => cap::SERVE,
            Self::Container(container) => container.rights,
        }
    }
}

/// A finished sandbox, by the descriptors that lead to its parts.
pub(crate) struct Sandbox {
    pub(crate) place: Place,
    /// None in a container, which whoever made it removes.
    pub(crate) folder: Option<Folder>,
    /// Where clients connect.
    pub(crate) listener: Fd,
    pub(crate) proc: Fd,
    pub(crate) root: Fd,
    pub(crate) devpts: Fd,
    /// The limit on descriptors that jobs get: the creator's own.
    pub(crate) descriptors: [u64; 2],
}

impl Sandbox {
    /// Removes what it has on the host. Nothing may run any more.
    ///
    /// Answers as [`remove::contents`] does.
    pub(crate) fn remove(&self) -> Vec<Fd> {
        self.folder.as_ref().map(Folder::remove).unwrap_or_default()
    }
}

/// The sandbox's own folder on the host. It is locked for as long as this process lives: a folder that can be
/// locked is abandoned.
pub(crate) struct Folder {
    parent: Fd,
    own: Fd,
    name: Vec<u8>,
}

impl Folder {
    /// Made under a name of its own, so that whoever sees it by its id finds it locked and complete.
    fn create(parent: Fd) -> core::result::Result<Self, Failure> {
        let mut random = [0; 8];
        os::random(&mut random);
        let mut name = Vec::from(*b".new-");
        name.extend(random.iter().flat_map(|byte| [b'a' + (byte >> 4), b'a' + (byte & 15)]));
        let path = os::path(&name).at("name the sandbox's folder")?;
        os::mkdirat(parent.raw(), &path, 0o700).at("make the sandbox's folder")?;
        let own = os::openat(parent.raw(), &path, sys::O_RDONLY | sys::O_DIRECTORY | sys::O_NOFOLLOW, 0)
            .at("open the sandbox's folder")?;
        os::flock_exclusive(own.raw()).at("lock the sandbox's folder")?;
        // The kernel frees the lock of a killed process before it ends what else is in its namespaces. This tells whose
        // end to wait for: this process's number outside, where its creator's `/proc` is.
        if let Ok(number) = os::readlinkat(AT_FDCWD, c"/proc/self", &mut [0; 16]) {
            os::symlinkat(&os::path(number).at("name the guest")?, own.raw(), c"guest")
                .at("name the guest")?;
        }
        Ok(Self { parent, own, name })
    }

    /// Gives the folder its id, which is taken for as long as the folder is there.
    fn claim(&mut self, id: &[u8]) -> Result<()> {
        let (from, to) = (os::path(&self.name)?, os::path(id)?);
        os::renameat2(self.parent.raw(), &from, self.parent.raw(), &to, os::RENAME_NOREPLACE)?;
        self.name = id.to_vec();
        Ok(())
    }

    /// Removes the folder and all that is in it. Nothing may run any more.
    ///
    /// Answers as [`remove::contents`] does.
    pub(crate) fn remove(&self) -> Vec<Fd> {
        let removed = remove::contents(&self.own);
        if let Ok(path) = os::path(&self.name) {
            let _ = os::unlinkat(self.parent.raw(), &path, sys::AT_REMOVEDIR);
        }
        removed
    }
}

/// Waits for the order to build. What needs no ids is done meanwhile: the creator is writing the maps.
pub(crate) fn receive(owner: &Fd) -> Result<(Boot, Vec<Fd>)> {
    let _ = os::prctl(sys::PR_SET_NAME, c"capbox-guest".as_ptr() as usize, 0);
    loopback_up();
    // A session keyring of its own; the creator's would be inherited. KEYCTL_JOIN_SESSION_KEYRING.
    // SAFETY: a null name asks for an anonymous keyring.
    let _ = unsafe { raw!(nr::KEYCTL, 1, 0) };

    let mut buffer = os::buffer(proto::MAX_PACKET);
    let packet = wire::receive(owner.raw(), &mut buffer, true)?.ok_or(Errno::PIPE)?;
    match Request::decode(&packet.bytes) {
        Ok(Request::Boot { boot }) => Ok((boot, packet.fds)),
        Err(Malformed::Version(_)) => {
            let version = Event::Version { version: proto::VERSION };
            wire::send(owner.raw(), &version.encode(), &[])?;
            Err(Errno::PROTO)
        }
        _ => Err(Errno::PROTO),
    }
}

pub(crate) fn build(boot: &Boot, sources: Vec<Fd>) -> core::result::Result<Sandbox, Failure> {
    // Before the change of ids: on the way there may be folders for the creator alone.
    let sandboxes = open_folder(&boot.sandboxes).at("open the folder of all sandboxes")?;
    let skeleton = open_folder(&boot.skeleton).at("open the skeleton")?;
    become_guest(boot)?;
    let mut folder = Folder::create(sandboxes)?;
    let built = furnish(boot, sources, &folder, &skeleton).and_then(|parts| {
        give_up_rights()?;
        folder.claim(&boot.id).at("claim the id")?;
        Ok(parts)
    });
    match built {
        Ok(Parts { listener, proc, root, devpts, descriptors }) => {
            Ok(Sandbox { place: Place::Own, folder: Some(folder), listener, proc, root, devpts, descriptors })
        }
        Err(failure) => {
            let _removed = folder.remove();
            Err(failure)
        }
    }
}

/// Takes an id that is mapped. Where several are, it is one that no code can have.
fn become_guest(boot: &Boot) -> core::result::Result<(), Failure> {
    // SAFETY: takes no pointers.
    let _ = unsafe { raw!(nr::UMASK, 0) };
    if boot.several_ids {
        // SAFETY: no groups, no pointers.
        unsafe {
            raw!(nr::SETGROUPS, 0, 0).at("leave the creator's groups")?;
            raw!(nr::SETRESGID, GUEST_ID, GUEST_ID, GUEST_ID).at("take the guest's group")?;
            raw!(nr::SETRESUID, GUEST_ID, GUEST_ID, GUEST_ID).at("take the guest's user")?;
        }
        // A change of ids hides /proc/self; it is hidden again once nothing here needs it.
        os::prctl(sys::PR_SET_DUMPABLE, 1, 0).at("show /proc/self")?;
    }
    Ok(())
}

struct Parts {
    listener: Fd,
    proc: Fd,
    root: Fd,
    devpts: Fd,
    descriptors: [u64; 2],
}

fn open_folder(path: &[u8]) -> Result<Fd> {
    os::openat(AT_FDCWD, &os::path(path)?, sys::O_PATH | sys::O_DIRECTORY, 0)
}

fn furnish(
    boot: &Boot,
    sources: Vec<Fd>,
    folder: &Folder,
    skeleton: &Fd,
) -> core::result::Result<Parts, Failure> {
    let listener = listen(folder)?;
    let system = clone_system(&boot.system)?;
    let devices = clone_devices()?;
    let mounts = clone_mounts(&boot.mounts, sources)?;
    let overlay = mount_root(boot, folder, skeleton)?;

    // Any folder will do: it is gone, with the rest of the old root, a moment later.
    move_mount(&overlay, AT_FDCWD, c"/usr").at("attach the new root")?;
    os::fchdir(overlay.raw()).at("enter the new root")?;
    for (path, tree) in &system {
        move_mount(tree, AT_FDCWD, relative(path)).at("attach a system folder")?;
    }
    let dev = os::openat(AT_FDCWD, c"dev", sys::O_PATH | sys::O_DIRECTORY, 0).at("open /dev")?;
    for (name, tree) in &devices {
        move_mount(tree, dev.raw(), name).at("attach a device")?;
    }
    let devpts = mount_new(
        c"devpts",
        &[
            (c"newinstance", None),
            (c"ptmxmode", Some(c"0666")),
            (c"mode", Some(c"0620")),
            (c"max", Some(c"256")), // of some thousand that all of the machine shares
        ],
        attr::NOSUID | attr::NOEXEC,
        c"dev/pts",
    )
    .at("mount /dev/pts")?;
    let shm = os::path(&decimal(boot.shm)).at("size /dev/shm")?;
    let root = if boot.several_ids { c"0" } else { c"1000" };
    mount_new(
        c"tmpfs",
        &[(c"mode", Some(c"1777")), (c"size", Some(&shm)), (c"uid", Some(root)), (c"gid", Some(root))],
        attr::NOSUID | attr::NODEV,
        c"dev/shm",
    )
    .at("mount /dev/shm")?;
    // While the old root is there: the kernel wants to see a fully visible /proc before it makes another.
    mount_new(
        c"proc",
        &[(c"hidepid", Some(c"invisible"))],
        attr::NOSUID | attr::NODEV | attr::NOEXEC,
        c"proc",
    )
    .at("mount /proc")?;
    for list in [c"proc/keys", c"proc/key-users"] {
        // These are the user's, not the sandbox's.
        let nothing = clone_tree(AT_FDCWD, c"/dev/null", false).at("clone a device")?;
        restrict(&nothing, attr::RDONLY | attr::NOSUID | attr::NOEXEC).at("protect a device")?;
        match move_mount(&nothing, AT_FDCWD, list) {
            Err(Errno::NOENT) => {} // a kernel without keyrings
            result => result.at("cover the lists of keys")?,
        }
    }
    // And one for this program alone, which must see all processes.
    let proc_mount =
        new_mount(c"proc", &[], attr::NOSUID | attr::NODEV | attr::NOEXEC).at("mount /proc")?;
    let proc = os::openat(proc_mount.raw(), c".", sys::O_RDONLY | sys::O_DIRECTORY, 0).at("open /proc")?;
    // Never closed: that would unmount it, and the kernel would wait until no processor can be looking at it.
    core::mem::forget(proc_mount);
    for (mount, tree) in boot.mounts.iter().zip(mounts) {
        attach_mount(boot, mount, &tree)?;
    }

    // SAFETY: both paths end with a NUL.
    unsafe { raw!(nr::PIVOT_ROOT, c".".as_ptr(), c".".as_ptr()) }.at("change the root")?;
    // SAFETY: the path ends with a NUL. MNT_DETACH.
    unsafe { raw!(nr::UMOUNT2, c".".as_ptr(), 2) }.at("leave the old root")?;
    os::chdir(c"/").at("enter the root")?;

    let name = &boot.hostname;
    // SAFETY: the name is as long as is passed.
    unsafe { raw!(nr::SETHOSTNAME, name.as_ptr(), name.len()) }.at("set the host name")?;
    let descriptors = set_limits(boot)?;
    no_user_namespaces(&proc).at("close user namespaces")?;
    share_notifications(&proc).at("limit file notifications")?;
    let root = os::openat(AT_FDCWD, c"/", sys::O_PATH | sys::O_DIRECTORY, 0).at("open the root")?;
    Ok(Parts { listener, proc, root, devpts, descriptors })
}

fn loopback_up() {
    // `struct ifreq`: a name of 16 bytes, then the flags. SIOCSIFFLAGS, IFF_UP.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = 1;
    if let Ok(socket) = os::socket(os::AF_INET, os::SOCK_DGRAM) {
        // SAFETY: the buffer is as large as `struct ifreq`.
        let _ = unsafe { os::ioctl(socket.raw(), 0x8914, request.as_ptr() as usize) };
    }
}

fn listen(folder: &Folder) -> core::result::Result<Fd, Failure> {
    let listener = os::socket(os::AF_UNIX, os::SOCK_SEQPACKET).at("make the control socket")?;
    let path = os::numbered("/proc/self/fd/", folder.own.raw() as u32, "/control");
    os::bind_unix(listener.raw(), &path).at("bind the control socket")?;
    os::listen(listener.raw()).at("listen on the control socket")?;
    os::set_nonblocking(listener.raw()).at("listen on the control socket")?;
    Ok(listener)
}

/// Read-only and private: nothing that is mounted on the host later shows up.
fn clone_system(paths: &[proto::Bytes]) -> core::result::Result<Vec<(os::Path, Fd)>, Failure> {
    let mut trees = Vec::with_capacity(paths.len());
    for path in paths {
        let path = os::path(path).at("name a system folder")?;
        let tree = clone_tree(AT_FDCWD, &path, true).at("clone a system folder")?;
        restrict(&tree, attr::RDONLY | attr::NOSUID | attr::NODEV).at("protect a system folder")?;
        trees.push((path, tree));
    }
    Ok(trees)
}

fn clone_devices() -> core::result::Result<[(&'static CStr, Fd); 6], Failure> {
    let device = |path: &'static CStr, name: &'static CStr| {
        let tree = clone_tree(AT_FDCWD, path, false).at("clone a device")?;
        restrict(&tree, attr::NOSUID | attr::NOEXEC).at("protect a device")?;
        Ok((name, tree))
    };
    Ok([
        device(c"/dev/null", c"null")?,
        device(c"/dev/zero", c"zero")?,
        device(c"/dev/full", c"full")?,
        device(c"/dev/random", c"random")?,
        device(c"/dev/urandom", c"urandom")?,
        device(c"/dev/tty", c"tty")?,
    ])
}

/// The creator passes what it alone may reach; the rest is found by path and compared with what it saw there.
fn clone_mounts(mounts: &[Mount], sources: Vec<Fd>) -> core::result::Result<Vec<Fd>, Failure> {
    let mut sources = sources.into_iter();
    let mut trees = Vec::with_capacity(mounts.len());
    for mount in mounts {
        let tree = if mount.source.is_empty() {
            sources.next().ok_or(Errno::PROTO).at("take a mounted folder")?
        } else {
            let path = os::path(&mount.source).at("name a mounted folder")?;
            let tree = clone_tree(AT_FDCWD, &path, true).at("clone a mounted folder")?;
            let stat = os::statx(tree.raw(), c"", sys::AT_EMPTY_PATH).at("look at a mounted folder")?;
            let device = u64::from(stat.dev_major) << 32 | u64::from(stat.dev_minor);
            if (device, stat.inode) != mount.identity {
                return Err(Errno::NOENT).at("find a mounted folder again");
            }
            tree
        };
        let read_only = if mount.read_only { attr::RDONLY } else { 0 };
        restrict(&tree, read_only | attr::NOSUID | attr::NODEV).at("protect a mounted folder")?;
        trees.push(tree);
    }
    Ok(trees)
}

/// The root: a writable layer over the skeleton. Neutral paths, since the code can read them in `mountinfo`.
fn mount_root(boot: &Boot, folder: &Folder, skeleton: &Fd) -> core::result::Result<Fd, Failure> {
    let memory = match boot.memory_upper {
        0 => None,
        size => {
            let size = os::path(&decimal(size)).at("size the writable layer")?;
            let options = [(c"mode", Some(c"0755")), (c"size", Some(&*size))];
            Some(new_mount(c"tmpfs", &options, attr::NODEV | attr::NOSUID).at("mount the writable layer")?)
        }
    };
    let place = memory.as_ref().unwrap_or(&folder.own);
    os::mkdirat(place.raw(), c"upper", 0o755).at("make the writable layer")?;
    os::mkdirat(place.raw(), c"work", 0o700).at("make the writable layer")?;
    if boot.several_ids {
        os::fchownat(place.raw(), c"upper", 0, 0, 0).at("own the writable layer")?;
    }
    os::fchdir(place.raw()).at("enter the sandbox's folder")?;
    let skeleton = os::numbered("/proc/self/fd/", skeleton.raw() as u32, "");
    let options = [
        (c"lowerdir", Some(&*skeleton)),
        (c"upperdir", Some(c"upper")),
        (c"workdir", Some(c"work")),
        (c"userxattr", None), // the attributes that a mounter without privileges may set
        (c"volatile", None),  // nobody needs this layer after a crash
        (c"xino", Some(c"off")),
        (c"index", Some(c"off")), // so that layers can be stacked anew
    ];
    new_mount(c"overlay", &options, attr::NOSUID | attr::NODEV).at("mount the root (overlay)")
}

/// Attaches a chosen folder, making its mount point if needed. Links on the way are an error, wherever they came
/// from.
fn attach_mount(boot: &Boot, mount: &Mount, tree: &Fd) -> core::result::Result<(), Failure> {
    const STEP: &str = "make a mount point";
    let target = relative_bytes(&mount.target);
    let mut at = os::openat(AT_FDCWD, c".", sys::O_PATH | sys::O_DIRECTORY, 0).at(STEP)?;
    for name in target.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if name == b"." || name == b".." {
            return Err(Errno::INVAL).at(STEP);
        }
        let name = os::path(name).at(STEP)?;
        match os::mkdirat(at.raw(), &name, 0o755) {
            Ok(()) if boot.several_ids => os::fchownat(at.raw(), &name, 0, 0, 0).at(STEP)?,
            Ok(()) | Err(_) => {} // what cannot be made and is not there fails to open
        }
        at = os::openat2(
            at.raw(),
            &name,
            sys::O_PATH | sys::O_DIRECTORY,
            0,
            resolve::NO_SYMLINKS | resolve::NO_MAGICLINKS,
        )
        .at(STEP)?;
    }
    move_mount(tree, at.raw(), c"").at("attach a mounted folder")?;
    for path in &mount.hide {
        hide(tree, path).at("hide the state folder in a mounted folder")?;
    }
    for path in &mount.protect {
        protect(tree, path).at("protect a file in a mounted folder")?;
    }
    Ok(())
}

/// Makes one path below a mount read-only, if it is there.
///
/// Everything on the way becomes a mount point, too: what is one cannot be renamed, so the folder around a
/// protected file cannot be moved aside and replaced.
fn protect(tree: &Fd, path: &[u8]) -> Result<()> {
    let mut end = 0;
    loop {
        end += path[end..].iter().position(|byte| *byte == b'/').unwrap_or(path.len() - end);
        let prefix = os::path(&path[..end])?;
        let last = end == path.len();
        let resolve = resolve::BENEATH | resolve::NO_SYMLINKS | resolve::NO_MAGICLINKS;
        let place = match os::openat2(tree.raw(), &prefix, sys::O_PATH, 0, resolve) {
            Ok(place) => place,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            // A link could be pointed elsewhere at any time, so that nothing about it can be kept.
            Err(error) => return Err(error),
        };
        let clone = clone_tree(place.raw(), c"", true)?;
        if last {
            restrict(&clone, attr::RDONLY)?;
        }
        move_mount(&clone, place.raw(), c"")?;
        if last {
            return Ok(());
        }
        end += 1;
    }
}

/// Covers a folder below a mount with nothing. Whatever is renamed around it, the cover goes with it.
fn hide(tree: &Fd, path: &[u8]) -> Result<()> {
    let flags = sys::O_PATH | sys::O_DIRECTORY;
    let resolve = resolve::BENEATH | resolve::NO_SYMLINKS | resolve::NO_MAGICLINKS;
    let place = os::openat2(tree.raw(), &os::path(path)?, flags, 0, resolve)?;
    let nothing =
        new_mount(c"tmpfs", &[(c"mode", Some(c"0555"))], attr::RDONLY | attr::NOSUID | attr::NODEV)?;
    move_mount(&nothing, place.raw(), c"")
}

fn set_limits(boot: &Boot) -> core::result::Result<[u64; 2], Failure> {
    // Not 0: a core handler that is a program runs as root of the host even then, but not for 1.
    os::set_limit(os::RLIMIT_CORE, [1, 1]).at("limit core dumps")?;
    let [_, most] = os::limit(os::RLIMIT_NPROC).at("limit processes")?;
    let processes = boot.processes.min(most);
    os::set_limit(os::RLIMIT_NPROC, [processes, processes]).at("limit processes")?;
    // Counted for the creator, too.
    for limit in [os::RLIMIT_SIGPENDING, os::RLIMIT_MSGQUEUE] {
        let [_, most] = os::limit(limit).at("limit queues")?;
        os::set_limit(limit, [most / SHARE; 2]).at("limit queues")?;
    }
    let [_, hard] = os::limit(os::RLIMIT_NOFILE).at("limit descriptors")?;
    os::set_limit(os::RLIMIT_NOFILE, [hard; 2]).at("limit descriptors")?;
    // A user may have as many descriptors on their way through sockets as the sender may have open. With the creator's
    // own id inside, code that may have as many as this program and its clients could keep them all from sending any.
    let most = if boot.several_ids { hard } else { hard / 2 };
    // Not the creator's, which may need many: programs go through all that they may have.
    Ok([most.min(USUAL_DESCRIPTORS), most])
}

/// How many descriptors a program may have that does not ask for more, as on most systems.
const USUAL_DESCRIPTORS: u64 = 1024;

/// What is counted for the sandbox's creator as well: the part of it that one sandbox may use up.
const SHARE: u64 = 4;

fn share_notifications(proc: &Fd) -> Result<()> {
    for (all, own) in [
        (c"sys/fs/inotify/max_user_instances", c"sys/user/max_inotify_instances"),
        (c"sys/fs/inotify/max_user_watches", c"sys/user/max_inotify_watches"),
    ] {
        // A kernel without them has nothing to limit.
        let (Ok(all), Ok(own)) =
            (os::openat(proc.raw(), all, sys::O_RDONLY, 0), os::openat(proc.raw(), own, sys::O_WRONLY, 0))
        else {
            continue;
        };
        let mut buffer = [0; 32];
        let len = os::read(all.raw(), &mut buffer)?;
        let all =
            core::str::from_utf8(&buffer[..len]).ok().and_then(|text| text.trim_ascii().parse::<u64>().ok());
        if let Some(all) = all {
            os::write(own.raw(), &decimal((all / SHARE).max(1)))?;
        }
    }
    Ok(())
}

/// The limit is that of this user namespace: nobody below can make another one.
fn no_user_namespaces(proc: &Fd) -> Result<()> {
    let limit = os::openat(proc.raw(), c"sys/user/max_user_namespaces", sys::O_WRONLY, 0)?;
    os::write(limit.raw(), b"0").map(drop)
}

/// Gives up, for this process and for good, all that building needed and serving does not.
fn give_up_rights() -> core::result::Result<(), Failure> {
    /// Uid 0 is nobody special, and changes of ids do not move capabilities; both locked, as is raising any.
    const SECUREBITS: usize = 0b1110_1111;
    for capability in 0..=63 {
        if os::prctl(sys::PR_CAPBSET_DROP, capability, 0).is_err() {
            break; // beyond the last one that this kernel has
        }
    }
    os::prctl(sys::PR_CAP_AMBIENT, sys::PR_CAP_AMBIENT_CLEAR_ALL, 0).at("clear ambient capabilities")?;
    os::prctl(sys::PR_SET_SECUREBITS, SECUREBITS, 0).at("lock securebits")?;
    os::prctl(sys::PR_SET_NO_NEW_PRIVS, 1, 0).at("set no_new_privs")?;
    sys::capset(cap::SERVE, cap::SERVE, 0).at("drop capabilities")?;
    os::prctl(sys::PR_SET_DUMPABLE, 0, 0).at("hide from ptrace")?;
    seccomp::Filter::general().install().at("install the system call filter")
}

/// Attributes of mounts.
mod attr {
    pub(crate) const RDONLY: u64 = 1;
    pub(crate) const NOSUID: u64 = 2;
    pub(crate) const NODEV: u64 = 4;
    pub(crate) const NOEXEC: u64 = 8;
}

fn clone_tree(dir: i32, path: &CStr, recursive: bool) -> Result<Fd> {
    let flags = 1 | sys::O_CLOEXEC // OPEN_TREE_CLONE
        | if recursive { sys::AT_RECURSIVE } else { 0 }
        | if path.is_empty() { sys::AT_EMPTY_PATH } else { 0 };
    // SAFETY: the path ends with a NUL.
    unsafe { raw!(nr::OPEN_TREE, dir, path.as_ptr(), flags) }.map(|fd| Fd::inherited(fd as i32))
}

fn restrict(tree: &Fd, attributes: u64) -> Result<()> {
    let attributes: [u64; 4] = [attributes, 0, 1 << 18, 0]; // set, clear, MS_PRIVATE, no user namespace
    let flags = sys::AT_EMPTY_PATH | sys::AT_RECURSIVE;
    // SAFETY: the path ends with a NUL; `struct mount_attr` is four 64-bit integers.
    unsafe { raw!(nr::MOUNT_SETATTR, tree.raw(), c"".as_ptr(), flags, attributes.as_ptr(), 32) }.map(drop)
}

fn new_mount(kind: &CStr, options: &[(&CStr, Option<&CStr>)], attributes: u64) -> Result<Fd> {
    // SAFETY: every string ends with a NUL; a flag has no value, and creating takes neither key nor value.
    unsafe {
        let context = raw!(nr::FSOPEN, kind.as_ptr(), 1)?; // FSOPEN_CLOEXEC
        let context = Fd::inherited(context as i32);
        for (key, value) in options {
            let command = usize::from(value.is_some()); // FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING
            let value = value.map_or(0, |value| value.as_ptr() as usize);
            raw!(nr::FSCONFIG, context.raw(), command, key.as_ptr(), value, 0)?;
        }
        raw!(nr::FSCONFIG, context.raw(), 6, 0, 0, 0)?; // FSCONFIG_CMD_CREATE
        raw!(nr::FSMOUNT, context.raw(), 1, attributes).map(|fd| Fd::inherited(fd as i32))
    }
}

fn mount_new(kind: &CStr, options: &[(&CStr, Option<&CStr>)], attributes: u64, target: &CStr) -> Result<Fd> {
    let mount = new_mount(kind, options, attributes)?;
    move_mount(&mount, AT_FDCWD, target)?;
    Ok(mount)
}

/// Attaches a tree without following a link at the end of the target.
fn move_mount(tree: &Fd, dir: i32, target: &CStr) -> Result<()> {
    // MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH
    let flags = 0x4 | if target.is_empty() { 0x40 } else { 0 };
    // SAFETY: both paths end with a NUL.
    unsafe { raw!(nr::MOVE_MOUNT, tree.raw(), c"".as_ptr(), dir, target.as_ptr(), flags) }.map(drop)
}

/// An absolute path, from the folder that is about to become the root.
fn relative(path: &CStr) -> &CStr {
    let slashes = path.to_bytes().iter().take_while(|byte| **byte == b'/').count();
    CStr::from_bytes_with_nul(&path.to_bytes_with_nul()[slashes..]).unwrap_or_default()
}

fn relative_bytes(path: &[u8]) -> &[u8] {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    &path[slashes..]
}

fn decimal(mut number: u64) -> Vec<u8> {
    let mut digits = Vec::new();
    loop {
        digits.insert(0, b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            return digits;
        }
    }
}
