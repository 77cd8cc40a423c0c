//! The `capbox` command: every place where an agent's code can run, from a shell.

mod args;
mod commands;
mod failure;
mod habits;
mod job;
mod json;
mod signals;
mod streams;
mod terminal;
mod text;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::commands::Command;

/// Run code in a sandbox.
///
/// Data goes to stdout, messages to stderr. The exit code of `run`, `exec` and `attach` is that of the command;
/// 128 and the signal's number where a signal ended it; 124 where its time was up; 126 and 127 as in a shell.
/// Where capbox itself fails it is 125.
#[derive(Parser)]
#[command(name = "capbox", version, max_term_width = 100, disable_help_subcommand = true, after_help = ENVIRONMENT)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The variables that are read, for the help and the man page.
const ENVIRONMENT: &str = "\
Environment:
  CAPBOX_ON         The provider, unless `--on` says otherwise
  CAPBOX_STATE_DIR  Where local sandboxes are kept, an absolute path [default: `/var/lib/capbox` for root,
                    `~/.local/state/capbox` for others]
  NO_COLOR          Set to anything, messages have no colours";

fn main() -> ExitCode {
    allow_descriptors();
    match Cli::try_parse() {
        Ok(cli) => commands::run(cli.command),
        Err(usage) if usage.kind() == ErrorKind::DisplayHelp => help(&usage),
        Err(usage) => failure::usage(&usage),
    }
}

/// Asks for as many descriptors as this process may have. Code of a local sandbox may have this user's id, and keep so many
/// on their way through sockets that whoever is content with fewer could not send any, not even to end that sandbox.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Help lists the commands, which are put together only when they are asked for.
fn help(bare: &clap::Error) -> ExitCode {
    let mut cli = Cli::command();
    cli.build();
    let help = cli.try_get_matches().err();
    failure::usage(help.as_ref().unwrap_or(bare))
}
