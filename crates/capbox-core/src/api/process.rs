//! Processes.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::io::AsyncWriteExt;

use super::core::{Any, Core};
use super::output::{Event, Exit, ExitStatus, Output, collect};
use crate::capability::rows::{HasAttach, HasKillProcess, HasPtyResize, HasReplay, HasSignal};
use crate::capability::{Capability, cap};
use crate::error::{Admitted, Error, ErrorKind, Result};
use crate::provider::{Events, Spawned, Writer};
use crate::spec::{DEFAULT_MAX_OUTPUT, TerminalSize};

/// The opaque id of a process; never a bare pid, so it is never another process's.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(String);

impl ProcessId {
    /// The id with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for ProcessId {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for ProcessId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&Self> for ProcessId {
    fn from(id: &Self) -> Self {
        id.clone()
    }
}

/// A process of a sandbox.
///
/// One that was started in the foreground is killed, with everything that it started, when this is dropped.
/// One that was started in the background, or found by its id, is not.
pub struct Process<K = Any> {
    core: Arc<Core>,
    id: ProcessId,
    events: Option<Box<dyn Events>>,
    stdin: Option<Writer>,
    exit: Option<Exit>,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Process<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.id).field("exit", &self.exit).finish_non_exhaustive()
    }
}

impl<K> Process<K> {
    pub(super) fn attached(core: Arc<Core>, spawned: Spawned) -> Self {
        let Spawned { id, events, stdin } = spawned;
        Self { core, id, events: Some(events), stdin, exit: None, kind: PhantomData }
    }

    pub(super) fn detached(core: Arc<Core>, id: ProcessId) -> Self {
        Self { core, id, events: None, stdin: None, exit: None, kind: PhantomData }
    }

    /// The id, by which it is found again.
    pub fn id(&self) -> &ProcessId {
        &self.id
    }

    /// How it ended, once that has been seen.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// The next event; the last is [`Event::Exited`], then `None`. Dropping the future loses nothing.
    ///
    /// A handle that does not follow the process ([`Sandbox::process`](super::Sandbox::process), or one started
    /// in the background) must be [attached](Self::attach) first.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        let Some(events) = &mut self.events else { return Err(follows_nothing(&self.id)) };
        let event = self.core.op(Capability::Streaming.as_str(), events.next()).await?;
        if let Some(Event::Exited(exit)) = &event {
            self.exit = Some(*exit);
        }
        Ok(event)
    }

    /// Write to standard input, or type into the terminal. Waits while the process does not read.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(stdin) = &mut self.stdin else {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("standard input of `{}` is closed", self.id),
            )
            .with_hint("start it with `stdin(Stdin::Open)`"));
        };
        let written = async {
            stdin.write_all(bytes).await?;
            stdin.flush().await
        };
        written.await.map_err(|error| stdin_error(&self.id, &error))
    }

    /// End standard input: the process reads end of file.
    pub async fn close_stdin(&mut self) -> Result<()> {
        match self.stdin.take() {
            None => Ok(()),
            Some(mut stdin) => stdin.shutdown().await.map_err(|error| stdin_error(&self.id, &error)),
        }
    }

    /// Take the writer of standard input, to write from elsewhere. Shutting it down is end of file.
    pub fn take_stdin(&mut self) -> Option<Writer> {
        self.stdin.take()
    }

    /// Wait for the end, letting output pass unseen. Closes standard input first.
    pub async fn wait(&mut self) -> Result<Exit> {
        self.close_stdin().await.ok();
        loop {
            if let Some(exit) = self.exit {
                return Ok(exit);
            }
            if self.next().await?.is_none() && self.exit.is_none() {
                return Ok(Exit::new(ExitStatus::Unknown));
            }
        }
    }

    /// Collect what is still to come, to the end: 16 MiB of each stream at most. Closes standard input first.
    pub async fn output(self) -> Result<Output> {
        self.output_within(DEFAULT_MAX_OUTPUT).await
    }

    /// The same, keeping at most `max_output` bytes of each stream: its head and its tail.
    pub async fn output_within(mut self, max_output: usize) -> Result<Output> {
        self.close_stdin().await.ok();
        let Some(events) = self.events.take() else { return Err(follows_nothing(&self.id)) };
        self.core.op(Capability::Streaming.as_str(), collect(events, max_output)).await
    }

    /// What a call on the process needs. Its future holds no handle, which could not be shared between threads.
    fn parts(&self) -> (Arc<Core>, ProcessId) {
        (self.core.clone(), self.id.clone())
    }

    /// Kill it with everything that it started; returns when all of it is gone.
    pub fn kill(&self) -> impl Future<Output = Result<Killed>> + Send + use<K>
    where
        K: HasKillProcess,
    {
        let (core, id) = self.parts();
        async move {
            let api = core.api::<cap::KillProcess>()?;
            core.request(Capability::KillProcess.as_str(), api.kill(&id)).await
        }
    }

    /// Send a signal to it and its process group.
    pub fn signal(&self, signal: Signal) -> impl Future<Output = Result<()>> + Send + use<K>
    where
        K: HasSignal,
    {
        let (core, id) = self.parts();
        async move {
            let api = core.api::<cap::Signal>()?;
            core.request(Capability::Signal.as_str(), api.signal(&id, signal)).await
        }
    }

    /// Change the size of its terminal.
    pub fn resize(&self, size: TerminalSize) -> impl Future<Output = Result<()>> + Send + use<K>
    where
        K: HasPtyResize,
    {
        let (core, id) = self.parts();
        async move {
            let api = core.api::<cap::PtyResize>()?;
            core.request(Capability::PtyResize.as_str(), api.resize(&id, size)).await
        }
    }

    /// Follow it from now on, with its standard input where that is still open.
    pub async fn attach(self) -> Result<Self>
    where
        K: HasAttach,
    {
        let api = self.core.api::<cap::Attach>()?;
        let spawned = self.core.request(Capability::Attach.as_str(), api.attach(&self.id)).await?;
        Ok(Self::attached(self.core, spawned))
    }

    /// Follow it from the output position `after` on: 0 is the start. What is no longer kept is an
    /// [`Event::Gap`].
    pub async fn replay(self, after: u64) -> Result<Self>
    where
        K: HasReplay,
    {
        self.replayed(after, true).await
    }

    /// What it has printed so far, from the output position `after` on; the events end where the output ends
    /// now.
    pub async fn logs(self, after: u64) -> Result<Self>
    where
        K: HasReplay,
    {
        self.replayed(after, false).await
    }

    async fn replayed(self, after: u64, follow: bool) -> Result<Self> {
        let api = self.core.api::<cap::Replay>()?;
        let call = api.replay(&self.id, after, follow);
        let spawned = self.core.request(Capability::Replay.as_str(), call).await?;
        Ok(Self::attached(self.core, spawned))
    }
}

fn follows_nothing(id: &ProcessId) -> Error {
    Error::new(ErrorKind::Conflict, format!("this handle of `{id}` follows nothing"))
        .with_hint("call `attach` or `replay` first")
}

/// A process that no longer reads, or a refused write that carries an [`Error`] of ours.
fn stdin_error(id: &ProcessId, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::BrokenPipe => ErrorKind::Conflict,
        io::ErrorKind::InvalidInput => ErrorKind::InvalidArgument,
        _ => ErrorKind::ConnectionLost,
    };
    let message = match error.kind() {
        io::ErrorKind::BrokenPipe => format!("`{id}` does not read its standard input any more"),
        _ => format!("write to `{id}`: {error}"),
    };
    Error::new(kind, message).with_admitted(Admitted::Unknown)
}

/// What a kill did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// It was alive, and now it is not.
    Stopped,
    /// It had ended before.
    AlreadyExited,
}

/// A signal, by its number on Linux.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signal(i32);

const SIGNALS: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

impl Signal {
    /// Interrupt, as by Ctrl-C.
    pub const INT: Self = Self(2);
    /// Kill: cannot be caught.
    pub const KILL: Self = Self(9);
    /// The polite request to end.
    pub const TERM: Self = Self(15);

    /// The signal with this number, 1 to 64.
    pub fn new(number: i32) -> Result<Self> {
        if (1..=64).contains(&number) {
            return Ok(Self(number));
        }
        Err(Error::invalid_argument("signal", format!("{number} is not between 1 and 64")))
    }

    /// The number on Linux.
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIGNALS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Signal {
    type Err = Error;

    /// Reads `TERM`, `SIGTERM` or `15`.
    fn from_str(text: &str) -> Result<Self> {
        if let Ok(number) = text.parse() {
            return Self::new(number);
        }
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        match SIGNALS.iter().find(|(known, _)| *known == name) {
            Some((_, number)) => Ok(Self(*number)),
            None => Err(Error::invalid_argument(
                "signal",
                format!("`{text}` is not a signal; write `TERM` or `15`"),
            )),
        }
    }
}

/// What state a process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It ended.
    Exited(ExitStatus),
}

/// A process in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// The id.
    pub id: ProcessId,
    /// What was started, for people; may be shortened.
    pub command: String,
    /// The state.
    pub state: ProcessState,
    /// True where it outlives its caller.
    pub background: bool,
    /// When it was started.
    pub started: Option<SystemTime>,
    /// The pids inside the sandbox of all that is alive of it, where the provider says.
    pub pids: Vec<u32>,
}

impl ProcessInfo {
    /// A running process of which nothing else is known.
    pub fn running(id: impl Into<ProcessId>, command: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            command: command.into(),
            state: ProcessState::Running,
            background: false,
            started: None,
            pids: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals() {
        assert_eq!("TERM".parse::<Signal>().unwrap(), Signal::TERM);
        assert_eq!("sigkill".parse::<Signal>().unwrap(), Signal::KILL);
        assert_eq!("2".parse::<Signal>().unwrap(), Signal::INT);
        assert_eq!(Signal::KILL.to_string(), "KILL");
        for wrong in ["", "0", "65", "-9", "SIGNOPE"] {
            assert!(wrong.parse::<Signal>().is_err(), "{wrong}");
        }
    }
}
