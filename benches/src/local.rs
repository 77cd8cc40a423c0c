//! The local provider from the library: create, exec, streaming.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use capbox::local::Local;
use capbox::prelude::*;
use tokio::runtime::Runtime;

use crate::measure::{Bench, Outcome, at_least, at_most, in_turns, timed};
use crate::program::{BWRAP, whole};

const STREAMED: u64 = 1 << 30;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        Bench::new("exec", || {
            let runtime = runtime()?;
            let sandbox = runtime.block_on(create())?;
            let ours = || {
                runtime.block_on(async {
                    let start = Instant::now();
                    let out = sandbox.exec(["/usr/bin/true"]).await.map_err(|e| e.to_string())?;
                    let time = start.elapsed();
                    if out.status.success() { Ok(time) } else { Err(out.status.to_string()) }
                })
            };
            let times = in_turns(500, ours, || whole(&["/usr/bin/true"]))?;
            runtime.block_on(sandbox.destroy()).map_err(|e| e.to_string())?;
            Ok(at_most(1.1, &times))
        }),
        Bench::new("create", || {
            let runtime = runtime()?;
            let ours = || {
                runtime.block_on(async {
                    let start = Instant::now();
                    let sandbox = create().await?;
                    sandbox.exec(["/usr/bin/true"]).await.map_err(|e| e.to_string())?;
                    let time = start.elapsed();
                    sandbox.destroy().await.map_err(|e| e.to_string())?;
                    Ok(time)
                })
            };
            if whole(BWRAP).is_err() {
                return Ok(Outcome::Skipped("`bwrap` does not run here".to_owned()));
            }
            Ok(at_most(0.5, &in_turns(100, ours, || whole(BWRAP))?))
        }),
        Bench::new("stream", || {
            let runtime = runtime()?;
            let sandbox = runtime.block_on(create())?;
            let size = STREAMED.to_string();
            let ours = || {
                runtime.block_on(async {
                    let start = Instant::now();
                    let mut process =
                        sandbox.spawn(["head", "-c", &size, "/dev/zero"]).await.map_err(|e| e.to_string())?;
                    let mut got = 0;
                    while let Some(event) = process.next().await.map_err(|e| e.to_string())? {
                        if let Event::Output { bytes, .. } = event {
                            got += bytes.len() as u64;
                        }
                    }
                    complete(got, start)
                })
            };
            let times = in_turns(7, ours, || bare_pipe(&size))?;
            runtime.block_on(sandbox.destroy()).map_err(|e| e.to_string())?;
            Ok(at_least(0.8, &times))
        }),
    ]
}

fn runtime() -> Result<Runtime, String> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())
}

async fn create() -> Result<Sandbox<Local>, String> {
    let client = Local::new().map_err(|e| e.to_string())?;
    client.create().await.map_err(|e| e.to_string())
}

fn complete(got: u64, start: Instant) -> Result<Duration, String> {
    if got == STREAMED { Ok(start.elapsed()) } else { Err(format!("{got} bytes came instead of {STREAMED}")) }
}

/// The same program, read through a pipe of the default size in chunks of 64 KiB.
fn bare_pipe(size: &str) -> Result<Duration, String> {
    let start = Instant::now();
    let mut child = Command::new("head")
        .args(["-c", size, "/dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("start `head`: {e}"))?;
    let mut stdout = child.stdout.take().expect("piped");
    let mut chunk = vec![0; 64 << 10];
    let mut got = 0;
    timed(|| {
        loop {
            match stdout.read(&mut chunk).map_err(|e| e.to_string())? {
                0 => return Ok(()),
                n => got += n as u64,
            }
        }
    })?;
    child.wait().map_err(|e| e.to_string())?;
    complete(got, start)
}
