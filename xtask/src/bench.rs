//! `cargo xtask bench`: build what is measured, then measure.

use std::process::Command;

use crate::engine::Engine;
use crate::tools::{Result, build_capbox, cargo, run, target};

/// The most that the stripped program may weigh, in bytes.
const MAX_BINARY: u64 = 25 << 20;

pub(crate) fn task(names: &[&str]) -> Result {
    let capbox = build_capbox("release")?;
    run(cargo().args(["build", "--quiet", "--release", "--package", "capbox-bench"]))?;
    let size = std::fs::metadata(&capbox).map_err(|e| format!("{}: {e}", capbox.display()))?.len();
    println!("`capbox`: {} KiB (at most {} KiB)", size >> 10, MAX_BINARY >> 10);
    if size > MAX_BINARY {
        return Err("the program is too large".to_owned());
    }
    let mut bench = Command::new(target().join("release/capbox-bench"));
    bench.arg(&capbox).args(names);
    // architecture: the name of a bench, which says that a Docker Engine is one of its peers
    if names.is_empty() || names.iter().any(|name| name.contains("docker")) {
        run(&mut Engine::start().within(&bench))
    } else {
        run(&mut bench)
    }
}
