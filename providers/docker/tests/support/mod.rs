//! The engine that tests run beside, as `cargo xtask test` says. See `CONTRIBUTING.md`.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use capbox_docker::Config;

/// How long a sandbox may outlive the trial that dropped it.
const LASTS: Duration = Duration::from_secs(30);

/// An engine, with the images for tests.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    /// The socket.
    pub(crate) socket: PathBuf,
    /// The image for most tests.
    pub(crate) image: String,
    /// A folder with an archive and a folder to build from.
    pub(crate) files: PathBuf,
    /// Where its process is told, if it may be killed.
    pub(crate) pid_file: Option<PathBuf>,
}

impl Engine {
    /// The engine, or why there is none.
    pub(crate) fn find() -> Result<Self, String> {
        let variable = |name: &str| env::var(format!("CAPBOX_TEST_DOCKER_{name}"));
        if let Ok(reason) = variable("MISSING") {
            return Err(format!("no Docker Engine: {reason}"));
        }
        let told = || {
            let host = variable("HOST").ok()?;
            Some(Self {
                socket: host.strip_prefix("unix://")?.into(),
                image: variable("IMAGE").ok()?,
                files: variable("FILES").ok()?.into(),
                pid_file: variable("PID_FILE").ok().map(PathBuf::from),
            })
        };
        told().ok_or_else(|| {
            "no Docker Engine is told of: `cargo xtask engine -- cargo test` starts one".to_owned()
        })
    }

    /// Wait until nothing runs that earlier trials made, and remove what has ended, as the next client that creates
    /// would. Fails where something goes on: that is a leak.
    pub(crate) fn wait_until_empty(&self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let running = self.containers(&["--quiet"])?;
            if running.is_empty() || begin.elapsed() > LASTS {
                let all = self.containers(&["--quiet", "--all"])?;
                if !all.is_empty() {
                    let all = all.iter().map(String::as_str);
                    let remove: Vec<&str> = ["rm", "--force", "--volumes"].into_iter().chain(all).collect();
                    self.docker(&remove)?;
                }
                if running.is_empty() {
                    return Ok(());
                }
                return Err(format!("an earlier trial left the containers `{}`", running.join("`, `")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The ids of the containers that capbox made.
    fn containers(&self, which: &[&str]) -> Result<Vec<String>, String> {
        let list = self.docker(&[&["ps", "--filter", "label=dev.capbox.sandbox"], which].concat())?;
        Ok(list.lines().map(str::to_owned).collect())
    }

    fn docker(&self, args: &[&str]) -> Result<String, String> {
        let host = format!("unix://{}", self.socket.display());
        let out = Command::new("docker").args(["--host", &host]).args(args).output();
        let out = out.map_err(|error| format!("start `docker`: {error}"))?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// The configuration of a client of it, by another socket.
    pub(crate) fn config(&self, host: impl Into<String>) -> Config {
        Config::new().with_host(host).with_image(&self.image)
    }
}
