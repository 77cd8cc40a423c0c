//! The project's own tasks. Run them as `cargo xtask TASK`.

mod bench;
mod engine;
mod generate;
mod matrix;
mod test;
mod tools;
mod verify;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask TASK

  test             everything that must hold: lints, tests, generated files, `verify`
  gen [--check]    regenerate what is generated, or fail where it is stale
  evidence         run the contract suites and keep what they showed for the matrix
  bench [NAME…]    measure against the peers, side by side
  verify [NAME…]   the project's promises, as named trials on the built program
  engine -- COMMAND…   run a command beside a Docker Engine of its own
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["test"] => test::run_task(),
        ["gen"] => generate::run(generate::Mode::Write),
        ["gen", "--check"] => generate::run(generate::Mode::Check),
        ["evidence"] => test::evidence(),
        ["bench", names @ ..] => bench::task(names),
        ["verify", names @ ..] => verify::run(names),
        ["engine", "--", command @ ..] => engine::task(command),
        [engine::supervise::TASK, folder] => engine::supervise::task(Path::new(folder)),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
