//! The client of a relay: a container's guest, over one stream of bytes. See [`crate::stream`].
//!
//! ```text
//! let relay = Relay::connect(reader, writer).await?;  // the two directions of `docker exec -i … /.capbox/guest relay`
//! relay.boot(contain).await?;                         // the first one; its end is the end of a sandbox that is owned
//! let mut job = relay.exec(Exec { argv, stdin: true, ..Exec::default() }).await?;
//! while let Some(event) = job.next().await? { … }
//! ```
//!
//! Messages are those of [`crate::proto`]. What is at the other end runs beside hostile code: nothing that it says is
//! believed, nor kept beyond fixed bounds.

mod files;
mod job;
mod link;

use std::string::String;
use std::vec::Vec;

use tokio::io::{AsyncRead, AsyncWrite};

pub use files::{FileReader, FileWriter, Watch, WriteOptions};
pub use job::{Attachment, Event, Input, Job, Terminal};

use crate::proto::{self, Bytes, Exec, Refusal, Request, Stage};
use link::{Channel, Link};

/// Why a call did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The stream has ended, or what came on it made no sense.
    #[error("the connection to the container is lost: {reason}")]
    Lost {
        /// What happened.
        reason: String,
        /// Whether what was asked for may have been done.
        admitted: Admitted,
    },
    /// The relay speaks another version.
    #[error("the relay speaks another version of the protocol")]
    Version,
    /// The relay could not reach process 1 of the container.
    #[error("the relay cannot {step}: error {errno}")]
    Relay {
        /// What it tried.
        step: String,
        /// Why that failed.
        errno: i32,
    },
    /// A command could not be started.
    #[error("cannot start the command ({stage:?}): error {errno}")]
    Spawn {
        /// Where that failed.
        stage: Stage,
        /// Why.
        errno: i32,
    },
    /// A request about a job or the sandbox was refused.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// A request about a file failed.
    #[error("error {errno}")]
    File {
        /// Why.
        errno: i32,
    },
    /// A path leads to something that is no file of the container, such as `/proc`.
    #[error("the path leads out of the container's files")]
    Outside,
    /// Neither a regular file nor a folder.
    #[error("neither a regular file nor a folder (mode {mode:o})")]
    Special {
        /// Type and permission bits.
        mode: u32,
    },
    /// There is more than was allowed for.
    #[error("{size} bytes are more than the limit of {limit}")]
    TooLarge {
        /// How much.
        size: u64,
        /// What was allowed for.
        limit: u64,
    },
    /// The request is too large, or there are too many at a time.
    #[error("{0}")]
    TooMuch(&'static str),
}

/// Whether a request may have been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// It was never sent.
    No,
    /// It was sent, and nothing is known of it.
    Unknown,
    /// It was carried out, or is being.
    Yes,
}

/// What this module's calls answer with.
pub type Result<T> = std::result::Result<T, Error>;

/// A container's guest, by a relay. Cheap to clone; the stream ends with the last clone and the last of what came of it.
#[derive(Debug, Clone)]
pub struct Relay(Link);

impl Relay {
    /// Greets a relay whose standard output and input these are. Must be called in a tokio runtime, which then carries the
    /// stream.
    pub async fn connect<R, W>(reader: R, writer: W) -> Result<Self>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Link::connect(reader, writer).await.map(Self)
    }

    /// Tells the container what it is for. This relay is then the owner's, if it is owned. Refused with
    /// [`Refusal::Invalid`] where it has been told before.
    pub async fn boot(&self, contain: proto::Contain) -> Result<()> {
        match self.ask(&Request::Contain { contain }).await? {
            proto::Event::Ready => Ok(()),
            proto::Event::BootFailed { step, errno } => Err(Error::Relay { step: text(&step), errno }),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts a command in the foreground: dropping the [`Job`] kills it and all that it started.
    ///
    /// `background` of the request is not looked at, here and in [`spawn`](Self::spawn).
    pub async fn exec(&self, exec: Exec) -> Result<Job> {
        Job::start(&self.0, exec).await
    }

    /// Starts a command in the background and answers with its job's id. It outlives this relay, and the newest of its
    /// output is kept for [`attach`](Self::attach).
    pub async fn spawn(&self, exec: Exec) -> Result<String> {
        match self.ask(&Request::Exec { exec: Exec { background: true, ..exec } }).await? {
            proto::Event::Started { job } => Ok(text(&job)),
            proto::Event::Failed { stage, errno } => Err(Error::Spawn { stage, errno }),
            other => Err(unexpected(&other)),
        }
    }

    /// Replays the output of a background job from the position `after` on (0 for all that is kept), and then follows it
    /// to its end. With `input`, also what it reads, if it was started with that or a terminal.
    pub async fn attach(&self, job: &str, after: u64, input: bool) -> Result<Attachment> {
        Attachment::open(&self.0, job, after, input).await
    }

    /// Kills what there is of a job and returns when all of it is gone. [`Refusal::Ended`] says that nothing was left,
    /// [`Refusal::NotFound`] that there is no such job.
    pub async fn kill(&self, job: &str) -> Result<()> {
        self.order(&Request::Kill { job: job.into() }).await
    }

    /// Sends a signal to the process group of a job's first process.
    pub async fn signal(&self, job: &str, signal: i32) -> Result<()> {
        self.order(&Request::Signal { job: job.into(), signal }).await
    }

    /// Closes process 1's end of a background job's input. Attachments that have it keep theirs.
    pub async fn close_stdin(&self, job: &str) -> Result<()> {
        self.order(&Request::CloseStdin { job: job.into() }).await
    }

    /// Sets the rows and columns of a background job's terminal. For one in the foreground see [`Job::resize`].
    pub async fn resize(&self, job: &str, size: (u16, u16)) -> Result<()> {
        self.order(&Request::Resize { job: job.into(), size }).await
    }

    /// All jobs: those that run, and the newest few hundred of those that have ended.
    pub async fn jobs(&self) -> Result<Vec<proto::Job>> {
        /// What a relay may make of it.
        const MOST: usize = 16_384;
        let mut channel = self.0.open(&Request::Jobs.encode())?;
        let mut found = Vec::new();
        while found.len() < MOST {
            match channel.event().await? {
                proto::Event::Jobs { jobs, last } => {
                    found.extend(jobs);
                    if last {
                        break;
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(found)
    }

    /// What the sandbox says about itself.
    pub async fn info(&self) -> Result<proto::Info> {
        match self.ask(&Request::Info).await? {
            proto::Event::Info { info } => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Lets the sandbox live on when its owner's relay ends.
    pub async fn detach(&self) -> Result<()> {
        self.order(&Request::Detach).await
    }

    /// Sets the milliseconds after which the sandbox ends by itself, counted from now; 0 for no end.
    pub async fn set_ttl(&self, ttl: u64) -> Result<()> {
        self.order(&Request::Ttl { ttl }).await
    }

    /// Ends the sandbox: all that runs in it, and process 1. The end of the stream is the answer, so it is
    /// no error if the stream has ended already.
    pub async fn destroy(&self) -> Result<()> {
        let mut channel = match self.0.open(&Request::Destroy.encode()) {
            Ok(channel) => channel,
            Err(Error::Lost { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        match channel.event().await {
            Err(Error::Lost { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(other) => Err(unexpected(&other)),
        }
    }

    /// Waits until the stream has ended, and says why.
    pub async fn lost(&self) -> Error {
        self.0.lost().await
    }

    async fn ask(&self, request: &Request) -> Result<proto::Event> {
        self.0.open(&request.encode())?.event().await
    }

    async fn order(&self, request: &Request) -> Result<()> {
        match self.ask(request).await? {
            proto::Event::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(event: &proto::Event) -> Error {
    match event {
        proto::Event::Refused { refusal } => Error::Refused(*refusal),
        proto::Event::Version { .. } => Error::Version,
        _ => nonsense(),
    }
}

fn nonsense() -> Error {
    Error::Lost { reason: "an answer that makes no sense".into(), admitted: Admitted::Unknown }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Channel {
    /// The next event. The end of the channel without one is [`Error::Lost`].
    async fn event(&mut self) -> Result<proto::Event> {
        loop {
            if let link::Item::Event(bytes) = self.next().await?.ok_or_else(nonsense)? {
                return proto::Event::decode(&bytes).map_err(|_| nonsense());
            }
        }
    }
}
