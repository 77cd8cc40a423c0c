//! Snapshots: images that a container is committed to.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bollard::Docker as Api;
use bollard::models::{ContainerConfig, ImageSummary};
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptionsBuilder,
};
use capbox_core::provider::*;

use crate::client::Docker;
use crate::create::Original;
use crate::error::{from_engine, is_absent};
use crate::labels::{self, OURS, SNAPSHOT};
use crate::session::Session;

/// The repository of all snapshots; the tag is the id.
const REPOSITORY: &str = "capbox-snapshot";

/// The image of a snapshot.
pub(crate) fn image(id: &str) -> String {
    format!("{REPOSITORY}:{id}")
}

/// The snapshot of that id is not there; an id that is no tag is none either.
pub(crate) fn absent(id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot `{id}`"))
        .with_hint("list those that there are: `capbox snapshot ls`")
}

/// True for what can be the id of a snapshot.
pub(crate) fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[async_trait]
impl Snapshot for Session {
    async fn create(&self, name: Option<&str>) -> Result<SnapshotInfo> {
        let api = self.engine.api().await?;
        let facts = self.inspect().await?;
        let mut config = facts.config.unwrap_or_default();
        let ours = config.labels.take().unwrap_or_default();
        // As the image was, before capbox put its own program first.
        let Original { user, entrypoint, cmd } = Original::of(&ours);
        let mut kept: HashMap<_, _> = labels::of_caller(&labels::caller(&ours)).collect();
        kept.insert(SNAPSHOT.to_owned(), name.unwrap_or_default().to_owned());
        let config = ContainerConfig {
            user: Some(user),
            entrypoint,
            cmd,
            env: config.env,
            working_dir: config.working_dir,
            exposed_ports: config.exposed_ports,
            labels: Some(kept),
            ..ContainerConfig::default()
        };
        let id = labels::new_id()?;
        let options = CommitContainerOptionsBuilder::new()
            .container(&self.container)
            .repo(REPOSITORY)
            .tag(&id)
            .pause(true)
            .build();
        api.commit_container(options, config).await.map_err(|error| self.failed(error))?;
        let mut info = SnapshotInfo::new(id);
        info.name = name.map(str::to_owned);
        info.created = Some(SystemTime::now());
        Ok(info)
    }
}

#[async_trait]
impl SnapshotDelete for Docker {
    async fn delete_snapshot(&self, id: &str) -> Result<()> {
        if !is_id(id) {
            return Err(absent(id));
        }
        let api = self.engine.api().await?;
        let options = RemoveImageOptionsBuilder::new().force(true).build();
        match api.remove_image(&image(id), Some(options), None).await {
            Ok(_) => Ok(()),
            Err(error) if is_absent(&error) => Err(absent(id)),
            Err(error) => Err(from_engine(error, &format!("the snapshot `{id}`"))),
        }
    }
}

#[async_trait]
impl SnapshotList for Docker {
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let images = list(self.engine.api().await?, SNAPSHOT.to_owned()).await?;
        Ok(images.iter().filter_map(info).collect())
    }
}

fn info(image: &ImageSummary) -> Option<SnapshotInfo> {
    let id = image.repo_tags.iter().find_map(|tag| tag.strip_prefix(REPOSITORY)?.strip_prefix(':'))?;
    let mut info = SnapshotInfo::new(id);
    info.name = image.labels.get(SNAPSHOT).filter(|name| !name.is_empty()).cloned();
    let since = u64::try_from(image.created).ok().map(Duration::from_secs);
    info.created = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    Some(info)
}

async fn list(api: &Api, label: String) -> Result<Vec<ImageSummary>> {
    let options = ListImagesOptionsBuilder::new().filters(&labels::filter([label])).build();
    api.list_images(Some(options)).await.map_err(|error| from_engine(error, "the images"))
}

/// Remove the images of deleted snapshots and of builds that no container uses any more.
pub(crate) async fn tidy(api: &Api) -> Result<()> {
    let snapshots = list(api, SNAPSHOT.to_owned()).await?;
    let untagged =
        snapshots.into_iter().filter(|image| image.repo_tags.iter().all(|tag| tag == "<none>:<none>"));
    for image in untagged.chain(list(api, format!("{OURS}=build")).await?) {
        // The engine refuses what is in use.
        let gone = api.remove_image(&image.id, Some(RemoveImageOptionsBuilder::new().build()), None).await;
        if let Err(error) = gone {
            tracing::debug!(image = image.id, %error, "an image is left");
        }
    }
    Ok(())
}
