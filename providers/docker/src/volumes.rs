//! Volumes of the engine.

use std::collections::HashMap;

use bollard::Docker as Api;
use bollard::models::{Mount as EngineMount, MountType, MountVolumeOptions, Volume, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptions};
use capbox_core::provider::*;

use crate::client::Docker;
use crate::engine::SUB_PATH_SINCE;
use crate::error::{from_engine, is_absent};
use crate::labels::{self, OURS};

#[async_trait]
impl VolumesManage for Docker {
    async fn create_volume(&self, name: &str) -> Result<VolumeInfo> {
        let api = self.engine.api().await?;
        // To an engine, making one that is there is no error.
        if find(api, name).await?.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("a volume `{name}` is there already")));
        }
        Ok(info(make(api, name, "volume").await?))
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let api = self.engine.api().await?;
        let filter = labels::filter([format!("{OURS}=volume")]);
        let options = ListVolumesOptionsBuilder::new().filters(&filter).build();
        let list =
            api.list_volumes(Some(options)).await.map_err(|error| from_engine(error, "the volumes"))?;
        Ok(list.volumes.unwrap_or_default().into_iter().map(info).collect())
    }

    async fn delete_volume(&self, id: &str) -> Result<()> {
        let api = self.engine.api().await?;
        match find(api, id).await? {
            None => Err(absent(id)),
            Some(volume) if volume.labels.get(OURS).is_none_or(|kind| kind != "volume") => {
                let message = format!("the volume `{id}` was not made by capbox");
                Err(Error::new(ErrorKind::PermissionDenied, message)
                    .with_hint(format!("delete it by hand: `docker volume rm {id}`")))
            }
            Some(_) => remove(api, id).await,
        }
    }
}

fn absent(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no volume `{name}`"))
        .with_hint("make it first: `capbox volume create`, or `client.volumes().create(…)`")
}

fn info(volume: Volume) -> VolumeInfo {
    let mut info = VolumeInfo::new(volume.name);
    info.created = volume.created_at.map(Into::into);
    info
}

pub(crate) async fn find(api: &Api, name: &str) -> Result<Option<Volume>> {
    match api.inspect_volume(name).await {
        Ok(volume) => Ok(Some(volume)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(from_engine(error, &format!("the volume `{name}`"))),
    }
}

/// Make the volume, or find the one that is there; `kind` says what it is for.
pub(crate) async fn make(api: &Api, name: &str, kind: &str) -> Result<Volume> {
    let request = VolumeCreateRequest {
        name: Some(name.to_owned()),
        labels: Some(HashMap::from([(OURS.to_owned(), kind.to_owned())])),
        ..VolumeCreateRequest::default()
    };
    api.create_volume(request).await.map_err(|error| from_engine(error, &format!("the volume `{name}`")))
}

pub(crate) async fn remove(api: &Api, name: &str) -> Result<()> {
    let call = api.remove_volume(name, None::<RemoveVolumeOptions>).await;
    call.map_err(|error| from_engine(error, &format!("the volume `{name}`")))
}

/// The mounts for create. An engine would make a volume that is not there.
pub(crate) async fn mounts(api: &Api, volumes: &VolumeMounts) -> Result<Vec<EngineMount>> {
    let mut mounts = Vec::new();
    for VolumeMount { volume, target, sub_path, read_only, .. } in &volumes.0 {
        if find(api, volume).await?.is_none() {
            return Err(absent(volume));
        }
        if sub_path.is_some() && api.client_version() < SUB_PATH_SINCE {
            return Err(Error::new(ErrorKind::NotSupported, "this engine cannot mount a folder of a volume")
                .with_hint("use Docker 26 or later, or a volume for each tenant"));
        }
        let options = MountVolumeOptions {
            no_copy: Some(true),
            subpath: sub_path.as_ref().map(ToString::to_string),
            ..MountVolumeOptions::default()
        };
        mounts.push(EngineMount {
            typ: Some(MountType::VOLUME),
            source: Some(volume.clone()),
            target: Some(target.to_string()),
            read_only: Some(*read_only),
            volume_options: Some(options),
            ..EngineMount::default()
        });
    }
    Ok(mounts)
}
