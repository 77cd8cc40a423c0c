//! The Docker provider against Docker's own client, on the engine that `DOCKER_HOST` names.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use capbox::api::Transferred;
use capbox::prelude::*;
use tokio::runtime::Runtime;

use crate::measure::{Bench, Outcome, at_least, at_most, in_turns};
use crate::program::whole;

/// How much a copy moves.
const COPIED: u64 = 256 << 20;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new("docker-exec", || {
            beside(&[Capability::Run], |runtime, sandbox, container, _| {
                let ours = || {
                    runtime.block_on(async {
                        let start = Instant::now();
                        let out = sandbox.exec(["/bin/true"]).await.map_err(|e| e.to_string())?;
                        let time = start.elapsed();
                        if out.status.success() { Ok(time) } else { Err(out.status.to_string()) }
                    })
                };
                let peer = || whole(&["docker", "exec", container, "/bin/true"]);
                Ok(at_most(0.1, &in_turns(40, ours, peer)?))
            })
        }),
        Bench::new("docker-in", || {
            beside(&[Capability::FilesUpload], |runtime, sandbox, container, folder| {
                let source = folder.join("source");
                let (text, target) = (source.display().to_string(), format!("{container}:/tmp/peer"));
                let files = sandbox.files().ok_or("there are no files")?;
                let ours = || copied(runtime, files.upload(&source, "/tmp/ours"));
                Ok(at_least(0.9, &in_turns(5, ours, || whole(&["docker", "cp", &text, &target]))?))
            })
        }),
        Bench::new("docker-out", || {
            beside(&[Capability::FilesUpload], |runtime, sandbox, container, folder| {
                let files = sandbox.files().ok_or("there are no files")?;
                copied(runtime, files.upload(folder.join("source"), "/tmp/source"))?;
                let (source, target) =
                    (format!("{container}:/tmp/source"), folder.join("peer").display().to_string());
                let ours = || copied(runtime, files.download("/tmp/source", folder.join("ours")));
                Ok(at_least(0.9, &in_turns(5, ours, || whole(&["docker", "cp", &source, &target]))?))
            })
        }),
    ]
}

/// Measure in a sandbox, of which the container's id is given too, with a folder that holds a file to copy.
fn beside(
    needed: &[Capability],
    measure: impl FnOnce(&Runtime, &AnySandbox, &str, &Path) -> Result<Outcome, String>,
) -> Result<Outcome, String> {
    let Ok(image) = std::env::var("CAPBOX_TEST_DOCKER_IMAGE") else {
        return Ok(Outcome::Skipped("no Docker Engine is told of; see `cargo xtask engine`".to_owned()));
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let client = Client::from_uri(&format!("docker://{image}")).map_err(|e| e.to_string())?;
    if let Some(refusal) = needed.iter().find_map(|row| client.require(*row).err()) {
        return Ok(Outcome::Skipped(refusal.to_string()));
    }
    let folder = tempfile::tempdir().map_err(|e| format!("make a folder: {e}"))?;
    let source = std::fs::File::create(folder.path().join("source"));
    source.and_then(|file| file.set_len(COPIED)).map_err(|e| format!("make a file: {e}"))?;

    let sandbox = runtime.block_on(client.create(Spec::new()).into_future()).map_err(|e| e.to_string())?;
    let measured = latest().and_then(|container| measure(&runtime, &sandbox, &container, folder.path()));
    runtime.block_on(sandbox.destroy()).map_err(|e| e.to_string())?;
    measured
}

/// The container that was made last, which is the sandbox's.
fn latest() -> Result<String, String> {
    let out = Command::new("docker").args(["ps", "--latest", "--quiet"]).output();
    let out = out.map_err(|e| format!("start `docker`: {e}"))?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// The time of a copy that must be whole.
fn copied(
    runtime: &Runtime,
    copy: impl Future<Output = capbox::Result<Transferred>>,
) -> Result<Duration, String> {
    let start = Instant::now();
    let done = runtime.block_on(copy).map_err(|e| e.to_string())?;
    let time = start.elapsed();
    if done.bytes == COPIED {
        Ok(time)
    } else {
        Err(format!("{} bytes were copied instead of {COPIED}", done.bytes))
    }
}
