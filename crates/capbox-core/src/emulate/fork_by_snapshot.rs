//! Forks from a snapshot.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::api::{Core, Sandbox, erased};
use crate::capability::answer::Emulate;
use crate::capability::rows::{HasFromSnapshot, HasSnapshot, HasSnapshotDelete};
use crate::capability::{Capability, cap};
use crate::error::Result;
use crate::provider::Table;
use crate::spec::{Network, Spec};

/// `snapshot.fork` over `snapshot.snapshot`, `snapshot.delete` and `source.from-snapshot`: a snapshot is taken, the copies are created
/// from it, and it is deleted. A snapshot that cannot be deleted is told by a warning with its id.
///
/// The copies can reach nothing, whatever the original can; where the provider cannot deny, the original could
/// reach everything, and so can they.
///
/// # Loss
///
/// "takes a snapshot and deletes it; lifetime, network and limits of the copies are the defaults"
pub enum ForkBySnapshot {}

impl<P: Table + HasSnapshot + HasSnapshotDelete + HasFromSnapshot> Emulate<cap::Fork, P> for ForkBySnapshot {
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn erased::Fork> {
        Arc::new(Forking(sandbox))
    }
}

/// How many copies are created at a time.
const AT_ONCE: u32 = 8;

struct Forking<P>(Sandbox<P>);

#[async_trait]
impl<P: Table + HasSnapshot + HasSnapshotDelete + HasFromSnapshot> erased::Fork for Forking<P> {
    async fn fork(&self, count: u32) -> Result<Vec<Result<Arc<Core>>>> {
        let info = self.0.snapshots().create(None).await?;
        let snapshot = Temporary { sandbox: self.0.clone(), id: Some(info.id.clone()) };
        let client = self.0.client();
        let mut spec = Spec::new().from_snapshot(info.id);
        if !client.can(Capability::EgressControl) {
            spec = spec.network(Network::open());
        }
        let (mut creating, mut forks) = (JoinSet::new(), Vec::new());
        for started in 0..count {
            if started >= AT_ONCE {
                forks.extend(creating.join_next().await);
            }
            creating.spawn(client.create_with(spec.clone()).into_future());
        }
        while let Some(fork) = creating.join_next().await {
            forks.push(fork);
        }
        snapshot.delete().await;
        let outcome = |fork: std::result::Result<Result<Sandbox<P>>, tokio::task::JoinError>| match fork {
            Ok(fork) => fork.map(|sandbox| sandbox.core().clone()),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        Ok(forks.into_iter().map(outcome).collect())
    }
}

/// A snapshot that is deleted in any case, also when the call is given up half-way.
struct Temporary<P: Table + HasSnapshotDelete> {
    sandbox: Sandbox<P>,
    id: Option<String>,
}

impl<P: Table + HasSnapshotDelete> Temporary<P> {
    async fn delete(mut self) {
        if let Some(id) = self.id.take() {
            delete(&self.sandbox, &id).await;
        }
    }
}

impl<P: Table + HasSnapshotDelete> Drop for Temporary<P> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let sandbox = self.sandbox.clone();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { delete(&sandbox, &id).await });
        } else {
            tracing::warn!(snapshot = id, "a temporary snapshot is left");
        }
    }
}

async fn delete<P: Table + HasSnapshotDelete>(sandbox: &Sandbox<P>, id: &str) {
    if let Err(error) = sandbox.client().delete_snapshot(id).await {
        tracing::warn!(snapshot = id, %error, "a temporary snapshot is left");
    }
}
