//! `capbox metrics`: what a sandbox uses.

use std::time::Duration;

use capbox::api::Usage;
use serde::Serialize;

use crate::args::{self, On};
use crate::failure::Outcome;
use crate::signals::Signals;
use crate::{json, text};

/// Print what a sandbox uses, now or as it changes
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// Go on, until the sandbox ends
    #[arg(long, short = 'f')]
    follow: bool,
    /// How often to look, with `--follow`
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = args::duration, requires = "follow")]
    interval: Duration,
    /// Print JSON: one document, or with `--follow` one on each line
    #[arg(long)]
    json: bool,
    /// The sandbox
    id: String,
}

#[derive(Serialize)]
struct Document {
    at: Option<String>,
    cpu: Option<f64>,
    cpu_limit: Option<f64>,
    memory: Option<u64>,
    memory_limit: Option<u64>,
    disk: Option<u64>,
    disk_limit: Option<u64>,
    received: Option<u64>,
    sent: Option<u64>,
    processes: Option<u32>,
}

impl From<&Usage> for Document {
    fn from(usage: &Usage) -> Self {
        Self {
            at: json::time(Some(usage.at)),
            cpu: usage.cpu.map(json::seconds),
            cpu_limit: usage.cpu_limit,
            memory: usage.memory,
            memory_limit: usage.memory_limit,
            disk: usage.disk,
            disk_limit: usage.disk_limit,
            received: usage.received,
            sent: usage.sent,
            processes: usage.processes,
        }
    }
}

pub(crate) async fn run(args: Args) -> Outcome {
    let sandbox = args.on.connect(&args.id).await?;
    if !args.follow {
        let usage = sandbox.metrics().await?;
        if args.json {
            json::print(&Document::from(&usage))?;
        } else {
            show(&usage)?;
        }
        return Ok(0);
    }
    let mut signals = Signals::catch()?;
    let mut stream = signals.unless(sandbox.follow_metrics(args.interval)).await??;
    while let Some(usage) = signals.unless(stream.next()).await?? {
        if args.json {
            json::print_line(&Document::from(&usage))?;
        } else {
            text::line(&in_a_line(&usage))?;
        }
    }
    Ok(0)
}

/// What is known, a line each.
fn show(usage: &Usage) -> std::io::Result<()> {
    let rows: Vec<_> = parts(usage).into_iter().map(|(name, value)| [name.to_owned(), value]).collect();
    text::columns(&["WHAT", "IN USE"], &rows)
}

fn in_a_line(usage: &Usage) -> String {
    let parts = parts(usage).into_iter().map(|(name, value)| format!("{name} {value}"));
    format!("{}  {}", text::time(usage.at), parts.collect::<Vec<_>>().join("  "))
}

fn parts(usage: &Usage) -> Vec<(&'static str, String)> {
    let of = |used: Option<u64>, limit: Option<u64>| {
        used.map(|used| match limit {
            Some(limit) => format!("{} of {}", text::size(used), text::size(limit)),
            None => text::size(used),
        })
    };
    let cpu = usage.cpu.map(|spent| match usage.cpu_limit {
        Some(limit) => format!("{:.2}s, at most {limit} CPUs", spent.as_secs_f64()),
        None => format!("{:.2}s", spent.as_secs_f64()),
    });
    let parts = [
        ("cpu", cpu),
        ("memory", of(usage.memory, usage.memory_limit)),
        ("disk", of(usage.disk, usage.disk_limit)),
        ("received", usage.received.map(text::size)),
        ("sent", usage.sent.map(text::size)),
        ("processes", usage.processes.map(|count| count.to_string())),
    ];
    parts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
