//! The base's processes: found again by a variable that their children inherit.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use capbox_core::provider::*;
use rustix::process::{Pid, Signal as OsSignal, kill_process, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::sync::watch;

use crate::base::{Exec, marked};

/// How a job was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Foreground,
    Background,
    Terminal(TerminalSize),
}

/// A job: its processes, its output so far, its end.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: ProcessId,
    pub(crate) command: String,
    pub(crate) kind: Kind,
    pub(crate) pid: u32,
    mark: String,
    log: Arc<Log>,
    stdin: Mutex<Option<ChildStdin>>,
    terminal: Option<OwnedFd>,
    killed: AtomicBool,
    /// The sandbox is gone.
    gone: Arc<AtomicBool>,
}

/// Everything that was printed.
#[derive(Debug)]
struct Log {
    chunks: Mutex<Vec<(OutputStream, Bytes)>>,
    exit: Mutex<Option<Exit>>,
    changed: watch::Sender<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn push(&self, stream: OutputStream, bytes: &[u8]) {
        lock(&self.chunks).push((stream, Bytes::copy_from_slice(bytes)));
        self.changed.send_modify(|n| *n += 1);
    }

    fn size(&self) -> u64 {
        lock(&self.chunks).iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// The first chunk, or rest of one, at or after `position`.
    fn after(&self, position: u64) -> Option<Event> {
        let mut at = 0;
        for (stream, bytes) in lock(&self.chunks).iter() {
            let end = at + bytes.len() as u64;
            if position < end {
                let skip = usize::try_from(position - at).unwrap_or_default();
                return Some(Event::Output { stream: *stream, position, bytes: bytes.slice(skip..) });
            }
            at = end;
        }
        None
    }
}

/// Kill all that carry `mark` in their environment, until none is left.
pub(crate) fn kill_marked(mark: &str) {
    for _ in 0..1000 {
        let pids = marked(mark);
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            signal_pid(pid, OsSignal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn signal_pid(pid: u32, signal: OsSignal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        kill_process(pid, signal).ok();
    }
}

impl Job {
    pub(crate) fn start(
        id: ProcessId,
        exec: Exec,
        env: &Env,
        cwd: &Path,
        deny: bool,
        kind: Kind,
        gone: Arc<AtomicBool>,
    ) -> Result<Arc<Self>> {
        let mut argv = exec.command.program.argv();
        if deny {
            argv.splice(0..0, ["unshare", "-n", "--"].map(Into::into));
        }
        if matches!(kind, Kind::Terminal(_)) {
            argv.splice(0..0, ["setsid", "-c", "--"].map(Into::into));
        }
        let mut command = tokio::process::Command::new(&argv[0]);
        command.args(&argv[1..]).current_dir(cwd).env_clear().env("PWD", cwd);
        command.envs(env.iter());
        let mut terminal = None;
        if let Kind::Terminal(size) = kind {
            let (master, slave) = terminal_pair(size).map_err(|error| provider_error(&error))?;
            let other = || slave.try_clone().map(Stdio::from).map_err(|error| provider_error(&error));
            command.stdin(other()?).stdout(other()?).stderr(other()?);
            terminal = Some(master);
        } else {
            let open = exec.stdin.is_some() || exec.input.is_some();
            command.stdin(if open { Stdio::piped() } else { Stdio::null() });
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::ProgramNotFound, "the program is not there"),
            io::ErrorKind::PermissionDenied => {
                Error::new(ErrorKind::ProgramNotExecutable, "the program cannot be executed")
            }
            _ => provider_error(&error),
        })?;
        drop(command);
        let log = Arc::new(Log {
            chunks: Mutex::default(),
            exit: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let mut stdin = child.stdin.take();
        if let Some(Input(input)) = exec.input
            && let Some(mut writer) = stdin.take()
        {
            tokio::spawn(async move { writer.write_all(&input).await });
        }
        let mut pumps = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            pumps.push(tokio::spawn(pump(stdout, OutputStream::Stdout, log.clone())));
        }
        if let Some(stderr) = child.stderr.take() {
            pumps.push(tokio::spawn(pump(stderr, OutputStream::Stderr, log.clone())));
        }
        if let Some(master) = &terminal {
            let master = master.try_clone().map_err(|error| provider_error(&error))?;
            let log = log.clone();
            pumps.push(tokio::task::spawn_blocking(move || pump_terminal(&master, &log)));
        }
        let mark = env.get("CAPBOX_JOB").unwrap_or_default().to_string_lossy();
        let job = Arc::new(Self {
            id,
            command: exec.command.program.to_string(),
            kind,
            pid: child.id().unwrap_or_default(),
            mark: format!("CAPBOX_JOB={mark}\0"),
            log,
            stdin: Mutex::new(stdin),
            terminal,
            killed: AtomicBool::new(false),
            gone,
        });
        tokio::spawn(job.clone().supervise(child, pumps, exec.timeout));
        Ok(job)
    }

    async fn supervise(
        self: Arc<Self>,
        mut child: Child,
        pumps: Vec<tokio::task::JoinHandle<()>>,
        timeout: Option<Duration>,
    ) {
        let limit = timeout.unwrap_or(Duration::from_hours(24));
        let ended = tokio::time::timeout(limit, child.wait()).await;
        let status = if let Ok(ended) = ended {
            use std::os::unix::process::ExitStatusExt;
            match ended {
                _ if self.gone.load(Ordering::SeqCst) => ExitStatus::SandboxGone,
                _ if self.killed.load(Ordering::SeqCst) => ExitStatus::Killed,
                Ok(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => ExitStatus::Exited(code),
                    (None, Some(signal)) => ExitStatus::Signaled(signal),
                    (None, None) => ExitStatus::Unknown,
                },
                Err(_) => ExitStatus::Unknown,
            }
        } else {
            kill_marked(&self.mark);
            child.wait().await.ok();
            ExitStatus::TimedOut
        };
        // What is in the pipes still comes. Where others hold them, their end is not waited for.
        let mut quiet = 0;
        let mut size = self.log.size();
        while !pumps.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let grown = self.log.size();
            quiet = if grown == size { quiet + 1 } else { 0 };
            size = grown;
            if quiet >= 10 && !marked(&self.mark).is_empty() {
                break;
            }
        }
        pumps.iter().for_each(tokio::task::JoinHandle::abort);
        let remains = !marked(&self.mark).is_empty();
        *lock(&self.log.exit) = Some(Exit::new(status).with_background(remains));
        self.log.changed.send_modify(|n| *n += 1);
    }

    /// Follow it from `position` on; dropping the events of a job in the foreground kills it.
    pub(crate) fn spawned(self: &Arc<Self>, position: u64, follow: bool, owned: bool) -> Spawned {
        let end = if follow { u64::MAX } else { self.log.size() };
        let events = Following {
            job: self.clone(),
            changed: self.log.changed.subscribe(),
            position,
            end,
            done: false,
            owned,
        };
        let stdin = match &self.terminal {
            Some(master) => {
                let master = master.try_clone().ok();
                master.map(|master| Box::pin(Typing { master, line: 0 }) as Writer)
            }
            None => lock(&self.stdin).take().map(|stdin| Box::pin(stdin) as Writer),
        };
        Spawned { id: self.id.clone(), events: Box::new(events), stdin }
    }

    pub(crate) fn printed(&self) -> u64 {
        self.log.size()
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        *lock(&self.log.exit)
    }

    pub(crate) async fn kill(&self) -> Killed {
        if self.exit().is_some() {
            return Killed::AlreadyExited;
        }
        self.killed.store(true, Ordering::SeqCst);
        kill_marked(&self.mark);
        self.ended().await;
        Killed::Stopped
    }

    pub(crate) async fn ended(&self) {
        let mut changed = self.log.changed.subscribe();
        while self.exit().is_none() {
            changed.changed().await.ok();
        }
    }

    pub(crate) fn signal(&self, signal: SignalNumber) -> Result<()> {
        if self.exit().is_some() {
            return Err(Error::new(ErrorKind::Conflict, format!("`{}` has ended", self.id)));
        }
        let signal = OsSignal::from_named_raw(signal.number())
            .ok_or_else(|| Error::invalid_argument("signal", "has no name"))?;
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process_group(pid, signal).ok();
        }
        Ok(())
    }

    pub(crate) fn resize(&self, size: TerminalSize) -> Result<()> {
        match &self.terminal {
            Some(master) if self.exit().is_none() => {
                set_size(master, size).map_err(|error| provider_error(&error))
            }
            _ => Err(Error::new(ErrorKind::Conflict, format!("`{}` has no terminal any more", self.id))),
        }
    }
}

fn provider_error(error: &io::Error) -> Error {
    Error::new(ErrorKind::Provider, error.to_string())
}

async fn pump(mut from: impl AsyncRead + Unpin, stream: OutputStream, log: Arc<Log>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        log.push(stream, &buffer[..n]);
    }
}

fn pump_terminal(master: &OwnedFd, log: &Log) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = rustix::io::read(master, &mut buffer) {
        log.push(OutputStream::Stdout, &buffer[..n]);
    }
}

fn terminal_pair(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    set_size(&master, size)?;
    Ok((master, slave))
}

fn set_size(master: &impl AsFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows, cols } = size;
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}

/// Types into a terminal; refuses lines that the terminal would cut.
struct Typing {
    master: OwnedFd,
    line: usize,
}

const LONGEST_LINE: usize = 4095;

impl AsyncWrite for Typing {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut line = self.line;
        for byte in bytes {
            line = if *byte == b'\n' { 0 } else { line + 1 };
            if line > LONGEST_LINE {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, "the line is too long")));
            }
        }
        self.line = line;
        Poll::Ready(Ok(rustix::io::write(&self.master, bytes)?))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A reader of a job's log.
struct Following {
    job: Arc<Job>,
    changed: watch::Receiver<u64>,
    position: u64,
    end: u64,
    done: bool,
    owned: bool,
}

#[async_trait]
impl Events for Following {
    async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            self.changed.borrow_and_update();
            let exit = self.job.exit();
            if self.done || self.position >= self.end && exit.is_none() {
                return Ok(None);
            }
            if let Some(event) = self.job.log.after(self.position) {
                if let Event::Output { bytes, .. } = &event {
                    self.position += bytes.len() as u64;
                }
                return Ok(Some(event));
            }
            if let Some(exit) = exit {
                self.done = true;
                return Ok(Some(Event::Exited(exit)));
            }
            self.changed.changed().await.ok();
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if self.owned && self.job.exit().is_none() {
            kill_marked(&self.job.mark);
        }
    }
}
