//! `capbox man`: the man pages, for those who package this program.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::failure::Outcome;

/// Write the man pages into a folder
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Outcome {
    std::fs::create_dir_all(&args.folder)?;
    clap_mangen::generate_to(crate::Cli::command(), &args.folder)?;
    Ok(0)
}
