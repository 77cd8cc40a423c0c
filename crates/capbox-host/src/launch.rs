//! Starting a guest in namespaces of its own.
//!
//! One `clone` makes all the namespaces; its child shares this process's memory and holds the calling thread until
//! it has executed the guest, so the cost does not depend on the size of this process. Between the two, no libc, no
//! allocation, no lock: only the raw calls of [`child`].
//!
//! The guest is nobody's child: a helper in between starts it and ends, so a program that waits for any child never
//! sees it, and one that never waits does not collect zombies.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use capbox_guest::sys::{self, Errno, cap, nr};
use capbox_guest::{PROGRAM, raw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Pid;

use crate::error::{Error, Result};
use crate::socket;

/// Ids of the host that the sandbox's ids stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Ids 0 to 65535 inside are this many from here on.
    Range {
        /// The first.
        base: u32,
    },
    /// The caller's own ids, and nothing else; inside they are those of the code's user.
    Own {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
}

/// How many ids a range has.
pub(crate) const RANGE: u32 = 65_536;

const OWNER: RawFd = 3;
/// Descriptors are moved here, out of the way of the numbers that the guest expects.
const ABOVE: RawFd = 16;
const STACK: usize = 32 * 1024;

const NAMESPACES: usize = sys::CLONE_NEWUSER
    | sys::CLONE_NEWPID
    | sys::CLONE_NEWNS
    | sys::CLONE_NEWNET
    | sys::CLONE_NEWIPC
    | sys::CLONE_NEWUTS
    | sys::CLONE_NEWCGROUP;

/// What the children read and write.
struct Plan {
    program: RawFd,
    null: RawFd,
    owner: RawFd,
    stack: *mut u8,
    pid: i32,
    failure: Option<(&'static str, Errno)>,
}

/// Starts a guest and answers with the owner's connection and the guest's number. It does nothing until it gets a message on that, and ends
/// when it closes.
pub(crate) fn start(ids: Ids) -> Result<(OwnedFd, Pid)> {
    let program = program()?;
    let step = |step: &'static str| move |error: io::Error| failed(step, error);
    let (owner, theirs) = socket::pair().map_err(step("make a socket"))?;
    // The guest waits for its orders.
    rustix::io::ioctl_fionbio(&theirs, false).map_err(|errno| failed("make a socket", errno.into()))?;
    let null =
        fs::File::options().read(true).write(true).open("/dev/null").map_err(step("open /dev/null"))?;
    let null = above(&null).map_err(step("move a descriptor"))?;
    let theirs = above(&theirs).map_err(step("move a descriptor"))?;

    let mut stacks = vec![0u8; 2 * STACK];
    let middle = aligned(stacks.as_mut_ptr().wrapping_add(STACK));
    let mut plan = Plan {
        program: program.as_raw_fd(),
        null: null.as_raw_fd(),
        owner: theirs.as_raw_fd(),
        stack: middle,
        pid: 0,
        failure: None,
    };
    let top = aligned(stacks.as_mut_ptr_range().end);
    // A signal handler must not run on a borrowed stack.
    let mask = block_signals();
    // SAFETY: both stacks and the plan live until the helper is gone, which `CLONE_VFORK` waits for. No exit
    // signal: nobody who waits for children sees the helper.
    let helper = unsafe {
        sys::clone_onto(
            sys::CLONE_VM | sys::CLONE_VFORK | sys::CLONE_FILES,
            top,
            std::ptr::null_mut(),
            helper,
            (&raw mut plan).cast(),
        )
    };
    restore_signals(mask);
    let helper = helper.map_err(|errno| failed("start a process", os_error(errno)))?;
    reap(helper);
    // SAFETY: written by the children through a pointer; read afresh.
    let plan = unsafe { (&raw const plan).read_volatile() };
    if let Some((step, errno)) = plan.failure {
        return Err(failed(step, os_error(errno)));
    }
    map_ids(plan.pid, ids)?;
    let guest =
        Pid::from_raw(plan.pid).ok_or_else(|| failed("start a process", io::ErrorKind::Other.into()))?;
    Ok((owner, guest))
}

/// Starts the guest and ends.
unsafe extern "C" fn helper(plan: *mut u8) -> ! {
    // SAFETY: `start` passes its plan, and is held while this runs.
    #[allow(clippy::cast_ptr_alignment)]
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    let flags = sys::CLONE_VM | sys::CLONE_VFORK | NAMESPACES | sys::SIGCHLD;
    let argument = (&raw mut *plan).cast();
    // SAFETY: the second stack is the child's alone, and this process is held until it has executed the guest.
    match unsafe { sys::clone_onto(flags, plan.stack, std::ptr::null_mut(), child, argument) } {
        Ok(pid) => plan.pid = pid,
        Err(errno) => plan.failure = Some(("create namespaces", errno)),
    }
    sys::exit_group(0)
}

/// Becomes the guest.
unsafe extern "C" fn child(plan: *mut u8) -> ! {
    // SAFETY: as for the helper.
    #[allow(clippy::cast_ptr_alignment)]
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    plan.failure = Some(become_guest(plan));
    sys::exit_group(127)
}

fn become_guest(plan: &Plan) -> (&'static str, Errno) {
    let steps = || {
        // SAFETY: integers, and strings and arrays that outlive the calls.
        unsafe {
            raw!(nr::SETSID).map_err(|errno| ("start a session", errno))?;
            // Id 0 is not mapped yet, so an ordinary exec would drop all capabilities: ambient ones stay.
            sys::capset(cap::SETUP, cap::SETUP, cap::SETUP).map_err(|errno| ("keep capabilities", errno))?;
            for capability in 0..=cap::LAST {
                if cap::SETUP & (1 << capability) != 0 {
                    raw!(nr::PRCTL, sys::PR_CAP_AMBIENT, sys::PR_CAP_AMBIENT_RAISE, capability, 0, 0)
                        .map_err(|errno| ("raise ambient capabilities", errno))?;
                }
            }
            for (fd, target) in [(plan.null, 0), (plan.null, 1), (plan.null, 2), (plan.owner, OWNER)] {
                raw!(nr::DUP3, fd, target, 0).map_err(|errno| ("pass descriptors", errno))?;
            }
            // CLOSE_RANGE_CLOEXEC: the program itself is among them.
            raw!(nr::CLOSE_RANGE, OWNER + 1, u32::MAX, 4).map_err(|errno| ("close descriptors", errno))?;
            let argv = [c"capbox-guest".as_ptr(), std::ptr::null()];
            let env = [std::ptr::null::<u8>()];
            let empty = c"".as_ptr();
            raw!(nr::EXECVEAT, plan.program, empty, argv.as_ptr(), env.as_ptr(), sys::AT_EMPTY_PATH)
                .map_err(|errno| ("execute the guest", errno))
        }
    };
    match steps() {
        Ok(_) => ("execute the guest", Errno::INVAL),
        Err(failure) => failure,
    }
}

/// The guest program in a sealed memory file, one for all sandboxes of this process.
fn program() -> Result<&'static OwnedFd> {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file);
    }
    if PROGRAM.is_empty() {
        return Err(Error::Unsupported {
            what: "local sandboxes on this processor".into(),
            hint: "use x86-64 or AArch64, or another provider".into(),
        });
    }
    let file = (|| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let name = c"capbox-guest";
        // Kernels from 6.3 on want to be told that it will be executed; older ones do not know the flag.
        let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
            Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            other => other?,
        };
        let mut file = fs::File::from(file);
        file.write_all(PROGRAM)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        above(&file)
    })()
    .map_err(|error: io::Error| failed("put the guest program into memory", error))?;
    Ok(FILE.get_or_init(|| file))
}

fn above(fd: &impl std::os::fd::AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, ABOVE)?)
}

fn aligned(end: *mut u8) -> *mut u8 {
    end.wrapping_sub(end as usize % 16)
}

/// Says which ids of the host the guest's ids are. Only its creator may.
fn map_ids(pid: i32, ids: Ids) -> Result<()> {
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/{pid}/{file}"), text)
            .map_err(|error| failed(&format!("write {file}"), error))
    };
    match ids {
        Ids::Range { base } => {
            write("uid_map", format!("0 {base} {RANGE}"))?;
            write("gid_map", format!("0 {base} {RANGE}"))
        }
        Ids::Own { uid, gid } => {
            let inner = capbox_guest::proto::CODE_ID;
            write("uid_map", format!("{inner} {uid} 1"))?;
            // Else groups could be left to get past permissions that are meant against them.
            write("setgroups", "deny".into())?;
            write("gid_map", format!("{inner} {gid} 1"))
        }
    }
}

/// Waits for a child without an exit signal.
pub(crate) fn reap(pid: i32) {
    const WALL: usize = 0x4000_0000; // also children without an exit signal
    // SAFETY: nothing but the number is asked for.
    while unsafe { raw!(nr::WAIT4, pid, 0, WALL, 0) } == Err(Errno::INTR) {}
}

fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    // SAFETY: masks of 8 bytes.
    let _ = unsafe { raw!(nr::RT_SIGPROCMASK, sys::SIG_SETMASK, &raw const all, &raw mut old, 8) };
    old
}

fn restore_signals(mask: u64) {
    // SAFETY: a mask of 8 bytes.
    let _ = unsafe { raw!(nr::RT_SIGPROCMASK, sys::SIG_SETMASK, &raw const mask, 0, 8) };
}

fn os_error(Errno(number): Errno) -> io::Error {
    io::Error::from_raw_os_error(number)
}

pub(crate) fn failed(step: &str, source: io::Error) -> Error {
    let hint = crate::probe::hint(step, &source).to_owned();
    Error::Launch { step: step.to_owned(), hint, source }
}
