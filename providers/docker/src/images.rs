//! Images: by name, from an archive, from a build context.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use bollard::Docker as Api;
use bollard::models::ImageInspect;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateImageOptionsBuilder, ImportImageOptionsBuilder,
};
use bytes::Bytes;
use capbox_core::provider::*;
use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio_util::io::{ReaderStream, SyncIoBridge};

use crate::client::Docker;
use crate::error::{from_engine, is_absent, printable};
use crate::labels::{self, OURS};

/// Takes a line of progress.
pub(crate) type Tell<'a> = &'a mut (dyn FnMut(Progress) + Send);

#[async_trait]
impl PrepareImage for Docker {
    async fn prepare_image(&self, image: Option<Image>, progress: Tell<'_>) -> Result<Image> {
        let image = match (image, &self.config.image) {
            (Some(image), _) => image,
            (None, Some(image)) => Image::Name(image.clone()),
            (None, None) => return Err(no_image()),
        };
        let api = self.engine.api().await?;
        Ok(Image::Name(ready(api, image, progress).await?.name))
    }
}

/// No image is named anywhere.
pub(crate) fn no_image() -> Error {
    Error::invalid_argument("image", "none is given")
        .with_hint("name one in the URI, such as `docker://python:3.12`, or in the spec")
}

/// An image that the engine has.
pub(crate) struct Ready {
    /// By which the engine finds it.
    pub(crate) name: String,
    pub(crate) facts: ImageInspect,
}

/// Pull, load or build `image` where the engine does not have it.
pub(crate) async fn ready(api: &Api, image: Image, tell: Tell<'_>) -> Result<Ready> {
    let name = match image {
        Image::Name(name) => {
            if let Some(facts) = inspect(api, &name).await? {
                return Ok(Ready { name, facts });
            }
            pull(api, &name, tell).await?;
            name
        }
        Image::Archive(path) => load(api, &path, tell).await?,
        Image::Context(path) => build(api, path, tell).await?,
        _ => return Err(Error::invalid_argument("image", "an engine has no templates")),
    };
    match inspect(api, &name).await? {
        Some(facts) => Ok(Ready { name, facts }),
        None => Err(Error::new(ErrorKind::NotFound, format!("the image `{name}` is gone again"))),
    }
}

async fn inspect(api: &Api, name: &str) -> Result<Option<ImageInspect>> {
    match api.inspect_image(name).await {
        Ok(facts) => Ok(Some(facts)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(from_engine(error, &format!("the image `{name}`"))),
    }
}

/// Pull by name; without a tag that is `latest`, never all tags.
async fn pull(api: &Api, name: &str, tell: Tell<'_>) -> Result<()> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let tagged = if last.contains([':', '@']) { name.to_owned() } else { format!("{name}:latest") };
    let options = CreateImageOptionsBuilder::new().from_image(&tagged).build();
    let mut steps = api.create_image(Some(options), None, None);
    let absent = |text: &str| {
        Error::new(
            ErrorKind::NotFound,
            format!("the image `{name}` is not on this engine, and pulling it fails: {text}"),
        )
        .with_hint("check the name, pull it by hand, or start from an archive or a build context")
        .with_admitted(Admitted::No)
    };
    while let Some(step) = steps.next().await {
        let step = step.map_err(|error| match &error {
            bollard::errors::Error::DockerResponseServerError { message, .. } => absent(&printable(message)),
            bollard::errors::Error::DockerStreamError { error } => absent(&printable(error)),
            _ => from_engine(error, &format!("the image `{name}`")),
        })?;
        if let Some(text) = step.error_detail.and_then(|error| error.message) {
            return Err(absent(&printable(&text)));
        }
        let bytes = step.progress_detail.as_ref();
        let mut progress = Progress::new(printable(&step.status.unwrap_or_default()));
        progress.part = step.id.map(|id| printable(&id)).unwrap_or_default();
        progress.done = bytes.and_then(|b| b.current).and_then(|n| u64::try_from(n).ok());
        progress.total = bytes.and_then(|b| b.total).and_then(|n| u64::try_from(n).ok());
        tell(progress);
    }
    Ok(())
}

/// Load an archive as `docker save` writes it; gives the first image in it.
async fn load(api: &Api, path: &Path, tell: Tell<'_>) -> Result<String> {
    let shown = path.display();
    let file = tokio::fs::File::open(path).await.map_err(|error| unreadable("the archive", path, &error))?;
    let body = bollard::body_try_stream(ReaderStream::with_capacity(file, 256 << 10));
    let mut steps = api.import_image(ImportImageOptionsBuilder::new().build(), body, None);
    let wrong = |text: &str| {
        Error::invalid_argument("image", format!("the engine does not load the archive `{shown}`: {text}"))
            .with_hint("an archive is what `docker save` writes")
    };
    let mut loaded = None;
    while let Some(step) = steps.next().await {
        let step = step.map_err(|error| match &error {
            bollard::errors::Error::DockerResponseServerError { message, .. } => wrong(&printable(message)),
            bollard::errors::Error::DockerStreamError { error } => wrong(&printable(error)),
            _ => from_engine(error, &format!("the archive `{shown}`")),
        })?;
        if let Some(text) = step.error_detail.and_then(|error| error.message) {
            return Err(wrong(&printable(&text)));
        }
        let text = printable(step.stream.or(step.status).as_deref().unwrap_or_default());
        let name = text.strip_prefix("Loaded image: ").or_else(|| text.strip_prefix("Loaded image ID: "));
        loaded = loaded.or_else(|| name.map(str::to_owned));
        tell(Progress::new(text));
    }
    loaded.ok_or_else(|| wrong("it holds no image"))
}

/// Build a context by its `Dockerfile`, without network access of the steps.
async fn build(api: &Api, path: PathBuf, tell: Tell<'_>) -> Result<String> {
    let shown = path.display().to_string();
    for needed in [path.clone(), path.join("Dockerfile")] {
        let there = tokio::fs::metadata(&needed).await;
        there.map_err(|error| unreadable("the build context", &needed, &error))?;
    }
    let tag = format!("capbox-build:{}", labels::new_id()?);
    let options = BuildImageOptionsBuilder::new()
        .t(&tag)
        .rm(true)
        .forcerm(true)
        .labels(&HashMap::from([(OURS.to_owned(), "build".to_owned())]))
        .build();
    let body = bollard::body_try_stream(packed(path));
    let mut steps = api.build_image(options, None, Some(body));
    let failed = |text: &str| {
        Error::invalid_argument("image", format!("building `{shown}` fails: {text}"))
            .with_hint("the build's log says which step it was")
    };
    while let Some(step) = steps.next().await {
        let step = step.map_err(|error| match &error {
            bollard::errors::Error::DockerResponseServerError { message, .. } => failed(&printable(message)),
            bollard::errors::Error::DockerStreamError { error } => failed(&printable(error)),
            _ => from_engine(error, &format!("the build context `{shown}`")),
        })?;
        if let Some(text) = step.error_detail.and_then(|error| error.message) {
            return Err(failed(&printable(&text)));
        }
        for line in step.stream.or(step.status).iter().flat_map(|text| text.lines()) {
            tell(Progress::new(printable(line)));
        }
    }
    Ok(tag)
}

/// The folder as a tar stream, written by a thread as it is read.
fn packed(folder: PathBuf) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (writer, reader) = tokio::io::duplex(256 << 10);
    let packing = tokio::task::spawn_blocking(move || {
        let mut archive = tar::Builder::new(SyncIoBridge::new(writer));
        archive.follow_symlinks(false);
        archive.append_dir_all(".", &folder)?;
        archive.into_inner()?.shutdown()
    });
    // A failure to pack must not look like the end of the archive.
    let end =
        futures_util::stream::once(async { packing.await.map_err(io::Error::other)?.map(|()| Bytes::new()) });
    ReaderStream::with_capacity(reader, 256 << 10)
        .chain(end)
        .try_filter(|bytes| std::future::ready(!bytes.is_empty()))
}

fn unreadable(what: &str, path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(kind, format!("{what} `{}` cannot be read: {error}", path.display()))
}
