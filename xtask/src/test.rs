//! `cargo xtask test`: everything that must hold.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::engine::Engine;
use crate::tools::{Result, cargo, install_packages, root, run, target};
use crate::{generate, verify};

/// Debian packages that the tests use beside Rust itself, and a program of each.
const PACKAGES: &[(&str, &str)] = &[
    ("python3", "python3"),
    ("busybox-static", "busybox"),
    ("bubblewrap", "bwrap"),
    ("uidmap", "newuidmap"),
];

/// Providers whose tests run beside a Docker Engine, in its network.
const BESIDE_ENGINE: &[&str] = &["docker"];

/// How many trials had which outcome.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// See the module's documentation. The last line is the summary.
pub(crate) fn run_task() -> Result {
    install_packages(PACKAGES);
    run(cargo().args(["fmt", "--all", "--check"]))?;
    run(cargo().args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;

    let mut tally = Tally::default();
    let evidence = target().join("evidence");
    let beside_engine: Vec<String> = generate::provider_ids()?
        .into_iter()
        .filter(|id| BESIDE_ENGINE.contains(&id.as_str()))
        .map(|id| format!("capbox-{id}"))
        .collect();
    let tests = || {
        let mut tests = cargo();
        tests.args(["test", "--no-fail-fast"]).env("CAPBOX_EVIDENCE", &evidence);
        tests
    };
    let others = beside_engine.iter().flat_map(|package| ["--exclude", package]);
    cargo_tests(tests().arg("--workspace").args(others), &mut tally)?;
    if !beside_engine.is_empty() {
        let engine = Engine::start();
        let packages = beside_engine.iter().flat_map(|package| ["--package", package]);
        cargo_tests(&mut engine.within(tests().args(packages)), &mut tally)?;
        engine.end()?;
    }
    let mut external = cargo();
    external
        .current_dir(root().join("examples/external-provider"))
        .env("CARGO_TARGET_DIR", target().join("external"));
    cargo_tests(external.args(["test"]).env("CAPBOX_EVIDENCE", &evidence), &mut tally)?;
    generate::run(generate::Mode::Check)?;
    verify::run_counted(&[], &mut tally)?;

    let Tally { passed, failed, skipped } = tally;
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { Ok(()) } else { Err(format!("{failed} trials failed")) }
}

/// Run the contract suites and keep what they showed in `dist/evidence`.
pub(crate) fn evidence() -> Result {
    let folder = root().join("dist/evidence");
    for id in generate::provider_ids()? {
        let mut suite = cargo();
        suite
            .args(["test", "--quiet", "--package", &format!("capbox-{id}"), "--test", "contract"])
            .env("CAPBOX_EVIDENCE", &folder);
        if BESIDE_ENGINE.contains(&id.as_str()) {
            run(&mut Engine::start().within(&suite))?;
        } else {
            run(&mut suite)?;
        }
    }
    Ok(())
}

/// Run `cargo test`, showing what it prints and counting its outcomes.
fn cargo_tests(command: &mut Command, tally: &mut Tally) -> Result {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("start the tests: {e}"))?;
    let stdout = child.stdout.take().expect("piped");
    let mut results = 0;
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|e| format!("read the tests' output: {e}"))?;
        println!("{line}");
        if let Some(result) = line.strip_prefix("test result: ") {
            results += 1;
            let count = |word: &str| {
                result
                    .split(';')
                    .find_map(|part| {
                        part.trim()
                            .trim_start_matches(|c: char| !c.is_ascii_digit())
                            .strip_suffix(word)?
                            .trim()
                            .parse::<u64>()
                            .ok()
                    })
                    .unwrap_or(0)
            };
            tally.passed += count(" passed");
            tally.failed += count(" failed");
            tally.skipped += count(" ignored");
        }
    }
    let status = child.wait().map_err(|e| format!("wait for the tests: {e}"))?;
    if results == 0 {
        return Err("no test ran".to_owned());
    }
    if !status.success() && tally.failed == 0 {
        return Err(format!("the tests ended with {status}, but none is said to have failed"));
    }
    Ok(())
}
