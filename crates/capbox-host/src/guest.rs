use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use capbox_guest::proto::{self, Bytes, Event, Refusal, Request};
use tokio::io::Interest;

use crate::ended::ended;
use crate::error::{Context, Error, Result};
use crate::exec::{Attachment, ExecRequest, Job, JobInfo, PtySize};
use crate::files::Files;
use crate::host::millis;
use crate::launch::Ids;
use crate::socket::{self, Answer, Identity, Replies};
use crate::watch::Watch;

/// A sandbox, by a connection to its guest. Cheap to clone.
///
/// If the sandbox is owned and this is its owner's connection, it ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Guest(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    sandbox: Arc<Identity>,
    /// Only ever sent on.
    control: OwnedFd,
    ids: Ids,
}

/// What a sandbox says about itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Info {
    /// Its id: its name, if it has one.
    pub id: String,
    /// When it was created.
    pub created: SystemTime,
    /// Time until it ends by itself.
    pub ttl_left: Option<Duration>,
    /// Whether it ends with its creator.
    pub owned: bool,
    /// What its creator wants to find it by.
    pub labels: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What the layer above stored.
    pub meta: Vec<u8>,
    /// Jobs that have not ended.
    pub jobs: u32,
    /// The version of the guest.
    pub version: String,
    /// Whether code may run as users other than the default one.
    pub several_users: bool,
    /// The host name inside.
    pub hostname: String,
    /// Where commands start, as bytes of a path.
    pub cwd: Vec<u8>,
}

impl Guest {
    pub(crate) fn new(sandbox: Arc<Identity>, control: OwnedFd, ids: Ids) -> Self {
        Self(Arc::new(Connection { sandbox, control, ids }))
    }

    /// The sandbox's id.
    pub fn id(&self) -> &str {
        &self.0.sandbox.id
    }

    /// What the sandbox says about itself.
    pub async fn info(&self) -> Result<Info> {
        let asked = Instant::now();
        match self.ask(Request::Info).await? {
            (Event::Info { info }, _) => {
                let info = Info::from(info);
                self.0.sandbox.lives(asked, info.ttl_left);
                Ok(info)
            }
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Starts a command in the foreground: dropping the [`Job`] kills it and all that it started.
    pub async fn exec(&self, request: ExecRequest) -> Result<Job> {
        Job::start(self, request).await
    }

    /// Starts a command in the background and answers with its job's id.
    ///
    /// It lives until it ends, is killed, or the sandbox ends. The newest of its output is kept
    /// ([`ExecRequest::retain`]) and can be had by [`Guest::attach`], from any process and more than once.
    pub async fn spawn(&self, request: ExecRequest) -> Result<String> {
        crate::exec::spawn(self, request).await
    }

    /// Replays the output of a background job from the position `after` on (0 for all that is kept), and then follows
    /// it to the end.
    ///
    /// With `input`, the attachment also has what the job reads, if it was started with `stdin` or a terminal.
    pub async fn attach(&self, job: &str, after: u64, input: bool) -> Result<Attachment> {
        Attachment::open(self, job, after, input).await
    }

    /// All jobs: those that run, and the newest few hundred of those that have ended.
    pub async fn ps(&self) -> Result<Vec<JobInfo>> {
        let mut replies = self.request(&Request::Jobs, &[]).await?.large();
        let mut found = Vec::new();
        loop {
            match replies.expect().await? {
                (Event::Jobs { jobs, last }, _) => {
                    found.extend(jobs.into_iter().map(JobInfo::from));
                    if last {
                        return Ok(found);
                    }
                }
                (other, _) => return Err(self.unexpected(&other)),
            }
        }
    }

    /// Kills what there is of a job, wherever its processes went, and returns when all of them are gone.
    ///
    /// [`Error::Ended`] says that nothing was left to kill, [`Error::NotFound`] that there is no such job.
    pub async fn kill(&self, job: &str) -> Result<()> {
        self.order(Request::Kill { job: job.into() }, job).await
    }

    /// Sends a signal to the process group of a job's first process.
    pub async fn signal(&self, job: &str, signal: i32) -> Result<()> {
        self.order(Request::Signal { job: job.into(), signal }, job).await
    }

    /// Closes the guest's end of a background job's input. Attachments that have it keep theirs.
    pub async fn close_stdin(&self, job: &str) -> Result<()> {
        self.order(Request::CloseStdin { job: job.into() }, job).await
    }

    /// Sets the size of a background job's terminal.
    pub async fn resize(&self, job: &str, size: PtySize) -> Result<()> {
        self.order(Request::Resize { job: job.into(), size: size.checked()? }, job).await
    }

    /// Lets the sandbox live on when this connection is dropped or this process ends.
    pub async fn detach(&self) -> Result<()> {
        self.order(Request::Detach, "").await
    }

    /// Sets the time after which the sandbox ends by itself, counted from now.
    pub async fn set_ttl(&self, ttl: Option<Duration>) -> Result<()> {
        if ttl == Some(Duration::ZERO) {
            let reason = "use more than zero, or none for no end".into();
            return Err(Error::InvalidArgument { name: "ttl", reason });
        }
        let asked = Instant::now();
        self.order(Request::Ttl { ttl: ttl.map_or(0, millis) }, "").await?;
        self.0.sandbox.lives(asked, ttl);
        Ok(())
    }

    /// A channel to the sandbox's files, independent of this connection: it does not keep the sandbox alive.
    pub async fn files(&self) -> Result<Files> {
        let mut replies = self.request(&Request::Files, &[]).await?;
        match replies.expect().await? {
            (Event::Done, _) => {
                let channel = replies.into_fd();
                // Its calls block.
                rustix::io::ioctl_fionbio(&channel, false).context(|| "set up a file channel".into())?;
                Ok(Files::new(channel, self.0.sandbox.clone(), self.0.ids))
            }
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Tells changes in a folder, and with `recursive` in all below it, from now on.
    pub async fn watch(&self, path: &Path, recursive: bool) -> Result<Watch> {
        Watch::new(self.files().await?, path, recursive)
    }

    /// Ends the sandbox, and returns when its processes and its files are gone.
    ///
    /// A sandbox that is gone already is no error.
    pub async fn destroy(&self) -> Result<()> {
        match self.request(&Request::Destroy, &[]).await {
            // The guest answers at its very end, when nothing else runs and its folder is gone; or somebody ended it.
            Ok(mut replies) => drop(replies.next().await?),
            Err(Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends a request with the socket for its answers, and descriptors that go with it.
    pub(crate) async fn request(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Replies> {
        let (ours, theirs) = socket::pair().context(|| "make a reply socket".into())?;
        let fds: Vec<_> = [theirs.as_fd()].into_iter().chain(fds.iter().copied()).collect();
        self.send(&request.encode(), &fds).await?;
        Replies::new(ours, self.0.sandbox.clone())
    }

    async fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        loop {
            match socket::send(self.0.control.as_fd(), message, fds) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if is_gone(&error) => {
                    ended(self.0.sandbox.guest).await;
                    return Err(self.0.sandbox.gone());
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                    return Err(Error::InvalidArgument { name: "request", reason: error.to_string() });
                }
                Err(error) => return Err(error).context(|| "send a request".into()),
            }
            // The guest is behind with its requests: wait until it has read some.
            let control = self.0.control.try_clone().context(|| "send a request".into())?;
            let control = socket::register(control, Interest::WRITABLE)?;
            let _ready = control.writable().await.context(|| "send a request".into())?;
        }
    }

    async fn ask(&self, request: Request) -> Result<Answer> {
        self.request(&request, &[]).await?.large().expect().await
    }

    async fn order(&self, request: Request, job: &str) -> Result<()> {
        match self.ask(request).await? {
            (Event::Done, _) => Ok(()),
            (Event::Refused { refusal }, _) => Err(Self::refused(refusal, job)),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// What a sandbox says about itself that has just been connected to. Whoever answers speaks this version, or says
    /// so; and a guest that turns a client away does not answer, but says why.
    pub(crate) async fn introduction(&self) -> Result<Info> {
        match self.info().await {
            Err(Error::Gone { .. }) if self.is_turned_away() => Err(Error::Permission {
                what: format!(
                    "connect to sandbox `{}`: it was made from another network namespace",
                    self.0.sandbox.id
                ),
            }),
            result => result,
        }
    }

    fn is_turned_away(&self) -> bool {
        let mut buffer = [0; 64];
        // The first answer may be that the guest closed with a request unread.
        (0..2).any(|_| {
            let received =
                rustix::net::recv(&self.0.control, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT);
            received.is_ok_and(|(len, _)| {
                matches!(Event::decode(&buffer[..len]), Ok(Event::Refused { refusal: Refusal::Stranger }))
            })
        })
    }

    pub(crate) fn refused(refusal: Refusal, job: &str) -> Error {
        match refusal {
            Refusal::NotFound => Error::NotFound { what: "process", name: job.to_owned() },
            Refusal::Ended => Error::Ended { id: job.to_owned() },
            // A sandbox of this machine is told what it is for before it can be found.
            Refusal::Invalid | Refusal::Unbooted => {
                Error::InvalidArgument { name: "request", reason: "the guest does not accept it".into() }
            }
            Refusal::Unsupported => Error::Unsupported {
                what: format!("the standard input or terminal of the process `{job}`"),
                hint: "start it in the background, with the standard input or terminal that is needed".into(),
            },
            // Said to who connects, and nobody else: see `introduction`.
            Refusal::Stranger => Error::Permission { what: "command the sandbox".into() },
            Refusal::Busy => Error::Unsupported {
                what: "more connections at a time".into(),
                hint: "close connections, channels or attachments that are no longer needed".into(),
            },
        }
    }

    pub(crate) fn unexpected(&self, event: &Event) -> Error {
        if let Event::Refused { refusal } = event {
            return Self::refused(*refusal, "");
        }
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "unexpected answer");
        Error::Io { what: format!("understand sandbox `{}`", self.id()), source }
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected | ConnectionRefused)
}

impl From<proto::Info> for Info {
    fn from(info: proto::Info) -> Self {
        let proto::Info {
            id,
            created,
            ttl_left,
            owned,
            labels,
            meta,
            jobs,
            version,
            several_ids,
            hostname,
            cwd,
        } = info;
        Self {
            id: text(&id),
            created: SystemTime::UNIX_EPOCH + Duration::from_millis(created),
            ttl_left: (ttl_left > 0).then(|| Duration::from_millis(ttl_left)),
            owned,
            labels: labels.into_iter().map(|(key, value)| (key.0, value.0)).collect(),
            meta: meta.0,
            jobs,
            version: text(&version),
            several_users: several_ids,
            hostname: text(&hostname),
            cwd: cwd.0,
        }
    }
}

pub(crate) fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
