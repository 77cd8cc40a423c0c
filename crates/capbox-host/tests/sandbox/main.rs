//! Real sandboxes on this machine.
//!
//! Run as root, everything runs twice: as root, and again as a user without privileges. A test that needs root, or its
//! absence, is there only once.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod exec;
mod files;
mod jobs;
mod life;
mod support;
mod walls;

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Ok(state) = std::env::var("CAPBOX_TEST_CHILD") {
        let detach = std::env::var("CAPBOX_TEST_DETACH").is_ok_and(|value| !value.is_empty());
        return support::child(life::child(&state, detach));
    }
    support::allow_descriptors();
    let arguments = Arguments::from_args();
    let root = rustix::process::geteuid().is_root();
    let mut trials = Vec::new();
    trials.extend(exec::trials());
    trials.extend(files::trials());
    trials.extend(jobs::trials());
    trials.extend(life::trials());
    trials.extend(walls::trials());

    let who = if root { "root" } else { "user" };
    let trials: Vec<Trial> = trials
        .into_iter()
        .filter(|test| test.who.includes(root))
        .map(|test| Trial::test(test.name.replacen("sandbox", who, 1), move || support::run(&test)))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    support::clean_up();
    if conclusion.has_failed() || !root || arguments.list {
        return conclusion.exit_code();
    }
    again_as_user()
}

/// Runs this very program as a user without privileges.
fn again_as_user() -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let state = support::scratch("user-home");
    let id = support::USER.to_string();
    let _ = std::os::unix::fs::chown(&state, Some(support::USER), Some(support::USER));
    let status = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env("HOME", &state)
        .env("TMPDIR", &state)
        .current_dir(&state)
        .status();
    let _ = std::fs::remove_dir_all(&state);
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("skipped as a user without privileges: cannot run setpriv: {error}");
            ExitCode::SUCCESS
        }
    }
}
