//! `capbox fork`: independent copies of a sandbox.

use crate::args::{self, On};
use crate::failure::{self, Failure, OWN_FAILURE, Outcome};
use crate::text;

/// Make independent copies of a sandbox, and print their ids
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// How many
    #[arg(long, short = 'n', value_name = "N", default_value = "1", value_parser = args::count, allow_hyphen_values = true)]
    count: u32,
    /// The sandbox
    id: String,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let sandbox = args.on.connect(&args.id).await?;
    let mut failed = false;
    for fork in sandbox.fork(args.count).await? {
        let detached = async {
            let fork = fork?;
            fork.detach().await?;
            Ok::<_, capbox::Error>(fork)
        };
        match detached.await {
            Ok(fork) => text::line(fork.id())?,
            Err(error) => {
                failure::tell(&error);
                failed = true;
            }
        }
    }
    if failed { Err(Failure::Told(OWN_FAILURE)) } else { Ok(0) }
}
