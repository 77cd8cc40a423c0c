//! `capbox attach`: join a process again.

use crate::args::{On, listed_in};
use crate::failure::Outcome;
use crate::job;

/// Join a background process: its output from now on, its exit code at the end
///
/// Leaving it by Ctrl-C does not end it.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// Send our stdin in, where the process was started with `-i`
    #[arg(short = 'i', long)]
    interactive: bool,
    /// The sandbox
    id: String,
    /// The process, as `capbox exec -d` printed it
    process: String,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let sandbox = args.on.connect(&args.id).await?;
    let mut process = sandbox.process(args.process.as_str()).attach().await.map_err(listed_in(&args.id))?;
    let exit = match (args.interactive, process.take_stdin()) {
        (true, Some(writer)) => job::beside(job::send_stdin(writer), job::follow(&mut process)).await?,
        (true, None) => {
            let message = format!("the stdin of `{}` is not open", args.process);
            return Err(capbox::Error::new(capbox::ErrorKind::Conflict, message)
                .with_hint("start it with `capbox exec -d -i`")
                .into());
        }
        // Kept to the end: dropping it would end the process's stdin.
        (false, writer) => {
            let exit = job::follow(&mut process).await?;
            drop(writer);
            exit
        }
    };
    job::explain(exit.status);
    Ok(job::code(exit.status))
}
