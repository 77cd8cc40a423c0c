//! Processes: what the interpreter does for one command, its output and its end.

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use capbox_core::provider::*;
use tokio::sync::watch;

use crate::shell::Shell;

/// How much output a process in the foreground is ahead of its reader before it waits, in bytes.
const AHEAD: u64 = 256 << 10;
/// How much output of a process in the background is kept, in bytes.
const KEPT: u64 = 1 << 20;
/// How long what a command left behind may go on before the call ends without it.
const GRACE: Duration = Duration::from_millis(50);

/// A process of a sandbox.
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    command: String,
    background: bool,
    started: SystemTime,
    cancel: Arc<AtomicBool>,
    state: watch::Sender<State>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("id", &self.id)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// The position after the last output.
    end: u64,
    /// How many bytes the chunks hold.
    held: u64,
    /// How many writers wait for the reader.
    waiting: usize,
    /// How it was ended from outside.
    stop: Option<ExitStatus>,
    /// How it ended, as told to readers.
    exit: Option<Exit>,
    /// Nothing of it runs any more.
    gone: bool,
}

#[derive(Clone, Debug)]
struct Chunk {
    stream: OutputStream,
    position: u64,
    bytes: Bytes,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }
}

impl Process {
    /// Start `shell`, as a task of the runtime of the caller.
    pub(crate) fn start(id: ProcessId, background: bool, shell: Shell) -> Arc<Self> {
        let process = Arc::new(Self {
            id,
            command: shell.command(),
            background,
            started: SystemTime::now(),
            cancel: shell.cancel(),
            state: watch::Sender::default(),
        });
        tokio::spawn(process.clone().run(shell));
        process
    }

    /// Do what `shell` says, until it is done, its time is up or somebody stops it.
    async fn run(self: Arc<Self>, shell: Shell) {
        // Also where the runtime ends and drops this task half-way.
        let last = Last(&self);
        let (timeout, code) = (shell.timeout, shell.code.clone());
        let status = {
            let mut work = pin!(shell.run(&self));
            let mut overtime = pin!(elapsed(timeout));
            let mut left_behind = pin!(self.left_behind(code));
            let mut returned = false;
            loop {
                tokio::select! {
                    biased;
                    status = self.stopped() => break status,
                    // It ends also because it is stopped.
                    status = &mut work => break self.state.borrow().stop.unwrap_or(status),
                    () = &mut overtime => break ExitStatus::TimedOut,
                    code = &mut left_behind, if !returned => {
                        returned = true;
                        self.exit(Exit::new(ExitStatus::Exited(code)).with_background(true));
                    }
                }
            }
        };
        self.exit(Exit::new(status));
        drop(last);
    }

    /// The exit code of the command itself, where something that it started goes on.
    async fn left_behind(&self, mut code: watch::Receiver<Option<i32>>) -> i32 {
        let Some(code) = code.wait_for(Option::is_some).await.ok().and_then(|code| *code) else {
            return std::future::pending().await;
        };
        tokio::time::sleep(GRACE).await;
        // What it printed is still on its way as long as a slow reader holds it up.
        let mut state = self.state.subscribe();
        loop {
            state.wait_for(|s| s.waiting == 0).await.ok();
            tokio::task::yield_now().await;
            if self.state.borrow().waiting == 0 {
                return code;
            }
        }
    }

    async fn stopped(&self) -> ExitStatus {
        let mut state = self.state.subscribe();
        let stopped = state.wait_for(|s| s.stop.is_some()).await;
        stopped.ok().and_then(|s| s.stop).unwrap_or(ExitStatus::Unknown)
    }

    /// Take output. Waits while the reader is far behind; drops what is old where nobody needs to read.
    pub(crate) async fn print(&self, stream: OutputStream, bytes: Vec<u8>) {
        if !self.background && self.is_ahead() {
            self.state.send_modify(|s| s.waiting += 1);
            let _waiting = Waiting(self);
            let mut state = self.state.subscribe();
            state.wait_for(|s| s.held < AHEAD || s.exit.is_some()).await.ok();
        }
        self.push(stream, bytes.into());
    }

    /// Take output at once.
    pub(crate) fn push(&self, stream: OutputStream, bytes: Bytes) {
        let background = self.background;
        self.state.send_modify(|s| {
            // What comes from those who were left behind is nobody's.
            if s.exit.is_some() || bytes.is_empty() {
                return;
            }
            let chunk = Chunk { stream, position: s.end, bytes };
            s.end = chunk.end();
            s.held += chunk.bytes.len() as u64;
            s.chunks.push_back(chunk);
            while background && s.held > KEPT {
                s.drop_first();
            }
        });
    }

    fn is_ahead(&self) -> bool {
        let state = self.state.borrow();
        state.held >= AHEAD && state.exit.is_none()
    }

    fn exit(&self, exit: Exit) {
        self.state.send_modify(|s| {
            s.exit.get_or_insert(exit);
        });
    }

    /// End it and all that it started, soon.
    pub(crate) fn stop(&self, status: ExitStatus) {
        self.state.send_modify(|s| {
            s.stop.get_or_insert(status);
        });
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// The same; returns when nothing of it runs.
    pub(crate) async fn kill(&self, status: ExitStatus) -> Killed {
        let before = self.state.borrow().exit;
        self.stop(status);
        self.gone().await;
        if before.is_some() { Killed::AlreadyExited } else { Killed::Stopped }
    }

    /// Wait until nothing of it runs.
    async fn gone(&self) {
        self.state.subscribe().wait_for(|s| s.gone).await.ok();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state.borrow().gone
    }

    pub(crate) fn info(&self) -> ProcessInfo {
        let mut info = ProcessInfo::running(&self.id, &self.command);
        if let Some(exit) = self.state.borrow().exit {
            info.state = ProcessState::Exited(exit.status);
        }
        info.background = self.background;
        info.started = Some(self.started);
        info
    }
}

impl State {
    fn drop_first(&mut self) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.held -= chunk.bytes.len() as u64;
        }
    }
}

async fn elapsed(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Says at the end, however that comes, that nothing of it runs.
struct Last<'a>(&'a Process);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(|s| {
            s.exit.get_or_insert(Exit::new(ExitStatus::Unknown));
            s.gone = true;
        });
    }
}

struct Waiting<'a>(&'a Process);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(|s| s.waiting -= 1);
    }
}

/// Reads the output of a process.
pub(crate) struct Reader {
    process: Arc<Process>,
    at: u64,
    /// Read no further than here.
    until: Option<u64>,
    /// It is the one for whom the process runs: what it has read is dropped, and its end is the process's.
    owner: bool,
    done: bool,
}

impl Reader {
    /// The reader of a process in the foreground. Dropping it kills the process.
    pub(crate) fn owner(process: Arc<Process>) -> Self {
        Self { process, at: 0, until: None, owner: true, done: false }
    }

    /// Reads from now on.
    pub(crate) fn attached(process: Arc<Process>) -> Self {
        let at = process.state.borrow().end;
        Self { process, at, until: None, owner: false, done: false }
    }

    /// Reads from position `after` on: all that comes, or what is there now.
    pub(crate) fn replaying(process: Arc<Process>, after: u64, follow: bool) -> Self {
        let end = process.state.borrow().end;
        Self { process, at: after.min(end), until: (!follow).then_some(end), owner: false, done: false }
    }

    pub(crate) fn spawned(self) -> Spawned {
        Spawned { id: self.process.id.clone(), events: Box::new(self), stdin: None }
    }
}

#[async_trait]
impl Events for Reader {
    async fn next(&mut self) -> Result<Option<Event>> {
        if self.done {
            return Ok(None);
        }
        let (at, until) = (self.at, self.until);
        let mut changes = self.process.state.subscribe();
        let found = {
            let ready = |s: &State| s.end > at || s.exit.is_some() || until.is_some_and(|until| at >= until);
            let Ok(state) = changes.wait_for(ready).await else { return Ok(None) };
            find(&state, at, until)
        };
        match &found {
            Some(Event::Output { position, bytes, .. }) => self.at = position + bytes.len() as u64,
            Some(Event::Gap { to, .. }) => self.at = *to,
            _ => self.done = true,
        }
        if self.owner {
            let at = self.at;
            self.process.state.send_if_modified(|s| {
                let before = s.chunks.len();
                while s.chunks.front().is_some_and(|chunk| chunk.end() <= at) {
                    s.drop_first();
                }
                s.chunks.len() < before
            });
        }
        Ok(found)
    }
}

/// The next event after the position `at`.
fn find(state: &State, at: u64, until: Option<u64>) -> Option<Event> {
    let end = until.unwrap_or(u64::MAX).min(state.end);
    if at >= end {
        return state.exit.map(Event::Exited);
    }
    // Chunks lie in order without holes, so one look-up finds the place.
    let index = state.chunks.partition_point(|chunk| chunk.end() <= at);
    let Some(chunk) = state.chunks.get(index) else { return Some(Event::Gap { from: at, to: end }) };
    if chunk.position > at {
        return Some(Event::Gap { from: at, to: chunk.position.min(end) });
    }
    let bytes = |position: u64| usize::try_from(position - chunk.position).unwrap_or(usize::MAX);
    let bytes = chunk.bytes.slice(bytes(at)..bytes(end).min(chunk.bytes.len()));
    Some(Event::Output { stream: chunk.stream, position: at, bytes })
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.owner {
            self.process.stop(ExitStatus::Killed);
        }
    }
}
