//! The program as a whole: what starting it costs.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::measure::{Bench, Outcome, at_most, in_turns, timed};

/// The peer of a one-shot run: the same namespaces.
pub(crate) const BWRAP: &[&str] =
    &["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "--proc", "/proc", "true"];

pub(crate) fn benches(capbox: &str) -> Vec<Bench> {
    let owned = || capbox.to_owned();
    let (run, docker, version) = (owned(), owned(), owned());
    vec![
        Bench::new("run-true", move || {
            if !succeeds(BWRAP) {
                return Ok(Outcome::Skipped("`bwrap` does not run here".to_owned()));
            }
            let times = in_turns(100, || whole(&[&run, "run", "--", "true"]), || whole(BWRAP))?;
            Ok(at_most(0.7, &times))
        }),
        Bench::new("run-docker", move || {
            let peer = ["docker", "run", "--rm", "capbox-test/busybox", "true"];
            if !succeeds(&peer) {
                return Ok(Outcome::Skipped(
                    "no Docker Engine is told of; see `cargo xtask engine`".to_owned(),
                ));
            }
            let times = in_turns(20, || whole(&[&docker, "run", "--", "true"]), || whole(&peer))?;
            Ok(at_most(0.03, &times))
        }),
        Bench::new("version", move || {
            let times = in_turns(100, || whole(&[&version, "--version"]), || Ok(Duration::from_millis(5)))?;
            Ok(at_most(1.0, &times))
        }),
    ]
}

/// A whole process, from its start to its end.
pub(crate) fn whole(argv: &[&str]) -> Result<Duration, String> {
    timed(|| {
        let status = command(argv).status().map_err(|e| format!("start `{}`: {e}", argv[0]))?;
        if status.success() { Ok(()) } else { Err(format!("`{}`: {status}", argv.join(" "))) }
    })
}

fn succeeds(argv: &[&str]) -> bool {
    command(argv).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn command(argv: &[&str]) -> Command {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}
