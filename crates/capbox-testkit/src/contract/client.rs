//! The rows of the client.

use capbox_core::api::SandboxState;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::Image;

use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, get, put};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

impl Contract for cap::List {
    const ASK: Ask = Ask::Client(|client| Box::pin(async { client.list().await.map(drop) }));
    const CASES: &'static [Case] = cases![
        it_shows_what_lives_and_nothing_else,
        another_client_sees_the_same,
        a_list_that_fails_is_no_empty_list,
    ];
}

async fn ids(t: &Bench) -> Check<Vec<String>> {
    Ok(t.client().list().await?.into_iter().map(|info| info.id).collect())
}

async fn it_shows_what_lives_and_nothing_else(t: &Bench) -> Check {
    let (one, two) = (t.create(t.spec()).await?, t.create(t.spec()).await?);
    ensure!(one.id() != two.id(), "two sandboxes have the id `{}`", one.id());
    let list = t.client().list().await?;
    for sandbox in [&one, &two] {
        let Some(info) = list.iter().find(|info| info.id == sandbox.id()) else {
            return Err(Fault::failed(format!("`{}` lives and is not listed", sandbox.id())));
        };
        ensure_eq!(info.state, SandboxState::Running, "the state of a sandbox that runs");
        ensure!(!info.detached, "a leased sandbox is listed as detached");
    }
    one.destroy().await?;
    let left = ids(t).await?;
    ensure!(!left.contains(&one.id().to_owned()), "a destroyed sandbox is listed");
    ensure!(left.contains(&two.id().to_owned()), "its neighbour is not listed any more");
    Ok(())
}

async fn another_client_sees_the_same(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let list = t.another_client()?.list().await?;
    ensure!(
        list.iter().any(|info| info.id == sandbox.id()),
        "another client does not list `{}`",
        sandbox.id()
    );
    Ok(())
}

async fn a_list_that_fails_is_no_empty_list(t: &Bench) -> Check {
    let _sandbox = t.sandbox().await?;
    t.break_provider()?;
    match t.client().list().await {
        Err(_) => Ok(()),
        Ok(list) => Err(Fault::failed(format!(
            "the provider cannot be reached, and the list shows {} sandboxes instead of an error",
            list.len()
        ))),
    }
}

impl Contract for cap::Connect {
    const ASK: Ask = Ask::Client(|client| Box::pin(async { client.connect("refused").await.map(drop) }));
    const CASES: &'static [Case] = cases![
        it_is_the_same_sandbox,
        leaving_leaves_it_as_it_is,
        unknown_ids_are_not_found,
        b203_what_is_gone_is_gone_for_everybody,
    ];
}

async fn it_is_the_same_sandbox(t: &Bench) -> Check {
    let here = t.sandbox().await?;
    put(&here, "connected", "by one").await?;
    let there = t.another_client()?.connect(here.id()).await?;
    ensure_eq!(there.id(), here.id(), "the id of the connected sandbox");
    ensure_eq!(get(&there, "connected").await?.as_deref(), Some("by one"), "a file, from the other client");
    put(&there, "connected", "by two").await?;
    ensure_eq!(get(&here, "connected").await?.as_deref(), Some("by two"), "the same file, changed there");
    Ok(())
}

async fn leaving_leaves_it_as_it_is(t: &Bench) -> Check {
    let here = t.sandbox().await?;
    put(&here, "left", "x").await?;
    for _ in 0..3 {
        let client = t.another_client()?;
        drop(client.connect(here.id()).await?);
        drop(client);
    }
    ensure_eq!(get(&here, "left").await?.as_deref(), Some("x"), "a file after others connected and left");
    Ok(())
}

async fn unknown_ids_are_not_found(t: &Bench) -> Check {
    for id in ["no-such-sandbox", "../x", "a b", "☕", "-rf"] {
        fails(t.client().connect(id).await, &[ErrorKind::NotFound, ErrorKind::InvalidArgument])?;
    }
    fails(t.client().connect("no-such-sandbox").await, &[ErrorKind::NotFound])?;
    fails(t.client().connect("").await, &[ErrorKind::InvalidArgument])?;
    ensure!(
        !t.client().destroy("no-such-sandbox").await?,
        "a sandbox that never was is said to be destroyed"
    );
    Ok(())
}

async fn b203_what_is_gone_is_gone_for_everybody(t: &Bench) -> Check {
    let here = t.create(t.spec()).await?;
    let there = t.another_client()?.connect(here.id()).await?;
    ensure!(t.another_client()?.destroy(here.id()).await?, "a living sandbox is said to be gone");
    let gone = [ErrorKind::SandboxGone, ErrorKind::NotFound];
    fails(t.client().connect(here.id()).await, &gone)?;
    ensure!(!t.client().destroy(here.id()).await?, "a sandbox is destroyed twice");
    for sandbox in [&here, &there] {
        sandbox.destroy().await?;
        if t.can(Capability::Run) {
            fails(sandbox.exec("true").await, &gone)?;
        }
        if let Some(files) = sandbox.files() {
            fails(files.read("/etc/hostname").await, &gone)?;
        }
    }
    Ok(())
}

impl Contract for cap::SnapshotList {
    const ASK: Ask = Ask::Client(|client| Box::pin(async { client.snapshots().await.map(drop) }));
    const CASES: &'static [Case] = cases![it_shows_the_snapshots_that_exist];
}

async fn it_shows_the_snapshots_that_exist(t: &Bench) -> Check {
    t.needs(&[Capability::Snapshot])?;
    let sandbox = t.sandbox().await?;
    let snapshots = sandbox.snapshots().ok_or_else(|| Fault::ignored("needs `snapshot.snapshot`"))?;
    let one = snapshots.create(Some("one")).await?;
    let two = snapshots.create(None).await?;
    let listed = t.another_client()?.snapshots().await?;
    let named = listed.iter().find(|info| info.id == one.id);
    ensure_eq!(named.and_then(|info| info.name.as_deref()), Some("one"), "the name of a snapshot");
    ensure!(listed.iter().any(|info| info.id == two.id), "a snapshot without a name is not listed");
    t.needs(&[Capability::SnapshotDelete])?;
    t.client().delete_snapshot(&one.id).await?;
    let listed = t.client().snapshots().await?;
    ensure!(listed.iter().all(|info| info.id != one.id), "a deleted snapshot is listed");
    ensure!(listed.iter().any(|info| info.id == two.id), "another snapshot is not listed any more");
    t.client().delete_snapshot(&two.id).await?;
    Ok(())
}

impl Contract for cap::PrepareImage {
    const ASK: Ask = Ask::Client(|client| {
        Box::pin(async {
            let image = Image::Name("contract.example/refused:1".to_owned());
            client.prepare_image(image, |_| {}).await.map(drop)
        })
    });
    const CASES: &'static [Case] = cases![
        a_prepared_image_is_what_is_created_from,
        an_archive_is_loaded,
        a_context_is_built_and_its_log_is_seen,
        a_build_that_fails_says_where,
        an_unknown_image_is_not_found,
    ];
}

async fn prepared(t: &Bench, image: Image) -> Check<Vec<String>> {
    let mut log = Vec::new();
    let ready = t.client().prepare_image(image, |progress| log.push(progress.text)).await?;
    let sandbox = t.create(t.spec().image(ready)).await?;
    put(&sandbox, "prepared", "x").await?;
    Ok(log)
}

async fn a_prepared_image_is_what_is_created_from(t: &Bench) -> Check {
    t.needs(&[Capability::ImageName])?;
    prepared(t, Image::Name(t.sample(Capability::ImageName)?.value.clone())).await.map(drop)
}

async fn an_archive_is_loaded(t: &Bench) -> Check {
    t.needs(&[Capability::ImageArchive])?;
    let archive = &t.sample(Capability::ImageArchive)?.value;
    prepared(t, Image::Archive(archive.into())).await?;
    let missing = t.client().prepare_image(Image::Archive("/no/such/archive.tar".into()), |_| {}).await;
    fails(missing, &[ErrorKind::NotFound])?;
    let folder = tempfile::tempdir()?;
    let broken = folder.path().join("broken.tar");
    std::fs::write(&broken, "this is no archive")?;
    let broken = t.client().prepare_image(Image::Archive(broken), |_| {}).await;
    fails(broken, &[ErrorKind::InvalidArgument, ErrorKind::Provider])?;
    Ok(())
}

async fn a_context_is_built_and_its_log_is_seen(t: &Bench) -> Check {
    t.needs(&[Capability::ImageContext])?;
    let context = &t.sample(Capability::ImageContext)?.value;
    let log = prepared(t, Image::Context(context.into())).await?;
    ensure!(!log.is_empty(), "a build shows no log");
    Ok(())
}

async fn a_build_that_fails_says_where(t: &Bench) -> Check {
    t.needs(&[Capability::ImageContext, Capability::ImageName])?;
    let folder = tempfile::tempdir()?;
    let base = &t.sample(Capability::ImageName)?.value;
    std::fs::write(
        folder.path().join("Dockerfile"),
        format!("FROM {base}\nRUN echo canary-of-the-build && exit 7\n"),
    )?;
    let mut log = String::new();
    let build = t.client().prepare_image(Image::Context(folder.path().to_owned()), |progress| {
        log.push_str(&progress.text);
        log.push('\n');
    });
    let error = fails(build.await, &[ErrorKind::InvalidArgument])?;
    ensure!(log.contains("canary-of-the-build"), "the log of a failed build is lost: {log}");
    ensure!(error.to_string().contains('7'), "the error does not say how the step failed: {error}");
    Ok(())
}

async fn an_unknown_image_is_not_found(t: &Bench) -> Check {
    t.needs(&[Capability::ImageName])?;
    let image = Image::Name("contract.invalid/no-such-image:1".to_owned());
    fails(t.client().prepare_image(image, |_| {}).await, &[ErrorKind::NotFound])?;
    Ok(())
}
