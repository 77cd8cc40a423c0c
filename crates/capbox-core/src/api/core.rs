//! The erased core and its choke point.

use std::any::{Any as StdAny, TypeId};
use std::sync::Arc;
use std::time::Duration;

use super::BoxFuture;
use crate::capability::rows::{ClientEntry, Entry, VTable};
use crate::capability::{Capabilities, Capability, Lowered, NotSupported};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{Created, DEFAULT_REQUEST_TIMEOUT, Table};
use crate::spec::Spec;

/// In place of a provider's type: the provider is known at run time only.
#[derive(Debug)]
pub enum Any {}

/// A configured provider, erased.
#[doc(hidden)]
pub struct ClientCore {
    provider: Arc<dyn StdAny + Send + Sync>,
    type_id: TypeId,
    pub(super) vt: &'static VTable,
    pub(super) capabilities: Capabilities,
}

impl ClientCore {
    pub(super) fn new<P: Table>(provider: P) -> Arc<Self> {
        let capabilities = Capabilities::new(P::ROWS, provider.lowered());
        Arc::new(Self {
            provider: Arc::new(provider),
            type_id: TypeId::of::<P>(),
            vt: const { &VTable::of::<P>() },
            capabilities,
        })
    }

    /// True where the provider is `P`.
    pub(super) fn is<P: Table>(&self) -> bool {
        self.type_id == TypeId::of::<P>()
    }

    pub(crate) fn provider<P: Table>(&self) -> Arc<P> {
        self.provider.clone().downcast().expect("a typed client is only made for its own provider")
    }

    pub(super) fn provider_ref<P: Table>(&self) -> &P {
        self.provider.downcast_ref().expect("a typed client is only made for its own provider")
    }

    /// The choke point: every call of every row of a client passes here.
    pub(super) fn admit(&self, capability: Capability) -> Result<(), NotSupported> {
        self.capabilities.require(capability)
    }

    /// The implementation of row `C`, past the gate.
    pub(super) fn api<C: ClientEntry>(self: &Arc<Self>) -> Result<Arc<C::Dyn>> {
        self.admit(C::ID)?;
        Ok(C::entry(self.vt, self).expect("a declared row is bound"))
    }

    /// Run `call` as `operation`: with a span, and with errors that say where they happened.
    pub(super) async fn op<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        traced(self.capabilities.declared().provider, operation, call).await
    }

    /// The same, bounded by the time that a request may take.
    pub(super) async fn request<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.op(operation, within(DEFAULT_REQUEST_TIMEOUT, "request", call)).await
    }
}

/// Everything about a living sandbox, erased.
#[doc(hidden)]
pub struct Core {
    pub(super) client: Arc<ClientCore>,
    session: Arc<dyn StdAny + Send + Sync>,
    pub(super) capabilities: Capabilities,
    /// False for what an emulation stands on: it may use what is declared, also where that is withheld from
    /// the caller, since gating is by what was asked for.
    gated: bool,
    pub(super) new: bool,
    pub(super) private_host: Option<String>,
}

impl Core {
    pub(super) fn new<P: Table>(client: &Arc<ClientCore>, created: Created<P::Session>) -> Arc<Self> {
        let Created { session, lowered, new, private_host } = created;
        Arc::new(Self {
            capabilities: Capabilities::new(P::ROWS, client.capabilities.lowered().clone().and(&lowered)),
            client: client.clone(),
            session: Arc::new(session),
            gated: true,
            new,
            private_host,
        })
    }

    /// The same sandbox, for an emulation to stand on.
    pub(super) fn beneath(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            client: self.client.clone(),
            session: self.session.clone(),
            capabilities: Capabilities::new(self.capabilities.declared(), Lowered::none()),
            gated: false,
            new: self.new,
            private_host: self.private_host.clone(),
        })
    }

    /// The same sandbox, with more withheld.
    pub(super) fn withholding(self: &Arc<Self>, lowered: &Lowered) -> Arc<Self> {
        Arc::new(Self {
            client: self.client.clone(),
            session: self.session.clone(),
            capabilities: Capabilities::new(
                self.capabilities.declared(),
                self.capabilities.lowered().clone().and(lowered),
            ),
            gated: self.gated,
            new: self.new,
            private_host: self.private_host.clone(),
        })
    }

    pub(crate) fn session<P: Table>(&self) -> Arc<P::Session> {
        self.session.clone().downcast().expect("a typed sandbox is only made for its own provider")
    }

    pub(crate) fn session_ref<P: Table>(&self) -> &P::Session {
        self.session.downcast_ref().expect("a typed sandbox is only made for its own provider")
    }

    /// The choke point: every call of every row of a sandbox passes here.
    pub(super) fn admit(&self, capability: Capability) -> Result<(), NotSupported> {
        if self.gated {
            self.capabilities.require(capability)
        } else {
            self.capabilities.declared().declared(capability)
        }
    }

    /// The implementation of row `C`, past the gate.
    pub(super) fn api<C: Entry>(self: &Arc<Self>) -> Result<Arc<C::Dyn>> {
        self.admit(C::ID)?;
        Ok(C::entry(self.client.vt, self).expect("a declared row is bound"))
    }

    /// Refuse what of `changes` could not have been asked for at create either.
    pub(super) fn takes(&self, changes: &Spec) -> Result<()> {
        changes.changes_problem(&self.capabilities).map_or(Ok(()), Err)
    }

    /// Run `call` as `operation`: with a span, and with errors that say where they happened.
    pub(super) async fn op<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.client.op(operation, call).await
    }

    /// The same, bounded by the time that a request may take.
    pub(super) async fn request<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.client.request(operation, call).await
    }
}

/// Run `call` in a span, and say in its error where it happened.
async fn traced<T>(
    provider: &'static str,
    operation: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    use tracing::Instrument;
    let span = tracing::debug_span!("capbox", provider, operation);
    call.instrument(span).await.map_err(|e| e.at(provider, operation))
}

/// Bound `call`; when time is up it is dropped, and whether it happened is not known.
pub(super) async fn within<T>(
    limit: Duration,
    phase: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Timeout, format!("the {phase} took longer than {limit:?}")))
    })
}

/// Creates a sandbox of the erased client's provider.
type CreateFn = fn(&Arc<ClientCore>, Spec) -> BoxFuture<'static, Result<Arc<Core>>>;

/// What every provider has, erased.
#[doc(hidden)]
pub struct BaseVTable {
    pub(super) create: CreateFn,
    pub(super) probe: fn(&ClientCore) -> BoxFuture<'_, Result<Lowered>>,
    pub(super) reap: fn(&ClientCore) -> BoxFuture<'_, Result<Vec<String>>>,
    pub(super) id: fn(&Core) -> &str,
    pub(super) destroy: fn(&Core) -> BoxFuture<'_, Result<()>>,
    pub(super) detach: fn(&Core) -> BoxFuture<'_, Result<()>>,
}

impl BaseVTable {
    pub(crate) const fn of<P: Table>() -> Self {
        Self {
            create: |client, spec| {
                let client = client.clone();
                Box::pin(async move {
                    let body = spec.lower::<P>()?;
                    let created = client.provider_ref::<P>().create(body).await?;
                    Ok(Core::new::<P>(&client, created))
                })
            },
            probe: |client| client.provider_ref::<P>().probe(),
            reap: |client| client.provider_ref::<P>().reap(),
            id: |core| P::id(core.session_ref::<P>()),
            destroy: |core| P::destroy(core.session_ref::<P>()),
            detach: |core| P::detach(core.session_ref::<P>()),
        }
    }
}
