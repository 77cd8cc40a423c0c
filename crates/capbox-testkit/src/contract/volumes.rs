//! Volumes: made, mounted, and what holds of a part of one.

use capbox_core::api::{AnySandbox, Volumes};
use capbox_core::capability::{Capability, cap};
use capbox_core::error::{Error, ErrorKind};
use capbox_core::spec::{ReadOnlyVolumes, SubPaths, VolumeMount};

use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, get, mark, put, run, sh};
use crate::check::{Check, Fault, fails};
use crate::oracle::caused;
use crate::{ensure, ensure_eq};

fn volumes(t: &Bench) -> Check<Volumes> {
    t.client().volumes().ok_or_else(|| Fault::ignored("needs `volumes.manage`"))
}

/// A volume that no other trial uses.
async fn volume(t: &Bench) -> Check<String> {
    let name = format!("contract-{}", mark().replace('.', "-"));
    Ok(volumes(t)?.create(&name).await?.id)
}

async fn with(t: &Bench, mount: VolumeMount) -> Check<AnySandbox> {
    Ok(t.create(t.spec().volumes(mount)).await?)
}

/// Destroy the sandboxes and delete the volume.
async fn tidy(t: &Bench, id: &str, sandboxes: &[AnySandbox]) -> Check {
    for sandbox in sandboxes {
        sandbox.destroy().await?;
    }
    Ok(volumes(t)?.delete(id).await?)
}

impl Contract for cap::VolumesManage {
    const ASK: Ask = Ask::Client(|client| {
        Box::pin(async {
            match client.volumes() {
                Some(volumes) => volumes.list().await.map(drop),
                None => Err(client.require(Capability::VolumesManage).err().map_or_else(
                    || Error::new(ErrorKind::Provider, "`volumes` is `None` although the row is there"),
                    Error::from,
                )),
            }
        })
    });
    const CASES: &'static [Case] = cases![
        made_listed_and_deleted,
        a_name_is_taken_once,
        names_that_are_paths_are_refused,
        a_mounted_volume_is_not_deleted,
    ];
}

async fn made_listed_and_deleted(t: &Bench) -> Check {
    let id = volume(t).await?;
    let listed = |list: Vec<capbox_core::api::VolumeInfo>| list.into_iter().any(|info| info.id == id);
    ensure!(listed(volumes(t)?.list().await?), "a volume that was made is not listed");
    volumes(t)?.delete(&id).await?;
    ensure!(!listed(volumes(t)?.list().await?), "a volume that was deleted is listed");
    fails(volumes(t)?.delete(&id).await, &[ErrorKind::NotFound])?;
    Ok(())
}

async fn a_name_is_taken_once(t: &Bench) -> Check {
    let id = volume(t).await?;
    fails(volumes(t)?.create(&id).await, &[ErrorKind::AlreadyExists])?;
    tidy(t, &id, &[]).await
}

async fn names_that_are_paths_are_refused(t: &Bench) -> Check {
    for name in ["", ".", "..", "/etc", "../x", "a/b", "a b", "-a", "a\0b", &"a".repeat(200)] {
        let create = async {
            volumes(t).map_err(|_| Error::new(ErrorKind::Provider, "gone"))?.create(name).await.map(drop)
        };
        let (result, traces) = caused(t.oracle(), create).await;
        fails(result, &[ErrorKind::InvalidArgument])?;
        ensure!(traces.is_empty(), "the name {name:?} is refused, but something happened: {traces:?}");
        fails(volumes(t)?.delete(name).await, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}

async fn a_mounted_volume_is_not_deleted(t: &Bench) -> Check {
    t.needs(&[Capability::Volumes])?;
    let id = volume(t).await?;
    let sandbox = with(t, VolumeMount::new(&id, "/volume")).await?;
    put(&sandbox, "/volume/kept", "x").await?;
    fails(volumes(t)?.delete(&id).await, &[ErrorKind::Conflict])?;
    ensure_eq!(get(&sandbox, "/volume/kept").await?.as_deref(), Some("x"), "a file of the volume");
    tidy(t, &id, &[sandbox]).await
}

impl Contract for cap::Volumes {
    const ASK: Ask = Ask::Create(|spec, _| Ok(spec.volumes(VolumeMount::new("contract-refused", "/volume"))));
    const CASES: &'static [Case] = cases![
        it_outlives_sandboxes,
        two_sandboxes_share_it,
        an_unknown_volume_leaves_nothing,
        targets_that_are_none_are_refused,
    ];
}

async fn it_outlives_sandboxes(t: &Bench) -> Check {
    let id = volume(t).await?;
    let first = with(t, VolumeMount::new(&id, "/volume")).await?;
    put(&first, "/volume/kept", "x").await?;
    if t.can(Capability::Run) {
        sh(&first, "echo run > /volume/written").await?;
    }
    first.destroy().await?;
    let second = with(t, VolumeMount::new(&id, "/elsewhere")).await?;
    ensure_eq!(get(&second, "/elsewhere/kept").await?.as_deref(), Some("x"), "a file of the sandbox before");
    if t.can(Capability::Run) {
        ensure_eq!(
            sh(&second, "cat /elsewhere/written").await?,
            "run\n",
            "a file that a command wrote before"
        );
    }
    tidy(t, &id, &[second]).await
}

async fn two_sandboxes_share_it(t: &Bench) -> Check {
    let id = volume(t).await?;
    let one = with(t, VolumeMount::new(&id, "/volume")).await?;
    let two = with(t, VolumeMount::new(&id, "/volume")).await?;
    put(&one, "/volume/shared", "x").await?;
    ensure_eq!(get(&two, "/volume/shared").await?.as_deref(), Some("x"), "a file of the other sandbox");
    tidy(t, &id, &[one, two]).await
}

async fn an_unknown_volume_leaves_nothing(t: &Bench) -> Check {
    let spec = t.spec().volumes(VolumeMount::new("contract-no-such-volume", "/volume"));
    let create = async { t.create(spec).await.map(drop) };
    let (result, traces) = caused(t.oracle(), create).await;
    fails(result, &[ErrorKind::NotFound])?;
    let left: Vec<_> = traces.iter().filter(|trace| !trace.starts_with("new: request ")).collect();
    ensure!(left.is_empty(), "a create that failed leaves something: {left:?}");
    Ok(())
}

async fn targets_that_are_none_are_refused(t: &Bench) -> Check {
    for target in ["volume", "/", "/a/../..", ""] {
        let spec = t.spec().volumes(VolumeMount::new("contract-refused", target));
        fails(t.create(spec).await, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}

impl Contract for cap::VolumeSubPath {
    const ASK: Ask = Ask::Create(|spec, t| {
        let mount = VolumeMount::new("contract-refused", "/volume").with_sub_path("tenant");
        Ok(if t.can(Capability::Volumes) { spec.volumes(mount) } else { spec.volume_sub_paths(SubPaths) })
    });
    const CASES: &'static [Case] = cases![
        a_tenant_sees_its_own_folder_only,
        b99_links_do_not_lead_to_another_tenant,
        folders_above_are_refused
    ];
}

async fn a_tenant_sees_its_own_folder_only(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let id = volume(t).await?;
    let one = with(t, VolumeMount::new(&id, "/volume").with_sub_path("tenants/one")).await?;
    let two = with(t, VolumeMount::new(&id, "/volume").with_sub_path("tenants/two")).await?;
    put(&one, "/volume/secret", "of one").await?;
    for text in
        ["cat /volume/secret", "cat /volume/../one/secret /volume/../tenants/one/secret", "ls -R /volume"]
    {
        let output = run(&two, text).await?;
        ensure!(!output.stdout.text().contains("of one"), "`{text}` shows another tenant's file");
        ensure!(!output.stdout.text().contains("secret"), "`{text}` shows another tenant's folder");
    }
    let all = with(t, VolumeMount::new(&id, "/volume")).await?;
    let seen = get(&all, "/volume/tenants/one/secret").await?;
    ensure_eq!(seen.as_deref(), Some("of one"), "the file in the whole volume");
    tidy(t, &id, &[one, two, all]).await
}

async fn b99_links_do_not_lead_to_another_tenant(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let id = volume(t).await?;
    let all = with(t, VolumeMount::new(&id, "/volume")).await?;
    sh(&all, "mkdir -p /volume/one; echo secret > /volume/one/file; ln -s one /volume/link; ln -s /etc /volume/etc").await?;
    for folder in ["link", "etc"] {
        match t.create(t.spec().volumes(VolumeMount::new(&id, "/volume").with_sub_path(folder))).await {
            Err(_) => {}
            Ok(sandbox) => {
                let output = run(&sandbox, "ls -A /volume").await?;
                let inside = output.stdout.text().into_owned();
                ensure!(!inside.contains("passwd"), "a link in a volume leads to the host's `/etc`");
                ensure!(!inside.contains("file"), "a link in a volume leads to another tenant's folder");
                sandbox.destroy().await?;
            }
        }
    }
    tidy(t, &id, &[all]).await
}

async fn folders_above_are_refused(t: &Bench) -> Check {
    for folder in ["..", "a/../..", "/etc", ""] {
        let spec = t.spec().volumes(VolumeMount::new("contract-refused", "/volume").with_sub_path(folder));
        let (result, traces) = caused(t.oracle(), async { t.create(spec).await.map(drop) }).await;
        fails(result, &[ErrorKind::InvalidArgument])?;
        ensure!(traces.is_empty(), "the folder `{folder}` is refused, but something happened: {traces:?}");
    }
    Ok(())
}

impl Contract for cap::VolumeReadOnly {
    const ASK: Ask = Ask::Create(|spec, t| {
        let mount = VolumeMount::new("contract-refused", "/volume").with_read_only();
        Ok(if t.can(Capability::Volumes) {
            spec.volumes(mount)
        } else {
            spec.volumes_read_only(ReadOnlyVolumes)
        })
    });
    const CASES: &'static [Case] = cases![it_is_read_and_never_written];
}

async fn it_is_read_and_never_written(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let id = volume(t).await?;
    let writer = with(t, VolumeMount::new(&id, "/volume")).await?;
    put(&writer, "/volume/kept", "x").await?;
    let reader = with(t, VolumeMount::new(&id, "/volume").with_read_only()).await?;
    ensure_eq!(get(&reader, "/volume/kept").await?.as_deref(), Some("x"), "a file of a read-only volume");
    for text in [
        "echo y > /volume/kept",
        "echo y > /volume/new",
        "rm -f /volume/kept",
        "mv /volume/kept /volume/moved",
        "mount -o remount,rw /volume && echo y > /volume/new",
    ] {
        run(&reader, text).await?;
        ensure_eq!(
            sh(&writer, "ls /volume; cat /volume/kept").await?,
            "kept\nx",
            "the volume after `{text}`"
        );
    }
    if let Some(files) = reader.files() {
        files.write("/volume/new", "y").await.ok();
        ensure_eq!(get(&writer, "/volume/new").await?, None, "a file written by `files.write`");
    }
    tidy(t, &id, &[writer, reader]).await
}
