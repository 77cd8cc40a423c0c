//! `capbox logs`: what a background process has printed.

use std::io;

use capbox::api::{AnySandbox, Event, OutputStream, ProcessId};
use capbox::{Error, ErrorKind};
use serde::Serialize;

use crate::args::{On, listed_in};
use crate::failure::{Failure, Outcome};
use crate::job;
use crate::json::{self, Text};

/// Print what a background process has printed
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// Begin at this position in the process's output: the number of bytes of both streams before it
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: u64,
    /// Go on with what it prints, until it ends
    #[arg(long)]
    follow: bool,
    /// Print a JSON document per chunk, with its stream and position
    #[arg(long)]
    json: bool,
    /// The sandbox
    id: String,
    /// The process; may be left out where there is one background process
    process: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Line {
    Output {
        stream: &'static str,
        position: u64,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    Gap {
        from: u64,
        to: u64,
    },
    Exited {
        cause: &'static str,
        code: Option<i32>,
        signal: Option<i32>,
    },
}

pub(crate) async fn run(args: Args) -> Outcome {
    let sandbox = args.on.connect(&args.id).await?;
    let id = match &args.process {
        Some(id) => ProcessId::new(id),
        None => only_process(&sandbox).await?,
    };
    let process = sandbox.process(id);
    let output = if args.follow { process.replay(args.after).await } else { process.logs(args.after).await };
    let mut process = output.map_err(listed_in(&args.id))?;
    if !args.json {
        job::follow(&mut process).await?;
        return Ok(0);
    }
    while let Some(event) = process.next().await? {
        print(event)?;
    }
    Ok(0)
}

/// The one background process, or an error that names them all.
async fn only_process(sandbox: &AnySandbox) -> Result<ProcessId, Failure> {
    let mut ids: Vec<ProcessId> =
        sandbox.processes().await?.into_iter().filter(|p| p.background).map(|p| p.id).collect();
    match (ids.pop(), ids.is_empty()) {
        (Some(id), true) => Ok(id),
        (None, _) => Err(Error::new(
            ErrorKind::NotFound,
            format!("there is no background process in `{}`", sandbox.id()),
        )
        .with_hint("`capbox exec -d ID -- COMMAND` starts one")
        .into()),
        (Some(last), false) => {
            ids.push(last);
            let names: Vec<&str> = ids.iter().map(ProcessId::as_str).collect();
            Err(Error::invalid_argument("PROCESS", "there are several background processes")
                .with_hint(format!("name one of `{}`", names.join("`, `")))
                .into())
        }
    }
}

fn print(event: Event) -> io::Result<()> {
    let line = match event {
        Event::Output { stream, position, bytes } => {
            let Text { text, base64 } = Text::of(&bytes);
            let stream = match stream {
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            Line::Output { stream, position, text, base64 }
        }
        Event::Gap { from, to } => Line::Gap { from, to },
        Event::Exited(exit) => {
            let (cause, code, signal) = json::status(exit.status);
            Line::Exited { cause, code, signal }
        }
        _ => return Ok(()),
    };
    json::print_line(&line)
}
