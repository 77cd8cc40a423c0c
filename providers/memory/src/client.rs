//! The client: a store of sandboxes and snapshots, which all its clones share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use capbox_core::provider::*;

use crate::config::Config;
use crate::disk::{Disk, Fault, Node, base};
use crate::error::not_found;
use crate::machine::{Machine, Parts};
use crate::session::Session;
use crate::table::FLAGS;

/// What a registry knows of this provider.
pub const PROVIDER: Provider = Provider {
    id: "memory",
    tables: &[Memory::ROWS],
    open: |uri| Ok(Memory::configured(Config::from_uri(uri)?).into_any()),
};

/// The memory provider: sandboxes within this process.
///
/// The value itself is for providers that stand on this one; users take the client that [`Memory::new`] gives.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    store: Arc<Store>,
    config: Config,
}

impl Memory {
    /// A client with a store of its own, which its clones share.
    #[allow(clippy::new_ret_no_self, reason = "what a provider's constructor gives is its client")]
    pub fn new() -> Client<Self> {
        Self::configured(Config::new())
    }

    /// A client with this configuration.
    pub fn configured(config: Config) -> Client<Self> {
        Client::new(Self { store: Arc::default(), config })
    }
}

#[async_trait]
impl Backend for Memory {
    const ID: &'static str = "memory";
    const FLAGS: Flags = FLAGS;

    type Session = Session;
    type Create = Create;
    type Exec = Exec;
    type NativeClient = Store;
    type NativeSandbox = Machine;

    async fn create(&self, body: Create) -> Result<Created<Session>> {
        self.store.create(body, self.config.disk)
    }

    fn id(session: &Session) -> &str {
        &session.machine().id
    }

    async fn destroy(session: &Session) -> Result<()> {
        session.machine().destroy().await;
        Ok(())
    }

    async fn detach(session: &Session) -> Result<()> {
        session.machine().alive()?;
        session.machine().detach();
        Ok(())
    }

    /// Nothing outlives the process of its owner, so there is nothing to remove.
    async fn reap(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn native_client(&self) -> &Store {
        &self.store
    }

    fn native(session: &Session) -> &Machine {
        session.machine()
    }
}

#[async_trait]
impl List for Memory {
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        let alive = self.store.machines().into_iter().filter(|machine| machine.alive().is_ok());
        Ok(alive.map(|machine| machine.info()).filter(|info| info.labels.contain(labels)).collect())
    }
}

#[async_trait]
impl Connect for Memory {
    async fn connect(&self, id: &str) -> Result<Created<Session>> {
        let machine = self.store.machine(id)?;
        Ok(Created::existing(Session::connected(machine, &self.store)))
    }
}

#[async_trait]
impl SnapshotList for Memory {
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(self.store.lock().snapshots.values().map(|snapshot| snapshot.info.clone()).collect())
    }
}

#[async_trait]
impl SnapshotDelete for Memory {
    async fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.store.delete(id)
    }
}

/// The sandboxes and snapshots of a client. It is what `native()` gives, and it is outside semver.
#[derive(Default)]
pub struct Store(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// How many ids were given out.
    ids: u64,
    machines: BTreeMap<String, Arc<Machine>>,
    snapshots: BTreeMap<String, Saved>,
}

/// A snapshot: the disk, and what the sandbox was created with.
struct Saved {
    info: SnapshotInfo,
    root: Arc<Node>,
    labels: Labels,
    env: Env,
    disk: u64,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("Store")
            .field("sandboxes", &inner.machines.keys())
            .field("snapshots", &inner.snapshots.keys())
            .finish()
    }
}

impl Store {
    /// The ids of the sandboxes that are alive.
    pub fn ids(&self) -> Vec<String> {
        self.machines()
            .iter()
            .filter(|machine| !machine.is_gone())
            .map(|machine| machine.id.clone())
            .collect()
    }

    /// Create a sandbox, or get the one of that name.
    fn create(self: &Arc<Self>, body: Create, disk: u64) -> Result<Created<Session>> {
        if let Some(machine) = body.name.as_deref().and_then(|name| self.named(name)) {
            return Ok(Created::existing(Session::connected(machine, self)));
        }
        let mut inner = self.lock();
        // Somebody may have been faster.
        let known =
            |machine: &&Arc<Machine>| body.name.is_some() && machine.name == body.name && !machine.is_gone();
        if let Some(machine) = inner.machines.values().find(known) {
            return Ok(Created::existing(Session::connected(machine.clone(), self)));
        }
        let Create { name, labels, env, ttl, disk: asked, from_snapshot } = body;
        let (root, labels, env, disk) = match from_snapshot {
            None => (base(), labels, env, asked.unwrap_or(disk)),
            Some(id) => {
                let saved = inner.snapshots.get(&id).ok_or_else(|| not_found("snapshot", &id))?;
                let mut all = saved.labels.clone();
                all.0.extend(labels.0);
                (saved.root.clone(), all, saved.env.clone().merged(&env), asked.unwrap_or(saved.disk))
            }
        };
        if let Some((name, _)) = env.iter().find(|(_, value)| value.to_str().is_none()) {
            return Err(Error::invalid_argument(
                "env",
                format!("the value of `{name}` is not UTF-8, which the interpreter does not take"),
            ));
        }
        let disk = Disk::new(root, disk).map_err(|_: Fault| {
            Error::new(ErrorKind::StorageFull, format!("the snapshot does not fit on a disk of {disk} bytes"))
        })?;
        let id = inner.next_id("sandbox");
        let parts = Parts { id: id.clone(), name, labels, env, disk, ttl };
        let machine = Machine::start(parts, Arc::downgrade(self));
        inner.machines.insert(id, machine.clone());
        Ok(Created::new(Session::leased(machine, self)))
    }

    /// Keep what is on the disk of `machine` now.
    pub(crate) fn save(&self, machine: &Machine, name: Option<&str>) -> SnapshotInfo {
        let mut inner = self.lock();
        let id = inner.next_id("snapshot");
        let mut info = SnapshotInfo::new(&id);
        info.name = name.map(str::to_owned);
        info.created = Some(SystemTime::now());
        let saved = Saved {
            info: info.clone(),
            root: machine.disk.root(),
            labels: machine.labels.clone(),
            env: machine.env.clone(),
            disk: machine.disk.capacity(),
        };
        inner.snapshots.insert(id, saved);
        info
    }

    /// Delete a snapshot.
    pub(crate) fn delete(&self, id: &str) -> Result<()> {
        match self.lock().snapshots.remove(id) {
            Some(_) => Ok(()),
            None => Err(not_found("snapshot", id)),
        }
    }

    /// A sandbox has ended.
    pub(crate) fn forget(&self, id: &str) {
        let machine = self.lock().machines.remove(id);
        // Its own end may run when it is dropped, and wants the lock.
        drop(machine);
    }

    fn machine(&self, id: &str) -> Result<Arc<Machine>> {
        let machine = self.lock().machines.get(id).cloned();
        machine.filter(|machine| machine.alive().is_ok()).ok_or_else(|| not_found("sandbox", id))
    }

    fn named(&self, name: &str) -> Option<Arc<Machine>> {
        self.machines()
            .into_iter()
            .find(|machine| machine.name.as_deref() == Some(name) && machine.alive().is_ok())
    }

    fn machines(&self) -> Vec<Arc<Machine>> {
        self.lock().machines.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Ids count up, so that runs repeat exactly.
    fn next_id(&mut self, kind: &str) -> String {
        self.ids += 1;
        format!("{kind}-{}", self.ids)
    }
}

/// What `create` takes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Create {
    /// Get the sandbox of this name, or create it.
    pub name: Option<String>,
    /// Labels, over those of the snapshot.
    pub labels: Labels,
    /// Variables, over those of the snapshot.
    pub env: Env,
    /// How long it lives.
    pub ttl: Option<Duration>,
    /// The size of its disk in bytes.
    pub disk: Option<u64>,
    /// The id of the snapshot that it starts from.
    pub from_snapshot: Option<String>,
}

impl Accept<cap::Name> for Create {
    fn accept(&mut self, name: String) {
        self.name = Some(name);
    }
}

impl Accept<cap::Labels> for Create {
    fn accept(&mut self, labels: Labels) {
        self.labels = labels;
    }
}

impl Accept<cap::Env> for Create {
    fn accept(&mut self, env: Env) {
        self.env = env;
    }
}

impl Accept<cap::Ttl> for Create {
    fn accept(&mut self, ttl: Duration) {
        self.ttl = Some(ttl);
    }
}

impl Accept<cap::Disk> for Create {
    fn accept(&mut self, bytes: u64) {
        self.disk = Some(bytes);
    }
}

impl Accept<cap::FromSnapshot> for Create {
    fn accept(&mut self, id: String) {
        self.from_snapshot = Some(id);
    }
}

impl Accept<cap::EgressControl> for Create {
    /// Nothing to do: the interpreter is built without a network.
    fn accept(&mut self, _: DenyEgress) {}
}

/// What one exec takes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exec {
    /// What to execute.
    pub command: Command,
    /// The folder to start in; relative to the default one.
    pub cwd: Option<SandboxPath>,
    /// Variables, over those of the sandbox.
    pub env: Env,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Its standard input.
    pub input: Bytes,
}

impl From<Command> for Exec {
    fn from(command: Command) -> Self {
        Self { command, cwd: None, env: Env::new(), timeout: None, input: Bytes::new() }
    }
}

impl Accept<cap::ExecCwd> for Exec {
    fn accept(&mut self, path: SandboxPath) {
        self.cwd = Some(path);
    }
}

impl Accept<cap::ExecEnv> for Exec {
    fn accept(&mut self, env: Env) {
        self.env = env;
    }
}

impl Accept<cap::Timeout> for Exec {
    fn accept(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }
}

impl Accept<cap::Input> for Exec {
    fn accept(&mut self, input: Input) {
        self.input = input.0;
    }
}
