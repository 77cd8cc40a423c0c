//! Volumes: folders that outlive sandboxes.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::SystemTime;

use super::core::{Any, ClientCore};
use crate::capability::{Capability, cap};
use crate::error::Result;
use crate::spec::check_volume;

/// Volumes: what `client.volumes()` gives. They are mounted by the option `volumes` of create.
pub struct Volumes<K = Any> {
    core: Arc<ClientCore>,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Volumes<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volumes").finish_non_exhaustive()
    }
}

impl<K> Volumes<K> {
    pub(super) fn of(core: Arc<ClientCore>) -> Self {
        Self { core, kind: PhantomData }
    }

    /// Make an empty one. One of that name is `AlreadyExists`.
    pub async fn create(&self, name: &str) -> Result<VolumeInfo> {
        let api = self.core.api::<cap::VolumesManage>()?;
        check_volume(name)?;
        self.core.request(Capability::VolumesManage.as_str(), api.create_volume(name)).await
    }

    /// Those that there are.
    pub async fn list(&self) -> Result<Vec<VolumeInfo>> {
        let api = self.core.api::<cap::VolumesManage>()?;
        self.core.request(Capability::VolumesManage.as_str(), api.volumes()).await
    }

    /// Delete one with all that is in it. One that a sandbox has mounted is `Conflict`.
    pub async fn delete(&self, id: &str) -> Result<()> {
        let api = self.core.api::<cap::VolumesManage>()?;
        check_volume(id)?;
        self.core.request(Capability::VolumesManage.as_str(), api.delete_volume(id)).await
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// The id, for mounts.
    pub id: String,
    /// When it was made.
    pub created: Option<SystemTime>,
}

impl VolumeInfo {
    /// A volume of which nothing else is known.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), created: None }
    }
}
