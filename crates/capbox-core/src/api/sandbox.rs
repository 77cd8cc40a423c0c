//! Sandboxes.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::client::Client;
use super::core::{Any, Core};
use super::exec::{Exec, Pty, Spawn};
use super::files::Files;
use super::ports::Ports;
use super::process::{Process, ProcessId, ProcessInfo};
use super::snapshots::Snapshots;
use crate::capability::rows::{
    HasEgressUpdate, HasExecList, HasExposePort, HasFilesRead, HasFork, HasPause, HasPty, HasResize, HasRun,
    HasSetTimeout, HasSnapshot, HasStop, HasStreaming,
};
use crate::capability::{Capabilities, Capability, Lowered, NotSupported, cap};
use crate::error::{Error, Result};
use crate::provider::Table;
use crate::spec::{Labels, Network, Program, Resources, Spec};

/// A sandbox of provider `K`; plain `Sandbox` where the provider is chosen at run time.
///
/// One that was created is leased: it ends when the last handle is dropped or this process dies, unless it is
/// [detached](Self::detach). One that was connected to has no lease.
pub struct Sandbox<K = Any> {
    core: Arc<Core>,
    kind: PhantomData<fn() -> K>,
}

/// A sandbox whose provider is known at run time only: optional parts are `Option`s.
pub type AnySandbox = Sandbox<Any>;

impl<K> Clone for Sandbox<K> {
    fn clone(&self) -> Self {
        Self::of(self.core.clone())
    }
}

impl<K> fmt::Debug for Sandbox<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let provider = self.core.capabilities.declared().provider;
        f.debug_struct("Sandbox").field("provider", &provider).field("id", &self.id()).finish()
    }
}

impl<K> Sandbox<K> {
    pub(super) fn of(core: Arc<Core>) -> Self {
        Self { core, kind: PhantomData }
    }

    /// What an emulation stands on.
    pub(crate) fn beneath(core: &Arc<Core>) -> Self {
        Self::of(core.beneath())
    }

    #[doc(hidden)]
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The id, by which other processes connect.
    pub fn id(&self) -> &str {
        (self.core.client.vt.base.id)(&self.core)
    }

    /// The client that it came from.
    pub fn client(&self) -> Client<K> {
        Client::of(self.core.client.clone())
    }

    /// False where a sandbox of the asked name was there already.
    pub fn is_new(&self) -> bool {
        self.core.new
    }

    /// The name by which others in its private network reach it, where it is in one.
    pub fn private_host(&self) -> Option<&str> {
        self.core.private_host.as_deref()
    }

    /// What this sandbox can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    /// True where `capability` holds for this sandbox. Never allocates.
    pub fn can(&self, capability: Capability) -> bool {
        self.core.admit(capability).is_ok()
    }

    /// Refuse `capability` where it does not hold for this sandbox. Never allocates.
    pub fn require(&self, capability: Capability) -> Result<(), NotSupported> {
        self.core.admit(capability)
    }

    /// A handle from which more is withheld. It gates this library's calls, not the programs inside: whoever
    /// may run a shell may run `python3` in it.
    #[must_use]
    pub fn withholding(&self, lowered: &Lowered) -> Self {
        Self::of(self.core.withholding(lowered))
    }

    /// Run a command to its end: set options, then `.await`. A string is run by `sh -c`, an argv as it is.
    pub fn exec(&self, program: impl Into<Program>) -> Exec<K>
    where
        K: HasRun,
    {
        Exec::new(self.core.clone(), program.into())
    }

    /// Start a command and follow it while it runs: set options, then `.await`.
    pub fn spawn(&self, program: impl Into<Program>) -> Spawn<K>
    where
        K: HasStreaming,
    {
        Spawn::new(self.core.clone(), program.into())
    }

    /// A process by its id. Nothing is sent before it is asked for something.
    pub fn process(&self, id: impl Into<ProcessId>) -> Process<K> {
        Process::detached(self.core.clone(), id.into())
    }

    /// The processes that were started through the API, those that ended lately included.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>>
    where
        K: HasExecList,
    {
        let api = self.core.api::<cap::ExecList>()?;
        self.core.request(Capability::ExecList.as_str(), api.processes()).await
    }

    /// Make `count` independent copies, each with an outcome of its own.
    pub async fn fork(&self, count: u32) -> Result<Vec<Result<Self>>>
    where
        K: HasFork,
    {
        let api = self.core.api::<cap::Fork>()?;
        if count == 0 {
            return Err(Error::invalid_argument("count", "must be greater than zero"));
        }
        let forks = self.core.op(Capability::Fork.as_str(), api.fork(count)).await?;
        // A copy has no more rights than its original.
        let withheld = self.core.capabilities.lowered().only_withheld();
        Ok(forks.into_iter().map(|fork| fork.map(|core| Self::of(core.withholding(&withheld)))).collect())
    }

    /// It may live for `ttl`, counted from now.
    pub async fn set_timeout(&self, ttl: Duration) -> Result<()>
    where
        K: HasSetTimeout,
    {
        let api = self.core.api::<cap::SetTimeout>()?;
        if ttl.is_zero() {
            return Err(Error::invalid_argument("ttl", "must be greater than zero"));
        }
        self.core.request(Capability::SetTimeout.as_str(), api.set_timeout(ttl)).await
    }

    /// End its processes and keep the sandbox. No error where it is stopped.
    pub async fn stop(&self) -> Result<()>
    where
        K: HasStop,
    {
        let api = self.core.api::<cap::Stop>()?;
        self.core.request(Capability::Stop.as_str(), api.stop()).await
    }

    /// Start it again after [`stop`](Self::stop). No error where it runs.
    pub async fn start(&self) -> Result<()>
    where
        K: HasStop,
    {
        let api = self.core.api::<cap::Stop>()?;
        self.core.request("lifecycle.start", api.start()).await
    }

    /// Suspend it, with memory kept. No error where it is paused.
    pub async fn pause(&self) -> Result<()>
    where
        K: HasPause,
    {
        let api = self.core.api::<cap::Pause>()?;
        self.core.request(Capability::Pause.as_str(), api.pause()).await
    }

    /// Let it go on after [`pause`](Self::pause). No error where it runs.
    pub async fn resume(&self) -> Result<()>
    where
        K: HasPause,
    {
        let api = self.core.api::<cap::Pause>()?;
        self.core.request("lifecycle.resume", api.resume()).await
    }

    /// Change its resources.
    pub async fn resize(&self, resources: Resources) -> Result<()>
    where
        K: HasResize,
    {
        let api = self.core.api::<cap::Resize>()?;
        let Resources { cpu, memory, disk } = resources;
        let mut wanted = Spec::new();
        (wanted.cpu, wanted.memory, wanted.disk) = (cpu, memory, disk);
        self.core.takes(&wanted)?;
        self.core.request(Capability::Resize.as_str(), api.resize(resources)).await
    }

    /// Replace its network policy. Connections that the new one does not allow are cut.
    pub async fn set_network(&self, network: Network) -> Result<()>
    where
        K: HasEgressUpdate,
    {
        let api = self.core.api::<cap::EgressUpdate>()?;
        self.core.takes(&Spec::new().network(network.clone()))?;
        self.core.request(Capability::EgressUpdate.as_str(), api.set_network(&network)).await
    }

    /// End the lease: the sandbox outlives this process, up to its ttl.
    pub async fn detach(&self) -> Result<()> {
        self.core.request("detach", (self.core.client.vt.base.detach)(&self.core)).await
    }

    /// Destroy it: when this returns, nothing of it runs. One that is gone already is no error.
    pub async fn destroy(&self) -> Result<()> {
        self.core.request("destroy", (self.core.client.vt.base.destroy)(&self.core)).await
    }
}

impl<P: Table> Sandbox<P> {
    /// The raw sandbox. Outside semver.
    pub fn native(&self) -> &P::NativeSandbox {
        P::native(self.core.session_ref::<P>())
    }

    /// Forget the provider's type.
    pub fn into_any(self) -> AnySandbox {
        Sandbox::of(self.core)
    }

    /// Files and folders.
    pub fn files(&self) -> Files<P>
    where
        P: HasFilesRead,
    {
        Files::of(self.core.clone())
    }

    /// Terminals.
    pub fn pty(&self) -> Pty<P>
    where
        P: HasPty,
    {
        Pty::of(self.core.clone())
    }

    /// Ports.
    pub fn ports(&self) -> Ports<P>
    where
        P: HasExposePort,
    {
        Ports::of(self.core.clone())
    }

    /// Snapshots.
    pub fn snapshots(&self) -> Snapshots<P>
    where
        P: HasSnapshot,
    {
        Snapshots::of(self.core.clone())
    }
}

impl AnySandbox {
    /// The typed sandbox, where the provider is `P`.
    pub fn downcast<P: Table>(&self) -> Option<Sandbox<P>> {
        self.core.client.is::<P>().then(|| Sandbox::of(self.core.clone()))
    }

    /// The raw sandbox, where the provider is `P`. Outside semver.
    pub fn native<P: Table>(&self) -> Option<&P::NativeSandbox> {
        self.core.client.is::<P>().then(|| P::native(self.core.session_ref::<P>()))
    }

    /// Files and folders, where this sandbox has them.
    pub fn files(&self) -> Option<Files> {
        self.can(Capability::FilesRead).then(|| Files::of(self.core.clone()))
    }

    /// Terminals, where this sandbox has them.
    pub fn pty(&self) -> Option<Pty> {
        self.can(Capability::Pty).then(|| Pty::of(self.core.clone()))
    }

    /// Ports, where this sandbox can expose them.
    pub fn ports(&self) -> Option<Ports> {
        self.can(Capability::ExposePort).then(|| Ports::of(self.core.clone()))
    }

    /// Snapshots, where this sandbox has them.
    pub fn snapshots(&self) -> Option<Snapshots> {
        self.can(Capability::Snapshot).then(|| Snapshots::of(self.core.clone()))
    }
}

/// What state a sandbox is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SandboxState {
    /// It runs.
    Running,
    /// It is paused.
    Paused,
    /// It is stopped; its disk is kept.
    Stopped,
    /// The provider says something else.
    Unknown,
}

impl SandboxState {
    /// A stable word for output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}

/// A sandbox in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// The id.
    pub id: String,
    /// The name that it was created with.
    pub name: Option<String>,
    /// The state.
    pub state: SandboxState,
    /// When it was created.
    pub created: Option<SystemTime>,
    /// How long it will still live.
    pub ttl_left: Option<Duration>,
    /// False where it ends with its owner.
    pub detached: bool,
    /// Its labels.
    pub labels: Labels,
}

impl SandboxInfo {
    /// A running sandbox of which nothing else is known.
    pub fn running(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            name: None,
            state: SandboxState::Running,
            created: None,
            ttl_left: None,
            detached: true,
            labels: Labels::default(),
        }
    }
}
