//! What a sandbox uses.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::sandbox::Sandbox;
use crate::capability::rows::{HasMetrics, HasMetricsStream};
use crate::capability::{Capability, cap};
use crate::error::{Error, Result};
use crate::provider::UsageEvents;

impl<K> Sandbox<K> {
    /// What is in use now.
    pub async fn metrics(&self) -> Result<Usage>
    where
        K: HasMetrics,
    {
        let api = self.core().api::<cap::Metrics>()?;
        self.core().request(Capability::Metrics.as_str(), api.metrics()).await
    }

    /// What is in use, about every `interval`, from now on.
    pub async fn follow_metrics(&self, interval: Duration) -> Result<MetricsStream>
    where
        K: HasMetricsStream,
    {
        let api = self.core().api::<cap::MetricsStream>()?;
        if interval.is_zero() {
            return Err(Error::invalid_argument("interval", "must be greater than zero"));
        }
        let call = api.follow_metrics(interval);
        let events = self.core().request(Capability::MetricsStream.as_str(), call).await?;
        Ok(MetricsStream { events, provider: self.capabilities().declared().provider })
    }
}

/// What is in use, as it changes: what `sandbox.follow_metrics()` gives.
pub struct MetricsStream {
    events: Box<dyn UsageEvents>,
    provider: &'static str,
}

impl fmt::Debug for MetricsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsStream").finish_non_exhaustive()
    }
}

impl MetricsStream {
    /// The next look; `None` where the sandbox has ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Usage>> {
        let next = self.events.next().await;
        next.map_err(|error| error.at(self.provider, Capability::MetricsStream.as_str()))
    }
}

/// What a sandbox uses. What the provider does not tell is `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Usage {
    /// When it was looked at.
    pub at: SystemTime,
    /// Time of CPUs spent so far, of all processes together.
    pub cpu: Option<Duration>,
    /// CPUs that it may use.
    pub cpu_limit: Option<f64>,
    /// Memory in use, in bytes, without what can be dropped at once.
    pub memory: Option<u64>,
    /// Memory that it may use, in bytes.
    pub memory_limit: Option<u64>,
    /// Disk in use by what the sandbox wrote, in bytes.
    pub disk: Option<u64>,
    /// Disk that it may use, in bytes.
    pub disk_limit: Option<u64>,
    /// Bytes received from the network so far.
    pub received: Option<u64>,
    /// Bytes sent to the network so far.
    pub sent: Option<u64>,
    /// Processes and threads alive.
    pub processes: Option<u32>,
}

impl Usage {
    /// Nothing is known but the time.
    pub fn at(at: SystemTime) -> Self {
        Self {
            at,
            cpu: None,
            cpu_limit: None,
            memory: None,
            memory_limit: None,
            disk: None,
            disk_limit: None,
            received: None,
            sent: None,
            processes: None,
        }
    }
}
