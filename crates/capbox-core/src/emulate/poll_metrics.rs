//! A stream of metrics, by asking again and again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::api::{Sandbox, Usage};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::HasMetrics;
use crate::error::{ErrorKind, Result};
use crate::provider::{self as spi, Table};

/// `meta.metrics-stream` over `meta.metrics`.
///
/// # Loss
///
/// "asks for `meta.metrics` in turns; what comes and goes in between is not seen"
pub enum PollMetrics {}

impl<P: Table + HasMetrics> Emulate<cap::MetricsStream, P> for PollMetrics {
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn spi::MetricsStream> {
        Arc::new(Polled(sandbox))
    }
}

struct Polled<P>(Sandbox<P>);

#[async_trait]
impl<P: Table + HasMetrics> spi::MetricsStream for Polled<P> {
    async fn follow_metrics(&self, interval: Duration) -> Result<Box<dyn spi::UsageEvents>> {
        // Asked once at once, so that a sandbox that is gone is an error of the call.
        let first = self.0.metrics().await?;
        Ok(Box::new(Looks {
            sandbox: self.0.clone(),
            interval,
            first: Some(first),
            due: Instant::now() + interval,
        }))
    }
}

struct Looks<P> {
    sandbox: Sandbox<P>,
    interval: Duration,
    first: Option<Usage>,
    due: Instant,
}

#[async_trait]
impl<P: Table + HasMetrics> spi::UsageEvents for Looks<P> {
    async fn next(&mut self) -> Result<Option<Usage>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        tokio::time::sleep_until(self.due).await;
        match self.sandbox.metrics().await {
            Ok(usage) => {
                // Looks that were missed, for the caller was busy, are not made up for.
                self.due = (self.due + self.interval).max(Instant::now());
                Ok(Some(usage))
            }
            Err(error) if matches!(error.kind(), ErrorKind::SandboxGone | ErrorKind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
