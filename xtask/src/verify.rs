//! `cargo xtask verify`: the project's promises, as named trials on the built program.
//!
//! Each trial runs the program as a user would, in a state folder of its own, and looks at the host from outside.

mod external;
mod program;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::test::Tally;
use crate::tools::{Result, build_capbox, target};

/// A promise: a name and a trial.
type Promise = (&'static str, fn(&Trial) -> Result);

/// What a trial has.
pub(crate) struct Trial {
    capbox: PathBuf,
    state: PathBuf,
}

/// Run the trials called `names`, or all.
pub(crate) fn run(names: &[&str]) -> Result {
    let mut tally = Tally::default();
    run_counted(names, &mut tally)?;
    let Tally { passed, failed, skipped } = tally;
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { Ok(()) } else { Err(format!("{failed} trials failed")) }
}

/// The same, counting into `tally`.
pub(crate) fn run_counted(names: &[&str], tally: &mut Tally) -> Result {
    let promises: Vec<Promise> = program::PROMISES.iter().chain(external::PROMISES).copied().collect();
    if let Some(unknown) = names.iter().find(|name| !promises.iter().any(|(known, _)| known == *name)) {
        let known: Vec<&str> = promises.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no trial `{unknown}`; there are `{}`", known.join("`, `")));
    }
    let trial = Trial { capbox: build_capbox("dev")?, state: target().join("verify-state") };
    println!();
    for (name, body) in promises.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let start = Instant::now();
        let outcome = body(&trial);
        let took = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                tally.passed += 1;
                println!("verify {name} ... ok ({took:.1} s)");
            }
            Err(message) => {
                tally.failed += 1;
                println!("verify {name} ... FAILED ({took:.1} s)\n    {message}");
            }
        }
    }
    Ok(())
}

impl Trial {
    /// The program, with these arguments, with nothing of ours in its environment but the state folder.
    fn capbox(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.capbox);
        command.args(args).env("CAPBOX_STATE_DIR", &self.state).stdin(Stdio::null());
        command
    }

    /// Run to the end.
    fn output(&self, args: &[&str]) -> Result<Output> {
        self.capbox(args).output().map_err(|e| format!("start `capbox`: {e}"))
    }

    /// Run to the end, which must be this exit code; gives standard output.
    fn expect(&self, code: i32, args: &[&str]) -> Result<String> {
        let out = self.output(args)?;
        if out.status.code() != Some(code) {
            return Err(format!(
                "`capbox {}`: {} instead of exit code {code}\n    {}",
                args.join(" "),
                out.status,
                String::from_utf8_lossy(&out.stderr).trim_end()
            ));
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// The program.
    fn program(&self) -> &Path {
        &self.capbox
    }

    /// The state folder.
    fn state(&self) -> &Path {
        &self.state
    }
}

/// Fail with `message` unless `holds`.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result {
    if holds { Ok(()) } else { Err(message()) }
}
