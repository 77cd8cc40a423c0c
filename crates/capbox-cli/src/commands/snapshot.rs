//! `capbox snapshot`: disks that outlive their sandboxes.

use capbox::api::SnapshotInfo;
use capbox::{Capability, Error};
use serde::Serialize;

use crate::args::{CREATE_TTL, On, SpecArgs};
use crate::failure::Outcome;
use crate::signals::Signals;
use crate::{json, text};

/// Keep the disk of a sandbox, and create sandboxes from it
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Create(Create),
    Ls(Ls),
    Rm(Rm),
    Restore(Box<Restore>),
}

/// Keep the disk of a sandbox, and print the snapshot's id
#[derive(clap::Args)]
pub(crate) struct Create {
    #[command(flatten)]
    on: On,
    /// A name to know it by
    #[arg(long)]
    name: Option<String>,
    /// The sandbox
    id: String,
}

/// List the snapshots
#[derive(clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    on: On,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Delete snapshots
#[derive(clap::Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    on: On,
    /// The snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    ids: Vec<String>,
}

/// Create a sandbox from a snapshot that outlives this command, and print its id
#[derive(clap::Args)]
pub(crate) struct Restore {
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    spec: SpecArgs,
    /// The snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
}

#[derive(Serialize)]
struct Document<'a> {
    snapshots: Vec<Kept<'a>>,
}

#[derive(Serialize)]
struct Kept<'a> {
    id: &'a str,
    name: Option<&'a str>,
    created: Option<String>,
}

pub(crate) async fn run(command: Command) -> Outcome {
    match command {
        Command::Create(args) => create(args).await,
        Command::Ls(args) => ls(args).await,
        Command::Rm(args) => rm(args).await,
        Command::Restore(args) => restore(*args).await,
    }
}

async fn create(args: Create) -> Outcome {
    let sandbox = args.on.connect(&args.id).await?;
    sandbox.require(Capability::Snapshot).map_err(Error::from)?;
    if let Some(snapshots) = sandbox.snapshots() {
        text::line(&snapshots.create(args.name.as_deref()).await?.id)?;
    }
    Ok(0)
}

async fn ls(args: Ls) -> Outcome {
    let snapshots = args.on.client()?.snapshots().await?;
    if args.json {
        json::print(&Document { snapshots: snapshots.iter().map(kept).collect() })?;
        return Ok(0);
    }
    let row = |info: &SnapshotInfo| {
        let unknown = || "-".to_owned();
        let name = info.name.clone().unwrap_or_else(unknown);
        [info.id.clone(), name, info.created.map_or_else(unknown, text::time)]
    };
    text::columns(&["ID", "NAME", "CREATED"], &snapshots.iter().map(row).collect::<Vec<_>>())?;
    Ok(0)
}

fn kept(info: &SnapshotInfo) -> Kept<'_> {
    Kept { id: &info.id, name: info.name.as_deref(), created: json::time(info.created) }
}

async fn rm(args: Rm) -> Outcome {
    let client = args.on.client()?;
    for id in &args.ids {
        client.delete_snapshot(id).await?;
    }
    Ok(0)
}

async fn restore(args: Restore) -> Outcome {
    let client = args.on.client()?;
    let mut spec = args.spec.spec();
    spec.ttl.get_or_insert(CREATE_TTL);
    spec.from_snapshot = Some(args.snapshot);
    let mut signals = Signals::catch()?;
    let sandbox = signals.unless(client.create(spec).into_future()).await??;
    signals.unless(sandbox.detach()).await??;
    text::line(sandbox.id())?;
    Ok(0)
}
