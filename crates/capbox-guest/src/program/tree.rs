//! Finding and killing all the processes of a job, wherever they went.
//!
//! A job is marked by a cgroup namespace of its own. Whatever a process does (fork twice, start a session, change
//! its name), its children inherit the mark, and nobody inside can make or join another such namespace.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::os::{self, Fd};

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

/// Entries of `/proc` that are looked at in one turn of the event loop: about a millisecond.
const TURN: usize = 256;
/// Where the processes begin in `/proc`: what comes before has fixed names.
const FIRST_PROCESS: i64 = 256;
/// Passes after which stopping is given up; killing goes on until nothing is left.
const STOP_PASSES: u32 = 64;
const FIRST_PAUSE: u64 = 100_000;
const LONGEST_PAUSE: u64 = 20_000_000;

/// The inode of a cgroup namespace.
pub(crate) type Marker = u64;

/// Reads the number out of `cgroup:[number]`.
pub(crate) fn parse_marker(link: &[u8]) -> Option<Marker> {
    let digits = link.strip_prefix(b"cgroup:[")?.strip_suffix(b"]")?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// The mark of a process; a process that has ended has none.
fn marker(proc: &Fd, pid: u32) -> Option<Marker> {
    let mut buffer = [0; 64];
    parse_marker(os::readlinkat(proc.raw(), &os::numbered("", pid, "/ns/cgroup"), &mut buffer).ok()?)
}

/// Whether there is no other process. Cheaper than a signal to all, for which the kernel looks at every process of the
/// host.
pub(crate) fn alone(proc: &Fd) -> bool {
    // "self" and "thread-self" come first, then each number at its own place: from process 2 on.
    let mut buffer = [0u8; 256];
    os::lseek(proc.raw(), FIRST_PROCESS + 2 + 2).is_ok() && os::getdents(proc.raw(), &mut buffer) == Ok(0)
}

/// All processes with their marks, this one left out.
pub(crate) fn all(proc: &Fd) -> Vec<(Marker, u32)> {
    let mut found = Vec::new();
    let mut cursor = FIRST_PROCESS;
    while !visit(proc, &mut cursor, |pid| found.extend(marker(proc, pid).map(|marker| (marker, pid)))) {}
    found
}

/// The processes of one job.
pub(crate) fn members(proc: &Fd, marker: Marker) -> Vec<u32> {
    all(proc).into_iter().filter(|(other, _)| *other == marker).map(|(_, pid)| pid).collect()
}

/// Looks at some processes from `cursor` on, and says whether that was the last of them.
fn visit(proc: &Fd, cursor: &mut i64, mut look: impl FnMut(u32)) -> bool {
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

/// A kill on its way, one step at a time.
///
/// First all members are stopped, until a whole pass meets no new one: a stopped process cannot fork. Then they are
/// killed, and looked for again until none is seen. Between such passes is a pause, without which the looking takes
/// the processor time that the dying need.
pub(crate) struct Kill {
    marker: Marker,
    cursor: i64,
    stopped: BTreeSet<u32>,
    passes: u32,
    killing: bool,
    met: bool,
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

impl Kill {
    pub(crate) fn new(marker: Marker) -> Self {
        Self {
            marker,
            cursor: FIRST_PROCESS,
            stopped: BTreeSet::new(),
            passes: 0,
            killing: false,
            met: false,
            pause: FIRST_PAUSE,
        }
    }

    pub(crate) fn step(&mut self, proc: &Fd) -> Step {
        let (target, killing, stopped) = (self.marker, self.killing, &mut self.stopped);
        let mut met = false;
        let finished = visit(proc, &mut self.cursor, |pid| {
            if marker(proc, pid) != Some(target) || (!killing && stopped.contains(&pid)) {
                return;
            }
            // Held by a descriptor, then looked at again: the number may have gone to another process meanwhile.
            let Ok(pidfd) = os::pidfd_open(pid) else { return };
            if marker(proc, pid) != Some(target) {
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
