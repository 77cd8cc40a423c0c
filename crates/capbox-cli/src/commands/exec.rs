//! `capbox exec`: a command in a sandbox that is there.

use capbox::prelude::{Capability, Stdin};

use crate::args::{CommandArgs, On};
use crate::failure::Outcome;
use crate::job::Job;
use crate::signals::Signals;
use crate::text;

/// Run a command in a sandbox
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// Start it in the background and print its id; with `-i` its stdin stays open for `capbox attach -i`
    #[arg(short = 'd', long, conflicts_with_all = ["tty", "json", "max_output"])]
    detach: bool,
    /// The sandbox
    id: String,
    #[command(flatten)]
    command: CommandArgs,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let client = args.on.client()?;
    if args.detach {
        return in_background(&args).await;
    }
    let job = Job::new(&args.command, &client)?;
    let mut signals = Signals::catch()?;
    let sandbox = signals.unless(args.on.connect(&args.id)).await??;
    let done = signals.unless(job.run(&sandbox)).await??;
    Ok(done.conclude("background processes remain in the sandbox"))
}

async fn in_background(args: &Args) -> Outcome {
    let client = args.on.client()?;
    let command = args.command.command();
    let mut options = args.command.options()?;
    options.stdin = args.command.interactive.then_some(Stdin::Open);
    client.require(Capability::Background).map_err(capbox::Error::from)?;
    options.check(&command, |capability| client.require(capability))?;
    let sandbox = args.on.connect(&args.id).await?;
    let process = sandbox.spawn(command.program).options(options).background().await?;
    text::line(process.id().as_str())?;
    Ok(0)
}
