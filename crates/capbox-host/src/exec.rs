//! Commands: in the foreground with pipes or a terminal, and in the background with a log.

use std::ffi::{OsStr, OsString};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use capbox_guest::proto::{self, Event as Answer, Request, Stage};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::termios::{LocalModes, Winsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWrite, Interest};
use tokio::time::{Instant, Sleep};

use crate::error::{Context, Error, Result, SpawnStage};
use crate::guest::{Guest, text};
use crate::host::{bytes, millis};
use crate::socket::{self, Replies};

/// Time for output that is on its way when a command has ended and left processes behind.
const GRACE: Duration = Duration::from_millis(50);
/// The same when it left none. The pipes then end by themselves, unless a process that is hidden from the guest
/// holds them.
const LONG_GRACE: Duration = Duration::from_secs(2);
/// The longest line that a terminal takes while it edits lines; the kernel cuts what is longer.
const LONGEST_LINE: usize = 4095;

/// A command to run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ExecRequest {
    /// Program and arguments. A program without a slash is looked up in the `PATH` that the command gets.
    pub argv: Vec<OsString>,
    /// Laid over the sandbox's environment.
    pub env: Vec<(OsString, OsString)>,
    /// Where to start; relative paths begin at the sandbox's default, which is also what `None` means.
    pub cwd: Option<PathBuf>,
    /// `user` (the default), `root`, or numbers as in `1001` or `1001:1002`. Other than the default only where the
    /// caller is root.
    pub user: Option<String>,
    /// When to kill it and all that it started.
    pub timeout: Option<Duration>,
    /// Whether it has a standard input to write to. Without one it reads an end of file.
    pub stdin: bool,
    /// A terminal for it, of this size. Output is then one stream.
    pub pty: Option<PtySize>,
    /// For [`Guest::spawn`]: how many bytes of output to keep. 0 is 1 MiB. All jobs together keep 16 MiB.
    pub retain: u64,
}

impl ExecRequest {
    /// A command from program and arguments.
    pub fn new<T: Into<OsString>>(argv: impl IntoIterator<Item = T>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    /// Rows of text.
    pub rows: u16,
    /// Characters in a row.
    pub columns: u16,
}

impl PtySize {
    pub(crate) fn checked(self) -> Result<(u16, u16)> {
        if self.rows == 0 || self.columns == 0 {
            let reason = "use at least one row and one column".into();
            return Err(Error::InvalidArgument { name: "terminal size", reason });
        }
        Ok((self.rows, self.columns))
    }
}

/// A stream of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output, or all output of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// Why.
    pub cause: Cause,
    /// The exit code, if the first process exited.
    pub code: Option<i32>,
    /// The signal, if one ended it.
    pub signal: Option<i32>,
    /// How many processes of the job are still there: they live on, are listed by [`Guest::ps`], and can be killed by
    /// the job's id.
    pub remaining: u32,
    /// Processor time, of the processes that were waited for.
    pub cpu: Duration,
    /// The largest resident set of one process, in bytes.
    pub max_rss: u64,
    /// Time from start to end.
    pub duration: Duration,
}

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It exited.
    Exited,
    /// A signal that came from inside.
    Signaled,
    /// Its timeout.
    TimedOut,
    /// Somebody asked for it, or the client of a foreground job went away.
    Killed,
    /// It used more memory than it may.
    OutOfMemory,
}

impl Exit {
    /// The number a shell would report: the exit code, or 128 and the signal.
    pub fn shell_code(&self) -> i32 {
        self.code.or(self.signal.map(|signal| 128 + signal)).unwrap_or(255)
    }
}

impl From<proto::Exit> for Exit {
    fn from(exit: proto::Exit) -> Self {
        let proto::Exit { status, cause, remaining, cpu, max_rss, duration } = exit;
        let signal = (status & 0x7f != 0).then_some(status & 0x7f);
        let code = signal.is_none().then_some(status >> 8 & 0xff);
        let cause = match cause {
            1 => Cause::TimedOut,
            2 => Cause::Killed,
            3 => Cause::OutOfMemory,
            _ if signal.is_some() => Cause::Signaled,
            _ => Cause::Exited,
        };
        Self {
            cause,
            code,
            signal,
            remaining,
            cpu: Duration::from_micros(cpu),
            max_rss: max_rss.saturating_mul(1024),
            duration: Duration::from_micros(duration),
        }
    }
}

/// A job, as listed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: String,
    /// Program and arguments: the first few, each shortened.
    pub argv: Vec<Vec<u8>>,
    /// When it started.
    pub started: SystemTime,
    /// Whether it was started in the background.
    pub background: bool,
    /// Whether it runs on a terminal.
    pub pty: bool,
    /// How it ended, if its first process did; `remaining` is up to date.
    pub exit: Option<Exit>,
    /// Its processes, by their numbers inside.
    pub pids: Vec<u32>,
    /// How many bytes of output a background job has written so far.
    pub output: u64,
}

impl From<proto::Job> for JobInfo {
    fn from(job: proto::Job) -> Self {
        let proto::Job { id, argv, started, background, exit, pids, pty, output } = job;
        Self {
            id: text(&id),
            argv: argv.into_iter().map(|word| word.0).collect(),
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(started),
            background,
            pty,
            exit: exit.map(Exit::from),
            pids,
            output,
        }
    }
}

/// Something that a job did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It wrote.
    Output {
        /// For an attachment, the position of the first byte in all of the job's output; else counted likewise.
        seq: u64,
        /// Where.
        stream: Stream,
        /// What.
        data: Bytes,
    },
    /// It wrote more than the log keeps (attachments only).
    Gap {
        /// The position of the first byte that is missing.
        from: u64,
        /// The position after the last one.
        to: u64,
    },
    /// It ended. This is the last event.
    Exited(Exit),
}

/// A command in the foreground. Dropping it kills the command and all that it started.
///
/// Take [`stdin`](Self::stdin), write to it and drop it, while reading [`next`](Self::next): a command may well write
/// before it reads, and read before it writes.
#[derive(Debug)]
pub struct Job {
    id: String,
    replies: Replies,
    /// What the command reads, if asked for. Dropping it is the end of the input. A command that ends without reading
    /// makes writes fail with `BrokenPipe`, which is no error of the command.
    pub stdin: Option<Input>,
    /// What the command writes to its standard output; for a terminal, what it shows. Taken by who wants to read it
    /// directly, else part of [`next`](Self::next).
    pub stdout: Option<Output>,
    /// What the command writes to its standard error.
    pub stderr: Option<Output>,
    seq: u64,
    exit: Option<Exit>,
    patience: Option<Pin<Box<Sleep>>>,
    prefer_stderr: bool,
}

impl Job {
    pub(crate) async fn start(guest: &Guest, request: ExecRequest) -> Result<Self> {
        let pipes = if request.pty.is_some() { None } else { Some(Pipes::new(request.stdin)?) };
        let stdin = request.stdin;
        let (named, request) = encode(request, false)?;
        let theirs: Vec<BorrowedFd<'_>> =
            pipes.iter().flat_map(|pipes| pipes.theirs.iter().map(AsFd::as_fd)).collect();
        let mut replies = guest.request(&request, &theirs).await?;
        drop(theirs);
        let (id, mut fds) = started(guest, &mut replies, named).await?;
        let (input, stdout, stderr) = match pipes {
            Some(Pipes { ours, theirs }) => {
                // While this process has them, the pipes do not end.
                drop(theirs);
                let mut ours = ours.into_iter();
                let input = if stdin { ours.next() } else { None };
                (input.map(Input::new).transpose()?, ours.next(), ours.next())
            }
            None => match fds.pop() {
                Some(master) => {
                    let copy = master.try_clone().context(|| "use the terminal".into())?;
                    (Some(Input::terminal(copy)?), Some(master), None)
                }
                None => return Err(guest.unexpected(&Answer::Done)),
            },
        };
        Ok(Self {
            id,
            replies,
            stdin: input,
            stdout: stdout.map(Output::new).transpose()?,
            stderr: stderr.map(Output::new).transpose()?,
            seq: 0,
            exit: None,
            patience: None,
            prefer_stderr: false,
        })
    }

    /// The job's id, for [`Guest::kill`], [`Guest::signal`] and [`Guest::ps`].
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the job does next; `None` after [`Event::Exited`].
    ///
    /// All that the command wrote comes before its end, unless processes that it left behind go on writing: those are
    /// not waited for. Nothing is read ahead, so a slow reader slows the command down. Losing the sandbox is
    /// [`Error::Gone`]. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Option<Event>>> {
        // Alternating, lest one stream starve the other.
        self.prefer_stderr = !self.prefer_stderr;
        let order = [Stream::Stdout, Stream::Stderr];
        for stream in if self.prefer_stderr { [order[1], order[0]] } else { order } {
            if let Poll::Ready(chunk) = self.poll_stream(stream, cx)? {
                let seq = self.seq;
                self.seq += chunk.len() as u64;
                self.patience = None;
                return Poll::Ready(Ok(Some(Event::Output { seq, stream, data: chunk })));
            }
        }
        ready!(self.poll_exit(cx))?;
        let open = self.stdout.is_some() || self.stderr.is_some();
        let Some(exit) = &self.exit else { return Poll::Ready(Ok(None)) };
        if open {
            // What is in the pipes was looked for above; this is for what is being written at this moment.
            let grace = if exit.remaining == 0 { LONG_GRACE } else { GRACE };
            let patience = self
                .patience
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + grace)));
            ready!(patience.as_mut().poll(cx));
            (self.stdout, self.stderr) = (None, None);
        }
        Poll::Ready(Ok(self.take_exit()))
    }

    fn take_exit(&mut self) -> Option<Event> {
        // Kept for `wait`, and told once.
        if self.seq == u64::MAX {
            return None;
        }
        self.seq = u64::MAX;
        self.exit.clone().map(Event::Exited)
    }

    fn poll_stream(&mut self, stream: Stream, cx: &mut TaskContext<'_>) -> Result<Poll<Bytes>> {
        let slot = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(output) = slot else { return Ok(Poll::Pending) };
        match output.poll_chunk(cx) {
            Poll::Ready(Ok(Some(chunk))) => Ok(Poll::Ready(chunk)),
            Poll::Ready(Ok(None)) => {
                *slot = None;
                Ok(Poll::Pending)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    fn poll_exit(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<()>> {
        while self.exit.is_none() {
            match ready!(self.replies.poll_next(cx))? {
                Some((Answer::Exited { exit }, _)) => self.exit = Some(exit.into()),
                Some(_) => {}
                None => return Poll::Ready(Err(self.replies.gone())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the end of the command, without reading what it writes: take [`stdout`](Self::stdout) and
    /// [`stderr`](Self::stderr) first, or use [`next`](Self::next).
    pub async fn wait(&mut self) -> Result<Exit> {
        poll_fn(|cx| self.poll_exit(cx)).await?;
        self.exit.clone().ok_or_else(|| self.replies.gone())
    }

    /// The terminal, to change its size while others read and write.
    pub fn terminal(&self) -> Option<Terminal> {
        let input = self.stdin.as_ref().filter(|input| input.terminal)?;
        Some(Terminal(Arc::new(input.fd.get_ref().try_clone().ok()?)))
    }

    /// Sets the size of the terminal. After the end of the command this is [`Error::Ended`].
    pub fn resize(&self, size: PtySize) -> Result<()> {
        if self.exit.is_some() {
            return Err(Error::Ended { id: self.id.clone() });
        }
        match self.terminal() {
            Some(terminal) => terminal.resize(size),
            None => Err(Error::Unsupported {
                what: "the size of a terminal that is not there".into(),
                hint: "start the command with a terminal, and keep its input".into(),
            }),
        }
    }
}

/// The terminal of a command in the foreground.
#[derive(Debug, Clone)]
pub struct Terminal(Arc<OwnedFd>);

impl Terminal {
    /// Sets its size.
    pub fn resize(&self, size: PtySize) -> Result<()> {
        let (rows, columns) = size.checked()?;
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&*self.0, size).context(|| "set the size of the terminal".into())
    }
}

/// The pipes of a command.
struct Pipes {
    /// Standard input if there is one, standard output, standard error.
    ours: Vec<OwnedFd>,
    theirs: Vec<OwnedFd>,
}

impl Pipes {
    fn new(stdin: bool) -> Result<Self> {
        let mut pipes = Self { ours: Vec::with_capacity(3), theirs: Vec::with_capacity(3) };
        let new = || pipe_with(PipeFlags::CLOEXEC).context(|| "make a pipe".into());
        if stdin {
            let (read, write) = new()?;
            pipes.ours.push(write);
            pipes.theirs.push(read);
        }
        for _ in 0..2 {
            let (read, write) = new()?;
            pipes.ours.push(read);
            pipes.theirs.push(write);
        }
        for end in &pipes.theirs {
            // The pipe's owner is this user, who inside may be nobody: `/dev/stdout` is to be opened all the same.
            // Nobody can see the pipe but who has it.
            rustix::fs::fchmod(end, rustix::fs::Mode::from_raw_mode(0o666))
                .context(|| "share a pipe".into())?;
        }
        Ok(pipes)
    }
}

/// The end of a stream that a command writes to.
#[derive(Debug)]
pub struct Output {
    fd: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
    chunk: usize,
}

/// What is read at once; a pipe holds no more unless told to.
const CHUNK: usize = 64 * 1024;
/// For streams that fill the pipe.
const LARGE_CHUNK: usize = 256 * 1024;
const LARGE_PIPE: usize = 1 << 20;

impl Output {
    fn new(fd: OwnedFd) -> Result<Self> {
        Ok(Self { fd: register(fd, Interest::READABLE)?, buffer: Vec::new(), chunk: CHUNK })
    }

    /// The next bytes; `None` at the end. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    fn poll_chunk(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Option<Bytes>>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx)).context(|| "wait for output".into())?;
            self.buffer.clear();
            self.buffer.reserve(self.chunk);
            let buffer = &mut self.buffer;
            let read = guard.try_io(|fd| {
                let read = rustix::io::read(fd.get_ref(), rustix::buffer::spare_capacity(buffer));
                read.map_err(io::Error::from)
            });
            match read {
                Err(_would_block) => {}
                // A terminal's end is an error.
                Ok(Ok(0)) => return Poll::Ready(Ok(None)),
                Ok(Err(error)) if error.raw_os_error() == Some(5) => return Poll::Ready(Ok(None)),
                Ok(Err(error)) => return Poll::Ready(Err(error).context(|| "read output".into())),
                Ok(Ok(len)) => return Poll::Ready(Ok(Some(self.take(len)))),
            }
        }
    }

    fn take(&mut self, len: usize) -> Bytes {
        if len == CHUNK && self.chunk == CHUNK {
            // More than the pipe holds: a larger one costs fewer wake-ups. Best effort, for it may exceed a quota.
            if fcntl_setpipe_size(&self.fd, LARGE_PIPE).is_ok() {
                self.chunk = LARGE_CHUNK;
            }
        }
        if len < self.chunk / 4 {
            return Bytes::copy_from_slice(&self.buffer);
        }
        Bytes::from(std::mem::take(&mut self.buffer))
    }
}

/// What a command reads.
///
/// Dropping the input of a pipe is its end. Dropping that of a terminal types nothing.
#[derive(Debug)]
pub struct Input {
    fd: AsyncFd<OwnedFd>,
    terminal: bool,
    /// Bytes of the current line, for a terminal that edits lines.
    line: usize,
}

impl Input {
    fn new(fd: OwnedFd) -> Result<Self> {
        Ok(Self { fd: register(fd, Interest::WRITABLE)?, terminal: false, line: 0 })
    }

    fn terminal(fd: OwnedFd) -> Result<Self> {
        Ok(Self { fd: register(fd, Interest::WRITABLE)?, terminal: true, line: 0 })
    }

    /// Refuses a line that the terminal would cut.
    fn check_line(&mut self, bytes: &[u8]) -> io::Result<()> {
        let edits = rustix::termios::tcgetattr(&self.fd)
            .is_ok_and(|settings| settings.local_modes.contains(LocalModes::ICANON));
        let mut line = if edits { self.line } else { 0 };
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r' | 4)) {
            line += part.len();
            if edits && line > LONGEST_LINE {
                let reason =
                    "a line for a terminal has at most 4095 bytes; pass longer text in a file or argument";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
            if matches!(part.last(), Some(b'\n' | b'\r' | 4)) {
                line = 0;
            }
        }
        self.line = line;
        Ok(())
    }
}

impl AsyncWrite for Input {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let before = self.line;
        if self.terminal {
            self.check_line(bytes)?;
        }
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            let written = guard.try_io(|fd| rustix::io::write(fd.get_ref(), bytes).map_err(io::Error::from));
            match written {
                Err(_would_block) => {}
                Ok(Ok(len)) => {
                    if self.terminal && len < bytes.len() {
                        // The rest comes again.
                        self.line = before;
                        self.check_line(&bytes[..len])?;
                    }
                    return Poll::Ready(Ok(len));
                }
                // A terminal without a program on it.
                Ok(Err(error)) if error.raw_os_error() == Some(5) => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn register(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true).context(|| "set up a pipe".into())?;
    socket::register(fd, interest)
}

/// A background job's output, from a position on, and its input if asked for.
#[derive(Debug)]
pub struct Attachment {
    replies: Replies,
    /// What the job reads.
    pub input: Option<Input>,
    ended: bool,
}

impl Attachment {
    pub(crate) async fn open(guest: &Guest, job: &str, after: u64, input: bool) -> Result<Self> {
        let request = Request::Attach { job: job.into(), after, input };
        let mut replies = guest.request(&request, &[]).await?.large();
        match replies.expect().await? {
            (Answer::Attached, mut fds) => {
                let input = fds.pop().map(|fd| {
                    if rustix::termios::isatty(&fd) { Input::terminal(fd) } else { Input::new(fd) }
                });
                Ok(Self { replies, input: input.transpose()?, ended: false })
            }
            (Answer::Refused { refusal }, _) => Err(Guest::refused(refusal, job)),
            (other, _) => Err(guest.unexpected(&other)),
        }
    }

    /// What the job did next, from the position on; `None` after [`Event::Exited`]. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        if self.ended {
            return Ok(None);
        }
        loop {
            let event = match self.replies.expect().await?.0 {
                Answer::Output { seq, stream, data } => {
                    let stream = match stream {
                        proto::Stream::Stdout => Stream::Stdout,
                        proto::Stream::Stderr => Stream::Stderr,
                    };
                    Event::Output { seq, stream, data: data.0.into() }
                }
                Answer::Gap { from, to } => Event::Gap { from, to },
                Answer::Exited { exit } => {
                    self.ended = true;
                    Event::Exited(exit.into())
                }
                _ => continue,
            };
            return Ok(Some(event));
        }
    }
}

pub(crate) async fn spawn(guest: &Guest, request: ExecRequest) -> Result<String> {
    let (named, request) = encode(request, true)?;
    let mut replies = guest.request(&request, &[]).await?;
    Ok(started(guest, &mut replies, named).await?.0)
}

/// What messages name: each may be why a command cannot be started.
struct Named {
    program: String,
    cwd: String,
    user: String,
}

async fn started(guest: &Guest, replies: &mut Replies, named: Named) -> Result<(String, Vec<OwnedFd>)> {
    let Named { program, cwd, user } = named;
    match replies.expect().await? {
        (Answer::Started { job }, fds) => Ok((text(&job), fds)),
        (Answer::Failed { stage, errno }, _) => {
            let (what, stage) = match stage {
                Stage::Request => (program, SpawnStage::Request),
                Stage::Cwd => (cwd, SpawnStage::Cwd),
                Stage::Program => (program, SpawnStage::Program),
                Stage::Interpreter => (program, SpawnStage::Interpreter),
                Stage::User => (user, SpawnStage::User),
                Stage::Process => (program, SpawnStage::Process),
                Stage::Terminal => (program, SpawnStage::Terminal),
            };
            Err(Error::Spawn { what, stage, source: io::Error::from_raw_os_error(errno) })
        }
        (other, _) => Err(guest.unexpected(&other)),
    }
}

/// What messages about the request name, and the request for the guest.
fn encode(request: ExecRequest, background: bool) -> Result<(Named, Request)> {
    let ExecRequest { argv, mut env, cwd, user, timeout, stdin, pty, retain } = request;
    let invalid = |name, reason: &str| Err(Error::InvalidArgument { name, reason: reason.to_owned() });
    let Some(program) = argv.first() else { return invalid("command", "give at least a program") };
    if argv.iter().any(|word| word.as_bytes().contains(&0)) {
        return invalid("command", "a word cannot hold a NUL");
    }
    if cwd.as_ref().is_some_and(|cwd| bytes(cwd).contains(&0) || bytes(cwd).is_empty()) {
        return invalid("cwd", "give a path without a NUL");
    }
    if timeout == Some(Duration::ZERO) {
        return invalid("timeout", "use more than zero, or none for no end");
    }
    for (name, value) in &env {
        check_env(name, value)?;
    }
    if pty.is_some() && !env.iter().any(|(name, _)| name == "TERM") {
        env.push(("TERM".into(), "xterm-256color".into()));
    }
    let named = Named {
        program: program.to_string_lossy().into_owned(),
        cwd: cwd.as_ref().map_or_else(|| ".".to_owned(), |cwd| cwd.to_string_lossy().into_owned()),
        user: user.clone().unwrap_or_default(),
    };
    let exec = proto::Exec {
        argv: argv.iter().map(|word| word.as_bytes().into()).collect(),
        env: env.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())).collect(),
        cwd: cwd.as_deref().map(bytes).unwrap_or_default().into(),
        user: user.as_deref().unwrap_or_default().into(),
        timeout: timeout.map_or(0, millis),
        background,
        stdin: stdin && pty.is_none(),
        pty: pty.map(PtySize::checked).transpose()?,
        retain,
    };
    Ok((named, Request::Exec { exec }))
}

/// Refuses what is no variable: it would be lost on the way, or become another one.
pub(crate) fn check_env(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Result<()> {
    let (name, value) = (name.as_ref().as_bytes(), value.as_ref().as_bytes());
    let reason = if name.is_empty() {
        "a name cannot be empty".to_owned()
    } else if name.iter().any(|byte| matches!(byte, b'=' | b'\n' | 0)) {
        format!("the name `{}` holds `=`, a line feed or NUL", String::from_utf8_lossy(name).escape_debug())
    } else if value.contains(&0) {
        format!("the value of `{}` holds NUL", String::from_utf8_lossy(name))
    } else {
        return Ok(());
    };
    Err(Error::InvalidArgument { name: "environment", reason })
}
