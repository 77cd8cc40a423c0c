//! Finding and killing all the processes of a job, wherever they went.
//!
//! A job is marked by a cgroup namespace of its own. Whatever a process does (fork twice, start a session, change
//! its name), its children inherit the mark, and nobody inside can make or join another such namespace.
//!
//! What is hostile does not hold still to be found: it may end the first of its threads, which is the one that has the
//! mark in plain sight, or go on in one child after the other.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::os::{self, Fd};
use crate::sys::{self, Errno};
use crate::{keeper, setup::Place};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Entries of `/proc` that are looked at in one turn of the event loop: about a millisecond.
const TURN: usize = 256;
/// Where the processes begin in `/proc`: what comes before has fixed names.
pub(crate) const FIRST_PROCESS: i64 = 256;
/// Passes after which stopping is given up; killing goes on until nothing is left.
const STOP_PASSES: u32 = 64;
/// Passes that meet nothing while new processes come up, before all are made to hold still: one that goes on in a child,
/// and ends, can be where a pass has just been, or is about to look. Without new ones, a single pass sees all.
const HURRIED_PASSES: u32 = 64;
/// How long such passes may keep this program at a time.
const HURRY: u64 = 30_000_000;
/// The same for the threads of one process.
const HURRIED_LOOKS: u32 = 4;
const FIRST_PAUSE: u64 = 100_000;
const LONGEST_PAUSE: u64 = 20_000_000;

/// The inode of a cgroup namespace; in a container, the number of a keeper.
pub(crate) type Marker = u64;

/// The seam: how the processes of different jobs are told apart depends on where this is.
impl Place {
    /// Holds on to what marks a job, so that the number is not used again after its end.
    pub(crate) fn pin(&self, proc: &Fd, pid: i32) -> Option<Fd> {
        match self {
            Self::Own => pin(proc, pid),
            // The keeper is this process's child, and keeps its number until it is reaped.
            Self::Container(_) => None,
        }
    }

    /// All processes of jobs with their marks.
    pub(crate) fn all(&self, proc: &Fd) -> Vec<(Marker, u32)> {
        match self {
            Self::Own => all(proc),
            Self::Container(_) => keeper::all(proc),
        }
    }

    /// The processes of one job.
    pub(crate) fn members(&self, proc: &Fd, marker: Marker) -> Vec<u32> {
        match self {
            Self::Own => members(proc, marker),
            Self::Container(_) => keeper::members(proc, marker),
        }
    }

    /// Begins to kill the processes of one job.
    pub(crate) fn kill(&self, marker: Marker) -> Kill {
        match self {
            Self::Own => Kill::Marked(Marked::new(marker)),
            Self::Container(_) => Kill::Kept(keeper::Kill::new(marker)),
        }
    }
}

/// A kill on its way, one step at a time.
pub(crate) enum Kill {
    Marked(Marked),
    Kept(keeper::Kill),
    /// Of what was below a keeper that is gone: nothing but the end is missing.
    Strays(keeper::Strays),
}

impl Kill {
    pub(crate) fn step(&mut self, proc: &Fd) -> Step {
        match self {
            Self::Marked(kill) => kill.step(proc),
            Self::Kept(kill) => kill.step(proc),
            Self::Strays(strays) => strays.step(),
        }
    }
}

/// Holds on to the namespace of a process.
fn pin(proc: &Fd, pid: i32) -> Option<Fd> {
    let pid = u32::try_from(pid).ok()?;
    os::openat(proc.raw(), &os::numbered("", pid, "/ns/cgroup"), sys::O_RDONLY, 0).ok()
}

/// Reads the number out of `cgroup:[number]`.
pub(crate) fn parse_marker(link: &[u8]) -> Option<Marker> {
    let digits = link.strip_prefix(b"cgroup:[")?.strip_suffix(b"]")?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Of a process that must not be looked at: it executes a program that it may not read, and which belongs to nobody
/// inside. It counts as one of every job, for it may be.
const HIDDEN: Marker = Marker::MAX;

fn is_of(marker: Marker, job: Marker) -> bool {
    marker == job || marker == HIDDEN
}

/// The mark of a process; a process that has ended has none.
fn marker(proc: &Fd, pid: u32) -> Option<Marker> {
    let mut buffer = [0; 64];
    match os::readlinkat(proc.raw(), &os::numbered("", pid, "/ns/cgroup"), &mut buffer) {
        Ok(link) => parse_marker(link),
        Err(Errno::ACCES | Errno::PERM) => Some(HIDDEN),
        Err(_) => marker_of_threads(proc, pid),
    }
}

/// The mark of a process whose first thread has ended: any other thread has it.
fn marker_of_threads(proc: &Fd, pid: u32) -> Option<Marker> {
    let threads =
        os::openat(proc.raw(), &os::numbered("", pid, "/task"), sys::O_RDONLY | sys::O_DIRECTORY, 0).ok()?;
    let (mut buffer, mut link) = ([0u8; 1024], [0; 64]);
    for _ in 0..HURRIED_LOOKS {
        let mut alone = true;
        os::lseek(threads.raw(), 0).ok()?;
        let len = os::getdents(threads.raw(), &mut buffer).ok()?;
        for (_, _, name) in os::entries(&buffer[..len]) {
            let thread = name.to_str().ok().and_then(|name| name.parse().ok());
            let Some(thread) = thread.filter(|thread| *thread != pid) else { continue };
            alone = false;
            let path = os::numbered("", thread, "/ns/cgroup");
            match os::readlinkat(threads.raw(), &path, &mut link) {
                Ok(link) => return parse_marker(link),
                Err(Errno::ACCES | Errno::PERM) => return Some(HIDDEN),
                Err(_) => {}
            }
        }
        if alone {
            return None;
        }
        // What was there has ended meanwhile, perhaps after it started another.
    }
    None
}

/// The number of the newest process or thread.
fn newest(proc: &Fd) -> Option<u32> {
    let mut buffer = [0u8; 128];
    let load = os::openat(proc.raw(), c"loadavg", sys::O_RDONLY, 0).ok()?;
    let len = os::read(load.raw(), &mut buffer).ok()?;
    let line = core::str::from_utf8(&buffer[..len]).ok()?;
    line.trim_ascii_end().rsplit(' ').next()?.parse().ok()
}

/// Whether there is no other process. Cheaper than a signal to all, for which the kernel looks at every process of the
/// host.
pub(crate) fn alone(proc: &Fd) -> bool {
    // "self" and "thread-self" come first, then each number at its own place: from process 2 on.
    let mut buffer = [0u8; 256];
    os::lseek(proc.raw(), FIRST_PROCESS + 2 + 2).is_ok() && os::getdents(proc.raw(), &mut buffer) == Ok(0)
}

/// All processes with their marks, this one left out.
fn all(proc: &Fd) -> Vec<(Marker, u32)> {
    let mut found = Vec::new();
    let mut cursor = FIRST_PROCESS;
    while !visit(proc, &mut cursor, |pid| found.extend(marker(proc, pid).map(|marker| (marker, pid)))) {}
    found
}

/// The processes of one job.
fn members(proc: &Fd, marker: Marker) -> Vec<u32> {
    let look = || -> Vec<u32> {
        all(proc).into_iter().filter(|(other, _)| is_of(*other, marker)).map(|(_, pid)| pid).collect()
    };
    let start = os::monotonic();
    for _ in 0..HURRIED_PASSES {
        let before = newest(proc);
        let found = look();
        if !found.is_empty() || before == newest(proc) {
            return found;
        }
        if os::monotonic() - start > HURRY {
            break;
        }
    }
    let _still = Still::hold();
    look()
}

/// While this is there, no other process runs.
///
/// The kernel sends to all at once, and lets nobody fork who has yet to receive. Afterwards all go on, those that somebody
/// inside had stopped included: a last resort.
pub(crate) struct Still;

impl Still {
    pub(crate) fn hold() -> Self {
        let _ = os::kill(-1, SIGSTOP);
        Self
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        let _ = os::kill(-1, SIGCONT);
    }
}

/// Looks at some processes from `cursor` on, and says whether that was the last of them.
pub(crate) fn visit(proc: &Fd, cursor: &mut i64, mut look: impl FnMut(u32)) -> bool {
    let mut buffer = [0u8; 4096];
    let mut seen = 0;
    while seen < TURN {
        if os::lseek(proc.raw(), *cursor).is_err() {
            return true;
        }
        let Ok(len @ 1..) = os::getdents(proc.raw(), &mut buffer) else {
            return true;
        };
        for (next, _, name) in os::entries(&buffer[..len]) {
            *cursor = next;
            seen += 1;
            match name.to_str().ok().and_then(|name| name.parse().ok()) {
                Some(1) | None => {}
                Some(pid) => look(pid),
            }
        }
    }
    false
}

/// A kill by marks.
///
/// First all members are stopped, until a whole pass meets no new one: a stopped process cannot fork. Then they are
/// killed, and looked for again until none is seen. Between such passes is a pause, without which the looking takes
/// the processor time that the dying need.
pub(crate) struct Marked {
    marker: Marker,
    cursor: i64,
    stopped: BTreeSet<u32>,
    passes: u32,
    killing: bool,
    met: bool,
    /// The newest process when the pass began.
    newest: Option<u32>,
    /// Passes in a row that met nothing although new processes came up.
    hurried: u32,
    pause: u64,
}

/// What to do after a step.
pub(crate) enum Step {
    /// Take the next one, after what else there is to do.
    Again,
    /// Take the next one after so many nanoseconds.
    Pause(u64),
    /// Nothing is left.
    Gone,
}

impl Marked {
    fn new(marker: Marker) -> Self {
        Self {
            marker,
            cursor: FIRST_PROCESS,
            stopped: BTreeSet::new(),
            passes: 0,
            killing: false,
            met: false,
            newest: None,
            hurried: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Kills the members while nobody moves.
    fn kill_still(&mut self, proc: &Fd) -> Step {
        let _still = Still::hold();
        let mut met = false;
        for (marker, pid) in all(proc) {
            if is_of(marker, self.marker) {
                met = true;
                let _ = os::kill(pid as i32, SIGKILL);
            }
        }
        if !met {
            return Step::Gone;
        }
        self.killing = true;
        Step::Pause(self.pause)
    }

    fn step(&mut self, proc: &Fd) -> Step {
        if self.cursor == FIRST_PROCESS {
            self.newest = newest(proc);
        }
        let (target, killing, stopped) = (self.marker, self.killing, &mut self.stopped);
        let mut met = false;
        let finished = visit(proc, &mut self.cursor, |pid| {
            let is_member = || marker(proc, pid).is_some_and(|marker| is_of(marker, target));
            if (!killing && stopped.contains(&pid)) || !is_member() {
                return;
            }
            // Held by a descriptor, then looked at again: the number may have gone to another process meanwhile.
            let Ok(pidfd) = os::pidfd_open(pid) else { return };
            if !is_member() {
                return;
            }
            met = true;
            stopped.insert(pid);
            let _ = os::pidfd_signal(&pidfd, if killing { SIGKILL } else { SIGSTOP });
        });
        self.met |= met;
        if !finished {
            return Step::Again;
        }
        let met = core::mem::take(&mut self.met);
        self.cursor = FIRST_PROCESS;
        self.passes += 1;
        if met {
            self.hurried = 0;
        } else if self.newest != newest(proc) {
            self.hurried += 1;
            if self.hurried < HURRIED_PASSES {
                return Step::Again;
            }
            self.hurried = 0;
            return self.kill_still(proc);
        }
        if self.killing {
            if !met {
                return Step::Gone;
            }
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            return Step::Pause(self.pause);
        }
        self.killing = !met || self.passes >= STOP_PASSES;
        Step::Again
    }
}
