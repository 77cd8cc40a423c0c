//! A provider that is honest but for one lie: it delegates everything to the base and bends one thing.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use capbox_core::emulate::{ForkBySnapshot, Polling, SearchByFiles, TreeByFiles, UploadOverExec};
use capbox_core::provider::*;

use crate::base::{self, Account, Base, Create, Exec, Session};
use crate::jobs::{Job, Kind, signal_pid};

/// The lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    None,
    IgnoresEnv,
    IgnoresCwd,
    IgnoresTimeout,
    IgnoresTtl,
    IgnoresName,
    IgnoresLabels,
    DropsInput,
    MakesUpExitZero,
    CollapsesSignals,
    LosesOutput,
    AltersBytes,
    MergesStreams,
    InheritsTheHostsEnv,
    KillsTheParentOnly,
    TimesOutTheParentOnly,
    KillsWhatNeverWas,
    AttachesFromTheStart,
    ReplaysWithAGap,
    RunsOnAfterCancel,
    ListsNothingOnError,
    ListsNothingForMissingFolders,
    ReportsDestroyedWhileAlive,
    LeaksOnCancel,
    LeaksOnDrop,
    LetsTrafficOut,
    ReadsStaleFiles,
    ReadsFilesOfTheHost,
    ActsBeforeRefusing,
}

impl Lie {
    fn bends_create(self, mut create: Create) -> Create {
        match self {
            Self::IgnoresTtl => create.ttl = None,
            Self::IgnoresName => create.name = None,
            Self::LetsTrafficOut => create.deny = false,
            _ => {}
        }
        create
    }

    fn bends_exec(self, mut exec: Exec) -> Exec {
        match self {
            Self::IgnoresEnv => exec.env = Env::new(),
            Self::IgnoresCwd => exec.cwd = None,
            Self::IgnoresTimeout | Self::TimesOutTheParentOnly => exec.timeout = None,
            Self::DropsInput => exec.input = exec.input.map(|_| Input(Bytes::new())),
            Self::InheritsTheHostsEnv => {
                let host = std::env::vars().filter(|(name, _)| name != "HOME" && name != "PATH");
                exec.env = host.collect::<Env>().merged(&exec.env);
            }
            _ => {}
        }
        exec
    }
}

/// The provider.
#[derive(Debug)]
pub(crate) struct Liar {
    pub(crate) base: Base,
    pub(crate) lie: Lie,
}

impl Liar {
    pub(crate) fn new(account: Arc<Account>, lie: Lie) -> Self {
        Self { base: Base(account), lie }
    }
}

pub(crate) struct LiarSession {
    base: Session,
    lie: Lie,
    seen: Mutex<HashMap<SandboxPath, Bytes>>,
}

fn lying(created: Created<Session>, lie: Lie) -> Created<LiarSession> {
    let Created { session, lowered, new, private_host } = created;
    let session = LiarSession { base: session, lie, seen: Mutex::default() };
    Created { session, lowered, new, private_host }
}

#[async_trait]
impl Backend for Liar {
    const ID: &'static str = "liar";
    const FLAGS: Flags = Flags::DEFAULT
        .exit_code_native(true)
        .streams(Streams::Separate)
        .output_bytes(OutputBytes::Exact)
        .output_retention(OutputRetention::Full)
        .background_survives(BackgroundSurvives::Client)
        .stdin_eof(true)
        .kill_reaches(KillReaches::Tree)
        .timeout_kills(TimeoutKills::Tree)
        .snapshot_source(SnapshotSource::KeepsRunning)
        .fork_source(ForkSource::Live)
        .create_dedup(CreateDedup::Name)
        .id_stable(true)
        .on_this_machine(true);

    type Session = LiarSession;
    type Create = Create;
    type Exec = Exec;
    type NativeClient = ();
    type NativeSandbox = PathBuf;

    fn lowered(&self) -> Lowered {
        if base::can_deny() {
            return Lowered::none();
        }
        Lowered::none().unavailable(Capability::EgressControl, "this host gives no network namespace")
    }

    async fn create(&self, create: Create) -> Result<Created<LiarSession>> {
        let create = self.lie.bends_create(create);
        if self.lie == Lie::ActsBeforeRefusing && create.from_snapshot.is_some() {
            let early = Create { from_snapshot: None, ..create.clone() };
            base::detach(&self.base.create(early).await?.session)?;
        }
        if self.lie == Lie::LeaksOnCancel {
            let base = Base(self.base.0.clone());
            let task = tokio::spawn(async move {
                let created = base.create(create).await?;
                base::detach(&created.session)?;
                Ok::<_, Error>(created)
            });
            let created =
                task.await.map_err(|error| Error::new(ErrorKind::Provider, error.to_string()))??;
            created.session.lease();
            return Ok(lying(created, self.lie));
        }
        let created = self.base.create(create).await?;
        if self.lie == Lie::LeaksOnDrop {
            created.session.release();
        }
        Ok(lying(created, self.lie))
    }

    fn id(session: &LiarSession) -> &str {
        &session.base.place.id
    }

    async fn destroy(session: &LiarSession) -> Result<()> {
        match session.lie {
            Lie::ReportsDestroyedWhileAlive => Ok(()),
            _ => base::destroy(&session.base),
        }
    }

    async fn detach(session: &LiarSession) -> Result<()> {
        base::detach(&session.base)
    }

    async fn reap(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn native_client(&self) -> &() {
        &()
    }

    fn native(session: &LiarSession) -> &PathBuf {
        &session.base.place.home
    }
}

capbox_testkit::table_with! { Liar {
    List: Native;
    Connect: Native;
    SnapshotList: Native;
    SnapshotDelete: Native;
    ExecList: Native;
    Attach: Native;
    Replay: Native;
    KillProcess: Native;
    Signal: Native;
    PtyResize: Native;
    FilesRead: Native;
    FilesWrite: Native;
    FilesList: Native;
    FilesModify: Native;
    FilesPermissions: Native;
    FilesWatch: Emulated<Polling> = "by looking again and again";
    FilesUpload: Emulated<UploadOverExec> = "by a command";
    FilesTree: Emulated<TreeByFiles> = "file by file";
    FilesSearch: Emulated<SearchByFiles> = "by reading every file";
    Snapshot: Native;
    Run: Native;
    Streaming: Native;
    Background: Native;
    Pty: Native;
    Fork: Emulated<ForkBySnapshot> = "takes the time of a snapshot";
    Name: Native;
    Labels: Native;
    Env: Native;
    Ttl: Native;
    FromSnapshot: Native;
    EgressOpen: Native;
    EgressControl: Native;
    ExecCwd: Native;
    ExecEnv: Native;
    Timeout: Native;
    Input: Native;
    Stdin: Native;
    User: NotYet = "the base runs everything as its own user";
} }

#[async_trait]
impl List for Liar {
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        match self.lie {
            Lie::ListsNothingOnError => Ok(self.base.list(labels).unwrap_or_default()),
            Lie::IgnoresLabels => self.base.list(&Labels::default()),
            _ => self.base.list(labels),
        }
    }
}

#[async_trait]
impl Connect for Liar {
    async fn connect(&self, id: &str) -> Result<Created<LiarSession>> {
        Ok(lying(self.base.connect(id)?, self.lie))
    }
}

#[async_trait]
impl SnapshotList for Liar {
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.base.snapshots()
    }
}

#[async_trait]
impl SnapshotDelete for Liar {
    async fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.base.delete_snapshot(id)
    }
}

impl LiarSession {
    fn start(&self, exec: Exec, kind: Kind) -> Result<Arc<Job>> {
        let timeout = exec.timeout;
        let job = self.base.start(self.lie.bends_exec(exec), kind)?;
        if let (Lie::TimesOutTheParentOnly, Some(timeout)) = (self.lie, timeout) {
            let pid = job.pid;
            tokio::spawn(async move {
                tokio::time::sleep(timeout).await;
                signal_pid(pid, rustix::process::Signal::ALARM);
            });
        }
        Ok(job)
    }

    fn follow(&self, job: &Arc<Job>, position: u64, follow: bool, owned: bool) -> Spawned {
        let Spawned { id, events, stdin } = job.spawned(position, follow, owned);
        Spawned { id, events: Box::new(Lying { events, lie: self.lie }), stdin }
    }
}

/// Events, bent.
struct Lying {
    events: Box<dyn Events>,
    lie: Lie,
}

#[async_trait]
impl Events for Lying {
    async fn next(&mut self) -> Result<Option<Event>> {
        let Some(event) = self.events.next().await? else { return Ok(None) };
        Ok(Some(match (self.lie, event) {
            (Lie::MakesUpExitZero, Event::Exited(_)) => Event::Exited(Exit::new(ExitStatus::Exited(0))),
            (Lie::CollapsesSignals, Event::Exited(exit)) if exit.status.signal().is_some() => {
                Event::Exited(Exit::new(ExitStatus::Exited(1)))
            }
            (Lie::TimesOutTheParentOnly, Event::Exited(exit)) if exit.status.signal() == Some(14) => {
                Event::Exited(Exit::new(ExitStatus::TimedOut))
            }
            (Lie::LosesOutput, Event::Output { position, .. }) if position >= 1 << 17 => {
                return self.next().await;
            }
            (Lie::AltersBytes, Event::Output { stream, position, bytes }) => {
                let bytes = bytes.iter().map(|byte| if byte.is_ascii() { *byte } else { b'?' }).collect();
                Event::Output { stream, position, bytes }
            }
            (Lie::MergesStreams, Event::Output { position, bytes, .. }) => {
                Event::Output { stream: OutputStream::Stdout, position, bytes }
            }
            (_, event) => event,
        }))
    }
}

#[async_trait]
impl Run<Exec> for LiarSession {
    async fn run(&self, exec: Exec) -> Result<Output> {
        let max_output = exec.command.max_output;
        let job = self.start(exec, Kind::Foreground)?;
        let owned = self.lie != Lie::RunsOnAfterCancel;
        collect(self.follow(&job, 0, true, owned).events, max_output).await
    }
}

#[async_trait]
impl Streaming<Exec> for LiarSession {
    async fn spawn(&self, exec: Exec) -> Result<Spawned> {
        let job = self.start(exec, Kind::Foreground)?;
        Ok(self.follow(&job, 0, true, true))
    }
}

#[async_trait]
impl Background<Exec> for LiarSession {
    async fn spawn_background(&self, exec: Exec) -> Result<ProcessId> {
        Ok(self.start(exec, Kind::Background)?.id.clone())
    }
}

#[async_trait]
impl Pty<Exec> for LiarSession {
    async fn open(&self, exec: Exec, size: TerminalSize) -> Result<Spawned> {
        let job = self.start(exec, Kind::Terminal(size))?;
        Ok(self.follow(&job, 0, true, true))
    }
}

#[async_trait]
impl PtyResize for LiarSession {
    async fn resize(&self, process: &ProcessId, size: TerminalSize) -> Result<()> {
        self.base.reach("resize", size)?;
        self.base.place.job(process)?.resize(size)
    }
}

#[async_trait]
impl Signal for LiarSession {
    async fn signal(&self, process: &ProcessId, signal: SignalNumber) -> Result<()> {
        self.base.reach("signal", signal)?;
        self.base.place.job(process)?.signal(signal)
    }
}

#[async_trait]
impl KillProcess for LiarSession {
    async fn kill(&self, process: &ProcessId) -> Result<Killed> {
        self.base.reach("kill", process)?;
        let job = match self.base.place.job(process) {
            Err(_) if self.lie == Lie::KillsWhatNeverWas => return Ok(Killed::AlreadyExited),
            job => job?,
        };
        if self.lie == Lie::KillsTheParentOnly && job.exit().is_none() {
            signal_pid(job.pid, rustix::process::Signal::KILL);
            job.ended().await;
            return Ok(Killed::Stopped);
        }
        Ok(job.kill().await)
    }
}

#[async_trait]
impl Attach for LiarSession {
    async fn attach(&self, process: &ProcessId) -> Result<Spawned> {
        self.base.reach("attach", process)?;
        let job = self.base.place.job(process)?;
        let from = if self.lie == Lie::AttachesFromTheStart { 0 } else { job.printed() };
        Ok(self.follow(&job, from, true, false))
    }
}

#[async_trait]
impl ExecList for LiarSession {
    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.base.reach("processes", ())?;
        let jobs = self.base.place.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let info = |job: &Arc<Job>| {
            let mut info = ProcessInfo::running(&job.id, job.command.as_str());
            info.background = job.kind == Kind::Background;
            if let Some(exit) = job.exit() {
                info.state = ProcessState::Exited(exit.status);
            }
            info
        };
        Ok(jobs.iter().map(info).collect())
    }
}

#[async_trait]
impl Replay for LiarSession {
    async fn replay(&self, process: &ProcessId, after: u64, follow: bool) -> Result<Spawned> {
        self.base.reach("replay", (process, after, follow))?;
        let job = self.base.place.job(process)?;
        let gap = if self.lie == Lie::ReplaysWithAGap && after == 0 { 10 } else { 0 };
        Ok(self.follow(&job, after + gap, follow, false))
    }
}

#[async_trait]
impl FilesRead for LiarSession {
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes> {
        let at = crate::files::host_path(&self.base.place.home, path);
        if self.lie == Lie::ReadsFilesOfTheHost && at.is_file() && range == ReadRange::default() {
            return fs::read(at).map(Bytes::from).map_err(|error| crate::files::error(&error));
        }
        let bytes = self.base.read(path, range).await?;
        if self.lie == Lie::ReadsStaleFiles && range == ReadRange::default() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok(seen.entry(path.clone()).or_insert(bytes).clone());
        }
        Ok(bytes)
    }
}

#[async_trait]
impl FilesWrite for LiarSession {
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()> {
        // Its own writes it knows of.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
        self.base.write(path, content, options).await
    }
}

#[async_trait]
impl FilesList for LiarSession {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        match self.base.list(path).await {
            Err(_) if self.lie == Lie::ListsNothingForMissingFolders => Ok(Vec::new()),
            list => list,
        }
    }

    async fn stat(&self, path: &SandboxPath, follow: bool) -> Result<Entry> {
        self.base.stat(path, follow).await
    }
}

#[async_trait]
impl FilesModify for LiarSession {
    async fn mkdir(&self, path: &SandboxPath, parents: bool) -> Result<()> {
        self.base.mkdir(path, parents).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.base.rename(from, to).await
    }

    async fn remove(&self, path: &SandboxPath, recursive: bool) -> Result<()> {
        self.base.remove(path, recursive).await
    }

    async fn symlink(&self, target: &SandboxPath, path: &SandboxPath) -> Result<()> {
        self.base.symlink(target, path).await
    }
}

#[async_trait]
impl FilesPermissions for LiarSession {
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.base.set_mode(path, mode).await
    }
}

#[async_trait]
impl Snapshot for LiarSession {
    async fn create(&self, name: Option<&str>) -> Result<SnapshotInfo> {
        self.base.create(name).await
    }
}

/// How long the suite waits for one trial of a liar.
pub(crate) const TRIAL: Duration = Duration::from_mins(4);
