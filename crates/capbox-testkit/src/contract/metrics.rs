//! What a sandbox uses.

use std::time::Duration;

use capbox_core::api::Usage;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;

use super::exec::SOON;
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, run, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

impl Contract for cap::Metrics {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(async { sandbox.metrics().await.map(drop) }));
    const CASES: &'static [Case] = cases![work_shows, memory_shows, limits_show];
}

/// Spend about half a second of one CPU.
const WORK: &str = "timeout 0.6 sh -c 'while :; do :; done'; true";

async fn work_shows(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    t.needs_processes()?;
    let sandbox = t.sandbox().await?;
    let before = cpu(&sandbox.metrics().await?)?;
    run(&sandbox, WORK).await?;
    let after = cpu(&sandbox.metrics().await?)?;
    let spent = after.checked_sub(before).ok_or_else(|| Fault::failed("CPU time goes backwards"))?;
    ensure!(spent > Duration::from_millis(50), "half a second of work shows as {spent:?}");
    ensure!(spent < Duration::from_secs(30), "half a second of work shows as {spent:?}");
    Ok(())
}

fn cpu(usage: &Usage) -> Check<Duration> {
    usage.cpu.ok_or_else(|| Fault::ignored("the provider does not tell CPU time"))
}

async fn memory_shows(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    t.needs_processes()?;
    let sandbox = t.sandbox().await?;
    let memory = async || {
        let usage = sandbox.metrics().await?;
        usage.memory.ok_or_else(|| Fault::ignored("the provider does not tell memory"))
    };
    let before = memory().await?;
    // `tail` keeps the only line, and so all of it, in memory.
    let hold = "(head -c 48000000 /dev/zero; sleep 30) | tail -n 1 >/dev/null";
    let process = sandbox.spawn(hold).background().await?;
    let grown = async {
        let grown: Check = loop {
            let now = memory().await?;
            if now > before + 24_000_000 {
                break Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        grown
    };
    within(SOON, "48 MB that a process holds show", grown).await??;
    if t.can(Capability::KillProcess) {
        process.kill().await?;
    }
    Ok(())
}

async fn limits_show(t: &Bench) -> Check {
    t.needs(&[Capability::Memory])?;
    let sandbox = t.create(t.spec().memory(512_u64 << 20)).await?;
    ensure_eq!(sandbox.metrics().await?.memory_limit, Some(512 << 20), "the limit of memory");
    Ok(())
}

impl Contract for cap::MetricsStream {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async { sandbox.follow_metrics(Duration::from_millis(500)).await.map(drop) })
    });
    const CASES: &'static [Case] =
        cases![looks_follow_each_other, it_ends_with_the_sandbox, no_interval_is_refused];
}

async fn looks_follow_each_other(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let mut stream = sandbox.follow_metrics(Duration::from_millis(300)).await?;
    let mut last = None;
    for _ in 0..3 {
        let usage = within(SOON, "the next look", stream.next()).await??;
        let usage = usage.ok_or_else(|| Fault::failed("the stream ends while the sandbox lives"))?;
        ensure!(last.is_none_or(|last| usage.at > last), "a look is not later than the one before");
        last = Some(usage.at);
    }
    Ok(())
}

async fn it_ends_with_the_sandbox(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    let mut stream = sandbox.follow_metrics(Duration::from_millis(300)).await?;
    within(SOON, "the first look", stream.next()).await??;
    sandbox.destroy().await?;
    let end = async {
        loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::SandboxGone | ErrorKind::NotFound) => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    };
    Ok(within(SOON, "the end of the stream", end).await??)
}

async fn no_interval_is_refused(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    fails(sandbox.follow_metrics(Duration::ZERO).await.map(drop), &[ErrorKind::InvalidArgument])?;
    Ok(())
}
