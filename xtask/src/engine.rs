//! A Docker Engine for tests and benches: one of our own that hurts nobody, with images from this machine's own files.
//!
//! The engine has network and mounts of its own ([`supervise`]), so that it neither touches the rules of a Docker that
//! already runs here nor leaves anything behind; what needs its ports runs in its network too. Without the means for
//! that (root, `dockerd`), an engine that answers already is used, whose restarts are nobody's to test; without that
//! either, tests are told why and say `skipped`.

mod images;
pub(crate) mod supervise;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::tools::{Result, install_packages, is_there, run};

/// Debian packages of an engine, and a program of each.
const PACKAGES: &[(&str, &str)] =
    &[("docker.io", "dockerd"), ("iptables", "iptables"), ("iproute2", "ip"), ("busybox-static", "busybox")];
/// The client, which is part of `docker.io` up to Debian 12 and a package of its own since.
const CLIENT: &[(&str, &str)] = &[("docker-cli", "docker")];

/// Programs that an engine of our own needs.
const NEEDED: &[&str] =
    &["dockerd", "containerd", "docker", "iptables", "ip", "mount", "unshare", "nsenter", "setpriv"];

/// What tests read, see `CONTRIBUTING.md`.
const HOST: &str = "CAPBOX_TEST_DOCKER_HOST";
const IMAGE: &str = "CAPBOX_TEST_DOCKER_IMAGE";
const FILES: &str = "CAPBOX_TEST_DOCKER_FILES";
const PID_FILE: &str = "CAPBOX_TEST_DOCKER_PID_FILE";
const MISSING: &str = "CAPBOX_TEST_DOCKER_MISSING";

/// An engine, or the reason why there is none. What was started or made ends with the value, and with this process.
pub(crate) struct Engine {
    kind: Kind,
    /// What tests find in their environment.
    env: Vec<(&'static str, OsString)>,
}

enum Kind {
    Own(Supervised),
    Found { host: String, files: PathBuf },
    Missing,
}

/// `cargo xtask engine -- COMMAND…`
pub(crate) fn task(command: &[&str]) -> Result {
    let [program, args @ ..] = command else {
        return Err("say what to run: `cargo xtask engine -- COMMAND…`".to_owned());
    };
    let engine = Engine::start();
    if let Some(reason) = engine.missing() {
        return Err(reason);
    }
    run(&mut engine.within(Command::new(program).args(args))).and(engine.end())
}

impl Engine {
    /// Start one, or take the one that answers, and give it the images.
    pub(crate) fn start() -> Self {
        install_packages(PACKAGES);
        install_packages(CLIENT);
        Self::own().or_else(|own| Self::found().map_err(|found| format!("{own}; {found}"))).unwrap_or_else(
            |reason| {
                eprintln!("warning: no Docker Engine: {reason}; what needs one is skipped");
                Self { kind: Kind::Missing, env: vec![(MISSING, reason.into())] }
            },
        )
    }

    /// Why there is none.
    pub(crate) fn missing(&self) -> Option<String> {
        let reason = &self.env.iter().find(|(name, _)| *name == MISSING)?.1;
        Some(reason.to_string_lossy().into_owned())
    }

    /// `command`, where the engine's ports are, and told how to find it.
    pub(crate) fn within(&self, command: &Command) -> Command {
        let mut within = match &self.kind {
            Kind::Own(own) => {
                let mut enter = Command::new("nsenter");
                enter.args(["--target", &own.holder, "--net", "--"]).arg(command.get_program());
                enter
            }
            Kind::Found { .. } | Kind::Missing => Command::new(command.get_program()),
        };
        within.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => within.env(name, value),
                None => within.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            within.current_dir(folder);
        }
        within.envs(self.env.iter().map(|(name, value)| (name, value)));
        within
    }

    /// End it now, and fail if anything of it is left.
    pub(crate) fn end(self) -> Result {
        let Kind::Own(own) = &self.kind else { return Ok(()) };
        let folder = own.folder.clone();
        drop(self);
        match supervise::left(&folder).as_slice() {
            [] => Ok(()),
            left => Err(format!("the engine left `{}`", left.join("`, `"))),
        }
    }

    fn own() -> Result<Self> {
        if let Some(missing) = NEEDED.iter().find(|program| !is_there(program)) {
            return Err(format!("`{missing}` is not there"));
        }
        if !rustix::process::geteuid().is_root() {
            return Err("to start an engine takes root".to_owned());
        }
        let own = Supervised::start()?;
        let host = format!("unix://{}", supervise::socket(&own.folder).display());
        let files = own.folder.join("files");
        let mut env = env(&host, &files);
        env.push((PID_FILE, supervise::pid_file(&own.folder).into()));
        images::make(&host, &files)?;
        Ok(Self { kind: Kind::Own(own), env })
    }

    fn found() -> Result<Self> {
        let host = std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned());
        let answers = Command::new("docker")
            .args(["--host", &host, "version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !answers {
            return Err(format!("none answers at `{host}`"));
        }
        let files = supervise::folder();
        let env = env(&host, &files);
        // From here on, dropping it takes away what was made, also if not all could be.
        let engine = Self { kind: Kind::Found { host: host.clone(), files: files.clone() }, env };
        images::make(&host, &files)?;
        Ok(engine)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Kind::Found { host, files } = &self.kind {
            images::remove(host);
            std::fs::remove_dir_all(files).ok();
        }
    }
}

fn env(host: &str, files: &Path) -> Vec<(&'static str, OsString)> {
    vec![
        (HOST, host.into()),
        ("DOCKER_HOST", host.into()),
        (IMAGE, images::TOOLS.into()),
        (FILES, files.as_os_str().to_owned()),
    ]
}

/// The process that holds our engine, and the lease by which we hold it.
struct Supervised {
    supervisor: Child,
    folder: PathBuf,
    /// The process whose namespaces the engine is in.
    holder: String,
}

impl Supervised {
    fn start() -> Result<Self> {
        let folder = supervise::folder();
        let program = std::env::current_exe().map_err(|e| format!("find this program: {e}"))?;
        let mut supervisor = Command::new(program)
            .arg(supervise::TASK)
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0) // a Ctrl-C is for us; it cleans up after us
            .spawn()
            .map_err(|e| format!("start the engine's supervisor: {e}"))?;
        let stdout = supervisor.stdout.take().expect("piped");
        let mut own = Self { supervisor, folder, holder: String::new() };
        let mut answer = String::new();
        BufReader::new(stdout).read_line(&mut answer).map_err(|e| format!("ask the supervisor: {e}"))?;
        match answer.trim_end().split_once(' ') {
            Some(("ready", holder)) => holder.clone_into(&mut own.holder),
            Some(("failed", reason)) => return Err(reason.to_owned()),
            _ => return Err("the engine's supervisor ended".to_owned()),
        }
        Ok(own)
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        self.supervisor.wait().ok();
    }
}
