//! Commands.

use std::io;
use std::pin::Pin;
use std::string::String;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use super::link::{Channel, Item, Link};
use super::{Admitted, Error, Result, nonsense, text, unexpected};
use crate::proto::{self, Exec, Exit, Request, Stream};
use crate::stream::Kind;

/// Something that a job did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It wrote.
    Output {
        /// The position of the first byte in all of the job's output.
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

/// A command in the foreground. Dropping it, and its input, kills the command and all that it started.
#[derive(Debug)]
pub struct Job {
    id: String,
    channel: Channel,
    /// What the command reads, if asked for. Dropping it is the end of the input; for a terminal it types nothing.
    pub stdin: Option<Input>,
    seq: u64,
    ended: bool,
}

impl Job {
    pub(super) async fn start(link: &Link, exec: Exec) -> Result<Self> {
        let terminal = exec.pty.is_some();
        let has_input = exec.stdin || terminal;
        let mut channel = link.open(&Request::Exec { exec: Exec { background: false, ..exec } }.encode())?;
        match channel.event().await? {
            proto::Event::Started { job } => {
                let stdin = has_input.then(|| Input { channel: Some(channel.clone()), terminal });
                Ok(Self { id: text(&job), channel, stdin, seq: 0, ended: false })
            }
            proto::Event::Failed { stage, errno } => Err(Error::Spawn { stage, errno }),
            other => Err(unexpected(&other)),
        }
    }

    /// The job's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the job does next; `None` after [`Event::Exited`]. May be dropped and called again.
    ///
    /// All that the command wrote comes before its end, unless processes that it left behind go on writing: those are not
    /// waited for. A slow reader slows the command down.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        if self.ended {
            return Ok(None);
        }
        loop {
            let (stream, data) = match self.channel.next().await {
                Ok(Some(Item::Data(data))) => (Stream::Stdout, data),
                Ok(Some(Item::Errors(data))) => (Stream::Stderr, data),
                Ok(Some(Item::Event(bytes))) => match proto::Event::decode(&bytes) {
                    Ok(proto::Event::Exited { exit }) => {
                        self.ended = true;
                        return Ok(Some(Event::Exited(exit)));
                    }
                    _ => return Err(nonsense()),
                },
                // It reads no more.
                Ok(Some(Item::End)) => continue,
                Ok(None) => return Err(started(nonsense())),
                Err(error) => return Err(started(error)),
            };
            let seq = self.seq;
            self.seq += data.len() as u64;
            return Ok(Some(Event::Output { seq, stream, data }));
        }
    }

    /// Sets the rows and columns of the terminal. Without one, and after the end, nothing happens.
    pub fn resize(&self, size: (u16, u16)) {
        resize(&self.channel, size);
    }

    /// What resizes the terminal while others read and write.
    pub fn terminal(&self) -> Terminal {
        Terminal(self.channel.downgrade())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Whoever still has its input.
        self.channel.close();
    }
}

/// The terminal of a command in the foreground. Does not keep the command alive.
#[derive(Debug, Clone)]
pub struct Terminal(super::link::WeakChannel);

impl Terminal {
    /// Sets its rows and columns. After the end of the command, nothing happens.
    pub fn resize(&self, size: (u16, u16)) {
        if let Some(channel) = self.0.upgrade() {
            resize(&channel, size);
        }
    }
}

fn resize(channel: &Channel, (rows, columns): (u16, u16)) {
    let ([a, b], [c, d]) = (rows.to_le_bytes(), columns.to_le_bytes());
    channel.put(Kind::Size, &[a, b, c, d]);
}

/// The command had been started.
fn started(error: Error) -> Error {
    match error {
        Error::Lost { reason, .. } => Error::Lost { reason, admitted: Admitted::Yes },
        other => other,
    }
}

/// What a command reads. Shutting it down, or dropping it, is the end of the input. A command that reads no more makes
/// writes fail with `BrokenPipe`.
///
/// A line that a terminal would cut is refused with `InvalidInput`, by the next write or flush.
#[derive(Debug)]
pub struct Input {
    channel: Option<Channel>,
    /// Whether it may be one.
    terminal: bool,
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.put(Kind::End, &[]);
        }
    }
}

impl AsyncWrite for Input {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &self.channel {
            Some(channel) => channel.poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.channel {
            Some(channel) if self.terminal => channel.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(channel) = self.channel.take() {
            channel.put(Kind::End, &[]);
        }
        Poll::Ready(Ok(()))
    }
}

/// A background job's output, from a position on, and its input if asked for. Dropping it leaves the job alone.
#[derive(Debug)]
pub struct Attachment {
    channel: Channel,
    /// What the job reads. Shutting it down closes this end; see [`Relay::close_stdin`](super::Relay::close_stdin) for
    /// process 1's.
    pub input: Option<Input>,
    ended: bool,
}

impl Attachment {
    pub(super) async fn open(link: &Link, job: &str, after: u64, input: bool) -> Result<Self> {
        let mut channel = link.open(&Request::Attach { job: job.into(), after, input }.encode())?;
        match channel.event().await? {
            proto::Event::Attached => {
                let input = input.then(|| Input { channel: Some(channel.clone()), terminal: true });
                Ok(Self { channel, input, ended: false })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// What the job did next, from the position on; `None` after [`Event::Exited`]. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        if self.ended {
            return Ok(None);
        }
        Ok(Some(match self.channel.event().await.map_err(started)? {
            proto::Event::Output { seq, stream, data } => Event::Output { seq, stream, data: data.0.into() },
            proto::Event::Gap { from, to } => Event::Gap { from, to },
            proto::Event::Exited { exit } => {
                self.ended = true;
                Event::Exited(exit)
            }
            other => return Err(unexpected(&other)),
        }))
    }
}
