//! What tests share.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use capbox_host::{Config, Event, ExecRequest, Exit, Guest, Host, Job, Launch, Stream};
use libtest_mimic::Failed;
use tokio::io::AsyncWriteExt;

/// A user id that no user database has.
pub(crate) const USER: u32 = 54_321;

pub(crate) type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Body = fn() -> Pin<Box<dyn Future<Output = Outcome>>>;

pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) who: Who,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Who {
    Both,
    Root,
    User,
}

impl Who {
    pub(crate) fn includes(self, root: bool) -> bool {
        match self {
            Self::Both => true,
            Self::Root => root,
            Self::User => !root,
        }
    }
}

/// `tests! { Both name, Root other, … }`: a list of the functions with these names.
macro_rules! tests {
    ($($who:ident $name:ident,)*) => {
        pub(crate) fn trials() -> Vec<crate::support::Test> {
            vec![$(crate::support::Test {
                name: concat!(module_path!(), "::", stringify!($name)),
                who: crate::support::Who::$who,
                body: || Box::pin($name()),
            },)*]
        }
    };
}
pub(crate) use tests;

pub(crate) fn run(test: &Test) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    let body = async { tokio::time::timeout(Duration::from_mins(1), (test.body)()).await };
    match tasks.block_on(&runtime, body) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{error:?}: {error}").into()),
        Err(_) => Err("took more than 60 seconds".into()),
    }
}

/// The part of a test that is another process.
pub(crate) fn child(body: impl Future<Output = Outcome>) -> std::process::ExitCode {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start a runtime");
    match runtime.block_on(body) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Removes the folders of this run.
pub(crate) fn clean_up() {
    let ours = format!("capbox-test-{}-", std::process::id());
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&ours) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// As the command line does: see the test that needs it.
pub(crate) fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("raise the limit");
}

/// A new folder for one purpose.
pub(crate) fn scratch(name: &str) -> PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("capbox-test-{}-{number}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("make a folder for a test");
    path
}

/// The host with a state folder for this run.
pub(crate) fn host() -> Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let mut config = Config::default();
        config.state_dir = Some(scratch("state"));
        Host::open(config).expect("open the host")
    })
    .clone()
}

pub(crate) async fn guest() -> Result<Guest, capbox_host::Error> {
    host().launch(Launch::default()).await
}

pub(crate) fn sh(script: &str) -> ExecRequest {
    ExecRequest::new(["sh", "-c", script])
}

/// What a command wrote, and how it ended.
pub(crate) struct Collected {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Runs a command to its end, with nothing to read.
pub(crate) async fn collect(job: Job) -> Result<Collected, capbox_host::Error> {
    feed(job, b"").await
}

/// The same with something to read, which is written meanwhile.
pub(crate) async fn feed(mut job: Job, input: &[u8]) -> Result<Collected, capbox_host::Error> {
    let stdin = job.stdin.take();
    let feeding = async {
        if let Some(mut stdin) = stdin {
            // A command may end without reading all.
            let _ = stdin.write_all(input).await;
        }
    };
    let collecting = async {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = job.next().await? {
            match event {
                Event::Output { stream: Stream::Stdout, data, .. } => stdout.extend_from_slice(&data),
                Event::Output { stream: Stream::Stderr, data, .. } => stderr.extend_from_slice(&data),
                _ => {}
            }
        }
        Ok(Collected { exit: job.wait().await?, stdout, stderr })
    };
    // What is not read by the end is not written any more.
    let mut collecting = std::pin::pin!(collecting);
    tokio::select! {
        collected = &mut collecting => collected,
        () = feeding => collecting.await,
    }
}

/// Runs a script to its end.
pub(crate) async fn run_sh(guest: &Guest, script: &str) -> Result<Collected, capbox_host::Error> {
    collect(guest.exec(sh(script)).await?).await
}

/// What a script prints.
pub(crate) async fn print(guest: &Guest, script: &str) -> Result<String, capbox_host::Error> {
    let output = run_sh(guest, script).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text + &String::from_utf8_lossy(&output.stderr))
}
