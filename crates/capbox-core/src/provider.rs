//! The interface for providers.
//!
//! A provider implements [`Backend`], answers every row with [`table!`](crate::table), and implements a trait
//! of this module for each row that it answers `Native`. Providers kept in this workspace use the module as it
//! is; those kept elsewhere go through [`v1`], which stays as it is when rows are added.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

pub use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::AsyncWrite;

pub use crate::api::collect;
pub use crate::api::{
    AnyClient, AnySandbox, Client, Entry, EntryKind, Event, Exit, ExitStatus, FileEvent, FileEventKind,
    Killed, Match, Output, OutputStream, Preview, Process, ProcessId, ProcessInfo, ProcessState, Progress,
    ReadRange, Sandbox, SandboxInfo, SandboxState, SearchQuery, Signal as SignalNumber, SnapshotInfo,
    TcpAddress, Transferred, Usage, VolumeInfo, WriteOptions,
};
pub use crate::capability::answer::{
    Accept, Emulate, EmulateOption, Emulated, Filled, Honoured, Native, No, NotYet,
};
pub use crate::capability::flags::*;
pub use crate::capability::limits::{Constraint, Limit};
pub use crate::capability::rows::Table;
pub use crate::capability::{Capability, Level, Lowered, NotSupported, Refusal, Rows, cap};
pub use crate::error::{Admitted, Error, ErrorKind, Result};
pub use crate::spec::*;

/// The interface for providers kept elsewhere. A row that is added later is answered `NotYet` for them.
pub mod v1 {
    pub use super::*;
    pub use crate::__table_v1 as table;
}

/// A provider: what its author writes beside the table. The rows are not here.
#[async_trait]
pub trait Backend: Sized + Send + Sync + 'static {
    /// The id, such as `docker`. A variant has one of its own, such as `daytona-vm`.
    const ID: &'static str;
    /// What callers observe.
    const FLAGS: Flags;
    /// Ranges of option values.
    const LIMITS: &'static [Limit] = &[];
    /// Combinations that are not honoured.
    const CONSTRAINTS: &'static [Constraint] = &[];

    /// A living sandbox, connected.
    ///
    /// Dropping the last handle of a leased one must end the sandbox, also when the process dies: by a
    /// connection that ends with the owner, or by a lease that runs out.
    type Session: Send + Sync + 'static;
    /// What `create` sends. It has a place for each option that is answered `Native`.
    type Create: Default + Send + 'static;
    /// What one exec sends. It has a place for each option that is answered `Native`.
    type Exec: From<Command> + Send + 'static;
    /// The raw client that `client.native()` gives. Outside semver.
    type NativeClient;
    /// The raw sandbox that `sandbox.native()` gives. Outside semver.
    type NativeSandbox;

    /// What this host, the plan or the configuration takes out of the table, as far as it is known without
    /// asking anybody.
    fn lowered(&self) -> Lowered {
        Lowered::none()
    }

    /// The same, by trying: may take a moment, must leave nothing behind.
    async fn probe(&self) -> Result<Lowered> {
        Ok(self.lowered())
    }

    /// Create a sandbox, leased to the caller. When this future is dropped half-way, nothing may be left.
    async fn create(&self, body: Self::Create) -> Result<Created<Self::Session>>;

    /// The sandbox's id, which other processes connect by.
    fn id(session: &Self::Session) -> &str;

    /// Destroy it: when this returns, nothing of it runs. Destroying a sandbox that is gone is no error.
    async fn destroy(session: &Self::Session) -> Result<()>;

    /// End the lease: the sandbox outlives its owner, up to its ttl.
    async fn detach(session: &Self::Session) -> Result<()>;

    /// Remove what dead owners left and what is provably ours; gives the ids.
    async fn reap(&self) -> Result<Vec<String>>;

    /// The raw client. Outside semver.
    fn native_client(&self) -> &Self::NativeClient;

    /// The raw sandbox. Outside semver.
    fn native(session: &Self::Session) -> &Self::NativeSandbox;
}

/// What a registry knows of a provider: the one constant that a provider's crate exports for it.
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    /// The id, which is the scheme of its URIs.
    pub id: &'static str,
    /// The tables of its variants; the first is that of the plain `ID://`.
    pub tables: &'static [&'static Rows],
    /// Make a client from a URI, refusing unknown keys. Nothing is sent.
    pub open: fn(Uri) -> Result<AnyClient>,
}

/// A new sandbox.
#[derive(Debug)]
pub struct Created<S> {
    /// The sandbox.
    pub session: S,
    /// What this sandbox lacks, beside what the client lacks.
    pub lowered: Lowered,
    /// False where a sandbox of that name was there already.
    pub new: bool,
    /// The name by which others in its private network reach it, where it is in one.
    pub private_host: Option<String>,
}

impl<S> Created<S> {
    /// A new sandbox that lacks nothing.
    pub fn new(session: S) -> Self {
        Self { session, lowered: Lowered::none(), new: true, private_host: None }
    }

    /// A sandbox that was there already.
    pub fn existing(session: S) -> Self {
        Self { new: false, ..Self::new(session) }
    }
}

/// A started process, as a provider gives it.
pub struct Spawned {
    /// Its id.
    pub id: ProcessId,
    /// Its output and its end. Dropping it kills a process that was not started in the background.
    pub events: Box<dyn Events>,
    /// Its standard input, where that was asked for. Shutting the writer down is end of file.
    pub stdin: Option<Writer>,
}

impl fmt::Debug for Spawned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawned").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Something that takes bytes.
pub type Writer = Pin<Box<dyn AsyncWrite + Send>>;

/// The events of a process.
#[async_trait]
pub trait Events: Send {
    /// The next event; the last is [`Event::Exited`], then `None`. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Option<Event>>;
}

/// The changes of a watched folder.
#[async_trait]
pub trait FileEvents: Send {
    /// The next change. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Option<FileEvent>>;
}

/// `lifecycle.list`.
#[async_trait]
pub trait List: Backend {
    /// The sandboxes that have all of `labels`. Never an empty list where asking failed.
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>>;
}

/// `lifecycle.connect`.
#[async_trait]
pub trait Connect: Backend {
    /// The sandbox called `id`; dropping the session leaves the sandbox as it is.
    async fn connect(&self, id: &str) -> Result<Created<Self::Session>>;
}

/// `snapshot.list`.
#[async_trait]
pub trait SnapshotList: Backend {
    /// The snapshots that exist.
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>>;
}

/// `snapshot.delete`.
#[async_trait]
pub trait SnapshotDelete: Backend {
    /// Delete one; sandboxes that were created from it go on. An unknown id is `NotFound`.
    async fn delete_snapshot(&self, id: &str) -> Result<()>;
}

/// `source.prepare`.
#[async_trait]
pub trait PrepareImage: Backend {
    /// Make `image`, or the configured one, ready for create, telling `progress`; gives what to create from. An
    /// image that is not there is `NotFound`.
    async fn prepare_image(
        &self,
        image: Option<Image>,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Image>;
}

/// `volumes.manage`.
#[async_trait]
pub trait VolumesManage: Backend {
    /// Make a volume. One of that name is `AlreadyExists`.
    async fn create_volume(&self, name: &str) -> Result<VolumeInfo>;
    /// The volumes that capbox made here.
    async fn volumes(&self) -> Result<Vec<VolumeInfo>>;
    /// Delete one. One that a sandbox has mounted is `Conflict`.
    async fn delete_volume(&self, id: &str) -> Result<()>;
}

/// `lifecycle.set-timeout`.
#[async_trait]
pub trait SetTimeout: Send + Sync {
    /// The sandbox may live for `ttl`, counted from now.
    async fn set_timeout(&self, ttl: Duration) -> Result<()>;
}

/// `lifecycle.stop`. While it is stopped, every other call is `Conflict`.
#[async_trait]
pub trait Stop: Send + Sync {
    /// End the processes and keep the sandbox. No error where it is stopped.
    async fn stop(&self) -> Result<()>;
    /// Start it again. No error where it runs.
    async fn start(&self) -> Result<()>;
}

/// `lifecycle.pause`. While it is paused, a call that needs it to run is `Conflict`.
#[async_trait]
pub trait Pause: Send + Sync {
    /// Suspend, with memory kept. No error where it is paused.
    async fn pause(&self) -> Result<()>;
    /// Go on. No error where it runs.
    async fn resume(&self) -> Result<()>;
}

/// `lifecycle.resize`.
#[async_trait]
pub trait Resize: Send + Sync {
    /// Change what is set; effective as the flag `resize_applies` says.
    async fn resize(&self, resources: Resources) -> Result<()>;
}

/// `network.expose-port`.
#[async_trait]
pub trait ExposePort: Send + Sync {
    /// The address of an HTTP port. A port that had to be declared at create and was not is `NotFound`.
    async fn expose(&self, port: u16) -> Result<Preview>;
}

/// `network.expose-tcp`.
#[async_trait]
pub trait ExposeTcp: Send + Sync {
    /// The address of a raw TCP port. A port that had to be declared at create and was not is `NotFound`.
    async fn expose_tcp(&self, port: u16) -> Result<TcpAddress>;
}

/// `network.egress-update`.
#[async_trait]
pub trait EgressUpdate: Send + Sync {
    /// Replace the policy. Connections that it does not allow are cut.
    async fn set_network(&self, network: &Network) -> Result<()>;
}

/// `meta.metrics`.
#[async_trait]
pub trait Metrics: Send + Sync {
    /// What is in use now.
    async fn metrics(&self) -> Result<Usage>;
}

/// `meta.metrics-stream`.
#[async_trait]
pub trait MetricsStream: Send + Sync {
    /// What is in use, about every `interval`, from now on.
    async fn follow_metrics(&self, interval: Duration) -> Result<Box<dyn UsageEvents>>;
}

/// What is in use, as it changes.
#[async_trait]
pub trait UsageEvents: Send {
    /// The next look; `None` where the sandbox has ended. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Option<Usage>>;
}

/// `exec.run`: for the provider's own request type.
#[async_trait]
pub trait Run<B>: Send + Sync {
    /// Run to the end. When the future is dropped, the whole job is killed.
    async fn run(&self, body: B) -> Result<Output>;
}

/// `exec.streaming`: for the provider's own request type.
#[async_trait]
pub trait Streaming<B>: Send + Sync {
    /// Start, in the foreground: dropping the events kills the whole job.
    async fn spawn(&self, body: B) -> Result<Spawned>;
}

/// `exec.background`: for the provider's own request type.
#[async_trait]
pub trait Background<B>: Send + Sync {
    /// Start a process that nobody needs to hold. Output is kept as the flag `output_retention` says.
    async fn spawn_background(&self, body: B) -> Result<ProcessId>;
}

/// `exec.pty`: for the provider's own request type.
#[async_trait]
pub trait Pty<B>: Send + Sync {
    /// Start in a terminal of `size`. Output is one stream; the writer types. Dropping both hangs up and kills
    /// the whole job, and types nothing.
    async fn open(&self, body: B, size: TerminalSize) -> Result<Spawned>;
}

/// `exec.pty-resize`.
#[async_trait]
pub trait PtyResize: Send + Sync {
    /// Change the size. A process that has ended is `Conflict`.
    async fn resize(&self, process: &ProcessId, size: TerminalSize) -> Result<()>;
}

/// `exec.signal`.
#[async_trait]
pub trait Signal: Send + Sync {
    /// Send `signal` to the process and its process group.
    async fn signal(&self, process: &ProcessId, signal: SignalNumber) -> Result<()>;
}

/// `exec.kill-process`.
#[async_trait]
pub trait KillProcess: Send + Sync {
    /// Kill the process and everything that it started; returns when all of it is gone. An unknown id is
    /// `NotFound`.
    async fn kill(&self, process: &ProcessId) -> Result<Killed>;
}

/// `exec.attach`.
#[async_trait]
pub trait Attach: Send + Sync {
    /// Follow a background process from now on; with its standard input where that is still open.
    async fn attach(&self, process: &ProcessId) -> Result<Spawned>;
}

/// `exec.list`.
#[async_trait]
pub trait ExecList: Send + Sync {
    /// The processes that were started through the API, those that ended lately included.
    async fn processes(&self) -> Result<Vec<ProcessInfo>>;
}

/// `exec.replay`.
#[async_trait]
pub trait Replay: Send + Sync {
    /// Follow a background process from the output position `after` on (0: from the start). What is no longer
    /// kept is reported as [`Event::Gap`]. With `follow` false the events end where the output ends now.
    async fn replay(&self, process: &ProcessId, after: u64, follow: bool) -> Result<Spawned>;
}

/// `files.read`.
#[async_trait]
pub trait FilesRead: Send + Sync {
    /// The bytes of `range`. Anything but a regular file is refused.
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes>;
}

/// `files.write`.
#[async_trait]
pub trait FilesWrite: Send + Sync {
    /// Replace or make a file, all or nothing.
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()>;
}

/// `files.list`.
#[async_trait]
pub trait FilesList: Send + Sync {
    /// The entries of a folder, by name.
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>>;
    /// One entry. The last link is followed only if asked for.
    async fn stat(&self, path: &SandboxPath, follow: bool) -> Result<Entry>;
}

/// `files.modify`.
#[async_trait]
pub trait FilesModify: Send + Sync {
    /// Make a folder; with `parents` also those above, and no error where it is there.
    async fn mkdir(&self, path: &SandboxPath, parents: bool) -> Result<()>;
    /// Rename, replacing a file that is there.
    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()>;
    /// Remove a file, a link or an empty folder; with `recursive` a folder with all that is in it.
    async fn remove(&self, path: &SandboxPath, recursive: bool) -> Result<()>;
    /// Make a symbolic link at `path` that says `target`.
    async fn symlink(&self, target: &SandboxPath, path: &SandboxPath) -> Result<()>;
}

/// `files.permissions`.
#[async_trait]
pub trait FilesPermissions: Send + Sync {
    /// Set the permission bits (`0o755`), following links.
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()>;
}

/// `files.watch`.
#[async_trait]
pub trait FilesWatch: Send + Sync {
    /// Changes in the folder from now on; with `recursive` in all that is below, also in folders made later.
    async fn watch(&self, path: &SandboxPath, recursive: bool) -> Result<Box<dyn FileEvents>>;
}

/// `files.upload`: one file, streamed, both ways.
#[async_trait]
pub trait FilesUpload: Send + Sync {
    /// Copy a file of this machine to exactly `target`.
    async fn upload(&self, source: &Path, target: &SandboxPath) -> Result<Transferred>;
    /// Copy a file of the sandbox to exactly `target` on this machine.
    async fn download(&self, source: &SandboxPath, target: &Path) -> Result<Transferred>;
}

/// `files.tree`: folders, both ways.
#[async_trait]
pub trait FilesTree: Send + Sync {
    /// Copy a folder of this machine to exactly `target`, merging with what is there.
    async fn upload_tree(&self, source: &Path, target: &SandboxPath) -> Result<Transferred>;
    /// Copy a folder of the sandbox to exactly `target` on this machine, writing nothing outside of it.
    async fn download_tree(&self, source: &SandboxPath, target: &Path) -> Result<Transferred>;
}

/// `files.search`.
#[async_trait]
pub trait FilesSearch: Send + Sync {
    /// What matches below `path`, at most as many as the query allows.
    async fn search(&self, path: &SandboxPath, query: &SearchQuery) -> Result<Vec<Match>>;
}

/// `snapshot.snapshot`.
#[async_trait]
pub trait Snapshot: Send + Sync {
    /// Keep the disk; the snapshot outlives the sandbox.
    async fn create(&self, name: Option<&str>) -> Result<SnapshotInfo>;
}

/// `snapshot.fork`.
#[async_trait]
pub trait Fork: Send + Sync {
    /// The session type of the copies.
    type Session;
    /// `count` independent copies, each with an outcome of its own.
    async fn fork(&self, count: u32) -> Result<Vec<Result<Created<Self::Session>>>>;
}

/// How long a create may take, unless the caller says otherwise.
pub const DEFAULT_CREATE_TIMEOUT: Duration = Duration::from_mins(2);

/// How long a request may take, unless it runs a command.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// The time from seconds and nanoseconds of the epoch, for providers that count so.
pub fn system_time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(nanoseconds));
    match u64::try_from(seconds) {
        Ok(seconds) => SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => SystemTime::UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + nanoseconds,
    }
}
