//! `snapshot.snapshot`, `snapshot.fork` and `source.from-snapshot`.

use capbox_core::api::{AnySandbox, SnapshotInfo};
use capbox_core::capability::{Capability, cap};
use capbox_core::error::{Error, ErrorKind};
use capbox_core::spec::{Env, Labels};

use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, get, put, sh};
use crate::check::{Check, Fault, fails};
use crate::oracle::caused;
use crate::{ensure, ensure_eq};

impl Contract for cap::Snapshot {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async {
            match sandbox.snapshots() {
                Some(snapshots) => snapshots.create(None).await.map(drop),
                None => Err(sandbox.require(Capability::Snapshot).err().map_or_else(
                    || Error::new(ErrorKind::Provider, "`snapshots` is `None` although the row is there"),
                    Error::from,
                )),
            }
        })
    });
    const CASES: &'static [Case] = cases![
        it_keeps_the_disk_of_that_moment,
        it_outlives_its_sandbox,
        b107_links_are_kept_as_links,
        one_snapshot_makes_many,
    ];
}

async fn snap(sandbox: &AnySandbox, name: Option<&str>) -> Check<SnapshotInfo> {
    let snapshots = sandbox.snapshots().ok_or_else(|| Fault::ignored("needs `snapshot.snapshot`"))?;
    Ok(snapshots.create(name).await?)
}

/// Tidy up, where that can be done.
async fn delete(sandbox: &AnySandbox, id: &str) -> Check {
    let client = sandbox.client();
    if client.can(Capability::SnapshotDelete) { Ok(client.delete_snapshot(id).await?) } else { Ok(()) }
}

async fn restored(t: &Bench, snapshot: &SnapshotInfo) -> Check<AnySandbox> {
    Ok(t.create(t.spec().from_snapshot(snapshot.id.as_str())).await?)
}

async fn it_keeps_the_disk_of_that_moment(t: &Bench) -> Check {
    t.needs(&[Capability::FromSnapshot])?;
    let sandbox = t.sandbox().await?;
    put(&sandbox, "kept", "before").await?;
    let snapshot = snap(&sandbox, None).await?;
    put(&sandbox, "kept", "after").await?;
    put(&sandbox, "later", "x").await?;
    let copy = restored(t, &snapshot).await?;
    ensure!(copy.id() != sandbox.id(), "the restored sandbox is the source itself");
    ensure_eq!(get(&copy, "kept").await?.as_deref(), Some("before"), "a file as it was then");
    ensure_eq!(get(&copy, "later").await?, None, "a file that was made later");
    put(&copy, "kept", "in the copy").await?;
    ensure_eq!(get(&sandbox, "kept").await?.as_deref(), Some("after"), "the source after the copy changed");
    delete(&sandbox, &snapshot.id).await
}

async fn it_outlives_its_sandbox(t: &Bench) -> Check {
    t.needs(&[Capability::FromSnapshot])?;
    let sandbox = t.create(t.spec()).await?;
    put(&sandbox, "kept", "x").await?;
    let snapshot = snap(&sandbox, Some("outlives")).await?;
    sandbox.destroy().await?;
    drop(sandbox);
    let copy = restored(t, &snapshot).await?;
    ensure_eq!(get(&copy, "kept").await?.as_deref(), Some("x"), "a file of a sandbox that is gone");
    delete(&copy, &snapshot.id).await
}

async fn b107_links_are_kept_as_links(t: &Bench) -> Check {
    t.needs(&[Capability::FromSnapshot, Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkdir d; echo x > d/f; ln -s d/f in; ln -s /usr/bin/env out; ln -s no/where lost").await?;
    let snapshot = snap(&sandbox, None).await?;
    let copy = restored(t, &snapshot).await?;
    let links = sh(&copy, "readlink in out lost; cat in").await?;
    ensure_eq!(links, "d/f\n/usr/bin/env\nno/where\nx\n", "the links in the restored sandbox");
    delete(&sandbox, &snapshot.id).await
}

async fn one_snapshot_makes_many(t: &Bench) -> Check {
    t.needs(&[Capability::FromSnapshot])?;
    let sandbox = t.sandbox().await?;
    put(&sandbox, "many", "0").await?;
    let snapshot = snap(&sandbox, None).await?;
    let (one, two) = (restored(t, &snapshot).await?, restored(t, &snapshot).await?);
    put(&one, "many", "1").await?;
    ensure_eq!(get(&two, "many").await?.as_deref(), Some("0"), "the second copy after the first changed");
    delete(&sandbox, &snapshot.id).await
}

impl Contract for cap::SnapshotDelete {
    const ASK: Ask = Ask::Client(|client| Box::pin(client.delete_snapshot("refused")));
    const CASES: &'static [Case] = cases![deleted_it_is_not_found, what_came_of_it_goes_on];
}

async fn deleted_it_is_not_found(t: &Bench) -> Check {
    t.needs(&[Capability::Snapshot])?;
    let sandbox = t.sandbox().await?;
    let snapshot = snap(&sandbox, None).await?;
    t.another_client()?.delete_snapshot(&snapshot.id).await?;
    fails(t.client().delete_snapshot(&snapshot.id).await, &[ErrorKind::NotFound])?;
    fails(t.client().delete_snapshot("no-such-snapshot").await, &[ErrorKind::NotFound])?;
    fails(t.client().delete_snapshot("").await, &[ErrorKind::InvalidArgument])?;
    if t.can(Capability::FromSnapshot) {
        let spec = t.spec().from_snapshot(snapshot.id.as_str());
        fails(t.create(spec).await, &[ErrorKind::NotFound])?;
    }
    Ok(())
}

async fn what_came_of_it_goes_on(t: &Bench) -> Check {
    t.needs(&[Capability::Snapshot, Capability::FromSnapshot])?;
    let sandbox = t.sandbox().await?;
    put(&sandbox, "kept", "x").await?;
    let snapshot = snap(&sandbox, None).await?;
    let copy = restored(t, &snapshot).await?;
    t.client().delete_snapshot(&snapshot.id).await?;
    ensure_eq!(get(&copy, "kept").await?.as_deref(), Some("x"), "a file of a copy whose snapshot is deleted");
    Ok(())
}

impl Contract for cap::FromSnapshot {
    const ASK: Ask = Ask::Create(|spec, _| Ok(spec.from_snapshot("refused")));
    const CASES: &'static [Case] =
        cases![settings_come_along, b148_an_unknown_snapshot_leaves_nothing, a_snapshot_of_a_copy_works_too];
}

async fn settings_come_along(t: &Bench) -> Check {
    t.needs(&[Capability::Snapshot, Capability::Run])?;
    let mut spec = t.spec();
    if t.can(Capability::Env) {
        // B144: an equals sign in the value.
        spec = spec.env(Env::from([("Q", "cuda>=9.1")]));
    }
    if t.can(Capability::Labels) {
        spec = spec.labels(Labels::from([("from", "snapshot")]));
    }
    let sandbox = t.create(spec).await?;
    let snapshot = snap(&sandbox, None).await?;
    let copy = restored(t, &snapshot).await?;
    let source = sh(&sandbox, "echo \"$Q\"").await?;
    ensure_eq!(sh(&copy, "echo \"$Q\"").await?, source, "b144: the env of the restored sandbox");
    if t.can(Capability::Labels) && t.can(Capability::List) {
        let list = t.client().list_with(&Labels::from([("from", "snapshot")])).await?;
        let listed = list.iter().any(|info| info.id == copy.id());
        ensure!(listed, "the labels of the source are not those of the restored sandbox");
    }
    delete(&sandbox, &snapshot.id).await
}

async fn b148_an_unknown_snapshot_leaves_nothing(t: &Bench) -> Check {
    let spec = t.spec().from_snapshot("no-such-snapshot");
    let create = async { t.create(spec).await.map(drop) };
    let (result, traces) = caused(t.oracle(), create).await;
    fails(result, &[ErrorKind::NotFound])?;
    // Asking is a request of its own.
    let left: Vec<_> = traces.iter().filter(|trace| !trace.starts_with("new: request ")).collect();
    ensure!(left.is_empty(), "a create that failed leaves something: {left:?}");
    Ok(())
}

async fn a_snapshot_of_a_copy_works_too(t: &Bench) -> Check {
    t.needs(&[Capability::Snapshot])?;
    let sandbox = t.sandbox().await?;
    put(&sandbox, "one", "1").await?;
    let first = snap(&sandbox, None).await?;
    let copy = restored(t, &first).await?;
    put(&copy, "two", "2").await?;
    let second = snap(&copy, None).await?;
    delete(&sandbox, &first.id).await?;
    let copy_of_copy = restored(t, &second).await?;
    ensure_eq!(get(&copy_of_copy, "one").await?.as_deref(), Some("1"), "a file of the first");
    ensure_eq!(get(&copy_of_copy, "two").await?.as_deref(), Some("2"), "a file of the second");
    delete(&copy, &second.id).await
}

impl Contract for cap::Fork {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(async { sandbox.fork(1).await.map(drop) }));
    const CASES: &'static [Case] = cases![forks_are_independent, forks_of_none_are_refused];
}

async fn forks_are_independent(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    put(&sandbox, "forked", "before").await?;
    if t.flags().fork_source == capbox_core::capability::flags::ForkSource::LastSnapshot {
        t.needs(&[Capability::Snapshot])?;
        snap(&sandbox, None).await?;
    }
    let forks = sandbox.fork(3).await?;
    ensure_eq!(forks.len(), 3, "the number of forks");
    let forks: Vec<AnySandbox> = forks.into_iter().collect::<Result<_, _>>()?;
    let mut ids: Vec<&str> = forks.iter().map(AnySandbox::id).chain([sandbox.id()]).collect();
    ids.sort_unstable();
    ids.dedup();
    ensure_eq!(ids.len(), 4, "the number of distinct ids");
    for (i, fork) in forks.iter().enumerate() {
        ensure_eq!(get(fork, "forked").await?.as_deref(), Some("before"), "a file in fork {i}");
        put(fork, "forked", &format!("fork {i}")).await?;
    }
    put(&sandbox, "forked", "source").await?;
    for (i, fork) in forks.iter().enumerate() {
        let expected = format!("fork {i}");
        ensure_eq!(get(fork, "forked").await?, Some(expected), "the file of fork {i}");
    }
    sandbox.destroy().await?;
    if t.can(Capability::Run) {
        ensure_eq!(sh(&forks[0], "echo alive").await?, "alive\n", "a fork after its source is gone");
    }
    Ok(())
}

async fn forks_of_none_are_refused(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    fails(sandbox.fork(0).await.map(drop), &[ErrorKind::InvalidArgument])?;
    Ok(())
}
