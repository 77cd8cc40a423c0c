//! Jobs in a container: one keeper for each.
//!
//! A container has not the right to make namespaces, by which a sandbox of our own marks its jobs (see [`crate::tree`]).
//! There each job runs below a process that adopts orphans: whatever the job starts, however it forks and whatever
//! session it makes, stays below its keeper, and the keeper ends when nothing is left.
//!
//! Code that is root inside can kill a keeper. What was below it then falls to process 1, which kills it: no process is
//! ever without somebody who answers for it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::job::{self, Plan};
use crate::os::{self, Fd};
use crate::proto::Stage;
use crate::sys::{self, Errno, Result, nr};
use crate::tree::{self, FIRST_PROCESS, Marker, Step, Still};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Passes that stop what they meet; and then, passes that kill, before all are made to hold still.
const PASSES: u32 = 64;
const FIRST_PAUSE: u64 = 100_000;
const LONGEST_PAUSE: u64 = 20_000_000;

/// Where the keeper has the end of its pipe.
const REPORTS: i32 = 3;

/// What a keeper tells.
pub(crate) enum Report {
    /// The program runs, as the process of this number.
    Started(i32),
    /// It could not be started.
    Failed(Stage, Errno),
    /// It has ended. The last report.
    Ended {
        /// As `wait(2)` gives it.
        status: i32,
        cpu_micros: u64,
        max_rss_kib: u64,
        /// Whether nothing of the job is left.
        alone: bool,
    },
}

const RECORD: usize = 40;

impl Report {
    fn encode(&self) -> [u8; RECORD] {
        let words: [u64; 5] = match *self {
            Self::Started(pid) => [1, pid as u64, 0, 0, 0],
            Self::Failed(stage, errno) => [2, stage as u64, errno.0 as u64, 0, 0],
            Self::Ended { status, cpu_micros, max_rss_kib, alone } => {
                [3, u64::from(status as u32), cpu_micros, max_rss_kib, u64::from(alone)]
            }
        };
        let mut record = [0; RECORD];
        for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        record
    }

    /// The next report, if there is one; an error once there will be none. A record is written at once.
    pub(crate) fn receive(reports: &Fd) -> Result<Option<Self>> {
        let mut record = [0; RECORD];
        match os::read(reports.raw(), &mut record) {
            Ok(RECORD) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            _ => return Err(Errno::PIPE),
        }
        let mut words = [0u64; 5];
        for (bytes, word) in record.chunks_exact(8).zip(&mut words) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let [kind, a, b, c, d] = words;
        Ok(Some(match kind {
            1 => Self::Started(a as i32),
            2 => Self::Failed(stage(a), Errno(b as i32)),
            _ => Self::Ended { status: a as i32, cpu_micros: b, max_rss_kib: c, alone: d != 0 },
        }))
    }
}

fn stage(number: u64) -> Stage {
    const STAGES: [Stage; 7] = [
        Stage::Request,
        Stage::Cwd,
        Stage::Program,
        Stage::Interpreter,
        Stage::User,
        Stage::Process,
        Stage::Terminal,
    ];
    STAGES.into_iter().find(|stage| *stage as u64 == number).unwrap_or(Stage::Process)
}

/// Starts a keeper that starts the program. Answers with the keeper's number, and where it reports.
///
/// The keeper has memory of its own: what happens to it is no matter to this process.
pub(crate) fn start(plan: &mut Plan, stack: &mut [u8]) -> Result<(i32, Fd)> {
    let (reports, theirs) = os::pipe()?;
    os::set_nonblocking(reports.raw())?;
    // SAFETY: a plain fork; this process has one thread.
    let pid = unsafe { raw!(nr::CLONE, sys::SIGCHLD, 0, 0, 0, 0) }?;
    if pid == 0 {
        keep(plan, stack, theirs.raw());
    }
    Ok((pid as i32, reports))
}

/// The keeper's life.
fn keep(plan: &mut Plan, stack: &mut [u8], reports: i32) -> ! {
    let report = |report: &Report| {
        let _ = os::write(REPORTS, &report.encode());
    };
    if let Err(errno) = settle(plan, reports) {
        let _ = os::write(reports, &Report::Failed(Stage::Process, errno).encode());
        sys::exit_group(0);
    }
    let flags = sys::CLONE_VM | sys::CLONE_VFORK | sys::SIGCHLD;
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top as usize % 16);
    // SAFETY: this process is held until the child has executed its program or ended.
    let child = unsafe {
        sys::clone_onto(flags, top, core::ptr::null_mut(), job::child, core::ptr::from_mut(plan).cast())
    };
    let child = match child {
        Ok(child) => child,
        Err(errno) => {
            report(&Report::Failed(Stage::Process, errno));
            sys::exit_group(0);
        }
    };
    if let Some((stage, errno)) = job::failure(plan) {
        report(&Report::Failed(stage, errno));
        sys::exit_group(0);
    }
    // Nothing of the job's, lest it never see an end; and no rights.
    let _ = os::close_range(0, 2);
    let _ = sys::capset(0, 0, 0);
    report(&Report::Started(child));
    loop {
        match os::wait(true) {
            Ok(Some(ended)) if ended.pid == child => {
                let alone = loop {
                    match os::wait(false) {
                        Ok(Some(_)) => {}
                        Ok(None) => break false,
                        Err(_) => break true,
                    }
                };
                report(&Report::Ended {
                    status: ended.status,
                    cpu_micros: ended.cpu_micros,
                    max_rss_kib: ended.max_rss_kib,
                    alone,
                });
                if alone {
                    sys::exit_group(0);
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => sys::exit_group(0),
        }
    }
}

/// Adopts, and leaves of all descriptors only those that the job gets and the one to report on.
fn settle(plan: &mut Plan, reports: i32) -> Result<()> {
    // What the job gets is moved out of the way first: any of it may have any number.
    const AWAY: i32 = 64;
    os::prctl(sys::PR_SET_CHILD_SUBREAPER, 1, 0)?;
    let _ = os::prctl(sys::PR_SET_NAME, c"capbox-keeper".as_ptr() as usize, 0);
    let away = os::duplicate_above(reports, AWAY)?;
    let mut moved = [0; 3];
    for (to, fd) in moved.iter_mut().zip(job::stdio(plan)) {
        *to = os::duplicate_above(*fd, AWAY)?;
    }
    for (target, fd) in (0..).zip(moved) {
        os::duplicate_onto(fd, target, 0)?;
    }
    os::duplicate_onto(away, REPORTS, sys::O_CLOEXEC)?;
    *job::stdio(plan) = [0, 1, 2];
    os::close_range(REPORTS as u32 + 1, u32::MAX)
}

/// What there is to know of a process.
#[derive(Clone, Copy)]
struct Process {
    parent: u32,
    /// Together with the number, what no other process ever has.
    started: u64,
    /// Whether it runs no more, and only waits to be reaped.
    ended: bool,
}

fn process(proc: &Fd, pid: u32) -> Option<Process> {
    let mut buffer = [0; 1024];
    let file = os::openat(proc.raw(), &os::numbered("", pid, "/stat"), sys::O_RDONLY, 0).ok()?;
    let len = os::read(file.raw(), &mut buffer).ok()?;
    // The name, in parentheses, is the code's own choice, and may hold any of these.
    let after = buffer[..len].iter().rposition(|byte| *byte == b')')?;
    let text = core::str::from_utf8(&buffer[after + 1..len]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(15)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    Some(Process { parent, started, ended: matches!(state, "Z" | "X") && threads <= 1 })
}

/// The number of a process's parent; 0 if that is outside.
pub(crate) fn parent(proc: &Fd, pid: u32) -> Option<u32> {
    process(proc, pid).map(|process| process.parent)
}

/// Processes by their numbers, as they are met.
#[derive(Default)]
struct Family(BTreeMap<u32, Process>);

impl Family {
    fn look(proc: &Fd) -> Self {
        let mut family = Self::default();
        let mut cursor = FIRST_PROCESS;
        while !family.visit(proc, &mut cursor) {}
        family
    }

    /// Looks at some, and says whether those were the last.
    fn visit(&mut self, proc: &Fd, cursor: &mut i64) -> bool {
        tree::visit(proc, cursor, |pid| {
            if let Some(process) = process(proc, pid) {
                self.0.insert(pid, process);
            }
        })
    }

    /// Who is below each of process 1's children, and which that is. Those themselves are left out.
    fn below(&self) -> Vec<(u32, u32)> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pid, process) in &self.0 {
            children.entry(process.parent).or_default().push(*pid);
        }
        let mut found = Vec::new();
        for top in children.get(&1).into_iter().flatten() {
            let mut waiting = Vec::from([*top]);
            while let Some(pid) = waiting.pop() {
                for child in children.get(&pid).into_iter().flatten() {
                    found.push((*top, *child));
                    waiting.push(*child);
                }
            }
        }
        found
    }

    /// Those below one of process 1's children that have not ended.
    fn living_below(&self, top: u32) -> Vec<u32> {
        let living = |pid: &u32| self.0.get(pid).is_some_and(|process| !process.ended);
        self.below().into_iter().filter(|(of, _)| *of == top).map(|(_, pid)| pid).filter(living).collect()
    }
}

/// Sends a signal to a process, if the number is still its own.
fn send(proc: &Fd, pid: u32, seen: Process, signal: i32) {
    let Ok(pidfd) = os::pidfd_open(pid) else { return };
    if process(proc, pid).is_some_and(|now| now.started == seen.started) {
        let _ = os::pidfd_signal(&pidfd, signal);
    }
}

/// All processes of jobs, each with the number of its keeper.
pub(crate) fn all(proc: &Fd) -> Vec<(Marker, u32)> {
    let family = Family::look(proc);
    let living = |pid: &u32| family.0.get(pid).is_some_and(|process| !process.ended);
    family
        .below()
        .into_iter()
        .filter(|(_, pid)| living(pid))
        .map(|(top, pid)| (Marker::from(top), pid))
        .collect()
}

/// The processes of one job.
pub(crate) fn members(proc: &Fd, keeper: Marker) -> Vec<u32> {
    Family::look(proc).living_below(keeper as u32)
}

/// Processes that have been killed, and may not have ended yet.
pub(crate) struct Strays {
    processes: Vec<Fd>,
    pause: u64,
}

impl Strays {
    /// Kills what is nobody's: what is below process 1, but not below one of the `known`, of which `gone` has just ended.
    ///
    /// Everything else holds still meanwhile, so what is killed can have started nothing that was not seen.
    pub(crate) fn kill(proc: &Fd, known: &BTreeSet<u32>, gone: u32) -> Self {
        let _still = Still::hold();
        let family = Family::look(proc);
        let children =
            family.0.iter().filter(|(_, process)| process.parent == 1).map(|(pid, _)| (*pid, *pid));
        let mut processes = Vec::new();
        for (top, pid) in family.below().into_iter().chain(children) {
            if top == gone || !known.contains(&top) {
                processes.extend(os::pidfd_open(pid));
                let _ = os::kill(pid as i32, SIGKILL);
            }
        }
        Self { processes, pause: FIRST_PAUSE }
    }

    pub(crate) fn step(&mut self) -> Step {
        self.processes.retain(|process| {
            let mut end = [os::Poll::new(process.raw(), os::POLLIN)];
            os::wait_for(&mut end, Some(0));
            !end[0].ready()
        });
        if self.processes.is_empty() {
            return Step::Gone;
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Step::Pause(self.pause)
    }
}

/// A kill on its way. It is over when the keeper ends, which is not for this to find out.
pub(crate) struct Kill {
    keeper: u32,
    cursor: i64,
    family: Family,
    stopped: BTreeSet<u32>,
    passes: u32,
    killing: bool,
    pause: u64,
}

impl Kill {
    pub(crate) fn new(keeper: Marker) -> Self {
        Self {
            keeper: keeper as u32,
            cursor: FIRST_PROCESS,
            family: Family::default(),
            stopped: BTreeSet::new(),
            passes: 0,
            killing: false,
            pause: FIRST_PAUSE,
        }
    }

    /// First all are stopped, until a whole pass meets no new one: what is stopped cannot fork. Then they are killed.
    pub(crate) fn step(&mut self, proc: &Fd) -> Step {
        if self.passes >= PASSES {
            return self.kill_still(proc);
        }
        if !self.family.visit(proc, &mut self.cursor) {
            return Step::Again;
        }
        self.cursor = FIRST_PROCESS;
        self.passes += 1;
        let family = core::mem::take(&mut self.family);
        let members = family.living_below(self.keeper);
        // It may have been stopped by the code, and is what reaps.
        let _ = os::kill(self.keeper as i32, SIGCONT);
        let mut met = false;
        for pid in members {
            if let Some(seen) = family.0.get(&pid)
                && (self.killing || self.stopped.insert(pid))
            {
                met = true;
                send(proc, pid, *seen, if self.killing { SIGKILL } else { SIGSTOP });
            }
        }
        if !self.killing && (!met || self.passes >= PASSES / 2) {
            self.killing = true;
            return Step::Again;
        }
        if self.killing {
            return self.later();
        }
        Step::Again
    }

    /// Kills all while nobody moves.
    fn kill_still(&mut self, proc: &Fd) -> Step {
        let _still = Still::hold();
        for pid in Family::look(proc).living_below(self.keeper) {
            let _ = os::kill(pid as i32, SIGKILL);
        }
        self.later()
    }

    fn later(&mut self) -> Step {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Step::Pause(self.pause)
    }
}
