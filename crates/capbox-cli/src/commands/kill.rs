//! `capbox kill`: end a process, or send it a signal.

use capbox::api::{Killed, Signal};

use crate::args::{On, listed_in};
use crate::failure::{self, Outcome};

/// End a process and all that it started; or send it a signal
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// Send this signal, such as `TERM` or `15`, instead of ending it
    #[arg(long, value_name = "SIGNAL")]
    signal: Option<String>,
    /// The sandbox
    id: String,
    /// The process, as `capbox exec -d` or `capbox ps ID` printed it
    process: String,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let signal = args.signal.as_deref().map(str::parse::<Signal>).transpose()?;
    let sandbox = args.on.connect(&args.id).await?;
    let process = sandbox.process(args.process.as_str());
    let or_listed = listed_in(&args.id);
    match signal {
        Some(signal) => process.signal(signal).await.map_err(or_listed)?,
        None => match process.kill().await.map_err(or_listed)? {
            Killed::Stopped => {}
            Killed::AlreadyExited => failure::note(format_args!("`{}` had ended already", args.process)),
        },
    }
    Ok(0)
}
