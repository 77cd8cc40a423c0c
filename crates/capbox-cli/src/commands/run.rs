//! `capbox run`: one command in a sandbox of its own.

use std::time::Duration;

use capbox::spec::DEFAULT_TTL;

use crate::args::{CommandArgs, On, SpecArgs};
use crate::failure::{self, Outcome};
use crate::job::Job;
use crate::signals::Signals;

/// Run one command in a sandbox of its own, which ends with it
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    command: CommandArgs,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let client = args.on.client()?;
    let job = Job::new(&args.command, &client)?;
    let mut signals = Signals::catch()?;
    let mut spec = signals.unless(args.spec.prepared(&client)).await??;
    if let (None, Some(timeout)) = (spec.ttl, args.command.timeout) {
        // A command that may take long needs a sandbox that lives as long.
        spec.ttl = Some(DEFAULT_TTL.max(timeout.saturating_add(Duration::from_mins(1))));
    }

    let sandbox = signals.unless(client.create(spec).into_future()).await??;
    let done = signals.unless(job.run(&sandbox)).await.flatten();
    match signals.unless(sandbox.destroy()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => failure::error_line(format_args!("`{}` is not destroyed: {error}", sandbox.id())),
        // Asked to end once more: whoever asks twice does not want to wait.
        Err(again) => return Err(again),
    }
    done.map(|done| done.conclude("background processes remained, and ended with the sandbox"))
}
