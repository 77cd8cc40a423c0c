//! The guest's program, in a volume that every sandbox has read-only at `/.capbox`.
//!
//! Nothing inside can replace it, nothing of it is in the image or in a snapshot, and a sandbox starts without a copy.

use bollard::Docker as Api;
use bollard::models::{ContainerCreateBody, HostConfig, Mount as EngineMount, MountType};
use bollard::query_parameters::{RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use capbox_core::provider::*;

use crate::error::from_engine;
use crate::volumes;

/// Where the program is inside.
pub(crate) const PATH: &str = "/.capbox/guest";
const FOLDER: &str = "/.capbox";
/// The program's group, which code cannot have unless root takes it: see the guest's `relay`.
const GROUP: u64 = 65_534;

/// The volume's name: that of one version of the program.
fn volume() -> String {
    // FNV-1a: tells versions apart, and proves nothing.
    let hash = capbox_guest::PROGRAM.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("capbox-guest-{hash:016x}")
}

/// The mount of the program.
pub(crate) fn mount() -> EngineMount {
    mounted(true)
}

fn mounted(read_only: bool) -> EngineMount {
    EngineMount {
        typ: Some(MountType::VOLUME),
        source: Some(volume()),
        target: Some(FOLDER.to_owned()),
        read_only: Some(read_only),
        ..EngineMount::default()
    }
}

/// Put the program into its volume, where it is not there yet. `image` is any image: nothing of it is run.
///
/// A volume cannot be renamed, so a second one says that the first is complete.
pub(crate) async fn install(api: &Api, image: &str) -> Result<()> {
    let complete = format!("{}-complete", volume());
    if volumes::find(api, &complete).await?.is_some() {
        return Ok(());
    }
    let failed = |error| from_engine(error, "the volume of the guest");
    volumes::make(api, &volume(), "guest").await?;
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![PATH.to_owned()]),
        host_config: Some(HostConfig { mounts: Some(vec![mounted(false)]), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    };
    let container = api.create_container(None, body).await.map_err(failed)?.id;
    let options = UploadToContainerOptionsBuilder::new().path(FOLDER).build();
    let put = api.upload_to_container(&container, Some(options), bollard::body_full(archive()?.into())).await;
    let options = RemoveContainerOptionsBuilder::new().force(true).build();
    api.remove_container(&container, Some(options)).await.map_err(failed)?;
    put.map_err(failed)?;
    volumes::make(api, &complete, "guest").await.map(drop)
}

fn archive() -> Result<Vec<u8>> {
    let mut header = tar::Header::new_ustar();
    header.set_size(capbox_guest::PROGRAM.len() as u64);
    header.set_mode(0o2755);
    header.set_uid(0);
    header.set_gid(GROUP);
    let mut archive = tar::Builder::new(Vec::new());
    let packed = archive.append_data(&mut header, "guest", capbox_guest::PROGRAM);
    let packed = packed.and_then(|()| archive.into_inner());
    packed.map_err(|error| Error::new(ErrorKind::Provider, format!("pack the guest: {error}")))
}

/// True where the guest runs in images of this system and architecture.
pub(crate) fn runs_in(os: Option<&str>, architecture: Option<&str>) -> bool {
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    !capbox_guest::PROGRAM.is_empty() && os == Some("linux") && architecture == Some(here)
}
