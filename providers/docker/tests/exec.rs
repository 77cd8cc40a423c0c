//! Commands and files in containers of a real engine: what the contract suite does not cover.
//!
//! `CAPBOX_TEST_DOCKER_HOST` and `CAPBOX_TEST_DOCKER_IMAGE` name one and an image with a shell, the usual tools and Python.

use std::fs;
use std::time::Duration;

use capbox_core::provider::*;
use capbox_docker::{Config, Docker};

type Sandbox = capbox_core::api::Sandbox<Docker>;

/// A client of the engine for tests, where there is one.
fn client() -> Option<Client<Docker>> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let engine = variable("CAPBOX_TEST_DOCKER_HOST").zip(variable("CAPBOX_TEST_DOCKER_IMAGE"));
    let Some((host, image)) = engine else {
        eprintln!("skipped: there is no Docker Engine for tests; see `cargo xtask engine`");
        return None;
    };
    Some(Docker::configured(Config::new().with_host(host).with_image(image)).expect("a client"))
}

async fn sandbox() -> Option<Sandbox> {
    Some(client()?.create().await.expect("a sandbox"))
}

macro_rules! sandbox {
    () => {
        match sandbox().await {
            Some(sandbox) => sandbox,
            None => return,
        }
    };
}

fn text(output: &Output) -> String {
    output.stdout.text().into_owned()
}

/// B13, B14, B45, B56: exit codes, signals and bytes are what they were, apart.
#[tokio::test]
async fn b13_b14_b45_b56_status_and_streams_are_exact() {
    let sandbox = sandbox!();
    let out = sandbox.exec("printf out; printf err >&2; exit 7").await.unwrap();
    assert_eq!(out.status, ExitStatus::Exited(7));
    assert_eq!((out.stdout.bytes(), out.stderr.bytes()), (&b"out"[..], &b"err"[..]));
    assert_eq!(sandbox.exec("kill -9 $$").await.unwrap().status, ExitStatus::Signaled(9));
    assert_eq!(sandbox.exec("kill -ABRT $$").await.unwrap().status, ExitStatus::Signaled(6));
    let out = sandbox.exec(r"printf 'ok\377\n'; exit 3").await.unwrap();
    assert_eq!((out.status, out.stdout.bytes()), (ExitStatus::Exited(3), &b"ok\xff\n"[..]));
}

/// B29: what a timeout kills is killed inside, not only forgotten here.
#[tokio::test]
async fn b29_a_timeout_kills_inside() {
    let sandbox = sandbox!();
    let out = sandbox
        .exec(["python3", "-c", "while True: pass"])
        .timeout(Duration::from_millis(500))
        .await
        .unwrap();
    assert_eq!(out.status, ExitStatus::TimedOut);
    let left = sandbox.exec("for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done").await.unwrap();
    assert!(!text(&left).contains("while True"), "{}", text(&left));
}

/// B37, B38: input of any size goes in while output comes out.
#[tokio::test]
async fn b37_b38_input_is_fed_while_output_is_drained() {
    let sandbox = sandbox!();
    let input = vec![b'x'; 48 << 20];
    let out = sandbox.exec("wc -c").input(input).await.unwrap();
    assert_eq!(text(&out).trim(), (48 << 20).to_string());
    let input = vec![b'y'; 2 << 20];
    let out = sandbox.exec("cat").input(input.clone()).await.unwrap();
    assert_eq!(out.stdout.bytes(), &input[..]);
    assert!(sandbox.exec("true").input(vec![b'z'; 4 << 20]).await.unwrap().status.success());
}

/// What a command reads and writes and how it ends is told to one that starts it and to one that finds it later.
#[tokio::test]
async fn a_background_process_is_found_again_by_another_client() {
    let sandbox = sandbox!();
    let process = sandbox.spawn("echo one; cat; echo two").stdin(Stdin::Open).background().await.unwrap();
    let id = process.id().clone();
    let other = client().unwrap().connect(sandbox.id()).await.unwrap();
    let mut replayed = other.process(id).replay(0).await.unwrap();
    replayed.write(b"between\n").await.unwrap();
    replayed.close_stdin().await.unwrap();
    assert_eq!(text(&replayed.output().await.unwrap()), "one\nbetween\ntwo\n");
}

/// A file of any size goes both ways, its mode and time kept, and takes its place when it is whole.
#[tokio::test]
async fn files_are_copied_both_ways() {
    let sandbox = sandbox!();
    let folder = tempfile::tempdir().unwrap();
    let (there, back) = (folder.path().join("there"), folder.path().join("back"));
    let content: Vec<u8> = (0..5_000_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&there, &content).unwrap();
    let files = sandbox.files();
    let done = files.upload(&there, "/tmp/a/b/there").await.unwrap();
    assert_eq!((done.files, done.bytes), (1, content.len() as u64));
    files.download("/tmp/a/b/there", &back).await.unwrap();
    assert!(fs::read(&back).unwrap() == content);
    let time = |path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(time(&there), time(&back));
    let refused = files.download("/tmp/a", folder.path().join("x")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IsADirectory);
    assert_eq!(
        files.download("/dev/zero", folder.path().join("x")).await.unwrap_err().kind(),
        ErrorKind::NotARegularFile
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing half-way is left");
}
