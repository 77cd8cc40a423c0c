//! Commands and processes: the exec rows.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use capbox_core::provider::*;
use capbox_host::{Attachment, Cause, Guest, Input as HostInput, Job, JobInfo, PtySize, Terminal};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::client::Exec;
use crate::error::from_host;
use crate::session::Session;

#[async_trait]
impl Run<Exec> for Session {
    async fn run(&self, body: Exec) -> Result<Output> {
        let start = Instant::now();
        let Exec { request, input, max_output } = body;
        let mut job = self.guest.exec(request).await.map_err(from_host)?;
        let feed = feed(job.stdin.take(), input);
        let events: Box<dyn Events> = Box::new(Foreground { job });
        // Fed and drained at once: a command may print before it reads, and read before it prints.
        let (output, ()) = tokio::join!(collect(events, max_output), feed);
        let mut output = output?;
        output.duration = start.elapsed();
        Ok(output)
    }
}

/// Write `input`, then end it. A command that ends without reading all of it is no error.
async fn feed(stdin: Option<HostInput>, input: Bytes) {
    if let Some(mut stdin) = stdin {
        stdin.write_all(&input).await.ok();
    }
}

#[async_trait]
impl Streaming<Exec> for Session {
    async fn spawn(&self, body: Exec) -> Result<Spawned> {
        let Exec { request, input, max_output: _ } = body;
        let mut job = self.guest.exec(request).await.map_err(from_host)?;
        let id = ProcessId::new(job.id());
        let stdin = job.stdin.take();
        let stdin = if input.is_empty() {
            stdin.map(|input| Box::pin(Stdin::foreground(input)) as Writer)
        } else {
            tokio::spawn(feed(stdin, input));
            None
        };
        Ok(Spawned { id, events: Box::new(Foreground { job }), stdin })
    }
}

#[async_trait]
impl Background<Exec> for Session {
    async fn spawn_background(&self, body: Exec) -> Result<ProcessId> {
        let Exec { request, input, max_output: _ } = body;
        let fed = request.stdin && !input.is_empty();
        let id = self.guest.spawn(request).await.map_err(from_host)?;
        if fed {
            let mut attached = self.guest.attach(&id, 0, true).await.map_err(from_host)?;
            feed(attached.input.take(), input).await;
            self.guest.close_stdin(&id).await.map_err(from_host)?;
        }
        Ok(ProcessId::new(id))
    }
}

#[async_trait]
impl Pty<Exec> for Session {
    async fn open(&self, body: Exec, size: TerminalSize) -> Result<Spawned> {
        let Exec { mut request, input, max_output: _ } = body;
        request.pty = Some(PtySize { rows: size.rows, columns: size.cols });
        let mut job = self.guest.exec(request).await.map_err(from_host)?;
        let id = ProcessId::new(job.id());
        if let Some(terminal) = job.terminal() {
            self.terminals.insert(&id, terminal);
        }
        let mut stdin = job.stdin.take();
        if let Some(stdin) = &mut stdin {
            stdin.write_all(&input).await.map_err(|e| Error::invalid_argument("input", e))?;
        }
        let events =
            OnTerminal { job: Foreground { job }, id: id.clone(), terminals: self.terminals.clone() };
        let stdin = stdin.map(|input| Box::pin(Stdin::foreground(input)) as Writer);
        Ok(Spawned { id, events: Box::new(events), stdin })
    }
}

#[async_trait]
impl PtyResize for Session {
    async fn resize(&self, process: &ProcessId, size: TerminalSize) -> Result<()> {
        let size = PtySize { rows: size.rows, columns: size.cols };
        match self.terminals.get(process) {
            Some(terminal) => terminal.resize(size).map_err(from_host),
            None => self.guest.resize(process.as_str(), size).await.map_err(from_host),
        }
    }
}

#[async_trait]
impl Signal for Session {
    async fn signal(&self, process: &ProcessId, signal: SignalNumber) -> Result<()> {
        self.guest.signal(process.as_str(), signal.number()).await.map_err(from_host)
    }
}

#[async_trait]
impl KillProcess for Session {
    async fn kill(&self, process: &ProcessId) -> Result<Killed> {
        match self.guest.kill(process.as_str()).await {
            Ok(()) => Ok(Killed::Stopped),
            Err(capbox_host::Error::Ended { .. }) => Ok(Killed::AlreadyExited),
            Err(error) => Err(from_host(error)),
        }
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
        let attached = self.guest.attach(process.as_str(), after, false).await.map_err(from_host)?;
        let events = Box::new(UpTo { events: Attached(attached), position: after, end });
        Ok(Spawned { id: process.clone(), events, stdin: None })
    }
}

#[async_trait]
impl ExecList for Session {
    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        Ok(self.guest.ps().await.map_err(from_host)?.into_iter().map(process_info).collect())
    }
}

impl Session {
    /// The position at which the output of a background job ends now.
    async fn printed(&self, process: &ProcessId) -> Result<u64> {
        let jobs = self.guest.ps().await.map_err(from_host)?;
        Ok(jobs.iter().find(|job| job.id == process.as_str()).map_or(0, |job| job.output))
    }

    async fn follow(&self, process: &ProcessId, after: u64) -> Result<Spawned> {
        let id = process.as_str();
        let attached = match self.guest.attach(id, after, true).await {
            // It has no input, or none any more.
            Err(capbox_host::Error::Unsupported { .. } | capbox_host::Error::Ended { .. }) => {
                self.guest.attach(id, after, false).await
            }
            attached => attached,
        };
        let mut attached = attached.map_err(from_host)?;
        let stdin = attached.input.take().map(|input| {
            Box::pin(Stdin {
                input: Some(input),
                close: None,
                background: Some((self.guest.clone(), id.into())),
            }) as Writer
        });
        Ok(Spawned { id: process.clone(), events: Box::new(Attached(attached)), stdin })
    }
}

fn process_info(job: JobInfo) -> ProcessInfo {
    let words: Vec<_> = job.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let mut info = ProcessInfo::running(job.id, words.join(" "));
    if let Some(exit) = job.exit {
        info.state = ProcessState::Exited(status(&exit));
    }
    info.background = job.background;
    info.started = Some(job.started);
    info.pids = job.pids;
    info
}

/// The events of a foreground job. Dropping it kills the job.
struct Foreground {
    job: Job,
}

#[async_trait]
impl Events for Foreground {
    async fn next(&mut self) -> Result<Option<Event>> {
        event(self.job.next().await)
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
struct Attached(Attachment);

#[async_trait]
impl Events for Attached {
    async fn next(&mut self) -> Result<Option<Event>> {
        event(self.0.next().await)
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
            Some(Event::Output { position, bytes, .. }) => self.position = position + bytes.len() as u64,
            Some(Event::Gap { to, .. }) => self.position = *to,
            _ => self.position = self.end,
        }
        Ok(event)
    }
}

/// An event as the core has it.
fn event(event: capbox_host::Result<Option<capbox_host::Event>>) -> Result<Option<Event>> {
    let Some(event) = event.map_err(from_host)? else { return Ok(None) };
    Ok(Some(match event {
        capbox_host::Event::Output { seq, stream, data } => {
            let stream = match stream {
                capbox_host::Stream::Stdout => OutputStream::Stdout,
                capbox_host::Stream::Stderr => OutputStream::Stderr,
            };
            Event::Output { stream, position: seq, bytes: data }
        }
        capbox_host::Event::Gap { from, to } => Event::Gap { from, to },
        capbox_host::Event::Exited(exit) => {
            Event::Exited(Exit::new(status(&exit)).with_background(exit.remaining > 0))
        }
        other => return Err(Error::new(ErrorKind::Provider, format!("the guest reports {other:?}"))),
    }))
}

fn status(exit: &capbox_host::Exit) -> ExitStatus {
    match (exit.cause, exit.code, exit.signal) {
        (Cause::Exited, Some(code), _) => ExitStatus::Exited(code),
        (Cause::Signaled, _, Some(signal)) => ExitStatus::Signaled(signal),
        (Cause::TimedOut, ..) => ExitStatus::TimedOut,
        (Cause::Killed, ..) => ExitStatus::Killed,
        (Cause::OutOfMemory, ..) => ExitStatus::OutOfMemory,
        _ => ExitStatus::Unknown,
    }
}

/// Standard input of a process, or the keyboard of a terminal. Shutting it down is end of file.
struct Stdin {
    input: Option<HostInput>,
    /// For a background job, whose other end the guest keeps, too.
    background: Option<(Guest, String)>,
    close: Option<Pin<Box<dyn Future<Output = capbox_host::Result<()>> + Send>>>,
}

impl Stdin {
    fn foreground(input: HostInput) -> Self {
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

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input = None;
        if let Some((guest, job)) = self.background.take() {
            self.close = Some(Box::pin(async move { guest.close_stdin(&job).await }));
        }
        if let Some(close) = &mut self.close {
            let closed = ready!(close.as_mut().poll(cx));
            self.close = None;
            // A job that has ended reads nothing any more.
            if let Err(error) = closed
                && !matches!(error, capbox_host::Error::Ended { .. } | capbox_host::Error::Gone { .. })
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
