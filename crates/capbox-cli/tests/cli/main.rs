//! The built program, run as users run it: exit codes, what is printed where, and what is left behind.

mod docker;
mod documents;
mod files;
mod run;
mod sandboxes;
mod signals;
mod tables;
mod terminal;
mod usage;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What a run of the program left.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().expect("ended by itself"),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Its stdout, for one that succeeds and says nothing else.
    #[track_caller]
    fn printed(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "stdout: {}", self.stdout);
        self.stdout
    }
}

/// Where these tests keep their sandboxes, apart from those of the user who runs them.
const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/cli-state");

/// Where these tests keep files of the host: empty at first.
fn host() -> &'static Path {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    HOST.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cli-host");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("make a folder");
        folder
    })
}

/// The program with these arguments, with a clean environment and nothing on stdin.
fn capbox(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_capbox"));
    command.args(args).env_remove("CAPBOX_ON").env("CAPBOX_STATE_DIR", STATE).stdin(Stdio::null());
    // Whether an engine runs here is no matter of these tests, but for those that name one.
    command.env("DOCKER_HOST", "unix:///no/such/socket");
    command
}

/// Run to the end.
fn ran(args: &[impl AsRef<OsStr>]) -> Ran {
    Ran::of(&capbox(args).output().expect("start the program"))
}

/// Run to the end, with this on stdin.
fn ran_with_stdin(args: &[&str], input: &[u8]) -> Ran {
    let mut command = capbox(args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the program");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // Not all is read by a program that ends early.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("wait for the program");
    writer.join().expect("write its stdin");
    Ran::of(&output)
}

/// What it prints in a document.
#[track_caller]
fn json(args: &[&str]) -> serde_json::Value {
    let ran = ran(args);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}\n{ran:?}"))
}

/// A sandbox that lives as long as the test.
struct Sandbox(String);

impl Sandbox {
    fn create() -> Self {
        Self::create_with(&[])
    }

    fn create_with(args: &[&str]) -> Self {
        let id = ran(&[&["create", "--ttl", "5m"], args].concat()).printed();
        Self(id.trim_end().to_owned())
    }

    fn id(&self) -> &str {
        &self.0
    }

    /// `ID:PATH`.
    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.0)
    }

    /// What a command in it prints.
    #[track_caller]
    fn exec(&self, command: &[&str]) -> String {
        ran(&[&["exec", self.id(), "--"], command].concat()).printed()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        ran(&["rm", self.id()]);
    }
}

/// Ask again until it holds, for at most ten seconds.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "this does not come to hold: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True where a process of this machine has `text` in its command line.
fn is_running(text: &str) -> bool {
    let pids = std::fs::read_dir("/proc").expect("list /proc").flatten();
    pids.filter(|entry| entry.file_name() != std::process::id().to_string().as_str())
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|cmdline| cmdline.windows(text.len()).any(|part| part == text.as_bytes()))
}
