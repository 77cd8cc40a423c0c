//! `capbox man`: the man pages, for those who package this program.

use std::path::PathBuf;

use capbox::Error;
use clap::CommandFactory;

use crate::failure::Outcome;

/// Write the man pages into a folder
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(crate::Cli::command(), folder))
        .map_err(|error| Error::invalid_argument("FOLDER", format!("`{}`: {error}", folder.display())))?;
    Ok(0)
}
