//! The commands: one file each.

mod attach;
mod caps;
mod completions;
mod cp;
mod create;
mod doctor;
mod exec;
mod files;
mod fork;
mod kill;
mod lifecycle;
mod logs;
mod man;
mod metrics;
mod plan;
mod port;
mod ps;
mod reap;
mod rm;
mod run;
mod snapshot;
mod volume;

use std::process::ExitCode;

use clap::Subcommand;

use self::lifecycle::Change;

use crate::failure::{self, Outcome};

// The arguments of a command are put together only where that command is given: `run` is to start fast.
#[derive(Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    Run(run::Args),
    Create(create::Args),
    Exec(exec::Args),
    Attach(attach::Args),
    Kill(kill::Args),
    Logs(logs::Args),
    Ps(ps::Args),
    Rm(rm::Args),
    Reap(reap::Args),
    Cp(cp::Args),
    #[command(subcommand)]
    Files(files::Command),
    /// End the processes of sandboxes, and keep their disks
    Stop(lifecycle::Args),
    /// Start sandboxes again that are stopped
    Start(lifecycle::Args),
    /// Suspend sandboxes, with their memory kept
    Pause(lifecycle::Args),
    /// Let sandboxes go on that are paused
    Resume(lifecycle::Args),
    Port(port::Args),
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    Fork(fork::Args),
    #[command(subcommand)]
    Volume(volume::Command),
    Metrics(metrics::Args),
    Caps(caps::Args),
    Plan(plan::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(man::Args),
}

/// Run `command` to its end; the exit code is that of this program.
pub(crate) fn run(command: Command) -> ExitCode {
    // One thread: a command line waits for one thing at a time, and starts faster.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(dispatch(command));
            // A read of our standard input may still be waiting for somebody to type.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(error.into()),
    };
    failure::exit_code(outcome)
}

async fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Run(args) => run::run(args).await,
        Command::Create(args) => create::run(args).await,
        Command::Exec(args) => exec::run(args).await,
        Command::Attach(args) => attach::run(args).await,
        Command::Kill(args) => kill::run(args).await,
        Command::Logs(args) => logs::run(args).await,
        Command::Ps(args) => ps::run(args).await,
        Command::Rm(args) => rm::run(args).await,
        Command::Reap(args) => reap::run(args).await,
        Command::Cp(args) => cp::run(args).await,
        Command::Files(command) => files::run(command).await,
        Command::Stop(args) => lifecycle::run(Change::Stop, args).await,
        Command::Start(args) => lifecycle::run(Change::Start, args).await,
        Command::Pause(args) => lifecycle::run(Change::Pause, args).await,
        Command::Resume(args) => lifecycle::run(Change::Resume, args).await,
        Command::Port(args) => port::run(args).await,
        Command::Snapshot(command) => snapshot::run(command).await,
        Command::Fork(args) => fork::run(args).await,
        Command::Volume(command) => volume::run(command).await,
        Command::Metrics(args) => metrics::run(args).await,
        Command::Caps(args) => caps::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
