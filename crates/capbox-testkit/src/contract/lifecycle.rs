//! Stop, pause, a new lifetime, other resources: what changes a sandbox that lives.

use std::time::{Duration, Instant};

use capbox_core::api::{AnySandbox, SandboxState};
use capbox_core::capability::flags::{LifetimeChange, ResizeApplies};
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::Resources;

use super::create::{busy, short};
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, PATIENCE, alive, get, mark, put, sh, starts};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

/// The sandbox's state by the list; `None` where it is not listed.
async fn state(t: &Bench, sandbox: &AnySandbox) -> Check<Option<SandboxState>> {
    let list = t.client().list().await?;
    Ok(list.into_iter().find(|info| info.id == sandbox.id()).map(|info| info.state))
}

impl Contract for cap::SetTimeout {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(sandbox.set_timeout(Duration::from_mins(3))));
    const CASES: &'static [Case] = cases![
        a_longer_life_is_lived,
        a_shorter_life_ends,
        zero_is_refused_and_changes_nothing,
        b138_connecting_changes_nothing,
    ];
}

async fn a_longer_life_is_lived(t: &Bench) -> Check {
    t.needs(&[Capability::Ttl])?;
    let ttl = short(t, Capability::Ttl)?;
    let sandbox = t.create(t.spec().ttl(ttl)).await?;
    put(&sandbox, "longer", "x").await?;
    sandbox.set_timeout(Duration::from_mins(5)).await?;
    t.pass(ttl + Duration::from_secs(1)).await;
    ensure_eq!(get(&sandbox, "longer").await?.as_deref(), Some("x"), "a file after the first lifetime");
    Ok(())
}

async fn a_shorter_life_ends(t: &Bench) -> Check {
    if t.flags().lifetime.change != LifetimeChange::Both {
        return Err(Fault::ignored("a life is only ever made longer here"));
    }
    t.needs(&[Capability::List])?;
    let ttl = short(t, Capability::Ttl)?;
    let sandbox = t.create(t.spec()).await?;
    sandbox.set_timeout(ttl).await?;
    t.pass(ttl).await;
    let begin = Instant::now();
    while state(t, &sandbox).await?.is_some() {
        ensure!(begin.elapsed() < Duration::from_secs(10), "its new life is over, and it is still listed");
        t.pass(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn zero_is_refused_and_changes_nothing(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    fails(sandbox.set_timeout(Duration::ZERO).await, &[ErrorKind::InvalidArgument])?;
    put(&sandbox, "zero", "x").await
}

async fn b138_connecting_changes_nothing(t: &Bench) -> Check {
    t.needs(&[Capability::Connect, Capability::List])?;
    let sandbox = t.create(t.spec()).await?;
    sandbox.set_timeout(Duration::from_mins(30)).await?;
    t.another_client()?.connect(sandbox.id()).await?;
    let list = t.client().list().await?;
    let left = list.iter().find(|info| info.id == sandbox.id()).and_then(|info| info.ttl_left);
    let left = left.ok_or_else(|| Fault::ignored("the list does not say how long a sandbox will live"))?;
    ensure!(left > Duration::from_mins(28), "after a connect {left:?} of 30 minutes are left");
    Ok(())
}

impl Contract for cap::Stop {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(sandbox.stop()));
    const CASES: &'static [Case] = cases![
        stopped_nothing_runs_and_the_disk_is_kept,
        b203_a_stopped_sandbox_says_so,
        twice_is_once,
        another_client_starts_it,
    ];
}

async fn stopped_nothing_runs_and_the_disk_is_kept(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    let id = sandbox.id().to_owned();
    put(&sandbox, "stopped", "x").await?;
    let mark = mark();
    let process = if t.can(Capability::Background) && t.inside().processes {
        let process = sandbox.spawn(format!("sleep {mark}")).background().await?;
        starts(&sandbox, &mark).await?;
        Some(process)
    } else {
        None
    };
    sandbox.stop().await?;
    if t.can(Capability::List) {
        ensure_eq!(state(t, &sandbox).await?, Some(SandboxState::Stopped), "the state of a stopped sandbox");
    }
    sandbox.start().await?;
    if t.can(Capability::List) {
        ensure_eq!(state(t, &sandbox).await?, Some(SandboxState::Running), "the state of a started sandbox");
    }
    let kept = get(&sandbox, "stopped").await?;
    if t.flags().preserves_disk_on_stop {
        ensure_eq!(kept.as_deref(), Some("x"), "a file after stop and start");
    } else {
        ensure_eq!(kept, None, "a file after stop and start, where the flag says that the disk is new");
    }
    if t.flags().id_stable {
        ensure_eq!(sandbox.id(), id, "the id after stop and start");
    }
    if process.is_some() {
        ensure!(alive(&sandbox, &mark).await?.is_empty(), "a process goes on after stop and start");
    }
    Ok(())
}

async fn b203_a_stopped_sandbox_says_so(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.create(t.spec()).await?;
    sandbox.stop().await?;
    fails(sandbox.exec("touch stopped-ran").await, &[ErrorKind::Conflict])?;
    sandbox.start().await?;
    ensure_eq!(get(&sandbox, "stopped-ran").await?, None, "what a command did in a stopped sandbox");
    Ok(())
}

async fn twice_is_once(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    sandbox.start().await?;
    sandbox.stop().await?;
    sandbox.stop().await?;
    sandbox.start().await?;
    put(&sandbox, "twice", "x").await
}

async fn another_client_starts_it(t: &Bench) -> Check {
    t.needs(&[Capability::Connect])?;
    let sandbox = t.create(t.spec()).await?;
    sandbox.stop().await?;
    let there = t.another_client()?.connect(sandbox.id()).await?;
    there.start().await?;
    put(&there, "started", "x").await?;
    there.destroy().await?;
    Ok(())
}

impl Contract for cap::Pause {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(sandbox.pause()));
    const CASES: &'static [Case] = cases![
        paused_nothing_goes_on_and_then_it_does,
        a_paused_sandbox_says_so,
        pausing_twice_is_pausing_once,
        paused_it_can_be_destroyed
    ];
}

/// How far the counting process of `counting` is.
async fn count(sandbox: &AnySandbox) -> Check<u64> {
    let text = get(sandbox, "count").await?.unwrap_or_default();
    Ok(text.lines().count() as u64)
}

/// Fail unless the count passes `from` in a while.
async fn goes_on(sandbox: &AnySandbox, from: u64) -> Check {
    let begin = Instant::now();
    while count(sandbox).await? <= from {
        ensure!(begin.elapsed() < PATIENCE, "the process does not go on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn paused_nothing_goes_on_and_then_it_does(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    t.needs_processes()?;
    let sandbox = t.create(t.spec()).await?;
    let process = sandbox.spawn("while :; do echo x >> count; sleep 0.05; done").background().await?;
    goes_on(&sandbox, 0).await?;
    sandbox.pause().await?;
    if t.can(Capability::List) {
        ensure_eq!(state(t, &sandbox).await?, Some(SandboxState::Paused), "the state of a paused sandbox");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    sandbox.resume().await?;
    // In that second it would have counted to 20; some of a moment before and after may show.
    let before = count(&sandbox).await?;
    goes_on(&sandbox, before).await?;
    if t.can(Capability::ExecList) {
        let list = sandbox.processes().await?;
        ensure!(list.iter().any(|p| p.id == *process.id()), "the process of before the pause is not listed");
    }
    Ok(())
}

async fn a_paused_sandbox_says_so(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.create(t.spec()).await?;
    sandbox.pause().await?;
    fails(sandbox.exec("touch paused-ran").await, &[ErrorKind::Conflict])?;
    sandbox.resume().await?;
    ensure_eq!(get(&sandbox, "paused-ran").await?, None, "what a command did in a paused sandbox");
    Ok(())
}

async fn pausing_twice_is_pausing_once(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    sandbox.resume().await?;
    sandbox.pause().await?;
    sandbox.pause().await?;
    sandbox.resume().await?;
    put(&sandbox, "twice", "x").await
}

async fn paused_it_can_be_destroyed(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    sandbox.pause().await?;
    sandbox.destroy().await?;
    if t.can(Capability::List) {
        ensure_eq!(state(t, &sandbox).await?, None, "the state of a sandbox that was destroyed while paused");
    }
    Ok(())
}

impl Contract for cap::Resize {
    const ASK: Ask =
        Ask::Call(|sandbox| Box::pin(sandbox.resize(Resources::new().with_cpu(0.5).with_memory(256 << 20))));
    const CASES: &'static [Case] = cases![fewer_cpus_give_less, what_is_no_number_is_refused];
}

async fn fewer_cpus_give_less(t: &Bench) -> Check {
    t.needs(&[Capability::Cpu])?;
    t.needs_processes()?;
    let sandbox = t.create(t.spec().cpu(1.0)).await?;
    let free = busy(&sandbox).await?;
    if free < 0.6 {
        return Err(Fault::ignored(format!("this machine is too busy: a free loop gets {free} of 1 s")));
    }
    sandbox.resize(Resources::new().with_cpu(0.2)).await?;
    if t.flags().resize_applies == ResizeApplies::AtRestart {
        t.needs(&[Capability::Stop])?;
        sandbox.stop().await?;
        sandbox.start().await?;
    }
    let bound = busy(&sandbox).await?;
    ensure!(bound < 0.4, "resized to 0.2 CPUs a loop gets {bound} of 1 s");
    Ok(())
}

async fn what_is_no_number_is_refused(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    for cpus in [0.0, -1.0, f64::NAN] {
        fails(sandbox.resize(Resources::new().with_cpu(cpus)).await, &[ErrorKind::InvalidArgument])?;
    }
    fails(sandbox.resize(Resources::new().with_memory(0)).await, &[ErrorKind::InvalidArgument])?;
    if t.can(Capability::Run) {
        sh(&sandbox, "true").await?;
    }
    Ok(())
}
