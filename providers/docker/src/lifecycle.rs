//! Stop, pause, a new lifetime, other resources.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bollard::models::ContainerUpdateBody;
use bollard::query_parameters::StopContainerOptionsBuilder;
use capbox_core::provider::*;

use crate::labels;
use crate::session::{Booted, Session};

/// How long the guest may take to end everything, in seconds.
const STOP_WITHIN: i32 = 5;

#[async_trait]
impl SetTimeout for Session {
    async fn set_timeout(&self, ttl: Duration) -> Result<()> {
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        self.relay().await?.set_ttl(millis).await.map_err(|error| self.of_guest(error))
    }
}

#[async_trait]
impl Stop for Session {
    async fn stop(&self) -> Result<()> {
        let api = self.engine.api().await?;
        let options = StopContainerOptionsBuilder::new().t(STOP_WITHIN).build();
        // An engine does not stop what is paused; a container that is stopped already answers 304, which is no error.
        if self.paused.load(Ordering::SeqCst) {
            self.resume().await?;
        }
        api.stop_container(&self.container, Some(options)).await.map_err(|error| self.failed(error))?;
        self.close().await;
        Ok(())
    }

    async fn start(&self) -> Result<()> {
        let api = self.engine.api().await?;
        let facts = self.inspect().await?;
        if facts.state.as_ref().and_then(|state| state.running) == Some(true) {
            return Ok(());
        }
        api.start_container(&self.container, None).await.map_err(|error| self.failed(error))?;
        let all = facts.config.and_then(|config| config.labels).unwrap_or_default();
        let owned = self.leased.load(Ordering::SeqCst);
        self.boot(Booted { ttl: labels::duration(&all, labels::TTL), owned }).await
    }
}

#[async_trait]
impl Pause for Session {
    async fn pause(&self) -> Result<()> {
        let api = self.engine.api().await?;
        if self.status_is_paused().await? {
            return Ok(());
        }
        api.pause_container(&self.container).await.map_err(|error| self.failed(error))?;
        self.paused.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        let api = self.engine.api().await?;
        if self.status_is_paused().await? {
            api.unpause_container(&self.container).await.map_err(|error| self.failed(error))?;
        }
        self.paused.store(false, Ordering::SeqCst);
        Ok(())
    }
}

impl Session {
    /// Whether the engine has it paused; one that is stopped can be neither.
    async fn status_is_paused(&self) -> Result<bool> {
        let state = self.inspect().await?.state.unwrap_or_default();
        if state.running != Some(true) {
            return Err(self.does_not_run());
        }
        Ok(state.paused == Some(true))
    }
}

#[async_trait]
impl Resize for Session {
    async fn resize(&self, resources: Resources) -> Result<()> {
        let Resources { cpu, memory, disk, .. } = resources;
        if disk.is_some() {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "an engine cannot change the disk of a container",
            ));
        }
        let api = self.engine.api().await?;
        let memory = memory.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        #[allow(clippy::cast_possible_truncation, reason = "no machine has so many CPUs")]
        let nano_cpus = cpu.map(|cpus| (cpus * 1e9) as i64);
        let body =
            ContainerUpdateBody { nano_cpus, memory, memory_swap: memory, ..ContainerUpdateBody::default() };
        api.update_container(&self.container, body).await.map_err(|error| self.failed(error))
    }
}
