//! Commands and processes: the exec rows.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use capbox_core::provider::*;
use capbox_guest::client::{
    Attachment, Error as GuestError, Event as GuestEvent, Input as GuestInput, Job, Relay, Terminal,
};
use capbox_guest::proto::{self, Refusal};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::exec::Exec;
use crate::exec::guest::Whereabouts;
use crate::session::Session;

#[async_trait]
impl Run<Exec> for Session {
    async fn run(&self, body: Exec) -> Result<Output> {
        let start = Instant::now();
        let Exec { input, max_output, .. } = &body;
        let (input, max_output) = (input.clone(), *max_output);
        let mut job = self.start(&body, None).await?;
        let feed = feed(job.stdin.take(), input);
        let events: Box<dyn Events> = Box::new(Foreground { job, whereabouts: self.whereabouts() });
        // Fed and drained at once: a command may print before it reads, and read before it prints.
        let (output, ()) = tokio::join!(collect(events, max_output), feed);
        let mut output = output?;
        output.duration = start.elapsed();
        Ok(output)
    }
}

/// Write `input`, then end it. A command that ends without reading all of it is no error.
async fn feed(stdin: Option<GuestInput>, input: Bytes) {
    if let Some(mut stdin) = stdin {
        stdin.write_all(&input).await.ok();
    }
}

#[async_trait]
impl Streaming<Exec> for Session {
    async fn spawn(&self, body: Exec) -> Result<Spawned> {
        let mut job = self.start(&body, None).await?;
        let id = ProcessId::new(job.id());
        let stdin = job.stdin.take();
        let stdin = if body.input.is_empty() {
            stdin.map(|input| Box::pin(Stdin::foreground(input)) as Writer)
        } else {
            tokio::spawn(feed(stdin, body.input));
            None
        };
        Ok(Spawned { id, events: Box::new(Foreground { job, whereabouts: self.whereabouts() }), stdin })
    }
}

#[async_trait]
impl Background<Exec> for Session {
    async fn spawn_background(&self, body: Exec) -> Result<ProcessId> {
        let relay = self.relay().await?;
        let what = named(&body);
        let id = match relay.spawn(request(&body, None)).await {
            Ok(id) => id,
            Err(error) => return Err(self.failed_guest(error, &what).await),
        };
        if body.stdin && !body.input.is_empty() {
            let fed = async {
                let mut attached = relay.attach(&id, 0, true).await?;
                feed(attached.input.take(), body.input).await;
                relay.close_stdin(&id).await
            };
            match fed.await {
                // It ended without reading all of it.
                Ok(()) | Err(GuestError::Refused(Refusal::Ended)) => {}
                Err(error) => return Err(self.failed_guest(error, &what).await),
            }
        }
        Ok(ProcessId::new(id))
    }
}

#[async_trait]
impl Pty<Exec> for Session {
    async fn open(&self, body: Exec, size: TerminalSize) -> Result<Spawned> {
        let mut job = self.start(&body, Some(size)).await?;
        let id = ProcessId::new(job.id());
        self.terminals.insert(&id, job.terminal());
        let mut stdin = job.stdin.take();
        let job = Foreground { job, whereabouts: self.whereabouts() };
        let events = OnTerminal { job, id: id.clone(), terminals: self.terminals.clone() };
        if let Some(stdin) = &mut stdin {
            stdin.write_all(&body.input).await.map_err(|e| Error::invalid_argument("input", e))?;
        }
        let stdin = stdin.map(|input| Box::pin(Stdin::foreground(input)) as Writer);
        Ok(Spawned { id, events: Box::new(events), stdin })
    }
}

#[async_trait]
impl PtyResize for Session {
    async fn resize(&self, process: &ProcessId, size: TerminalSize) -> Result<()> {
        let size = (size.rows, size.cols);
        if let Some(terminal) = self.terminals.get(process) {
            terminal.resize(size);
            return Ok(());
        }
        self.ask(process.as_str(), async |relay| relay.resize(process.as_str(), size).await).await
    }
}

#[async_trait]
impl Signal for Session {
    async fn signal(&self, process: &ProcessId, signal: SignalNumber) -> Result<()> {
        let number = signal.number();
        self.ask(process.as_str(), async |relay| relay.signal(process.as_str(), number).await).await
    }
}

#[async_trait]
impl KillProcess for Session {
    async fn kill(&self, process: &ProcessId) -> Result<Killed> {
        self.ask(process.as_str(), async |relay| match relay.kill(process.as_str()).await {
            Ok(()) => Ok(Killed::Stopped),
            Err(GuestError::Refused(Refusal::Ended)) => Ok(Killed::AlreadyExited),
            Err(error) => Err(error),
        })
        .await
    }
}

#[async_trait]
impl Attach for Session {
    async fn attach(&self, process: &ProcessId) -> Result<Spawned> {
        let now = self.printed(process).await?;
        self.follow(process, now).await
    }
}

#[async_trait]
impl Replay for Session {
    async fn replay(&self, process: &ProcessId, after: u64, follow: bool) -> Result<Spawned> {
        if follow {
            return self.follow(process, after).await;
        }
        let end = self.printed(process).await?;
        let id = process.as_str();
        let attached = self.ask(id, async |relay| relay.attach(id, after, false).await).await?;
        let events = Attached { attachment: attached, whereabouts: self.whereabouts() };
        let events = Box::new(UpTo { events, position: after, end });
        Ok(Spawned { id: process.clone(), events, stdin: None })
    }
}

#[async_trait]
impl ExecList for Session {
    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        let jobs = self.ask("the processes", async |relay| relay.jobs().await).await?;
        Ok(jobs.into_iter().map(process_info).collect())
    }
}

impl Session {
    /// Start a foreground job, naming in a failure what was asked for.
    async fn start(&self, body: &Exec, size: Option<TerminalSize>) -> Result<Job> {
        let relay = self.relay().await?;
        match relay.exec(request(body, size)).await {
            Ok(job) => Ok(job),
            Err(error @ GuestError::Spawn { stage: proto::Stage::Cwd, .. }) => {
                let cwd = body.cwd.as_ref().map(ToString::to_string).unwrap_or_default();
                Err(self.failed_guest(error, &cwd).await)
            }
            Err(error) => Err(self.failed_guest(error, &named(body)).await),
        }
    }

    /// Ask the guest something about `what`.
    pub(crate) async fn ask<T>(
        &self,
        what: &str,
        call: impl AsyncFnOnce(Relay) -> capbox_guest::client::Result<T>,
    ) -> Result<T> {
        match call(self.relay().await?).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed_guest(error, what).await),
        }
    }

    /// For those who outlive a call, and want to say why the guest does not answer.
    pub(crate) fn whereabouts(&self) -> Whereabouts {
        let (id, container) = (self.id.clone(), self.container.clone());
        Whereabouts { engine: self.engine.clone(), id, container }
    }

    async fn failed_guest(&self, error: GuestError, what: &str) -> Error {
        self.whereabouts().failed(error, what).await
    }

    /// The position at which the output of a background job ends now.
    async fn printed(&self, process: &ProcessId) -> Result<u64> {
        let jobs = self.ask(process.as_str(), async |relay| relay.jobs().await).await?;
        Ok(jobs.iter().find(|job| *job.id == *process.as_str().as_bytes()).map_or(0, |job| job.output))
    }

    async fn follow(&self, process: &ProcessId, after: u64) -> Result<Spawned> {
        let (id, relay) = (process.as_str(), self.relay().await?);
        let attached = match relay.attach(id, after, true).await {
            // It has no input, or none any more.
            Err(GuestError::Refused(Refusal::Unsupported | Refusal::Ended)) => {
                relay.attach(id, after, false).await
            }
            attached => attached,
        };
        let mut attachment = match attached {
            Ok(attachment) => attachment,
            Err(error) => return Err(self.failed_guest(error, id).await),
        };
        let stdin = attachment.input.take().map(|input| {
            let background = Some((relay, id.to_owned()));
            Box::pin(Stdin { input: Some(input), close: None, background }) as Writer
        });
        let events = Attached { attachment, whereabouts: self.whereabouts() };
        Ok(Spawned { id: process.clone(), events: Box::new(events), stdin })
    }
}

/// What the guest is asked for.
fn request(body: &Exec, size: Option<TerminalSize>) -> proto::Exec {
    let Exec { program: _, cwd, env, user, timeout, stdin, input: _, max_output: _ } = body;
    let bytes = |text: &std::ffi::OsStr| proto::Bytes::from(text.as_encoded_bytes());
    proto::Exec {
        argv: body.argv().iter().map(|word| bytes(word)).collect(),
        env: env.iter().map(|(name, value)| (name.into(), bytes(value))).collect(),
        cwd: cwd.as_ref().map_or(&b""[..], SandboxPath::as_bytes).into(),
        user: user.as_deref().unwrap_or_default().into(),
        // Zero would be no limit.
        timeout: timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)),
        background: false,
        stdin: *stdin,
        pty: size.map(|size| (size.rows, size.cols)),
        retain: 0,
    }
}

/// The program's name, for a message.
fn named(body: &Exec) -> String {
    let argv = body.argv();
    argv.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
}

fn process_info(job: proto::Job) -> ProcessInfo {
    let text = |bytes: &proto::Bytes| String::from_utf8_lossy(bytes).into_owned();
    let words: Vec<_> = job.argv.iter().map(text).collect();
    let mut info = ProcessInfo::running(text(&job.id), words.join(" "));
    if let Some(exit) = job.exit {
        info.state = ProcessState::Exited(status(&exit));
    }
    info.background = job.background;
    info.started = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(job.started));
    info.pids = job.pids;
    info
}

/// The events of a foreground job. Dropping it kills the job.
struct Foreground {
    job: Job,
    whereabouts: Whereabouts,
}

#[async_trait]
impl Events for Foreground {
    async fn next(&mut self) -> Result<Option<Event>> {
        match self.job.next().await {
            Ok(event) => event.map(core_event).transpose(),
            Err(error) => Err(self.whereabouts.failed(error, self.job.id()).await),
        }
    }
}

/// The events of a job on a terminal, whose size can be changed meanwhile.
struct OnTerminal {
    job: Foreground,
    id: ProcessId,
    terminals: Terminals,
}

#[async_trait]
impl Events for OnTerminal {
    async fn next(&mut self) -> Result<Option<Event>> {
        let event = self.job.next().await;
        if matches!(event, Ok(Some(Event::Exited(_)))) {
            self.terminals.remove(&self.id);
        }
        event
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        self.terminals.remove(&self.id);
    }
}

/// The events of a background job.
struct Attached {
    attachment: Attachment,
    whereabouts: Whereabouts,
}

#[async_trait]
impl Events for Attached {
    async fn next(&mut self) -> Result<Option<Event>> {
        match self.attachment.next().await {
            Ok(event) => event.map(core_event).transpose(),
            Err(error) => Err(self.whereabouts.failed(error, "the process").await),
        }
    }
}

/// The events of a background job up to where its output ended when they were asked for.
struct UpTo {
    events: Attached,
    position: u64,
    end: u64,
}

#[async_trait]
impl Events for UpTo {
    async fn next(&mut self) -> Result<Option<Event>> {
        if self.position >= self.end {
            return Ok(None);
        }
        let event = self.events.next().await?;
        match &event {
            Some(Event::Output { position, bytes, .. }) => {
                self.position = position.saturating_add(bytes.len() as u64);
            }
            Some(Event::Gap { to, .. }) => self.position = *to,
            _ => self.position = self.end,
        }
        Ok(event)
    }
}

/// An event as the core has it.
fn core_event(event: GuestEvent) -> Result<Event> {
    Ok(match event {
        GuestEvent::Output { seq, stream, data } => {
            let stream = match stream {
                proto::Stream::Stdout => OutputStream::Stdout,
                proto::Stream::Stderr => OutputStream::Stderr,
            };
            Event::Output { stream, position: seq, bytes: data }
        }
        GuestEvent::Gap { from, to } => Event::Gap { from, to },
        GuestEvent::Exited(exit) => {
            Event::Exited(Exit::new(status(&exit)).with_background(exit.remaining > 0))
        }
        other => return Err(Error::new(ErrorKind::Provider, format!("the guest reports {other:?}"))),
    })
}

/// How a job ended, from what `wait` said of it and what made it end.
fn status(exit: &proto::Exit) -> ExitStatus {
    const OWN: u16 = proto::Cause::Own as u16;
    const TIMED_OUT: u16 = proto::Cause::TimedOut as u16;
    const KILLED: u16 = proto::Cause::Killed as u16;
    const OUT_OF_MEMORY: u16 = proto::Cause::OutOfMemory as u16;
    match (exit.cause, exit.status & 0x7f) {
        (OWN, 0) => ExitStatus::Exited(exit.status >> 8 & 0xff),
        (OWN, signal) if signal != 0x7f => ExitStatus::Signaled(signal),
        (TIMED_OUT, _) => ExitStatus::TimedOut,
        (KILLED, _) => ExitStatus::Killed,
        (OUT_OF_MEMORY, _) => ExitStatus::OutOfMemory,
        _ => ExitStatus::Unknown,
    }
}

/// Standard input of a process, or the keyboard of a terminal. Shutting it down is end of file.
struct Stdin {
    input: Option<GuestInput>,
    /// For a background job, whose other end the guest keeps, too.
    background: Option<(Relay, String)>,
    close: Option<Pin<Box<dyn Future<Output = capbox_guest::client::Result<()>> + Send>>>,
}

impl Stdin {
    fn foreground(input: GuestInput) -> Self {
        Self { input: Some(input), background: None, close: None }
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.input {
            Some(input) => Pin::new(input).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.input {
            Some(input) => Pin::new(input).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input = None;
        if let Some((relay, job)) = self.background.take() {
            self.close = Some(Box::pin(async move { relay.close_stdin(&job).await }));
        }
        if let Some(close) = &mut self.close {
            let closed = ready!(close.as_mut().poll(cx));
            self.close = None;
            // A job that has ended reads nothing any more.
            if let Err(error) = closed
                && !matches!(error, GuestError::Refused(Refusal::Ended) | GuestError::Lost { .. })
            {
                return Poll::Ready(Err(io::Error::other(error)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The terminals of this session's foreground jobs, by process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terminals(Arc<Mutex<HashMap<ProcessId, Terminal>>>);

impl Terminals {
    fn insert(&self, id: &ProcessId, terminal: Terminal) {
        self.lock().insert(id.clone(), terminal);
    }

    fn get(&self, id: &ProcessId) -> Option<Terminal> {
        self.lock().get(id).cloned()
    }

    fn remove(&self, id: &ProcessId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ProcessId, Terminal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
