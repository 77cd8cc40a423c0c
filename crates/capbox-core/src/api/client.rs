//! Clients: configured providers.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::BoxFuture;
use super::core::{Any, ClientCore, within};
use super::sandbox::{Sandbox, SandboxInfo};
use super::snapshots::SnapshotInfo;
use super::volumes::Volumes;
use crate::capability::flags::Isolation;
use crate::capability::rows::{
    HasConnect, HasEgressControl, HasList, HasSnapshotDelete, HasSnapshotList, HasVolumesManage,
};
use crate::capability::{Capabilities, Capability, Lowered, NotSupported, cap};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{DEFAULT_CREATE_TIMEOUT, Table};
use crate::spec::{Labels, Network, Spec};

/// A configured provider `K`; plain `Client` where the provider is chosen at run time.
///
/// Cheap to clone; all clones share one configuration and one pool of connections.
pub struct Client<K = Any> {
    core: Arc<ClientCore>,
    kind: PhantomData<fn() -> K>,
}

/// A client whose provider is known at run time only.
pub type AnyClient = Client<Any>;

impl<K> Clone for Client<K> {
    fn clone(&self) -> Self {
        Self::of(self.core.clone())
    }
}

impl<K> fmt::Debug for Client<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("provider", &self.provider()).finish_non_exhaustive()
    }
}

impl<P: Table> Client<P> {
    /// A client of the configured provider.
    pub fn new(provider: P) -> Self {
        Self::of(ClientCore::new(provider))
    }

    /// Create a sandbox: set options, then `.await`. Options exist only where the provider has them.
    pub fn create(&self) -> Create<P> {
        self.create_with(Spec::new())
    }

    /// Create a sandbox from a spec; what the provider does not honour is refused before anything is sent.
    pub fn create_with(&self, spec: Spec) -> Create<P> {
        Create { client: self.clone(), spec, timeout: DEFAULT_CREATE_TIMEOUT }
    }

    /// Volumes.
    pub fn volumes(&self) -> Volumes<P>
    where
        P: HasVolumesManage,
    {
        Volumes::of(self.core.clone())
    }

    /// The raw client. Outside semver.
    pub fn native(&self) -> &P::NativeClient {
        self.core.provider_ref::<P>().native_client()
    }

    /// Forget the provider's type.
    pub fn into_any(self) -> AnyClient {
        Client::of(self.core)
    }
}

impl AnyClient {
    /// Create a sandbox; what the provider does not honour is refused before anything is sent.
    pub fn create(&self, spec: Spec) -> Create<Any> {
        Create { client: self.clone(), spec, timeout: DEFAULT_CREATE_TIMEOUT }
    }

    /// Volumes, where this client has them.
    pub fn volumes(&self) -> Option<Volumes> {
        self.can(Capability::VolumesManage).then(|| Volumes::of(self.core.clone()))
    }

    /// The typed client, where the provider is `P`.
    pub fn downcast<P: Table>(&self) -> Option<Client<P>> {
        self.core.is::<P>().then(|| Client::of(self.core.clone()))
    }
}

impl<K> Client<K> {
    pub(super) fn of(core: Arc<ClientCore>) -> Self {
        Self { core, kind: PhantomData }
    }

    pub(super) fn core(&self) -> &Arc<ClientCore> {
        &self.core
    }

    /// The provider's id.
    pub fn provider(&self) -> &'static str {
        self.core.capabilities.declared().provider
    }

    /// What this client can do: the provider's table, less what is lacking here.
    pub fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    /// True where `capability` holds here. Never allocates.
    pub fn can(&self, capability: Capability) -> bool {
        self.core.admit(capability).is_ok()
    }

    /// Refuse `capability` where it does not hold here. Never allocates.
    pub fn require(&self, capability: Capability) -> Result<(), NotSupported> {
        self.core.admit(capability)
    }

    /// What this host, plan or configuration lacks, found by trying.
    pub async fn probe(&self) -> Result<Lowered> {
        let call = (self.core.vt.base.probe)(&self.core);
        self.core.request("probe", call).await
    }

    /// The sandboxes of this account or machine, those of other processes included.
    pub async fn list(&self) -> Result<Vec<SandboxInfo>>
    where
        K: HasList,
    {
        self.list_with(&Labels::default()).await
    }

    /// The sandboxes that have all of `labels`.
    pub async fn list_with(&self, labels: &Labels) -> Result<Vec<SandboxInfo>>
    where
        K: HasList,
    {
        let api = self.core.api::<cap::List>()?;
        self.core.request(Capability::List.as_str(), api.list(labels)).await
    }

    /// The snapshots that exist.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>>
    where
        K: HasSnapshotList,
    {
        let api = self.core.api::<cap::SnapshotList>()?;
        self.core.request(Capability::SnapshotList.as_str(), api.snapshots()).await
    }

    /// Delete a snapshot by its id, whether or not its sandbox is there.
    pub async fn delete_snapshot(&self, id: &str) -> Result<()>
    where
        K: HasSnapshotDelete,
    {
        let api = self.core.api::<cap::SnapshotDelete>()?;
        if id.is_empty() {
            return Err(Error::invalid_argument("id", "is empty"));
        }
        self.core.request(Capability::SnapshotDelete.as_str(), api.delete_snapshot(id)).await
    }

    /// Connect to a sandbox by its id. The handle has no lease: dropping it leaves the sandbox as it is.
    pub async fn connect(&self, id: &str) -> Result<Sandbox<K>>
    where
        K: HasConnect,
    {
        let api = self.core.api::<cap::Connect>()?;
        if id.is_empty() {
            return Err(Error::invalid_argument("id", "is empty"));
        }
        Ok(Sandbox::of(self.core.request(Capability::Connect.as_str(), api.connect(id)).await?))
    }

    /// Destroy a sandbox by its id. One that is gone already is no error: false.
    pub async fn destroy(&self, id: &str) -> Result<bool>
    where
        K: HasConnect,
    {
        match self.connect(id).await {
            Ok(sandbox) => sandbox.destroy().await.map(|()| true),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::SandboxGone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Remove what dead owners left behind and what is provably ours; gives the ids.
    pub async fn reap(&self) -> Result<Vec<String>> {
        self.core.op("reap", (self.core.vt.base.reap)(&self.core)).await
    }
}

/// A sandbox to be created: set options, then `.await`.
#[must_use = "nothing is created before `.await`"]
pub struct Create<K> {
    client: Client<K>,
    pub(crate) spec: Spec,
    timeout: Duration,
}

impl<K> Create<K> {
    /// How long creating may take; two minutes where nothing is said. When time is up nothing is left.
    pub fn create_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl<P: Table> Create<P> {
    /// Set the network policy. Rules beyond deny are rows of their own, refused at `.await` where the provider
    /// does not honour them.
    pub fn network(mut self, network: Network) -> Self
    where
        P: HasEgressControl,
    {
        self.spec = self.spec.network(network);
        self
    }

    /// Refuse if the provider's isolation is weaker than `floor`.
    pub fn require_isolation(mut self, floor: Isolation) -> Self {
        self.spec = self.spec.require_isolation(floor);
        self
    }
}

impl<K> fmt::Debug for Create<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Create")
            .field("client", &self.client)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl<K: 'static> IntoFuture for Create<K> {
    type Output = Result<Sandbox<K>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, spec, timeout } = self;
            if timeout.is_zero() {
                return Err(Error::invalid_argument("create_timeout", "must be greater than zero"));
            }
            let capabilities = &client.core.capabilities;
            if let Some(problem) = spec.problems(capabilities).into_iter().next() {
                return Err(problem.at(client.provider(), "create"));
            }
            let spec = spec.with_defaults(capabilities);
            let call = (client.core.vt.base.create)(&client.core, spec);
            client.core.op("create", within(timeout, "create", call)).await.map(Sandbox::of)
        })
    }
}
