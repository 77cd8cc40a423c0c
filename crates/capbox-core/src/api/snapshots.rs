//! Snapshots of disks.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::SystemTime;

use super::core::{Any, Core};
use crate::capability::{Capability, cap};
use crate::error::Result;

/// Snapshots: what `sandbox.snapshots()` gives.
pub struct Snapshots<K = Any> {
    core: Arc<Core>,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Snapshots<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshots").finish_non_exhaustive()
    }
}

impl<K> Snapshots<K> {
    pub(super) fn of(core: Arc<Core>) -> Self {
        Self { core, kind: PhantomData }
    }

    /// Keep the disk. The snapshot outlives the sandbox; secrets and mounts are not in it. It is deleted by
    /// [`Client::delete_snapshot`](super::Client::delete_snapshot).
    pub async fn create(&self, name: Option<&str>) -> Result<SnapshotInfo> {
        let api = self.core.api::<cap::Snapshot>()?;
        self.core.op(Capability::Snapshot.as_str(), api.create(name)).await
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// The id, for `from_snapshot`.
    pub id: String,
    /// The name that it was given.
    pub name: Option<String>,
    /// When it was taken.
    pub created: Option<SystemTime>,
}

impl SnapshotInfo {
    /// A snapshot of which nothing else is known.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), name: None, created: None }
    }
}
