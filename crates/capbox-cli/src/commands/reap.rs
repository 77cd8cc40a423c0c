//! `capbox reap`: remove what dead owners left.

use crate::args::On;
use crate::failure::Outcome;
use crate::text;

/// Remove what dead owners left behind, as far as it is provably ours, and print the ids
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
}

pub(crate) async fn run(args: Args) -> Outcome {
    for id in args.on.client()?.reap().await? {
        text::line(&id)?;
    }
    Ok(0)
}
