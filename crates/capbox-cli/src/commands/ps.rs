//! `capbox ps`: the sandboxes; or the processes of one.

use std::collections::BTreeMap;

use capbox::api::{ProcessInfo, ProcessState, SandboxInfo};
use serde::Serialize;

use crate::args::{self, On};
use crate::failure::Outcome;
use crate::json;
use crate::text;

/// List the sandboxes; or, with an id, the processes that were started in one
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// Only sandboxes with this label; may be repeated
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "id")]
    label: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// A sandbox, to list its processes
    id: Option<String>,
}

#[derive(Serialize)]
struct Sandboxes<'a> {
    sandboxes: Vec<SandboxDocument<'a>>,
}

#[derive(Serialize)]
struct SandboxDocument<'a> {
    id: &'a str,
    name: Option<&'a str>,
    state: &'static str,
    created: Option<String>,
    ttl_left: Option<f64>,
    detached: bool,
    labels: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Processes<'a> {
    processes: Vec<ProcessDocument<'a>>,
}

#[derive(Serialize)]
struct ProcessDocument<'a> {
    id: &'a str,
    command: &'a str,
    state: &'static str,
    cause: Option<&'static str>,
    code: Option<i32>,
    signal: Option<i32>,
    background: bool,
    started: Option<String>,
    pids: &'a [u32],
}

pub(crate) async fn run(args: Args) -> Outcome {
    if let Some(id) = &args.id {
        let processes = args.on.connect(id).await?.processes().await?;
        show_processes(&processes, args.json)?;
    } else {
        let labels = args::labels(&args.label)?.unwrap_or_default();
        let sandboxes = args.on.client()?.list_with(&labels).await?;
        show_sandboxes(&sandboxes, args.json)?;
    }
    Ok(0)
}

fn show_sandboxes(sandboxes: &[SandboxInfo], as_json: bool) -> std::io::Result<()> {
    if as_json {
        let sandboxes = sandboxes
            .iter()
            .map(|info| SandboxDocument {
                id: &info.id,
                name: info.name.as_deref(),
                state: info.state.as_str(),
                created: json::time(info.created),
                ttl_left: info.ttl_left.map(json::seconds),
                detached: info.detached,
                labels: &info.labels.0,
            })
            .collect();
        return json::print(&Sandboxes { sandboxes });
    }
    let rows: Vec<_> = sandboxes
        .iter()
        .map(|info| {
            let labels: Vec<_> =
                info.labels.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
            [
                info.id.clone(),
                info.name.clone().unwrap_or_else(unknown),
                info.state.as_str().to_owned(),
                info.created.map_or_else(unknown, text::time),
                info.ttl_left.map_or_else(unknown, text::length),
                labels.join(","),
            ]
        })
        .collect();
    text::columns(&["ID", "NAME", "STATE", "CREATED", "TTL LEFT", "LABELS"], &rows)
}

fn show_processes(processes: &[ProcessInfo], as_json: bool) -> std::io::Result<()> {
    if as_json {
        let processes = processes.iter().map(process_document).collect();
        return json::print(&Processes { processes });
    }
    let rows: Vec<_> = processes
        .iter()
        .map(|info| {
            [
                info.id.to_string(),
                match info.state {
                    ProcessState::Running => "running".to_owned(),
                    ProcessState::Exited(status) => status.to_string(),
                    _ => unknown(),
                },
                if info.background { "background" } else { "foreground" }.to_owned(),
                info.started.map_or_else(unknown, text::time),
                info.command.clone(),
            ]
        })
        .collect();
    text::columns(&["ID", "STATE", "KIND", "STARTED", "COMMAND"], &rows)
}

fn process_document(info: &ProcessInfo) -> ProcessDocument<'_> {
    let status = match info.state {
        ProcessState::Exited(status) => Some(json::status(status)),
        _ => None,
    };
    ProcessDocument {
        id: info.id.as_str(),
        command: &info.command,
        state: if status.is_some() { "exited" } else { "running" },
        cause: status.map(|(cause, ..)| cause),
        code: status.and_then(|(_, code, _)| code),
        signal: status.and_then(|(.., signal)| signal),
        background: info.background,
        started: json::time(info.started),
        pids: &info.pids,
    }
}

fn unknown() -> String {
    "-".to_owned()
}
