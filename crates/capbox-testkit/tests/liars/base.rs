//! An honest base for the liars: each sandbox is a folder, its commands are real processes of this machine.
//!
//! It isolates nothing but the network, and is for tests only.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use capbox_core::provider::*;
use capbox_testkit::oracle::{Recorder, host_processes};

use crate::jobs::{Job, kill_marked};

/// What all clients of one account share.
#[derive(Debug)]
pub(crate) struct Account {
    root: tempfile::TempDir,
    sandboxes: Mutex<BTreeMap<String, Arc<Place>>>,
    snapshots: Mutex<BTreeMap<String, Kept>>,
    next: AtomicU64,
    pub(crate) broken: AtomicBool,
    pub(crate) requests: Recorder,
}

/// A snapshot.
#[derive(Clone, Debug)]
struct Kept {
    info: SnapshotInfo,
    folder: PathBuf,
    env: Env,
    labels: Labels,
}

/// A living sandbox.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: String,
    pub(crate) home: PathBuf,
    create: Create,
    detached: AtomicBool,
    gone: Arc<AtomicBool>,
    pub(crate) jobs: Mutex<Vec<Arc<Job>>>,
    next_job: AtomicU64,
    account: Weak<Account>,
}

/// What create takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Create {
    pub(crate) name: Option<String>,
    pub(crate) labels: Labels,
    pub(crate) env: Env,
    pub(crate) ttl: Option<Duration>,
    pub(crate) from_snapshot: Option<String>,
    pub(crate) deny: bool,
    pub(crate) open: bool,
}

macro_rules! accepts {
    ($($Body:ident: $Row:ident($value:ident: $ty:ty) $set:expr;)*) => { $(
        impl Accept<cap::$Row> for $Body {
            fn accept(&mut self, $value: $ty) {
                let set: fn(&mut Self, $ty) = $set;
                set(self, $value);
            }
        }
    )* };
}
accepts! {
    Create: Name(name: String) |body, name| body.name = Some(name);
    Create: Labels(labels: Labels) |body, labels| body.labels = labels;
    Create: Env(env: Env) |body, env| body.env = env;
    Create: Ttl(ttl: Duration) |body, ttl| body.ttl = Some(ttl);
    Create: FromSnapshot(id: String) |body, id| body.from_snapshot = Some(id);
    Create: EgressControl(deny: DenyEgress) |body, _| body.deny = true;
    Create: EgressOpen(open: OpenEgress) |body, _| body.open = true;
    Exec: ExecCwd(cwd: SandboxPath) |body, cwd| body.cwd = Some(cwd);
    Exec: ExecEnv(env: Env) |body, env| body.env = env;
    Exec: Timeout(timeout: Duration) |body, timeout| body.timeout = Some(timeout);
    Exec: Input(input: Input) |body, input| body.input = Some(input);
    Exec: Stdin(stdin: Stdin) |body, stdin| body.stdin = Some(stdin);
}

/// What exec takes.
#[derive(Clone, Debug)]
pub(crate) struct Exec {
    pub(crate) command: Command,
    pub(crate) cwd: Option<SandboxPath>,
    pub(crate) env: Env,
    pub(crate) timeout: Option<Duration>,
    pub(crate) input: Option<Input>,
    pub(crate) stdin: Option<Stdin>,
}

impl From<Command> for Exec {
    fn from(command: Command) -> Self {
        Self { command, cwd: None, env: Env::new(), timeout: None, input: None, stdin: None }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn not_found(what: &str, id: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {what} `{id}`"))
}

impl Account {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            root: tempfile::Builder::new().prefix("capbox-base-").tempdir().expect("a temporary folder"),
            sandboxes: Mutex::default(),
            snapshots: Mutex::default(),
            next: AtomicU64::new(1),
            broken: AtomicBool::new(false),
            requests: Recorder::new(),
        })
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Every request passes here.
    fn reach(&self, operation: &str, body: impl std::fmt::Debug) -> Result<()> {
        self.requests.record(operation, body);
        if self.broken.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::ConnectionLost, "the account cannot be reached"));
        }
        Ok(())
    }

    fn id(&self, kind: &str) -> String {
        let n = self.next.fetch_add(1, Ordering::SeqCst);
        let root = self.root.path().file_name().unwrap_or_default().to_string_lossy();
        format!("{kind}-{n}-{}", root.trim_start_matches("capbox-base-"))
    }
}

impl Place {
    /// End it, at once.
    pub(crate) fn end(&self) {
        self.gone.store(true, Ordering::SeqCst);
        if let Some(account) = self.account.upgrade() {
            lock(&account.sandboxes).remove(&self.id);
        }
        kill_marked(&format!("CAPBOX_PLACE={}\0", self.id));
        fs::remove_dir_all(&self.home).ok();
    }

    fn alive(&self) -> Result<()> {
        if self.gone.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::SandboxGone, format!("the sandbox `{}` is gone", self.id)));
        }
        Ok(())
    }

    pub(crate) fn job(&self, id: &ProcessId) -> Result<Arc<Job>> {
        let jobs = lock(&self.jobs);
        jobs.iter().find(|job| job.id == *id).cloned().ok_or_else(|| not_found("process", id))
    }
}

/// A handle on a sandbox; the creator's is its lease.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) place: Arc<Place>,
    pub(crate) account: Arc<Account>,
    leased: AtomicBool,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.leased.load(Ordering::SeqCst) {
            self.place.end();
        }
    }
}

impl Session {
    fn new(account: &Arc<Account>, place: Arc<Place>, leased: bool) -> Self {
        Self { place, account: account.clone(), leased: AtomicBool::new(leased) }
    }

    /// Make this handle the lease, or no lease.
    pub(crate) fn lease(&self) {
        self.leased.store(true, Ordering::SeqCst);
        self.place.detached.store(false, Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        self.leased.store(false, Ordering::SeqCst);
    }

    /// Every call on a sandbox passes here.
    pub(crate) fn reach(&self, operation: &str, body: impl std::fmt::Debug) -> Result<()> {
        self.account.reach(operation, body)?;
        self.place.alive()
    }

    /// Start a job.
    pub(crate) fn start(&self, exec: Exec, kind: crate::jobs::Kind) -> Result<Arc<Job>> {
        self.reach("exec", &exec)?;
        let n = self.place.next_job.fetch_add(1, Ordering::SeqCst);
        let id = ProcessId::new(format!("job-{n}"));
        let base = [
            ("PATH", std::env::var("PATH").unwrap_or_default()),
            ("HOME", self.place.home.to_string_lossy().into_owned()),
            ("CAPBOX_PLACE", self.place.id.clone()),
            ("CAPBOX_JOB", format!("{}/{n}", self.place.id)),
        ];
        let env = self.place.create.env.clone().merged(&exec.env);
        let env = base.into_iter().collect::<Env>().merged(&env);
        let cwd = match &exec.cwd {
            None => self.place.home.clone(),
            Some(cwd) => {
                let path = crate::files::host_path(&self.place.home, cwd);
                if fs::read_dir(&path).is_err() {
                    let message = format!("`{cwd}` cannot be entered");
                    return Err(Error::new(ErrorKind::BadWorkingDirectory, message));
                }
                path
            }
        };
        let job = Job::start(id, exec, &env, &cwd, self.place.create.deny, kind, self.place.gone.clone())?;
        lock(&self.place.jobs).push(job.clone());
        Ok(job)
    }
}

/// The provider, but for its table.
#[derive(Debug)]
pub(crate) struct Base(pub(crate) Arc<Account>);

/// Undoes a create that is dropped half-way.
struct Undo(Option<Arc<Place>>);

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(place) = self.0.take() {
            place.end();
        }
    }
}

impl Base {
    pub(crate) async fn create(&self, mut create: Create) -> Result<Created<Session>> {
        let account = &self.0;
        account.reach("create", &create)?;
        let mut source = None;
        if let Some(id) = &create.from_snapshot {
            let kept = lock(&account.snapshots).get(id).cloned().ok_or_else(|| not_found("snapshot", id))?;
            create.env = kept.env.clone().merged(&create.env);
            if create.labels.0.is_empty() {
                create.labels = kept.labels.clone();
            }
            source = Some(kept.folder);
        }
        let place = {
            let mut sandboxes = lock(&account.sandboxes);
            if let Some(name) = &create.name
                && let Some(there) = sandboxes.values().find(|place| place.create.name.as_ref() == Some(name))
            {
                return Ok(Created::existing(Session::new(account, there.clone(), false)));
            }
            let id = account.id("box");
            let place = Arc::new(Place {
                home: account.root().join(&id),
                id: id.clone(),
                create,
                detached: AtomicBool::new(false),
                gone: Arc::default(),
                jobs: Mutex::default(),
                next_job: AtomicU64::new(1),
                account: Arc::downgrade(account),
            });
            fs::create_dir(&place.home).map_err(|error| crate::files::error(&error))?;
            sandboxes.insert(id, place.clone());
            place
        };
        let mut undo = Undo(Some(place.clone()));
        if let Some(source) = source {
            copy(&source, &place.home).await?;
        }
        tokio::time::sleep(Duration::from_millis(2)).await; // a place to be cancelled at
        if let Some(ttl) = place.create.ttl {
            let place = place.clone();
            tokio::spawn(async move {
                tokio::time::sleep(ttl).await;
                place.end();
            });
        }
        undo.0 = None;
        Ok(Created::new(Session::new(account, place, true)))
    }

    pub(crate) fn connect(&self, id: &str) -> Result<Created<Session>> {
        self.0.reach("connect", id)?;
        let place = lock(&self.0.sandboxes).get(id).cloned().ok_or_else(|| not_found("sandbox", id))?;
        Ok(Created::existing(Session::new(&self.0, place, false)))
    }

    pub(crate) fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        self.0.reach("list", labels)?;
        let sandboxes = lock(&self.0.sandboxes);
        let found = sandboxes.values().filter(|place| place.create.labels.contain(labels));
        Ok(found
            .map(|place| {
                let mut info = SandboxInfo::running(place.id.as_str());
                info.labels = place.create.labels.clone();
                info.detached = place.detached.load(Ordering::SeqCst);
                info
            })
            .collect())
    }

    pub(crate) fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.0.reach("delete snapshot", id)?;
        let kept = lock(&self.0.snapshots).remove(id).ok_or_else(|| not_found("snapshot", id))?;
        fs::remove_dir_all(kept.folder).map_err(|error| crate::files::error(&error))
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.0.reach("snapshots", ())?;
        Ok(lock(&self.0.snapshots).values().map(|kept| kept.info.clone()).collect())
    }
}

pub(crate) fn destroy(session: &Session) -> Result<()> {
    session.account.reach("destroy", ())?;
    session.leased.store(false, Ordering::SeqCst);
    session.place.end();
    Ok(())
}

pub(crate) fn detach(session: &Session) -> Result<()> {
    session.reach("detach", ())?;
    session.leased.store(false, Ordering::SeqCst);
    session.place.detached.store(true, Ordering::SeqCst);
    Ok(())
}

async fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = tokio::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().await;
    match status {
        Ok(status) if status.success() => Ok(()),
        other => Err(Error::new(ErrorKind::Provider, format!("copying a folder: {other:?}"))),
    }
}

#[async_trait]
impl Snapshot for Session {
    async fn create(&self, name: Option<&str>) -> Result<SnapshotInfo> {
        self.reach("snapshot", name)?;
        let id = self.account.id("snap");
        let folder = self.account.root().join(&id);
        fs::create_dir(&folder).map_err(|error| crate::files::error(&error))?;
        copy(&self.place.home, &folder).await?;
        let mut info = SnapshotInfo::new(id.as_str());
        info.name = name.map(str::to_owned);
        let Create { env, labels, .. } = self.place.create.clone();
        lock(&self.account.snapshots).insert(id, Kept { info: info.clone(), folder, env, labels });
        Ok(info)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for place in lock(&self.sandboxes).values() {
            kill_marked(&format!("CAPBOX_PLACE={}\0", place.id));
        }
    }
}

/// True where a network namespace of a command's own can be had.
pub(crate) fn can_deny() -> bool {
    static CAN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CAN.get_or_init(|| {
        let try_it = std::process::Command::new("unshare").args(["-n", "--", "true"]).status();
        try_it.is_ok_and(|status| status.success())
    })
}

/// The processes of this machine that belong to `mark`.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let pid = |line: String| line.split(' ').next().and_then(|pid| pid.parse().ok());
    host_processes(mark).into_iter().filter_map(pid).collect()
}
