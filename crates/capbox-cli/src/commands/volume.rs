//! `capbox volume`: folders that outlive sandboxes.

use capbox::api::{VolumeInfo, Volumes};
use capbox::{Capability, Error};
use serde::Serialize;

use crate::args::On;
use crate::failure::Outcome;
use crate::{json, text};

/// Make, list and delete volumes, which `run` and `create` mount by `--volume`
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Create(Create),
    Ls(Ls),
    Rm(Rm),
}

/// Make an empty volume
#[derive(clap::Args)]
pub(crate) struct Create {
    #[command(flatten)]
    on: On,
    /// Its name
    name: String,
}

/// List the volumes
#[derive(clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    on: On,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Delete volumes, with all that is in them
#[derive(clap::Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    on: On,
    /// The volumes
    #[arg(required = true, value_name = "VOLUME")]
    ids: Vec<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    volumes: Vec<Made<'a>>,
}

#[derive(Serialize)]
struct Made<'a> {
    id: &'a str,
    created: Option<String>,
}

pub(crate) async fn run(command: Command) -> Outcome {
    match command {
        Command::Create(args) => text::line(&volumes(&args.on)?.create(&args.name).await?.id)?,
        Command::Ls(args) => show(&volumes(&args.on)?.list().await?, args.json)?,
        Command::Rm(args) => {
            let volumes = volumes(&args.on)?;
            for id in &args.ids {
                volumes.delete(id).await?;
            }
        }
    }
    Ok(0)
}

fn volumes(on: &On) -> Result<Volumes, Error> {
    let client = on.client()?;
    client.require(Capability::VolumesManage)?;
    client.volumes().ok_or_else(|| Error::invalid_argument("volume", "there are none here"))
}

fn show(volumes: &[VolumeInfo], as_json: bool) -> std::io::Result<()> {
    if as_json {
        let made = |info| {
            let VolumeInfo { id, created, .. }: &VolumeInfo = info;
            Made { id, created: json::time(*created) }
        };
        return json::print(&Document { volumes: volumes.iter().map(made).collect() });
    }
    let row = |info: &VolumeInfo| [info.id.clone(), info.created.map_or_else(|| "-".to_owned(), text::time)];
    text::columns(&["ID", "CREATED"], &volumes.iter().map(row).collect::<Vec<_>>())
}
