//! The system calls this program makes, typed.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;

use crate::job::User;
use crate::sys::{self, Errno, Result, nr};

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(i32);

impl Fd {
    pub(crate) fn raw(&self) -> i32 {
        self.0
    }

    /// Takes over a descriptor that something else opened for this program.
    pub(crate) fn inherited(raw: i32) -> Self {
        Self(raw)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: takes no pointers; the descriptor is this value's own.
        let _ = unsafe { raw!(nr::CLOSE, self.0) };
    }
}

fn owned(answer: Result<usize>) -> Result<Fd> {
    answer.map(|raw| Fd(raw as i32))
}

/// The bytes with a NUL behind them. A NUL within is an error rather than an early end.
pub(crate) fn path(bytes: &[u8]) -> Result<Path> {
    if bytes.contains(&0) {
        return Err(Errno::INVAL);
    }
    let mut path = Vec::with_capacity(bytes.len() + 1);
    path.extend_from_slice(bytes);
    path.push(0);
    Ok(Path(path))
}

/// An owned path for the kernel.
pub(crate) struct Path(Vec<u8>);

impl core::ops::Deref for Path {
    type Target = CStr;
    fn deref(&self) -> &CStr {
        // `path` is the only constructor and puts exactly one NUL at the end.
        CStr::from_bytes_with_nul(&self.0).unwrap_or_default()
    }
}

/// `prefix/number`, for descriptors and processes under `/proc`.
pub(crate) fn numbered(prefix: &str, number: u32, suffix: &str) -> Path {
    let mut path = Vec::with_capacity(prefix.len() + suffix.len() + 12);
    path.extend_from_slice(prefix.as_bytes());
    path.extend_from_slice(decimal(number, &mut [0; 10]));
    path.extend_from_slice(suffix.as_bytes());
    path.push(0);
    Path(path)
}

pub(crate) fn decimal(mut number: u32, buffer: &mut [u8; 10]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}

/// `open_how` of `openat2`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

pub(crate) mod resolve {
    pub(crate) const NO_MAGICLINKS: u64 = 0x02;
    pub(crate) const NO_SYMLINKS: u64 = 0x04;
    pub(crate) const BENEATH: u64 = 0x08;
    pub(crate) const IN_ROOT: u64 = 0x10;
}

pub(crate) fn openat(dir: i32, path: &CStr, flags: usize, mode: u32) -> Result<Fd> {
    // SAFETY: the path ends with a NUL.
    owned(unsafe { raw!(nr::OPENAT, dir, path.as_ptr(), flags | sys::O_CLOEXEC, mode) })
}

pub(crate) fn openat2(dir: i32, path: &CStr, flags: usize, mode: u32, resolve: u64) -> Result<Fd> {
    let how = OpenHow { flags: (flags | sys::O_CLOEXEC) as u64, mode: u64::from(mode), resolve };
    loop {
        // SAFETY: the path ends with a NUL, and the structure has the size that is passed.
        let answer = unsafe { raw!(nr::OPENAT2, dir, path.as_ptr(), &raw const how, size_of::<OpenHow>()) };
        match answer {
            // A rename somewhere else made the walk start over; the kernel asks to be called again.
            Err(Errno::AGAIN) => {}
            other => return owned(other),
        }
    }
}

pub(crate) fn mkdirat(dir: i32, path: &CStr, mode: u32) -> Result<()> {
    // SAFETY: the path ends with a NUL.
    unsafe { raw!(nr::MKDIRAT, dir, path.as_ptr(), mode) }.map(drop)
}

pub(crate) fn unlinkat(dir: i32, path: &CStr, flags: usize) -> Result<()> {
    // SAFETY: the path ends with a NUL.
    unsafe { raw!(nr::UNLINKAT, dir, path.as_ptr(), flags) }.map(drop)
}

pub(crate) const RENAME_NOREPLACE: usize = 1;

pub(crate) fn renameat2(from_dir: i32, from: &CStr, to_dir: i32, to: &CStr, flags: usize) -> Result<()> {
    // SAFETY: the paths end with a NUL.
    unsafe { raw!(nr::RENAMEAT2, from_dir, from.as_ptr(), to_dir, to.as_ptr(), flags) }.map(drop)
}

pub(crate) fn symlinkat(target: &CStr, dir: i32, path: &CStr) -> Result<()> {
    // SAFETY: both end with a NUL.
    unsafe { raw!(nr::SYMLINKAT, target.as_ptr(), dir, path.as_ptr()) }.map(drop)
}

pub(crate) fn readlinkat<'a>(dir: i32, path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    // SAFETY: the path ends with a NUL; the buffer is as long as is passed.
    let len = unsafe { raw!(nr::READLINKAT, dir, path.as_ptr(), buffer.as_mut_ptr(), buffer.len()) }?;
    Ok(&buffer[..len])
}

pub(crate) fn fchownat(dir: i32, path: &CStr, uid: u32, gid: u32, flags: usize) -> Result<()> {
    // SAFETY: the path ends with a NUL.
    unsafe { raw!(nr::FCHOWNAT, dir, path.as_ptr(), uid, gid, flags) }.map(drop)
}

pub(crate) fn fchmodat(dir: i32, path: &CStr, mode: u32) -> Result<()> {
    // SAFETY: the path ends with a NUL.
    unsafe { raw!(nr::FCHMODAT, dir, path.as_ptr(), mode) }.map(drop)
}

pub(crate) fn utimensat(dir: i32, path: &CStr, seconds: i64, nanos: u32, flags: usize) -> Result<()> {
    let times: [i64; 4] = [seconds, i64::from(nanos), seconds, i64::from(nanos)];
    // SAFETY: the path ends with a NUL; two `timespec`s are four 64-bit integers on the targets there are.
    unsafe { raw!(nr::UTIMENSAT, dir, path.as_ptr(), times.as_ptr(), flags) }.map(drop)
}

/// The part of `struct statx` that is needed.
#[repr(C)]
pub(crate) struct Statx {
    mask: u32,
    block_size: u32,
    attributes: u64,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    pad: u16,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    blocks: u64,
    attributes_mask: u64,
    access: [u64; 2],
    birth: [u64; 2],
    change: [u64; 2],
    pub(crate) modified_seconds: i64,
    pub(crate) modified_nanos: u32,
    pad2: u32,
    rdev: [u32; 2],
    pub(crate) dev_major: u32,
    pub(crate) dev_minor: u32,
    rest: [u64; 16],
}

pub(crate) fn statx(dir: i32, path: &CStr, flags: usize) -> Result<Statx> {
    // SAFETY: all zeroes is a valid value of this structure of integers.
    let mut stat: Statx = unsafe { core::mem::zeroed() };
    // SAFETY: the path ends with a NUL; the structure is as large as the kernel's.
    unsafe { raw!(nr::STATX, dir, path.as_ptr(), flags, 0x7ff, &raw mut stat) }?;
    Ok(stat)
}

impl Statx {
    pub(crate) fn format(&self) -> u32 {
        u32::from(self.mode) & 0o170_000
    }
}

pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;

/// The magic number of the file system that a descriptor is on.
pub(crate) fn fs_type(fd: i32) -> Result<u64> {
    let mut buffer = [0u64; 16]; // `struct statfs` is 120 bytes and begins with the type
    // SAFETY: the buffer is larger than the structure.
    unsafe { raw!(nr::FSTATFS, fd, buffer.as_mut_ptr()) }?;
    Ok(buffer[0])
}

pub(crate) const PIPE_FS: u64 = 0x5049_5045;

pub(crate) fn flock_exclusive(fd: i32) -> Result<()> {
    // SAFETY: takes no pointers. LOCK_EX | LOCK_NB.
    unsafe { raw!(nr::FLOCK, fd, 2 | 4) }.map(drop)
}

pub(crate) fn chdir(path: &CStr) -> Result<()> {
    // SAFETY: the path ends with a NUL.
    unsafe { raw!(nr::CHDIR, path.as_ptr()) }.map(drop)
}

pub(crate) fn fchdir(fd: i32) -> Result<()> {
    // SAFETY: takes no pointers.
    unsafe { raw!(nr::FCHDIR, fd) }.map(drop)
}

pub(crate) fn read(fd: i32, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer is as long as is passed.
    unsafe { raw!(nr::READ, fd, buffer.as_mut_ptr(), buffer.len()) }
}

pub(crate) fn pread(fd: i32, buffer: &mut [u8], offset: usize) -> Result<usize> {
    // SAFETY: the buffer is as long as is passed.
    unsafe { raw!(nr::PREAD64, fd, buffer.as_mut_ptr(), buffer.len(), offset) }
}

pub(crate) fn write(fd: i32, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the buffer is as long as is passed.
    unsafe { raw!(nr::WRITE, fd, bytes.as_ptr(), bytes.len()) }
}

pub(crate) fn getdents(fd: i32, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer is as long as is passed.
    unsafe { raw!(nr::GETDENTS64, fd, buffer.as_mut_ptr(), buffer.len()) }
}

pub(crate) fn lseek(fd: i32, offset: i64) -> Result<()> {
    // SAFETY: takes no pointers. SEEK_SET.
    unsafe { raw!(nr::LSEEK, fd, offset, 0) }.map(drop)
}

/// The entries of a buffer that `getdents` filled: offset of the next entry, type, name.
pub(crate) fn entries(buffer: &[u8]) -> impl Iterator<Item = (i64, u8, &CStr)> {
    let mut rest = buffer;
    core::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(rest.get(16..18)?.try_into().ok()?));
        let (entry, after) = rest.split_at_checked(len)?;
        rest = after;
        let next = i64::from_ne_bytes(entry.get(8..16)?.try_into().ok()?);
        Some((next, *entry.get(18)?, CStr::from_bytes_until_nul(entry.get(19..)?).ok()?))
    })
}

/// A pipe: the end to read from, the end to write to. Both close on exec.
pub(crate) fn pipe() -> Result<(Fd, Fd)> {
    let mut ends = [0i32; 2];
    // SAFETY: room for two descriptors.
    unsafe { raw!(nr::PIPE2, ends.as_mut_ptr(), sys::O_CLOEXEC) }?;
    Ok((Fd(ends[0]), Fd(ends[1])))
}

pub(crate) fn set_nonblocking(fd: i32) -> Result<()> {
    // SAFETY: takes no pointers. F_SETFL.
    unsafe { raw!(nr::FCNTL, fd, 4, sys::O_NONBLOCK) }.map(drop)
}

/// A duplicate with a number that is not below `least`. It closes on exec, but not when dropped.
pub(crate) fn duplicate_above(fd: i32, least: i32) -> Result<i32> {
    // SAFETY: takes no pointers. F_DUPFD_CLOEXEC.
    unsafe { raw!(nr::FCNTL, fd, 1030, least) }.map(|fd| fd as i32)
}

/// Makes `target` a duplicate, whatever it was before.
pub(crate) fn duplicate_onto(fd: i32, target: i32, flags: usize) -> Result<()> {
    // SAFETY: takes no pointers.
    unsafe { raw!(nr::DUP3, fd, target, flags) }.map(drop)
}

pub(crate) fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: takes no pointers; nothing goes on using what is in the range.
    unsafe { raw!(nr::CLOSE_RANGE, first, last, 0) }.map(drop)
}

pub(crate) fn duplicate(fd: i32) -> Result<Fd> {
    // SAFETY: takes no pointers. F_DUPFD_CLOEXEC.
    owned(unsafe { raw!(nr::FCNTL, fd, 1030, 0) })
}

/// Best effort: the caller's quota may be used up.
pub(crate) fn set_pipe_size(fd: i32, size: usize) -> Result<()> {
    // SAFETY: takes no pointers. F_SETPIPE_SZ.
    unsafe { raw!(nr::FCNTL, fd, 1031, size) }.map(drop)
}

pub(crate) fn fchmod(fd: i32, mode: u32) -> Result<()> {
    // SAFETY: takes no pointers.
    unsafe { raw!(nr::FCHMOD, fd, mode) }.map(drop)
}

pub(crate) fn is_terminal(fd: &Fd) -> bool {
    terminal_modes(fd).is_some()
}

/// Whether it is a terminal that waits for whole lines.
pub(crate) fn edits_lines(fd: &Fd) -> bool {
    const ICANON: u32 = 2;
    terminal_modes(fd).is_some_and(|modes| modes & ICANON != 0)
}

fn terminal_modes(fd: &Fd) -> Option<u32> {
    let mut settings = [0u32; 16]; // `struct termios`: the local modes are its fourth word
    // SAFETY: TCGETS fills a structure that is smaller than the buffer.
    unsafe { ioctl(fd.raw(), 0x5401, settings.as_mut_ptr() as usize) }.ok()?;
    Some(settings[3])
}

/// `struct pollfd`.
#[repr(C)]
pub(crate) struct Poll {
    fd: i32,
    events: i16,
    ready: i16,
}

pub(crate) const POLLIN: i16 = 1;
pub(crate) const POLLOUT: i16 = 4;

impl Poll {
    pub(crate) fn new(fd: i32, events: i16) -> Self {
        Self { fd, events, ready: 0 }
    }

    pub(crate) fn ready(&self) -> bool {
        self.ready != 0
    }

    pub(crate) fn failed(&self) -> bool {
        self.ready & (8 | 16 | 32) != 0 // POLLERR, POLLHUP, POLLNVAL
    }
}

/// Waits until something is ready, up to so many nanoseconds.
pub(crate) fn wait_for(fds: &mut [Poll], timeout: Option<u64>) {
    let time = timeout.map(|nanos| [nanos / 1_000_000_000, nanos % 1_000_000_000]);
    let time = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    // SAFETY: as many structures as are passed, and a null or valid `timespec`.
    let _ = unsafe { raw!(nr::PPOLL, fds.as_mut_ptr(), fds.len(), time, 0, 8) };
}

/// Nanoseconds of the clock that never jumps.
pub(crate) fn monotonic() -> u64 {
    clock(1)
}

/// Milliseconds since 1970.
pub(crate) fn wall_millis() -> u64 {
    clock(0) / 1_000_000
}

fn clock(id: usize) -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: room for one `timespec`.
    let _ = unsafe { raw!(nr::CLOCK_GETTIME, id, time.as_mut_ptr()) };
    time[0] * 1_000_000_000 + time[1]
}

pub(crate) fn random(buffer: &mut [u8]) {
    // SAFETY: the buffer is as long as is passed. Up to 256 bytes come whole once the kernel is seeded.
    let _ = unsafe { raw!(nr::GETRANDOM, buffer.as_mut_ptr(), buffer.len(), 0) };
}

pub(crate) fn prctl(option: usize, a: usize, b: usize) -> Result<()> {
    // SAFETY: the options used here take integers.
    unsafe { raw!(nr::PRCTL, option, a, b, 0, 0) }.map(drop)
}

/// Whether this process has been hidden from ptrace.
pub(crate) fn is_hidden() -> bool {
    // SAFETY: takes no pointers.
    unsafe { raw!(nr::PRCTL, sys::PR_GET_DUMPABLE, 0, 0, 0, 0) }.is_ok_and(|dumpable| dumpable != 1)
}

/// Handlers do not survive exec, but ignored signals do; and a creator may well ignore SIGPIPE.
pub(crate) fn reset_signals() {
    let default = [0usize; 4];
    for signal in 1..=64 {
        // SAFETY: an all-zero `sigaction` is the default action; the mask is 8 bytes long.
        let _ = unsafe { raw!(nr::RT_SIGACTION, signal, default.as_ptr(), 0, 8) };
    }
}

pub(crate) fn set_signal_mask(mask: u64) {
    // SAFETY: the mask is 8 bytes long.
    let _ = unsafe { raw!(nr::RT_SIGPROCMASK, sys::SIG_SETMASK, &raw const mask, 0, 8) };
}

pub(crate) fn signalfd(mask: u64) -> Result<Fd> {
    // SAFETY: the mask is 8 bytes long.
    owned(unsafe { raw!(nr::SIGNALFD4, -1isize, &raw const mask, 8, sys::O_CLOEXEC | sys::O_NONBLOCK) })
}

pub(crate) fn kill(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: takes no pointers.
    unsafe { raw!(nr::KILL, pid, signal) }.map(drop)
}

pub(crate) fn pidfd_open(pid: u32) -> Result<Fd> {
    // SAFETY: takes no pointers.
    owned(unsafe { raw!(nr::PIDFD_OPEN, pid, 0) })
}

pub(crate) fn pidfd_signal(pidfd: &Fd, signal: i32) -> Result<()> {
    // SAFETY: a null `siginfo` means an ordinary signal.
    unsafe { raw!(nr::PIDFD_SEND_SIGNAL, pidfd.0, signal, 0, 0) }.map(drop)
}

/// What `wait4` tells of a process that ended.
pub(crate) struct Waited {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) cpu_micros: u64,
    pub(crate) max_rss_kib: u64,
}

impl Waited {
    /// Whether it has not ended, but was stopped.
    pub(crate) fn stopped(&self) -> bool {
        self.status & 0xff == 0x7f
    }
}

/// Reaps one process that has ended, or tells of one that was stopped, if there is one.
pub(crate) fn wait_any() -> Option<Waited> {
    wait4(1 | 2).ok()? // WNOHANG | WUNTRACED
}

/// Reaps one process that has ended; an error if there are no children.
pub(crate) fn wait(block: bool) -> Result<Option<Waited>> {
    wait4(usize::from(!block)) // WNOHANG
}

fn wait4(options: usize) -> Result<Option<Waited>> {
    let mut status = 0i32;
    let mut usage = [0u64; 18]; // `struct rusage`: user time, system time, largest resident set, …
    // SAFETY: room for the status and the usage.
    let pid = unsafe { raw!(nr::WAIT4, -1isize, &raw mut status, options, usage.as_mut_ptr()) }?;
    let cpu_micros = (usage[0] + usage[2]) * 1_000_000 + usage[1] + usage[3];
    Ok((pid != 0).then_some(Waited { pid: pid as i32, status, cpu_micros, max_rss_kib: usage[4] }))
}

/// Sets a resource limit of this process; `limit` is soft and hard.
pub(crate) fn set_limit(resource: usize, limit: [u64; 2]) -> Result<()> {
    // SAFETY: a `rlimit64` is two 64-bit integers.
    unsafe { raw!(nr::PRLIMIT64, 0, resource, limit.as_ptr(), 0) }.map(drop)
}

pub(crate) fn limit(resource: usize) -> Result<[u64; 2]> {
    let mut limit = [0u64; 2];
    // SAFETY: a `rlimit64` is two 64-bit integers.
    unsafe { raw!(nr::PRLIMIT64, 0, resource, 0, limit.as_mut_ptr()) }?;
    Ok(limit)
}

pub(crate) const RLIMIT_CORE: usize = 4;
pub(crate) const RLIMIT_NPROC: usize = 6;
pub(crate) const RLIMIT_SIGPENDING: usize = 11;
pub(crate) const RLIMIT_MSGQUEUE: usize = 12;
pub(crate) const RLIMIT_NOFILE: usize = 7;

pub(crate) fn epoll_create() -> Result<Fd> {
    // SAFETY: takes no pointers.
    owned(unsafe { raw!(nr::EPOLL_CREATE1, sys::O_CLOEXEC) })
}

/// `struct epoll_event`, which is packed on x86-64 only.
#[derive(Clone, Copy, Default)]
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
pub(crate) struct Ready {
    pub(crate) events: u32,
    pub(crate) token: u64,
}

pub(crate) const EPOLLIN: u32 = 1;
pub(crate) const EPOLLOUT: u32 = 4;
pub(crate) const EPOLLRDHUP: u32 = 0x2000;

#[derive(Clone, Copy)]
pub(crate) enum Watch {
    Add = 1,
    Remove = 2,
    Change = 3,
}

pub(crate) fn epoll_ctl(epoll: &Fd, what: Watch, fd: i32, events: u32, token: u64) -> Result<()> {
    let event = Ready { events, token };
    // SAFETY: the structure is the kernel's.
    unsafe { raw!(nr::EPOLL_CTL, epoll.0, what as i32, fd, &raw const event) }.map(drop)
}

/// Waits for events; `timeout` is in nanoseconds.
pub(crate) fn epoll_wait(epoll: &Fd, events: &mut [Ready], timeout: Option<u64>) -> usize {
    let time = timeout.map(|nanos| [nanos / 1_000_000_000, nanos % 1_000_000_000]);
    let time = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    // SAFETY: as many events as are passed, and a null or valid `timespec`.
    unsafe { raw!(nr::EPOLL_PWAIT2, epoll.0, events.as_mut_ptr(), events.len(), time, 0, 8) }.unwrap_or(0)
}

pub(crate) mod inotify {
    pub(crate) const MODIFY: u32 = 0x2;
    pub(crate) const ATTRIB: u32 = 0x4;
    pub(crate) const MOVED_FROM: u32 = 0x40;
    pub(crate) const MOVED_TO: u32 = 0x80;
    pub(crate) const CREATE: u32 = 0x100;
    pub(crate) const DELETE: u32 = 0x200;
    pub(crate) const DELETE_SELF: u32 = 0x400;
    pub(crate) const MOVE_SELF: u32 = 0x800;
    pub(crate) const OVERFLOW: u32 = 0x4000;
    pub(crate) const IGNORED: u32 = 0x8000;
    pub(crate) const ONLYDIR: u32 = 0x0100_0000;
    pub(crate) const ISDIR: u32 = 0x4000_0000;
}

pub(crate) fn inotify() -> Result<Fd> {
    // SAFETY: takes no pointers.
    owned(unsafe { raw!(nr::INOTIFY_INIT1, sys::O_CLOEXEC | sys::O_NONBLOCK) })
}

/// Watches a folder for all that changes in it.
pub(crate) fn inotify_add(inotify: &Fd, path: &CStr) -> Result<i32> {
    use inotify::{ATTRIB, CREATE, DELETE, DELETE_SELF, MODIFY, MOVE_SELF, MOVED_FROM, MOVED_TO, ONLYDIR};
    let changes = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF;
    // SAFETY: the path ends with a NUL.
    let wd = unsafe { raw!(nr::INOTIFY_ADD_WATCH, inotify.0, path.as_ptr(), changes | ONLYDIR) };
    wd.map(|wd| wd as i32)
}

pub(crate) fn inotify_remove(inotify: &Fd, wd: i32) {
    // SAFETY: takes no pointers.
    let _ = unsafe { raw!(nr::INOTIFY_RM_WATCH, inotify.0, wd) };
}

pub(crate) fn socket(domain: usize, kind: usize) -> Result<Fd> {
    // SAFETY: takes no pointers.
    owned(unsafe { raw!(nr::SOCKET, domain, kind | sys::O_CLOEXEC, 0) })
}

/// Two connected ends that do not block.
pub(crate) fn socket_pair() -> Result<(Fd, Fd)> {
    let mut ends = [0i32; 2];
    let kind = SOCK_SEQPACKET | sys::O_CLOEXEC | sys::O_NONBLOCK;
    // SAFETY: room for two descriptors.
    unsafe { raw!(nr::SOCKETPAIR, AF_UNIX, kind, 0, ends.as_mut_ptr()) }?;
    Ok((Fd(ends[0]), Fd(ends[1])))
}

/// A file that is only in memory, with this content for good.
pub(crate) fn sealed(bytes: &[u8]) -> Result<Fd> {
    const ALLOW_SEALING_CLOEXEC: usize = 2 | 1;
    const F_ADD_SEALS: usize = 1033;
    const SEAL_SHRINK_GROW_WRITE: usize = 1 | 2 | 4 | 8;
    // SAFETY: the name ends with a NUL.
    let file = owned(unsafe { raw!(nr::MEMFD_CREATE, c"capbox-request".as_ptr(), ALLOW_SEALING_CLOEXEC) })?;
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[write(file.raw(), rest)?..];
    }
    // SAFETY: takes no pointers.
    unsafe { raw!(nr::FCNTL, file.raw(), F_ADD_SEALS, SEAL_SHRINK_GROW_WRITE) }?;
    Ok(file)
}

pub(crate) const AF_UNIX: usize = 1;
pub(crate) const AF_INET: usize = 2;
pub(crate) const SOCK_DGRAM: usize = 2;
pub(crate) const SOCK_SEQPACKET: usize = 5;

pub(crate) fn bind_unix(fd: i32, path: &CStr) -> Result<()> {
    let mut address = [0u8; 110];
    address[0] = AF_UNIX as u8; // little-endian
    let bytes = path.to_bytes();
    address.get_mut(2..2 + bytes.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(bytes);
    // SAFETY: the address is as long as is passed, its NUL included.
    unsafe { raw!(nr::BIND, fd, address.as_ptr(), bytes.len() + 3) }.map(drop)
}

/// The address of a socket that is not in any folder, but in the network namespace.
fn abstract_address(name: &[u8]) -> Result<([u8; 110], usize)> {
    let mut address = [0u8; 110];
    address[0] = AF_UNIX as u8;
    address.get_mut(3..3 + name.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name);
    Ok((address, 3 + name.len()))
}

pub(crate) fn bind_abstract(fd: i32, name: &[u8]) -> Result<()> {
    let (address, len) = abstract_address(name)?;
    // SAFETY: the address is as long as is passed.
    unsafe { raw!(nr::BIND, fd, address.as_ptr(), len) }.map(drop)
}

pub(crate) fn connect_abstract(fd: i32, name: &[u8]) -> Result<()> {
    let (address, len) = abstract_address(name)?;
    // SAFETY: the address is as long as is passed.
    unsafe { raw!(nr::CONNECT, fd, address.as_ptr(), len) }.map(drop)
}

/// Whether the kernel notes the sender of each packet that is sent to this socket from now on.
pub(crate) fn note_senders(fd: i32, on: bool) -> Result<()> {
    let on = i32::from(on);
    // SAFETY: SOL_SOCKET, SO_PASSCRED reads an integer.
    unsafe { raw!(nr::SETSOCKOPT, fd, 1, 16, &raw const on, 4) }.map(drop)
}

pub(crate) fn listen(fd: i32) -> Result<()> {
    // SAFETY: takes no pointers.
    unsafe { raw!(nr::LISTEN, fd, 64) }.map(drop)
}

pub(crate) fn accept(fd: i32) -> Result<Fd> {
    // SAFETY: the peer's address is not asked for.
    owned(unsafe { raw!(nr::ACCEPT4, fd, 0, 0, sys::O_CLOEXEC | sys::O_NONBLOCK) })
}

/// Process, user and group of the other end, as seen from here.
pub(crate) fn peer(fd: i32) -> Result<[u32; 3]> {
    let mut credentials = [0u32; 3];
    let mut len = 12u32;
    // SAFETY: SOL_SOCKET, SO_PEERCRED fills a `ucred` of three 32-bit integers.
    unsafe { raw!(nr::GETSOCKOPT, fd, 1, 17, credentials.as_mut_ptr(), &raw mut len) }?;
    Ok(credentials)
}

/// The network namespace that a socket belongs to. An accepted one belongs to that of its client.
pub(crate) fn network(fd: i32) -> Result<u64> {
    let mut cookie = 0u64;
    let mut len = 8u32;
    // SAFETY: SOL_SOCKET, SO_NETNS_COOKIE fills a 64-bit integer.
    unsafe { raw!(nr::GETSOCKOPT, fd, 1, 71, &raw mut cookie, &raw mut len) }?;
    Ok(cookie)
}

/// An `ioctl` whose argument is an integer or the address of something as large as the request says.
///
/// # Safety
/// As for the request.
pub(crate) unsafe fn ioctl(fd: i32, request: usize, argument: usize) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { raw!(nr::IOCTL, fd, request, argument) }
}

/// A buffer of zeroes on the heap.
pub(crate) fn buffer(len: usize) -> Vec<u8> {
    vec![0; len]
}

/// Does something with another owner for the files that are made.
pub(crate) fn with_file_ids<T>(user: User, work: impl FnOnce() -> T) -> T {
    let set = |user: User| {
        // SAFETY: take no pointers, and answer with the ids from before.
        unsafe { (raw!(nr::SETFSUID, user.uid), raw!(nr::SETFSGID, user.gid)) }
    };
    let (Ok(uid), Ok(gid)) = set(user) else { return work() };
    let result = work();
    let _ = set(User { uid: uid as u32, gid: gid as u32 });
    result
}

/// Does something exactly as a user inside could do it: with its ids and no capability. `rights` are those that this
/// process has, and gets back. Where the user is the one that this process is itself, they are the user's as well.
pub(crate) fn as_user<T>(user: User, rights: u64, work: impl FnOnce() -> T) -> Result<T> {
    if user.uid == 0 && uid() == 0 {
        return Ok(with_file_ids(user, work));
    }
    with_file_ids(user, || {
        sys::capset(0, rights, 0)?;
        let result = work();
        sys::capset(rights, rights, 0)?;
        Ok(result)
    })
}

fn uid() -> u32 {
    // SAFETY: takes no pointers, and cannot fail.
    unsafe { raw!(nr::GETUID) }.map_or(u32::MAX, |uid| uid as u32)
}
