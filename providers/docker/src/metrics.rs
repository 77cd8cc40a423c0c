//! What a container uses.

use std::time::SystemTime;

use bollard::models::{ContainerMemoryStats, ContainerStatsResponse};
use bollard::query_parameters::StatsOptionsBuilder;
use capbox_core::provider::*;
use futures_util::StreamExt;

use crate::session::Session;

#[async_trait]
impl Metrics for Session {
    async fn metrics(&self) -> Result<Usage> {
        let api = self.engine.api().await?;
        let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
        let stats = api.stats(&self.container, Some(options)).next().await;
        let stats = stats.ok_or_else(|| self.gone())?.map_err(|error| self.failed(error))?;
        let limits = self.inspect().await?.host_config.unwrap_or_default();
        let mut usage = usage(&stats);
        let set = |limit: Option<i64>| limit.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        usage.memory_limit = set(limits.memory);
        #[allow(clippy::cast_precision_loss, reason = "thousands of CPUs are told exactly")]
        let cpus = set(limits.nano_cpus).map(|nanos| nanos as f64 / 1e9);
        usage.cpu_limit = cpus;
        Ok(usage)
    }
}

fn usage(stats: &ContainerStatsResponse) -> Usage {
    let mut usage = Usage::at(stats.read.map_or_else(SystemTime::now, Into::into));
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage);
    usage.cpu = cpu.map(std::time::Duration::from_nanos);
    usage.memory = stats.memory_stats.as_ref().and_then(memory);
    let networks = stats.networks.as_ref().map(|networks| networks.values());
    let sum = |count: fn(&bollard::models::ContainerNetworkStats) -> Option<u64>| {
        networks.clone().map(|networks| networks.filter_map(count).sum())
    };
    usage.received = sum(|network| network.rx_bytes);
    usage.sent = sum(|network| network.tx_bytes);
    let processes = stats.pids_stats.as_ref().and_then(|pids| pids.current);
    usage.processes = processes.and_then(|count| u32::try_from(count).ok());
    usage
}

/// Without the part of the page cache that the kernel drops first, as the engine's own command line counts.
fn memory(memory: &ContainerMemoryStats) -> Option<u64> {
    let stats = memory.stats.as_ref();
    let cache = |name| stats.and_then(|stats| stats.get(name)).copied();
    let droppable = cache("total_inactive_file").or_else(|| cache("inactive_file")).unwrap_or(0);
    Some(memory.usage?.saturating_sub(droppable))
}
