//! What every provider has, whatever its rows: create, destroy, lease, detach, reap; and a sound table.

use std::time::{Duration, Instant};

use capbox_core::api::AnySandbox;
use capbox_core::capability::flags::{Isolation, PreviewModel};
use capbox_core::capability::{Capability, Level};
use capbox_core::error::ErrorKind;

use super::{Case, cases};
use crate::bench::{Bench, gone_from_host, mark, sh, starts};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

/// Trials beside the rows, by name.
pub(crate) const BASE: &[(&str, &[Case])] = &[
    ("table", cases![reasons_are_given, limits_belong_to_filled_rows, flags_and_rows_agree]),
    ("destroy", cases![destroyed_is_gone, b203_destroying_twice_is_no_error]),
    ("lease", cases![dropped_is_gone, a_clone_keeps_it, detached_it_stays]),
    ("cancel", cases![a_cancelled_create_leaves_nothing]),
    ("reap", cases![the_living_are_left_alone]),
    ("probe", cases![probing_leaves_nothing]),
];

async fn reasons_are_given(t: &Bench) -> Check {
    let rows = t.client().capabilities().declared();
    ensure_eq!(rows.rows.len(), Capability::ALL.len(), "the number of rows");
    for row in rows.rows {
        let Some(problem) = wrong_note(row.level, row.note) else { continue };
        return Err(Fault::failed(format!("the note of `{}` {problem}: {:?}", row.capability, row.note)));
    }
    for (capability, _, reason) in t.client().capabilities().lowered().iter() {
        ensure!(!reason.is_empty(), "`{capability}` is taken out and no reason is given");
    }
    Ok(())
}

fn wrong_note(level: Level, note: &str) -> Option<&'static str> {
    if note.is_empty() {
        return (level != Level::Native).then_some("is missing");
    }
    if note.ends_with('.') {
        return Some("ends with a full stop");
    }
    (note.trim() != note).then_some("begins or ends with a blank")
}

async fn limits_belong_to_filled_rows(t: &Bench) -> Check {
    let rows = t.client().capabilities().declared();
    for limit in rows.limits {
        let capability = limit.capability;
        ensure!(rows.declared(capability).is_ok(), "`{capability}` has a limit and is not there");
        ensure!(limit.min <= limit.max, "`{capability}` has a limit that nothing meets");
        ensure!(!limit.unit.is_empty(), "the limit of `{capability}` has no unit");
    }
    for constraint in rows.constraints {
        let capability = constraint.capability;
        ensure!(rows.declared(capability).is_ok(), "`{capability}` has a constraint and is not there");
        ensure!(!constraint.reason.is_empty(), "the constraint of `{capability}` gives no reason");
    }
    Ok(())
}

async fn flags_and_rows_agree(t: &Bench) -> Check {
    let rows = t.client().capabilities().declared();
    let flags = &rows.flags;
    let has = |capability| rows.declared(capability).is_ok();
    if flags.isolation != Isolation::Unknown {
        let dated = flags
            .isolation_source
            .split(|c: char| !c.is_ascii_digit())
            .any(|word| word.len() == 4 && word.starts_with("20"));
        ensure!(dated, "the isolation `{}` has no dated source", flags.isolation);
    }
    if has(Capability::ExposePort) {
        ensure!(flags.preview_model != PreviewModel::None, "ports are exposed, and `preview_model` is none");
    }
    if has(Capability::Input) || has(Capability::Stdin) {
        ensure!(flags.stdin_eof, "there is input, and `stdin_eof` is false");
    }
    // What cannot be asked for without another row.
    for (row, needed) in [
        (Capability::EgressCidr, Capability::EgressControl),
        (Capability::EgressHost, Capability::EgressControl),
        (Capability::PtyResize, Capability::Pty),
        (Capability::OnTimeout, Capability::Ttl),
        (Capability::OnIdle, Capability::IdleTimeout),
    ] {
        ensure!(!has(row) || has(needed), "`{row}` is of no use without `{needed}`");
    }
    Ok(())
}

/// Fail unless the sandbox is gone: for the list, for those who connect, and, where its processes are this
/// machine's, from this machine.
async fn gone(t: &Bench, id: &str, mark: &str, grace: Duration) -> Check {
    let begin = Instant::now();
    loop {
        let listed = t.can(Capability::List) && t.client().list().await?.iter().any(|info| info.id == id);
        if !listed {
            break;
        }
        ensure!(begin.elapsed() < grace, "the sandbox is still listed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if t.can(Capability::Connect) {
        let connected = t.another_client()?.connect(id).await;
        fails(connected, &[ErrorKind::NotFound, ErrorKind::SandboxGone])?;
    }
    if t.flags().on_this_machine {
        let left = grace.saturating_sub(begin.elapsed());
        gone_from_host(&format!("sleep {mark}"), left).await?;
    }
    Ok(())
}

/// Start something that shows on this machine, where there is such a thing.
async fn occupy(t: &Bench, sandbox: &AnySandbox, mark: &str) -> Check {
    if t.can(Capability::Background) && t.inside().processes {
        sandbox.spawn(format!("sleep {mark}").as_str()).background().await?;
        starts(sandbox, mark).await?;
    }
    Ok(())
}

async fn destroyed_is_gone(t: &Bench) -> Check {
    let (sandbox, mark) = (t.create(t.spec()).await?, mark());
    occupy(t, &sandbox, &mark).await?;
    sandbox.destroy().await?;
    gone(t, sandbox.id(), &mark, Duration::ZERO).await
}

async fn b203_destroying_twice_is_no_error(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    sandbox.destroy().await?;
    sandbox.destroy().await?;
    Ok(())
}

/// How long a lease may outlive its owner: until the next renewal is missed, on other machines.
fn lease(t: &Bench) -> Duration {
    if t.flags().on_this_machine { Duration::from_secs(5) } else { Duration::from_secs(90) }
}

async fn dropped_is_gone(t: &Bench) -> Check {
    let (sandbox, mark) = (t.create(t.spec()).await?, mark());
    occupy(t, &sandbox, &mark).await?;
    let id = sandbox.id().to_owned();
    drop(sandbox);
    gone(t, &id, &mark, lease(t)).await
}

async fn a_clone_keeps_it(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.create(t.spec()).await?;
    let clone = sandbox.clone();
    drop(sandbox);
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure_eq!(sh(&clone, "echo alive").await?, "alive\n", "a sandbox of which one handle is left");
    Ok(())
}

async fn detached_it_stays(t: &Bench) -> Check {
    t.needs(&[Capability::Connect])?;
    let sandbox = t.create(t.spec()).await?;
    let id = sandbox.id().to_owned();
    sandbox.detach().await?;
    drop(sandbox);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let again = t.another_client()?.connect(&id).await?;
    if t.can(Capability::Run) {
        ensure_eq!(sh(&again, "echo alive").await?, "alive\n", "a detached sandbox without a handle");
    }
    if t.can(Capability::List) {
        let list = t.client().list().await?;
        let detached = list.iter().find(|info| info.id == id).map(|info| info.detached);
        ensure_eq!(detached, Some(true), "whether a detached sandbox is listed as detached");
    }
    again.destroy().await?;
    gone(t, &id, "none", Duration::ZERO).await
}

/// A create that is dropped half-way, at many moments.
async fn a_cancelled_create_leaves_nothing(t: &Bench) -> Check {
    t.needs(&[Capability::List])?;
    let begin = Instant::now();
    drop(t.create(t.spec()).await?);
    let whole = begin.elapsed().max(Duration::from_millis(1));
    for step in 0..12 {
        let create = t.create(t.spec());
        drop(tokio::time::timeout(whole * step / 10, create).await);
    }
    let begin = Instant::now();
    loop {
        let list = t.client().list().await?;
        if list.is_empty() {
            return Ok(());
        }
        ensure!(begin.elapsed() < lease(t), "cancelled creates leave sandboxes: {list:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn the_living_are_left_alone(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let (leased, detached) = (t.create(t.spec()).await?, t.create(t.spec()).await?);
    detached.detach().await?;
    for client in [t.client().clone(), t.another_client()?] {
        let reaped = client.reap().await?;
        for sandbox in [&leased, &detached] {
            ensure!(!reaped.iter().any(|id| id == sandbox.id()), "a living sandbox is reaped");
            ensure_eq!(sh(sandbox, "echo alive").await?, "alive\n", "a living sandbox after `reap`");
        }
    }
    detached.destroy().await?;
    Ok(())
}

async fn probing_leaves_nothing(t: &Bench) -> Check {
    let probed = t.client().probe().await?;
    for (capability, _, reason) in probed.iter() {
        ensure!(!reason.is_empty(), "the probe takes out `{capability}` and gives no reason");
    }
    if t.can(Capability::List) {
        let list = t.client().list().await?;
        ensure!(list.is_empty(), "the probe leaves sandboxes: {list:?}");
    }
    Ok(())
}
